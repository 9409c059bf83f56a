//! `fn name($a : int64) : int64 { … }`

use super::super::ast::Function;
use super::super::diagnostic::Diagnostic;
use super::super::token::TokenKind;
use super::{Parsed, Parser};

impl Parser<'_> {
    pub(super) fn function(&mut self) -> Parsed<Function> {
        self.next()?;
        let token = self.next()?;
        let TokenKind::Ident(name) = token.kind else {
            return Err(Diagnostic::error(token.span, "syntax error, expecting the name of a function"));
        };
        self.expect("(")?;
        let mut params = Vec::new();
        while !self.eat(")")? {
            if !params.is_empty() {
                self.expect(",")?;
            }
            let token = self.next()?;
            let TokenKind::Var(param) = token.kind else {
                return Err(Diagnostic::error(token.span, "syntax error, expecting a parameter: $name : type"));
            };
            self.expect(":")?;
            params.push((param, self.type_of()?, token.span));
        }
        self.expect(":")?;
        let result = self.type_of()?;
        let body = self.braces()?;
        Ok(Function { name, params, result, body, span: token.span })
    }
}
