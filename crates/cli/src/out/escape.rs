//! What others have written, as it is shown: names of symbols, files and threads, strings of the
//! target, texts of errors. None of them moves the cursor, colours a terminal, turns the direction
//! of writing or makes a row of its own.

use std::borrow::Cow;
use std::fmt::Write;

/// A part of a row: nothing in it ends the row.
pub fn row(text: &str) -> Cow<'_, str> {
    if text.chars().any(|c| is_acting(c, false)) { Cow::Owned(shown(text.as_bytes(), false)) } else { text.into() }
}

/// The same of bytes.
pub fn row_of(bytes: &[u8]) -> String {
    shown(bytes, false)
}

/// Several lines: ends of lines, as Unix or DOS has them, and tabs stay.
pub fn block(bytes: &[u8]) -> String {
    shown(bytes, true)
}

/// Whether a character does something to what is around it. `lines`: ends of lines and tabs are
/// meant.
fn is_acting(c: char, lines: bool) -> bool {
    match c {
        '\n' | '\t' => !lines,
        c if c.is_control() => true,
        // Marks of direction, ends of lines and paragraphs, and what takes no room (Unicode
        // Standard Annex 9; general category Cf). The joiners U+200C and U+200D stay: words of
        // Persian and pictures are made with them.
        c => matches!(
            u32::from(c),
            0xad | 0x61c
                | 0x180e
                | 0x200b
                | 0x200e..=0x200f
                | 0x2028..=0x202e
                | 0x2060..=0x206f
                | 0xfeff
                | 0xfff9..=0xfffb
                | 0xe0000..=0xe007f
        ),
    }
}

fn shown(bytes: &[u8], lines: bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        let mut chars = chunk.valid().chars().peekable();
        while let Some(c) = chars.next() {
            // Writing to a String does not fail.
            let _ = match c {
                c if !is_acting(c, lines) => out.write_char(c),
                '\r' if lines && chars.peek() == Some(&'\n') => out.write_char(c),
                '\n' => out.write_str("\\n"),
                '\t' => out.write_str("\\t"),
                '\r' => out.write_str("\\r"),
                c if c.is_ascii() => write!(out, "\\x{:02x}", u32::from(c)),
                c => write!(out, "\\u{{{:x}}}", u32::from(c)),
            };
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Whether a character becomes an escape sequence in JSON, though the grammar of JSON allows it.
pub fn is_escaped_in_json(c: char) -> bool {
    is_acting(c, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_acts_on_the_terminal() {
        assert_eq!(row("a\nb\tc\rd"), "a\\nb\\tc\\rd");
        assert_eq!(row("\x1b[2J\x1b]0;x\x07\u{9b}31m\x7f"), "\\x1b[2J\\x1b]0;x\\x07\\u{9b}31m\\x7f");
        assert_eq!(row("\u{202e}txt.\u{2066}\u{2069}\u{200f}"), "\\u{202e}txt.\\u{2066}\\u{2069}\\u{200f}");
        assert_eq!(row("\u{2028}\u{feff}\u{e0041}"), "\\u{2028}\\u{feff}\\u{e0041}");
        assert_eq!(row_of(b"a\xffb\xc3"), "a\\xffb\\xc3");
        assert_eq!(block(b"a\n\tb\r\x1b\xff\r\n"), "a\n\tb\\r\\x1b\\xff\r\n");
    }

    #[test]
    fn words_stay_as_they_are() {
        for text in ["operator+(A, B)", "a\\b", "größe", "日本", "می‌خواهم", "👩‍💻"] {
            assert!(matches!(row(text), Cow::Borrowed(same) if same == text), "{text}");
            assert_eq!(row_of(text.as_bytes()), text);
        }
    }
}
