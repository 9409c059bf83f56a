//! Tuples.

use super::super::ast::{Expr, ExprKind};
use super::super::checked::{Op, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::{Parts, Type};
use super::{Checker, Checking};

impl Checker<'_> {
    /// `(a, b)`, or with names `(a=1, b=2)`.
    pub(super) fn tuple(&mut self, names: &[String], items: &[Expr], span: Span) -> Checking<Value> {
        if let Some(name) = names.iter().enumerate().find_map(|(n, name)| names[..n].contains(name).then_some(name)) {
            return self.error(span, format!("Duplicate field in a record: {name}"));
        }
        let mut values = Vec::new();
        for item in items {
            let value = self.expr(item)?;
            match &value.ty {
                // A tuple with such a part would not fit what is known later.
                Type::None => return self.no_value(item.span),
                _ => values.push(self.meant(value)),
            }
        }
        let types = values.iter().map(|value| value.ty.clone()).collect();
        let ty = Type::Tuple(Parts::named(names.to_vec(), types));
        Ok(Value { ty, kind: ValueKind::Tuple(values) })
    }

    /// A variable for a record that is assigned as it is written; see [`Checker::in_order`]. Each
    /// such assignment has one in each round: other variables keep their numbers.
    pub(super) fn record_var(&mut self, value: &Expr) -> Option<usize> {
        matches!(value.kind, ExprKind::Record(..)).then(|| self.new_var(Type::None))
    }

    /// A record with its fields in the order that `known` has. The parts are evaluated as they are
    /// written, into the variable `kept`.
    pub(super) fn in_order(&mut self, value: Value, known: &Type, kept: Option<usize>, ops: &mut Vec<Op>) -> Value {
        let Some(kept) = kept else { return value };
        let (Type::Tuple(known), Type::Tuple(given)) = (known, &value.ty) else { return value };
        let is_other = known.names() != given.names() && known.len() == given.len();
        let at = |name: &String| given.names().iter().position(|given| given == name);
        let Some(places) = known.names().iter().map(at).collect::<Option<Vec<_>>>().filter(|_| is_other) else {
            return value;
        };
        let types: Vec<Type> = places.iter().map(|place| given[*place].clone()).collect();
        let (whole, names) = (value.ty.clone(), known.names().to_vec());
        self.vars[kept] = whole.clone();
        ops.push(Op::SetVar(kept, value));
        let item = |(place, ty): (usize, &Type)| {
            let of = Box::new(Value { ty: whole.clone(), kind: ValueKind::Var(kept) });
            Value { ty: ty.clone(), kind: ValueKind::Item(of, place) }
        };
        let items = places.into_iter().zip(&types).map(item).collect();
        Value { ty: Type::Tuple(Parts::named(names, types)), kind: ValueKind::Tuple(items) }
    }

    /// `of.name`, of a tuple.
    pub(super) fn item(&mut self, of: Value, name: &str, span: Span) -> Checking<Value> {
        let Type::Tuple(types) = &of.ty else {
            let message = format!("Can not access field '{name}' on expression of type '{}'", of.ty.name());
            return if of.ty == Type::None && !self.last { self.unknown() } else { self.error(span, message) };
        };
        match name.parse::<usize>() {
            Ok(index) if index < types.len() => Ok(part(of, index)),
            Ok(index) => {
                let count = types.len();
                self.error(span, format!("Invalid tuple index: {index}. Found {count} elements in tuple."))
            }
            Err(_) => match types.names().iter().position(|known| known == name) {
                Some(index) => Ok(part(of, index)),
                None if types.names().is_empty() => self.error(span, format!("Invalid tuple index: {name}")),
                None => {
                    let hint = format!("there are {}", types.names().join(", "));
                    self.error_with(span, format!("The record does not contain a field named '{name}'"), hint)
                }
            },
        }
    }
}

/// A part of a tuple. Of one that is known before anything runs, so is the part.
fn part(of: Value, index: usize) -> Value {
    let is_known = super::known::is_known(&of.kind);
    match (of.ty, of.kind) {
        (_, ValueKind::Tuple(mut items)) if is_known => items.swap_remove(index),
        (Type::Tuple(types), kind) => {
            let ty = types[index].clone();
            Value { ty: ty.clone(), kind: ValueKind::Item(Box::new(Value { ty: Type::Tuple(types), kind }), index) }
        }
        (ty, kind) => Value { ty, kind },
    }
}
