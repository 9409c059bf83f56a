//! A32 and T32: 32-bit code of Arm, little-endian. Sections are those of the Arm Architecture
//! Reference Manual for ARMv7-A (DDI 0406C).
//!
//! The two instruction sets are two values of [`Isa`](crate::Isa). Addresses are those of the first
//! byte: bit 0, by which pointers to functions say T32, is not part of them.
//!
//! An `it` and the instructions that it makes conditional are one instruction here, of up to 18
//! bytes: nothing but an exception may lead into the middle of them (section A8.8.55), and what one
//! of them does depends on the `it`.

mod class;
mod context;
pub mod decode;
pub mod emit;
pub mod emulate;
mod fault;
pub(crate) mod indirect;
mod limits;
pub(crate) mod pages;
mod pass;
pub mod patch;
pub mod relocate;
pub(crate) mod scan;
mod stack;
mod sweep;
pub(crate) mod syscalls;
mod text;
pub(crate) mod thunk;
mod usage;
pub(crate) mod vectors;

pub use class::{Class, Op};
pub use decode::{Insn, decode};
pub use limits::{LIMITS_A32, LIMITS_T32};
pub use relocate::{Unsupported, relocate, relocated_len};
pub use sweep::{Reader, Sweep};

/// Bytes of the longest instruction: an `it` with four instructions.
pub const INSN_MAX: usize = 18;
/// The frame pointer of A32 code; that of T32 code is r7.
pub const FP: u8 = 11;
/// The stack pointer.
pub const SP: u8 = 13;
/// The link register, which has the return address.
pub const LINK: u8 = 14;
/// The program counter.
pub const PC: u8 = 15;

/// Bits `high` to `low` of a word, with both ends.
const fn bits(word: u32, high: u32, low: u32) -> u32 {
    word >> low & (u32::MAX >> (31 - (high - low)))
}

/// One bit of a word.
const fn bit(word: u32, at: u32) -> bool {
    word >> at & 1 == 1
}

/// Four bits of a word, as a register.
const fn register(word: u32, low: u32) -> u8 {
    (word >> low & 15) as u8
}

/// Bits `high` to `low` of a word as a number with a sign.
const fn signed(word: u32, high: u32, low: u32) -> i64 {
    ((word << (31 - high)) as i32 >> (31 - (high - low))) as i64
}
