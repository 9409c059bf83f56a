//! x86-64.

pub mod decode;
pub mod emit;
pub mod emulate;
mod fault;
pub mod held;
pub mod indirect;
pub mod live;
mod pass;
pub mod relocate;
pub mod stack;
pub mod thunk;

pub use decode::{DecodeError, Flow, Insn, Reader, Usage, decode, sweep};
pub use pass::Passed;
pub use relocate::{RelocateError, relocate, relocated_len};
