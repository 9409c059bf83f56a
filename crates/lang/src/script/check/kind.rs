//! What is known of a value by its type, and other ways to write it.

use super::super::ast::{Expr, ExprKind};
use super::super::checked::{Builtin, Timer, Value, ValueKind};
use super::super::ctype::CType;
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::expr::{int, truth};
use super::{Checker, Checking};

impl Checker<'_> {
    /// `is_str(x)` and the like: known before anything runs.
    pub(super) fn is_kind(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments(name, args, 1, 1, span)?;
        let value = self.expr(&args[0])?;
        let is = match (name, &value.ty) {
            ("is_literal", _) => match &args[0].kind {
                ExprKind::Int(_) | ExprKind::Str(_) => true,
                ExprKind::Ident(name) => matches!(&**name, "true" | "false"),
                _ => false,
            },
            ("is_str", ty) => matches!(ty, Type::Text(_) | Type::Probe { .. } | Type::User | Type::Meaning(_)),
            ("is_integer", ty) => matches!(ty, Type::Int { .. } | Type::Enum(_)) && !ty.is_bool(),
            ("is_unsigned_integer", ty) => matches!(ty, Type::Int { signed: false, .. }),
            ("is_ptr", ty) => matches!(ty, Type::Pointer(_)),
            (_, ty) => matches!(ty, Type::Data { ty: CType::Array(..), .. }),
        };
        Ok(truth(ValueKind::Int(is.into())))
    }

    /// `is_scalar(@m)`: whether the map has no keys.
    pub(super) fn is_scalar(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("is_scalar", args, 1, 1, span)?;
        let map = self.map_argument("is_scalar", &args[0])?;
        match &self.maps[map].keys {
            Some(keys) => Ok(truth(ValueKind::Int(keys.is_empty().into()))),
            None => self.unknown(),
        }
    }

    /// `strcap(text)`: how long it may be.
    pub(super) fn strcap(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("strcap", args, 1, 1, span)?;
        match self.text_argument("strcap", &args[0])?.ty {
            Type::Text(len) => Ok(int(len as u64)),
            _ => self.unknown(),
        }
    }

    /// `bswap(n)`: as many bytes as its type has, in reverse.
    pub(super) fn bswap(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("bswap", args, 1, 1, span)?;
        let value = self.int_argument("bswap", &args[0])?;
        let bytes = match (&value.ty, &args[0].kind) {
            // A literal has as few as it takes.
            (_, ExprKind::Int(n)) => [1_u8, 2, 4].into_iter().find(|bytes| n >> (8 * bytes) == 0).unwrap_or(8),
            (Type::Int { bytes, .. }, _) => *bytes,
            _ => 8,
        };
        let ty = Type::Int { bytes, signed: false };
        let kind = match value.kind {
            ValueKind::Int(n) => ValueKind::Int(n.swap_bytes() >> (64 - 8 * u32::from(bytes))),
            _ => ValueKind::Swap(Box::new(Value { ty: ty.clone(), kind: ValueKind::Resize(Box::new(value)) })),
        };
        Ok(Value { ty, kind })
    }

    /// `nsecs(monotonic)`, `pid(curr_ns)`: what there is anyway.
    pub(super) fn clock_or_namespace(&mut self, name: &str, arg: &Expr, span: Span) -> Checking<Value> {
        let wanted = match &arg.kind {
            ExprKind::Ident(wanted) => wanted.as_str(),
            _ => "",
        };
        match (name, wanted) {
            ("nsecs", "monotonic") | ("pid" | "tid", "curr_ns") => self.ident(name, span),
            ("nsecs", _) => match Timer::ALL.into_iter().find(|(known, _)| *known == wanted) {
                Some((_, timer)) => Ok(Value { ty: Type::UINT, kind: ValueKind::Builtin(Builtin::Clock(timer)) }),
                None => {
                    let message = format!("Invalid timestamp mode: {wanted}");
                    self.error_with(arg.span, message, "there are monotonic, boot, tai and sw_tai")
                }
            },
            _ => {
                let hint = format!("there is curr_ns: {name} as the program itself sees it");
                self.error_with(arg.span, format!("Invalid PID namespace mode: {wanted}"), hint)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::checked::{Op, ValueKind};
    use super::super::super::parser::parse;
    use super::super::check;

    fn value(expression: &str) -> Option<u64> {
        let script = format!("BEGIN {{ @ = {expression} }}");
        let (checked, _) = check(&parse(&script, &[]).unwrap(), &[]).unwrap();
        match &checked.blocks[0].body[0] {
            Op::SetMap(_, value) => match value.kind {
                ValueKind::Int(n) => Some(n),
                _ => None,
            },
            _ => None,
        }
    }

    #[test]
    fn constants_are_reversed_by_their_types() {
        assert_eq!(value("bswap(0x1122)"), Some(0x2211));
        assert_eq!(value("bswap((uint32)0x11223344)"), Some(0x4433_2211));
        assert_eq!(value("bswap((uint64)1)"), Some(1 << 56));
        assert_eq!(value("bswap((uint8)5)"), Some(5));
        assert_eq!(value("bswap(nsecs)"), None);
    }
}
