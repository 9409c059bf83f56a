//! Arguments of lines: `NAME=FETCH:TYPE[COUNT]`.

use super::error::{ErrorKind, ParseError};
use super::event::{Arg, Base, Fetch, Kind, MAX_ARRAY, Register, Type, WORD};
use super::line::Word;
use super::number;

/// Bytes of an argument's text without its name at most, as in the kernel (`MAX_ARGSTR_LEN`).
const MAX_TEXT: usize = 63;

/// Bytes of an argument's name at most, as in the kernel (`MAX_ARG_NAME_LEN`).
const MAX_NAME: usize = 32;

/// Bytes of all values at most, as in the kernel (`MAX_PROBE_EVENT_SIZE`).
pub(super) const MAX_EVENT: usize = 3072;

/// Steps of a fetch, from the base to the end mark, as in the kernel (`FETCH_INSN_MAX`): the last
/// index is the mark.
const LAST_STEP: usize = 15;

/// Highest `$argN`, as in the kernel (`PARAM_MAX_STACK`).
const MAX_ARG_NUMBER: u64 = 2048;

const RESERVED: [&str; 8] = [
    "common_type",
    "common_flags",
    "common_preempt_count",
    "common_pid",
    "common_tgid",
    "__probe_ip",
    "__probe_ret_ip",
    "__probe_func",
];

/// Whether it is a C identifier.
pub(super) fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Arguments as far as they are read.
pub(super) struct Args {
    kind: Kind,
    args: Vec<Arg>,
    size: usize,
    /// Where errors are reported, as the kernel keeps it: behind the brace of the outermost deref
    /// once there was one, and a byte short for each `u` in front of offsets.
    at: usize,
}

/// The type of an argument, before it is known whether it fits.
#[derive(Clone, Copy)]
struct TypeText<'a> {
    /// Without what says that it is an array.
    text: &'a str,
    /// From the start of the argument's text; 0 if there is none.
    offset: usize,
    /// Of the values; bits are those of a whole number.
    ty: Type,
    count: Option<u32>,
}

impl Args {
    pub fn new(kind: Kind) -> Args {
        Args { kind, args: Vec::new(), size: 0, at: 0 }
    }

