//! What differs between processors in shared memory: the context of a hit, and how patches look.
//! x86-64 and x86-32 have the same.

mod x86;

pub use x86::{BREAKPOINT, JUMP, JUMP_LEN, NO_PREFIX, Regs};
