//! Source → words.

use super::diagnostic::{Diagnostic, Span};
use super::token::{PUNCTS, Token, TokenKind};

/// Reads one word after the other. Attach points are no words of the language: [`Lexer::point`]
/// reads them.
#[derive(Clone, Debug)]
pub struct Lexer<'s> {
    source: &'s str,
    at: usize,
}

/// What duration literals are in nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

impl<'s> Lexer<'s> {
    /// From the beginning; a first line with `#!` is left out.
    #[must_use]
    pub fn new(source: &'s str) -> Lexer<'s> {
        let at = if source.starts_with("#!") { source.find('\n').unwrap_or(source.len()) } else { 0 };
        Lexer { source, at }
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    /// Goes back, or forward, to a place that begins a word.
    pub(super) fn seek(&mut self, at: usize) {
        self.at = at;
    }

    /// The byte that is looked at next.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Skips blanks and comments.
    ///
    /// # Errors
    /// A comment does not end.
    pub fn skip(&mut self) -> Result<(), Diagnostic> {
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            let rest = self.rest();
            if rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("/*") {
                let Some(end) = rest.find("*/") else {
                    let span = Span { start: self.at, end: self.at + 2 };
                    return Err(Diagnostic::error(span, "end of file during comment"));
                };
                self.at += end + 2;
            } else {
                return Ok(());
            }
        }
    }

    /// The next word.
    ///
    /// # Errors
    /// There is none.
    pub fn token(&mut self) -> Result<Token, Diagnostic> {
        self.skip()?;
        let start = self.at;
        let kind = self.kind()?;
        Ok(Token { kind, span: Span { start, end: self.at } })
    }

    fn kind(&mut self) -> Result<TokenKind, Diagnostic> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(TokenKind::End) };
        match first {
            '"' => return self.string(),
            '0'..='9' => return self.number(),
            '$' => return self.dollar(),
            '@' => {
                self.at += 1;
                return Ok(TokenKind::Map(self.word().to_owned()));
            }
            _ => {}
        }
        if is_word_start(first) {
            return Ok(TokenKind::Ident(self.word().to_owned()));
        }
        match PUNCTS.iter().find(|punct| rest.starts_with(**punct)) {
            Some(punct) => {
                self.at += punct.len();
                Ok(TokenKind::Punct(punct))
            }
            None => {
                let span = Span { start: self.at, end: self.at + first.len_utf8() };
                let error = Diagnostic::error(span, format!("invalid character '{first}'"));
                Err(match first {
                    '\'' | '“' | '”' | '„' => error.hint("texts stand in double quotes: \"…\""),
                    c if c.is_alphanumeric() => {
                        error.hint("names consist of the letters A to Z and a to z, digits and _")
                    }
                    _ => error,
                })
            }
        }
    }

    fn word(&mut self) -> &'s str {
        let rest = self.rest();
        let len = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn dollar(&mut self) -> Result<TokenKind, Diagnostic> {
        let start = self.at;
        self.at += 1;
        if self.rest().starts_with('#') {
            self.at += 1;
            return Ok(TokenKind::ParamCount);
        }
        let word = self.word();
        let span = Span { start, end: self.at };
        if word.is_empty() {
            return Err(Diagnostic::error(span, "invalid character '$'"));
        }
        if !word.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(TokenKind::Var(word.to_owned()));
        }
        match word.parse() {
            Ok(0) => Err(Diagnostic::error(span, "param $0 is out of integer range [1, 4294967295]")),
            Ok(number) => Ok(TokenKind::Param(number)),
            Err(_) => {
                let message = format!("param {} is out of integer range [1, 4294967295]", &self.source[start..self.at]);
                Err(Diagnostic::error(span, message))
            }
        }
    }

    fn number(&mut self) -> Result<TokenKind, Diagnostic> {
        let start = self.at;
        let word = self.word();
        let span = Span { start, end: self.at };
        number(word).map(TokenKind::Int).ok_or_else(|| {
            let error = Diagnostic::error(span, format!("invalid integer: {word}"));
            Diagnostic { hint: no_number(word).map(str::to_owned), ..error }
        })
    }

    fn string(&mut self) -> Result<TokenKind, Diagnostic> {
        let start = self.at;
        self.at += 1;
        let mut text = Vec::new();
        loop {
            let mut chars = self.rest().chars();
            let Some(c) = chars.next() else { return Err(self.endless(start)) };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(TokenKind::Str(text)),
                '\\' => text.push(self.escape()?),
                c => text.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
    }

    /// A text that has no end. What is shown of it is its first line.
    fn endless(&self, start: usize) -> Diagnostic {
        let line = self.source[start..].lines().next().unwrap_or_default().trim_end();
        let span = Span { start, end: start + line.len() };
        Diagnostic::error(span, "end of file during string").hint("a text ends with \"")
    }

    /// What is behind a backslash.
    fn escape(&mut self) -> Result<u8, Diagnostic> {
        let start = self.at - 1;
        let rest = self.rest();
        let Some(c) = rest.chars().next() else { return Err(self.endless(start)) };
        self.at += c.len_utf8();
        let byte = match c {
            'n' => b'\n',
            't' => b'\t',
            'r' => b'\r',
            'a' => 7,
            'b' => 8,
            'e' => 27,
            '\\' | '"' => c as u8,
            '0'..='7' => {
                let digits = rest.bytes().take(3).take_while(|b| (b'0'..=b'7').contains(b)).count();
                self.at += digits - 1;
                let span = Span { start, end: self.at };
                u8::from_str_radix(&rest[..digits], 8).map_err(|_| {
                    let message = format!("octal escape sequence out of range '\\{}'", &rest[..digits]);
                    Diagnostic::error(span, message)
                })?
            }
            'x' => {
                let digits = rest[1..].bytes().take(2).take_while(u8::is_ascii_hexdigit).count();
                let text = &rest[1..1 + digits];
                self.at += digits;
                let span = Span { start, end: self.at };
                u8::from_str_radix(text, 16).map_err(|_| {
                    let error = Diagnostic::error(span, "invalid escape character '\\x'");
                    error.hint("one or two hexadecimal digits follow, as in \\x1b")
                })?
            }
            c => {
                let span = Span { start, end: self.at };
                let error = Diagnostic::error(span, format!("invalid escape character '\\{c}'"));
                return Err(error.hint(r#"there are \n \t \r \a \b \e \" \\, \0 to \377 and \x00 to \xff"#));
            }
        };
        Ok(byte)
    }

    /// An attach point: everything up to a blank, a comma or a brace, but for what is in quotes.
    ///
    /// # Errors
    /// Quotes are not closed.
    pub fn point(&mut self) -> Result<Span, Diagnostic> {
        self.skip()?;
        let start = self.at;
        let mut quoted = false;
        for (index, c) in self.rest().char_indices() {
            match c {
                '"' => quoted = !quoted,
                c if quoted && c != '\n' => {}
                c if c.is_whitespace() || matches!(c, ',' | '{' | '}' | ';') => {
                    self.at = start + index;
                    return self.closed(start, quoted);
                }
                _ => {}
            }
        }
        self.at = self.source.len();
        self.closed(start, quoted)
    }

    fn closed(&self, start: usize, quoted: bool) -> Result<Span, Diagnostic> {
        let span = Span { start, end: self.at };
        if quoted { Err(Diagnostic::error(span, "end of line during a quoted name")) } else { Ok(span) }
    }
}

fn is_word_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// What to do about a number that is none.
fn no_number(word: &str) -> Option<&'static str> {
    let is_decimal = word.bytes().all(|b| b.is_ascii_digit());
    if is_decimal && word.starts_with('0') && word.contains(['8', '9']) {
        return Some("a number that begins with 0 is octal");
    }
    if word.starts_with("0b") {
        return Some("numbers are decimal, octal (0777) or hexadecimal (0xff)");
    }
    let too_large = is_decimal
        || word.strip_prefix("0x").is_some_and(|hex| hex.len() > 16 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
        || word.split_once('e').is_some_and(|(a, b)| a.parse::<u64>().is_ok() && b.parse::<u64>().is_ok());
    if too_large {
        return Some("the largest number is 18446744073709551615");
    }
    let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
    UNITS.iter().all(|(name, _)| *name != unit).then_some("units are ns, us, ms, s, m, h and d: 10ms")
}

/// A number as C has it, with `_` between digits, an exponent (`1e6`), or a unit of time behind it
/// (`10ms`).
#[must_use]
pub fn number(word: &str) -> Option<u64> {
    if word.ends_with('_') {
        return None;
    }
    let digits = word.replace('_', "");
    if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (number, unit) = digits.split_at(end);
    let parsed = match number.strip_prefix('0') {
        Some(octal) if unit.is_empty() && !octal.is_empty() => return u64::from_str_radix(octal, 8).ok(),
        _ => number.parse::<u64>().ok()?,
    };
    if let Some(exponent) = unit.strip_prefix('e') {
        return parsed.checked_mul(10_u64.checked_pow(exponent.parse().ok()?)?);
    }
    match &*unit.to_ascii_lowercase() {
        "" | "u" | "l" | "ll" | "ul" | "ull" => Some(parsed),
        _ => parsed.checked_mul(UNITS.iter().find(|(name, _)| *name == unit)?.1),
    }
}
