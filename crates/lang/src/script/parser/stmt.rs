//! Statements.

use super::super::ast::{BinaryOp, Expr, ExprKind, Stmt, StmtKind};
use super::super::diagnostic::Diagnostic;
use super::super::token::TokenKind;
use super::{Parsed, Parser, advice};

/// What a loop looks like.
const LOOPS: &str = "for ($i : 0..10) { … } counts, for ($kv : @map) { … } walks over a map, while (…) { … } repeats";

impl Parser<'_> {
    /// `{ … }`
    pub(super) fn braces(&mut self) -> Parsed<Vec<Stmt>> {
        Ok(self.open_braces()?.0)
    }

    /// The same; and whether a semicolon ends the last statement.
    pub(super) fn open_braces(&mut self) -> Parsed<(Vec<Stmt>, bool)> {
        self.expect("{")?;
        self.deeper(|parser| {
            let mut body = Vec::new();
            let mut ended = false;
            while !parser.eat("}")? {
                ended = parser.eat(";")?;
                if ended {
                    continue;
                }
                if *parser.peek()? == TokenKind::End {
                    return Err(parser.unexpected(", expecting }"));
                }
                let stmt = parser.stmt()?;
                let braced = matches!(
                    stmt.kind,
                    StmtKind::If { .. }
                        | StmtKind::ForMap { .. }
                        | StmtKind::ForRange { .. }
                        | StmtKind::While { .. }
                        | StmtKind::Unroll { .. }
                        | StmtKind::Expr(Expr { kind: ExprKind::Block(..), .. })
                );
                body.push(stmt);
                if !braced && !parser.is("}")? {
                    ended = parser.eat(";")?;
                    if !ended {
                        let at_end = *parser.peek()? == TokenKind::End;
                        let mut error = parser.unexpected(if at_end { ", expecting }" } else { ", expecting ; or }" });
                        if let Some(StmtKind::Expr(statement)) = body.last().map(|stmt| &stmt.kind) {
                            error.hint = advice::behind(statement).or(error.hint);
                        }
                        return Err(error);
                    }
                }
            }
            Ok((body, ended))
        })
    }

    pub(super) fn stmt(&mut self) -> Parsed<Stmt> {
        let start = self.peek_at(0)?.span;
        let word = match self.peek()? {
            TokenKind::Ident(word) => word.clone(),
            _ => String::new(),
        };
        let kind = match &*word {
            "if" => self.condition()?,
            "for" => self.for_loop()?,
            "while" => {
                self.next()?;
                let cond = self.expr()?;
                StmtKind::While { cond, body: self.braces()? }
            }
            "unroll" => {
                let start = self.next()?.span;
                // What is wrong with the number is said of the whole, as in bpftrace.
                let count = self.parenthesized()?;
                let count = Expr { span: start.to(self.last), ..count };
                StmtKind::Unroll { count, body: self.braces()? }
            }
            "let" => self.declaration()?,
            "return" => {
                self.next()?;
                let value = if self.is(";")? || self.is("}")? { None } else { Some(self.expr()?) };
                StmtKind::Return(value)
            }
            "break" => {
                self.next()?;
                StmtKind::Break
            }
            "continue" => {
                self.next()?;
                StmtKind::Continue
            }
            _ => self.assignment()?,
        };
        Ok(Stmt { kind, span: start.to(self.last) })
    }

    fn assignment(&mut self) -> Parsed<StmtKind> {
        let target = self.expr()?;
        let TokenKind::Punct(punct) = *self.peek()? else { return Ok(StmtKind::Expr(target)) };
        let op = match punct.strip_suffix('=') {
            Some("") => None,
            Some(op) if op != "!" && op != "<" && op != ">" && op != "=" => {
                BinaryOp::ALL.iter().find(|(_, text, _)| *text == op).map(|(op, ..)| *op)
            }
            _ => return Ok(StmtKind::Expr(target)),
        };
        // What is discarded on purpose.
        if target.kind == ExprKind::Ident("_".to_owned()) && op.is_none() {
            self.next()?;
            return Ok(StmtKind::Discard(self.expr()?));
        }
        let is_own = matches!(&target.kind, ExprKind::Member(of, _) if of.kind == ExprKind::Ident("self".to_owned()));
        if !is_own && !matches!(target.kind, ExprKind::Var(_) | ExprKind::Map(..)) {
            let hint = advice::target(&target).map(str::to_owned);
            return Err(Diagnostic { hint, ..self.unexpected("") });
        }
        self.next()?;
        Ok(StmtKind::Assign { target, op, value: self.expr()? })
    }

    pub(super) fn parenthesized(&mut self) -> Parsed<Expr> {
        self.expect("(")?;
        let expr = self.expr()?;
        self.expect(")")?;
        Ok(expr)
    }

    fn condition(&mut self) -> Parsed<StmtKind> {
        self.deeper(|parser| {
            parser.next()?;
            let cond = parser.expr()?;
            let then = parser.braces()?;
            let mut otherwise = Vec::new();
            if parser.eat_word("else")? {
                let start = parser.peek_at(0)?.span;
                if matches!(parser.peek()?, TokenKind::Ident(word) if word == "if") {
                    let kind = parser.condition()?;
                    otherwise.push(Stmt { kind, span: start.to(parser.last) });
                } else {
                    otherwise = parser.braces()?;
                }
            }
            Ok(StmtKind::If { cond, then, otherwise })
        })
    }

    fn for_loop(&mut self) -> Parsed<StmtKind> {
        self.next()?;
        let has_parenthesis = self.eat("(")?;
        let token = self.next()?;
        let TokenKind::Var(name) = token.kind else {
            let message = format!("syntax error, unexpected {}, expecting variable", token.kind.describe());
            return Err(Diagnostic::error(token.span, message).hint(LOOPS));
        };
        if !self.is(":")? {
            return Err(self.unexpected(", expecting :").hint(LOOPS));
        }
        self.next()?;
        let first = self.expr()?;
        let to = if self.eat("..")? { Some(self.expr()?) } else { None };
        if has_parenthesis {
            self.expect(")")?;
        }
        let body = self.braces()?;
        Ok(match to {
            Some(to) => StmtKind::ForRange { name, from: first, to, body },
            None => StmtKind::ForMap { name, map: first, body },
        })
    }

    fn declaration(&mut self) -> Parsed<StmtKind> {
        self.next()?;
        let token = self.next()?;
        let TokenKind::Var(name) = token.kind else {
            let message = format!("syntax error, unexpected {}, expecting variable", token.kind.describe());
            let error = Diagnostic::error(token.span, message);
            return Err(match token.kind {
                TokenKind::Map(_) => error.hint("maps are declared outside of blocks, before them"),
                _ => error,
            });
        };
        let ty = if self.eat(":")? { Some(self.type_of()?) } else { None };
        let value = if self.eat("=")? { Some(self.expr()?) } else { None };
        Ok(StmtKind::Let { name, ty, value })
    }
}
