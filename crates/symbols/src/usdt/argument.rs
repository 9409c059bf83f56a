//! The text that says where a probe's arguments are: `-4@%eax 8@-8(%rbp) 4@$42`.
//!
//! Source of the facts: the wiki page "UserSpaceProbeImplementation" of SystemTap (each argument is
//! `N@OP`: the size, negative if signed, and an operand as the assembler writes it), and what GCC
//! and clang print for operands.

use sidestep_isa::Va;

use super::register::Register;
use crate::arch::operand::{self, Syntax};

/// A probe has at most so many arguments here; `sys/sdt.h` has macros for 12.
const ARGUMENTS_MAX: usize = 64;
/// Longer symbol names are not resolved.
pub(super) const NAME_MAX: usize = 1024;

/// One argument of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Size in bytes. Usually 1, 2, 4 or 8; a structure passed by value can have any.
    pub size: u32,
    /// What its bits are.
    pub kind: ArgumentKind,
    /// Where it is when the probe is hit.
    pub place: Place,
}

/// What an argument's bits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentKind {
    /// `4@`
    Unsigned,
    /// `-4@`
    Signed,
    /// `8f@`: a floating-point number.
    Float,
}

/// Where an argument is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is this number (of `u64` numbers above `i64::MAX`, the bits).
    Constant(i64),
    /// In a register: its low [`Argument::size`] bytes.
    Register(Register),
    /// In the low bytes of the `xmm` register with this number.
    Vector(u8),
    /// In memory.
    Memory(Memory),
}

/// The address of an operand in memory: the sum of all that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// A symbol. On x86-64 with `%rip` as [`Memory::base`], the address is that of the symbol plus
    /// the displacement, and `%rip` is not added.
    pub symbol: Option<Symbol>,
    /// The base register.
    pub base: Option<Register>,
    /// The index register, and by how many bits it is to be shifted left.
    pub index: Option<(Register, u8)>,
    /// Bytes.
    pub displacement: i64,
}

/// A symbol in an operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// As the compiler wrote it.
    pub name: Box<str>,
    /// Link-time address; `None` if the object's tables do not have it, or have several.
    pub va: Option<Va>,
    /// What counts is how far it is from here: from 0, or of `x@GOTOFF` from the
    /// `_GLOBAL_OFFSET_TABLE_`, whose address is in a register.
    pub origin: Va,
}

impl Symbol {
    /// How x86-32 writes what is counted from the `_GLOBAL_OFFSET_TABLE_`.
    const FROM_GOT: &str = "@GOTOFF";

    /// The name that tables have, and whether it is counted from the `_GLOBAL_OFFSET_TABLE_`.
    pub(super) fn in_tables(&self) -> (&str, bool) {
        self.name.strip_suffix(Symbol::FROM_GOT).map_or((&self.name, false), |name| (name, true))
    }
}

/// Why the text does not say where the arguments are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// Not `SIZE@OPERAND`, or an operand of no known form.
    #[error("the argument `{argument}` is of no known form")]
    Syntax {
        /// The argument.
        argument: String,
    },
    /// Not a number of bytes above 0.
    #[error("`{size}` in the argument `{argument}` is not a size")]
    Size {
        /// The argument.
        argument: String,
        /// What is there.
        size: String,
    },
    /// Not a general register.
    #[error("`{register}` in the argument `{argument}` is not a general register")]
    Register {
        /// The argument.
        argument: String,
        /// What is there.
        register: String,
    },
    /// Not a number, or one of more than 64 bits.
    #[error("`{number}` in the argument `{argument}` is not a number of 64 bits")]
    Number {
        /// The argument.
        argument: String,
        /// What is there.
        number: String,
    },
    /// An index register can be multiplied by 1, 2, 4 or 8.
    #[error("`{scale}` in the argument `{argument}` is not 1, 2, 4 or 8")]
    Scale {
        /// The argument.
        argument: String,
        /// What is there.
        scale: String,
    },
    /// No compiler's work.
    #[error("more than {limit} arguments")]
    TooMany {
        /// The limit.
        limit: usize,
    },
}

