//! Jumps that are written over code of the target.

#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, Va, x86};

/// A branch from generated code does not reach its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("generated code at {from} cannot reach {to}: more than 2 GiB apart")]
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
        #[cfg(feature = "toy")]
        Isa::Toy => toy::jump_target(bytes, at),
    }
}
