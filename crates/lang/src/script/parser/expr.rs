//! Expressions, by the precedence of C.

use super::super::ast::{BinaryOp, Expr, ExprKind, Sized, Step, Stmt, StmtKind, TypeName, UnaryOp};
use super::super::ctype::CType;
use super::super::diagnostic::{Diagnostic, Span};
use super::super::token::TokenKind;
use super::{Parsed, Parser};

/// What to do about brackets with nothing in them.
const KEYS: &str = "@name[key], or @name alone";

/// What takes a type, or something that has one.
const MEASURES: &[&str] = &["sizeof", "offsetof", "typeof", "typeinfo", "container_of"];

/// `a ?: b`: `a` if it is not zero or empty, else `b`; `a` is evaluated once.
fn either(first: Expr, otherwise: Expr) -> Expr {
    let span = first.span.to(otherwise.span);
    // A name that no script has.
    let name = format!("#either{}", first.span.start);
    let var = || Box::new(Expr { kind: ExprKind::Var(name.clone()), span: first.span });
    let value = Expr { kind: ExprKind::Ternary(var(), var(), Box::new(otherwise)), span };
    let keep = StmtKind::Let { name: name.clone(), ty: None, value: Some(first.clone()) };
    let keep = Stmt { kind: keep, span: first.span };
    Expr { kind: ExprKind::Block(vec![keep], Some(Box::new(value))), span }
}

