//! A small assembler for generated code: the instructions that detours and thunks use.
//!
//! Each function gives one word, and an error where an operand has no encoding. Nothing is cut off.
//! [`Asm`] puts words one behind the other and has labels. The pages of chapter C6 have the
//! encodings; the tests compare each function with an independent assembler.

mod arith;
mod asm;
mod branch;
mod memory;

pub use arith::{
    and_mask, asr, clz, cmn_imm, eor_mask, extr, lsl, lsr, msub, narrow, neg, orr_mask, rev, rev16, rev32, sbfx, sdiv,
    tst, tst_mask, ubfiz, udiv, umulh,
};
pub use asm::{Asm, Label};
pub use branch::{
    Cond, adr, adrp, b, b_cond, bl, blr, br, brk, bti, cbnz, cbz, invert, ldr_literal, nop, ret, svc, tbnz, tbz,
};
pub use memory::{
    Address, Barrier, Size, Update, dmb, ldadd, ldar, ldaxr, ldp, ldp_vector, ldr, ldr_vector, ldrs, ldxr, mrs, msr,
    stlr, stlxr, stp, stp_vector, str, str_half_vector, str_vector, stxr, swp, system,
};

use crate::insn::RegisterSet;
use crate::patch::OutOfReach;

/// An operand that has no encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// A branch or an address is too far away.
    #[error(transparent)]
    Reach(#[from] OutOfReach),
    /// A number is too large, or not a multiple of what it has to be.
    #[error("{value} is no operand of {name}")]
    Operand {
        /// The instruction.
        name: &'static str,
        /// The number.
        value: i64,
    },
    /// The stack pointer where the instruction has the zero register, or the other way round.
    #[error("{name} cannot have the register {register:?} there")]
    Register {
        /// The instruction.
        name: &'static str,
        /// The register.
        register: Reg,
    },
}

/// A word, or why there is none.
pub type Encoded = Result<u32, EncodeError>;

/// A general-purpose register of 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reg(u8);

impl Reg {
    /// The frame pointer, x29.
    pub const FP: Reg = Reg(29);
    /// The link register, x30.
    pub const LINK: Reg = Reg(30);
    /// The stack pointer.
    pub const SP: Reg = Reg(31);
    /// The zero register.
    pub const ZERO: Reg = Reg(32);

    /// x0 to x30; none if there is no such register.
    #[must_use]
    pub const fn x(number: u8) -> Option<Reg> {
        if number < 31 { Some(Reg(number)) } else { None }
    }

    /// x0 to x30 by the lowest five bits of a number; 31 is the zero register.
    pub(super) const fn of(number: u8) -> Reg {
        if number & 31 == 31 { Reg::ZERO } else { Reg(number & 31) }
    }

    /// Its bit in a register set; the zero register has none.
    #[must_use]
    pub fn bit(self) -> RegisterSet {
        1_u32.checked_shl(self.0.into()).unwrap_or(0)
    }

    /// As an operand where 31 is the zero register.
    fn plain(self, name: &'static str) -> Encoded {
        match self {
            Reg::ZERO => Ok(31),
            Reg::SP => Err(EncodeError::Register { name, register: self }),
            Reg(number) => Ok(number.into()),
        }
    }

    /// As an operand where 31 is the stack pointer.
    fn or_stack(self, name: &'static str) -> Encoded {
        match self {
            Reg::ZERO => Err(EncodeError::Register { name, register: self }),
            Reg(number) => Ok(number.into()),
        }
    }
}

/// A number without a sign as a field of `width` bits, in units of `1 << shift`.
fn field(name: &'static str, value: i64, width: u32, shift: u32) -> Encoded {
    let fits = value >= 0 && value >> shift >> width == 0 && value & ((1 << shift) - 1) == 0;
    if fits { Ok((value >> shift) as u32) } else { Err(EncodeError::Operand { name, value }) }
}

