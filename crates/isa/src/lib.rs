//! What Sidestep knows about instruction sets: decode, relocate, emit, registers, liveness.
//!
//! Pure: nothing here touches a process or a file, and every ISA works on every host.
#![forbid(unsafe_code)]

pub mod addr;
pub mod object;
pub mod x86;

pub use addr::{FileOff, Len, Va};
pub use object::ObjectCode;

/// An instruction set, as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Isa {
    /// x86-64.
    X64,
}