/// What is wrong within one argument.
pub(crate) enum Fault<'a> {
    Syntax,
    Size(&'a str),
    Register(&'a str),
    Number(&'a str),
    Scale(&'a str),
}

impl Fault<'_> {
    fn of(self, argument: &str) -> ArgumentError {
        let argument = cut(argument);
        match self {
            Fault::Syntax => ArgumentError::Syntax { argument },
            Fault::Size(size) => ArgumentError::Size { argument, size: cut(size) },
            Fault::Register(register) => ArgumentError::Register { argument, register: cut(register) },
            Fault::Number(number) => ArgumentError::Number { argument, number: cut(number) },
            Fault::Scale(scale) => ArgumentError::Scale { argument, scale: cut(scale) },
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

/// The arguments that `text` describes, in order. Symbols are not resolved.
///
/// ```
/// use sidestep_symbols::usdt::{ArgumentKind, Place, Syntax, parse_arguments};
/// let arguments = parse_arguments("-4@%eax 8@-8(%rbp,%rsi,4) 4@$42", Syntax::X64).unwrap();
/// assert_eq!((arguments[0].size, arguments[0].kind), (4, ArgumentKind::Signed));
/// assert_eq!(arguments[2].place, Place::Constant(42));
/// ```
pub fn parse_arguments(text: &str, syntax: Syntax) -> Result<Vec<Argument>, ArgumentError> {
    let mut arguments = Vec::new();
    for part in split(text) {
        if arguments.len() == ARGUMENTS_MAX {
            return Err(ArgumentError::TooMany { limit: ARGUMENTS_MAX });
        }
        // Blanks within brackets mean nothing.
        let plain: String = part.split_ascii_whitespace().collect();
        arguments.push(argument(&plain, syntax).map_err(|fault| fault.of(part))?);
    }
    Ok(arguments)
}

/// Splits at blanks that are not within brackets: `-4@[sp, 12] 8@x0`.
pub(super) fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |c: char| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && c.is_ascii_whitespace()
    })
    .filter(|part| !part.is_empty())
}

fn argument(text: &str, syntax: Syntax) -> Result<Argument, Fault<'_>> {
    let (prefix, operand) = text.split_once('@').ok_or(Fault::Syntax)?;
    let (prefix, is_float) = prefix.strip_suffix('f').map_or((prefix, false), |prefix| (prefix, true));
    let (digits, is_signed) = prefix.strip_prefix('-').map_or((prefix, false), |digits| (digits, true));
    let size = number(digits).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).ok_or(Fault::Size(prefix))?;
    let kind = match (is_float, is_signed) {
        (true, _) => ArgumentKind::Float,
        (false, true) => ArgumentKind::Signed,
        (false, false) => ArgumentKind::Unsigned,
    };
    Ok(Argument { size, kind, place: operand::place(operand, syntax)? })
}

/// A sum of numbers and at most one symbol: `-8`, `-8+16`, `symbol+4`, `4+symbol`, nothing.
pub(crate) fn terms(text: &str) -> Result<(Option<Symbol>, i64), Fault<'_>> {
    let (mut symbol, mut sum) = (None, 0_i64);
    let mut rest = text;
    while !rest.is_empty() {
        let is_sign = |c: char| c == '+' || c == '-';
        let unsigned = rest.strip_prefix(is_sign).unwrap_or(rest);
        let end = rest.len() - unsigned.len() + unsigned.find(is_sign).unwrap_or(unsigned.len());
        let term = &rest[..end];
        rest = &rest[end..];
        if unsigned.starts_with(|c: char| c.is_ascii_digit()) {
            let value = number(term.strip_prefix('+').unwrap_or(term)).ok_or(Fault::Number(term))?;
            sum = sum.checked_add(value).ok_or(Fault::Number(text))?;
            continue;
        }
        let name = term.strip_prefix('+').unwrap_or(term);
        // `symbol@GOTPCREL` is a name that no table has.
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$' | '@') || !c.is_ascii();
        if symbol.is_some() || name.is_empty() || !name.chars().all(is_name) {
            return Err(Fault::Syntax);
        }
        symbol = Some(Symbol { name: name.into(), va: None, origin: Va(0) });
    }
    Ok((symbol, sum))
}

