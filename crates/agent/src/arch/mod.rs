//! What differs between processors: system calls, the cycle counter, single-instruction updates,
//! signal contexts.
//!
//! Generated code calls the agent's functions, and they call programs, by the C ABI of the
//! processor (System V). In 32-bit code that means: all arguments on the stack, the first one
//! lowest, 64-bit ones in two words; the result in `edx:eax`; the stack pointer a multiple of 16
//! before the call; everything but `eax`, `ecx`, `edx`, the flags and the xmm registers stays.
//! There the context of programs is the same `struct pt_regs` of 64-bit words that a 64-bit kernel
//! shows of a 32-bit thread. On arm32, the words of the context have 64 bits as well;
//! arguments of 64 bits are in two registers, of which the first has an even number, or in two
//! words of the stack from a multiple of 8 on (AAPCS32, 6.5).

use sidestep_wire::Regs;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "arm")]
mod arm;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
pub mod call;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod processor;
#[cfg(target_arch = "x86")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "arm")]
pub use arm::*;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
pub use processor::*;
#[cfg(target_arch = "x86")]
pub use x86::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(not(any(target_arch = "aarch64", target_arch = "arm", target_arch = "x86", target_arch = "x86_64")))]
compile_error!("the agent runs on x86 and on Arm");

/// Bytes of a word of the stack: of an address.
pub const WORD: u64 = size_of::<Word>() as u64;

/// Reads a register of a hit.
///
/// # Safety
/// `regs` can be read, and `at` is the offset of a word in them.
#[inline(always)]
#[must_use]
pub unsafe fn register(regs: *const Regs, at: usize) -> u64 {
    // SAFETY: the caller promises a word of registers that can be read.
    unsafe { regs.cast::<u8>().add(at).cast::<u64>().read_volatile() }
}

/// Changes a register of a hit.
///
/// # Safety
/// `regs` can be written, and `at` is the offset of a word in them.
#[inline(always)]
pub unsafe fn set_register(regs: *mut Regs, at: usize, value: u64) {
    // SAFETY: the caller promises a word of registers that can be written.
    unsafe { regs.cast::<u8>().add(at).cast::<u64>().write_volatile(value) }
}

/// Reads a word of the target.
///
/// # Safety
/// At `at` is a word that is readable.
#[allow(clippy::useless_conversion)] // not where words are shorter
#[inline(always)]
#[must_use]
pub unsafe fn read_word(at: u64) -> u64 {
    // SAFETY: the caller promises that the word at `at` is readable.
    unsafe { (at as *const Word).read_unaligned().into() }
}

/// Writes a word of the target.
///
/// # Safety
/// At `at` is a word that is writable.
#[inline(always)]
pub unsafe fn write_word(at: u64, value: u64) {
    // SAFETY: the caller promises that the word at `at` is writable.
    unsafe { (at as *mut Word).write_unaligned(value as Word) }
}
