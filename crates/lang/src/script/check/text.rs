//! Functions of texts.

use super::super::ast::{BinaryOp, Expr, ExprKind};
use super::super::checked::{Action, Op, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::{Meaning, Type};
use super::counted::Counted;
use super::expr::{int, truth};
use super::memory::{array, bytes_at};
use super::{Checker, Checking};

impl Checker<'_> {
    /// `strstr(text, part)`
    pub(super) fn find(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments(name, args, 2, 2, span)?;
        let text = self.text_argument(name, &args[0])?;
        let part = self.text_argument(name, &args[1])?;
        Ok(Value { ty: Type::INT, kind: ValueKind::Find(Box::new(text), Box::new(part)) })
    }

    /// `strcontains(text, part)`
    pub(super) fn contains(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        let found = Box::new(self.find("strcontains", args, span)?);
        Ok(truth(ValueKind::Binary(BinaryOp::Ge, false, found, Box::new(int(0)))))
    }

    /// `strerror(number)`, and what else is printed for numbers of the system.
    pub(super) fn meaning(&mut self, of: Meaning, name: &str, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments(name, args, 1, 1, span)?;
        let number = self.int_argument(name, &args[0])?;
        if of == Meaning::SystemCall && self.types.word() == 4 {
            return self.error(span, format!("{name}() knows the numbers of 64-bit programs alone"));
        }
        Ok(Value { ty: Type::Meaning(of), kind: ValueKind::Shown(Box::new(number)) })
    }

    /// `globmatch(text, pattern)`
    pub(super) fn glob_match(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("globmatch", args, 2, 2, span)?;
        let text = self.text_argument("globmatch", &args[0])?;
        let pattern = self.text_argument("globmatch", &args[1])?;
        Ok(truth(ValueKind::Matches(Box::new(text), Box::new(pattern))))
    }

    /// `memcmp(a, b, count)`, of texts, buffers and what is at addresses.
    pub(super) fn memcmp(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("memcmp", args, 3, 3, span)?;
        let most = self.out.config.max_strlen;
        let len = match self.expr(&args[2])?.kind {
            ValueKind::Int(len) if len <= most as u64 => len as usize,
            ValueKind::Int(len) if (len as i64) < 0 => {
                let message = format!("memcmp() cannot use a negative length ({})", len as i64);
                return self.error(args[2].span, message);
            }
            ValueKind::Int(len) => {
                return self.error(args[2].span, format!("memcmp() compares at most {most} bytes ({len} provided)"));
            }
            _ => return self.error(args[2].span, "memcmp() expects an integer literal here"),
        };
        let mut bytes = |arg: &Expr| {
            let given = self.expr(arg)?;
            let given = array(&given).map_or(given, |(address, _)| address);
            match &given.ty {
                Type::Text(_) | Type::Bytes(_) => Ok(given),
                ty if ty.is_int() => Ok(bytes_at(given, len)),
                ty => {
                    let kind = ty.kind();
                    let message =
                        format!("memcmp() compares strings, buffers and what is at addresses ({kind} provided)");
                    self.error(arg.span, message)
                }
            }
        };
        let (a, b) = (bytes(&args[0])?, bytes(&args[1])?);
        Ok(Value { ty: Type::INT, kind: ValueKind::Order(Box::new(a), Box::new(b), len) })
    }

    /// `len(@map)`, `len(ustack)`, `len(args.list)`
    pub(super) fn len(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("len", args, 1, 1, span)?;
        if let ExprKind::Map(_, keys) = &args[0].kind {
            if keys.is_empty() {
                let map = self.map_argument("len", &args[0])?;
                if self.maps[map].keys.as_ref().is_some_and(Vec::is_empty) {
                    return self.no_keys("len", args[0].span);
                }
                return Ok(Value { ty: Type::INT, kind: ValueKind::MapLength(map) });
            }
        }
        let place = self.place(&args[0])?;
        if let Some(Counted { length, .. }) = place.and_then(|place| self.list(&place)) {
            return Ok(length);
        }
        let value = self.expr(&args[0])?;
        match value.ty {
            ref ty if ty.kind() == "list" => {
                let hint = "take its length before: $n = len(args.x)";
                self.error_with(args[0].span, "the length of a list that was kept is not known", hint)
            }
            Type::Stack(stack) => Ok(Value { ty: Type::INT, kind: ValueKind::StackLength(stack, Box::new(value)) }),
            Type::Text(_) => {
                self.error_with(args[0].span, "len() expects a map, a list or a stack", "strlen() is for strings")
            }
            _ => self
                .error(args[0].span, format!("len() expects a map, a list or a stack ({} provided)", value.ty.kind())),
        }
    }

    /// `join(array)`, `join(array, separator)`
    pub(super) fn join(&mut self, args: &[Expr], span: Span) -> Checking<Op> {
        self.arguments("join", args, 1, 2, span)?;
        let array = self.int_argument("join", &args[0])?;
        let separator = match args.get(1) {
            Some(separator) => self.literal("join", separator)?,
            None => " ".to_owned(),
        };
        Ok(Op::Join(self.action(Action::Join(separator)), array))
    }
}
