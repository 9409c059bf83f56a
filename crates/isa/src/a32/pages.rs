//! Addresses that code makes of two halves: `movw` and `movt`.

use super::class::Class;
use super::decode::Insn;
use crate::Va;
use crate::insn::Flow;

/// Registers that hold the lower half of an address, from one instruction to the next as they lie
/// in memory.
#[derive(Clone, Default, Debug)]
pub(crate) struct Halves {
    lower: [Option<u32>; 16],
}

impl Halves {
    /// Goes on behind an instruction. Returns the address that it names, if it does: as a value, or
    /// as the operand of a load or store.
    pub fn step(&mut self, insn: &Insn) -> Option<Va> {
        let mut named = insn.pc_target();
        for op in insn.ops() {
            let d = op.writes.trailing_zeros() as usize & 15;
            let (lower, value) = (self.lower[d], op.offset().unwrap_or(0) as u32);
            for (register, lower) in self.lower.iter_mut().enumerate() {
                if op.writes >> register & 1 == 1 {
                    *lower = None;
                }
            }
            match op.class {
                Class::Constant if value <= 0xffff => self.lower[d] = Some(value),
                Class::Constant => named = Some(Va(value.into())),
                Class::MoveTop => named = lower.map(|lower| Va((value << 16 | lower).into())).or(named),
                _ => {}
            }
        }
        if matches!(insn.flow(), Flow::Call(_) | Flow::CallIndirect) {
            let changed = insn.isa().limits().changed_by_calls;
            for (register, lower) in self.lower.iter_mut().enumerate() {
                if changed >> register & 1 == 1 {
                    *lower = None;
                }
            }
        }
        named
    }
}
