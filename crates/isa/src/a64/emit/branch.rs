//! Branches, addresses relative to the program counter, and what has no operands.

use super::{EncodeError, Encoded, Reg, field, signed_field};
use crate::Va;
use crate::patch::OutOfReach;

/// A condition of flags (section C1.2.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are those of the assembler")]
pub enum Cond {
    Eq = 0,
    Ne = 1,
    /// Carry set: higher or same, unsigned.
    Cs = 2,
    /// Carry clear: lower, unsigned.
    Cc = 3,
    Mi = 4,
    Pl = 5,
    Vs = 6,
    Vc = 7,
    Hi = 8,
    Ls = 9,
    Ge = 10,
    Lt = 11,
    Gt = 12,
    Le = 13,
}

/// Words from one address to another, as a field of `width` bits.
fn words(from: Va, to: Va, width: u32) -> Encoded {
    signed_field("", to.since(from), width, 2).map_err(|_| OutOfReach { from, to }.into())
}

/// `b`: ±128 MiB.
pub fn b(from: Va, to: Va) -> Encoded {
    Ok(0x1400_0000 | words(from, to, 26)?)
}

/// `bl`: ±128 MiB.
pub fn bl(from: Va, to: Va) -> Encoded {
    Ok(0x9400_0000 | words(from, to, 26)?)
}

/// `b.cond`: ±1 MiB.
pub fn b_cond(condition: Cond, from: Va, to: Va) -> Encoded {
    Ok(0x5400_0000 | words(from, to, 19)? << 5 | condition as u32)
}

/// `cbz Xt`: ±1 MiB.
pub fn cbz(register: Reg, from: Va, to: Va) -> Encoded {
    Ok(0xb400_0000 | words(from, to, 19)? << 5 | register.plain("cbz")?)
}

/// `cbnz Xt`: ±1 MiB.
pub fn cbnz(register: Reg, from: Va, to: Va) -> Encoded {
    Ok(0xb500_0000 | words(from, to, 19)? << 5 | register.plain("cbnz")?)
}

/// `tbz Xt, #bit`: ±32 KiB.
pub fn tbz(register: Reg, bit: u32, from: Va, to: Va) -> Encoded {
    test(0x3600_0000, register, bit, from, to)
}

/// `tbnz Xt, #bit`: ±32 KiB.
pub fn tbnz(register: Reg, bit: u32, from: Va, to: Va) -> Encoded {
    test(0x3700_0000, register, bit, from, to)
}

fn test(word: u32, register: Reg, bit: u32, from: Va, to: Va) -> Encoded {
    let bit = field("tbz", bit.into(), 6, 0)?;
    let place = bit >> 5 << 31 | (bit & 31) << 19;
    Ok(word | place | words(from, to, 14)? << 5 | register.plain("tbz")?)
}

/// A conditional branch with the opposite condition and another target, as a distance in words
/// that all of them have room for. Of `b.cond`, `bc.cond`, `cbz` and `cbnz`, `tbz` and `tbnz`; none
/// of others and of conditions that always hold.
#[must_use]
pub fn invert(word: u32, distance: u8) -> Option<u32> {
    let distance = u32::from(distance) << 5;
    match word >> 24 {
        0x54 if word & 0xe < 14 => Some((word & !0x00ff_ffe0 | distance) ^ 1),
        0x34 | 0x35 | 0xb4 | 0xb5 => Some((word & !0x00ff_ffe0 | distance) ^ 1 << 24),
        0x36 | 0x37 | 0xb6 | 0xb7 => Some((word & !0x0007_ffe0 | distance) ^ 1 << 24),
        _ => None,
    }
}

/// `br Xn`
pub fn br(register: Reg) -> Encoded {
    Ok(0xd61f_0000 | register.plain("br")? << 5)
}

/// `blr Xn`
pub fn blr(register: Reg) -> Encoded {
    Ok(0xd63f_0000 | register.plain("blr")? << 5)
}

/// `ret Xn`
pub fn ret(register: Reg) -> Encoded {
    Ok(0xd65f_0000 | register.plain("ret")? << 5)
}

/// `adr Xd`: ±1 MiB.
pub fn adr(register: Reg, from: Va, to: Va) -> Encoded {
    let distance = signed_field("adr", to.since(from), 21, 0).map_err(|_| OutOfReach { from, to })?;
    Ok(0x1000_0000 | (distance & 3) << 29 | distance >> 2 << 5 | register.plain("adr")?)
}

/// `adrp Xd`: the start of the page of 4096 bytes that an address is in, ±4 GiB.
pub fn adrp(register: Reg, from: Va, to: Va) -> Encoded {
    let pages = (to.0 >> 12).wrapping_sub(from.0 >> 12) as i64;
    // Addresses wrap.
    let pages = pages << 12 >> 12;
    let distance = signed_field("adrp", pages, 21, 0).map_err(|_| OutOfReach { from, to })?;
    Ok(0x9000_0000 | (distance & 3) << 29 | distance >> 2 << 5 | register.plain("adrp")?)
}

/// `ldr Xt` of the eight bytes at an address: ±1 MiB.
pub fn ldr_literal(register: Reg, from: Va, to: Va) -> Encoded {
    Ok(0x5800_0000 | words(from, to, 19)? << 5 | register.plain("ldr")?)
}

/// `nop`
#[must_use]
pub const fn nop() -> u32 {
    0xd503_201f
}

/// `brk #number`
#[must_use]
pub const fn brk(number: u16) -> u32 {
    0xd420_0000 | (number as u32) << 5
}

/// `svc #0`
#[must_use]
pub const fn svc() -> u32 {
    0xd400_0001
}

/// `bti`, `bti c`, `bti j` or `bti jc`: where calls, jumps or both may lead.
#[must_use]
pub const fn bti(calls: bool, jumps: bool) -> u32 {
    0xd503_241f | (calls as u32) << 6 | (jumps as u32) << 7
}

impl From<OutOfReach> for crate::relocate::RelocateError {
    fn from(OutOfReach { from, to }: OutOfReach) -> Self {
        crate::relocate::RelocateError::OutOfReach { target: to, to: from }
    }
}

impl EncodeError {
    /// As an error of a relocation to `to`, of an instruction that refers to `target`. A register
    /// or number that has no encoding cannot come from an instruction that was decoded.
    pub(in crate::a64) fn of_copy(self, target: Va, to: Va) -> crate::relocate::RelocateError {
        match self {
            EncodeError::Reach(error) => error.into(),
            _ => crate::relocate::RelocateError::OutOfReach { target, to },
        }
    }
}
