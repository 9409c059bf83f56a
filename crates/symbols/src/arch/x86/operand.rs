//! Operands in the syntax of AT&T, and names of registers.

use crate::arch::operand::Syntax;
use crate::usdt::argument::{Fault, number, terms};
use crate::usdt::{Memory, Place, Register, register};

/// The registers of x86 that have names instead of numbers: stem, word.
const X86: [(&str, u8); 9] =
    [("ax", 10), ("bx", 5), ("cx", 11), ("dx", 12), ("si", 13), ("di", 14), ("bp", 4), ("sp", 19), ("ip", 16)];

/// Words of `%r8` to `%r15` on x86-64.
const R8_TO_R15: [u8; 8] = [9, 8, 7, 6, 3, 2, 1, 0];

/// `$42`, `%eax`, `-8(%rbp,%rsi,4)`, `symbol+4(%rip)`.
pub(crate) fn place(operand: &str, syntax: Syntax) -> Result<Place, Fault<'_>> {
    if let Some(constant) = operand.strip_prefix('$') {
        return number(constant).map(Place::Constant).ok_or(Fault::Number(constant));
    }
    let (displacement, inside) = match operand.strip_suffix(')') {
        Some(open) => open.split_once('(').ok_or(Fault::Syntax)?,
        None if operand.starts_with('%') => {
            let vector = vector(operand, syntax).map(Place::Vector);
            return vector.map_or_else(|| register(operand, syntax).map(Place::Register), Ok);
        }
        None => (operand, ""),
    };
    let mut parts = inside.split(',');
    let base = parts.next().filter(|part| !part.is_empty());
    let index = parts.next().filter(|part| !part.is_empty());
    let scale = parts.next();
    if parts.next().is_some() {
        return Err(Fault::Syntax);
    }
    let base = base.map(|name| register(name, syntax)).transpose()?;
    let shift = match scale {
        None | Some("1") => 0,
        Some("2") => 1,
        Some("4") => 2,
        Some("8") => 3,
        Some(other) => return Err(Fault::Scale(other)),
    };
    let index = match index {
        Some(name) => Some((register(name, syntax)?, shift)),
        None if scale.is_some() => return Err(Fault::Syntax),
        None => None,
    };
    let (symbol, displacement) = terms(displacement)?;
    if symbol.is_none() && base.is_none() && index.is_none() {
        return Err(Fault::Syntax);
    }
    Ok(Place::Memory(Memory { symbol, base, index, displacement }))
}

fn register(name: &str, syntax: Syntax) -> Result<Register, Fault<'_>> {
    name.strip_prefix('%').and_then(|name| named(name, syntax)).ok_or(Fault::Register(name))
}

/// `%xmm0` to `%xmm15`; `%xmm7` is the last one in 32-bit code.
fn vector(name: &str, syntax: Syntax) -> Option<u8> {
    let digits = name.strip_prefix("%xmm")?;
    let last = if syntax == Syntax::X64 { 15 } else { 7 };
    (0..=last).find(|number: &u8| number.to_string() == digits)
}

/// The register of this name, without `%`.
pub(crate) fn named(name: &str, syntax: Syntax) -> Option<Register> {
    match syntax {
        Syntax::X64 => numbered(name).or_else(|| general(name, true)),
        _ => general(name, false),
    }
}

fn general(name: &str, is_64: bool) -> Option<Register> {
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
    let word = *R8_TO_R15.get(register::number(digits)?.checked_sub(8)?)?;
    Some(Register { word, size, shift: 0 })
}
