//! Source → pieces: words with the comments between them, in the order in which they stand.

use super::super::diagnostic::{Diagnostic, Span};
use super::super::lexer::Lexer;
use super::super::token::TokenKind;

/// What a piece is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A word of the language.
    Word(TokenKind),
    /// An attach point.
    Point,
    /// The slash that begins a predicate, or that ends one.
    Slash {
        /// It begins one.
        opens: bool,
    },
    /// A line that begins with `#`.
    Line,
    /// `// …`
    LineComment,
    /// `/* … */`
    BlockComment,
}

/// A piece of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece<'s> {
    pub kind: Kind,
    /// As it is written.
    pub text: &'s str,
    /// Ends of lines between the piece before and this one.
    pub lines: usize,
    /// There are blanks before it.
    pub spaced: bool,
    /// It begins a block, a declaration, or anything else outside of braces.
    pub item: bool,
    /// It is in a declaration of C.
    pub c: bool,
}

impl Piece<'_> {
    pub fn is(&self, punct: &str) -> bool {
        matches!(self.kind, Kind::Word(TokenKind::Punct(p)) if p == punct)
    }

    pub fn is_comment(&self) -> bool {
        matches!(self.kind, Kind::LineComment | Kind::BlockComment)
    }
}

/// The pieces of a script.
pub fn pieces(source: &str) -> Result<Vec<Piece<'_>>, Diagnostic> {
    let mut reader = Reader { source, at: 0, pieces: Vec::new(), item: true, c: false };
    if source.starts_with("#!") {
        reader.line();
    }
    while reader.comments()? {
        reader.item = true;
        let start = reader.at;
        reader.item()?;
        if reader.at == start {
            // The parser has more to say about it.
            let span = Span { start, end: source.len() };
            return Err(Diagnostic::error(span, "syntax error: this is no part of a script"));
        }
    }
    Ok(reader.pieces)
}

struct Reader<'s> {
    source: &'s str,
    /// Behind what was read.
    at: usize,
    pieces: Vec<Piece<'s>>,
    /// The next piece begins an item.
    item: bool,
    c: bool,
}

