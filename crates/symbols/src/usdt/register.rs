//! Registers, as the kernel's `struct pt_regs` has them.
//!
//! Source of the facts: `arch/*/include/uapi/asm/ptrace.h` of Linux. Threads of x86-32 have the
//! structure of x86-64, as 64-bit kernels (and our own contexts) show them.

use crate::arch;

/// A general register, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register {
    /// Its place in `struct pt_regs` of the instruction set: a number of words (8 bytes, or 4 on
    /// arm32).
    pub word: u8,
    /// Its size in bytes.
    pub size: u8,
    /// By how many bits its value is to be shifted right in the word: 8 for `%ah` and its like,
    /// else 0.
    pub shift: u8,
}

impl Register {
    /// The whole stack pointer.
    pub const SP: Register = arch::SP;
    /// The whole frame pointer.
    pub const FP: Register = arch::FP;
    /// The whole program counter.
    pub const PC: Register = arch::PC;

    /// Where its first byte is in `struct pt_regs` of a 64-bit machine.
    #[must_use]
    pub fn offset(self) -> u16 {
        u16::from(self.word) * 8 + u16::from(self.shift / 8)
    }
}

/// A register's number: one or two digits.
pub(crate) fn number(digits: &str) -> Option<usize> {
    let plain = digits.len() <= 2 && digits.bytes().all(|b| b.is_ascii_digit());
    let padded = digits.len() == 2 && digits.starts_with('0');
    if plain && !padded { digits.parse().ok() } else { None }
}
