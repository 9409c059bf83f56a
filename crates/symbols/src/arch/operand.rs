//! Operands of static probes, as the assembler of each instruction set writes them.

use super::{arm, x86};
use crate::usdt::Place;
use crate::usdt::argument::Fault;

/// Whose assembler's operands they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// x86-64 (AT&T).
    X64,
    /// x86-32 (AT&T).
    X86,
    /// arm64.
    A64,
    /// arm32.
    A32,
}

/// What an operand is.
pub(crate) fn place(operand: &str, syntax: Syntax) -> Result<Place, Fault<'_>> {
    match syntax {
        Syntax::X64 | Syntax::X86 => x86::operand::place(operand, syntax),
        Syntax::A64 | Syntax::A32 => arm::operand::place(operand, syntax),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usdt::Register;

    fn register(name: &str, syntax: Syntax) -> Option<Register> {
        match syntax {
            Syntax::X64 | Syntax::X86 => x86::operand::named(name, syntax),
            Syntax::A64 | Syntax::A32 => arm::operand::named(name, syntax),
        }
    }

    #[test]
    fn names_of_other_instruction_sets_are_none() {
        let is = |name, syntax| register(name, syntax).is_some();
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
            let long = register(long, Syntax::X64);
            assert_eq!(register(short, Syntax::X86), long.map(|long| Register { size: 4, ..long }));
        }
        assert_eq!(register("dh", Syntax::X86), Some(Register { word: 12, size: 1, shift: 8 }));
        assert_eq!(register("w30", Syntax::A64), Some(Register { word: 30, size: 4, shift: 0 }));
        assert_eq!(register("sp", Syntax::A64), Some(Register { word: 31, size: 8, shift: 0 }));
        assert_eq!(register("fp", Syntax::A32), Some(Register { word: 11, size: 4, shift: 0 }));
        assert_eq!(register("r3", Syntax::A32), Some(Register { word: 3, size: 4, shift: 0 }));
    }
}
