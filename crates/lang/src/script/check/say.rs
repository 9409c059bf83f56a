//! Messages of scripts about themselves: `errorf`, `warnf`, `assert`, `static_assert`, `fail`.

use super::super::ast::Expr;
use super::super::checked::{Action, Op, Value, ValueKind};
use super::super::diagnostic::{Diagnostic, Span};
use super::super::printf::{Format, Printed};
use super::super::types::Type;
use super::expr::int;
use super::{Checker, Checking};

impl Checker<'_> {
    /// `errorf(format, …)`, `warnf(format, …)`
    pub(super) fn say(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<Op> {
        let (format, values) = self.formatted(name, args, span)?;
        let types = values.iter().map(|value| value.ty.clone()).collect();
        let diagnostic = if name == "errorf" { Diagnostic::error(span, "") } else { Diagnostic::warning(span, "") };
        let diagnostic = Diagnostic { expanded: self.calls.iter().rev().copied().collect(), ..diagnostic };
        Ok(Op::Act(self.action(Action::Say(format, types, diagnostic)), values))
    }

    /// `assert(condition, message)`: otherwise the script ends with status 1.
    pub(super) fn assert(&mut self, args: &[Expr], span: Span) -> Checking<Op> {
        let (cond, message) = self.asserted("assert", args, span)?;
        let failed = Value { ty: Type::INT, kind: ValueKind::Not(Box::new(cond)) };
        let format = match Format::parse("%s") {
            Ok(format) => format,
            Err(message) => return self.error(span, message),
        };
        let text = super::expr::text(format!("assert failed: {message}").into_bytes());
        let say = self.action(Action::Say(format, vec![text.ty.clone()], Diagnostic::error(span, "")));
        let exit = self.action(Action::Exit);
        Ok(Op::If(failed, vec![Op::Act(say, vec![text]), Op::Exit(exit, int(1))], Vec::new()))
    }

    /// `static_assert(condition, message)`: otherwise the script does not begin.
    pub(super) fn static_assert(&mut self, args: &[Expr], span: Span) -> Checking<Op> {
        let (cond, message) = self.asserted("static_assert", args, span)?;
        match cond.kind {
            ValueKind::Int(0) if self.dead == 0 => self.error(span, message),
            ValueKind::Int(_) => Ok(Op::Eval(int(0))),
            _ if !self.last => Ok(Op::Eval(int(0))),
            _ => self.error(args[0].span, "static_assert() expects a condition that is known before anything runs"),
        }
    }

    /// `fail(format, …)`: what leads there is wrong.
    pub(super) fn fail(&mut self, args: &[Expr], span: Span) -> Checking<Op> {
        let (format, values) = self.formatted("fail", args, span)?;
        let mut printed = Vec::new();
        for (value, arg) in values.into_iter().zip(&args[1..]) {
            printed.push(match value.kind {
                ValueKind::Int(n) if value.ty.is_unsigned() => Printed::Int(n.into()),
                ValueKind::Int(n) => Printed::Int((n as i64).into()),
                ValueKind::Text(text) => Printed::Text(text.to_vec()),
                _ => return self.error(arg.span, "fail() expects a literal here"),
            });
        }
        match self.dead {
            0 => {
                let message = format.render(&printed, &<[u8]>::to_vec);
                self.error(span, String::from_utf8_lossy(&message))
            }
            _ => Ok(Op::Eval(int(0))),
        }
    }

    fn asserted(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<(Value, String)> {
        self.arguments(name, args, 2, 2, span)?;
        let cond = self.expr(&args[0])?;
        let cond = self.condition(cond, args[0].span, name)?;
        Ok((cond, self.literal(name, &args[1])?))
    }
}
