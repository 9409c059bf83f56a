//! JSON, one object per line, in bpftrace's schema: `{"type": "map", "data": {"@": {"read": 4}}}`.

use super::escape;

/// A string with its quotes.
pub fn string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            // What acts on a terminal, too: JSON is read there as well.
            c if escape::is_escaped_in_json(c) => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A number; one that a double cannot hold becomes a string.
pub fn number(value: u64) -> String {
    // The check is in integers: 2^64 as a double would come back as u64::MAX.
    let spare = 64 - value.leading_zeros().min(11) - 53;
    if value.trailing_zeros() >= spare { value.to_string() } else { format!("\"{value}\"") }
}

/// `{"key": value, ...}` of values that are JSON already.
pub fn object<K: AsRef<str>>(members: impl IntoIterator<Item = (K, String)>) -> String {
    let members: Vec<_> =
        members.into_iter().map(|(key, value)| format!("{}: {value}", string(key.as_ref()))).collect();
    format!("{{{}}}", members.join(", "))
}

/// `[a, b, ...]`.
pub fn array(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(", "))
}

/// The object of one line.
pub fn line(kind: &str, data: String) -> String {
    object([("type", string(kind)), ("data", data)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        assert_eq!(string("a\"b\\c\n\u{1}ü"), r#""a\"b\\c\n\u0001ü""#);
        assert_eq!(string("\u{9b}\u{7f}\u{202e}\u{e0041}"), r#""\u009b\u007f\u202e\udb40\udc41""#);
    }

    /// The conversion to a double and back is the oracle.
    #[test]
    fn numbers_that_a_double_cannot_hold_are_strings() {
        for value in [
            0,
            1,
            1 << 53,
            (1 << 53) + 1,
            (1 << 53) + 2,
            (1 << 54) + 2,
            (1 << 54) + 4,
            u64::MAX,
            1 << 63,
            u64::MAX << 11,
        ] {
            let exact = value as f64 as u128 == u128::from(value);
            assert_eq!(!number(value).starts_with('"'), exact, "{value}");
        }
    }

    #[test]
    fn lines_look_like_bpftrace() {
        let map = object([("@a", object([("1,x", number(1))]))]);
        assert_eq!(line("map", map), r#"{"type": "map", "data": {"@a": {"1,x": 1}}}"#);
        assert_eq!(array([number(1), number(2)]), "[1, 2]");
    }
}
