//! What variables and maps are assigned, and the types that they get.

use std::collections::HashMap;

use super::super::ast::{BinaryOp, Expr, ExprKind};
use super::super::checked::{Entry, Op, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::number::{self, New, grow};
use super::super::types::{Content, Type};
use super::aggregate::is_aggregate;
use super::expr::int;
use super::{Checker, Checking, MapState};

impl Checker<'_> {
    pub(super) fn assign(
        &mut self,
        target: &Expr,
        op: Option<BinaryOp>,
        value: &Expr,
        ops: &mut Vec<Op>,
    ) -> Checking<()> {
        let span = target.span.to(value.span);
        match &target.kind {
            ExprKind::Var(name) => {
                let kept = self.record_var(value);
                let value = self.expr(value)?;
                let value = match op {
                    Some(op) => {
                        let old = match self.find_var(name) {
                            // It was declared, and has no value yet.
                            Some(index) if self.vars[index] == Type::None => int(0),
                            _ => self.var(name, target.span)?,
                        };
                        self.binary(op, old, value, span)?
                    }
                    None => {
                        let known = self.find_var(name).map_or(Type::None, |index| self.vars[index].clone());
                        self.in_order(value, &known, kept, ops)
                    }
                };
                self.set_var(name, value, span, ops)
            }
            ExprKind::Map(..) if self.measuring => {
                self.error(span, "Map assignments not allowed inside of typeof, typeinfo or sizeof")
            }
            ExprKind::Map(name, keys) => {
                if op.is_none() {
                    // `{ …; avg($x) }`
                    if let ExprKind::Block(body, Some(value)) = &value.kind {
                        if matches!(&value.kind, ExprKind::Call(function, _) if is_aggregate(function)) {
                            self.scopes.push(HashMap::new());
                            ops.extend(self.stmts(body));
                            let assigned = self.assign(target, None, value, ops);
                            self.scopes.pop();
                            return assigned;
                        }
                    }
                    if let ExprKind::Call(function, args) = &value.kind {
                        if let Some(content) = self.aggregate(function, args, value.span)? {
                            let entry = self.entry(name, keys, target.span)?;
                            self.set_content(entry.map, content.0.clone(), span)?;
                            let read =
                                self.maps[entry.map].read && matches!(content.0, Content::Count | Content::Sum { .. });
                            let clock = self.series_clock(&content.0, span)?;
                            ops.push(match (content.1, clock) {
                                (Some(number), Some(clock)) => Op::Series(entry, number, clock),
                                (number, _) if read => Op::AddMap(entry, number.unwrap_or_else(|| int(1))),
                                (number, _) => Op::Aggregate(entry, number),
                            });
                            return Ok(());
                        }
                    }
                }
                let kept = self.record_var(value);
                let entry = self.entry(name, keys, target.span)?;
                let value = self.expr(value)?;
                match op {
                    None => {
                        let known = self.content_type(entry.map);
                        let value = self.in_order(value, &known, kept, ops);
                        self.set_value(entry.map, &value, span)?;
                        ops.push(Op::SetMap(entry, value));
                    }
                    Some(op) => self.update(entry, op, value, span, ops)?,
                }
                Ok(())
            }
            ExprKind::Member(_, name) => {
                let value = self.expr(value)?;
                self.set_own(name, op, value, span, ops)
            }
            _ => self.error(target.span, "only variables and maps can be assigned"),
        }
    }

    /// `@m op= value`
    fn update(&mut self, entry: Entry, op: BinaryOp, value: Value, span: Span, ops: &mut Vec<Op>) -> Checking<()> {
        let pointer = match self.content_type(entry.map) {
            Type::Pointer(to) if matches!(value.ty, Type::Int { .. }) => Some(to),
            _ => None,
        };
        if let (Some(to), BinaryOp::Add | BinaryOp::Sub) = (pointer, op) {
            let by = super::memory::times(value, self.size(&to, span)?);
            let by = if op == BinaryOp::Add { by } else { negated(by) };
            ops.push(Op::AddMap(entry, by));
            return Ok(());
        }
        // What is calculated has 64 bits.
        let sum = Value { ty: number::widest(&value.ty), kind: value.kind.clone() };
        self.set_value(entry.map, &sum, span)?;
        if !value.ty.is_int() {
            return self.error(
                span,
                format!("The {} operator can not be used on expressions of type {}", op.text(), value.ty.kind()),
            );
        }
        ops.push(match op {
            BinaryOp::Add => Op::AddMap(entry, value),
            BinaryOp::Sub => Op::AddMap(entry, negated(value)),
            op => {
                let ty = self.content_type(entry.map);
                let old = Value { ty, kind: ValueKind::Read(entry.clone()) };
                let new = self.binary(op, old, value, span)?;
                Op::SetMap(entry, new)
            }
        });
        Ok(())
    }

    /// The type of a map's values, as far as it is known.
    pub(super) fn content_type(&self, map: usize) -> Type {
        match &self.maps[map].content {
            Some(Content::Value(ty)) => ty.clone(),
            _ => Type::INT,
        }
    }

    /// Makes room for what the variable is assigned further down.
    fn roomy(&self, index: usize, mut ty: Type) -> Type {
        match self.before.get(self.out.blocks.len()).and_then(|vars| vars.get(index)) {
            // What the round before has found holds this value, too.
            Some((known @ Type::Int { .. }, _)) if ty.fits(known) => known.clone(),
            Some((known, _)) if ty.fits(known) => {
                ty.widen(known);
                ty
            }
            _ => ty,
        }
    }

    /// Whether the variable gets nothing but literals that are not negative, as far as is known.
    fn is_free(&self, index: usize, value: &Value) -> bool {
        let known = self.before.get(self.out.blocks.len()).and_then(|vars| vars.get(index));
        is_free(value) && known.is_none_or(|(_, free)| *free)
    }

    pub(super) fn declare(&mut self, name: &str, ty: Type) -> usize {
        let ty = self.roomy(self.vars.len(), ty);
        let index = self.new_var(ty);
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), index);
        }
        index
    }

    /// `let $name`: the type is that of the first assignment, which may be in an inner block, or
    /// below a use. Until then the value is 0, or nothing.
    pub(super) fn declare_untyped(&mut self, name: &str, ops: &mut Vec<Op>) {
        let index = self.declare(name, Type::None);
        let known = self.before.get(self.out.blocks.len()).and_then(|vars| vars.get(index)).cloned();
        let Some((ty, free)) = known.filter(|(ty, _)| *ty != Type::None) else { return };
        if let Some(zero) = super::typed::zero(&ty) {
            ops.push(Op::SetVar(index, zero));
        }
        self.vars[index] = ty;
        self.free[index] = free;
    }

    /// A variable, which may have no name.
    pub(super) fn new_var(&mut self, ty: Type) -> usize {
        self.vars.push(ty);
        self.free.push(false);
        self.owners.push(Some(self.walk));
        self.vars.len() - 1
    }

    /// A variable that is used here.
    pub(super) fn find_var(&mut self, name: &str) -> Option<usize> {
        let index = self.scopes.iter().rev().find_map(|scope| scope.get(name)).copied()?;
        if self.owners[index] != Some(self.walk) {
            self.owners[index] = None;
        }
        Some(index)
    }

    pub(super) fn set_var(&mut self, name: &str, value: Value, span: Span, ops: &mut Vec<Op>) -> Checking<()> {
        if value.ty == Type::None {
            return self.no_value(span);
        }
        self.small(&value.ty, span)?;
        let found = self.find_var(name);
        let value = match found {
            Some(index) => self.as_declared(index, name, value, span)?,
            None => value,
        };
        let index = match found {
            Some(index) => index,
            None => {
                let index = self.declare(name, value.ty.clone());
                self.free[index] = self.is_free(index, &value);
                index
            }
        };
        self.grow_var(index, name, &value, span)?;
        ops.push(Op::SetVar(index, value));
        Ok(())
    }

    /// Makes room for a value in a variable.
    fn grow_var(&mut self, index: usize, name: &str, value: &Value, span: Span) -> Checking<()> {
        let ty = &value.ty;
        if self.vars[index] == Type::None {
            self.vars[index] = self.roomy(index, ty.clone());
            self.free[index] = self.is_free(index, value);
        }
        match &self.vars[index] {
            known if known.fits(ty) => {
                let new = New { ty, literal: literal(value) };
                if grow(&mut self.vars[index], &mut self.free[index], new) {
                    if let Err(hint) = self.cast_on_the_way(value, span) {
                        let message = self.no_room(index, name, ty);
                        return self.error_with(span, message, hint);
                    }
                }
            }
            _ => {
                let message = self.no_room(index, name, ty);
                return self.error(span, message);
            }
        }
        Ok(())
    }

    fn no_room(&self, index: usize, name: &str, ty: &Type) -> String {
        let (known, ty) = (self.vars[index].name(), ty.name());
        let why = match self.typed.contains_key(&index) {
            true => format!("when variable was declared with type '{known}'"),
            false => format!("when variable already has a type '{known}'"),
        };
        format!("Type mismatch for ${name}: trying to assign value of type '{ty}' {why}")
    }

    /// A number becomes an `int64`, which does not hold all numbers of its type: this is said, and
    /// is an error if the number itself is known to be too large.
    pub(super) fn cast_on_the_way(&mut self, value: &Value, span: Span) -> Result<(), String> {
        match value.kind {
            ValueKind::Int(n) if value.ty.is_unsigned() && i64::try_from(n).is_err() => {
                Err(format!("{n} does not fit into int64, and there are negative numbers"))
            }
            _ => {
                self.warn_of_cast(&value.ty, &Type::INT, span);
                Ok(())
            }
        }
    }

    /// Says that a value becomes one of a type that does not hold all of its numbers.
    pub(super) fn warn_of_cast(&mut self, from: &Type, to: &Type, span: Span) {
        let message = format!(
            "Expression of type: {} being cast to type: {}. This may cause unexpected results. Use an explicit cast to \
             suppress this warning.",
            from.name(),
            to.name()
        );
        self.warn(span, message);
    }

    /// A map holds this value from now on, too.
    pub(super) fn set_value(&mut self, map: usize, value: &Value, span: Span) -> Checking<()> {
        let state = &mut self.maps[map];
        let Some(Content::Value(known @ Type::Int { .. })) = &mut state.content else {
            if self.maps[map].content.is_none() {
                self.maps[map].free = is_free(value);
            }
            return self.set_content(map, Content::Value(value.ty.clone()), span);
        };
        if !known.fits(&value.ty) {
            return self.set_content(map, Content::Value(value.ty.clone()), span);
        }
        if grow(known, &mut state.free, New { ty: &value.ty, literal: literal(value) }) {
            if let Err(hint) = self.cast_on_the_way(value, span) {
                let message = self.other_content(map, &Content::Value(value.ty.clone()));
                return self.error_with(span, message, hint);
            }
        }
        Ok(())
    }

    /// What a map holds from now on.
    pub(super) fn set_content(&mut self, map: usize, new: Content, span: Span) -> Checking<()> {
        if new == Content::Value(Type::None) {
            return self.no_value(span);
        }
        if let Content::Value(ty) = &new {
            self.small(ty, span)?;
        }
        match &mut self.maps[map].content {
            None => self.maps[map].content = Some(new),
            Some(known) if known.fits(&new) => {
                if let (Content::Value(known), Content::Value(new)) = (known, &new) {
                    known.widen(new);
                }
            }
            Some(Content::Lhist { .. }) if matches!(new, Content::Lhist { .. }) => {
                return self.error(span, "Different lhist bounds in a single map unsupported");
            }
            Some(Content::Tseries { .. }) if matches!(new, Content::Tseries { .. }) => {
                return self.error(span, "Different tseries bounds in a single map unsupported");
            }
            Some(Content::Hist { .. }) if matches!(new, Content::Hist { .. }) => {
                return self.error(span, "Different bits in a single hist unsupported");
            }
            Some(_) => {
                let message = self.other_content(map, &new);
                return self.error(span, message);
            }
        }
        Ok(())
    }

    fn other_content(&self, map: usize, new: &Content) -> String {
        let MapState { name, content, .. } = &self.maps[map];
        let known = content.as_ref().map(Content::name).unwrap_or_default();
        format!(
            "Type mismatch for @{name}: trying to assign value of type '{}' when map already has a type '{known}'",
            new.name()
        )
    }
}

fn negated(value: Value) -> Value {
    Value { ty: value.ty.clone(), kind: ValueKind::Negate(Box::new(value)) }
}

/// A number that is known, and not negative.
pub(super) fn literal(value: &Value) -> Option<u64> {
    match value.kind {
        ValueKind::Int(n) if value.ty.is_unsigned() || i64::try_from(n).is_ok() => Some(n),
        _ => None,
    }
}

/// A literal that takes the sign of what it is assigned beside.
pub(super) fn is_free(value: &Value) -> bool {
    literal(value).is_some() && !value.ty.is_unsigned()
}
