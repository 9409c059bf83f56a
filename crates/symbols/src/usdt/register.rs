//! Names of registers, and where the kernel's `struct pt_regs` has them.
//!
//! Source of the facts: `arch/*/include/uapi/asm/ptrace.h` of Linux. Threads of x86-32 have the
//! structure of x86-64, as 64-bit kernels (and our own contexts) show them.

use super::Syntax;

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

/// The registers of x86 that have names instead of numbers: stem, word.
const X86: [(&str, u8); 9] =
    [("ax", 10), ("bx", 5), ("cx", 11), ("dx", 12), ("si", 13), ("di", 14), ("bp", 4), ("sp", 19), ("ip", 16)];

/// Words of `%r8` to `%r15` on x86-64.
const R8_TO_R15: [u8; 8] = [9, 8, 7, 6, 3, 2, 1, 0];

impl Register {
    /// The stack pointer of x86-64.
    pub const SP: Register = Register { word: 19, size: 8, shift: 0 };
    /// The frame pointer of x86-64.
    pub const FP: Register = Register { word: 4, size: 8, shift: 0 };
    /// The program counter of x86.
    pub const PC: Register = Register { word: 16, size: 8, shift: 0 };

    /// The register of this name, without `%`.
    pub(super) fn parse(name: &str, syntax: Syntax) -> Option<Register> {
        match syntax {
            Syntax::X64 => numbered(name).or_else(|| named(name, true)),
            Syntax::X86 => named(name, false),
            Syntax::A64 => a64(name),
            Syntax::A32 => a32(name),
        }
    }

    /// Where its first byte is in `struct pt_regs` of a 64-bit machine.
    #[must_use]
    pub fn offset(self) -> u16 {
        u16::from(self.word) * 8 + u16::from(self.shift / 8)
    }
}

fn named(name: &str, is_64: bool) -> Option<Register> {
    X86.iter().find_map(|&(stem, word)| {
        // al, ah; but sil, which x86-32 does not have.
        let letter = stem.strip_suffix('x');
        let low = letter.or(is_64.then_some(stem));
        let (size, shift) = if is_64 && name.strip_prefix('r') == Some(stem) {
            (8, 0)
        } else if name.strip_prefix('e') == Some(stem) {
            (4, 0)
        } else if stem == "ip" {
            return None;
        } else if name == stem {
            (2, 0)
        } else if low.is_some() && name.strip_suffix('l') == low {
            (1, 0)
        } else if letter.is_some() && name.strip_suffix('h') == letter {
            (1, 8)
        } else {
            return None;
        };
        Some(Register { word, size, shift })
    })
}

fn numbered(name: &str) -> Option<Register> {
    let rest = name.strip_prefix('r')?;
    let (digits, size) = match rest.as_bytes().last()? {
        b'd' => (&rest[..rest.len() - 1], 4),
        b'w' => (&rest[..rest.len() - 1], 2),
        b'b' => (&rest[..rest.len() - 1], 1),
        _ => (rest, 8),
    };
    let word = *R8_TO_R15.get(number(digits)?.checked_sub(8)?)?;
    Some(Register { word, size, shift: 0 })
}

fn a64(name: &str) -> Option<Register> {
    let (word, size) = match name {
        "sp" => (31, 8),
        "wsp" => (31, 4),
        _ => {
            let (digits, size) = name.strip_prefix('x').map(|d| (d, 8)).or(name.strip_prefix('w').map(|d| (d, 4)))?;
            (number(digits).filter(|n| *n < 31)?, size)
        }
    };
    Some(Register { word: word as u8, size, shift: 0 })
}

fn a32(name: &str) -> Option<Register> {
    let word = match name {
        "sb" => 9,
        "sl" => 10,
        "fp" => 11,
        "ip" => 12,
        "sp" => 13,
        "lr" => 14,
        "pc" => 15,
        _ => number(name.strip_prefix('r')?).filter(|n| *n < 16)?,
    };
    Some(Register { word: word as u8, size: 4, shift: 0 })
}

/// A register's number: one or two digits.
fn number(digits: &str) -> Option<usize> {
    let plain = digits.len() <= 2 && digits.bytes().all(|b| b.is_ascii_digit());
    let padded = digits.len() == 2 && digits.starts_with('0');
    if plain && !padded { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_instruction_sets_are_none() {
        let is = |name, syntax| Register::parse(name, syntax).is_some();
        for name in ["rax", "sil", "r8", "r8d", "x0", "ip", "r", "axl", "sih", "", "el", "é"] {
            assert!(!is(name, Syntax::X86), "{name}");
        }
        for name in ["r16", "r7", "r08", "r8l", "r+8", "ip", "ipl", "sih", "xmm0", "rsil", "fs", "st", "r8é", "r"] {
            assert!(!is(name, Syntax::X64), "{name}");
        }
        for name in ["x31", "w31", "r0", "x", "xzr", "x+1", "v0"] {
            assert!(!is(name, Syntax::A64), "{name}");
        }
        for name in ["r16", "x0", "r", "s0"] {
            assert!(!is(name, Syntax::A32), "{name}");
        }
    }

    #[test]
    fn words_of_the_other_instruction_sets() {
        // As the low halves of those of x86-64.
        for (long, short) in [("rax", "eax"), ("rbx", "ebx"), ("rsp", "esp"), ("rdi", "edi"), ("rbp", "ebp")] {
            let long = Register::parse(long, Syntax::X64);
            assert_eq!(Register::parse(short, Syntax::X86), long.map(|long| Register { size: 4, ..long }));
        }
        assert_eq!(Register::parse("dh", Syntax::X86), Some(Register { word: 12, size: 1, shift: 8 }));
        assert_eq!(Register::parse("w30", Syntax::A64), Some(Register { word: 30, size: 4, shift: 0 }));
        assert_eq!(Register::parse("sp", Syntax::A64), Some(Register { word: 31, size: 8, shift: 0 }));
        assert_eq!(Register::parse("fp", Syntax::A32), Some(Register { word: 11, size: 4, shift: 0 }));
        assert_eq!(Register::parse("r3", Syntax::A32), Some(Register { word: 3, size: 4, shift: 0 }));
    }
}
