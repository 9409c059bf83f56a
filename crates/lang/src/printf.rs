//! Conversions of `printf` formats: flags `- + blank # 0`, width and precision as numbers or `*`,
//! lengths `hh h l ll L j z t`, and what C makes of them.

/// What follows a `%`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversion {
    /// Blanks stand behind.
    pub left: bool,
    plus: bool,
    blank: bool,
    alternate: bool,
    zero: bool,
    /// Characters at least.
    pub width: usize,
    /// Digits at least, or characters at most.
    pub precision: Option<usize>,
    /// The width is a value of its own.
    pub star_width: bool,
    /// The precision is.
    pub star_precision: bool,
    /// Bits of an integer.
    bits: u32,
    /// The letter; `d` for `i`.
    pub kind: char,
}

/// What is still to be read of a format.
pub type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Wider fields are refused: nobody reads them.
const WIDTH_MAX: usize = 4096;

fn number(chars: &mut Chars) -> Result<Option<usize>, String> {
    let mut value = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        let new = value.unwrap_or(0) * 10 + digit as usize;
        if new > WIDTH_MAX {
            return Err(format!("a width in the format is above {WIDTH_MAX}"));
        }
        value = Some(new);
    }
    Ok(value)
}

impl Conversion {
    /// Reads what follows a `%`. Bits of an integer without a length (`int`) and of a `long`;
    /// `more`: letters that are allowed besides C's.
    ///
    /// # Errors
    /// A clause for the user.
    pub fn parse(chars: &mut Chars, int: u32, long: u32, more: &str) -> Result<Conversion, String> {
        let mut conversion = Conversion { bits: int, ..Conversion::default() };
        while let Some(c) = chars.peek() {
            match c {
                '-' => conversion.left = true,
                '+' => conversion.plus = true,
                ' ' => conversion.blank = true,
                '#' => conversion.alternate = true,
                '0' => conversion.zero = true,
                _ => break,
            }
            chars.next();
        }
        conversion.star_width = more.contains('*') && chars.next_if_eq(&'*').is_some();
        conversion.width = number(chars)?.unwrap_or(0);
        if chars.next_if_eq(&'.').is_some() {
            conversion.star_precision = more.contains('*') && chars.next_if_eq(&'*').is_some();
            conversion.precision = Some(number(chars)?.unwrap_or(0));
        }
        match chars.peek() {
            Some('h') => {
                chars.next();
                conversion.bits = if chars.next_if_eq(&'h').is_some() { 8 } else { 16 };
            }
            Some('l') => {
                chars.next();
                conversion.bits = if chars.next_if_eq(&'l').is_some() { 64 } else { long };
            }
            Some('L' | 'j') => {
                chars.next();
                conversion.bits = 64;
            }
            Some('z' | 't') => {
                chars.next();
                conversion.bits = long;
            }
            _ => {}
        }
        conversion.kind = match chars.next() {
            Some('i') => 'd',
            Some(c @ ('d' | 'o' | 'u' | 'x' | 'X' | 'c' | 's' | 'p')) => c,
            Some(c) if c != '*' && more.contains(c) => c,
            Some('g') if chars.peek() == Some(&'r') && more.contains('r') => {
                return Err("%gr needs the kernel: not available in this tool".to_owned());
            }
            Some(c) => {
                let more: String = more.chars().filter(char::is_ascii_lowercase).map(|c| format!(" {c}")).collect();
                return Err(format!("unknown conversion %{c} in the format; there are d i o u x X c s p{more} and %%"));
            }
            None => {
                return Err("the format ends inside a conversion; write %% for a percent sign".to_owned());
            }
        };
        if conversion.kind == 'p' {
            conversion.bits = 64;
            conversion.alternate = true;
        }
        Ok(conversion)
    }

    /// A text, cut at the precision.
    pub fn text(&self, text: &str, out: &mut String) {
        let text: String = match self.precision {
            Some(precision) => text.chars().take(precision).collect(),
            None => text.to_owned(),
        };
        self.pad("", &text, false, out);
    }

