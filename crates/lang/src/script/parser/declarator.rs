//! What stands behind a type in a declaration of C: stars, brackets, a name, lengths, parameters.

use super::super::ast::{Sized, TypeName};
use super::super::ctype::{CType, Record};
use super::super::token::TokenKind;
use super::{Parsed, Parser};

/// What is made of the type that stands before.
enum Made {
    Pointer,
    Array(u64),
    Function,
}

/// What says nothing about where data lies.
const QUALIFIERS: [&str; 16] = [
    "const",
    "volatile",
    "restrict",
    "__const",
    "__const__",
    "__volatile",
    "__volatile__",
    "__restrict",
    "__restrict__",
    "__extension__",
    "extern",
    "static",
    "inline",
    "__inline",
    "__inline__",
    "register",
];

impl Parser<'_> {
    /// Words that say nothing about where data lies: `const`, and `_Atomic` that no type follows.
    pub(super) fn qualifiers(&mut self) -> Parsed<()> {
        loop {
            let is_one = match self.peek()? {
                TokenKind::Ident(word) if QUALIFIERS.contains(&&**word) => true,
                TokenKind::Ident(word) if word == "_Atomic" => self.peek_at(1)?.kind != TokenKind::Punct("("),
                _ => false,
            };
            if !is_one {
                return Ok(());
            }
            self.next()?;
        }
    }

    /// A name, which may be missing, and its type: `base` is what stands before.
    pub(super) fn declarator(&mut self, base: CType) -> Parsed<(String, CType)> {
        let (name, made) = self.made()?;
        let ty = made.into_iter().fold(base, |ty, made| match made {
            Made::Pointer => CType::Pointer(Box::new(ty)),
            Made::Array(length) => CType::Array(Box::new(ty), length),
            Made::Function => CType::Function,
        });
        Ok((name, ty))
    }

    /// The name, and what is made of the base, step by step.
    fn made(&mut self) -> Parsed<(String, Vec<Made>)> {
        let mut outer = Vec::new();
        self.qualifiers()?;
        while self.eat("*")? {
            outer.push(Made::Pointer);
            self.attribute()?;
            self.qualifiers()?;
        }
        let (name, inner) = match self.peek()?.clone() {
            TokenKind::Punct("(") => {
                self.next()?;
                if !self.is("*")? && !self.is("(")? {
                    return Err(self.unexpected(", expecting *"));
                }
                let inner = self.deeper(Parser::made)?;
                if inner.0.is_empty() {
                    return Err(self.unexpected(", expecting identifier"));
                }
                self.expect(")")?;
                inner
            }
            TokenKind::Ident(name) => {
                self.next()?;
                (name, Vec::new())
            }
            _ => (String::new(), Vec::new()),
        };
        let mut behind = Vec::new();
        loop {
            if self.eat("[")? {
                behind.push(Made::Array(if self.is("]")? { 0 } else { self.length()? }));
                self.expect("]")?;
            } else if self.is("(")? {
                self.parameters()?;
                behind.push(Made::Function);
            } else {
                break;
            }
        }
        // `a[2][3]` has 2 of what has 3.
        outer.extend(behind.into_iter().rev());
        outer.extend(inner);
        Ok((name, outer))
    }

    /// `(…)`: whatever a function takes.
    fn parameters(&mut self) -> Parsed<()> {
        let mut open = 0;
        loop {
            match self.peek()? {
                TokenKind::Punct("(") => open += 1,
                TokenKind::Punct(")") => open -= 1,
                TokenKind::End => return Err(self.unexpected(", expecting )")),
                _ => {}
            }
            self.next()?;
            if open == 0 {
                return Ok(());
            }
        }
    }

    /// A type by its name, as far as it is known.
    fn named_type(&self, of: &Sized) -> Option<CType> {
        let Sized::Type(TypeName { keyword, name, stars, length, pointers }) = of else { return None };
        let words: Vec<&str> = name.split(' ').collect();
        let mut ty = match *keyword {
            "" => CType::named(&words, self.types.word).or_else(|| self.types.typedefs.get(name).cloned())?,
            "enum" => {
                let full = format!("enum {name}");
                CType::Enum(self.types.enums.iter().find(|known| known.name == full)?.clone())
            }
            keyword => CType::Record(Record { name: format!("{keyword} {name}").into(), place: None }),
        };
        let pointer = |ty| CType::Pointer(Box::new(ty));
        ty = (0..*stars).fold(ty, |ty, _| pointer(ty));
        ty = length.map_or(ty.clone(), |length| CType::Array(Box::new(ty), length));
        Some((0..*pointers).fold(ty, |ty, _| pointer(ty)))
    }

    /// `sizeof(type)`
    pub(super) fn size_of(&self, of: &Sized) -> Option<u64> {
        self.named_type(of)?.size(self.types.word, &mut |record| self.types.layouts.get(&record.key()))
    }

    /// `(type)value`
    pub(super) fn cast_constant(&self, to: &Sized, value: u64) -> Option<u64> {
        let unused = 64 - 8 * u32::try_from(self.size_of(to)?).ok().filter(|bytes| (1..=8).contains(bytes))?;
        match self.named_type(to)? {
            CType::Int { signed: true, .. } | CType::Char => Some(((value << unused) as i64 >> unused) as u64),
            CType::Int { .. } | CType::Pointer(_) => Some(value << unused >> unused),
            _ => None,
        }
    }
}
