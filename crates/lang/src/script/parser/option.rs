//! `getopt(name[, default[, description]])`: what the command line says is known, so it is a
//! constant.

use super::super::ast::{Expr, ExprKind, UnaryOp};
use super::super::diagnostic::{Diagnostic, Span};
use super::{Declared, Parsed, Parser};

/// What a default is.
enum Default {
    Flag(bool),
    Number(i64),
    Text(String),
}

impl Parser<'_> {
    /// The value of an option; `span` is that of the call.
    pub(super) fn option(&mut self, args: &[Expr], span: Span) -> Parsed<ExprKind> {
        let usage = || {
            let error = Diagnostic::error(span, "getopt() expects a name in quotes, a default, and a description");
            error.hint("for example getopt(\"min\", 10, \"least latency\"), and -- --min=20 on the command line")
        };
        let literal = |expr: &Expr| match &expr.kind {
            ExprKind::Str(text) => String::from_utf8(text.clone()).ok(),
            _ => None,
        };
        let (name, default, description) = match args {
            [name] => (literal(name), Some(Default::Flag(false)), Some(String::new())),
            [name, default] => (literal(name), constant(default), Some(String::new())),
            [name, default, description] => (literal(name), constant(default), literal(description)),
            _ => return Err(usage()),
        };
        let (Some(name), Some(default), Some(description)) = (name, default, description) else { return Err(usage()) };
        let given = self.given.options.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
        let shown = match &default {
            Default::Flag(flag) => flag.to_string(),
            Default::Number(number) => number.to_string(),
            Default::Text(text) => text.clone(),
        };
        if !self.declared.iter().any(|known| known.name == name) {
            self.declared.push(Declared { name: name.clone(), default: shown, description });
        }
        let wrong = |value: &str, expected: &str| {
            Diagnostic::error(span, format!("Invalid value for option --{name}: '{value}', expected {expected}"))
        };
        Ok(match (default, given) {
            (Default::Flag(default), None) => ExprKind::Ident(default.to_string()),
            (Default::Flag(_), Some(value)) => match value.as_deref() {
                None | Some("true" | "1") => ExprKind::Ident("true".to_owned()),
                Some("false" | "0") => ExprKind::Ident("false".to_owned()),
                Some(value) => return Err(wrong(value, "true or false")),
            },
            (Default::Number(default), None) => number(default, span),
            (Default::Number(_), Some(value)) => {
                let value = value.unwrap_or_default();
                let (sign, digits) = value.strip_prefix('-').map_or((1, &*value), |digits| (-1, digits));
                let parsed = super::super::lexer::number(digits).and_then(|number| i64::try_from(number).ok());
                number(sign * parsed.ok_or_else(|| wrong(&value, "an integer"))?, span)
            }
            (Default::Text(default), None) => ExprKind::Str(default.into_bytes()),
            (Default::Text(_), Some(value)) => ExprKind::Str(value.unwrap_or_default().into_bytes()),
        })
    }
}

fn constant(expr: &Expr) -> Option<Default> {
    match &expr.kind {
        ExprKind::Ident(word) if word == "true" || word == "false" => Some(Default::Flag(word == "true")),
        ExprKind::Int(number) => i64::try_from(*number).ok().map(Default::Number),
        ExprKind::Str(text) => String::from_utf8(text.clone()).ok().map(Default::Text),
        ExprKind::Unary(UnaryOp::Negate, of) => match of.kind {
            ExprKind::Int(number) => i64::try_from(number).ok().map(|number| Default::Number(-number)),
            _ => None,
        },
        _ => None,
    }
}

fn number(value: i64, span: Span) -> ExprKind {
    match value < 0 {
        false => ExprKind::Int(value.unsigned_abs()),
        true => {
            let of = Expr { kind: ExprKind::Int(value.unsigned_abs()), span };
            ExprKind::Unary(UnaryOp::Negate, Box::new(of))
        }
    }
}
