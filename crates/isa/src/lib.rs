//! What Sidestep knows about instruction sets: decode, relocate, emit, registers, liveness.
//!
//! Pure: nothing here touches a process or a file, and every ISA works on every host.
//!
//! The modules here are the face of all instruction sets: data, and functions that take an [`Isa`]
//! or an [`Insn`] and ask the folder of that instruction set. Analysis and policy use the face
//! only.
//! `docs/internals/porting.md` lists what a new folder has to have.
#![forbid(unsafe_code)]

pub mod a32;
pub mod a64;
pub mod addr;
pub mod context;
pub mod emulate;
pub mod go;
pub mod held;
pub mod indirect;
pub mod insn;
pub mod limits;
pub mod live;
pub mod named;
pub mod object;
pub mod passed;
pub mod patch;
pub mod relocate;
pub mod scan;
pub mod stack;
pub mod syscalls;
pub mod thunk;
#[cfg(feature = "toy")]
pub mod toy;
pub mod vectors;
pub mod x86;

pub use addr::{FileOff, Len, Va};
pub use context::{CallingConvention, Context};
pub use insn::{DecodeError, Flow, INSN_MAX, Insn, Reader, RegisterSet, decode, sweep};
pub use limits::Limits;
pub use object::ObjectCode;
pub use relocate::{RelocateError, relocate, relocated_len};

/// An instruction set, as a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Isa {
    /// x86-32: 32-bit code as a 64-bit kernel runs it (compatibility mode).
    X86,
    /// x86-64.
    #[default]
    X64,
    /// A64: 64-bit code of Arm, little-endian.
    A64,
    /// A32: 32-bit code of Arm, little-endian, in words.
    A32,
    /// T32: the same in halfwords (Thumb-2).
    T32,
    /// The instruction set of the tests, of a fixed length.
    #[cfg(feature = "toy")]
    Toy,
}

impl Isa {
    /// Bits of an address: 32 or 64.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.limits().bits
    }

    /// Of programs for the processor that this was built for: the instruction set whose addresses
    /// have so many bytes. On arm32, where that says A32, code may be T32 as well.
    #[must_use]
    pub const fn with_word(bytes: u8) -> Isa {
        match bytes {
            4 if cfg!(target_arch = "arm") => Isa::A32,
            4 => Isa::X86,
            _ if cfg!(target_arch = "aarch64") => Isa::A64,
            _ => Isa::X64,
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
        start.0.checked_add(len).filter(|end| *end <= 1 << 32 || self.bits() == 64).map(Va)
    }

    /// An address as the CPU computes it: the sum of two is cut to the bits that it has.
    #[must_use]
    pub fn wrap(self, va: Va) -> Va {
        if self.bits() == 32 { Va(va.0 & 0xffff_ffff) } else { va }
    }
}
