//! Loops whose rounds the verifier may walk through one by one: those without branches. A round
//! with a branch has two ends, which the next round begins with: a few rounds have millions of
//! paths.

use super::super::ast::{BinaryOp, Expr, ExprKind, Stmt, StmtKind, UnaryOp};
use super::super::lower::INLINE_ROUNDS;
use super::Checker;

impl Checker<'_> {
    /// Whether a loop of so many rounds is a part of the block's code. Else it is a function.
    pub(super) fn is_inline(&mut self, rounds: u64, body: &[Stmt]) -> bool {
        let all = self.inline_rounds.saturating_add(rounds);
        let fits = all <= INLINE_ROUNDS && body.iter().all(is_straight);
        if fits {
            self.inline_rounds = all;
        }
        fits
    }
}

/// Only arithmetic with variables. What else there is has a branch: an address may be bad, an entry
/// of a map missing, a ring full.
fn is_straight(stmt: &Stmt) -> bool {
    match &stmt.kind {
        StmtKind::Expr(expr) | StmtKind::Discard(expr) => is_plain(expr),
        StmtKind::Assign { target, op, value } => {
            matches!(target.kind, ExprKind::Var(_)) && op.is_none_or(is_arithmetic) && is_plain(value)
        }
        StmtKind::Let { value, .. } => value.as_ref().is_none_or(is_plain),
        _ => false,
    }
}

fn is_plain(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Int(_) | ExprKind::Var(_) | ExprKind::Param(_) | ExprKind::ParamCount => true,
        ExprKind::Step(_, of) => matches!(of.kind, ExprKind::Var(_)),
        ExprKind::Unary(UnaryOp::Invert | UnaryOp::Negate, of) | ExprKind::Cast(_, of) => is_plain(of),
        ExprKind::Binary(op, left, right) => is_arithmetic(*op) && is_plain(left) && is_plain(right),
        _ => false,
    }
}

fn is_arithmetic(op: BinaryOp) -> bool {
    use BinaryOp::{Add, And, Mul, Or, Shl, Shr, Sub, Xor};
    matches!(op, Add | Sub | Mul | And | Or | Xor | Shl | Shr)
}
