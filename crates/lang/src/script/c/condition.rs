//! What stands behind `#if`: a constant expression of C.

use super::words::{Kind, Word, character, integer};

/// The value of words without macros; names that are left are 0. `None`: they are no expression.
pub fn value(words: &[Word]) -> Option<i64> {
    let mut reader = Reader { words, at: 0, depth: 0 };
    let value = reader.choice()?;
    (reader.at == words.len()).then_some(value)
}

/// Nested brackets and operators at most.
const DEPTH: u32 = 200;

struct Reader<'a> {
    words: &'a [Word],
    at: usize,
    depth: u32,
}

/// Operators, and how strongly they bind.
const OPERATORS: [(&str, u8); 18] = [
    ("||", 1),
    ("&&", 2),
    ("|", 3),
    ("^", 4),
    ("&", 5),
    ("==", 6),
    ("!=", 6),
    ("<", 7),
    ("<=", 7),
    (">", 7),
    (">=", 7),
    ("<<", 8),
    (">>", 8),
    ("+", 9),
    ("-", 9),
    ("*", 10),
    ("/", 10),
    ("%", 10),
];

impl Reader<'_> {
    fn eat(&mut self, sign: &str) -> bool {
        let is = self.words.get(self.at).is_some_and(|word| word.is(sign));
        self.at += usize::from(is);
        is
    }

    fn choice(&mut self) -> Option<i64> {
        self.depth += 1;
        if self.depth > DEPTH {
            return None;
        }
        let condition = self.binary(1)?;
        let value = if self.eat("?") {
            let then = self.choice()?;
            let otherwise = if self.eat(":") { self.choice()? } else { return None };
            if condition != 0 { then } else { otherwise }
        } else {
            condition
        };
        self.depth -= 1;
        Some(value)
    }

    fn binary(&mut self, lowest: u8) -> Option<i64> {
        let mut left = self.unary()?;
        loop {
            let sign = self.words.get(self.at).filter(|word| word.kind == Kind::Sign);
            let found = sign.and_then(|sign| OPERATORS.iter().find(|(text, _)| *text == sign.text));
            let Some((operator, strength)) = found.filter(|(_, strength)| *strength >= lowest) else {
                return Some(left);
            };
            self.at += 1;
            let right = self.binary(strength + 1)?;
            left = match *operator {
                "||" => (left != 0 || right != 0).into(),
                "&&" => (left != 0 && right != 0).into(),
                "|" => left | right,
                "^" => left ^ right,
                "&" => left & right,
                "==" => (left == right).into(),
                "!=" => (left != right).into(),
                "<" => (left < right).into(),
                "<=" => (left <= right).into(),
                ">" => (left > right).into(),
                ">=" => (left >= right).into(),
                "<<" => left.wrapping_shl(right as u32),
                ">>" => left.wrapping_shr(right as u32),
                "+" => left.wrapping_add(right),
                "-" => left.wrapping_sub(right),
                "*" => left.wrapping_mul(right),
                "/" => left.checked_div(right)?,
                _ => left.checked_rem(right)?,
            };
        }
    }

    fn unary(&mut self) -> Option<i64> {
        self.depth += 1;
        if self.depth > DEPTH {
            return None;
        }
        let word = self.words.get(self.at)?;
        self.at += 1;
        let value = match (word.kind, &*word.text) {
            (Kind::Number, text) => integer(text)? as i64,
            (Kind::Char, text) => character(text) as i64,
            (Kind::Name, _) => 0,
            (_, "!") => (self.unary()? == 0).into(),
            (_, "~") => !self.unary()?,
            (_, "-") => self.unary()?.wrapping_neg(),
            (_, "+") => self.unary()?,
            (_, "(") => {
                let value = self.choice()?;
                if !self.eat(")") {
                    return None;
                }
                value
            }
            _ => return None,
        };
        self.depth -= 1;
        Some(value)
    }
}
