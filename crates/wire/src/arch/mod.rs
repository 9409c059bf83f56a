//! What differs between processors in shared memory: the context of a hit, and how patches look.
//! x86-64 and x86-32 have the same.

mod x86;

pub use x86::{
    BREAKPOINT, FLAGS, FRAME_BASE, FRAME_POINTER, GOROUTINE, INSTRUCTION_POINTER, JUMP, JUMP_LEN, NO_PREFIX, REGISTERS,
    RESULT, RESULTS, Regs, STACK_POINTER, UNUSED_AT_ENTRY, WORDS_BEFORE_ARGUMENTS,
};
