//! Functions of texts.

use super::super::ast::{BinaryOp, Expr, ExprKind};
use super::super::checked::{Action, Op, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::expr::int;
use super::{Checker, Checking};

impl Checker<'_> {
    /// `strstr(text, part)`
    pub(super) fn find(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments(name, args, 2, 2, span)?;
        let text = self.text_argument(name, &args[0])?;
        let part = self.text_argument(name, &args[1])?;
        Ok(Value { ty: Type::INT, kind: ValueKind::Find(Box::new(text), Box::new(part)) })
    }

    /// `strcontains(text, part)`
    pub(super) fn contains(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        let found = Box::new(self.find("strcontains", args, span)?);
        Ok(Value { ty: Type::INT, kind: ValueKind::Binary(BinaryOp::Ge, false, found, Box::new(int(0))) })
    }

    /// `len(@map)`, `len(ustack)`
    pub(super) fn len(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("len", args, 1, 1, span)?;
        if let ExprKind::Map(_, keys) = &args[0].kind {
            if keys.is_empty() {
                let map = self.map_argument("len", &args[0])?;
                if self.maps[map].keys.as_ref().is_some_and(Vec::is_empty) {
                    return self.error(args[0].span, "len() only works on maps with keys");
                }
                return Ok(Value { ty: Type::INT, kind: ValueKind::MapLength(map) });
            }
        }
        let value = self.expr(&args[0])?;
        match value.ty {
            Type::Stack(stack) => Ok(Value { ty: Type::INT, kind: ValueKind::StackLength(stack, Box::new(value)) }),
            Type::Text(_) => self.error_with(args[0].span, "len() expects a map or a stack", "strlen() is for strings"),
            _ => self.error(args[0].span, format!("len() expects a map or a stack ({} provided)", value.ty.kind())),
        }
    }

    /// `join(array)`, `join(array, separator)`
    pub(super) fn join(&mut self, args: &[Expr], span: Span) -> Checking<Op> {
        self.arguments("join", args, 1, 2, span)?;
        let array = self.int_argument("join", &args[0])?;
        let separator = match args.get(1) {
            Some(separator) => self.literal("join", separator)?,
            None => " ".to_owned(),
        };
        Ok(Op::Join(self.action(Action::Join(separator)), array))
    }
}
