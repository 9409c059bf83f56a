//! Operands in the syntax of Arm, and names of registers.

use crate::arch::operand::Syntax;
use crate::usdt::argument::{Fault, number};
use crate::usdt::{Memory, Place, Register, register};

/// `5` or `#5`, `x0`, `[sp]`, `[sp, 12]`, `[fp, #-12]`, `[x1, x2]`, `[x1, x2, lsl 3]`.
pub(crate) fn place(operand: &str, syntax: Syntax) -> Result<Place, Fault<'_>> {
    let register = |name| named(name, syntax).ok_or(Fault::Register(name));
    let constant = |text: &str| number(text.strip_prefix('#').unwrap_or(text));
    let Some(open) = operand.strip_prefix('[') else {
        return match constant(operand) {
            Some(value) => Ok(Place::Constant(value)),
            None => register(operand).map(Place::Register),
        };
    };
    let mut parts = open.strip_suffix(']').ok_or(Fault::Syntax)?.split(',');
    let base = register(parts.next().unwrap_or(""))?;
    let mut memory = Memory { symbol: None, base: Some(base), index: None, displacement: 0 };
    match (parts.next(), parts.next(), parts.next()) {
        (None, ..) => {}
        (Some(second), None, None) => match constant(second) {
            Some(displacement) => memory.displacement = displacement,
            None => memory.index = Some((register(second)?, 0)),
        },
        (Some(second), Some(shift), None) => {
            let bits = shift.strip_prefix("lsl").and_then(constant).and_then(|bits| u8::try_from(bits).ok());
            let bits = bits.filter(|bits| *bits < 32).ok_or(Fault::Syntax)?;
            memory.index = Some((register(second)?, bits));
        }
        _ => return Err(Fault::Syntax),
    }
    Ok(Place::Memory(memory))
}

/// The register of this name.
pub(crate) fn named(name: &str, syntax: Syntax) -> Option<Register> {
    if syntax == Syntax::A64 { a64(name) } else { a32(name) }
}

fn a64(name: &str) -> Option<Register> {
    let (word, size) = match name {
        "sp" => (31, 8),
        "wsp" => (31, 4),
        _ => {
            let (digits, size) = name.strip_prefix('x').map(|d| (d, 8)).or(name.strip_prefix('w').map(|d| (d, 4)))?;
            (register::number(digits).filter(|n| *n < 31)?, size)
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
        _ => register::number(name.strip_prefix('r')?).filter(|n| *n < 16)?,
    };
    Some(Register { word: word as u8, size: 4, shift: 0 })
}
