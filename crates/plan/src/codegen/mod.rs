//! Generated code: from a plan and its handlers to bytes. The files here are the face of the code
//! generators; each instruction set has a folder with files of equal names.

pub(crate) mod a32;
pub(crate) mod a64;
pub mod detour;
pub mod faults;
pub mod handler;
pub mod thunk;
#[cfg(feature = "toy")]
pub(crate) mod toy;
pub(crate) mod x86;
