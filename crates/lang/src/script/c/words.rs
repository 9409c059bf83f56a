//! The words of C, as its preprocessor sees them.

/// What a word is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A name.
    Name,
    /// A number, of any form.
    Number,
    /// A text with its quotes.
    Text,
    /// A character with its quotes.
    Char,
    /// An operator or bracket, or anything else.
    Sign,
}

/// A word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Word {
    /// What it is.
    pub kind: Kind,
    /// As it is written.
    pub text: String,
    /// A blank is before it.
    pub spaced: bool,
    /// A macro that stands in its own expansion: it is not expanded again.
    pub painted: bool,
}

impl Word {
    /// A word that nothing stands before.
    pub fn new(kind: Kind, text: &str) -> Word {
        Word { kind, text: text.to_owned(), spaced: false, painted: false }
    }

    /// Whether it is this operator or bracket.
    pub fn is(&self, sign: &str) -> bool {
        self.kind == Kind::Sign && self.text == sign
    }
}

/// Operators of more than one character, longer ones first.
const LONG: [&str; 23] = [
    "...", "<<=", ">>=", "##", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=",
    "/=", "%=", "&=", "|=", "^=",
];

/// The words of one line, which has no comments.
pub fn words(line: &str) -> Vec<Word> {
    let (mut found, mut rest, mut spaced) = (Vec::new(), line, false);
    while let Some(first) = rest.chars().next() {
        if first.is_whitespace() {
            rest = &rest[first.len_utf8()..];
            spaced = true;
            continue;
        }
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let (kind, len) = match first {
            '"' => (Kind::Text, quoted(rest)),
            '\'' => (Kind::Char, quoted(rest)),
            c if c.is_ascii_digit() => (Kind::Number, number(rest)),
            c if is_part(c) => (Kind::Name, rest.find(|c| !is_part(c)).unwrap_or(rest.len())),
            c => {
                let long = LONG.iter().find(|sign| rest.starts_with(**sign));
                (Kind::Sign, long.map_or(c.len_utf8(), |sign| sign.len()))
            }
        };
        found.push(Word { spaced, ..Word::new(kind, &rest[..len]) });
        (rest, spaced) = (&rest[len..], false);
    }
    found
}

/// Bytes of what begins with a quote, to the next one.
fn quoted(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'\\' if !escaped => escaped = true,
            byte if byte == quote && !escaped => return at + 1,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Bytes of a number: digits, letters, points, and the sign of an exponent.
fn number(text: &str) -> usize {
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let is_sign = matches!(c, '+' | '-') && matches!(before, 'e' | 'E' | 'p' | 'P') && !text.starts_with("0x");
        if !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_') || is_sign) {
            return at;
        }
        before = c;
    }
    text.len()
}

/// A number without its suffix; `None`: it has a point or an exponent.
pub fn integer(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(['u', 'l']);
    if let Some(binary) = digits.strip_prefix("0b") {
        return u64::from_str_radix(binary, 2).ok();
    }
    match (digits.strip_prefix("0x"), digits.strip_prefix('0')) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (_, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        _ => digits.parse().ok(),
    }
}

/// The number that a character is.
pub fn character(text: &str) -> u64 {
    let inner = text.strip_prefix('\'').unwrap_or(text);
    let inner = inner.strip_suffix('\'').unwrap_or(inner);
    let Some(escape) = inner.strip_prefix('\\') else { return inner.bytes().next().unwrap_or(0).into() };
    match escape.as_bytes().first() {
        Some(b'n') => 10,
        Some(b't') => 9,
        Some(b'r') => 13,
        Some(b'a') => 7,
        Some(b'b') => 8,
        Some(b'f') => 12,
        Some(b'v') => 11,
        Some(b'x') => u64::from_str_radix(&escape[1..], 16).unwrap_or(0),
        Some(b'0'..=b'7') => u64::from_str_radix(escape, 8).unwrap_or(0),
        Some(byte) => u64::from(*byte),
        None => 0,
    }
}

/// The lines of a file, each with those that a backslash at its end continues; comments are blanks.
pub fn lines(text: &str) -> Vec<String> {
    let text = text.replace("\\\r\n", "").replace("\\\n", "");
    let (mut bare, mut rest) = (String::with_capacity(text.len()), &*text);
    while let Some(at) = rest.find(['/', '"', '\'']) {
        bare.push_str(&rest[..at]);
        rest = &rest[at..];
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            bare.push(' ');
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else {
            // A quote that no other follows in its line is an apostrophe in a message.
            let len = if rest.starts_with('/') { 1 } else { quoted(rest.lines().next().unwrap_or_default()).max(1) };
            bare.push_str(&rest[..len]);
            len
        };
        rest = &rest[len..];
    }
    bare.push_str(rest);
    bare.lines().map(str::to_owned).collect()
}
