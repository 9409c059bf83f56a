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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Isa {
    /// x86-32: 32-bit code as a 64-bit kernel runs it (compatibility mode).
    X86,
    /// x86-64.
    #[default]
    X64,
}

impl Isa {
    /// Bits of an address: 32 or 64.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Isa::X86 => 32,
            Isa::X64 => 64,
        }
    }

    /// Bytes of an address, and of a word of the stack.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.bits() / 8)
    }

    /// The address `len` bytes behind `start`; `None` if there is no such address.
    #[must_use]
    pub fn after(self, start: Va, len: u64) -> Option<Va> {
        start.0.checked_add(len).filter(|end| *end <= 1 << 32 || self == Isa::X64).map(Va)
    }

    /// An address as the CPU computes it: the sum of two is cut to the bits that it has.
    #[must_use]
    pub fn wrap(self, va: Va) -> Va {
        match self {
            Isa::X86 => Va(va.0 & 0xffff_ffff),
            Isa::X64 => va,
        }
    }
}
