//! A place in a line of text.

use super::AsmProblem;
use crate::insn::{Reg, Width};

/// Where in the line, and what is wrong there.
pub type Failure = (usize, AsmProblem);

/// The rest of a line, without its comment.
#[derive(Clone)]
pub struct Cursor<'a> {
    line: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(line: &'a str) -> Cursor<'a> {
        let end = line.find("//").into_iter().chain(line.find(';')).min().unwrap_or(line.len());
        let mut cursor = Cursor { line: &line[..end], at: 0 };
        cursor.skip();
        cursor
    }

    fn rest(&self) -> &'a str {
        &self.line[self.at..]
    }

    fn skip(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn advance(&mut self, by: usize) {
        self.at += by;
        self.skip();
    }

    pub fn at_end(&self) -> bool {
        self.rest().is_empty()
    }

    /// Offset in the line.
    pub fn position(&self) -> usize {
        self.at
    }

    pub fn expected<T>(&self, what: &'static str) -> Result<T, Failure> {
        Err((self.at, AsmProblem::Expected(what)))
    }

    /// Whether this sign is next.
    pub fn peek(&self, sign: &str) -> bool {
        self.rest().starts_with(sign)
    }

    /// Goes over this sign, if it is next.
    pub fn eat(&mut self, sign: &str) -> bool {
        let found = self.peek(sign);
        if found {
            self.advance(sign.len());
        }
        found
    }

    /// Goes over this sign.
    pub fn need(&mut self, sign: &'static str) -> Result<(), Failure> {
        if self.eat(sign) { Ok(()) } else { self.expected(sign) }
    }

    /// The first of these that is next, with what it stands for. Longer signs must come before
    /// their beginnings.
    pub fn one_of<T: Copy>(&mut self, signs: &[(&str, T)]) -> Option<T> {
        signs.iter().find(|(sign, _)| self.eat(sign)).map(|&(_, value)| value)
    }

    fn peek_word(&self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.').unwrap_or(rest.len());
        &rest[..end]
    }

    /// A name or number; empty if something else is next.
    pub fn word(&mut self) -> &'a str {
        let word = self.peek_word();
        self.advance(word.len());
        word
    }

    /// Goes over this word, if it is next.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == word;
        if found {
            self.advance(word.len());
        }
        found
    }

    /// Goes over a label and its colon, if they are next.
    pub fn label(&mut self) -> Option<(usize, &'a str)> {
        let (at, name) = (self.at, self.peek_word());
        let colon = self.line[at + name.len()..].trim_start().starts_with(':');
        (!name.is_empty() && colon).then(|| {
            self.word();
            self.eat(":");
            (at, name)
        })
    }

    /// A register, if one is next.
    pub fn try_reg(&mut self) -> Option<(Width, Reg)> {
        let word = self.peek_word();
        let width = match word.as_bytes().first() {
            Some(b'r') => Width::W64,
            Some(b'w') => Width::W32,
            _ => return None,
        };
        let number = word[1..].parse().ok().filter(|_| !word[1..].starts_with('0') || word.len() == 2)?;
        let reg = Reg::new(number)?;
        self.advance(word.len());
        Some((width, reg))
    }

    pub fn reg(&mut self) -> Result<(Width, Reg), Failure> {
        self.try_reg().map_or_else(|| self.expected("a register, r0 to r10 or w0 to w10"), Ok)
    }

    /// A register of this width.
    pub fn reg_of(&mut self, width: Width) -> Result<Reg, Failure> {
        let at = self.at;
        match self.reg()? {
            (found, reg) if found == width => Ok(reg),
            _ => Err((at, AsmProblem::Widths)),
        }
    }

    /// A number within a range: decimal or hexadecimal, with a sign or without.
    pub fn number(&mut self, min: i128, max: i128) -> Result<i128, Failure> {
        let at = self.at;
        let negative = self.eat("-");
        if !negative {
            self.eat("+");
        }
        let word = self.word();
        let parsed = match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => word.parse(),
        };
        let Ok(magnitude) = parsed.map(i128::from) else { return Err((at, AsmProblem::Expected("a number"))) };
        let value = if negative { -magnitude } else { magnitude };
        if value < min || value > max {
            return Err((at, AsmProblem::Range { value, min, max }));
        }
        Ok(value)
    }
}