/// The same with a sign.
fn signed_field(name: &'static str, value: i64, width: u32, shift: u32) -> Encoded {
    let half = 1_i64 << (width - 1);
    let scaled = value >> shift;
    let fits = (-half..half).contains(&scaled) && value & ((1 << shift) - 1) == 0;
    if fits { Ok(scaled as u32 & ((1 << width) - 1)) } else { Err(EncodeError::Operand { name, value }) }
}

/// `add Xd, Xn, #value`; 12 bits, or 12 bits above 12 bits of zeros. Both may be the stack pointer.
pub fn add_imm(to: Reg, from: Reg, value: i64) -> Encoded {
    Ok(0x9100_0000 | sum("add", value)? << 10 | from.or_stack("add")? << 5 | to.or_stack("add")?)
}

/// `sub Xd, Xn, #value`, as [`add_imm`].
pub fn sub_imm(to: Reg, from: Reg, value: i64) -> Encoded {
    Ok(0xd100_0000 | sum("sub", value)? << 10 | from.or_stack("sub")? << 5 | to.or_stack("sub")?)
}

/// `subs Xd, Xn, #value`: sets the flags. With the zero register as destination, `cmp`.
pub fn subs_imm(to: Reg, from: Reg, value: i64) -> Encoded {
    Ok(0xf100_0000 | sum("subs", value)? << 10 | from.or_stack("subs")? << 5 | to.plain("subs")?)
}

/// `cmp Xn, #value`
pub fn cmp_imm(from: Reg, value: i64) -> Encoded {
    subs_imm(Reg::ZERO, from, value)
}

/// The immediate of a sum, with the bit that shifts it.
fn sum(name: &'static str, value: i64) -> Encoded {
    field(name, value, 12, 0).or_else(|_| Ok(1 << 12 | field(name, value, 12, 12)?))
}

/// An operation with two registers and a result, in none of which 31 is the stack pointer.
fn three(name: &'static str, word: u32, to: Reg, first: Reg, second: Reg) -> Encoded {
    Ok(word | second.plain(name)? << 16 | first.plain(name)? << 5 | to.plain(name)?)
}

/// `add Xd, Xn, Xm`
pub fn add(to: Reg, first: Reg, second: Reg) -> Encoded {
    three("add", 0x8b00_0000, to, first, second)
}

/// `add Xd, Xn, Xm, lsl #by`
pub fn add_shifted(to: Reg, first: Reg, second: Reg, by: u32) -> Encoded {
    Ok(add(to, first, second)? | field("add", by.into(), 6, 0)? << 10)
}

/// `mul Xd, Xn, Xm`: the lower 64 bits.
pub fn mul(to: Reg, first: Reg, second: Reg) -> Encoded {
    three("mul", 0x9b00_7c00, to, first, second)
}

/// `sub Xd, Xn, Xm`
pub fn sub(to: Reg, first: Reg, second: Reg) -> Encoded {
    three("sub", 0xcb00_0000, to, first, second)
}

/// `cmp Xn, Xm`
pub fn cmp(first: Reg, second: Reg) -> Encoded {
    three("cmp", 0xeb00_0000, Reg::ZERO, first, second)
}

/// `and Xd, Xn, Xm`
pub fn and(to: Reg, first: Reg, second: Reg) -> Encoded {
    three("and", 0x8a00_0000, to, first, second)
}

/// `orr Xd, Xn, Xm`
pub fn orr(to: Reg, first: Reg, second: Reg) -> Encoded {
    three("orr", 0xaa00_0000, to, first, second)
}

/// `eor Xd, Xn, Xm`
pub fn eor(to: Reg, first: Reg, second: Reg) -> Encoded {
    three("eor", 0xca00_0000, to, first, second)
}

/// `mov Xd, Xn`, also from and to the stack pointer.
pub fn mov(to: Reg, from: Reg) -> Encoded {
    if to == Reg::SP || from == Reg::SP { add_imm(to, from, 0) } else { orr(to, Reg::ZERO, from) }
}

