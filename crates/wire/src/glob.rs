//! Patterns of texts that a program has only when it runs: the agent matches them, and so does the
//! controller.

/// Whether the whole of a text is what a pattern says: `*` is any bytes, `?` one, `[a-z]` and
/// `[!a-z]` one of a set or none of it; a `[` that nothing closes is itself. Both are read byte by
/// byte, and end at their first 0.
pub fn matches(text: impl Fn(u64) -> u8, pattern: impl Fn(u64) -> u8) -> bool {
    let (mut t, mut p) = (0, 0);
    // Behind the last star, and where in the text what it stands for ends.
    let mut star = None;
    loop {
        let byte = text(t);
        let (fits, next) = match pattern(p) {
            0 if byte == 0 => return true,
            0 => (false, p),
            b'*' => {
                p += 1;
                star = Some((p, t));
                continue;
            }
            b'?' => (true, p + 1),
            b'[' => set(&pattern, p + 1, byte).unwrap_or((byte == b'[', p + 1)),
            other => (other == byte, p + 1),
        };
        match (fits && byte != 0, star) {
            (true, _) => (t, p) = (t + 1, next),
            // Going back only to the last star keeps this short.
            (false, Some((behind, end))) if text(end) != 0 => {
                star = Some((behind, end + 1));
                (t, p) = (end + 1, behind);
            }
            (false, _) => return false,
        }
    }
}

/// Whether a byte is in the set behind a `[`, and what follows the set; `None`: nothing closes it.
/// A `]` right at its start belongs to it.
fn set(pattern: &impl Fn(u64) -> u8, start: u64, byte: u8) -> Option<(bool, u64)> {
    let negated = pattern(start) == b'!';
    let first = start + u64::from(negated);
    let (mut at, mut found) = (first, false);
    while at == first || pattern(at) != b']' {
        let low = pattern(at);
        if low == 0 {
            return None;
        }
        let (high, step) = match (pattern(at + 1), pattern(at + 2)) {
            (b'-', high) if high != 0 && high != b']' => (high, 3),
            _ => (low, 1),
        };
        at += step;
        found |= low <= byte && byte <= high;
    }
    Some((found != negated, at + 1))
}

#[cfg(test)]
mod tests {
    use super::matches;

    fn glob(text: &str, pattern: &str) -> bool {
        let byte = |text: &str, at: u64| text.as_bytes().get(at as usize).copied().unwrap_or(0);
        matches(|at| byte(text, at), |at| byte(pattern, at))
    }

    #[test]
    fn patterns() {
        for (text, pattern) in [
            ("", ""),
            ("", "*"),
            ("", "**"),
            ("abc", "abc"),
            ("abc", "a*"),
            ("abc", "*c"),
            ("abc", "*b*"),
            ("abc", "a?c"),
            ("/usr/lib/x.so", "/usr/*.so"),
            ("aXbXc", "a*X*c"),
            ("aab", "*ab"),
            ("b", "[abc]"),
            ("m", "[a-z]"),
            ("M", "[!a-z]"),
            ("]", "[]]"),
            ("x", "[!]]"),
            ("-", "[a-]"),
            ("[", "["),
            ("[ab", "[ab"),
            ("a[b", "a[b"),
        ] {
            assert!(glob(text, pattern), "{text} {pattern}");
        }
        for (text, pattern) in [
            ("", "?"),
            ("", "[!a]"),
            ("a", ""),
            ("abc", "ab"),
            ("abc", "*b"),
            ("abc", "a?"),
            ("m", "[!a-z]"),
            ("M", "[a-z]"),
            ("a", "[ab"),
            ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "*a*a*a*a*a*a*a*a*a*a*a*a*b"),
        ] {
            assert!(!glob(text, pattern), "{text} {pattern}");
        }
    }
}
