//! Macros, and blocks that are expressions.

use super::super::ast::{Expr, ExprKind, Macro, Param, Stmt, StmtKind};
use super::super::check;
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
            let (param, kind) = match token.kind {
                TokenKind::Var(name) => (Param::Var(name), "Variable"),
                TokenKind::Map(name) => (Param::Map(name), "Map"),
                TokenKind::Ident(name) if check::is_builtin(&name) => {
                    let message = format!("builtin '{name}' can't be used as a macro argument");
                    return Err(Diagnostic::error(token.span, message));
                }
                TokenKind::Ident(name) => (Param::Expr(name), "Ident"),
                _ => {
                    return Err(Diagnostic::error(
                        token.span,
                        "syntax error, expecting a parameter: $name, @name or name",
                    ));
                }
            };
            if params.contains(&param) {
                let message = format!("{kind} for macro argument has already been used: {}", param.text());
                return Err(Diagnostic::error(token.span, message));
            }
            params.push(param);
        }
        let (mut body, ended) = self.open_braces()?;
        // An `if` stays a statement: the macro may be called as one.
        let value = match body.pop() {
            Some(Stmt { kind: StmtKind::Expr(value), .. }) if !ended => Some(value),
            last => {
                body.extend(last);
                None
            }
        };
        Ok(Macro { name, params, body, value, span })
    }

    /// `{ …; value }`. The last statement is the value if it has no semicolon.
    fn block_expr(&mut self) -> Parsed<ExprKind> {
        let (body, ended) = self.open_braces()?;
        let (body, value) = if ended { (body, None) } else { self.with_value(body) };
        Ok(ExprKind::Block(body, value.map(Box::new)))
    }

    /// Statements, and the value that the last one is. An `if` with `else` is a value if each of
    /// its blocks has one.
    fn with_value(&self, mut body: Vec<Stmt>) -> (Vec<Stmt>, Option<Expr>) {
        let Some(Stmt { kind, span }) = body.pop() else { return (body, None) };
        let kind = match kind {
            StmtKind::Expr(value) => return (body, Some(value)),
            StmtKind::If { cond, then, otherwise } if self.is_value(&then) && self.is_value(&otherwise) => {
                let [then, otherwise] = [then, otherwise].map(|branch| {
                    let span = branch.last().map_or(span, |stmt| stmt.span);
                    let (body, value) = self.with_value(branch);
                    Box::new(Expr { kind: ExprKind::Block(body, value.map(Box::new)), span })
                });
                let kind = ExprKind::Ternary(Box::new(cond), then, otherwise);
                return (body, Some(Expr { kind, span }));
            }
            kind => kind,
        };
        body.push(Stmt { kind, span });
        (body, None)
    }

    /// Whether the statements of a block end with a value. A call may be one that only does
    /// something: only those of the language are known to have a value.
    fn is_value(&self, body: &[Stmt]) -> bool {
        let Some(stmt) = body.last() else { return false };
        if self.source[stmt.span.end..].trim_start().starts_with(';') {
            return false;
        }
        match &stmt.kind {
            StmtKind::Expr(Expr { kind: ExprKind::Call(name, _), .. }) => check::has_value(name),
            StmtKind::Expr(Expr { kind: ExprKind::Step(..), .. }) => false,
            StmtKind::Expr(_) => true,
            StmtKind::If { then, otherwise, .. } => self.is_value(then) && self.is_value(otherwise),
            _ => false,
        }
    }

    /// An expression in braces.
    pub(super) fn block_at(&mut self, start: super::Span) -> Parsed<Expr> {
        let slash = std::mem::take(&mut self.no_slash);
        let kind = self.block_expr();
        self.no_slash = slash;
        Ok(Expr { kind: kind?, span: start.to(self.last) })
    }
}
