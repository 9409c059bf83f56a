//! What differs between processors in shared memory: the context of a hit, and how patches look.
//! x86-64 and x86-32 have the same, as A32 and T32 have.
//!
//! Code generators name the module of their instruction set. All others use the one of the
//! processor that they are compiled for, whose names are here.

pub mod a32;
pub mod a64;
pub mod x86;

#[cfg(target_arch = "arm")]
use a32 as host;
#[cfg(target_arch = "aarch64")]
use a64 as host;
#[cfg(not(any(target_arch = "aarch64", target_arch = "arm")))]
use x86 as host;

pub use host::{
    BREAKPOINT, CHANGEABLE, FLAGS, FRAME_BASE, FRAME_POINTER, GOROUTINE, Hit, INSTRUCTION_POINTER, REGISTERS, RESULT,
    RESULTS, Regs, STACK_POINTER, STAND_INS, TRAMPOLINE_MARK, UNUSED_AT_ENTRY, WORDS_BEFORE_ARGUMENTS, breakpoint_like,
    jump_end,
};
