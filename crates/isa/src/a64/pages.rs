//! Addresses that code makes of a page and a number: `adrp` and what follows it.

use super::SP;
use super::class::Class;
use super::decode::Insn;
use crate::insn::Flow;
use crate::{Len, Va};

/// Registers that hold the address of a page, from one instruction to the next as they lie in
/// memory.
#[derive(Clone, Default, Debug)]
pub(crate) struct Pages {
    pages: [Option<Va>; SP as usize + 1],
}

impl Pages {
    /// Goes on behind an instruction. Returns the address that it names, if it does: as a value, or
    /// as the operand of a load or store.
    pub fn step(&mut self, insn: &Insn) -> Option<Va> {
        let page = self.pages[usize::from(insn.rn())];
        let usage = insn.usage();
        for (register, page) in self.pages.iter_mut().enumerate() {
            if usage.writes >> register & 1 == 1 {
                *page = None;
            }
        }
        if matches!(insn.flow(), Flow::Call(_) | Flow::CallIndirect) {
            let changed = insn.isa().limits().changed_by_calls;
            for (register, page) in self.pages.iter_mut().enumerate() {
                if changed >> register & 1 == 1 {
                    *page = None;
                }
            }
        }
        match insn.class() {
            Class::Adrp => {
                if insn.rd() != SP {
                    self.pages[usize::from(insn.rd())] = insn.pc_target();
                }
                None
            }
            Class::AddImmediate if insn.word() >> 29 == 0b100 => Some(page?.plus(Len(insn.immediate() as u64))),
            _ if insn.memory_base().is_some() => {
                let access = insn.access()?;
                page.map(|page| page.offset(access.offset))
            }
            _ => insn.pc_target(),
        }
    }
}
