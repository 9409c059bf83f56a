//! Numbers and pointers as other types.

use super::super::ast::{Expr, Sized};
use super::super::checked::{Value, ValueKind};
use super::super::ctype::CType;
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::memory::number_type;
use super::{Checker, Checking};

impl Checker<'_> {
    /// `(to)of`
    pub(super) fn cast(&mut self, to: &Sized, of: &Expr, span: Span) -> Checking<Value> {
        let to = self.sized(to, span)?;
        let value = match self.place(of)? {
            // An array is the address of its first element.
            Some(place) if matches!((&place.ty, &to), (CType::Array(..), CType::Pointer(_))) => {
                self.address_of(&place, of.span)?
            }
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
        if !value.ty.is_int() {
            let message = format!("Cannot cast from '{}' to '{}'", value.ty.name(), to.name());
            return self.error(span, message);
        }
        let ty = match to {
            CType::Enum(of) if of.is_bool() => {
                let is_zero = Value { ty: Type::INT, kind: ValueKind::Not(Box::new(value)) };
                return Ok(Value { ty: Type::Enum(of.clone()), kind: ValueKind::Not(Box::new(is_zero)) });
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

/// The lower bytes of a number, extended.
fn resize(value: u64, bytes: u8, signed: bool) -> u64 {
    let unused = 64 - 8 * u32::from(bytes);
    if signed { ((value << unused) as i64 >> unused) as u64 } else { value << unused >> unused }
}
