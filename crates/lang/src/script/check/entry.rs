//! What is there of a map: `find()`, `has_key()`, and what `delete()` gives.

use super::super::ast::{Expr, ExprKind};
use super::super::checked::{Entry, Op, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::aggregate::readable;
use super::call::KEYS;
use super::expr::truth;
use super::{Checker, Checking};

impl Checker<'_> {
    /// `has_key(@m, key)`
    pub(super) fn has_key(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("has_key", args, 2, KEYS, span)?;
        let entry = self.entry_argument("has_key", args, span)?;
        Ok(truth(ValueKind::Has(entry)))
    }

    /// `find(@m, key, $x)`: whether the key is there; then the variable gets its value.
    pub(super) fn find_entry(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("find", args, 3, KEYS, span)?;
        let Some((Expr { kind: ExprKind::Var(name), .. }, key)) = args.split_last() else {
            let last = args.last().map_or(span, |last| last.span);
            return self.error_with(last, "find() expects a variable as its last argument", "find(@map, key, $value)");
        };
        let entry = self.entry_argument("find", key, span)?;
        if self.find_var(name).is_none() {
            self.declare(name, Type::None);
        }
        let Some(content) = self.maps[entry.map].content.clone() else { return Ok(truth(ValueKind::Int(0))) };
        let Some(ty) = readable(&content) else {
            let message = format!("Map value of type '{}' cannot be used in an expression", content.name());
            return self.error(args[0].span, message);
        };
        self.maps[entry.map].read = true;
        let mut ops = Vec::new();
        let (entry, found) = self.found(entry, &mut ops);
        let mut then = Vec::new();
        self.set_var(name, Value { ty, kind: ValueKind::Read(entry) }, span, &mut then)?;
        ops.push(Op::If(found.clone(), then, Vec::new()));
        Ok(after(ops, found))
    }

    /// `delete(@m, key)`, as a value: whether the key was there.
    pub(super) fn deleted(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        match self.action_call("delete", args, span)? {
            Some(Op::Delete(entry)) if !entry.keys.is_empty() => {
                let mut ops = Vec::new();
                let (entry, found) = self.found(entry, &mut ops);
                // `-k` says nothing of it: the value says whether the key was there.
                ops.push(Op::Delete(Entry { read: None, ..entry }));
                Ok(after(ops, found))
            }
            Some(op) => Ok(after(vec![op], truth(ValueKind::Int(1)))),
            None => self.unknown(),
        }
    }

    /// A variable that says whether an entry is there, and the entry with keys that may be used
    /// twice.
    fn found(&mut self, entry: Entry, ops: &mut Vec<Op>) -> (Entry, Value) {
        // Names that no script has.
        let mut keys = Vec::new();
        for key in entry.keys {
            if matches!(key.kind, ValueKind::Int(_) | ValueKind::Text(_)) {
                keys.push(key);
                continue;
            }
            let index = self.declare("#key", key.ty.clone());
            keys.push(Value { ty: self.vars[index].clone(), kind: ValueKind::Var(index) });
            ops.push(Op::SetVar(index, key));
        }
        let entry = Entry { keys, ..entry };
        let index = self.declare("#found", Type::bool());
        ops.push(Op::SetVar(index, truth(ValueKind::Has(entry.clone()))));
        (entry, truth(ValueKind::Var(index)))
    }
}

fn after(ops: Vec<Op>, value: Value) -> Value {
    Value { ty: value.ty.clone(), kind: ValueKind::After(ops, Box::new(value)) }
}
