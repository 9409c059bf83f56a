//! x86-64 and x86-32.

mod context;
pub mod decode;
pub mod emit;
pub mod emulate;
mod fault;
pub(crate) mod go;
pub(crate) mod indirect;
mod limits;
mod pass;
pub mod relocate;
pub(crate) mod scan;
mod stack;
pub(crate) mod syscalls;
pub(crate) mod thunk;
pub(crate) mod vectors;

pub use decode::{Insn, Reader, Sweep, decode};
pub use limits::{LIMITS_32, LIMITS_64};
pub use relocate::{Unsupported, relocate, relocated_len};
