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

    /// `strcap(text)`: how many bytes it has room for, its NUL included.
    pub(super) fn strcap(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("strcap", args, 1, 1, span)?;
        match self.text_argument("strcap", &args[0])?.ty {
            Type::Text(len) => Ok(int(len as u64 + 1)),
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
        let (what, hint) = match name {
            "nsecs" => ("timestamp mode", String::from("there are monotonic, boot, tai and sw_tai")),
            _ => ("PID namespace mode", format!("there is curr_ns: {name} as the program itself sees it")),
        };
        let ExprKind::Ident(wanted) = &arg.kind else {
            return self.error_with(arg.span, format!("{name}() expects a {what}"), hint);
        };
        let timer = Timer::ALL.into_iter().find(|(known, _)| known == wanted);
        match (name, &**wanted, timer) {
            ("nsecs", "monotonic", _) | ("pid" | "tid", "curr_ns", _) => self.ident(name, span),
            ("nsecs", _, Some((_, timer))) => {
                Ok(Value { ty: Type::UINT, kind: ValueKind::Builtin(Builtin::Clock(timer)) })
            }
            _ => self.error_with(arg.span, format!("Invalid {what}: {wanted}"), hint),
        }
    }
}
