//! Where a function's stack pointer is, instruction by instruction, as far as compilers' code
//! tells.

use crate::insn::{Insn, ask};

/// Stack and frame pointer relative to the stack pointer at the function's entry; `None` = not
/// known any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stack {
    pub(crate) sp: Option<i64>,
    pub(crate) fp: Option<i64>,
}

impl Stack {
    /// At the entry: the return address is at offset 0.
    pub const ENTRY: Stack = Stack { sp: Some(0), fp: None };

    /// Nothing is known.
    pub const UNKNOWN: Stack = Stack { sp: None, fp: None };

    /// Is the stack pointer certainly where it was at the entry?
    #[must_use]
    pub fn is_as_at_entry(&self) -> bool {
        self.sp == Some(0)
    }

    /// The stack pointer relative to the one at the entry, in bytes; `None`: it is not known.
    #[must_use]
    pub fn depth(&self) -> Option<i64> {
        self.sp
    }

    /// What is known where two paths meet.
    #[must_use]
    pub fn meet(self, other: Stack) -> Stack {
        let same = |a: Option<i64>, b: Option<i64>| a.filter(|a| Some(*a) == b);
        Stack { sp: same(self.sp, other.sp), fp: same(self.fp, other.fp) }
    }

    /// Whether an instruction reads, writes or takes the address of the slot that holds the return
    /// address, other than by returning.
    #[must_use]
    pub fn names_return_address(&self, insn: &Insn) -> bool {
        ask!(insn, own => own.names_return_address(*self))
    }

    /// Where the stack pointer is when a function is left by this return, and handlers of the exit
    /// run: on arm32 behind what a return takes off the stack, elsewhere in front of it.
    #[must_use]
    pub fn at_return(&self, insn: &Insn) -> Stack {
        match insn {
            Insn::A32(own) if own.loads_return_address() => self.after(insn),
            _ => *self,
        }
    }

    /// The state behind an instruction; for a call: after it has returned.
    #[must_use]
    pub fn after(&self, insn: &Insn) -> Stack {
        ask!(insn, own => own.stack_after(*self))
    }
}
