//! Files that a script takes in: `import "FILE";` and `#include "FILE"`.
//!
//! Whoever runs a script reads them, and puts their text behind its own: [`imports`] says which,
//! and [`super::Given::parts`] where they are.

use super::super::diagnostic::{Diagnostic, Span};
use super::super::lexer::Lexer;
use super::super::token::TokenKind;
use super::{Parsed, Parser};

/// A file that is taken in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Import {
    /// As it is written.
    pub path: String,
    /// Where the script says so.
    pub span: Span,
    /// `#include <FILE>`: it is only looked for where `-I` says.
    pub system: bool,
}

/// The files that a text takes in, as far as it can be read.
#[must_use]
pub fn imports(source: &str) -> Vec<Import> {
    let mut lexer = Lexer::new(source);
    let mut found = Vec::new();
    while lexer.skip().is_ok() {
        let start = lexer.at();
        if let Some(rest) = source[start..].strip_prefix('#') {
            let line = rest.lines().next().unwrap_or_default();
            let span = Span { start, end: start + 1 + line.len() };
            found.extend(included(line).map(|(path, system)| Import { path: path.to_owned(), span, system }));
            lexer.seek(span.end);
            continue;
        }
        match lexer.token() {
            Ok(word) if word.kind == TokenKind::Ident("import".to_owned()) => {
                let Ok(name) = lexer.token() else { continue };
                let TokenKind::Str(path) = name.kind else { continue };
                let path = String::from_utf8_lossy(&path).into_owned();
                found.push(Import { path, span: word.span.to(name.span), system: false });
            }
            Ok(word) if word.kind != TokenKind::End => {}
            // What the parser has to say about it comes later.
            _ => break,
        }
    }
    found
}

/// The file of `include "FILE"` or `include <FILE>`, and whether it is the latter.
pub(super) fn included(line: &str) -> Option<(&str, bool)> {
    let name = line.trim_start().strip_prefix("include")?.trim();
    let between = |open, close| name.strip_prefix(open)?.strip_suffix(close);
    between('"', '"').map(|path| (path, false)).or_else(|| between('<', '>').map(|path| (path, true)))
}

impl Parser<'_> {
    /// `import "FILE";`, which is read already.
    pub(super) fn import(&mut self) -> Parsed<()> {
        self.next()?;
        let TokenKind::Str(_) = self.peek()? else {
            return Err(self.unexpected(", expecting the name of a file in quotes"));
        };
        self.next()?;
        self.eat(";")?;
        Ok(())
    }

    /// What is wrong with a header that was not found.
    pub(super) fn no_header(span: Span) -> Diagnostic {
        let error = Diagnostic::error(span, "this header is not found");
        error.hint("leave the line out, or say where it is with -I DIR; what is missing can be declared in the script")
    }
}