impl<'s> Reader<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn push(&mut self, kind: Kind, start: usize, end: usize) {
        let before = &self.source[self.at..start];
        let piece = Piece {
            kind,
            text: self.source[start..end].trim_end(),
            lines: before.matches('\n').count(),
            spaced: !before.is_empty(),
            item: std::mem::take(&mut self.item),
            c: self.c,
        };
        self.pieces.push(piece);
        self.at = end;
    }

    /// Takes the comments that come next; `false`: nothing is behind them.
    fn comments(&mut self) -> Result<bool, Diagnostic> {
        loop {
            let rest = self.rest();
            let start = self.at + rest.len() - rest.trim_start().len();
            let rest = &self.source[start..];
            let item = self.item;
            if rest.starts_with("//") {
                self.push(Kind::LineComment, start, start + rest.find('\n').unwrap_or(rest.len()));
            } else if let (true, Some(end)) = (rest.starts_with("/*"), rest.find("*/")) {
                self.push(Kind::BlockComment, start, start + end + 2);
            } else {
                // What does not end is said where words are read.
                return Ok(!rest.is_empty());
            }
            self.item = item;
        }
    }

    /// A line to its end. One with `#if` goes on to the end of its `#endif`: what stands between
    /// them need not be a script.
    fn line(&mut self) {
        let start = self.at + self.rest().len() - self.rest().trim_start().len();
        let (mut end, mut depth) = (start, 0usize);
        for line in self.source[start..].split_inclusive('\n') {
            end += line.len();
            let word = line.trim_start().strip_prefix('#').map(str::trim_start).unwrap_or_default();
            depth += usize::from(word.starts_with("if"));
            depth -= usize::from(word.starts_with("endif") && depth > 0);
            if depth == 0 {
                break;
            }
        }
        end = start + self.source[start..end].trim_end().len();
        self.push(Kind::Line, start, end);
    }

    /// The word that comes next, which stays there, and where it ends.
    fn peek(&self) -> Result<(TokenKind, usize, usize), Diagnostic> {
        let mut lexer = Lexer::new(self.source);
        lexer.seek(self.at);
        let token = lexer.token()?;
        Ok((token.kind, token.span.start, token.span.end))
    }

    fn next_is(&self, punct: &'static str) -> Result<bool, Diagnostic> {
        Ok(self.peek()?.0 == TokenKind::Punct(punct))
    }

    fn word(&mut self) -> Result<TokenKind, Diagnostic> {
        self.comments()?;
        let (kind, start, end) = self.peek()?;
        if kind != TokenKind::End {
            self.push(Kind::Word(kind.clone()), start, end);
        }
        Ok(kind)
    }

    /// Words up to the brace that closes the first one; or to a semicolon before any.
    fn braces(&mut self) -> Result<(), Diagnostic> {
        let mut depth = 0;
        loop {
            match self.word()? {
                TokenKind::Punct("{") => depth += 1,
                TokenKind::Punct("}") if depth <= 1 => return Ok(()),
                TokenKind::Punct("}") => depth -= 1,
                TokenKind::Punct(";") if depth == 0 => return Ok(()),
                TokenKind::End => return Ok(()),
                _ => {}
            }
        }
    }

    fn semicolon(&mut self) -> Result<(), Diagnostic> {
        if self.next_is(";")? {
            self.word()?;
        }
        Ok(())
    }

    /// What stands outside of braces.
    fn item(&mut self) -> Result<(), Diagnostic> {
        if self.rest().trim_start().starts_with('#') {
            self.line();
            return Ok(());
        }
        let word = match self.peek()? {
            (TokenKind::Ident(word), ..) => word,
            _ => String::new(),
        };
        match &*word {
            "macro" | "fn" => self.braces(),
            "struct" | "union" | "enum" | "typedef" => {
                self.c = true;
                let result = self.declaration(word == "typedef");
                self.c = false;
                result
            }
            "import" => {
                self.word()?;
                self.word()?;
                self.semicolon()
            }
            "let" => {
                while !matches!(self.word()?, TokenKind::Punct(")") | TokenKind::End) {}
                self.semicolon()
            }
            "config" => self.braces(),
            _ => self.block(),
        }
    }

    /// A declaration of C.
    fn declaration(&mut self, is_typedef: bool) -> Result<(), Diagnostic> {
        self.braces()?;
        let is_closed = |reader: &Self| reader.pieces.last().is_some_and(|piece| piece.is(";"));
        if is_typedef {
            while !is_closed(self) && self.word()? != TokenKind::End {}
            return Ok(());
        }
        // Attributes.
        while !is_closed(self) && matches!(self.peek()?.0, TokenKind::Ident(word) if word.starts_with("__")) {
            self.word()?;
            let mut depth = 0;
            loop {
                match self.word()? {
                    TokenKind::Punct("(") => depth += 1,
                    TokenKind::Punct(")") => depth -= 1,
                    TokenKind::End => break,
                    _ => {}
                }
                if depth <= 0 {
                    break;
                }
            }
        }
        if !is_closed(self) {
            self.semicolon()?;
        }
        Ok(())
    }

    /// Attach points, a predicate, and what is done.
    fn block(&mut self) -> Result<(), Diagnostic> {
        if let (TokenKind::Ident(_), _, end) = self.peek()? {
            if self.source[end..].trim_start().starts_with('=') {
                self.word()?;
                self.word()?;
            }
        }
        loop {
            self.comments()?;
            let mut lexer = Lexer::new(self.source);
            lexer.seek(self.at);
            let span = lexer.point()?;
            if span.start == span.end {
                break;
            }
            self.push(Kind::Point, span.start, span.end);
            self.comments()?;
            if !self.next_is(",")? {
                break;
            }
            self.word()?;
        }
        self.comments()?;
        if self.next_is("/")? {
            self.slash(true)?;
            let mut depth = 0;
            loop {
                self.comments()?;
                match self.peek()?.0 {
                    TokenKind::Punct("(" | "[" | "{") => depth += 1,
                    TokenKind::Punct(")" | "]" | "}") => depth -= 1,
                    TokenKind::Punct("/") if depth == 0 => break self.slash(false)?,
                    TokenKind::End => break,
                    _ => {}
                }
                self.word()?;
            }
        }
        self.braces()
    }

    fn slash(&mut self, opens: bool) -> Result<(), Diagnostic> {
        let (_, start, end) = self.peek()?;
        self.push(Kind::Slash { opens }, start, end);
        Ok(())
    }
}
