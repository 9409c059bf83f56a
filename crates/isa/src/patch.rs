//! Jumps that are written over code of the target.

#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, Va, a32, a64, x86};

/// A branch from generated code does not reach its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("generated code at {from} cannot reach {to}: too far apart")]
pub struct OutOfReach {
    /// Where the branch is.
    pub from: Va,
    /// Where it should go.
    pub to: Va,
}

/// The jump that is written at a site: [`Limits::jump`](crate::Limits::jump) bytes.
///
/// # Errors
/// It is too far.
pub fn jump(isa: Isa, site: Va, to: Va) -> Result<Vec<u8>, OutOfReach> {
    match isa {
        Isa::X86 | Isa::X64 => x86::emit::jump_patch(isa, site, to).map(|bytes| bytes.to_vec()),
        Isa::A64 => a64::patch::jump(site, to).map(|bytes| bytes.to_vec()),
        Isa::A32 | Isa::T32 => a32::patch::jump(isa, site, to).map(|bytes| bytes.to_vec()),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::jump(site, to),
    }
}

/// Where the jump at the start of `bytes` leads, which lie at `at`, if it is one that [`jump`]
/// makes.
///
/// ```
/// use sidestep_isa::{Isa, Va, patch::{jump, jump_target}};
/// let bytes = jump(Isa::X64, Va(0x1000), Va(0x9000))?;
/// assert_eq!(jump_target(Isa::X64, &bytes, Va(0x1000)), Some(Va(0x9000)));
/// # Ok::<(), sidestep_isa::patch::OutOfReach>(())
/// ```
#[must_use]
pub fn jump_target(isa: Isa, bytes: &[u8], at: Va) -> Option<Va> {
    match isa {
        Isa::X86 | Isa::X64 => x86::emit::jump_patch_target(isa, bytes, at),
        Isa::A64 => a64::patch::jump_target(bytes, at),
        Isa::A32 | Isa::T32 => a32::patch::jump_target(isa, bytes, at),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::jump_target(bytes, at),
    }
}

/// Whether threads may run an instruction while one write puts another one in its place. `old` and
/// `new` are the bytes of both. Each thread then runs one of the two, and no thread has to stop.
///
/// ```
/// use sidestep_isa::{Isa, Va, patch::{is_one_write, jump}};
/// const NOP: [u8; 4] = [0x1f, 0x20, 0x03, 0xd5];
/// let jump = jump(Isa::A64, Va(0x1000), Va(0x9000))?;
/// assert!(is_one_write(Isa::A64, &NOP, &jump));
/// assert!(!is_one_write(Isa::X64, &[0x0f, 0x1f, 0x44, 0, 0], &[0xe9, 0, 0, 0, 0]));
/// # Ok::<(), sidestep_isa::patch::OutOfReach>(())
/// ```
#[must_use]
pub fn is_one_write(isa: Isa, old: &[u8], new: &[u8]) -> bool {
    match isa {
        Isa::X86 | Isa::X64 => false,
        Isa::A64 => a64::patch::is_one_write(old, new),
        Isa::A32 | Isa::T32 => a32::patch::is_one_write(isa, old, new),
        #[cfg(feature = "toy")]
        Isa::Toy => old.len() == toy::WORD && new.len() == toy::WORD,
    }
}