impl Parser<'_> {
    pub(super) fn expr(&mut self) -> Parsed<Expr> {
        self.deeper(|parser| {
            let cond = parser.binary(1)?;
            if !parser.eat("?")? {
                return Ok(cond);
            }
            if parser.eat(":")? {
                let otherwise = parser.expr()?;
                return Ok(either(cond, otherwise));
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
        let is_string = matches!(&self.peek_at(1)?.kind, TokenKind::Ident(name) if name == "string");
        if is_string && self.peek_at(2)?.kind == TokenKind::Punct("[") {
            return Ok(true);
        }
        let TokenKind::Ident(_) = &self.peek_at(1)?.kind else { return Ok(false) };
        // `(T)x`, where `T` is a parameter of a macro.
        if self.peek_at(2)?.kind == TokenKind::Punct(")") {
            return Ok(match &self.peek_at(3)?.kind {
                TokenKind::Int(_) | TokenKind::Str(_) | TokenKind::Ident(_) | TokenKind::Var(_) => true,
                TokenKind::Map(_) | TokenKind::Param(_) | TokenKind::ParamCount => true,
                punct => *punct == TokenKind::Punct("("),
            });
        }
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
    pub(super) fn is_type(&mut self, at: usize) -> Parsed<bool> {
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
    fn measure(&mut self, name: &str, span: Span) -> Parsed<ExprKind> {
        if name == "container_of" {
            return self.container_of(span);
        }
        let of = self.sized()?;
        if name != "offsetof" {
            self.expect(")")?;
            return Ok(match name {
                "sizeof" => ExprKind::SizeOf(Box::new(of)),
                "typeinfo" => ExprKind::TypeInfo(Box::new(of)),
                _ => ExprKind::TypeOf(Box::new(of)),
            });
        }
        self.expect(",")?;
        let names = self.member_names()?;
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
        let stars = self.stars()?;
        let length = if self.eat("[")? {
            let length = match self.peek()? {
                TokenKind::Int(n) => *n,
                // As many as there are.
                TokenKind::Punct("]") => 0,
                _ => return Err(self.unexpected(", expecting integer")),
            };
            if length > 0 || !self.is("]")? {
                self.next()?;
            }
            self.expect("]")?;
            Some(length)
        } else {
            None
        };
        let pointers = self.stars()?;
        Ok(TypeName { keyword, name: words.join(" "), stars, length, pointers })
    }

    fn stars(&mut self) -> Parsed<u32> {
        let mut stars = 0;
        while self.eat("*")? {
            stars += 1;
        }
        Ok(stars)
    }

    fn postfix(&mut self) -> Parsed<Expr> {
        let first = self.peek_at(0)?.span;
        let mut expr = self.primary()?;
        loop {
            let TokenKind::Punct(punct) = *self.peek()? else { return Ok(expr) };
            // With the parentheses around it.
            let start = first.to(self.last);
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
                    let name = match self.peek()? {
                        TokenKind::Ident(name) => name.clone(),
                        TokenKind::Int(index) => index.to_string(),
                        _ => return Err(self.unexpected(", expecting the name of a member")),
                    };
                    self.next()?;
                    ExprKind::Member(Box::new(Expr { span: start, ..expr }), name)
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
            TokenKind::Ident(name) if name == "if" => return self.deeper(Parser::if_value),
            TokenKind::Ident(name) => {
                self.next()?;
                match self.defines.get(&name).cloned() {
                    Some(value) => value,
                    None if name == "comptime" => self.comptime()?,
                    None if MEASURES.contains(&&*name) && self.eat("(")? => {
                        let slash = std::mem::take(&mut self.no_slash);
                        let measure = self.measure(&name, start);
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
                let items = if self.is_field()? { self.record_items() } else { self.tuple_items() };
                self.no_slash = slash;
                match items? {
                    ExprKind::Tuple(mut items) if items.len() == 1 && !self.has_comma() => return Ok(items.remove(0)),
                    items => items,
                }
            }
            _ => return Err(self.unexpected("")),
        };
        Ok(Expr { kind, span: start.to(self.last) })
    }

    /// Whether `name =` follows.
    fn is_field(&mut self) -> Parsed<bool> {
        let is_name = matches!(self.peek()?, TokenKind::Ident(_));
        Ok(is_name && self.peek_at(1)?.kind == TokenKind::Punct("="))
    }

    /// `a, b)`, where a comma may stand before the parenthesis.
    fn tuple_items(&mut self) -> Parsed<ExprKind> {
        let mut items = Vec::new();
        while !self.eat(")")? {
            items.push(self.expr()?);
            if !self.is(")")? && !self.eat(",")? {
                return Err(self.unexpected(", expecting , or )"));
            }
        }
        Ok(ExprKind::Tuple(items))
    }

    /// Whether a comma stands before the parenthesis that was taken last.
    fn has_comma(&self) -> bool {
        self.source[..self.last.start].trim_end().ends_with(',')
    }

    /// `a=1, b=2)`
    fn record_items(&mut self) -> Parsed<ExprKind> {
        let (mut names, mut items) = (Vec::new(), Vec::new());
        while !self.eat(")")? {
            let TokenKind::Ident(name) = self.peek()?.clone() else {
                return Err(self.unexpected(", expecting the name of a field"));
            };
            self.next()?;
            names.push(name);
            self.expect("=")?;
            items.push(self.expr()?);
            match (self.eat(",")?, self.is(")")?) {
                (false, false) => return Err(self.unexpected(", expecting , or )")),
                (true, true) => return Err(self.unexpected(", expecting the name of a field")),
                _ => {}
            }
        }
        Ok(ExprKind::Record(names, items))
    }

    /// `if cond { a } else { b }`, whose value is that of one of the blocks.
    fn if_value(&mut self) -> Parsed<Expr> {
        let start = self.next()?.span;
        let cond = self.expr()?;
        let then_at = self.peek_at(0)?.span;
        let then = self.block_at(then_at)?;
        if !self.eat_word("else")? {
            return Err(self.unexpected(", expecting else").hint("if that is a value has both: if x { 1 } else { 2 }"));
        }
        let otherwise_at = self.peek_at(0)?.span;
        let otherwise = match self.peek()? {
            TokenKind::Ident(word) if word == "if" => self.deeper(Parser::if_value)?,
            _ => self.block_at(otherwise_at)?,
        };
        let span = start.to(self.last);
        Ok(Expr { kind: ExprKind::Ternary(Box::new(cond), Box::new(then), Box::new(otherwise)), span })
    }

    /// `comptime x`
    fn comptime(&mut self) -> Parsed<ExprKind> {
        let of = self.deeper(Parser::unary)?;
        Ok(ExprKind::Call("comptime".to_owned(), vec![of]))
    }

    /// `container_of(pointer, typeof(struct s), a.b)`, behind the parenthesis: the address of the
    /// record around a member.
    fn container_of(&mut self, span: Span) -> Parsed<ExprKind> {
        let member = self.expr()?;
        self.expect(",")?;
        let of = self.sized()?;
        self.expect(",")?;
        let names = self.member_names()?;
        let uint64 = TypeName { keyword: "", name: "uint64".to_owned(), stars: 0, length: None, pointers: 0 };
        let Sized::Type(name) = &of else {
            let error = Diagnostic::error(span, "container_of() expects a type as its second argument");
            return Err(error.hint("container_of($member, typeof(struct NAME), member)"));
        };
        let pointer = Sized::Type(TypeName { stars: name.stars + 1, ..name.clone() });
        let at = |kind| Box::new(Expr { kind, span });
        let address = at(ExprKind::Cast(Box::new(Sized::Type(uint64)), Box::new(member)));
        let offset = at(ExprKind::OffsetOf(Box::new(of), names));
        Ok(ExprKind::Cast(Box::new(pointer), at(ExprKind::Binary(BinaryOp::Sub, address, offset))))
    }

    /// `a.b)`
    fn member_names(&mut self) -> Parsed<Vec<String>> {
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
        Ok(names)
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
