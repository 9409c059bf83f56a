//! What instructions change, for probes behind them ([`crate::passed`]).

use super::SP;
use super::class::{Class, Op};
use super::decode::Insn;
use crate::insn::Flow;
use crate::passed::Passed;

impl Insn {
    /// See [`crate::Insn::passed`]. `None` where it writes to memory other than by a push, to
    /// vectors or to system registers, goes elsewhere, or may fault by reading through a pointer
    /// other than the stack's; and where it has a condition.
    #[must_use]
    pub fn passed(&self) -> Option<Passed> {
        let op = self.plain().filter(|_| self.flow() == Flow::Next)?;
        if self.is_nop() {
            return Some(Passed::Nothing);
        }
        let flags = self.flags_set() != 0;
        if let Some(bytes) = op.lowers_stack() {
            return Some(Passed::Stack { bytes, flags });
        }
        let is_plain = match op.class {
            Class::Load | Class::LoadMultiple => !self.may_fault_off_stack(),
            Class::Compute | Class::Address | Class::Constant | Class::MoveTop | Class::ReadStatus => !self.may_fault(),
            _ => false,
        };
        let regs = self.usage().writes;
        (is_plain && regs & 1 << SP == 0).then_some(Passed::Registers { regs, flags })
    }
}

impl Op {
    /// By how much it lowers the stack pointer, if that, and what it writes there, is all.
    fn lowers_stack(&self) -> Option<i32> {
        let only = self.writes == 1 << SP;
        let is_push = matches!(self.class, Class::Store | Class::StoreMultiple | Class::VectorStore)
            && self.base == Some(SP)
            && self.write_back
            && self.before
            // What is stored is not the pointer itself.
            && (self.class == Class::VectorStore || self.is_store_of_others());
        let is_sub = self.class == Class::Compute && self.reads == 1 << SP;
        let bytes = self.offset()?.checked_neg()?;
        (only && (is_push || is_sub) && bytes > 0).then_some(bytes)
    }

    fn is_store_of_others(&self) -> bool {
        match self.class {
            Class::StoreMultiple => self.len == 2 || self.word & 1 << SP == 0,
            _ => (self.word >> 12 & 15) != u32::from(SP),
        }
    }
}
