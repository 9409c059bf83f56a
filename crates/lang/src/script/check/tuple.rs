//! Tuples.

use super::super::ast::Expr;
use super::super::checked::{Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::{Checker, Checking};

impl Checker<'_> {
    /// `(a, b)`
    pub(super) fn tuple(&mut self, items: &[Expr]) -> Checking<Value> {
        let mut values = Vec::new();
        for item in items {
            let value = self.expr(item)?;
            match &value.ty {
                Type::None if self.last => return self.error(item.span, "a part of a tuple must have a value"),
                Type::Time(_) => return self.error(item.span, "strftime() cannot be used in a tuple"),
                _ => values.push(value),
            }
        }
        let ty = Type::Tuple(values.iter().map(|value| value.ty.kept()).collect());
        Ok(Value { ty, kind: ValueKind::Tuple(values) })
    }

    /// `of.name`, of a tuple.
    pub(super) fn item(&mut self, of: Value, name: &str, span: Span) -> Checking<Value> {
        let Type::Tuple(types) = &of.ty else {
            let message = format!("Can not access field '{name}' on expression of type '{}'", of.ty.name());
            return if of.ty == Type::None && !self.last { self.unknown() } else { self.error(span, message) };
        };
        match name.parse::<usize>() {
            Ok(index) if index < types.len() => {
                let ty = types[index].clone();
                Ok(Value { ty, kind: ValueKind::Item(Box::new(of), index) })
            }
            Ok(index) => {
                let count = types.len();
                self.error(span, format!("Invalid tuple index: {index}. Found {count} elements in tuple."))
            }
            Err(_) => self.error(span, format!("Invalid tuple index: {name}")),
        }
    }
}