    /// A text as it is, also where it is no UTF-8: such a byte counts as a character.
    pub fn bytes(&self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut most = self.precision.unwrap_or(usize::MAX);
        let (mut length, mut characters) = (0, 0);
        let units = bytes
            .utf8_chunks()
            .flat_map(|chunk| chunk.valid().chars().map(char::len_utf8).chain(chunk.invalid().iter().map(|_| 1)));
        for unit in units {
            if most == 0 {
                break;
            }
            (most, length, characters) = (most - 1, length + unit, characters + 1);
        }
        let blanks = vec![b' '; self.width.saturating_sub(characters)];
        if !self.left {
            out.extend(&blanks);
        }
        out.extend(&bytes[..length]);
        if self.left {
            out.extend(&blanks);
        }
    }

    /// A number with a point, from its bits: those of a `double`, with the length `h` of a `float`.
    pub fn real(&self, bits: u64, out: &mut String) {
        let value = if self.bits == 16 { f64::from(f32::from_bits(bits as u32)) } else { f64::from_bits(bits) };
        let sign = match (value.is_sign_negative(), self.plus, self.blank) {
            (true, _, _) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        };
        let precision = self.precision.unwrap_or(6);
        let digits = match self.kind {
            _ if !value.is_finite() => value.abs().to_string().to_lowercase(),
            'f' => format!("{:.precision$}", value.abs()),
            // Rust writes the exponent as it is, C with a sign and two digits at least.
            _ => {
                let text = format!("{:.precision$e}", value.abs());
                let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let exponent: i32 = exponent.parse().unwrap_or(0);
                format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
            }
        };
        self.pad(sign, &digits, self.zero && value.is_finite(), out);
    }

    /// An integer.
    pub fn integer(&self, value: u64, out: &mut String) {
        let unused = 64 - self.bits;
        let unsigned = value << unused >> unused;
        let signed = (value << unused) as i64 >> unused;
        let (mut prefix, mut digits) = match self.kind {
            'd' => {
                let sign = match (signed < 0, self.plus, self.blank) {
                    (true, _, _) => "-",
                    (_, true, _) => "+",
                    (_, _, true) => " ",
                    _ => "",
                };
                (sign, signed.unsigned_abs().to_string())
            }
            'o' => ("", format!("{unsigned:o}")),
            'x' | 'p' => ("0x", format!("{unsigned:x}")),
            'X' => ("0X", format!("{unsigned:X}")),
            _ => ("", unsigned.to_string()),
        };
        // C prints no prefix for %#x of 0; a pointer always has one.
        if matches!(self.kind, 'x' | 'X') && (!self.alternate || unsigned == 0) {
            prefix = "";
        }
        if self.kind == 'o' && self.alternate && !digits.starts_with('0') {
            digits.insert(0, '0');
        }
        match self.precision {
            // No digits at all for 0 with precision 0.
            Some(0) if unsigned == 0 && self.kind != 'p' => {
                digits = if self.kind == 'o' && self.alternate { "0".to_owned() } else { String::new() };
            }
            Some(precision) => digits = format!("{}{digits}", "0".repeat(precision.saturating_sub(digits.len()))),
            None => {}
        }
        self.pad(prefix, &digits, self.zero && self.precision.is_none(), out);
    }

    /// A sign and what follows it, to the width.
    fn pad(&self, prefix: &str, body: &str, zeros: bool, out: &mut String) {
        let missing = self.width.saturating_sub(prefix.len() + body.chars().count());
        if self.left {
            out.extend([prefix, body]);
            out.extend(std::iter::repeat_n(' ', missing));
        } else if zeros {
            out.push_str(prefix);
            out.extend(std::iter::repeat_n('0', missing));
            out.push_str(body);
        } else {
            out.extend(std::iter::repeat_n(' ', missing));
            out.extend([prefix, body]);
        }
    }
}
