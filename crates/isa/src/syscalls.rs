//! System calls in code: the instructions that make them, and those that set their numbers.

use crate::insn::RegisterSet;
#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, a32, a64, x86};

/// The instructions that make a system call, as the bytes that they begin with.
#[must_use]
pub fn calls(isa: Isa) -> &'static [&'static [u8]] {
    match isa {
        Isa::X86 | Isa::X64 => x86::syscalls::calls(isa),
        Isa::A64 => a64::syscalls::CALLS,
        Isa::A32 | Isa::T32 => a32::syscalls::calls(isa),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::SYSTEM_CALLS,
    }
}

/// Whether an instruction that makes a system call is at the start of `bytes`.
#[must_use]
pub fn is_call(isa: Isa, bytes: &[u8]) -> bool {
    calls(isa).iter().any(|call| bytes.starts_with(call))
}

/// Length and number of the instruction at the start of `bytes` that sets the number of a system
/// call, or of the first of several that do. No number: it comes from a register or from memory.
#[must_use]
pub fn sets_number(isa: Isa, bytes: &[u8]) -> Option<(usize, Option<u32>)> {
    match isa {
        Isa::X86 | Isa::X64 => x86::syscalls::sets_number(isa, bytes),
        Isa::A64 => a64::syscalls::sets_number(bytes),
        Isa::A32 | Isa::T32 => a32::syscalls::sets_number(isa, bytes),
        #[cfg(feature = "toy")]
        Isa::Toy => None,
    }
}

/// The register that has the number.
#[must_use]
pub fn number_register(isa: Isa) -> RegisterSet {
    match isa {
        Isa::X86 | Isa::X64 => x86::emit::Reg::Rax.bit(),
        Isa::A64 => a64::syscalls::NUMBER,
        Isa::A32 | Isa::T32 => a32::syscalls::NUMBER,
        #[cfg(feature = "toy")]
        Isa::Toy => 0,
    }
}
