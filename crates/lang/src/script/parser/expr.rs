//! Expressions, by the precedence of C.

use super::super::ast::{BinaryOp, Expr, ExprKind, Sized, Step, TypeName, UnaryOp};
use super::super::ctype::CType;
use super::super::diagnostic::{Diagnostic, Span};
use super::super::token::TokenKind;
use super::{Parsed, Parser};

/// What to do about brackets with nothing in them.
const KEYS: &str = "@name[key], or @name alone";

impl Parser<'_> {
    pub(super) fn expr(&mut self) -> Parsed<Expr> {
        self.deeper(|parser| {
            let cond = parser.binary(1)?;
            if !parser.eat("?")? {
                return Ok(cond);
            }
            let then = parser.expr()?;
            parser.expect(":")?;
            let otherwise = parser.expr()?;
            let span = cond.span.to(otherwise.span);
            Ok(Expr { kind: ExprKind::Ternary(Box::new(cond), Box::new(then), Box::new(otherwise)), span })
        })
    }

    fn binary(&mut self, lowest: u8) -> Parsed<Expr> {
        let mut left = self.unary()?;
        loop {
            let TokenKind::Punct(punct) = *self.peek()? else { return Ok(left) };
            let Some((op, _, strength)) = BinaryOp::ALL.into_iter().find(|(_, text, _)| *text == punct) else {
                return Ok(left);
            };
            if strength < lowest || (op == BinaryOp::Div && self.no_slash) {
                return Ok(left);
            }
            self.next()?;
            let right = self.deeper(|parser| parser.binary(strength + 1))?;
            let span = left.span.to(right.span);
            left = Expr { kind: ExprKind::Binary(op, Box::new(left), Box::new(right)), span };
        }
    }

    fn unary(&mut self) -> Parsed<Expr> {
        let start = self.peek_at(0)?.span;
        let TokenKind::Punct(punct) = *self.peek()? else { return self.postfix() };
        let op = match punct {
            "!" => UnaryOp::Not,
            "~" => UnaryOp::Invert,
            "-" => UnaryOp::Negate,
            "*" => UnaryOp::Deref,
            "&" => UnaryOp::Address,
            "++" | "--" => {
                self.next()?;
                let of = self.deeper(Parser::unary)?;
                let span = start.to(of.span);
                let step = Step { up: punct == "++", post: false };
                return Ok(Expr { kind: ExprKind::Step(step, Box::new(of)), span });
            }
            "(" if self.is_cast()? => return self.cast(start),
            _ => return self.postfix(),
        };
        self.next()?;
        let of = self.deeper(Parser::unary)?;
        let span = start.to(of.span);
        Ok(Expr { kind: ExprKind::Unary(op, Box::new(of)), span })
    }

    fn is_cast(&mut self) -> Parsed<bool> {
        if self.is_type(1)? || self.is_type_of(1)? {
            return Ok(true);
        }
        let TokenKind::Ident(_) = &self.peek_at(1)?.kind else { return Ok(false) };
        // `(name *)x`
        Ok(self.peek_at(2)?.kind == TokenKind::Punct("*") && {
            let mut at = 3;
            while self.peek_at(at)?.kind == TokenKind::Punct("*") {
                at += 1;
            }
            self.peek_at(at)?.kind == TokenKind::Punct(")")
        })
    }

    /// Whether the word at a place begins the name of a type.
    fn is_type(&mut self, at: usize) -> Parsed<bool> {
        let TokenKind::Ident(name) = &self.peek_at(at)?.kind else { return Ok(false) };
        let name = name.clone();
        Ok(matches!(&*name, "struct" | "union" | "enum" | "unsigned" | "signed")
            || CType::named(&[&name], self.types.word).is_some()
            || self.types.typedefs.contains_key(&name))
    }

    /// Whether `typeof(` is at a place.
    fn is_type_of(&mut self, at: usize) -> Parsed<bool> {
        let is_word = matches!(&self.peek_at(at)?.kind, TokenKind::Ident(word) if word == "typeof");
        Ok(is_word && self.peek_at(at + 1)?.kind == TokenKind::Punct("("))
    }

    /// A type by its name, or `typeof(x)`.
    pub(super) fn type_of(&mut self) -> Parsed<Sized> {
        if !self.is_type_of(0)? {
            return Ok(Sized::Type(self.type_name()?));
        }
        self.next()?;
        self.expect("(")?;
        let slash = std::mem::take(&mut self.no_slash);
        let of = self.sized();
        self.no_slash = slash;
        self.expect(")")?;
        of
    }

    /// A type, or what has one.
    fn sized(&mut self) -> Parsed<Sized> {
        self.deeper(|parser| match parser.is_type(0)? || parser.is_type_of(0)? {
            true => parser.type_of(),
            false => Ok(Sized::Expr(parser.expr()?)),
        })
    }

    /// `sizeof(x)` and `offsetof(x, a.b)`, behind the parenthesis.
    fn measure(&mut self, is_offset: bool) -> Parsed<ExprKind> {
        let of = self.sized()?;
        if !is_offset {
            self.expect(")")?;
            return Ok(ExprKind::SizeOf(Box::new(of)));
        }
        self.expect(",")?;
        let mut names = Vec::new();
        loop {
            let TokenKind::Ident(name) = self.peek()?.clone() else {
                return Err(self.unexpected(", expecting the name of a member"));
            };
            self.next()?;
            names.push(name);
            if !self.eat(".")? {
                break;
            }
        }
        self.expect(")")?;
        Ok(ExprKind::OffsetOf(Box::new(of), names))
    }

    fn cast(&mut self, start: Span) -> Parsed<Expr> {
        self.next()?;
        let ty = self.type_of()?;
        self.expect(")")?;
        let of = self.deeper(Parser::unary)?;
        let span = start.to(of.span);
        Ok(Expr { kind: ExprKind::Cast(Box::new(ty), Box::new(of)), span })
    }

    fn type_name(&mut self) -> Parsed<TypeName> {
        let mut keyword = "";
        for word in ["struct", "union", "enum"] {
            if keyword.is_empty() && self.eat_word(word)? {
                keyword = word;
            }
        }
        let mut words: Vec<String> = Vec::new();
        while let TokenKind::Ident(word) = self.peek()? {
            words.push(word.clone());
            self.next()?;
        }
        if words.is_empty() {
            return Err(self.unexpected(", expecting a type"));
        }
        let length = if self.eat("[")? {
            let length = match self.peek()? {
                TokenKind::Int(n) => Some(*n),
                _ => return Err(self.unexpected(", expecting integer")),
            };
            self.next()?;
            self.expect("]")?;
            length
        } else {
            None
        };
        let mut stars = 0;
        while self.eat("*")? {
            stars += 1;
        }
        Ok(TypeName { keyword, name: words.join(" "), stars, length })
    }

    fn postfix(&mut self) -> Parsed<Expr> {
        let mut expr = self.primary()?;
        loop {
            let TokenKind::Punct(punct) = *self.peek()? else { return Ok(expr) };
            let start = expr.span;
            let kind = match punct {
                "++" | "--" => {
                    self.next()?;
                    ExprKind::Step(Step { up: punct == "++", post: true }, Box::new(expr))
                }
                "." if matches!(expr.kind, ExprKind::Int(_)) => {
                    self.next()?;
                    self.next()?;
                    let error = Diagnostic::error(start.to(self.last), "floating-point numbers are not supported");
                    return Err(error.hint("calculate with thousandths, or so: 1500 / 1000"));
                }
                "." | "->" => {
                    self.next()?;
                    match self.next()?.kind {
                        TokenKind::Ident(name) => ExprKind::Member(Box::new(expr), name),
                        TokenKind::Int(index) => ExprKind::Member(Box::new(expr), index.to_string()),
                        _ => return Err(self.unexpected(", expecting the name of a member")),
                    }
                }
                "[" => {
                    self.next()?;
                    let index = self.expr()?;
                    self.expect("]")?;
                    ExprKind::Index(Box::new(expr), Box::new(index))
                }
                _ => return Ok(expr),
            };
            expr = Expr { kind, span: start.to(self.last) };
        }
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let start = self.peek_at(0)?.span;
        let kind = match self.peek()?.clone() {
            TokenKind::Int(value) => {
                self.next()?;
                ExprKind::Int(value)
            }
            TokenKind::Str(text) => {
                self.next()?;
                ExprKind::Str(text)
            }
            TokenKind::Var(name) => {
                self.next()?;
                ExprKind::Var(name)
            }
            TokenKind::Param(number) => {
                self.next()?;
                ExprKind::Param(number)
            }
            TokenKind::ParamCount => {
                self.next()?;
                ExprKind::ParamCount
            }
            TokenKind::Map(name) => {
                self.next()?;
                let keys = if self.eat("[")? { self.list("]")? } else { Vec::new() };
                if keys.is_empty() && self.last.end > start.end {
                    return Err(Diagnostic::error(start.to(self.last), "a map in brackets needs a key").hint(KEYS));
                }
                ExprKind::Map(name, keys)
            }
            TokenKind::Ident(name) => {
                self.next()?;
                match self.defines.get(&name).cloned() {
                    Some(value) => value,
                    None if matches!(&*name, "sizeof" | "offsetof") && self.eat("(")? => {
                        let slash = std::mem::take(&mut self.no_slash);
                        let measure = self.measure(name == "offsetof");
                        self.no_slash = slash;
                        measure?
                    }
                    None if self.eat("(")? => {
                        let slash = std::mem::take(&mut self.no_slash);
                        let args = self.list(")");
                        self.no_slash = slash;
                        match &*name {
                            "getopt" => self.option(&args?, start.to(self.last))?,
                            _ => ExprKind::Call(name, args?),
                        }
                    }
                    None => ExprKind::Ident(name),
                }
            }
            TokenKind::Punct("{") => return self.block_at(start),
            TokenKind::Punct("(") => {
                self.next()?;
                let slash = std::mem::take(&mut self.no_slash);
                let items = self.list(")");
                self.no_slash = slash;
                let mut items = items?;
                match items.len() {
                    0 => return Err(self.unexpected("")),
                    1 => return Ok(items.remove(0)),
                    _ => ExprKind::Tuple(items),
                }
            }
            _ => return Err(self.unexpected("")),
        };
        Ok(Expr { kind, span: start.to(self.last) })
    }

    /// Expressions between commas, and what ends them.
    fn list(&mut self, end: &str) -> Parsed<Vec<Expr>> {
        let mut items = Vec::new();
        if self.eat(end)? {
            return Ok(items);
        }
        loop {
            items.push(self.expr()?);
            if self.eat(end)? {
                return Ok(items);
            }
            if !self.eat(",")? {
                return Err(self.unexpected(&format!(", expecting , or {end}")));
            }
        }
    }
}
