//! Arithmetic on sets of numbers.
//!
//! There is one implementation, on 64 bits. An operation on halves is done on zero-extended and on
//! sign-extended halves; where the lower half of the result depends on the lower halves of the
//! operands only, both are right, and what is known is what both say.

use super::scalar::{Scalar, Span};
use super::tnum::Tnum;
use crate::insn::{AluOp, Size, Swap, Width};

/// What `left op right` can be.
pub(crate) fn alu(width: Width, op: AluOp, left: &Scalar, right: &Scalar) -> Scalar {
    match width {
        Width::W32 => half(op, left, right),
        Width::W64 => {
            let whole = whole(op, left, right);
            if is_modular(op, right) { whole.with_low(&half(op, left, right)).unwrap_or(whole) } else { whole }
        }
    }
}

/// What `-operand` can be.
pub(crate) fn neg(width: Width, operand: &Scalar) -> Scalar {
    alu(width, AluOp::Sub, &Scalar::constant(0), operand)
}

/// What the lower `size` bytes can be in another order.
pub(crate) fn swap(order: Swap, size: Size, operand: &Scalar) -> Scalar {
    match order {
        Swap::Le => operand.truncate(size.bits()),
        Swap::Be | Swap::Always => Scalar::of_bits(operand.bits.swap(size.bits())),
    }
}

/// Whether the lower half of the result depends on the lower halves of the operands only.
fn is_modular(op: AluOp, right: &Scalar) -> bool {
    match op {
        AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor => true,
        // The count of the half is taken modulo 32.
        AluOp::Lsh => right.u.max < 32,
        _ => false,
    }
}

fn half(op: AluOp, left: &Scalar, right: &Scalar) -> Scalar {
    let unsigned = || whole(op, &left.low(), &right.low()).low();
    let signed = || whole(op, &left.low_signed(), &right.low_signed()).low();
    match op {
        AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor => {
            unsigned().intersect(&signed()).unwrap_or_else(unsigned)
        }
        AluOp::Div | AluOp::Mod => unsigned(),
        AluOp::Sdiv | AluOp::Smod => signed(),
        AluOp::Mov => right.low(),
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => {
            let count = whole(AluOp::And, right, &Scalar::constant(31));
            let left = if op == AluOp::Arsh { left.low_signed() } else { left.low() };
            whole(op, &left, &count).low()
        }
    }
}

fn whole(op: AluOp, a: &Scalar, b: &Scalar) -> Scalar {
    if let (Some(a), Some(b)) = (a.as_constant(), b.as_constant()) {
        return Scalar::constant(crate::alu::alu(Width::W64, op, a, b));
    }
    let (mut u, mut s, mut bits) = (None, None, Tnum::UNKNOWN);
    match op {
        AluOp::Mov => return *b,
        AluOp::Add => {
            bits = a.bits.add(b.bits);
            u = a.u.max.checked_add(b.u.max).map(|max| (a.u.min + b.u.min, max));
            s = a.s.min.checked_add(b.s.min).zip(a.s.max.checked_add(b.s.max));
        }
        AluOp::Sub => {
            bits = a.bits.sub(b.bits);
            u = a.u.min.checked_sub(b.u.max).map(|min| (min, a.u.max - b.u.min));
            s = a.s.min.checked_sub(b.s.max).zip(a.s.max.checked_sub(b.s.min));
        }
        AluOp::Mul => {
            bits = a.bits.mul(b.bits);
            u = a.u.max.checked_mul(b.u.max).map(|max| (a.u.min * b.u.min, max));
            s = signed_products(a.s, b.s);
        }
        AluOp::And => {
            bits = a.bits.and(b.bits);
            u = Some((0, a.u.max.min(b.u.max)));
        }
        AluOp::Or => {
            bits = a.bits.or(b.bits);
            u = Some((a.u.min.max(b.u.min), u64::MAX));
        }
        AluOp::Xor => bits = a.bits.xor(b.bits),
        AluOp::Div => u = Some(quotients(a.u, b.u)),
        AluOp::Mod => u = Some(remainders(a.u, b.u)),
        AluOp::Smod => s = signed_remainders(a.s, b.s),
        AluOp::Sdiv => s = signed_quotients(a.s, b.s),
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => return shift(op, a, b),
    }
    from_facts(u, s, bits)
}

