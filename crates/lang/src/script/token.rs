//! The words of the language.

use super::diagnostic::Span;

/// A word with its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Where it is.
    pub span: Span,
}

/// Kinds of words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenKind {
    /// A name.
    Ident(String),
    /// A number.
    Int(u64),
    /// What was between quotes, unescaped.
    Str(Vec<u8>),
    /// `$name`
    Var(String),
    /// `$1`
    Param(u32),
    /// `$#`
    ParamCount,
    /// `@name`, without the sign.
    Map(String),
    /// An operator or bracket.
    Punct(&'static str),
    /// The end of the source.
    End,
}

impl TokenKind {
    /// For messages, as bpftrace's parser names it.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            TokenKind::Ident(name) => format!("identifier '{name}'"),
            TokenKind::Int(_) => "integer".to_owned(),
            TokenKind::Str(_) => "string".to_owned(),
            TokenKind::Var(_) => "variable".to_owned(),
            TokenKind::Param(_) => "positional parameter".to_owned(),
            TokenKind::ParamCount => "$#".to_owned(),
            TokenKind::Map(_) => "map".to_owned(),
            TokenKind::Punct(text) => (*text).to_owned(),
            TokenKind::End => "end of file".to_owned(),
        }
    }
}

/// Operators and brackets, longer ones before their beginnings.
pub(super) const PUNCTS: &[&str] = &[
    "<<=", ">>=", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "--", "->", "+=", "-=", "*=", "/=", "%=", "&=",
    "|=", "^=", "..", "{", "}", "(", ")", "[", "]", ";", ",", ":", "?", "=", "<", ">", "+", "-", "*", "/", "%", "&",
    "|", "^", "~", "!", ".",
];
