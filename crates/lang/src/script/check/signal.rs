//! `signal()` and `signal_thread()`.

use crate::signals;

use super::super::ast::Expr;
use super::super::checked::{Op, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::expr::int;
use super::{Checker, Checking};

/// Real-time signals are those from 32 on.
const LAST: u64 = 64;

impl Checker<'_> {
    /// `signal("KILL")`, `signal(9)`, and the same to the thread.
    pub(super) fn signal(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<Op> {
        self.arguments(name, args, 1, 1, span)?;
        if self.points.iter().any(|point| !point.provider.has_target()) {
            let message = format!("The {name} function can only be used with 'uprobe', 'uretprobe' and 'usdt' probes");
            return self.error(span, message);
        }
        let value = self.expr(&args[0])?;
        let number = match (&value.kind, &value.ty) {
            (ValueKind::Text(text), _) => match std::str::from_utf8(text).ok().and_then(signals::number) {
                Some(number) => int(number.into()),
                None => {
                    let text = String::from_utf8_lossy(text).into_owned();
                    return self.error(args[0].span, format!("{text} is not a valid signal"));
                }
            },
            (ValueKind::Int(number), _) if !(1..=LAST).contains(number) => {
                let message = format!("{} is not a valid signal, allowed range: [1,{LAST}]", *number as i64);
                return self.error(args[0].span, message);
            }
            (_, Type::Int { .. } | Type::Enum(_)) => value,
            (_, ty) => {
                let kind = ty.kind();
                let message = format!("{name} only supports string literals and integers ({kind} provided)");
                return self.error(args[0].span, message);
            }
        };
        self.needs_unsafe(name, span);
        Ok(Op::Signal { thread: name == "signal_thread", number: Value { ty: Type::INT, ..number } })
    }
}