fn from_facts(u: Option<(u64, u64)>, s: Option<(i64, i64)>, bits: Tnum) -> Scalar {
    let mut result = Scalar { bits, ..Scalar::UNKNOWN };
    if let Some((min, max)) = u {
        result.u = Span::new(min, max);
    }
    if let Some((min, max)) = s {
        result.s = Span::new(min, max);
    }
    result.settled()
}

fn signed_products(a: Span<i64>, b: Span<i64>) -> Option<(i64, i64)> {
    let corners =
        [a.min.checked_mul(b.min)?, a.min.checked_mul(b.max)?, a.max.checked_mul(b.min)?, a.max.checked_mul(b.max)?];
    Some((corners.into_iter().min()?, corners.into_iter().max()?))
}

fn quotients(a: Span<u64>, b: Span<u64>) -> (u64, u64) {
    // A divisor of 0 gives 0, and 1 gives the dividend.
    let min = if b.min == 0 { 0 } else { a.min / b.max };
    (min, a.max / b.min.max(1))
}

fn remainders(a: Span<u64>, b: Span<u64>) -> (u64, u64) {
    if b.min > a.max {
        return (a.min, a.max);
    }
    (0, if b.min == 0 { a.max } else { a.max.min(b.max - 1) })
}

/// For divisors above zero.
fn signed_quotients(a: Span<i64>, b: Span<i64>) -> Option<(i64, i64)> {
    (b.min > 0).then(|| {
        let corners = [a.min / b.min, a.min / b.max, a.max / b.min, a.max / b.max];
        corners.into_iter().fold((i64::MAX, i64::MIN), |(min, max), c| (min.min(c), max.max(c)))
    })
}

/// For divisors above zero: the sign of the dividend, smaller than the divisor.
fn signed_remainders(a: Span<i64>, b: Span<i64>) -> Option<(i64, i64)> {
    (b.min > 0).then(|| {
        let most = b.max - 1;
        (if a.min < 0 { a.min.max(-most) } else { 0 }, if a.max > 0 { a.max.min(most) } else { 0 })
    })
}

/// Counts are taken modulo 64, so a count that may be larger can be any.
fn shift(op: AluOp, a: &Scalar, b: &Scalar) -> Scalar {
    let (least, most) = if b.u.max < 64 { (b.u.min as u32, b.u.max as u32) } else { (0, 63) };
    let by = (least == most).then_some(least);
    let (mut u, mut s) = (None, None);
    let bits = match (op, by) {
        (AluOp::Lsh, Some(by)) => a.bits.shl(by),
        (AluOp::Rsh, Some(by)) => a.bits.shr(by),
        (_, Some(by)) => a.bits.sar(by),
        (_, None) => Tnum::UNKNOWN,
    };
    match op {
        AluOp::Lsh => {
            if a.u.max <= u64::MAX >> most {
                u = Some((a.u.min << least, a.u.max << most));
            }
            if a.s.min >= i64::MIN >> most && a.s.max <= i64::MAX >> most {
                let corners = [a.s.min << least, a.s.min << most, a.s.max << least, a.s.max << most];
                s = Some(corners.into_iter().fold((i64::MAX, i64::MIN), |(min, max), c| (min.min(c), max.max(c))));
            }
        }
        AluOp::Rsh => u = Some((a.u.min >> most, a.u.max >> least)),
        _ => {
            // Towards 0 from above, towards -1 from below.
            let min = if a.s.min < 0 { a.s.min >> least } else { a.s.min >> most };
            let max = if a.s.max < 0 { a.s.max >> most } else { a.s.max >> least };
            s = Some((min, max));
        }
    }
    from_facts(u, s, bits)
}
