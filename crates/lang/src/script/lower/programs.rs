//! The programs of a script, each once.

use sidestep_bpf::{Program, Reg};

use super::{LowerError, helper};
use crate::build::Builder;

/// The programs of a script.
#[derive(Default)]
pub(super) struct Programs {
    pub all: Vec<Program>,
    /// The index of the one that remembers the time of a call until its return.
    stamp: Option<usize>,
    /// The index of the one that does nothing.
    nothing: Option<usize>,
}

impl Programs {
    pub fn add(&mut self, program: Program) -> usize {
        self.all.push(program);
        self.all.len() - 1
    }

    pub fn stamp(&mut self, cookie: u16) -> Result<usize, LowerError> {
        if let Some(stamp) = self.stamp {
            return Ok(stamp);
        }
        let mut out = Builder::new();
        out.mov(Reg::R6, Reg::R1);
        out.call(helper::NSECS);
        out.put(Reg::R6, cookie as i16, Reg::R0);
        out.mov_imm(Reg::R0, 0);
        out.push(sidestep_bpf::Insn::Exit);
        let stamp = self.add(out.finish()?);
        Ok(*self.stamp.insert(stamp))
    }

    /// At the entry of a call: the engine has seen the call begin.
    pub fn nothing(&mut self) -> Result<usize, LowerError> {
        if let Some(nothing) = self.nothing {
            return Ok(nothing);
        }
        let mut out = Builder::new();
        out.mov_imm(Reg::R0, 0);
        out.push(sidestep_bpf::Insn::Exit);
        let nothing = self.add(out.finish()?);
        Ok(*self.nothing.insert(nothing))
    }
}
