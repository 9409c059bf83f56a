//! What stands behind `#if`, or for a constant: an expression of C whose value is known.

use super::words::{Kind, Word, character, integer};

/// Bits of the types of C that a number without a suffix, and one with `l`, has at least.
#[derive(Clone, Copy)]
pub struct Widths {
    /// Of `int`.
    pub int: u32,
    /// Of `long`.
    pub long: u32,
}

/// Behind `#if`, all numbers are `intmax_t` or `uintmax_t`.
pub const WIDEST: Widths = Widths { int: 64, long: 64 };

/// A number and its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    /// The number, extended to 64 bits by its sign if it has one.
    bits: u64,
    /// Bits of its type.
    width: u32,
    is_unsigned: bool,
}

impl Value {
    /// Whether it is neither 0 nor false.
    pub fn holds(self) -> bool {
        self.bits != 0
    }

    /// The number as another type has it.
    fn to(self, width: u32, is_unsigned: bool) -> Value {
        let above = 64 - width;
        let raised = self.bits << above;
        let bits = if is_unsigned { raised >> above } else { (raised as i64 >> above) as u64 };
        Value { bits, width, is_unsigned }
    }

    /// The same type with another number.
    fn with(self, bits: u64) -> Value {
        Value { bits, ..self }.to(self.width, self.is_unsigned)
    }

    /// The type that both sides of an operator have.
    fn common(self, other: Value) -> (u32, bool) {
        let width = self.width.max(other.width);
        let is_unsigned = |value: Value| value.width == width && value.is_unsigned;
        (width, is_unsigned(self) || is_unsigned(other))
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_unsigned { self.bits.fmt(f) } else { (self.bits as i64).fmt(f) }
    }
}

/// The value of words without macros; names that are left are 0. `None`: they are no expression.
pub fn value(words: &[Word], widths: Widths) -> Option<Value> {
    let mut reader = Reader { words, at: 0, depth: 0, idle: 0, widths };
    let value = reader.choice()?;
    (reader.at == words.len()).then_some(value)
}

/// Nested brackets and operators at most.
const DEPTH: u32 = 200;

