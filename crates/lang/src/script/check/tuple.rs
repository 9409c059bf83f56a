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
        let (Some(kept), Some(_)) = (kept, other_order(&value.ty, known)) else { return value };
        self.vars[kept] = value.ty.clone();
        let whole = Value { ty: value.ty.clone(), kind: ValueKind::Var(kept) };
        ops.push(Op::SetVar(kept, value));
        ordered(whole, known)
    }

    /// Two records that are compared, with the fields of both in the same order, as far as one of
    /// them is a variable or is written there: a map would be read twice.
    pub(super) fn in_one_order(&mut self, a: Value, b: Value, kept: [Option<usize>; 2]) -> (Value, Value) {
        if other_order(&b.ty, &a.ty).is_none() {
            return (a, b);
        }
        let mut ops = Vec::new();
        let after = |ops, value: Value| Value { ty: value.ty.clone(), kind: ValueKind::After(ops, Box::new(value)) };
        match (kept, &a.kind, &b.kind) {
            ([_, kept @ Some(_)], ..) => {
                let b = self.in_order(b, &a.ty, kept, &mut ops);
                (a, after(ops, b))
            }
            ([kept @ Some(_), _], ..) => {
                let a = self.in_order(a, &b.ty, kept, &mut ops);
                (after(ops, a), b)
            }
            (_, _, ValueKind::Var(_)) => {
                let b = ordered(b, &a.ty);
                (a, b)
            }
            (_, ValueKind::Var(_), _) => (ordered(a, &b.ty), b),
            _ => (a, b),
        }
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

/// For each field of the record `known`, which of the other record's fields has its name; `None`:
/// they have the same order already, or other names.
fn other_order(given: &Type, known: &Type) -> Option<Vec<usize>> {
    let (Type::Tuple(given), Type::Tuple(known)) = (given, known) else { return None };
    let is_other = known.names() != given.names() && known.len() == given.len();
    let at = |name: &String| given.names().iter().position(|given| given == name);
    is_other.then(|| known.names().iter().map(at).collect()).flatten()
}

/// A record with its fields in the order that `known` has. It is evaluated for each of them.
fn ordered(value: Value, known: &Type) -> Value {
    let Some(places) = other_order(&value.ty, known) else { return value };
    let (Type::Tuple(given), Type::Tuple(known)) = (&value.ty, known) else { return value };
    let types: Vec<Type> = places.iter().map(|place| given[*place].clone()).collect();
    let item = |(place, ty): (usize, &Type)| {
        let of = Box::new(value.clone());
        Value { ty: ty.clone(), kind: ValueKind::Item(of, place) }
    };
    let items = places.into_iter().zip(&types).map(item).collect();
    Value { ty: Type::Tuple(Parts::named(known.names().to_vec(), types)), kind: ValueKind::Tuple(items) }
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
