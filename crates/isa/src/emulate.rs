//! Instructions that a trap handler finishes by itself, without the way through the displaced copy.

#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, a32, a64, x86};

/// An instruction as the trap handler of its instruction set takes it: two words, which hold no
/// address. Zeros are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Emulated(pub [u64; 2]);

/// The instruction at the start of `bytes`, if the trap handler can do what it does. All decoding
/// is done here, at registration.
///
/// ```
/// use sidestep_isa::{Isa, emulate::prepare};
/// assert!(prepare(Isa::X64, &[0x55]).is_some(), "push %rbp");
/// assert!(prepare(Isa::X64, &[0x0f, 0xa2]).is_none(), "cpuid");
/// ```
#[must_use]
pub fn prepare(isa: Isa, bytes: &[u8]) -> Option<Emulated> {
    match isa {
        Isa::X86 | Isa::X64 => x86::emulate::prepare(isa, bytes).map(|op| Emulated(op.to_words())),
        Isa::A64 => a64::emulate::prepare(bytes).map(|op| Emulated(op.to_words())),
        Isa::A32 | Isa::T32 => a32::emulate::prepare(isa, bytes).map(|op| Emulated(op.to_words())),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::prepare(bytes),
    }
}
