//! What differs between processors in shared memory: the context of a hit, and how patches look.
//! x86-64 and x86-32 have the same.
//!
//! Code generators name the module of their instruction set. All others use the one of the
//! processor that they are compiled for, whose names are here.

pub mod a64;
pub mod x86;

#[cfg(target_arch = "aarch64")]
use a64 as host;
#[cfg(not(target_arch = "aarch64"))]
use x86 as host;

pub use host::{
    BREAKPOINT, CHANGEABLE, FLAGS, FRAME_BASE, FRAME_POINTER, GOROUTINE, Hit, INSTRUCTION_POINTER, REGISTERS, RESULT,
    RESULTS, Regs, STACK_POINTER, STAND_INS, TRAMPOLINE_MARK, UNUSED_AT_ENTRY, WORDS_BEFORE_ARGUMENTS, jump_end,
};
