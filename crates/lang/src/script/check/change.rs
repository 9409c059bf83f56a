//! What changes the program that is probed: `override()` and `write_user()`.

use super::super::ast::{Expr, Provider};
use super::super::checked::{Op, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::expr::truth;
use super::{Checker, Checking};

/// Bytes that are written at once, at most.
const WRITTEN: u64 = 1024;

impl Checker<'_> {
    /// `override(result)`: the function returns at once.
    pub(super) fn override_result(&mut self, args: &[Expr], span: Span) -> Checking<Op> {
        self.arguments("override", args, 1, 1, span)?;
        if !self.only_at(&[Provider::Uprobe]) {
            return self.error_with(
                span,
                "The override function can only be used with 'uprobe' probes",
                "a function is skipped where it begins: uprobe:PATH:FUNCTION",
            );
        }
        let result = self.int_argument("override", &args[0])?;
        self.needs_unsafe("override", span);
        Ok(Op::Override(result))
    }

    /// `write_user(address, value, bytes)`: whether it was written. Of a pointer, what is there is.
    pub(super) fn write_user(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("write_user", args, 3, 3, span)?;
        if self.points.iter().any(|point| !point.provider.has_target()) {
            let message = "The write_user function can only be used with 'uprobe', 'uretprobe' and 'usdt' probes";
            return self.error(span, message);
        }
        let address = self.int_argument("write_user", &args[0])?;
        let value = self.expr(&args[1])?;
        let most = match &value.ty {
            // What is there is written, as in bpftrace: `&$x`.
            Type::Pointer(_) => WRITTEN,
            ty if ty.is_int() => 8,
            // Zeros are behind them.
            Type::Text(_) | Type::Bytes(_) => WRITTEN,
            Type::Data { size, .. } => WRITTEN.min(*size as u64),
            ty => {
                let kind = ty.kind();
                let message = format!(
                    "write_user() writes integers, strings, buffers, records and what a pointer leads to ({kind} provided)"
                );
                return self.error(args[1].span, message);
            }
        };
        let bytes = match self.expr(&args[2])?.kind {
            ValueKind::Int(bytes) if (1..=most).contains(&bytes) => bytes as usize,
            ValueKind::Int(_) => {
                let kind = value.ty.kind();
                let message = format!("write_user() takes 1 to {most} bytes of a value of type {kind}");
                return self.error(args[2].span, message);
            }
            _ => return self.error(args[2].span, "write_user() expects an integer literal as its number of bytes"),
        };
        self.needs_unsafe("write_user", span);
        Ok(truth(ValueKind::Write(Box::new(address), Box::new(value), bytes)))
    }
}
