//! Patterns of filters: text with `*`, `?` and `[...]`, as the kernel's `glob_match` reads it.

/// A set of bytes that a pattern wants at one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token {
    /// `?`
    Any,
    /// The byte itself.
    Byte(u8),
    /// `[a-z]`: in one of these ranges, or in none.
    Class {
        /// `[!...]`
        negated: bool,
        /// First and last.
        ranges: Vec<(u8, u8)>,
    },
}

impl Token {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Token::Any => true,
            Token::Byte(b) => *b == byte,
            Token::Class { negated, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&byte)) != *negated
            }
        }
    }
}

/// Tokens at most: states fit into a word.
pub(super) const MAX_TOKENS: usize = 63;

/// A pattern as an automaton: state `i` is "the first `i` tokens were found".
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pattern {
    pub tokens: Vec<Token>,
    /// A bit for each state in which anything may come: before the token is a star.
    pub stars: u64,
}

impl Pattern {
    /// Text without special characters.
    pub fn exact(text: &[u8]) -> Pattern {
        Pattern { tokens: text.iter().map(|b| Token::Byte(*b)).collect(), stars: 0 }
    }

    /// Reads a pattern. `None` if it is too long to be matched.
    pub fn glob(text: &[u8]) -> Option<Pattern> {
        // As in the kernel (`filter_parse_regex`).
        if text.first().is_some_and(u8::is_ascii_digit) {
            return Some(Pattern::exact(text));
        }
        let mut pattern = Pattern { tokens: Vec::new(), stars: 0 };
        let mut rest = text;
        while let Some((first, mut behind)) = rest.split_first() {
            let token = match first {
                b'*' => {
                    if pattern.tokens.len() > MAX_TOKENS {
                        return None;
                    }
                    pattern.stars |= 1 << pattern.tokens.len();
                    rest = behind;
                    continue;
                }
                b'?' => Token::Any,
                b'[' => match class(behind) {
                    Some((class, end)) => {
                        behind = end;
                        class
                    }
                    None => Token::Byte(b'['),
                },
                b'\\' if !behind.is_empty() => {
                    let (byte, end) = (behind[0], &behind[1..]);
                    behind = end;
                    Token::Byte(byte)
                }
                byte => Token::Byte(*byte),
            };
            pattern.tokens.push(token);
            rest = behind;
        }
        let is_text = pattern.literal().is_some();
        (is_text || pattern.tokens.len() <= MAX_TOKENS).then_some(pattern)
    }

    /// The bytes, and whether anything may follow, if it is just that.
    pub fn literal(&self) -> Option<(Vec<u8>, bool)> {
        let bytes: Option<Vec<_>> =
            self.tokens.iter().map(|t| if let Token::Byte(b) = t { Some(*b) } else { None }).collect();
        let bytes = bytes?;
        if self.stars == 0 {
            return Some((bytes, false));
        }
        (bytes.len() <= MAX_TOKENS && self.stars == 1 << bytes.len()).then_some((bytes, true))
    }

    /// Whether the whole text is what the pattern says.
    pub fn matches(&self, text: &[u8]) -> bool {
        if let Some((bytes, open)) = self.literal() {
            return if open { text.starts_with(&bytes) } else { text == bytes };
        }
        let mut states = 1u64;
        for byte in text {
            let taken = self.tokens.iter().enumerate().filter(|(_, token)| token.takes(*byte));
            let taken = taken.fold(0, |mask, (index, _)| mask | 1 << index);
            states = (states & taken) << 1 | states & self.stars;
        }
        states >> self.tokens.len() & 1 == 1
    }
}

/// A class, from behind its `[` on, and what follows it. `None` if it does not end.
fn class(text: &[u8]) -> Option<(Token, &[u8])> {
    let negated = text.first() == Some(&b'!');
    let mut rest = &text[usize::from(negated)..];
    let mut ranges = Vec::new();
    loop {
        let first = *rest.first()?;
        rest = &rest[1..];
        let mut last = first;
        if let [b'-', end, behind @ ..] = rest {
            if *end != b']' {
                (last, rest) = (*end, behind);
            }
        }
        // An empty range has no bytes.
        if first <= last {
            ranges.push((first, last));
        }
        // A `]` that comes first is a byte like others.
        if let [b']', behind @ ..] = rest {
            return Some((Token::Class { negated, ranges }, behind));
        }
    }
}
