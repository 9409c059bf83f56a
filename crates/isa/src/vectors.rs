//! Vector registers that code uses.

#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, a32, a64, x86};

/// The vector registers that an instruction of this code names, a bit each. The code holds
/// instructions and nothing else.
#[must_use]
pub fn vectors_used(isa: Isa, code: &[u8]) -> u32 {
    match isa {
        Isa::X86 | Isa::X64 => x86::vectors::vectors_used(isa, code),
        Isa::A64 => a64::vectors::vectors_used(code),
        Isa::A32 | Isa::T32 => a32::vectors::vectors_used(isa, code),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::NO_VECTORS,
    }
}