struct Reader<'a> {
    words: &'a [Word],
    at: usize,
    depth: u32,
    /// Operators that this is a side of which C does not evaluate: a division by 0 is no error.
    idle: u32,
    widths: Widths,
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

    fn int(&self, bits: impl Into<u64>) -> Value {
        Value { bits: bits.into(), width: self.widths.int, is_unsigned: false }
    }

    /// Reads what is evaluated only if `counts`.
    fn side<T>(&mut self, counts: bool, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.idle += u32::from(!counts);
        let value = read(self)?;
        self.idle -= u32::from(!counts);
        Some(value)
    }

    fn choice(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > DEPTH {
            return None;
        }
        let condition = self.binary(1)?;
        let value = if self.eat("?") {
            let then = self.side(condition.holds(), Self::choice)?;
            if !self.eat(":") {
                return None;
            }
            let otherwise = self.side(!condition.holds(), Self::choice)?;
            let (width, is_unsigned) = then.common(otherwise);
            if condition.holds() { then } else { otherwise }.to(width, is_unsigned)
        } else {
            condition
        };
        self.depth -= 1;
        Some(value)
    }

    fn binary(&mut self, lowest: u8) -> Option<Value> {
        let mut left = self.unary()?;
        loop {
            let sign = self.words.get(self.at).filter(|word| word.kind == Kind::Sign);
            let found = sign.and_then(|sign| OPERATORS.iter().find(|(text, _)| *text == sign.text));
            let Some((operator, strength)) = found.filter(|(_, strength)| *strength >= lowest) else {
                return Some(left);
            };
            self.at += 1;
            let counts = match *operator {
                "||" => !left.holds(),
                "&&" => left.holds(),
                _ => true,
            };
            let right = self.side(counts, |reader| reader.binary(strength + 1))?;
            left = self.apply(operator, left, right)?;
        }
    }

    fn apply(&self, operator: &str, left: Value, right: Value) -> Option<Value> {
        // The type of a shift is that of its left side.
        let shift = right.bits as u32;
        match operator {
            "||" => return Some(self.int(left.holds() || right.holds())),
            "&&" => return Some(self.int(left.holds() && right.holds())),
            "<<" => return Some(left.with(left.bits.wrapping_shl(shift))),
            ">>" if left.is_unsigned => return Some(left.with(left.bits.wrapping_shr(shift))),
            ">>" => return Some(left.with((left.bits as i64).wrapping_shr(shift) as u64)),
            _ => {}
        }
        let (width, is_unsigned) = left.common(right);
        let (left, right) = (left.to(width, is_unsigned), right.to(width, is_unsigned));
        let (a, b) = (left.bits, right.bits);
        let order = if is_unsigned { a.cmp(&b) } else { (a as i64).cmp(&(b as i64)) };
        let divided = |unsigned: fn(u64, u64) -> Option<u64>, signed: fn(i64, i64) -> Option<i64>| match b {
            0 if self.idle > 0 => Some(0),
            _ if is_unsigned => unsigned(a, b),
            _ => signed(a as i64, b as i64).map(|value| value as u64),
        };
        let bits = match operator {
            "==" => return Some(self.int(order.is_eq())),
            "!=" => return Some(self.int(order.is_ne())),
            "<" => return Some(self.int(order.is_lt())),
            "<=" => return Some(self.int(order.is_le())),
            ">" => return Some(self.int(order.is_gt())),
            ">=" => return Some(self.int(order.is_ge())),
            "|" => a | b,
            "^" => a ^ b,
            "&" => a & b,
            "+" => a.wrapping_add(b),
            "-" => a.wrapping_sub(b),
            "*" => a.wrapping_mul(b),
            "/" => divided(u64::checked_div, i64::checked_div)?,
            _ => divided(u64::checked_rem, i64::checked_rem)?,
        };
        Some(left.with(bits))
    }

    fn unary(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > DEPTH {
            return None;
        }
        let word = self.words.get(self.at)?;
        self.at += 1;
        let value = match (word.kind, &*word.text) {
            (Kind::Number, text) => self.literal(text)?,
            (Kind::Char, text) => self.int(character(text)),
            (Kind::Name, _) => self.int(0_u8),
            (_, "!") => {
                let of = self.unary()?;
                self.int(!of.holds())
            }
            (_, "~") => {
                let of = self.unary()?;
                of.with(!of.bits)
            }
            (_, "-") => {
                let of = self.unary()?;
                of.with(of.bits.wrapping_neg())
            }
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

    /// A number, of the first type of C that its suffix allows and that it fits in.
    fn literal(&self, text: &str) -> Option<Value> {
        let bits = integer(text)?;
        let lower = text.to_ascii_lowercase();
        let suffix = &lower[lower.trim_end_matches(['u', 'l']).len()..];
        let says_unsigned = suffix.contains('u');
        let is_decimal = !lower.starts_with('0');
        let least = match suffix.matches('l').count() {
            0 => self.widths.int,
            1 => self.widths.long,
            _ => 64,
        };
        let types = [32, 64].into_iter().filter(|width| *width >= least).flat_map(|width| {
            let signed = (!says_unsigned).then_some((width, false));
            // A decimal number becomes unsigned only if no other type is left.
            let unsigned = (says_unsigned || !is_decimal || width == 64).then_some((width, true));
            signed.into_iter().chain(unsigned)
        });
        let value = Value { bits, width: 64, is_unsigned: true };
        let fits = |of: &Value| of.bits == bits && (of.is_unsigned || bits >> (of.width - 1) == 0);
        types.map(|(width, is_unsigned)| value.to(width, is_unsigned)).find(fits)
    }
}
