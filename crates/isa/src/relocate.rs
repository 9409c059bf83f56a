//! One instruction encoded for another address, with the effect that it had at its own.

use crate::insn::DecodeError;
#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, Va, a32, a64, x86};

/// Why an instruction cannot be relocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RelocateError {
    /// It is no instruction.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The copy would lie too far from what the instruction refers to.
    #[error("{target} cannot be reached from a copy at {to}: it is too far away")]
    OutOfReach {
        /// What the instruction refers to.
        target: Va,
        /// Where the copy would lie.
        to: Va,
    },
    /// No copy of it would do the same.
    #[error("the instruction at {at} cannot be moved: {why}")]
    Unsupported {
        /// The instruction.
        at: Va,
        /// Why not.
        why: Unsupported,
    },
}

/// Instructions that have no equivalent elsewhere. No compiler writes any of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsupported {
    /// Of x86.
    #[error(transparent)]
    X86(x86::Unsupported),
    /// Of A64.
    #[error(transparent)]
    A64(a64::Unsupported),
    /// Of A32 or T32.
    #[error(transparent)]
    A32(a32::Unsupported),
}

/// Appends the copy of the instruction at the start of `bytes`, which lies at `from`, for the
/// address `to`. Nothing is appended if that fails.
///
/// ```
/// use sidestep_isa::{Isa, RelocateError, Va, relocate};
/// let mut copy = Vec::new();
/// relocate(Isa::X64, &[0x74, 0x10], Va(0x1000), Va(0x5000), &mut copy)?; // je 0x1012
/// assert_eq!(copy, [0x0f, 0x84, 0x0c, 0xc0, 0xff, 0xff]);
/// # Ok::<(), RelocateError>(())
/// ```
///
/// # Errors
/// There is no such copy.
pub fn relocate(isa: Isa, bytes: &[u8], from: Va, to: Va, out: &mut Vec<u8>) -> Result<(), RelocateError> {
    match isa {
        Isa::X86 | Isa::X64 => x86::relocate(isa, bytes, from, to, out),
        Isa::A64 => a64::relocate(bytes, from, to, out),
        Isa::A32 | Isa::T32 => a32::relocate(isa, bytes, from, to, out),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::relocate(bytes, from, to, out),
    }
}

/// The length of the copy that [`relocate()`] makes, wherever it goes: of most instruction sets it
/// depends on the instruction only. `from` may be a link-time or run-time address.
///
/// # Errors
/// There is no such copy.
pub fn relocated_len(isa: Isa, bytes: &[u8], from: Va) -> Result<usize, RelocateError> {
    match isa {
        Isa::X86 | Isa::X64 => x86::relocated_len(isa, bytes, from),
        Isa::A64 => a64::relocated_len(bytes, from),
        Isa::A32 | Isa::T32 => a32::relocated_len(isa, bytes, from),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::relocated_len(bytes, from),
    }
}
