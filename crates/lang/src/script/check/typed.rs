//! `let $x : type`: variables that hold what they say.

use super::super::ast::{Expr, ExprKind, Sized, TypeName};
use super::super::checked::{Op, Value, ValueKind};
use super::super::ctype::CType;
use super::super::diagnostic::{Span, Unknown};
use super::super::types::Type;
use super::expr::text;
use super::memory::number_type;
use super::{Checker, Checking};

impl Checker<'_> {
    /// `let $name : type = value`; without a value it begins as zero.
    pub(super) fn typed_var(
        &mut self,
        name: &str,
        ty: &Sized,
        value: Option<&Expr>,
        span: Span,
        ops: &mut Vec<Op>,
    ) -> Checking<()> {
        let declared =
            self.declared_type(ty, span).inspect_err(|_| self.unassigned.push(Unknown::Variable(name.to_owned())))?;
        self.small(&declared, span)?;
        let first = match value {
            Some(value) => {
                let said =
                    self.expr(value).inspect_err(|_| self.unassigned.push(Unknown::Variable(name.to_owned())))?;
                Some((said, value.span))
            }
            None => zero(&declared).map(|zero| (zero, span)),
        };
        let index = self.declare(name, declared.clone());
        // A string without a length has the room that it needs.
        let grows = matches!(ty, Sized::Type(TypeName { name, length: None, .. }) if name == "string");
        self.typed.insert(index, if grows { Type::Text(usize::MAX) } else { declared });
        match first {
            Some((value, at)) => self.set_var(name, value, at, ops),
            None => Ok(()),
        }
    }

    /// The type that a variable is declared with.
    pub(super) fn declared_type(&mut self, ty: &Sized, span: Span) -> Checking<Type> {
        match ty {
            Sized::Type(TypeName { keyword: "", name, stars: 0, length, pointers: 0 }) if name == "string" => {
                // A NUL ends it.
                Ok(Type::Text(length.unwrap_or(1).saturating_sub(1).min(self.out.config.max_strlen as u64) as usize))
            }
            Sized::Type(name) => {
                let ty = self.ctype(name, span)?;
                match (number_type(&ty), &ty) {
                    (Some(ty), _) => Ok(ty),
                    (None, CType::Void) => self.error(span, "Invalid variable declaration type: void"),
                    // As it is read.
                    (None, CType::Array(of, length)) if **of == CType::Char => Ok(Type::Text(*length as usize)),
                    (None, _) => Ok(Type::Data { size: self.size(&ty, span)? as usize, ty }),
                }
            }
            Sized::Expr(of) => self.type_of(of),
        }
    }

    /// The type of an expression, which is not evaluated; of a map with keys, that of its keys.
    fn type_of(&mut self, of: &Expr) -> Checking<Type> {
        let read: Vec<bool> = self.maps.iter().map(|map| map.read).collect();
        let ty = match self.key_type(of)? {
            Some(ty) => ty,
            None => self.measured(|checker| checker.expr(of))?.ty,
        };
        // Nobody has read it for that.
        self.maps.iter_mut().zip(read).for_each(|(map, read)| map.read = read);
        match ty {
            Type::None if self.last => self.no_value(of.span),
            ty => Ok(ty),
        }
    }

    /// An expression of which only the type is wanted: it is not evaluated.
    pub(super) fn measured<T>(&mut self, check: impl FnOnce(&mut Self) -> T) -> T {
        let outer = std::mem::replace(&mut self.measuring, true);
        let checked = check(self);
        self.measuring = outer;
        checked
    }

    /// The type of the keys of a map that has some.
    pub(super) fn key_type(&mut self, of: &Expr) -> Checking<Option<Type>> {
        let ExprKind::Map(name, keys) = &of.kind else { return Ok(None) };
        if !keys.is_empty() {
            return Ok(None);
        }
        let map = self.map(name);
        Ok(match self.maps[map].keys.as_deref() {
            // They may be said further down.
            None if !self.last => return self.unknown(),
            None | Some([]) => None,
            Some([key]) => Some(key.clone()),
            Some(keys) => Some(Type::Tuple(keys.to_vec().into())),
        })
    }

    /// A value as the variable holds it that it is assigned to.
    pub(super) fn as_declared(&mut self, index: usize, name: &str, value: Value, span: Span) -> Checking<Value> {
        let to = match self.typed.get(&index) {
            Some(Type::Int { bytes, signed }) => CType::Int { bytes: *bytes, signed: *signed },
            Some(Type::Enum(of)) => CType::Enum(of.clone()),
            Some(Type::Text(room)) => {
                let room = *room;
                return match &value.ty {
                    // How long it is, is only known where it is attached.
                    Type::Probe { func } => {
                        let text = super::expr::probe_text(*func);
                        let longest = if let Type::Text(len) = text.ty { len } else { room };
                        Ok(Value { ty: Type::Text(longest.min(room)), ..text })
                    }
                    Type::Text(len) if *len > room => {
                        let message = format!(
                            "Type mismatch for ${name}: trying to assign value of type 'string[{}]' when variable was \
                             declared with type 'string[{}]'",
                            len + 1,
                            room + 1
                        );
                        self.error(span, message)
                    }
                    _ => Ok(value),
                };
            }
            _ => return Ok(value),
        };
        // What else is wrong with it is said where all assignments are looked at.
        if !value.ty.is_int() {
            return Ok(value);
        }
        let constant = match value.kind {
            ValueKind::Int(constant) => Some(constant),
            _ => None,
        };
        if let (None, Type::Int { bytes, .. }, Some(ty @ Type::Int { bytes: room, .. })) =
            (constant, &value.ty, number_type(&to))
        {
            if *bytes > room {
                self.warn_of_cast(&value.ty, &ty, span);
            }
        }
        let converted = self.convert(value, &to, span)?;
        match (constant, &converted) {
            (Some(before), Value { kind: ValueKind::Int(after), ty: Type::Int { bytes, .. } })
                if before != *after && *bytes < 8 =>
            {
                let message = format!("{} does not fit into ${name}, which is of type '{}'", before as i64, to.name());
                self.error(span, message)
            }
            _ => Ok(converted),
        }
    }
}

/// What a variable of this type begins with; `None`: all its bytes are zeros anyway.
pub(super) fn zero(ty: &Type) -> Option<Value> {
    Some(match ty {
        Type::Text(_) => text(Vec::new()),
        Type::Tuple(types) => {
            let items = types.iter().map(zero).collect::<Option<_>>()?;
            Value { ty: ty.clone(), kind: ValueKind::Tuple(items) }
        }
        ty if ty.is_wide() || *ty == Type::None => return None,
        ty => Value { ty: ty.clone(), kind: ValueKind::Int(0) },
    })
}
