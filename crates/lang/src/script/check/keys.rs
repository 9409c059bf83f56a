//! Entries of maps: the keys and their types.

use super::super::ast::{Expr, ExprKind};
use super::super::checked::{Entry, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::number::{New, grow};
use super::super::types::Type;
use super::assign::literal;
use super::{Checker, Checking, MapState};

impl Checker<'_> {
    /// An entry of a map, whose keys have the types that they have everywhere.
    pub(super) fn entry(&mut self, name: &str, keys: &[Expr], span: Span) -> Checking<Entry> {
        let map = self.map(name);
        // `@m[(a, b)]` is `@m[a, b]`.
        let keys = match keys {
            [Expr { kind: ExprKind::Tuple(items), .. }] if !items.is_empty() => items,
            keys => keys,
        };
        let mut values = Vec::new();
        for (n, key) in keys.iter().enumerate() {
            let known = self.maps[map].keys.as_ref().and_then(|keys| keys.get(n)).cloned();
            values.push(self.key(key, known.unwrap_or(Type::None))?);
        }
        self.set_keys(map, &values, span)?;
        Ok(Entry { map, keys: values, read: None })
    }

    /// A key; the fields of a record are in the order that `known` has.
    fn key(&mut self, key: &Expr, known: Type) -> Checking<Value> {
        let kept = self.record_var(key);
        let value = self.expr(key)?;
        let value = self.meant(value);
        let mut ops = Vec::new();
        let value = match self.in_order(value, &known, kept, &mut ops) {
            value if ops.is_empty() => value,
            value => Value { ty: value.ty.clone(), kind: ValueKind::After(ops, Box::new(value)) },
        };
        match &value.ty {
            Type::None => self.no_value(key.span),
            ty => {
                self.small(ty, key.span)?;
                Ok(value)
            }
        }
    }

    fn set_keys(&mut self, map: usize, values: &[Value], span: Span) -> Checking<()> {
        let new: Vec<(Type, Option<u64>)> = match values {
            // A tuple is as many keys.
            [Value { ty: Type::Tuple(types), .. }] if types.are_keys() => {
                types.iter().map(|ty| (ty.clone(), None)).collect()
            }
            values => values.iter().map(|value| (value.ty.clone(), literal(value))).collect(),
        };
        let state = &mut self.maps[map];
        match &mut state.keys {
            None => {
                state.free_keys = new.iter().map(|(ty, literal)| literal.is_some() && !ty.is_unsigned()).collect();
                state.keys = Some(new.into_iter().map(|(ty, _)| ty).collect());
            }
            Some(known) if known.len() == new.len() && known.iter().zip(&new).all(|(a, (b, _))| a.fits(b)) => {
                let mut lost = Vec::new();
                for (n, (ty, literal)) in new.iter().enumerate() {
                    if grow(&mut known[n], &mut state.free_keys[n], New { ty, literal: *literal }) {
                        lost.extend(values.get(n));
                    }
                }
                for value in lost {
                    if let Err(hint) = self.cast_on_the_way(value, span) {
                        let message = self.other_keys(map, &new);
                        return self.error_with(span, message, hint);
                    }
                }
            }
            Some(_) => {
                let message = self.other_keys(map, &new);
                return self.error(span, message);
            }
        }
        Ok(())
    }

    fn other_keys(&self, map: usize, new: &[(Type, Option<u64>)]) -> String {
        let list = |types: &mut dyn Iterator<Item = &Type>| {
            let names: Vec<String> = types.map(Type::name).collect();
            match &*names {
                [] => "no arguments".to_owned(),
                [name] => format!("arguments: '{name}'"),
                names => format!("arguments: '({})'", names.join(",")),
            }
        };
        let MapState { name, keys, .. } = &self.maps[map];
        let expects = list(&mut keys.iter().flatten());
        let access = list(&mut new.iter().map(|(ty, _)| ty));
        format!("Argument mismatch for @{name}: trying to access with {access} when map expects {expects}")
    }
}
