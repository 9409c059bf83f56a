//! Headers of the system: what they declare of data. Functions are left out, and what is not
//! understood, too: types of vectors, for instance.

use super::super::token::TokenKind;
use super::{Parsed, Parser};

impl Parser<'_> {
    /// Reads a header that was made flat, to its end.
    pub(super) fn header(&mut self) -> Parsed<()> {
        self.ahead.clear();
        loop {
            self.rewind();
            match self.directive() {
                Ok(false) => {}
                Ok(true) => continue,
                // The text of a #define has an escape that the language does not know: the constant
                // is left out.
                Err(_) => {
                    let at = self.lexer.at();
                    let line = self.source[at..].lines().next().unwrap_or_default();
                    self.ahead.clear();
                    self.lexer.seek(at + line.len());
                    continue;
                }
            }
            let start = self.lexer.at();
            match self.peek() {
                Ok(TokenKind::End) => return Ok(()),
                Ok(TokenKind::Punct(";")) => {
                    self.next()?;
                    continue;
                }
                _ => {}
            }
            let depth = self.depth;
            if self.external().is_err() {
                self.depth = depth;
                self.ahead.clear();
                self.lexer.seek(start);
                self.skip_external();
            }
        }
    }

    /// A declaration.
    fn external(&mut self) -> Parsed<()> {
        self.attribute()?;
        self.qualifiers()?;
        if matches!(self.peek()?, TokenKind::Ident(word) if word == "typedef") {
            return self.definition();
        }
        self.specifier()?;
        // The type was defined; what has it is nothing that can be named.
        self.skip_external();
        Ok(())
    }

    /// Goes on behind the `;` or the body that ends a declaration.
    fn skip_external(&mut self) {
        let (mut depth, mut behind_parameters) = (0_u32, false);
        loop {
            let Ok(token) = self.next() else {
                // Nothing that begins a word.
                let at = self.lexer.at();
                let next = self.source[at..].chars().next().map_or(1, char::len_utf8);
                self.ahead.clear();
                self.lexer.seek((at + next).min(self.source.len()));
                continue;
            };
            match token.kind {
                TokenKind::End => return,
                TokenKind::Punct(";") if depth == 0 => return,
                TokenKind::Punct("{") if depth == 0 && behind_parameters => {
                    self.skip_body();
                    return;
                }
                TokenKind::Punct("(" | "{" | "[") => depth += 1,
                TokenKind::Punct(")" | "}" | "]") => depth = depth.saturating_sub(1),
                _ => {}
            }
            behind_parameters = depth == 0 && token.kind == TokenKind::Punct(")");
        }
    }

    /// Goes on behind the brace that ends what has just begun.
    fn skip_body(&mut self) {
        let mut depth = 1;
        while depth > 0 {
            match self.next().map(|token| token.kind) {
                Ok(TokenKind::Punct("{")) => depth += 1,
                Ok(TokenKind::Punct("}")) => depth -= 1,
                Ok(TokenKind::End) | Err(_) => return,
                _ => {}
            }
        }
    }
}
