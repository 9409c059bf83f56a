//! Names, globs and regular expressions for functions.

use crate::demangle;
use crate::error::PatternError;
use crate::function::{Function, FunctionKind};

/// What a function's name must look like.
#[derive(Clone, Debug)]
pub struct Matcher(Form);

#[derive(Clone, Debug)]
enum Form {
    Name(String),
    Glob { text: String, tokens: Vec<Token> },
    Regex(regex_lite::Regex),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    Any,
    Star,
    Class { ranges: Vec<(u8, u8)>, negated: bool },
}

impl Matcher {
    /// Exactly this name: raw, or demangled with or without parameters. Blanks do not count.
    #[must_use]
    pub fn name(text: &str) -> Self {
        Self(Form::Name(text.to_owned()))
    }

    /// A glob with `*`, `?` and `[a-z]`, `[!a-z]`, against the whole raw or demangled name (with
    /// parameters only if the glob has a parenthesis). Text without these characters is a name.
    /// Since C++ names contain such characters, too (`operator[]`, `f(int*)`), a glob that is
    /// exactly a function's name means that function.
    #[must_use]
    pub fn glob(text: &str) -> Self {
        if text.contains(['*', '?', '[']) {
            Self(Form::Glob { text: text.to_owned(), tokens: tokens(text.as_bytes()) })
        } else {
            Self::name(text)
        }
    }

    /// A regular expression that must be found somewhere in the raw name or the demangled one (with
    /// parameters).
    pub fn regex(text: &str) -> Result<Self, PatternError> {
        match regex_lite::Regex::new(text) {
            Ok(regex) => Ok(Self(Form::Regex(regex))),
            Err(e) => Err(PatternError::Regex {
                pattern: text.to_owned(),
                reason: e.to_string().lines().collect::<Vec<_>>().join(" "),
            }),
        }
    }

    /// Whether a regular expression is found in this text; a glob or name, whether it is the whole
    /// of it.
    #[must_use]
    pub fn finds(&self, text: &str) -> bool {
        match &self.0 {
            Form::Name(name) => name == text,
            Form::Glob { tokens, .. } => glob_matches(tokens, text.as_bytes()),
            Form::Regex(regex) => regex.is_match(text),
        }
    }

    /// Whether this names one function (and is no glob or regular expression).
    #[must_use]
    pub fn is_name(&self) -> bool {
        matches!(self.0, Form::Name(_))
    }

    /// Whether this is a glob.
    pub(crate) fn is_glob(&self) -> bool {
        matches!(self.0, Form::Glob { .. })
    }

    /// The text that it was made of.
    #[must_use]
    pub fn text(&self) -> &str {
        match &self.0 {
            Form::Name(text) | Form::Glob { text, .. } => text,
            Form::Regex(regex) => regex.as_str(),
        }
    }

    /// The text, if it may be the exact name of a function.
    pub(crate) fn exact(&self) -> Option<&str> {
        match &self.0 {
            Form::Name(text) => Some(text),
            Form::Glob { text, .. }
                if text.contains(['(', '<']) || ["operator", "[abi:"].iter().any(|part| text.contains(part)) =>
            {
                Some(text)
            }
            _ => None,
        }
    }

    /// Whether the glob or regular expression matches; a plain name never does (see
    /// [`crate::Object::find`]).
    pub(crate) fn matches(&self, function: &Function) -> bool {
        if function.kind == FunctionKind::Cold {
            return false;
        }
        match &self.0 {
            Form::Name(_) => false,
            Form::Glob { text, tokens } => {
                glob_matches(tokens, function.name.as_bytes())
                    || (demangle::is_mangled(&function.name) && {
                        let full = text.contains('(');
                        let name = if full { function.demangled() } else { demangle::short(&function.name) };
                        name.is_some_and(|name| glob_matches(tokens, name.as_bytes()))
                    })
            }
            Form::Regex(regex) => {
                regex.is_match(&function.name) || function.demangled().is_some_and(|name| regex.is_match(&name))
            }
        }
    }
}

/// Whether `wanted` is the demangled name of `function`, with or without parameters, blanks not
/// counted.
pub(crate) fn is_demangled_name(function: &Function, wanted: &str) -> bool {
    let equal = |name: Option<String>| {
        name.is_some_and(|name| {
            let visible = |c: &char| *c != ' ';
            name.chars().filter(visible).eq(wanted.chars().filter(visible))
        })
    };
    demangle::is_mangled(&function.name)
        && (equal(demangle::short(&function.name)) || wanted.contains('(') && equal(function.demangled()))
}

