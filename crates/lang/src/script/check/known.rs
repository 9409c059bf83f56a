//! What is known before anything runs, and texts that are put together.

use super::super::ast::{BinaryOp, Expr, ExprKind, Sized};
use super::super::checked::{Value, ValueKind};
use super::super::config::{TOLD, Told};
use super::super::ctype::CType;
use super::super::diagnostic::Span;
use super::super::types::{COMM, Parts, Type};
use super::expr::{int, text, truth};
use super::{Checker, Checking};

impl Checker<'_> {
    /// `comptime x`
    pub(super) fn comptime(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("comptime", args, 1, 1, span)?;
        let value = self.expr(&args[0])?;
        match value.kind {
            _ if is_known(&value.kind) => Ok(value),
            _ if value.ty == Type::None && !self.last => self.unknown(),
            _ => self.error_with(
                args[0].span,
                "comptime needs a value that is known before the script runs",
                "literals, $1, getopt(), sizeof(), typeinfo(), is_str() and what is calculated from them are known",
            ),
        }
    }

    /// `config.name`
    pub(super) fn told(&mut self, name: &str, span: Span) -> Checking<Value> {
        match self.out.config.told(name) {
            Some(told) => Ok(told_value(told)),
            None => self.unknown_setting(name, span),
        }
    }

    /// `config`: a record of all settings.
    pub(super) fn all_told(&self) -> Value {
        let told = TOLD.iter().filter_map(|name| Some(((*name).to_owned(), told_value(self.out.config.told(name)?))));
        let (names, items): (Vec<String>, Vec<Value>) = told.unzip();
        let types = items.iter().map(|item| item.ty.clone()).collect();
        Value { ty: Type::Tuple(Parts::named(names, types)), kind: ValueKind::Tuple(items) }
    }

    /// `is_err(p)`: whether a number or pointer is what functions give instead of a pointer: -1 to
    /// -4095.
    pub(super) fn is_err(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("is_err", args, 1, 1, span)?;
        let value = self.int_argument("is_err", &args[0])?;
        let least = Value { ty: Type::UINT, kind: ValueKind::Int(4095_u64.wrapping_neg()) };
        self.binary(BinaryOp::Ge, Value { ty: Type::UINT, ..value }, least, span)
    }

    /// `typeinfo(of)`: a record about a type.
    pub(super) fn type_info(&mut self, of: &Sized, span: Span) -> Checking<Value> {
        let (base, full) = match of {
            Sized::Expr(expr) if self.place(expr)?.is_none() => {
                let ty = match self.key_type(expr)? {
                    Some(ty) => ty,
                    None => self.measured(|checker| checker.expr(expr))?.ty,
                };
                if ty == Type::None {
                    return self.no_value(expr.span);
                }
                (if matches!(ty, Type::Int { .. }) { "int" } else { ty.kind() }.to_owned(), ty.name())
            }
            of => {
                let ty = self.sized(of, span)?;
                let base = match ty {
                    CType::Char | CType::Int { .. } => "int",
                    CType::Pointer(_) | CType::Reference(_) => "pointer",
                    CType::Array(..) => "array",
                    CType::Record(_) => "record",
                    CType::Enum(_) => "enum",
                    CType::Float { .. } => "float",
                    CType::Void | CType::Function | CType::Net(_) => "none",
                };
                (base.to_owned(), ty.name())
            }
        };
        let items = vec![int(0), text(base.into_bytes()), text(full.into_bytes())];
        let names = ["btf_id", "base_type", "full_type"].map(str::to_owned).to_vec();
        let types = items.iter().map(|item| item.ty.clone()).collect();
        Ok(Value { ty: Type::Tuple(Parts::named(names, types)), kind: ValueKind::Tuple(items) })
    }

    /// `str_concat(a, b)`
    pub(super) fn concat(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("str_concat", args, 2, 2, span)?;
        let a = self.text_argument("str_concat", &args[0])?;
        let b = self.text_argument("str_concat", &args[1])?;
        if let (ValueKind::Text(first), ValueKind::Text(second)) = (&a.kind, &b.kind) {
            return Ok(text([&first[..], second].concat()));
        }
        let (Type::Text(first), Type::Text(second)) = (&a.ty, &b.ty) else { return self.unknown() };
        let ty = Type::Text(first + second);
        Ok(Value { ty, kind: ValueKind::Concat(Box::new(a), Box::new(b)) })
    }

    /// `comm(pid)`: the name of any process in the controller; in a program that is probed, of one
    /// that is; else "".
    pub(super) fn comm_of(&mut self, pid: &Expr) -> Checking<Value> {
        let pid = self.int_argument("comm", pid)?;
        Ok(Value { ty: Type::Text(COMM), kind: ValueKind::CommOf(Box::new(pid)) })
    }

    /// Bytes of a literal, and of a tuple or record as C would lay it out; `None`: the expression
    /// is none of these.
    pub(super) fn own_size(&mut self, of: &Expr) -> Checking<Option<u64>> {
        Ok(match &of.kind {
            ExprKind::Int(_) | ExprKind::Tuple(_) | ExprKind::Record(..) | ExprKind::Var(_) | ExprKind::Map(..) => {
                match self.expr(of)?.ty {
                    Type::Tuple(types) => Some(laid_out(&types).0),
                    Type::Int { bytes, .. } => Some(bytes.into()),
                    _ => None,
                }
            }
            _ => None,
        })
    }
}

fn told_value(told: Told) -> Value {
    match told {
        Told::Number(n) => int(n),
        Told::Bool(is_so) => truth(ValueKind::Int(is_so.into())),
        Told::Text(value) => text(value.into_bytes()),
    }
}

/// The machine that this runs on, as bpftrace calls it.
pub(super) fn machine() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        name => name,
    }
}

/// Whether it is a number, a text, or a tuple of them, that is known before anything runs.
pub(super) fn is_known(kind: &ValueKind) -> bool {
    match kind {
        ValueKind::Int(_) | ValueKind::Text(_) => true,
        ValueKind::Tuple(items) => items.iter().all(|item| is_known(&item.kind)),
        _ => false,
    }
}

/// Whether two values are the same; `None`: one of them is not known before anything runs.
pub(super) fn same(a: &ValueKind, b: &ValueKind) -> Option<bool> {
    match (a, b) {
        (ValueKind::Int(a), ValueKind::Int(b)) => Some(a == b),
        (ValueKind::Text(a), ValueKind::Text(b)) => Some(a == b),
        (ValueKind::Tuple(a), ValueKind::Tuple(b)) => {
            let all: Option<Vec<bool>> = a.iter().zip(b).map(|(a, b)| same(&a.kind, &b.kind)).collect();
            Some(a.len() == b.len() && all?.into_iter().all(|same| same))
        }
        _ => None,
    }
}

/// Size and alignment of a tuple of these.
fn laid_out(types: &[Type]) -> (u64, u64) {
    let (mut end, mut widest) = (0_u64, 1);
    for ty in types {
        let (size, align) = match ty {
            Type::Tuple(types) => laid_out(types),
            Type::Int { bytes, .. } => ((*bytes).into(), (*bytes).into()),
            Type::Enum(of) => (of.bytes.into(), of.bytes.into()),
            // With its NUL.
            Type::Text(len) => (*len as u64 + 1, 1),
            Type::Bytes(len) => (*len as u64, 1),
            Type::List(list) => ((list.size * list.len) as u64, 1),
            Type::Data { size, .. } => (*size as u64, 1),
            _ => (8, 8),
        };
        end = end.next_multiple_of(align) + size;
        widest = widest.max(align);
    }
    (end.next_multiple_of(widest), widest)
}
