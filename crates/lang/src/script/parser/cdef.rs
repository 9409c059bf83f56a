//! `struct`, `union`, `enum` and `typedef`: the part of C that describes data.

use std::sync::Arc;

use super::super::ast::{Expr, ExprKind, UnaryOp};
use super::super::check::fold;
use super::super::ctype::{CType, Enum, Field, Layout, Record};
use super::super::diagnostic::{Diagnostic, Span};
use super::super::token::TokenKind;
use super::{Parsed, Parser};

/// Bytes of one type at most.
const LARGEST: u64 = 1 << 30;

/// Bytes that a type is aligned to at most, as in gcc.
const LARGEST_ALIGN: u64 = 1 << 28;

/// What attributes say of a type, and of where members lie.
#[derive(Clone, Copy)]
pub(super) struct Attributes {
    packed: bool,
    /// Bytes that the type, or the member, is aligned to at least.
    align: Option<u64>,
    /// Bytes of the number that `mode(…)` makes. `Some(None)`: a type that the language does not
    /// have, such as a vector.
    bytes: Option<Option<u8>>,
}

impl Attributes {
    fn and(self, other: Attributes) -> Attributes {
        Attributes {
            packed: self.packed || other.packed,
            align: self.align.max(other.align),
            bytes: other.bytes.or(self.bytes),
        }
    }
}

/// A member as it is declared.
struct Member {
    name: String,
    ty: CType,
    width: Option<u64>,
    of: Attributes,
    span: Span,
}