    pub fn parse(mut self, words: &[Word<'_>]) -> Result<Vec<Arg>, ParseError> {
        for word in words {
            let arg = self.arg(*word)?;
            self.args.push(arg);
        }
        Ok(self.args)
    }

    fn error(&self, kind: ErrorKind) -> ParseError {
        self.error_at(0, kind)
    }

    fn error_at(&self, offset: usize, kind: ErrorKind) -> ParseError {
        ParseError { position: self.at + offset, kind }
    }

    fn arg(&mut self, word: Word<'_>) -> Result<Arg, ParseError> {
        let equals = word.text.find('=');
        let (name, body) = match equals {
            Some(end) if end > MAX_NAME => return Err(word.error(0, ErrorKind::ArgNameTooLong)),
            Some(0) => return Err(word.error(0, ErrorKind::NoArgName)),
            Some(end) => (word.text[..end].to_owned(), word.from(end + 1)),
            None => (format!("arg{}", self.args.len() + 1), word),
        };
        if !is_identifier(&name) {
            return Err(word.error(0, ErrorKind::BadArgName));
        }
        if RESERVED.contains(&name.as_str()) || self.args.iter().any(|arg| arg.name == name) {
            return Err(word.error(0, ErrorKind::UsedArgName));
        }
        self.at = body.at;
        let (fetch, ty, count) = self.body(body.text)?;
        Ok(Arg { name, fetch, ty, count })
    }

    fn body(&mut self, text: &str) -> Result<(Fetch, Type, Option<u32>), ParseError> {
        if text.len() > MAX_TEXT {
            return Err(self.error(ErrorKind::ArgTooLong));
        }
        if text.is_empty() {
            return Err(self.error(ErrorKind::NoArgBody));
        }
        let (fetch, ty) = match text.split_once(':') {
            Some((fetch, ty)) => (fetch, self.ty(fetch, Some(ty))?),
            None => (text, self.ty(text, None)?),
        };
        let mut is_user = false;
        let fetch = self.fetch(fetch, &mut is_user)?;
        self.size += ty.ty.size().bytes() * ty.count.unwrap_or(1) as usize;
        if self.size > MAX_EVENT {
            return Err(self.error(ErrorKind::EventTooBig));
        }
        let bits = self.finish(&fetch, is_user, &ty)?;
        Ok((fetch, bits.unwrap_or(ty.ty), ty.count))
    }

    /// The text behind the colon. `fetch` is what is before it.
    fn ty<'a>(&self, fetch: &str, text: Option<&'a str>) -> Result<TypeText<'a>, ParseError> {
        let offset = if text.is_some() { fetch.len() + 1 } else { 0 };
        let mut name = text;
        let mut count = None;
        if let Some((before, behind)) = text.and_then(|text| text.split_once('[')) {
            let at = offset + before.len() + 1;
            let close = behind.find(']').ok_or_else(|| self.error_at(at + behind.len(), ErrorKind::ArrayNoClose))?;
            if close + 1 != behind.len() {
                return Err(self.error_at(at + close + 1, ErrorKind::BadArraySuffix));
            }
            let number = number::unsigned(&behind[..close]).and_then(|n| u32::try_from(n).ok()).filter(|n| *n != 0);
            let number = number.ok_or_else(|| self.error_at(at, ErrorKind::BadArrayNum))?;
            if number > MAX_ARRAY {
                return Err(self.error_at(at, ErrorKind::ArrayTooBig));
            }
            (name, count) = (Some(before), Some(number));
        }
        if matches!(fetch, "$comm" | "$COMM") || fetch.starts_with("\\\"") {
            if count.is_some() || name.is_some_and(|name| name != "string") {
                return Err(self.error_at(offset, ErrorKind::NeedStringType));
            }
            return Ok(TypeText { text: "", offset, ty: Type::String, count });
        }
        let name = name.unwrap_or(if WORD.bytes() == 4 { "x32" } else { "x64" });
        let ty = match name.strip_prefix('b') {
            Some(bits) => bits
                .split_once('/')
                .and_then(|(_, size)| number::unsigned(size).and_then(|bits| Type::by_name(&format!("u{bits}")))),
            None => Type::by_name(name),
        };
        let kind = if matches!(name, "symbol" | "symstr") { ErrorKind::KernelType } else { ErrorKind::BadType };
        let ty = ty.ok_or_else(|| self.error_at(offset, kind))?;
        Ok(TypeText { text: name, offset, ty, count })
    }

    /// `is_user` becomes whether the outermost deref has a `u`.
    fn fetch(&mut self, text: &str, is_user: &mut bool) -> Result<Fetch, ParseError> {
        match text.as_bytes() {
            [b'$', ..] => self.variable(&text[1..]).map(Fetch::value),
            [b'%', ..] => {
                let register = Register::by_name(&text[1..]).ok_or_else(|| self.error(ErrorKind::BadRegName))?;
                Ok(Fetch::value(Base::Register(register)))
            }
            [b'@', b'+', ..] => {
                let offset = number::signed(&text[2..]).ok_or_else(|| self.error(ErrorKind::BadFileOffs))?;
                Ok(Fetch::value(Base::FileOffset(offset)).deref(0))
            }
            [b'@', b'0'..=b'9', ..] => {
                let address = number::unsigned(&text[1..]).ok_or_else(|| self.error(ErrorKind::BadMemAddr))?;
                Ok(Fetch::value(Base::Immediate(address)).deref(0))
            }
            [b'@', ..] => Err(self.error(ErrorKind::SymOnUprobe)),
            [b'+' | b'-', ..] => self.deref(text, is_user),
            [b'\\', b'"', ..] => {
                let text = &text[2..];
                let inner = text.strip_suffix('"');
                let inner = inner.ok_or_else(|| self.error_at(2 + text.len(), ErrorKind::ImmstrNoClose))?;
                Ok(Fetch::value(Base::Text(inner.to_owned())))
            }
            [b'\\', ..] => {
                let value = immediate(&text[1..]).ok_or_else(|| self.error_at(1, ErrorKind::BadImm))?;
                Ok(Fetch::value(Base::Immediate(value)))
            }
            [b'a'..=b'z' | b'A'..=b'Z' | b'_', ..] => Err(self.error(ErrorKind::NosupBtfarg)),
            _ => Err(self.error(ErrorKind::BadFetchArg)),
        }
    }

    fn variable(&self, name: &str) -> Result<Base, ParseError> {
        let error = |kind| self.error(kind);
        // The kernel compares no further than that.
        if name.starts_with("retval") {
            return if self.kind == Kind::Return {
                Ok(Base::ReturnValue)
            } else {
                Err(error(ErrorKind::RetvalOnProbe))
            };
        }
        if let Some(number) = name.strip_prefix("stack") {
            return match number.as_bytes().first() {
                None => Ok(Base::StackPointer),
                Some(b'0'..=b'9') => {
                    let number = number::decimal(number).and_then(|n| u32::try_from(n).ok());
                    number.map(Base::Stack).ok_or_else(|| error(ErrorKind::BadVar))
                }
                Some(_) => Err(error(ErrorKind::BadVar)),
            };
        }
        if matches!(name, "comm" | "COMM") {
            return Ok(Base::Comm);
        }
        let number = name.strip_prefix("arg").and_then(number::decimal).ok_or_else(|| error(ErrorKind::BadVar))?;
        match (number, self.kind) {
            (0, _) | (MAX_ARG_NUMBER.., _) if number != MAX_ARG_NUMBER => Err(error(ErrorKind::BadArgNum)),
            (_, Kind::Return) => Err(error(ErrorKind::ArgOnReturn)),
            (_, Kind::Entry) => Ok(Base::Argument(number as u32 - 1)),
        }
    }

    /// `+|-[u]OFFSET(FETCH)`; what follows the last brace is ignored, as in the kernel.
    fn deref(&mut self, text: &str, is_user: &mut bool) -> Result<Fetch, ParseError> {
        let (sign, rest) = text.split_at(1);
        let user = rest.strip_prefix('u');
        let rest = user.unwrap_or(rest);
        let (digits, inner) = rest.split_once('(').ok_or_else(|| self.error(ErrorKind::DerefNeedBrace))?;
        // `+` is not looked at any more, so `+-8(` is `-8(`.
        let number = if sign == "+" { number::signed(digits) } else { number::signed(&format!("-{digits}")) };
        let offset = number.ok_or_else(|| self.error(ErrorKind::BadDerefOffs))?;
        self.at += digits.len() + 1 + usize::from(!(sign == "+" && digits.starts_with('-')));
        let at = self.at;
        let close = inner.rfind(')').ok_or_else(|| self.error_at(inner.len(), ErrorKind::DerefOpenBrace))?;
        let fetch = self.fetch(&inner[..close], &mut false)?;
        self.at = at;
        if fetch.is_text() {
            return Err(self.error(ErrorKind::CommCantDeref));
        }
        if fetch.derefs.len() + 1 == LAST_STEP {
            return Err(self.error(ErrorKind::TooManyOps));
        }
        *is_user = user.is_some();
        Ok(fetch.deref(offset))
    }

    /// Whether fetch and type fit. Returns the bits, if the type is bits.
    fn finish(&self, fetch: &Fetch, is_user: bool, ty: &TypeText<'_>) -> Result<Option<Type>, ParseError> {
        let in_memory = !fetch.derefs.is_empty();
        let bad_string = self.error_at(ty.offset, ErrorKind::BadString);
        // The kernel's index of the step that stores: a deref becomes it, anything else is followed
        // by it.
        let mut step = fetch.derefs.len() + usize::from(!in_memory);
        if ty.ty == Type::String {
            let is_address = matches!(fetch.base, Base::Immediate(_));
            if !in_memory && !is_address && !fetch.is_text() {
                return Err(bad_string);
            }
            if !in_memory && is_address && ty.count.is_some() {
                return Err(self.error_at(ty.offset, ErrorKind::StringsAtImmediate));
            }
            step += usize::from(in_memory && ty.count.is_some());
            if step == LAST_STEP {
                return Err(self.error(ErrorKind::TooManyOps));
            }
        }
        let mut bits = None;
        if let Some(text) = ty.text.strip_prefix('b') {
            step += 1;
            bits = parse_bits(text, ty.ty).filter(|_| step < LAST_STEP);
            if bits.is_none() {
                return Err(self.error_at(ty.offset, ErrorKind::BadBitfield));
            }
        }
        if ty.count.is_some() {
            // There is no loop over what `u` reads, except strings.
            if ty.ty != Type::String && (!in_memory || is_user) {
                return Err(bad_string);
            }
            if step + 1 == LAST_STEP {
                return Err(self.error(ErrorKind::TooManyOps));
            }
        }
        Ok(bits)
    }
}

fn immediate(text: &str) -> Option<u64> {
    match text.as_bytes().first()? {
        b'0'..=b'9' => number::unsigned(text),
        b'-' => number::signed(text).map(|value| value as u64),
        b'+' => number::signed(&text[1..]).map(|value| value as u64),
        _ => None,
    }
}

/// `WIDTH@SHIFT/SIZE`
fn parse_bits(text: &str, ty: Type) -> Option<Type> {
    let (width, rest) = number::leading(text)?;
    let rest = rest.strip_prefix('@')?;
    let (shift, end) = number::leading(rest)?;
    let size = ty.size();
    let fits = width.checked_add(shift).is_some_and(|bits| bits <= size.bits().into());
    let is_written = width != 0 && end.len() < rest.len() && end.starts_with('/');
    (fits && is_written).then_some(Type::Bits { width: width as u8, shift: shift as u8, size })
}
