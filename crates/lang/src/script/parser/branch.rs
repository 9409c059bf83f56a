//! `#if` and what belongs to it: which lines count.

use super::super::ast::Expr;
use super::super::c;
use super::super::diagnostic::{Diagnostic, Span};
use super::{Parsed, Parser};

impl<'s> Parser<'s> {
    pub(super) fn is_defined(&self, name: &str) -> bool {
        self.defines.contains_key(name) || self.types.typedefs.contains_key(name)
    }

    /// Whether what stands behind `#if` or `#elif` holds. `span`: the line.
    pub(super) fn holds(&self, condition: &str, span: Span) -> Parsed<bool> {
        let number = |name: &str| match self.defines.get(name) {
            Some(kind) => Some(self.constant(&Expr { kind: kind.clone(), span }, &[]).ok()),
            None => self.is_defined(name).then_some(None),
        };
        c::holds(condition, &number).ok_or_else(|| {
            let error = Diagnostic::error(span, "a constant number is expected behind #if");
            error.hint("numbers, names of #define, defined(NAME) and the operators of C")
        })
    }

    /// Goes on behind the `#else`, `#elif` or `#endif` that ends what begins here: where the next
    /// lines begin that count.
    pub(super) fn skip_branch(&mut self, from: usize) -> Parsed<()> {
        let mut at = from;
        loop {
            let (word, line, end) = self.branch_end(at);
            at = end;
            self.lexer.seek(end);
            match word {
                "elif" => {
                    let span = Span { start: end - line.len(), end: end - line.len() + line.trim_end().len() };
                    let condition = line.split_once("elif").map_or("", |(_, condition)| condition);
                    if self.holds(condition, span)? {
                        return Ok(());
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// Goes on behind the `#endif`: another branch has counted.
    pub(super) fn skip_branches(&mut self, from: usize) {
        let mut at = from;
        loop {
            let (word, _, end) = self.branch_end(at);
            at = end;
            if !matches!(word, "elif" | "else") {
                self.lexer.seek(end);
                return;
            }
        }
    }

    /// The directive that ends a branch, its line, and where that ends; at the end of the source
    /// there is none.
    fn branch_end(&self, from: usize) -> (&'static str, &'s str, usize) {
        let (source, mut at, mut depth) = (self.source, from, 0_u32);
        for line in source[from..].split_inclusive('\n') {
            at += line.len();
            let Some(directive) = line.trim_start().strip_prefix('#') else { continue };
            let word = directive.split(|c: char| !c.is_ascii_alphabetic()).find(|word| !word.is_empty());
            match word {
                Some("if" | "ifdef" | "ifndef") => depth += 1,
                Some("endif") if depth == 0 => return ("endif", line, at),
                Some("else") if depth == 0 => return ("else", line, at),
                Some("elif") if depth == 0 => return ("elif", line, at),
                Some("endif") => depth -= 1,
                _ => {}
            }
        }
        ("", "", at)
    }
}
