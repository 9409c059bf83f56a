//! Arithmetic that compiled programs use.

use super::{EncodeError, Encoded, Reg, field, sum, three};

/// The form of an operation that works on the lower halves of its registers and gives a result with
/// zeros above. Of operations with registers and numbers that have such a form; numbers must fit
/// into it.
pub fn narrow(word: Encoded) -> Encoded {
    let word = word? & !(1 << 31);
    // Bit fields and `extr` have the width in two places.
    let fields = matches!(word >> 23 & 0x3f, 0b10_0110 | 0b10_0111);
    Ok(if fields { word & !(1 << 22) } else { word })
}

/// `udiv Xd, Xn, Xm`: 0 if the divisor is.
pub fn udiv(to: Reg, first: Reg, second: Reg) -> Encoded {
    three("udiv", 0x9ac0_0800, to, first, second)
}

/// `sdiv Xd, Xn, Xm`: rounds towards 0. 0 if the divisor is; the lowest number over -1 is itself.
pub fn sdiv(to: Reg, first: Reg, second: Reg) -> Encoded {
    three("sdiv", 0x9ac0_0c00, to, first, second)
}

/// `msub Xd, Xn, Xm, Xa`: `from - first * second`.
pub fn msub(to: Reg, first: Reg, second: Reg, from: Reg) -> Encoded {
    Ok(three("msub", 0x9b00_8000, to, first, second)? | from.plain("msub")? << 10)
}

/// `umulh Xd, Xn, Xm`: the upper 64 bits of a product without signs.
pub fn umulh(to: Reg, first: Reg, second: Reg) -> Encoded {
    three("umulh", 0x9bc0_7c00, to, first, second)
}

/// `lsl Xd, Xn, Xm`: by the lowest bits of a register.
pub fn lsl(to: Reg, from: Reg, by: Reg) -> Encoded {
    three("lsl", 0x9ac0_2000, to, from, by)
}

/// `lsr Xd, Xn, Xm`
pub fn lsr(to: Reg, from: Reg, by: Reg) -> Encoded {
    three("lsr", 0x9ac0_2400, to, from, by)
}

/// `asr Xd, Xn, Xm`
pub fn asr(to: Reg, from: Reg, by: Reg) -> Encoded {
    three("asr", 0x9ac0_2800, to, from, by)
}

/// `neg Xd, Xm`
pub fn neg(to: Reg, from: Reg) -> Encoded {
    three("neg", 0xcb00_0000, to, Reg::ZERO, from)
}

/// `tst Xn, Xm`: the flags of `and`.
pub fn tst(first: Reg, second: Reg) -> Encoded {
    three("tst", 0xea00_0000, Reg::ZERO, first, second)
}

/// `cmn Xn, #value`: the flags of a comparison with the negative number.
pub fn cmn_imm(from: Reg, value: i64) -> Encoded {
    Ok(0xb100_001f | sum("cmn", value)? << 10 | from.or_stack("cmn")? << 5)
}

/// `sbfx Xd, Xn, #from, #width`: these bits as a number with a sign.
pub fn sbfx(to: Reg, source: Reg, from: u32, width: u32) -> Encoded {
    // The same fields as without the sign.
    Ok(super::ubfx(to, source, from, width)? & !(1 << 30))
}

/// `ubfiz Xd, Xn, #at, #width`: the lowest bits, at another place, with zeros around.
pub fn ubfiz(to: Reg, source: Reg, at: u32, width: u32) -> Encoded {
    let name = "ubfiz";
    field(name, i64::from(at) + i64::from(width) - 1, 6, 0)?;
    let at = field(name, at.into(), 6, 0)?;
    let last = field(name, i64::from(width) - 1, 6, 0)?;
    Ok(0xd340_0000 | ((64 - at) & 63) << 16 | last << 10 | source.plain(name)? << 5 | to.plain(name)?)
}

/// `extr Xd, Xn, Xm, #by`: 64 bits of a number of 128 bits, from this bit on.
pub fn extr(to: Reg, high: Reg, low: Reg, by: u32) -> Encoded {
    Ok(three("extr", 0x93c0_0000, to, high, low)? | field("extr", by.into(), 6, 0)? << 10)
}

fn two(name: &'static str, word: u32, to: Reg, from: Reg) -> Encoded {
    Ok(word | from.plain(name)? << 5 | to.plain(name)?)
}

/// `rev Xd, Xn`: all bytes the other way round.
pub fn rev(to: Reg, from: Reg) -> Encoded {
    two("rev", 0xdac0_0c00, to, from)
}

/// `rev16 Xd, Xn`: the bytes of each half-word.
pub fn rev16(to: Reg, from: Reg) -> Encoded {
    two("rev16", 0xdac0_0400, to, from)
}

/// `rev32 Xd, Xn`: the bytes of each word. Its [`narrow`] form is `rev Wd, Wn`.
pub fn rev32(to: Reg, from: Reg) -> Encoded {
    two("rev32", 0xdac0_0800, to, from)
}

/// `clz Xd, Xn`: how many zeros are above the highest one.
pub fn clz(to: Reg, from: Reg) -> Encoded {
    two("clz", 0xdac0_1000, to, from)
}

/// `and Xd, Xn, #mask`; a mask is a run of ones that is rotated in 2, 4, 8, 16, 32 or 64 bits and
/// repeated. One for a [`narrow`] form has equal halves.
pub fn and_mask(to: Reg, from: Reg, mask: u64) -> Encoded {
    masked("and", 0x9200_0000, to.or_stack("and")?, from, mask)
}

/// `orr Xd, Xn, #mask`
pub fn orr_mask(to: Reg, from: Reg, mask: u64) -> Encoded {
    masked("orr", 0xb200_0000, to.or_stack("orr")?, from, mask)
}

/// `eor Xd, Xn, #mask`
pub fn eor_mask(to: Reg, from: Reg, mask: u64) -> Encoded {
    masked("eor", 0xd200_0000, to.or_stack("eor")?, from, mask)
}

/// `tst Xn, #mask`
pub fn tst_mask(from: Reg, mask: u64) -> Encoded {
    masked("tst", 0xf200_0000, 31, from, mask)
}

fn masked(name: &'static str, word: u32, to: u32, from: Reg, mask: u64) -> Encoded {
    let fields = fields(mask).ok_or(EncodeError::Operand { name, value: mask as i64 })?;
    Ok(word | fields << 10 | from.plain(name)? << 5 | to)
}

/// The 13 bits of a mask (`DecodeBitMasks`).
fn fields(mask: u64) -> Option<u32> {
    let lowest = |bits: u32| u64::MAX >> (64 - bits);
    let mut size = 64;
    while size > 2 && mask & lowest(size / 2) == mask >> (size / 2) & lowest(size / 2) {
        size /= 2;
    }
    let element = mask & lowest(size);
    let ones = element.count_ones();
    if ones == 0 || ones == size {
        return None;
    }
    // All elements are equal, so all of it rotates as each of them does.
    let rotated = (0..size).find(|by| mask.rotate_left(*by) & lowest(size) == lowest(ones))?;
    let length = !(2 * size - 1) & 0x3f | (ones - 1);
    Some(u32::from(size == 64) << 12 | rotated << 6 | length)
}
