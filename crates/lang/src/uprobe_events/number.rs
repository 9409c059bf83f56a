//! Numbers as the kernel reads them (`kstrtoull` and its like): base by prefix, `0x` or `0`, and
//! nothing behind.

/// Base, and the digits behind its prefix.
fn radix(text: &str) -> (u32, &str) {
    match text.as_bytes() {
        [b'0', b'x' | b'X', digit, ..] if digit.is_ascii_hexdigit() => (16, &text[2..]),
        [b'0', ..] => (8, text),
        _ => (10, text),
    }
}

fn digits(text: &str, radix: u32) -> Option<u64> {
    // `from_str_radix` takes a sign, too.
    let first = text.chars().next()?;
    first.is_digit(radix).then(|| u64::from_str_radix(text, radix).ok()).flatten()
}

/// A number without a sign, or with `+`.
pub(super) fn unsigned(text: &str) -> Option<u64> {
    let (radix, text) = radix(text.strip_prefix('+').unwrap_or(text));
    digits(text, radix)
}

/// A decimal number without a sign, or with `+`.
pub(super) fn decimal(text: &str) -> Option<u64> {
    digits(text.strip_prefix('+').unwrap_or(text), 10)
}

/// A number that may have a sign.
pub(super) fn signed(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(text) => {
            let (radix, text) = radix(text);
            0i64.checked_sub_unsigned(digits(text, radix)?)
        }
        None => i64::try_from(unsigned(text)?).ok(),
    }
}

/// The number that a text starts with, 0 if there is none, and the rest.
pub(super) fn leading(text: &str) -> Option<(u64, &str)> {
    let (radix, text) = radix(text);
    let end = text.find(|c: char| !c.is_digit(radix)).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    if number.is_empty() { Some((0, rest)) } else { Some((digits(number, radix)?, rest)) }
}
