//! What an instruction changes that is executed before a probe is hit, although it stands in front
//! of the hit's address: a probe behind the first instruction of a function has to show the state
//! in front of it.

use crate::insn::RegisterSet;

/// What is not as it was in front of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passed {
    /// Nothing, as behind a nop.
    Nothing,
    /// The stack pointer is lower by so many bytes, and what the instruction wrote is there. All is
    /// as it was when the stack pointer is, but for the flags if `flags` is set; and executing the
    /// instruction again does the same again.
    Stack {
        /// Bytes, greater than 0.
        bytes: i32,
        /// The arithmetic flags are others, too.
        flags: bool,
    },
    /// These registers, and the flags if `flags` is set. Their values are lost.
    Registers {
        /// Registers, never the stack pointer.
        regs: RegisterSet,
        /// The flags, too.
        flags: bool,
    },
}
