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
        let (value, wrong) = match given {
            None => (default.expr(span), None),
            Some(text) => match default.with(text.as_deref(), span) {
                Ok(value) => (value, None),
                Err(why) => {
                    let text = text.as_deref().unwrap_or("true");
                    (default.expr(span), Some(format!("program command line option --{name} {why} (value: {text})")))
                }
            },
        };
        match self.declared.iter().find(|known| known.name == name) {
            None => self.declared.push(Declared { name, default: shown, description, wrong }),
            Some(known) if known.default != shown => {
                let message = format!(
                    "Command line option '{name}' needs to have the same default value in all places it is used. \
                     Previous default value: {}",
                    known.default
                );
                return Err(Diagnostic::error(span, message));
            }
            Some(known) if known.description != description => {
                let message = format!(
                    "Command line option '{name}' must have the same description in all places it's used. Hint: You \
                     can wrap it in a macro"
                );
                return Err(Diagnostic::error(span, message));
            }
            Some(_) => {}
        }
        Ok(value)
    }
}

impl Default {
    fn expr(&self, span: Span) -> ExprKind {
        match self {
            Default::Flag(flag) => ExprKind::Ident(flag.to_string()),
            Default::Number(value) => number(*value, span),
            Default::Text(text) => ExprKind::Str(text.clone().into_bytes()),
        }
    }

    /// What the command line says instead. An error is what is wrong with it.
    fn with(&self, text: Option<&str>, span: Span) -> Result<ExprKind, &'static str> {
        let lower = text.map(str::to_ascii_lowercase);
        match (self, text) {
            (Default::Flag(_), _) => match lower.as_deref() {
                None | Some("true" | "1" | "on" | "yes") => Ok(ExprKind::Ident("true".to_owned())),
                Some("false" | "0" | "off" | "no") => Ok(ExprKind::Ident("false".to_owned())),
                Some(_) => Err("expects a boolean (e.g. 'true')"),
            },
            (Default::Number(_), None) => Err("expects an integer"),
            (Default::Text(_), None) => Err("expects a string"),
            (Default::Text(_), Some(text)) => Ok(ExprKind::Str(text.as_bytes().to_vec())),
            (Default::Number(default), Some(text)) => {
                let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
                let parsed = super::super::lexer::number(digits).ok_or_else(|| no_integer(digits))?;
                let is_signed = *default < 0;
                match (is_negative, i64::try_from(parsed)) {
                    // An option whose default is not negative is unsigned.
                    (false, _) if !is_signed => Ok(ExprKind::Int(parsed)),
                    (false, Ok(value)) => Ok(number(value, span)),
                    (true, Ok(value)) if is_signed => Ok(number(-value, span)),
                    _ => Err("value is out of range"),
                }
            }
        }
    }
}

/// Why a text is no integer.
fn no_integer(text: &str) -> &'static str {
    match text.as_bytes().first() {
        Some(digit) if digit.is_ascii_digit() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            "value is out of range"
        }
        Some(digit) if digit.is_ascii_digit() => "invalid trailing bytes",
        _ => "invalid integer",
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
