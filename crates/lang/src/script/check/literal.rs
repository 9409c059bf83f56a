//! Arithmetic of literals, which is exact or an error; operations on what is known before anything
//! runs.

use super::super::ast::{BinaryOp, Expr, ExprKind, UnaryOp};
use super::super::checked::ValueKind;

/// What a literal may be: any number of 64 bits, with or without a sign.
const RANGE: std::ops::RangeInclusive<i128> = i64::MIN as i128..=u64::MAX as i128;

/// No number of 64 bits is the result, or there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Overflow;

/// The number that an expression of literals is; `None` if it has other parts.
pub(super) fn exact(expr: &Expr) -> Option<Result<i128, Overflow>> {
    let number = match &expr.kind {
        ExprKind::Int(n) => Some(i128::from(*n)),
        ExprKind::Unary(UnaryOp::Negate, of) => match exact(of)? {
            Ok(n) => Some(-n),
            error => return Some(error),
        },
        ExprKind::Binary(op, a, b) => {
            let (a, b) = match (exact(a)?, exact(b)?) {
                (Ok(a), Ok(b)) => (a, b),
                _ => return Some(Err(Overflow)),
            };
            match op {
                BinaryOp::Add => a.checked_add(b),
                BinaryOp::Sub => a.checked_sub(b),
                BinaryOp::Mul => a.checked_mul(b),
                BinaryOp::Div => a.checked_div(b),
                BinaryOp::Mod => a.checked_rem(b),
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(number.filter(|n| RANGE.contains(n)).ok_or(Overflow))
}

/// What `a && b` or `a || b` is, if that is known: `a` alone may decide.
pub(super) fn logical(op: BinaryOp, a: &ValueKind, b: &ValueKind) -> Option<bool> {
    let (decides, ValueKind::Int(a)) = (op == BinaryOp::LogicalOr, a) else { return None };
    match (*a != 0, b) {
        (a, _) if a == decides => Some(a),
        (_, ValueKind::Int(b)) => Some(*b != 0),
        _ => None,
    }
}

/// The value of an operation on constants, if it is no division by zero.
pub(in super::super) fn fold(op: BinaryOp, unsigned: bool, a: u64, b: u64) -> Option<u64> {
    let (x, y) = (a as i64, b as i64);
    Some(match op {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div if unsigned => a.checked_div(b)?,
        BinaryOp::Div => {
            if y == 0 {
                return None;
            } else {
                x.wrapping_div(y) as u64
            }
        }
        BinaryOp::Mod if unsigned => a.checked_rem(b)?,
        BinaryOp::Mod => {
            if y == 0 {
                return None;
            } else {
                x.wrapping_rem(y) as u64
            }
        }
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl => a.wrapping_shl(b as u32),
        BinaryOp::Shr if unsigned => a.wrapping_shr(b as u32),
        BinaryOp::Shr => x.wrapping_shr(b as u32) as u64,
        BinaryOp::Eq => (a == b).into(),
        BinaryOp::Ne => (a != b).into(),
        BinaryOp::Lt => if unsigned { a < b } else { x < y }.into(),
        BinaryOp::Le => if unsigned { a <= b } else { x <= y }.into(),
        BinaryOp::Gt => if unsigned { a > b } else { x > y }.into(),
        BinaryOp::Ge => if unsigned { a >= b } else { x >= y }.into(),
        BinaryOp::LogicalAnd | BinaryOp::LogicalOr => return None,
    })
}
