//! Loads, stores, atomics, barriers and system registers.

use super::{EncodeError, Encoded, Reg, field, signed_field};

/// Bytes of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Size {
    /// 1.
    Byte = 0,
    /// 2.
    Half = 1,
    /// 4.
    Word = 2,
    /// 8.
    Double = 3,
}

/// What happens to the base of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// It stays.
    None,
    /// The offset is added before the access.
    Before,
    /// The offset is added after the access, which is at the base.
    After,
}

/// Where an access is: a base, which may be the stack pointer, and a distance from it in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The base.
    pub base: Reg,
    /// The distance.
    pub offset: i64,
    /// What happens to the base.
    pub update: Update,
}

impl Address {
    /// `[base]`
    #[must_use]
    pub const fn at(base: Reg) -> Address {
        Address::with(base, 0)
    }

    /// `[base, #offset]`
    #[must_use]
    pub const fn with(base: Reg, offset: i64) -> Address {
        Address { base, offset, update: Update::None }
    }

    /// `[base, #offset]!`
    #[must_use]
    pub const fn before(base: Reg, offset: i64) -> Address {
        Address { base, offset, update: Update::Before }
    }

    /// `[base], #offset`
    #[must_use]
    pub const fn after(base: Reg, offset: i64) -> Address {
        Address { base, offset, update: Update::After }
    }
}

/// One register: `word` has size and operation, without the bits that say how the address is made.
fn one(name: &'static str, word: u32, scale: u32, register: u32, address: Address) -> Encoded {
    let base = address.base.or_stack(name)? << 5;
    let small = || Ok::<u32, EncodeError>(signed_field(name, address.offset, 9, 0)? << 12);
    let form = match address.update {
        Update::None => match field(name, address.offset, 12, scale) {
            Ok(scaled) => 1 << 24 | scaled << 10,
            // With any distance that is small.
            Err(_) => small()?,
        },
        Update::Before => 0b11 << 10 | small()?,
        Update::After => 0b01 << 10 | small()?,
    };
    Ok(word | form | base | register)
}

/// `ldr Xt`, `ldr Wt`, `ldrh`, `ldrb`: with zeros above. The distance has 12 bits of units, or 9
/// bits of bytes and a sign.
pub fn ldr(size: Size, register: Reg, address: Address) -> Encoded {
    distinct("ldr", &[register], address)?;
    one("ldr", 0x3840_0000 | (size as u32) << 30, size as u32, register.plain("ldr")?, address)
}

/// `ldrsb Xt`, `ldrsh Xt`, `ldrsw Xt`: with the sign above. Distances as in [`ldr`].
pub fn ldrs(size: Size, register: Reg, address: Address) -> Encoded {
    distinct("ldrs", &[register], address)?;
    if size == Size::Double {
        return Err(EncodeError::Operand { name: "ldrs", value: 8 });
    }
    one("ldrs", 0x3880_0000 | (size as u32) << 30, size as u32, register.plain("ldrs")?, address)
}

/// `str Xt`, `str Wt`, `strh`, `strb`.
pub fn str(size: Size, register: Reg, address: Address) -> Encoded {
    distinct("str", &[register], address)?;
    one("str", 0x3800_0000 | (size as u32) << 30, size as u32, register.plain("str")?, address)
}

/// `ldr Qt`: a vector register by its number.
pub fn ldr_vector(register: u8, address: Address) -> Encoded {
    one("ldr", 0x3cc0_0000, 4, field("ldr", register.into(), 5, 0)?, address)
}

/// `str Qt`.
pub fn str_vector(register: u8, address: Address) -> Encoded {
    one("str", 0x3c80_0000, 4, field("str", register.into(), 5, 0)?, address)
}

/// `str Dt`: the lower half of a vector register.
pub fn str_half_vector(register: u8, address: Address) -> Encoded {
    one("str", 0xfc00_0000, 3, field("str", register.into(), 5, 0)?, address)
}

fn pair(name: &'static str, word: u32, scale: u32, registers: [u32; 2], address: Address) -> Encoded {
    let form = match address.update {
        Update::None => 0b10,
        Update::Before => 0b11,
        Update::After => 0b01,
    };
    let offset = signed_field(name, address.offset, 7, scale)? << 15;
    let base = address.base.or_stack(name)? << 5;
    Ok(word | form << 23 | offset | registers[1] << 10 | base | registers[0])
}

/// `ldp Xt, Xt2`: 7 bits of units of 8 bytes, with a sign.
pub fn ldp(first: Reg, second: Reg, address: Address) -> Encoded {
    distinct("ldp", &[first, second], address)?;
    if first == second {
        return Err(EncodeError::Register { name: "ldp", register: second });
    }
    pair("ldp", 0xa840_0000, 3, [first.plain("ldp")?, second.plain("ldp")?], address)
}

/// `stp Xt, Xt2`.
pub fn stp(first: Reg, second: Reg, address: Address) -> Encoded {
    distinct("stp", &[first, second], address)?;
    pair("stp", 0xa800_0000, 3, [first.plain("stp")?, second.plain("stp")?], address)
}

