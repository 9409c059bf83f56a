//! Numbers and pointers as other types.

use super::super::ast::{Expr, Sized, TypeName};
use super::super::checked::{Value, ValueKind};
use super::super::ctype::CType;
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::expr::truth;
use super::memory::number_type;
use super::{Checker, Checking};

impl Checker<'_> {
    /// `(to)of`
    pub(super) fn cast(&mut self, to: &Sized, of: &Expr, span: Span) -> Checking<Value> {
        if let Sized::Type(TypeName { keyword: "", name, stars: 0, length: Some(length), pointers: 0 }) = to {
            if name == "string" {
                return self.as_string(*length, of, span);
            }
        }
        let to = self.sized(to, span)?;
        let value = match self.place(of)? {
            // An array is the address of its first element.
            Some(place) if matches!((&place.ty, &to), (CType::Array(..), CType::Pointer(_))) => {
                self.address_of(&place, of.span)?
            }
            Some(place) if matches!(place.ty, CType::Reference(_)) => self.plain(&place, of.span)?,
            Some(place) => self.read(&place, of.span)?,
            None => self.expr(of)?,
        };
        self.convert(value, &to, span)
    }

    /// A number as a type of C has it.
    pub(super) fn convert(&mut self, mut value: Value, to: &CType, span: Span) -> Checking<Value> {
        if value.ty == Type::None && !self.last {
            return self.unknown();
        }
        if let CType::Array(of, length) = to {
            return self.as_array(value, of, *length, span);
        }
        match &value.ty {
            // In memory order.
            Type::Data { ty: CType::Array(..), size: size @ (1 | 2 | 4 | 8) } if matches!(number_type(to), Some(Type::Int { bytes, .. }) if usize::from(bytes) == *size) =>
            {
                let ty = Type::Int { bytes: *size as u8, signed: false };
                value = Value { ty, kind: ValueKind::Part(Box::new(value), 0) };
            }
            _ => {}
        }
        if matches!((&value.ty, to), (Type::Text(_), CType::Enum(of)) if of.is_bool()) {
            let some = self.condition(value, span, "(bool)")?;
            return Ok(truth(some.kind));
        }
        if !value.ty.is_int() {
            let message = format!("Cannot cast from '{}' to '{}'", value.ty.name(), to.name());
            return self.error(span, message);
        }
        let ty = match to {
            CType::Enum(of) if of.is_bool() => {
                let is_zero = Value { ty: Type::INT, kind: ValueKind::Not(Box::new(value)) };
                return Ok(Value { ty: Type::Enum(of.clone()), kind: ValueKind::Not(Box::new(is_zero)) });
            }
            CType::Enum(of) if matches!(value.kind, ValueKind::Int(n) if of.name_of(n).is_none()) => {
                let ValueKind::Int(n) = value.kind else { return self.unknown() };
                let name = of.name.trim_start_matches("enum ");
                return self.error(span, format!("Enum: {name} doesn't contain a variant value of {}", n as i64));
            }
            CType::Void => return self.error(span, "Cannot cast to 'void'"),
            to => match number_type(to) {
                Some(ty) => ty,
                None => {
                    return self.error(span, format!("Cannot cast from '{}' to '{}'", value.ty.name(), to.name()));
                }
            },
        };
        let (bytes, is_signed) = match &ty {
            Type::Int { bytes, signed } => (*bytes, *signed),
            Type::Enum(of) => (of.bytes, of.signed),
            // Whatever it was, it is an address now.
            _ => {
                value.ty = Type::UINT;
                return Ok(Value { ty, kind: ValueKind::Shown(Box::new(value)) });
            }
        };
        let resized = Type::Int { bytes, signed: is_signed };
        let kind = match value.kind {
            ValueKind::Int(n) => ValueKind::Int(resize(n, bytes, is_signed)),
            _ => ValueKind::Resize(Box::new(value)),
        };
        Ok(match ty {
            Type::Int { .. } => Value { ty, kind },
            ty => Value { ty, kind: ValueKind::Shown(Box::new(Value { ty: resized, kind })) },
        })
    }
}

impl Checker<'_> {
    /// A number or text as an array of numbers, in memory order; with length 0 it has the size of
    /// what it is made of.
    fn as_array(&mut self, value: Value, of: &CType, length: u64, span: Span) -> Checking<Value> {
        let element = self.size(of, span)?.max(1);
        let (has, name) = (value.ty.name(), |length| CType::Array(Box::new(of.clone()), length).name());
        let made = |length: u64, kind| {
            let size = (length * element) as usize;
            Value { ty: Type::Data { ty: CType::Array(Box::new(of.clone()), length), size }, kind }
        };
        let bytes = match (&value.ty, &value.kind) {
            (Type::Int { bytes, .. }, _) => u64::from(*bytes),
            (Type::Enum(of), _) => of.bytes.into(),
            (Type::Data { ty: CType::Array(..), size }, _) => *size as u64,
            // With its NUL.
            (Type::Text(_), ValueKind::Text(text)) => text.len() as u64 + 1,
            _ => return self.error(span, format!("Cannot cast from '{has}' to '{}'", name(length))),
        };
        let length = if length == 0 { bytes / element } else { length };
        let size = length.saturating_mul(element);
        let is_number = value.ty.is_int();
        let fits = if is_number { (bytes..=8).contains(&size) || bytes == 8 && size <= 8 } else { bytes <= size };
        if number_type(of).is_none() || !fits || size > 1024 {
            return self.error(span, format!("Cannot cast from '{has}' to '{}': sizes differ", name(length)));
        }
        Ok(match value.kind {
            ValueKind::Text(mut text) => {
                text.resize(size as usize, 0);
                made(length, super::net::constant_array(&text, false).kind)
            }
            _ if is_number => made(length, ValueKind::Words(vec![value])),
            _ if size == bytes => made(length, ValueKind::Part(Box::new(value), 0)),
            _ => return self.error(span, format!("Cannot cast from '{has}' to '{}': sizes differ", name(length))),
        })
    }

    /// `(string[length])of`
    fn as_string(&mut self, length: u64, of: &Expr, span: Span) -> Checking<Value> {
        let value = self.text_argument("(string)", of)?;
        let room = length.saturating_sub(1).min(self.out.config.max_strlen as u64) as usize;
        match &value.kind {
            ValueKind::Text(text) if length > 0 => match text.len() <= room {
                true => Ok(Value { ty: Type::Text(room), ..value }),
                false => {
                    let message = format!("Cannot cast from 'string[{}]' to 'string[{length}]'", text.len() + 1);
                    self.error(span, message)
                }
            },
            _ => Ok(value),
        }
    }
}

/// The lower bytes of a number, extended.
fn resize(value: u64, bytes: u8, signed: bool) -> u64 {
    let unused = 64 - 8 * u32::from(bytes);
    if signed { ((value << unused) as i64 >> unused) as u64 } else { value << unused >> unused }
}
