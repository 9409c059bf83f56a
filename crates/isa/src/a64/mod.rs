//! A64: 64-bit code of Arm, little-endian. Sections are those of the Arm Architecture Reference
//! Manual for A-profile (DDI 0487).

mod access;
mod class;
mod context;
pub mod decode;
pub mod emit;
pub mod emulate;
mod fault;
pub(crate) mod go;
pub(crate) mod indirect;
mod limits;
pub(crate) mod pages;
mod pass;
pub mod patch;
pub mod relocate;
pub(crate) mod scan;
mod stack;
pub(crate) mod syscalls;
mod text;
pub(crate) mod thunk;
mod usage;
pub(crate) mod vectors;

pub use class::Class;
pub use decode::{Insn, Reader, Sweep, decode};
pub use limits::LIMITS;
pub use relocate::{Unsupported, relocate, relocated_len};

/// Bytes of an instruction.
pub const WORD: usize = 4;
/// The frame pointer.
pub const FP: u8 = 29;
/// The link register, which has the return address.
pub const LINK: u8 = 30;
/// The stack pointer among the general-purpose registers. In encodings, 31 is the stack pointer or
/// the zero register.
pub const SP: u8 = 31;

/// Bits `high` to `low` of a word, with both ends.
const fn bits(word: u32, high: u32, low: u32) -> u32 {
    word >> low & (u32::MAX >> (31 - (high - low)))
}

/// Bits `high` to `low` of a word as a number with a sign.
const fn signed(word: u32, high: u32, low: u32) -> i64 {
    ((word << (31 - high)) as i32 >> (31 - (high - low))) as i64
}
