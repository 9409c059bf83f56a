//! Texts and bytes that are read: `str()`, `buf()`, and `strncmp()`.

use super::super::ast::{BinaryOp, Expr, ExprKind};
use super::super::checked::{Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::{List, Type};
use super::expr::{int, text, truth};
use super::failure::noted;
use super::memory::{Base, Place, array, plus, value};
use super::{Checker, Checking};

impl Checker<'_> {
    pub(super) fn str(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("str", args, 1, 2, span)?;
        let longest = self.longest_text();
        let most = args.get(1).map(|most| self.length("str", most)).transpose()?;
        // A length counts the NUL.
        let (len, most) = match most {
            None => (longest, None),
            Some(Value { kind: ValueKind::Int(n), .. }) if n > longest as u64 => (longest, None),
            Some(Value { kind: ValueKind::Int(n), ty }) => {
                let len = (n as usize).saturating_sub(1);
                (len, Some(Box::new(Value { ty, kind: ValueKind::Int(len as u64 + 1) })))
            }
            Some(most) => (longest, Some(Box::new(most))),
        };
        if let ExprKind::Param(number) = args[0].kind {
            let mut value = self.param_text(number, args[0].span);
            if let ValueKind::Text(bytes) = &mut value.kind {
                bytes.truncate(len);
                return Ok(text(std::mem::take(bytes)));
            }
        }
        if let Some(mut bytes) = self.param_behind(&args[0])? {
            bytes.truncate(len);
            return Ok(text(bytes));
        }
        let mut value = self.expr(&args[0])?;
        if let Type::Pointer(to) = &value.ty {
            // The address of a text of C++, Rust or Go stands for the text.
            let address = Value { ty: Type::UINT, ..value.clone() };
            let place = Place::new(Base::Address(address), (**to).clone());
            value = self.counted_in(&place, args[0].span)?.unwrap_or(value);
        }
        // Bytes of a list are a text, too.
        if let (Type::List(List { size: 1, .. }), ValueKind::ReadBytes(address, length)) = (&value.ty, &value.kind) {
            value = Value { ty: Type::Text(longest), kind: ValueKind::CountedText(address.clone(), length.clone()) };
        }
        if let (ValueKind::CountedText(address, length), Some(most)) = (&value.kind, &most) {
            let length = Box::new(without_nul(length, most));
            return Ok(Value { ty: value.ty.clone(), kind: ValueKind::CountedText(address.clone(), length) });
        }
        match &value.ty {
            ty if ty.is_int() => {
                let address = Box::new(self.noted_text(value, span));
                Ok(Value { ty: Type::Text(len), kind: ValueKind::ReadText(address, most) })
            }
            Type::Text(_) => Ok(value),
            ty => {
                let message =
                    format!("str() expects an integer or a pointer type as first argument ({} provided)", ty.kind());
                self.error(args[0].span, message)
            }
        }
    }

    /// Characters of a text that is read: `max_strlen`, from 1024 on with the NUL, as bpftrace has
    /// it. So `str()` of the default length is a `string[1024]`.
    fn longest_text(&self) -> usize {
        match self.out.config.max_strlen {
            most @ 1024.. => most - 1,
            most => most,
        }
    }

    /// `$1 + 2`, where the parameter is a text: what is behind its first two bytes.
    fn param_behind(&mut self, of: &Expr) -> Checking<Option<Vec<u8>>> {
        let ExprKind::Binary(BinaryOp::Add, param, by) = &of.kind else { return Ok(None) };
        let ExprKind::Param(_) = param.kind else { return Ok(None) };
        match (self.expr(param)?.kind, self.expr(by)?.kind) {
            (ValueKind::Text(bytes), ValueKind::Int(n)) => Ok(Some(bytes.into_iter().skip(n as usize).collect())),
            _ => Ok(None),
        }
    }

    /// How many bytes are wanted.
    fn length(&mut self, name: &str, arg: &Expr) -> Checking<Value> {
        let value = self.int_argument(name, arg)?;
        match value.kind {
            ValueKind::Int(n) if (n as i64) < 0 && !value.ty.is_unsigned() => {
                self.error(arg.span, format!("{name}() cannot use a negative length ({})", n as i64))
            }
            _ => Ok(value),
        }
    }

    pub(super) fn buf(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("buf", args, 1, 2, span)?;
        let given = self.expr(&args[0])?;
        if matches!(given.ty, Type::Text(_)) && array(&given).is_none() {
            return self.buf_of_text(given, args.get(1));
        }
        if let (Type::List(list), ValueKind::ReadBytes(..), None) = (&given.ty, &given.kind, args.get(1)) {
            return Ok(Value { ty: Type::Bytes(list.size * list.len), kind: given.kind });
        }
        let (address, size) = match array(&given) {
            Some((address, size)) => (address, Some(size)),
            None if given.ty.is_int() => (given, None),
            None => {
                let kind = given.ty.kind();
                let message = format!("buf() only supports integer, pointer and array arguments ({kind} provided)");
                return self.error(args[0].span, message);
            }
        };
        let len = match (args.get(1), size) {
            (Some(len), _) => self.length("buf", len)?,
            (None, Some(size)) => int(size as u64),
            (None, None) => {
                let kind = address.ty.kind();
                return self.error(span, format!("buf() expects a length argument for non-array type {kind}"));
            }
        };
        let most = match len.kind {
            ValueKind::Int(0) => {
                return Ok(Value { ty: Type::Bytes(0), kind: ValueKind::BytesOf(Box::new(text(Vec::new()))) });
            }
            ValueKind::Int(n) => (n as usize).min(self.out.config.max_strlen),
            _ => self.out.config.max_strlen,
        };
        let address = noted(address, self.note_read(span));
        Ok(Value { ty: Type::Bytes(most), kind: ValueKind::ReadBytes(Box::new(address), Box::new(len)) })
    }

    /// `buf("ab", 4)`: the first bytes of a text; those behind its end are zeros.
    fn buf_of_text(&mut self, given: Value, len: Option<&Expr>) -> Checking<Value> {
        let Type::Text(room) = given.ty else { return self.unknown() };
        let len = match len {
            None => room,
            Some(len) => match self.length("buf", len)?.kind {
                ValueKind::Int(n) => (n as usize).min(self.out.config.max_strlen),
                _ => return self.error(len.span, "buf() of a string expects an integer literal as its length"),
            },
        };
        Ok(Value { ty: Type::Bytes(len), kind: ValueKind::BytesOf(Box::new(given)) })
    }

    pub(super) fn strncmp(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("strncmp", args, 3, 3, span)?;
        let a = self.text_argument("strncmp", &args[0])?;
        let b = self.text_argument("strncmp", &args[1])?;
        let ValueKind::Int(n @ 0..=0x7fff_ffff) = self.expr(&args[2])?.kind else {
            return self.error(args[2].span, "Builtin strncmp requires a non-negative literal");
        };
        let same = Value { ty: Type::INT, kind: ValueKind::Same(Box::new(a), Box::new(b), Some(n as usize)) };
        // 0 if they are the same.
        Ok(Value { ty: Type::INT, kind: ValueKind::Not(Box::new(same)) })
    }
}

/// The length of a text of which so many bytes are wanted, with the NUL.
fn without_nul(length: &Value, most: &Value) -> Value {
    let either = |cond, then: &Value, otherwise: Value| {
        let cond = Box::new(truth(cond));
        value(Type::UINT, ValueKind::Ternary(cond, Box::new(then.clone()), Box::new(otherwise)))
    };
    let fits = ValueKind::Binary(BinaryOp::Lt, true, Box::new(length.clone()), Box::new(most.clone()));
    let none = ValueKind::Binary(BinaryOp::Eq, true, Box::new(most.clone()), Box::new(int(0)));
    either(fits, length, either(none, &int(0), plus(most.clone(), int(u64::MAX))))
}
