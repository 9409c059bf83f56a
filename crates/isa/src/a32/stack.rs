//! Where the stack pointer is behind an instruction ([`crate::stack`]).

use super::class::{Class, Op};
use super::decode::Insn;
use super::{FP, LINK, PC, SP};
use crate::insn::Flow;
use crate::stack::Stack;

/// Where functions save the return address, relative to the stack pointer at their entry.
const SAVED: i64 = -4;

impl Op {
    /// The frame pointer of its instruction set.
    fn frame_pointer(&self) -> u8 {
        if self.thumb { 7 } else { FP }
    }

    fn value_of(&self, register: u8, stack: Stack) -> Option<i64> {
        match register {
            SP => stack.sp,
            _ if register == self.frame_pointer() => stack.fp,
            _ => None,
        }
    }

    /// The state behind it, if its condition holds.
    fn stack_after(&self, stack: Stack) -> Stack {
        let mut next = stack;
        let mut track = |register: u8, value| match register {
            SP => next.sp = value,
            _ if register == self.frame_pointer() => next.fp = value,
            _ => {}
        };
        for register in [SP, self.frame_pointer()] {
            if self.writes & 1 << register != 0 {
                track(register, None);
            }
        }
        let moved = |from: u8, by: i32| self.value_of(from, stack).map(|value| value.wrapping_add(by.into()));
        if let (Some(base), Some(by), true) = (self.base, self.offset(), self.write_back) {
            let loads = matches!(self.class, Class::Load | Class::LoadMultiple) && self.loads(base);
            track(base, moved(base, by).filter(|_| !loads));
        } else if let Some((from, to)) = self.copied() {
            track(to, moved(from, 0));
        } else if let (Class::Compute, Some(by), 1, 1) =
            (self.class, self.offset(), self.reads.count_ones(), self.writes.count_ones())
        {
            track(self.writes.trailing_zeros() as u8, moved(self.reads.trailing_zeros() as u8, by));
        }
        next
    }

    /// Whether the base of an access with write-back is among what is loaded.
    fn loads(&self, base: u8) -> bool {
        match (self.class, self.len) {
            (Class::LoadMultiple, 4) => self.word & 1 << base != 0,
            _ => false,
        }
    }

    /// Whether it loads the place of the return address to a register where that does not belong.
    fn loads_saved(&self, stack: Stack) -> bool {
        let (Some(base), Some(offset)) = (self.base, self.offset()) else { return false };
        let Some(start) = self.value_of(base, stack) else { return false };
        let data = self.writes & !if self.write_back { 1 << base } else { 0 };
        let at = match self.class {
            Class::Load if self.before => start.wrapping_add(offset.into()),
            Class::Load => start,
            // Below the base, or above it: those of `ldmib` and `ldmda` begin a word further on.
            Class::LoadMultiple if offset < 0 => start.wrapping_add(offset.into()),
            Class::LoadMultiple => start,
            _ => return false,
        };
        let registers = (0..16_u8).filter(|register| data >> register & 1 == 1);
        registers.zip((at..).step_by(4)).any(|(register, at)| at == SAVED && register != LINK && register != PC)
    }
}

impl Insn {
    /// The return address is in the link register, and functions that call others push it as the
    /// first word of their frame. Anything else that takes it has a use for its value.
    pub(crate) fn names_return_address(&self, stack: Stack) -> bool {
        self.ops().any(|op| {
            let reads_link = op.reads & 1 << LINK != 0;
            match op.class {
                Class::BranchRegister | Class::SupervisorCall => false,
                Class::Store | Class::StoreMultiple => reads_link && op.base != Some(SP),
                Class::Compute if op.copied() == Some((LINK, PC)) => false,
                _ => reads_link || op.loads_saved(stack),
            }
        })
    }

    /// Whether it is a return that takes its address off the stack.
    pub(crate) fn loads_return_address(&self) -> bool {
        let loads = self.ops().last().is_some_and(|op| matches!(op.class, Class::Load | Class::LoadMultiple));
        loads && self.flow() == Flow::Return
    }

    /// See [`Stack::after`].
    pub(crate) fn stack_after(&self, stack: Stack) -> Stack {
        self.ops().fold(stack, |stack, op| {
            let after = op.stack_after(stack);
            if op.is_always() { after } else { stack.meet(after) }
        })
    }
}