/// A number in decimal, or in hexadecimal with `0x`; of positive ones above `i64::MAX`, the bits.
pub(crate) fn number(text: &str) -> Option<i64> {
    let (digits, is_negative) = text.strip_prefix('-').map_or((text, false), |digits| (digits, true));
    let (digits, radix) = digits.strip_prefix("0x").map_or((digits, 10), |digits| (digits, 16));
    // Rust's parser takes a sign, too.
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    match is_negative {
        false => Some(magnitude as i64),
        true => 0_i64.checked_sub_unsigned(magnitude),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An argument in a form that a table can have: size, kind, and the place as text.
    fn shown(text: &str, syntax: Syntax) -> String {
        let word = |register: &Register| format!("r{}.{}>>{}", register.word, register.size, register.shift);
        let place = |place: &Place| match place {
            Place::Constant(value) => value.to_string(),
            Place::Register(register) => word(register),
            Place::Vector(number) => format!("xmm{number}"),
            Place::Memory(memory) => {
                let mut sum: Vec<String> = memory.symbol.iter().map(|s| s.name.to_string()).collect();
                sum.extend(memory.base.iter().map(word));
                sum.extend(memory.index.iter().map(|(register, shift)| format!("{}<<{shift}", word(register))));
                sum.push(memory.displacement.to_string());
                format!("[{}]", sum.join(" "))
            }
        };
        match parse_arguments(text, syntax) {
            Ok(arguments) => {
                let one = |a: &Argument| format!("{}{:?} {}", a.size, a.kind, place(&a.place));
                arguments.iter().map(one).collect::<Vec<_>>().join("; ")
            }
            Err(error) => error.to_string(),
        }
    }

    fn check(syntax: Syntax, table: &[(&str, &str)]) {
        for (text, wanted) in table {
            assert_eq!(shown(text, syntax), *wanted, "{text}");
        }
    }

    #[test]
    fn operands_of_x86() {
        check(
            Syntax::X64,
            &[
                ("", ""),
                (" \t", ""),
                ("-4@%eax", "4Signed r10.4>>0"),
                ("8@-8(%rbp) 4@$42", "8Unsigned [r4.8>>0 -8]; 4Unsigned 42"),
                ("8@(%rdi,%rsi,8)", "8Unsigned [r14.8>>0 r13.8>>0<<3 0]"),
                ("8@16( %rdi , %rsi )", "8Unsigned [r14.8>>0 r13.8>>0<<0 16]"),
                ("8@(,%rax,4)", "8Unsigned [r10.8>>0<<2 0]"),
                ("-1@sym+4(%rip)", "1Signed [sym r16.8>>0 4]"),
                ("-1@4+sym.0(%rip)", "1Signed [sym.0 r16.8>>0 4]"),
                ("-1@sym", "1Signed [sym 0]"),
                ("4@table-8(,%rbx,4)", "4Unsigned [table r5.8>>0<<2 -8]"),
                ("4@x@GOTPCREL(%rip)", "4Unsigned [x@GOTPCREL r16.8>>0 0]"),
                ("4@-8+0x10-1(%rsp)", "4Unsigned [r19.8>>0 7]"),
                ("8f@%rax", "8Float r10.8>>0"),
                ("-8f@(%rax)", "8Float [r10.8>>0 0]"),
                ("1@%ah", "1Unsigned r10.1>>8"),
                ("24@(%rsp)", "24Unsigned [r19.8>>0 0]"),
                ("8@$-1", "8Unsigned -1"),
                ("8@$18446744073709551615", "8Unsigned -1"),
                ("8@$-9223372036854775808", "8Unsigned -9223372036854775808"),
            ],
        );
        check(
            Syntax::X86,
            &[
                ("-4@8(%ebp) 2@%si", "4Signed [r4.4>>0 8]; 2Unsigned r13.2>>0"),
                ("4@8+x@GOTOFF(%ebx)", "4Unsigned [x@GOTOFF r5.4>>0 8]"),
            ],
        );
    }

    #[test]
    fn operands_of_arm() {
        check(
            Syntax::A64,
            &[
                ("-4@[sp, 12] 8@x0", "4Signed [r31.8>>0 12]; 8Unsigned r0.8>>0"),
                ("4@w3 4@5 4@#-6", "4Unsigned r3.4>>0; 4Unsigned 5; 4Unsigned -6"),
                ("8@[x1, x2, lsl 3]", "8Unsigned [r1.8>>0 r2.8>>0<<3 0]"),
                ("8@[x29]", "8Unsigned [r29.8>>0 0]"),
                ("8@[x1, w2, sxtw 3]", "the argument `8@[x1, w2, sxtw 3]` is of no known form"),
            ],
        );
        check(
            Syntax::A32,
            &[
                ("-4@[fp, #-16] 4@r0", "4Signed [r11.4>>0 -16]; 4Unsigned r0.4>>0"),
                ("4@#5 4@[r3, r4, lsl #2]", "4Unsigned 5; 4Unsigned [r3.4>>0 r4.4>>0<<2 0]"),
            ],
        );
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for text in [
            "8",
            "%rax",
            "8@",
            "8@()",
            "8@16",
            "8@(%rax",
            "8@%rax)",
            "8@(%rax,%rbx,4,1)",
            "8@8(,,4)",
            "8@a+b(%rip)",
            "8@-a(%rip)",
            "8@+(%rip)",
            "8@1+(%rip)",
            "8@%fs:(%rax)",
            "8@*(%rax)",
        ] {
            let error = parse_arguments(text, Syntax::X64).unwrap_err();
            assert_eq!(error, ArgumentError::Syntax { argument: text.to_owned() });
        }
        check(
            Syntax::X64,
            &[
                ("8@%xmm16", "`%xmm16` in the argument `8@%xmm16` is not a general register"),
                ("8@%fs:8", "`%fs:8` in the argument `8@%fs:8` is not a general register"),
                ("8@(rax)", "`rax` in the argument `8@(rax)` is not a general register"),
                ("8@(%rax,%rbx,3)", "`3` in the argument `8@(%rax,%rbx,3)` is not 1, 2, 4 or 8"),
                ("8@$x", "`x` in the argument `8@$x` is not a number of 64 bits"),
                ("8@$+1", "`+1` in the argument `8@$+1` is not a number of 64 bits"),
                ("8@$0x+1", "`0x+1` in the argument `8@$0x+1` is not a number of 64 bits"),
                ("8@$", "`` in the argument `8@$` is not a number of 64 bits"),
                (
                    "8@$18446744073709551616",
                    "`18446744073709551616` in the argument `8@$18446744073709551616` is not a number of 64 bits",
                ),
                ("0@%rax", "`0` in the argument `0@%rax` is not a size"),
                ("--8@%rax", "`--8` in the argument `--8@%rax` is not a size"),
                (
                    "8@9223372036854775807+1(%rax)",
                    "`9223372036854775807+1` in the argument `8@9223372036854775807+1(%rax)` is not a number of 64 bits",
                ),
            ],
        );
        let many = "1@$1 ".repeat(65);
        assert_eq!(parse_arguments(&many, Syntax::X64), Err(ArgumentError::TooMany { limit: 64 }));
    }
}
