//! Arguments of functions: what they may be.

use super::super::ast::{Expr, ExprKind};
use super::super::checked::{Entry, Value, ValueKind};
use super::super::diagnostic::{Span, Unknown};
use super::super::types::Type;
use super::expr::probe_text;
use super::{Checker, Checking};

impl Checker<'_> {
    /// `@m, key` of `delete` and `has_key`.
    pub(super) fn entry_argument(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<Entry> {
        let map = self.map_argument(name, &args[0])?;
        if self.maps[map].keys.as_ref().is_some_and(Vec::is_empty) {
            return self.no_keys(name, args[0].span);
        }
        let map = self.maps[map].name.clone();
        self.entry(&map, &args[1..], span)
    }

    pub(super) fn no_keys<T>(&mut self, name: &str, span: Span) -> Checking<T> {
        self.error(span, format!("call to {name}() expects a map with explicit keys (non-scalar map)"))
    }

    /// A map as a whole.
    pub(super) fn map_argument(&mut self, function: &str, arg: &Expr) -> Checking<usize> {
        let ExprKind::Map(name, keys) = &arg.kind else {
            return self.error(arg.span, format!("{function}() expects a map to be provided"));
        };
        if !keys.is_empty() {
            let message = format!("The map passed to {function}() should not be indexed by a key");
            return self.error(arg.span, message);
        }
        let map = self.map(name);
        if self.last && self.maps[map].content.is_none() {
            return self.no_such(arg.span, Unknown::Map(name.clone()), None);
        }
        Ok(map)
    }

    pub(super) fn literal(&mut self, function: &str, arg: &Expr) -> Checking<String> {
        let value = self.expr(arg)?;
        match value.kind {
            ValueKind::Text(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            _ => self.error(arg.span, format!("{function}() expects a string literal ({} provided)", value.ty.kind())),
        }
    }

    pub(super) fn int_argument(&mut self, function: &str, arg: &Expr) -> Checking<Value> {
        let value = self.expr(arg)?;
        if value.ty.is_int() {
            return Ok(value);
        }
        let message =
            format!("{function}() only supports integer and pointer arguments ({} provided)", value.ty.kind());
        self.error(arg.span, message)
    }

    pub(super) fn text_argument(&mut self, function: &str, arg: &Expr) -> Checking<Value> {
        let value = self.expr(arg)?;
        match value.ty {
            Type::Text(_) => return Ok(value),
            Type::Probe { func } => return Ok(probe_text(func)),
            _ => {}
        }
        self.error(arg.span, format!("{function}() only supports string arguments ({} provided)", value.ty.kind()))
    }
}
