//! Formats of `printf`.

use super::types::Type;
use crate::printf::Conversion;

/// A format that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Format {
    pieces: Vec<Piece>,
}

/// A part of a format.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Text(String),
    Conversion(Conversion),
}

/// What a conversion takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// A number.
    Int,
    /// Something with a text: the letter of the conversion.
    Text,
    /// Bytes.
    Bytes,
}

/// A value that is printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Printed {
    /// A number.
    Int(i128),
    /// A text of somebody else, which need not be UTF-8.
    Text(Vec<u8>),
    /// A text of the one who prints.
    Own(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A number that has a name.
    Named(u64, String),
}

impl Format {
    /// Reads a format, whose escapes are replaced already.
    ///
    /// # Errors
    /// A clause for the user.
    pub fn parse(text: &str) -> Result<Format, String> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if c != '%' {
                literal.push(c);
            } else if chars.next_if_eq(&'%').is_some() {
                literal.push('%');
            } else {
                if !literal.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut literal)));
                }
                let mut conversion = Conversion::parse(&mut chars, 32, 64, "*r")?;
                if conversion.kind == 'r' {
                    // `rx` prints all bytes as \xNN, `rh` as hexadecimal digits.
                    conversion.kind = chars.next_if(|c| matches!(c, 'x' | 'h')).unwrap_or('r');
                    if conversion.kind == 'x' {
                        conversion.kind = 'R';
                    }
                }
                pieces.push(Piece::Conversion(conversion));
            }
        }
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Format { pieces })
    }

    /// The values that the format takes, and the letters by which messages name them.
    pub fn takes(&self) -> impl Iterator<Item = (Takes, char)> + '_ {
        self.pieces.iter().flat_map(|piece| {
            let mut all = Vec::new();
            if let Piece::Conversion(conversion) = piece {
                all.extend(
                    [conversion.star_width, conversion.star_precision]
                        .iter()
                        .filter(|star| **star)
                        .map(|_| (Takes::Int, '*')),
                );
                let takes = match conversion.kind {
                    's' => Takes::Text,
                    'r' | 'R' | 'h' => Takes::Bytes,
                    _ => Takes::Int,
                };
                all.push((takes, conversion.kind));
            }
            all
        })
    }

    /// The text for values in the order of the conversions. A value that is missing is printed as
    /// nothing. `shown` is what is shown of bytes of somebody else, by `%s` and `%c`.
    #[must_use]
    pub fn render(&self, values: &[Printed], shown: &dyn Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
        let mut values = values.iter();
        let mut out = Vec::new();
        for piece in &self.pieces {
            let conversion = match piece {
                Piece::Text(text) => {
                    out.extend(text.as_bytes());
                    continue;
                }
                Piece::Conversion(conversion) => conversion,
            };
            let mut conversion = conversion.clone();
            let star = |values: &mut std::slice::Iter<'_, Printed>| match values.next() {
                Some(Printed::Int(n)) => *n,
                Some(Printed::Named(n, _)) => i128::from(*n),
                _ => 0,
            };
            let limited = |number: u128| number.min(4096) as usize;
            if conversion.star_width {
                let width = star(&mut values);
                // As in C: on the left.
                conversion.left |= width < 0;
                conversion.width = limited(width.unsigned_abs());
            }
            if conversion.star_precision {
                conversion.precision = u128::try_from(star(&mut values)).ok().map(limited);
            }
            let mut text = String::new();
            match (values.next(), conversion.kind) {
                (Some(Printed::Int(value)), 'c') => conversion.bytes(&shown(&[*value as u8]), &mut out),
                (Some(Printed::Int(value)), 's') => conversion.text(&value.to_string(), &mut text),
                (Some(Printed::Int(value)), _) => conversion.integer(*value as u64, &mut text),
                (Some(Printed::Named(_, name)), 's') => conversion.text(name, &mut text),
                (Some(Printed::Own(own)), _) => conversion.text(own, &mut text),
                (Some(Printed::Named(value, _)), _) => conversion.integer(*value, &mut text),
                (Some(Printed::Text(bytes)), _) => conversion.bytes(&shown(bytes), &mut out),
                (Some(Printed::Bytes(bytes)), 's') => conversion.text(&escaped(bytes, 'r'), &mut text),
                (Some(Printed::Bytes(bytes)), kind) => conversion.text(&escaped(bytes, kind), &mut text),
                (None, _) => {}
            }
            out.extend(text.as_bytes());
        }
        out
    }
}

/// Whether a conversion may print a value of a type.
#[must_use]
pub fn accepts(takes: Takes, ty: &Type) -> bool {
    match takes {
        Takes::Int => ty.is_int(),
        Takes::Bytes => matches!(ty, Type::Bytes(_)),
        // Whatever it is, as print() has it.
        Takes::Text => *ty != Type::None,
    }
}

/// Bytes with those that are no printable ASCII as `\xNN`; `R`: all of them, `h`: all of them
/// without `\x`.
#[must_use]
pub fn escaped(bytes: &[u8], kind: char) -> String {
    let one = |byte: &u8| match (kind, byte) {
        ('h', byte) => format!("{byte:02x} "),
        ('r', b' '..=b'~') => char::from(*byte).to_string(),
        (_, byte) => format!("\\x{byte:02x}"),
    };
    bytes.iter().map(one).collect::<String>().trim_end_matches(|c| kind == 'h' && c == ' ').to_owned()
}