impl Parser<'_> {
    /// A definition, with its semicolon.
    pub(super) fn definition(&mut self) -> Parsed<()> {
        if self.eat_word("typedef")? {
            let before = self.attribute()?;
            let base = self.specifier()?;
            let before = before.and(self.attribute()?);
            loop {
                let (name, ty) = self.declarator(base.clone())?;
                if name.is_empty() {
                    return Err(self.unexpected(", expecting identifier"));
                }
                let of = before.and(self.attribute()?);
                let ty = self.with_mode(ty, of)?;
                let natural = ty.align(self.types.word, &mut |record| self.types.layouts.get(&record.key()));
                if of.align.is_some() && of.align != natural {
                    let error = Diagnostic::error(self.last, "a typedef cannot align a type otherwise");
                    return Err(error.hint("a struct with such a member may be aligned"));
                }
                self.types.typedefs.insert(name, ty);
                if !self.eat(",")? {
                    break;
                }
            }
            return self.expect(";");
        }
        let base = self.specifier()?;
        // A variable of the type means nothing here. Names that no `;` follows are attach points.
        let names_one = match self.peek()? {
            TokenKind::Punct("*" | "(") => true,
            TokenKind::Ident(_) => matches!(self.peek_at(1)?.kind, TokenKind::Punct(";" | "[")),
            _ => false,
        };
        if names_one {
            self.declarator(base.clone())?;
            while self.eat(",")? {
                self.declarator(base.clone())?;
            }
            return self.expect(";");
        }
        // bpftrace does not ask for one.
        self.eat(";")?;
        Ok(())
    }

    /// What stands before the names of a declaration.
    pub(super) fn specifier(&mut self) -> Parsed<CType> {
        self.qualifiers()?;
        let start = self.peek_at(0)?.span;
        for (word, is_union) in [("struct", false), ("union", true)] {
            if self.eat_word(word)? {
                let ty = self.record(is_union)?;
                self.qualifiers()?;
                return Ok(ty);
            }
        }
        if self.eat_word("enum")? {
            let ty = self.enumeration()?;
            self.qualifiers()?;
            return Ok(ty);
        }
        if self.eat_word("_Atomic")? {
            self.expect("(")?;
            let base = self.deeper(Parser::specifier)?;
            let (_, ty) = self.declarator(base)?;
            self.expect(")")?;
            return Ok(ty);
        }
        let mut words = Vec::new();
        while let TokenKind::Ident(word) = self.peek()?.clone() {
            // Behind a type, a word is the name of what is declared.
            let complete = words.iter().map(String::as_str).chain([&*word]).collect::<Vec<_>>();
            let is_part = CType::named(&complete, self.types.word).is_some()
                || words.is_empty()
                || matches!(&*word, "long" | "short" | "int" | "char" | "unsigned" | "signed" | "double" | "__int128");
            if !is_part {
                break;
            }
            words.push(word);
            self.next()?;
            self.qualifiers()?;
        }
        let span = start.to(self.last);
        let list: Vec<&str> = words.iter().map(String::as_str).collect();
        let known = CType::named(&list, self.types.word).or_else(|| match *list {
            [name] | ["unsigned" | "signed", name @ "__int128"] | [name @ "__int128", "unsigned" | "signed"] => {
                self.types.typedefs.get(name).cloned()
            }
            _ => None,
        });
        match (known, &*list) {
            (Some(ty), _) => Ok(ty),
            (None, []) => Err(self.unexpected(", expecting a type")),
            (None, _) => Err(Diagnostic::error(span, format!("unknown type name '{}'", words.join(" ")))),
        }
    }

    pub(super) fn length(&mut self) -> Parsed<u64> {
        let expr = self.expr()?;
        self.constant(&expr, &[])
    }

    /// A number that is known, also by a name of the enumeration that is being read.
    pub(super) fn constant(&self, expr: &Expr, own: &[(String, u64)]) -> Parsed<u64> {
        let number = match &expr.kind {
            ExprKind::Int(n) => Some(*n),
            ExprKind::Ident(name) => match own.iter().find(|(known, _)| known == name) {
                Some((_, value)) => Some(*value),
                None => self.types.constant(name).map(|(_, value)| value),
            },
            ExprKind::Unary(UnaryOp::Negate, of) => Some(self.constant(of, own)?.wrapping_neg()),
            ExprKind::Unary(UnaryOp::Invert, of) => Some(!self.constant(of, own)?),
            ExprKind::Unary(UnaryOp::Not, of) => Some((self.constant(of, own)? == 0).into()),
            ExprKind::Ternary(cond, then, otherwise) => {
                let chosen = if self.constant(cond, own)? != 0 { then } else { otherwise };
                Some(self.constant(chosen, own)?)
            }
            ExprKind::SizeOf(of) => self.size_of(of),
            ExprKind::Cast(to, of) => self.cast_constant(to, self.constant(of, own)?),
            ExprKind::Binary(op, a, b) => fold(*op, false, self.constant(a, own)?, self.constant(b, own)?),
            _ => None,
        };
        number.ok_or_else(|| Diagnostic::error(expr.span, "a constant number is expected here"))
    }

    /// Behind `struct` or `union`.
    fn record(&mut self, is_union: bool) -> Parsed<CType> {
        let keyword = if is_union { "union" } else { "struct" };
        let before = self.attribute()?;
        let start = self.peek_at(0)?.span;
        let name = match self.peek()?.clone() {
            TokenKind::Ident(name) => {
                self.next()?;
                Some(name)
            }
            _ => None,
        };
        if name.is_none() && !self.is("{")? {
            return Err(self.unexpected(", expecting {"));
        }
        let span = start.to(self.last);
        let named = self.attribute()?;
        let full = match &name {
            Some(name) => format!("{keyword} {name}"),
            None => format!("{keyword} (anonymous {})", self.types.anonymous),
        };
        self.types.anonymous += u32::from(name.is_none());
        let record = Record { name: full.into(), place: None };
        if !self.eat("{")? {
            return Ok(CType::Record(record));
        }
        let members = self.deeper(|parser| parser.members())?;
        let behind = self.attribute()?;
        let mut layout = self.lay_out(&members, is_union, before.packed || named.packed || behind.packed)?;
        layout.align = layout.align.max(before.and(named).and(behind).align.unwrap_or(1));
        layout.size = layout.size.next_multiple_of(layout.align);
        if self.types.layouts.contains_key(&record.key()) {
            return Err(Diagnostic::error(span, format!("redefinition of '{}'", record.name)));
        }
        self.types.layouts.insert(record.key(), layout);
        Ok(CType::Record(record))
    }

    /// A type with the size that `mode(…)` gives it.
    fn with_mode(&self, ty: CType, of: Attributes) -> Parsed<CType> {
        match (of.bytes, ty) {
            (None, ty) => Ok(ty),
            (Some(Some(bytes)), CType::Int { signed, .. }) => Ok(CType::Int { bytes, signed }),
            _ => Err(Diagnostic::error(self.last, "this attribute makes a type that is not supported")),
        }
    }

    /// The number of bytes in `mode(…)`, as gcc names them.
    fn mode(&mut self) -> Parsed<Option<u8>> {
        self.expect("(")?;
        let TokenKind::Ident(name) = self.next()?.kind else { return Ok(None) };
        self.expect(")")?;
        Ok(match name.trim_matches('_') {
            "QI" | "byte" => Some(1),
            "HI" => Some(2),
            "SI" => Some(4),
            "DI" => Some(8),
            "word" | "pointer" => Some(self.types.word),
            _ => None,
        })
    }

    /// Any number of `__attribute__((…))`. Attributes that are not named here change neither the
    /// size of a type nor the places of members.
    pub(super) fn attribute(&mut self) -> Parsed<Attributes> {
        let mut found = Attributes { packed: false, align: None, bytes: None };
        loop {
            if self.eat_word("__packed")? {
                found.packed = true;
                continue;
            }
            if !self.eat_word("__attribute__")? && !self.eat_word("__attribute")? {
                return Ok(found);
            }
            self.expect("(")?;
            self.expect("(")?;
            let mut open = 2;
            while open > 0 {
                let token = self.next()?;
                match token.kind {
                    TokenKind::Punct("(") => open += 1,
                    TokenKind::Punct(")") => open -= 1,
                    TokenKind::Ident(word) if matches!(&*word, "packed" | "__packed__") => found.packed = true,
                    TokenKind::Ident(word) if matches!(&*word, "mode" | "__mode__") => {
                        found.bytes = Some(self.mode()?);
                    }
                    TokenKind::Ident(word) if matches!(word.trim_matches('_'), "vector_size" | "ext_vector_type") => {
                        found.bytes = Some(None);
                    }
                    TokenKind::Ident(word) if matches!(&*word, "aligned" | "__aligned__") => {
                        self.expect("(")?;
                        let TokenKind::Int(align) = *self.peek()? else {
                            return Err(self.unexpected(", expecting a number of bytes"));
                        };
                        self.next()?;
                        if !align.is_power_of_two() || align > LARGEST_ALIGN {
                            let message = format!("a type is aligned to 1, 2, 4 bytes or more, to {LARGEST_ALIGN}");
                            return Err(Diagnostic::error(token.span, message));
                        }
                        found.align = found.align.max(Some(align));
                        self.expect(")")?;
                    }
                    TokenKind::End => return Err(self.unexpected(", expecting )")),
                    _ => {}
                }
            }
        }
    }

    /// Up to the brace that ends them.
    fn members(&mut self) -> Parsed<Vec<Member>> {
        let mut members = Vec::new();
        while !self.eat("}")? {
            let start = self.peek_at(0)?.span;
            let before = self.attribute()?;
            let base = self.specifier()?;
            let before = before.and(self.attribute()?);
            if self.is("}")? || self.is(";")? {
                self.eat(";")?;
                members.push(Member {
                    name: String::new(),
                    ty: base,
                    width: None,
                    of: before,
                    span: start.to(self.last),
                });
                continue;
            }
            loop {
                let (name, ty) = self.declarator(base.clone())?;
                let width = if self.eat(":")? { Some(self.length()?) } else { None };
                let span = start.to(self.last);
                let of = before.and(self.attribute()?);
                let ty = self.with_mode(ty, of)?;
                if name.is_empty() && width.is_none() {
                    return Err(self.unexpected(", expecting identifier"));
                }
                if !name.is_empty() && members.iter().any(|member: &Member| member.name == name) {
                    return Err(Diagnostic::error(span, format!("duplicate member '{name}'")));
                }
                members.push(Member { name, ty, width, of, span });
                if !self.eat(",")? {
                    break;
                }
            }
            // The last one needs none.
            if !self.is("}")? {
                self.expect(";")?;
            }
        }
        Ok(members)
    }

    /// Where members lie, by the ABI.
    fn lay_out(&self, members: &[Member], is_union: bool, packed: bool) -> Parsed<Layout> {
        let mut layout = Layout { align: 1, ..Layout::default() };
        let mut end = 0_u64;
        for member in members {
            let mut of = |record: &Record| self.types.layouts.get(&record.key());
            let word = self.types.word;
            let sizes = (member.ty.size(word, &mut of), member.ty.align(word, &mut of));
            let (Some(size), Some(align)) = sizes else {
                let message = format!("field has incomplete type '{}'", member.ty.name());
                return Err(Diagnostic::error(member.span, message));
            };
            if member.ty == CType::Void || size > LARGEST {
                let message = format!("'{}' cannot be the type of a member", member.ty.name());
                return Err(Diagnostic::error(member.span, message));
            }
            let packed = packed || member.of.packed;
            let align = if packed { 1 } else { align.max(1) }.max(member.of.align.unwrap_or(1));
            let start = if is_union { 0 } else { end };
            let (bit, bits) = match member.width {
                None => (start.next_multiple_of(8 * align), 8 * size),
                Some(0) => (start.next_multiple_of(8 * align), 0),
                Some(width) => {
                    if !matches!(member.ty, CType::Int { .. } | CType::Char | CType::Enum(_)) || width > 8 * size {
                        let message = format!("'{}' cannot have a bit-field of {width} bits", member.ty.name());
                        return Err(Diagnostic::error(member.span, message));
                    }
                    // One that would lie in more units of its type than the type itself begins a
                    // new one.
                    let spans = (start % (8 * align) + width).div_ceil(8 * align) > size / align;
                    (if spans && !packed { start.next_multiple_of(8 * align) } else { start }, width)
                }
            };
            if !member.name.is_empty() || member.width.is_none() {
                layout.align = layout.align.max(align);
                let width = member.width.map(|width| width as u32);
                layout.fields.push(Field { name: member.name.clone(), ty: member.ty.clone(), bit, width });
            }
            end = end.max(bit + bits);
            layout.size = end.div_ceil(8).next_multiple_of(layout.align);
            if layout.size > LARGEST {
                let message = format!("with this member, the type has more than {LARGEST} bytes");
                return Err(Diagnostic::error(member.span, message));
            }
        }
        Ok(layout)
    }

    /// Behind `enum`.
    fn enumeration(&mut self) -> Parsed<CType> {
        let keyword = self.last;
        let name = match self.peek()?.clone() {
            TokenKind::Ident(name) => {
                self.next()?;
                name
            }
            _ => String::new(),
        };
        if !self.eat("{")? {
            let span = keyword.to(self.last);
            return match self.types.enums.iter().find(|known| known.name == format!("enum {name}")) {
                Some(known) => Ok(CType::Enum(Arc::clone(known))),
                None => Err(Diagnostic::error(span, format!("unknown type name 'enum {name}'"))),
            };
        }
        let mut values: Vec<(String, u64)> = Vec::new();
        let mut next = 0_u64;
        while !self.eat("}")? {
            let TokenKind::Ident(constant) = self.peek()?.clone() else {
                return Err(self.unexpected(", expecting identifier"));
            };
            self.next()?;
            if self.eat("=")? {
                let expr = self.expr()?;
                next = self.constant(&expr, &values)?;
            }
            values.push((constant, next));
            next = next.wrapping_add(1);
            if !self.eat(",")? && !self.is("}")? {
                return Err(self.unexpected(", expecting , or }"));
            }
        }
        let signed = values.iter().any(|(_, value)| (*value as i64) < 0);
        let fits = |(_, value): &(String, u64)| match signed {
            true => i32::try_from(*value as i64).is_ok(),
            false => u32::try_from(*value).is_ok(),
        };
        let bytes = if values.iter().all(fits) { 4 } else { 8 };
        let name = format!("enum {name}").trim_end().to_owned();
        let of = Arc::new(Enum { name, bytes, signed, values });
        self.types.enums.push(Arc::clone(&of));
        Ok(CType::Enum(of))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Given;
    use super::*;

    /// The size of a type, and where a member of it is.
    fn laid_out(source: &str, word: u8, member: &str) -> (u64, u64) {
        let given = Given::default();
        let mut parser = Parser::new(source, &given);
        parser.types.word = word;
        parser.definition().unwrap();
        let layout = &parser.types.layouts[&("struct s".into(), None)];
        let field = layout.fields.iter().find(|field| field.name == member).unwrap();
        (layout.size, field.bit / 8)
    }

    /// GCC for i686 and x86-64 gave the numbers.
    #[test]
    fn members_lie_where_the_abi_has_them() {
        for (source, member, short, long) in [
            ("struct s { char c; long long l; double d; };", "l", (20, 4), (24, 8)),
            ("struct s { int a; unsigned long long b : 40; short s; };", "s", (12, 10), (16, 14)),
            (
                "struct s { char c; unsigned long long b : 30; unsigned long long d : 30; int i; };",
                "i",
                (16, 12),
                (16, 12),
            ),
            ("struct s { char c; void *p; long l; long double x; };", "x", (24, 12), (48, 32)),
        ] {
            assert_eq!(laid_out(source, 4, member), short, "{source}");
            assert_eq!(laid_out(source, 8, member), long, "{source}");
        }
    }

    #[test]
    fn attributes_of_a_typedef_are_those_of_the_type() {
        let member = |source: &str, word| {
            let given = Given::default();
            let mut parser = Parser::new(source, &given);
            parser.types.word = word;
            parser.header().unwrap();
            parser.types.layouts.get(&("struct s".into(), None)).map(|layout| layout.size)
        };
        for (typedef, short, long) in [
            ("int t __attribute__((__mode__(__word__)))", Some(4), Some(8)),
            ("unsigned int t __attribute__((mode(QI)))", Some(1), Some(1)),
            ("__attribute__((mode(__DI__))) int t", Some(8), Some(8)),
            ("int t __attribute__((mode(TI)))", None, None),
            ("float t __attribute__((__vector_size__(16)))", None, None),
            ("int t __attribute__((aligned(16)))", None, None),
            ("long long t __attribute__((aligned(8)))", None, Some(8)),
        ] {
            let source = format!("typedef {typedef};\nstruct s {{ t member; }};\n");
            assert_eq!((member(&source, 4), member(&source, 8)), (short, long), "{typedef}");
        }
    }
}
