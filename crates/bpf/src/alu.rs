//! What the operations compute, on values: for the interpreter, and for whoever folds constants.

use crate::insn::{AluOp, AtomicOp, Cond, Operand, Size, Swap, Width};

macro_rules! arithmetic {
    ($name:ident, $unsigned:ty, $signed:ty) => {
        #[inline]
        fn $name(op: AluOp, a: $unsigned, b: $unsigned) -> $unsigned {
            let (signed_a, signed_b) = (a as $signed, b as $signed);
            match op {
                AluOp::Add => a.wrapping_add(b),
                AluOp::Sub => a.wrapping_sub(b),
                AluOp::Mul => a.wrapping_mul(b),
                AluOp::Div => a.checked_div(b).unwrap_or(0),
                AluOp::Sdiv if b == 0 => 0,
                AluOp::Sdiv => signed_a.wrapping_div(signed_b) as $unsigned,
                AluOp::Or => a | b,
                AluOp::And => a & b,
                AluOp::Lsh => a.wrapping_shl(b as u32),
                AluOp::Rsh => a.wrapping_shr(b as u32),
                AluOp::Arsh => signed_a.wrapping_shr(b as u32) as $unsigned,
                AluOp::Mod => a.checked_rem(b).unwrap_or(a),
                AluOp::Smod if b == 0 => a,
                AluOp::Smod => signed_a.wrapping_rem(signed_b) as $unsigned,
                AluOp::Xor => a ^ b,
                AluOp::Mov => b,
            }
        }
    };
}

arithmetic!(alu32, u32, i32);
arithmetic!(alu64, u64, i64);

/// `a op b`; with 32 bits of the lower halves, zero-extended.
#[inline]
#[must_use]
pub fn alu(width: Width, op: AluOp, a: u64, b: u64) -> u64 {
    match width {
        Width::W64 => alu64(op, a, b),
        Width::W32 => alu32(op, a as u32, b as u32).into(),
    }
}

/// `-a`
#[inline]
#[must_use]
pub fn negate(width: Width, a: u64) -> u64 {
    alu(width, AluOp::Sub, 0, a)
}

/// The lower `from` bits with their sign, in `width` bits, zero-extended.
#[inline]
#[must_use]
pub fn sign_extend(width: Width, from: Size, a: u64) -> u64 {
    let unused = 64 - from.bits();
    truncate(width.size(), ((a << unused) as i64 >> unused) as u64)
}

/// The lower bytes, zero-extended.
#[inline]
#[must_use]
pub fn truncate(size: Size, a: u64) -> u64 {
    a & (u64::MAX >> (64 - size.bits()))
}

/// The lower bytes in this order, zero-extended. On a little-endian machine, as all of ours are.
#[inline]
#[must_use]
pub fn swap(order: Swap, size: Size, a: u64) -> u64 {
    match order {
        Swap::Le => truncate(size, a),
        Swap::Be | Swap::Always => a.swap_bytes() >> (64 - size.bits()),
    }
}

/// Whether `a cond b`.
#[inline]
#[must_use]
pub fn holds(width: Width, cond: Cond, a: u64, b: u64) -> bool {
    let (a, b) = match width {
        // Sign extension keeps the order of unsigned values, too.
        Width::W32 => (a as i32 as u64, b as i32 as u64),
        Width::W64 => (a, b),
    };
    let (signed_a, signed_b) = (a as i64, b as i64);
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::Sgt => signed_a > signed_b,
        Cond::Sge => signed_a >= signed_b,
        Cond::Slt => signed_a < signed_b,
        Cond::Sle => signed_a <= signed_b,
        Cond::Set => a & b != 0,
    }
}

/// What an atomic operation leaves in memory, before it is cut to its width. `expected` is `r0`,
/// for [`AtomicOp::Cmpxchg`].
#[inline]
#[must_use]
pub fn atomic(width: Width, op: AtomicOp, old: u64, operand: u64, expected: u64) -> u64 {
    match op {
        AtomicOp::Add { .. } => old.wrapping_add(operand),
        AtomicOp::Or { .. } => old | operand,
        AtomicOp::And { .. } => old & operand,
        AtomicOp::Xor { .. } => old ^ operand,
        AtomicOp::Xchg => operand,
        AtomicOp::Cmpxchg if holds(width, Cond::Eq, old, expected) => operand,
        AtomicOp::Cmpxchg => old,
    }
}

/// An immediate as a value.
#[inline]
#[must_use]
pub fn immediate(imm: i32) -> u64 {
    i64::from(imm) as u64
}

impl Operand {
    /// The value, given those of the registers.
    #[inline]
    pub fn value(self, register: impl FnOnce(crate::Reg) -> u64) -> u64 {
        match self {
            Operand::Reg(reg) => register(reg),
            Operand::Imm(imm) => immediate(imm),
        }
    }
}
