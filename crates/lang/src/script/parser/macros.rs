//! Macros, and blocks that are expressions.

use super::super::ast::{Expr, ExprKind, Macro, Param, StmtKind};
use super::super::diagnostic::Diagnostic;
use super::super::token::TokenKind;
use super::{Parsed, Parser};

impl Parser<'_> {
    /// `macro name(params) { … }`
    pub(super) fn macro_definition(&mut self) -> Parsed<Macro> {
        self.next()?;
        let token = self.next()?;
        let span = token.span;
        let TokenKind::Ident(name) = token.kind else {
            return Err(Diagnostic::error(token.span, "syntax error, expecting the name of a macro"));
        };
        self.expect("(")?;
        let mut params = Vec::new();
        while !self.eat(")")? {
            if !params.is_empty() {
                self.expect(",")?;
            }
            let token = self.next()?;
            params.push(match token.kind {
                TokenKind::Var(name) => Param::Var(name),
                TokenKind::Map(name) => Param::Map(name),
                TokenKind::Ident(name) => Param::Expr(name),
                _ => {
                    return Err(Diagnostic::error(
                        token.span,
                        "syntax error, expecting a parameter: $name, @name or name",
                    ));
                }
            });
        }
        match self.block_expr()? {
            ExprKind::Block(body, value) => Ok(Macro { name, params, body, value: value.map(|value| *value), span }),
            _ => Err(self.unexpected("")),
        }
    }

    /// `{ …; value }`: the last statement is the value if it is an expression and no semicolon ends
    /// it.
    pub(super) fn block_expr(&mut self) -> Parsed<ExprKind> {
        let (mut body, ended) = self.open_braces()?;
        let value = match body.pop() {
            Some(stmt) => match stmt.kind {
                StmtKind::Expr(value) if !ended => Some(Box::new(value)),
                kind => {
                    body.push(super::Stmt { kind, span: stmt.span });
                    None
                }
            },
            None => None,
        };
        Ok(ExprKind::Block(body, value))
    }

    /// An expression in braces.
    pub(super) fn block_at(&mut self, start: super::Span) -> Parsed<Expr> {
        let slash = std::mem::take(&mut self.no_slash);
        let kind = self.block_expr();
        self.no_slash = slash;
        Ok(Expr { kind: kind?, span: start.to(self.last) })
    }
}