/// `ldp Qt, Qt2`: 7 bits of units of 16 bytes, with a sign.
pub fn ldp_vector(first: u8, second: u8, address: Address) -> Encoded {
    if first == second {
        return Err(EncodeError::Operand { name: "ldp", value: second.into() });
    }
    let registers = [field("ldp", first.into(), 5, 0)?, field("ldp", second.into(), 5, 0)?];
    pair("ldp", 0xac40_0000, 4, registers, address)
}

/// `stp Qt, Qt2`.
pub fn stp_vector(first: u8, second: u8, address: Address) -> Encoded {
    let registers = [field("stp", first.into(), 5, 0)?, field("stp", second.into(), 5, 0)?];
    pair("stp", 0xac00_0000, 4, registers, address)
}

/// A base that is written back and a register of the data that is the same have no defined effect
/// (section K1.2).
fn distinct(name: &'static str, registers: &[Reg], address: Address) -> Result<(), EncodeError> {
    let clash = address.update != Update::None && registers.contains(&address.base);
    if clash { Err(EncodeError::Register { name, register: address.base }) } else { Ok(()) }
}

/// `word` with a size, a register of the data and a base.
fn at_base(name: &'static str, word: u32, size: Size, register: Reg, base: Reg) -> Encoded {
    Ok(word | (size as u32) << 30 | base.or_stack(name)? << 5 | register.plain(name)?)
}

/// `ldar`: load, acquire.
pub fn ldar(size: Size, register: Reg, base: Reg) -> Encoded {
    at_base("ldar", 0x08df_fc00, size, register, base)
}

/// `stlr`: store, release.
pub fn stlr(size: Size, register: Reg, base: Reg) -> Encoded {
    at_base("stlr", 0x089f_fc00, size, register, base)
}

/// `ldxr`: begins an exclusive sequence.
pub fn ldxr(size: Size, register: Reg, base: Reg) -> Encoded {
    at_base("ldxr", 0x085f_7c00, size, register, base)
}

/// `ldaxr`: the same, acquire.
pub fn ldaxr(size: Size, register: Reg, base: Reg) -> Encoded {
    at_base("ldaxr", 0x085f_fc00, size, register, base)
}

/// `stxr`: `status` becomes 0 if the sequence was exclusive. It is none of the other registers.
pub fn stxr(size: Size, status: Reg, register: Reg, base: Reg) -> Encoded {
    exclusive_store("stxr", 0x0800_7c00, size, status, register, base)
}

/// `stlxr`: the same, release.
pub fn stlxr(size: Size, status: Reg, register: Reg, base: Reg) -> Encoded {
    exclusive_store("stlxr", 0x0800_fc00, size, status, register, base)
}

fn exclusive_store(name: &'static str, word: u32, size: Size, status: Reg, register: Reg, base: Reg) -> Encoded {
    if status == register || status == base {
        return Err(EncodeError::Register { name, register: status });
    }
    Ok(at_base(name, word, size, register, base)? | status.plain(name)? << 16)
}

/// `ldadd Xs, Xt`: adds `by` to memory, and gives the old value (`FEAT_LSE`).
pub fn ldadd(size: Size, by: Reg, old: Reg, base: Reg) -> Encoded {
    Ok(at_base("ldadd", 0x3820_0000, size, old, base)? | by.plain("ldadd")? << 16)
}

/// `swp Xs, Xt`: writes `new` to memory, and gives the old value (`FEAT_LSE`).
pub fn swp(size: Size, new: Reg, old: Reg, base: Reg) -> Encoded {
    Ok(at_base("swp", 0x3820_8000, size, old, base)? | new.plain("swp")? << 16)
}

/// What `dmb` orders, in the inner shareable domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Barrier {
    /// Loads before, with everything behind.
    Loads = 9,
    /// Stores before, with stores behind.
    Stores = 10,
    /// Everything.
    All = 11,
}

/// `dmb`
#[must_use]
pub const fn dmb(barrier: Barrier) -> u32 {
    0xd503_30bf | (barrier as u32) << 8
}

/// Numbers of system registers for [`mrs`] and [`msr`] (chapter D24).
pub mod system {
    /// The number of a system register, `Sop0_op1_Cn_Cm_op2`: bits 20 to 5 of `mrs` and `msr`.
    #[must_use]
    pub const fn number(op0: u16, op1: u16, n: u16, m: u16, op2: u16) -> u16 {
        op0 << 14 | op1 << 11 | n << 7 | m << 3 | op2
    }

    /// The flags.
    pub const NZCV: u16 = number(3, 3, 4, 2, 0);
    /// Control of floating point.
    pub const FPCR: u16 = number(3, 3, 4, 4, 0);
    /// Status of floating point.
    pub const FPSR: u16 = number(3, 3, 4, 4, 1);
    /// The thread pointer.
    pub const TPIDR_EL0: u16 = number(3, 3, 13, 0, 2);
    /// The counter of time.
    pub const CNTVCT_EL0: u16 = number(3, 3, 14, 0, 2);
}

/// `mrs Xt, register`
pub fn mrs(to: Reg, register: u16) -> Encoded {
    Ok(0xd520_0000 | u32::from(register) << 5 | to.plain("mrs")?)
}

/// `msr register, Xt`
pub fn msr(register: u16, from: Reg) -> Encoded {
    Ok(0xd500_0000 | u32::from(register) << 5 | from.plain("msr")?)
}