/// The identifier that the mangled form of `name` must contain, to skip most names without
/// demangling them. `None` if that cannot be said: operators, and constructors of abbreviated types
/// (`std::string` is mangled as `Ss`).
pub(crate) fn needle(name: &str) -> Option<&str> {
    let path = name.split(['(', '<']).next()?.trim_end();
    let mut parts = path.rsplit("::");
    let last = parts.next()?.rsplit(' ').next()?;
    let plain = !last.is_empty() && last.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (plain && !name.contains("operator") && parts.next() != Some(last)).then_some(last)
}

/// Whether the glob `pattern` (`*`, `?` and `[…]`, as in the shell) matches the whole of `text`.
///
/// ```
/// assert!(sidestep_symbols::glob("u*probe", "uretprobe"));
/// assert!(!sidestep_symbols::glob("u*probe", "usdt"));
/// ```
#[must_use]
pub fn glob(pattern: &str, text: &str) -> bool {
    glob_matches(&tokens(pattern.as_bytes()), text.as_bytes())
}

fn tokens(glob: &[u8]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = glob;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        tokens.push(match byte {
            b'*' if tokens.last() == Some(&Token::Star) => continue,
            b'*' => Token::Star,
            b'?' => Token::Any,
            b'[' => match class(tail) {
                Some((class, tail)) => {
                    rest = tail;
                    class
                }
                None => Token::Byte(b'['),
            },
            other => Token::Byte(other),
        });
    }
    tokens
}

/// The class behind a `[`, and what follows it; `None` if it is not closed. A `]` right at its
/// start belongs to it.
fn class(body: &[u8]) -> Option<(Token, &[u8])> {
    let negated = matches!(body.first(), Some(b'!' | b'^'));
    let body = &body[usize::from(negated)..];
    let end = 1 + body.get(1..)?.iter().position(|&b| b == b']')?;
    let mut ranges = Vec::new();
    let mut rest = &body[..end];
    while let Some((&low, tail)) = rest.split_first() {
        match tail {
            [b'-', high, tail @ ..] => {
                ranges.push((low, *high));
                rest = tail;
            }
            _ => {
                ranges.push((low, low));
                rest = tail;
            }
        }
    }
    Some((Token::Class { ranges, negated }, &body[end + 1..]))
}

/// Going back only to the last star keeps this O(length of the glob × length of the name).
fn glob_matches(tokens: &[Token], name: &[u8]) -> bool {
    let (mut t, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        let fits = match tokens.get(t) {
            Some(Token::Star) => {
                star = Some((t, n));
                t += 1;
                continue;
            }
            Some(Token::Any) => true,
            Some(Token::Byte(byte)) => *byte == name[n],
            Some(Token::Class { ranges, negated }) => {
                ranges.iter().any(|(low, high)| (low..=high).contains(&&name[n])) != *negated
            }
            None => false,
        };
        match (fits, star) {
            (true, _) => {
                t += 1;
                n += 1;
            }
            (false, Some((at, from))) => {
                star = Some((at, from + 1));
                t = at + 1;
                n = from + 1;
            }
            (false, None) => return false,
        }
    }
    tokens[t..].iter().all(|token| *token == Token::Star)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_the_shell() {
        // The oracle is bash: [[ $name == $glob ]].
        let globs =
            ["*", "a*", "*a", "*a*b*", "a?c", "[abc]x", "[!abc]x", "[a-c]*", "a[]]b", "[x", "a**b", "?", "[^a]x"];
        let names = ["a", "abc", "ba", "xaxbx", "ax", "dx", "a]b", "[x", "ab", "", "aXb", "b", "^x"];
        for glob in globs {
            for name in names {
                let status = std::process::Command::new("bash")
                    .args(["-c", "[[ $1 == $2 ]]", "bash", name, glob])
                    .status()
                    .unwrap();
                let ours = super::glob(glob, name);
                assert_eq!(ours, status.success(), "{name:?} against {glob:?}");
            }
        }
    }

    #[test]
    fn a_glob_with_many_stars_ends_soon() {
        let glob = "*a".repeat(2000) + "b";
        assert!(!glob_matches(&tokens(glob.as_bytes()), "a".repeat(5000).as_bytes()));
    }

    #[test]
    fn needle_is_the_last_plain_identifier() {
        assert_eq!(needle("ns::Foo::bar(int)"), Some("bar"));
        assert_eq!(needle("foo<int>"), Some("foo"));
        assert_eq!(needle("Foo::Foo"), None);
        assert_eq!(needle("Foo::operator+"), None);
        assert_eq!(needle("Foo::~Foo"), None);
        assert_eq!(needle("<alloc::vec::Vec<T> as core::fmt::Debug>::fmt"), None);
    }
}