/// `lsl Xd, Xn, #by`
pub fn lsl_imm(to: Reg, from: Reg, by: u32) -> Encoded {
    let name = "lsl";
    let by = field(name, by.into(), 6, 0)?;
    Ok(0xd340_0000 | ((64 - by) & 63) << 16 | (63 - by) << 10 | from.plain(name)? << 5 | to.plain(name)?)
}

/// `lsr Xd, Xn, #by`
pub fn lsr_imm(to: Reg, from: Reg, by: u32) -> Encoded {
    let name = "lsr";
    Ok(0xd340_fc00 | field(name, by.into(), 6, 0)? << 16 | from.plain(name)? << 5 | to.plain(name)?)
}

/// `ubfx Xd, Xn, #from, #width`: these bits as a number.
pub fn ubfx(to: Reg, source: Reg, from: u32, width: u32) -> Encoded {
    let name = "ubfx";
    let last = field(name, i64::from(from) + i64::from(width) - 1, 6, 0)?;
    let first = field(name, from.into(), 6, 0)?;
    if width == 0 {
        return Err(EncodeError::Operand { name, value: 0 });
    }
    Ok(0xd340_0000 | first << 16 | last << 10 | source.plain(name)? << 5 | to.plain(name)?)
}

/// Which 16 bits `movz`, `movn` and `movk` write, and what happens to the others.
fn move_wide(name: &'static str, word: u32, to: Reg, value: u16, quarter: u32) -> Encoded {
    Ok(word | field(name, quarter.into(), 2, 0)? << 21 | u32::from(value) << 5 | to.plain(name)?)
}

/// `movz Xd, #value, lsl #(16 * quarter)`: the other bits become 0.
pub fn movz(to: Reg, value: u16, quarter: u32) -> Encoded {
    move_wide("movz", 0xd280_0000, to, value, quarter)
}

/// `movn Xd, #value, lsl #(16 * quarter)`: the same, and then all bits are inverted.
pub fn movn(to: Reg, value: u16, quarter: u32) -> Encoded {
    move_wide("movn", 0x9280_0000, to, value, quarter)
}

/// `movk Xd, #value, lsl #(16 * quarter)`: the other bits stay.
pub fn movk(to: Reg, value: u16, quarter: u32) -> Encoded {
    move_wide("movk", 0xf280_0000, to, value, quarter)
}

/// 16 bits of a number.
const fn quarter(value: u64, number: u32) -> u16 {
    (value >> (16 * number)) as u16
}

/// Any constant, in as few moves as this form allows: 1 to 4.
///
/// # Errors
/// The register is the stack pointer.
pub fn mov_constant(to: Reg, value: u64) -> Result<Vec<u32>, EncodeError> {
    let quarters = [0, 1, 2, 3];
    let ones = quarters.iter().filter(|n| quarter(value, **n) == 0xffff).count();
    let zeros = quarters.iter().filter(|n| quarter(value, **n) == 0).count();
    // What the first move gives to all quarters but one.
    let (rest, first): (u16, fn(Reg, u16, u32) -> Encoded) =
        if ones > zeros { (0xffff, |to, value, n| movn(to, !value, n)) } else { (0, movz) };
    let mut others = quarters.iter().filter(|n| quarter(value, **n) != rest);
    let start = others.next().copied().unwrap_or(0);
    let mut words = vec![first(to, quarter(value, start), start)?];
    for n in others {
        words.push(movk(to, quarter(value, *n), *n)?);
    }
    Ok(words)
}

/// An address in three moves, whatever it is; none if it has more than 48 bits and a sign.
///
/// # Errors
/// The register is the stack pointer, or it is no such address.
pub fn mov_address(to: Reg, address: u64) -> Result<[u32; 3], EncodeError> {
    let first = match quarter(address, 3) {
        0 => movz(to, quarter(address, 0), 0)?,
        0xffff => movn(to, !quarter(address, 0), 0)?,
        _ => return Err(EncodeError::Operand { name: "mov", value: address as i64 }),
    };
    Ok([first, movk(to, quarter(address, 1), 1)?, movk(to, quarter(address, 2), 2)?])
}
