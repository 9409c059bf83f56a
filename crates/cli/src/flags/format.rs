//! printf formats of `trace`: parsed once, rendered for every record.
//!
//! Conversions `d i o u x X c s p f e %` with flags `- + blank # 0`, width and precision as
//! numbers, and lengths `hh h l ll L j z t`. As in C, an integer without a length is 32 bits wide:
//! the upper half of an argument register is not defined for an `int`; a `long` is as wide as in
//! the programs that this build probes. `f` and `e` take the bits of a `double`, with the length
//! `h` those of a `float`. `U` is the name of a function, which only scripts know.

use sidestep_lang::printf::Conversion;

use crate::out::escape;

/// A value that is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An integer.
    Int(u64),
    /// The bytes of a string.
    Str(Vec<u8>),
    /// What could not be read.
    Fault,
}

/// A parsed format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Conversion(Conversion),
}

impl Format {
    /// Parses the text between the quotes.
    pub fn parse(text: &str) -> Result<Format, String> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\\' => literal.push(escape(chars.next())?),
                '%' if chars.peek() == Some(&'%') => {
                    chars.next();
                    literal.push('%');
                }
                '%' => {
                    if !literal.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut literal)));
                    }
                    pieces.push(Piece::Conversion(Conversion::parse(&mut chars, 32, usize::BITS, "feUK")?));
                }
                c => literal.push(c),
            }
        }
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Format { pieces })
    }

    /// For each value that the format takes: the letter of its conversion, `d` for `i`.
    pub fn kinds(&self) -> impl Iterator<Item = char> + '_ {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Text(_) => None,
            Piece::Conversion(conversion) => Some(conversion.kind),
        })
    }

    /// The text for the values, in the order of the conversions. A value that is missing prints as
    /// nothing.
    pub fn render<'a>(&self, values: impl IntoIterator<Item = &'a Value>) -> String {
        let mut values = values.into_iter();
        let mut out = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Conversion(conversion) => {
                    if let Some(value) = values.next() {
                        render(conversion, value, &mut out);
                    }
                }
            }
        }
        out
    }
}

fn escape(c: Option<char>) -> Result<char, String> {
    match c {
        Some('n') => Ok('\n'),
        Some('t') => Ok('\t'),
        Some('r') => Ok('\r'),
        Some('e') => Ok('\x1b'),
        Some(c @ ('\\' | '"' | '\'' | '%')) => Ok(c),
        Some(c) => Err(format!("unknown escape \\{c} in the format")),
        None => Err("nothing follows the last backslash of the format".to_owned()),
    }
}

fn render(conversion: &Conversion, value: &Value, out: &mut String) {
    match (conversion.kind, value) {
        ('s', Value::Str(bytes)) => conversion.text(&escape::row_of(bytes), out),
        (_, Value::Fault) => conversion.text("(fault)", out),
        (_, Value::Str(bytes)) => conversion.text(&escape::row_of(bytes), out),
        ('c', Value::Int(value)) => conversion.text(&escape::row_of(&[*value as u8]), out),
        ('f' | 'e', Value::Int(value)) => conversion.real(*value, out),
        (_, Value::Int(value)) => conversion.integer(*value, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(format: &str, values: &[Value]) -> String {
        Format::parse(format).unwrap().render(values)
    }

    /// The C library is the oracle: the same conversion with the same value, by `printf(1)` of
    /// coreutils (which has 64-bit integers only, so the lengths are tested apart).
    #[test]
    fn integers_print_as_in_c() {
        for format in [
            "[%ld]",
            "[%5ld]",
            "[%-5ld]",
            "[%05ld]",
            "[%+ld]",
            "[% ld]",
            "[%lu]",
            "[%lx]",
            "[%lX]",
            "[%#lx]",
            "[%#12lX]",
            "[%lo]",
            "[%#lo]",
            "[%.3ld]",
            "[%8.3ld]",
            "[%-8.3lx]",
            "[%08.3ld]",
            "[%+.0ld]",
            "[%#.0lo]",
            "[%#012lx]",
            "[%-012ld]",
            "[%li]",
            "[%+05ld]",
        ] {
            for value in [0, 1, 42, 4096, -7, i64::MIN, i64::MAX] {
                let coreutils = format.replace('l', "");
                let output = std::process::Command::new("/usr/bin/printf")
                    .args([&coreutils, &value.to_string()])
                    .output()
                    .unwrap();
                let expected = String::from_utf8(output.stdout).unwrap();
                assert_eq!(render(format, &[Value::Int(value as u64)]), expected, "{format} of {value}");
            }
        }
    }

    /// `printf(1)` again.
    #[test]
    fn numbers_with_a_point_print_as_in_c() {
        for format in
            ["[%f]", "[%.2f]", "[%12.1f]", "[%-12.3f]", "[%+f]", "[% .0f]", "[%012.4f]", "[%e]", "[%.3e]", "[%+14.1e]"]
        {
            for value in [
                0.0,
                1.5,
                -2.25,
                (1u64 << 63) as f64,
                123_456.789,
                -1e-7,
                0.1,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::MIN_POSITIVE,
            ] {
                let output =
                    std::process::Command::new("printf").args([format, &format!("{value:.60e}")]).output().unwrap();
                let expected = String::from_utf8(output.stdout).unwrap();
                assert_eq!(render(format, &[Value::Int(value.to_bits())]), expected, "{format} of {value}");
            }
        }
        assert_eq!(
            render("%hf %.1hf", &[Value::Int(u64::from(1.5f32.to_bits())), Value::Int(1 << 60)]),
            "1.500000 0.0"
        );
        assert_eq!(render("%f", &[Value::Int(f64::NAN.to_bits())]), "nan");
    }

    #[test]
    fn lengths_cut_as_in_c() {
        for (format, value, expected) in [
            ("%hd", 70000, "4464"),
            ("%hhu", 300, "44"),
            ("%lu", -4, "18446744073709551612"),
            ("%u", -4, "4294967292"),
            ("%d", 0xdead_beef_0000_0005_u64 as i64, "5"),
            ("%d", 0xffff_fff0, "-16"),
            ("%x", -1, "ffffffff"),
            ("%zd", -1, "-1"),
            ("%llx", -1, "ffffffffffffffff"),
            ("%p", 4096, "0x1000"),
            ("%12p", 4096, "      0x1000"),
            ("%c", 65, "A"),
            ("%c", 10, "\\n"),
        ] {
            assert_eq!(render(format, &[Value::Int(value as u64)]), expected, "{format}");
        }
    }

    #[test]
    fn kinds() {
        let abc = Value::Str(b"abcdef".to_vec());
        assert_eq!(
            render("[%10s] [%-10s] [%.3s] [%s]", &[abc.clone(), abc.clone(), abc.clone(), abc]),
            "[    abcdef] [abcdef    ] [abc] [abcdef]"
        );
        assert_eq!(render("%s|%9s", &[Value::Fault, Value::Fault]), "(fault)|  (fault)");
        assert_eq!(render("%s", &[Value::Str(b"a\nb\x1b[2J\xff\xc3\xa4".to_vec())]), "a\\nb\\x1b[2J\\xff\u{e4}");
    }

    #[test]
    fn text_and_escapes() {
        assert_eq!(render(r#"100%% \"x\"\t%d"#, &[Value::Int(7)]), "100% \"x\"\t7");
        assert_eq!(Format::parse("%d %s %lx").unwrap().kinds().collect::<String>(), "dsx");
        for bad in ["%", "%y", "%5", "\\", "\\q", "%99999d", "%*d", "%g"] {
            assert!(Format::parse(bad).is_err(), "{bad}");
        }
    }
}
