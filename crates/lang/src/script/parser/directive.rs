//! What begins with `#`: `#define NAME VALUE`, `#define NAME TYPE`, `#include "FILE"` and what
//! chooses lines: `#if` and the like.

use super::super::ast::{Expr, ExprKind, UnaryOp};
use super::super::diagnostic::{Diagnostic, Span};
use super::super::token::TokenKind;
use super::{Parsed, Parser};

impl Parser<'_> {
    /// Takes a line that begins with `#`; `false`: the next one does not.
    pub(super) fn directive(&mut self) -> Parsed<bool> {
        self.lexer.skip()?;
        let start = self.lexer.at();
        let rest = &self.source[start..];
        let Some(line) = rest.strip_prefix('#').map(|rest| rest.lines().next().unwrap_or_default()) else {
            return Ok(false);
        };
        let end = start + 1 + line.len();
        let span = Span { start, end };
        match line.split_ascii_whitespace().next() {
            Some("define") => {
                let at = end - line.trim_start().len() + "define".len();
                if self.line(at, end, Parser::define_type).is_err() {
                    let (name, value) = self.line(at, end, Parser::define)?;
                    self.defines.insert(name, value);
                }
            }
            Some("include") => match super::import::included(line) {
                Some((path, _)) if self.given.included.iter().any(|known| known == path) => {}
                _ if self.given.only_read => {}
                Some((path, true)) if super::header::constants(path).is_some() => {
                    for (name, number) in super::header::constants(path).unwrap_or_default() {
                        self.defines.entry((*name).to_owned()).or_insert(ExprKind::Int(*number));
                    }
                }
                _ => return Err(Self::no_header(span)),
            },
            Some(word @ ("ifdef" | "ifndef")) => {
                let name = line.trim_start().strip_prefix(word).unwrap_or_default();
                let is_defined = self.is_defined(name.trim());
                if is_defined == (word == "ifdef") {
                    self.lexer.seek(end)
                } else {
                    self.skip_branch(end)?
                }
                return Ok(true);
            }
            Some("if") => {
                let holds = self.holds(line.trim_start().strip_prefix("if").unwrap_or_default(), span)?;
                if holds {
                    self.lexer.seek(end)
                } else {
                    self.skip_branch(end)?
                }
                return Ok(true);
            }
            Some("else" | "elif") => {
                self.skip_branches(end);
                return Ok(true);
            }
            Some("undef") => {
                let name = line.trim_start().strip_prefix("undef").unwrap_or_default();
                let name = name.split_ascii_whitespace().next().unwrap_or_default();
                self.defines.remove(name);
            }
            Some("endif" | "pragma") => {}
            _ => {
                let error = Diagnostic::error(span, "this line is not understood");
                return Err(
                    error.hint("there are #define NAME VALUE, #include, #if, #ifdef, #ifndef, #elif, #else and #endif")
                );
            }
        }
        self.lexer.seek(end);
        Ok(true)
    }

    /// Parses what is between two places of a line, to its end.
    fn line<T>(&mut self, from: usize, end: usize, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        let (source, lexer) = (self.source, self.lexer.clone());
        self.source = &source[..end];
        self.lexer = super::Lexer::new(self.source);
        self.lexer.seek(from);
        let parsed = parse(self).and_then(|parsed| match self.peek()? {
            TokenKind::End => Ok(parsed),
            _ => Err(self.unexpected(", expecting the end of the line")),
        });
        self.ahead.clear();
        (self.source, self.lexer) = (source, lexer);
        parsed
    }

    /// `NAME TYPE`: another name of the type.
    fn define_type(&mut self) -> Parsed<()> {
        let TokenKind::Ident(name) = self.peek()?.clone() else { return Err(self.unexpected("")) };
        self.next()?;
        self.qualifiers()?;
        if !self.is_type(0)? {
            return Err(self.unexpected(""));
        }
        let base = self.specifier()?;
        let (_, ty) = self.declarator(base)?;
        self.types.typedefs.insert(name, ty);
        Ok(())
    }

    /// `NAME VALUE`
    fn define(&mut self) -> Parsed<(String, ExprKind)> {
        let TokenKind::Ident(name) = self.peek()?.clone() else {
            return Err(self.unexpected(", expecting the name of a constant"));
        };
        let named = self.next()?.span;
        if self.source[named.end..].starts_with('(') {
            let error = Diagnostic::error(named, "a #define with parameters is not understood");
            return Err(error.hint(format!("macro {name}(x) {{ … }} is what stands for an expression")));
        }
        if *self.peek()? == TokenKind::End {
            return Ok((name, ExprKind::Int(1)));
        }
        let value: Expr = self.expr()?;
        let kind = match value.kind {
            ExprKind::Str(text) => ExprKind::Str(text),
            _ => match self.constant(&value, &[]) {
                // The value is negative: it stays an expression with a sign, whose type is signed.
                Ok(number) if matches!(value.kind, ExprKind::Unary(UnaryOp::Negate, _)) => {
                    let of = Expr { kind: ExprKind::Int(number.wrapping_neg()), span: value.span };
                    ExprKind::Unary(UnaryOp::Negate, Box::new(of))
                }
                Ok(number) => ExprKind::Int(number),
                Err(error) => {
                    let error = Diagnostic::error(error.span, "a constant number or a string is expected here");
                    return Err(error.hint(format!("macro {name}() {{ … }} is what stands for an expression")));
                }
            },
        };
        Ok((name, kind))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Given;
    use super::*;

    #[test]
    fn a_name_without_its_definition_is_not_defined() {
        let given = Given::default();
        let mut parser = Parser::new("#define A 1\n#define B 2\n#undef A // why\n", &given);
        while parser.directive().unwrap() {}
        assert!(!parser.is_defined("A") && parser.is_defined("B"));
    }
}
