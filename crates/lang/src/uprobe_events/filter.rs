//! Filters: `size > 64 && name ~ "lib*" || !(flags & 4)`.

use sidestep_bpf::Size;

use super::error::{ErrorKind, ParseError};
use super::event::{Base, Event, Kind, Type};
use super::line::is_space;
use super::number;
use super::pattern::Pattern;

/// Bytes of a string in a filter, with the zero byte that ends it in the kernel
/// (`MAX_FILTER_STR_VAL`).
const MAX_STRING: usize = 256;

/// Bytes of a number in a filter, with the zero byte that ends it in the kernel.
const MAX_NUMBER: usize = 24;

/// CPUs that there can be: those that a kernel can be built for on x86-64 (`NR_CPUS`).
const MAX_CPUS: u64 = 8192;

/// Parentheses in parentheses at most.
const MAX_DEPTH: usize = 64;

/// Which events are recorded: those for which an expression holds.
///
/// Fields are the arguments, `__probe_ip` (at returns `__probe_func` and `__probe_ret_ip`),
/// `common_pid`, `comm` and `CPU`. A number that cannot be read counts as 0, a string as empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    pub(super) expr: Expr,
}

/// An expression without negations but those of its terms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Expr {
    /// All of them: true if there are none.
    All(Vec<Expr>),
    /// One of them: false if there are none.
    Any(Vec<Expr>),
    /// A number is in this relation to a constant.
    Number {
        field: Field,
        /// Of the field.
        size: Size,
        signed: bool,
        op: Op,
        /// Truncated to the size.
        value: u64,
        negated: bool,
    },
    /// Text looks like this.
    Text { field: Field, pattern: Pattern, negated: bool },
}

impl Expr {
    pub const TRUE: Expr = Expr::All(Vec::new());
    pub const FALSE: Expr = Expr::Any(Vec::new());

    pub fn constant(value: bool) -> Expr {
        if value { Expr::TRUE } else { Expr::FALSE }
    }

    fn negate(self) -> Expr {
        match self {
            Expr::All(parts) => Expr::Any(parts.into_iter().map(Expr::negate).collect()),
            Expr::Any(parts) => Expr::All(parts.into_iter().map(Expr::negate).collect()),
            Expr::Number { field, size, signed, op, value, negated } => {
                Expr::Number { field, size, signed, op, value, negated: !negated }
            }
            Expr::Text { field, pattern, negated } => Expr::Text { field, pattern, negated: !negated },
        }
    }
}

/// What is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    /// An argument.
    Arg(usize),
    /// The instruction pointer.
    Ip,
    /// The function that returns.
    Func,
    /// The thread.
    Pid,
    /// The CPU.
    Cpu,
    /// The thread's name.
    Comm,
}

/// How numbers are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// A common bit is set.
    And,
}

/// CPUs and ranges of them, without overlaps; `None` if the text is none.
fn cpulist(text: &str) -> Option<Vec<(u64, u64)>> {
    let mut cpus = Vec::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number::decimal(first)?, number::decimal(last)?);
        if first > last || last >= MAX_CPUS {
            return None;
        }
        cpus.push((first, last));
    }
    cpus.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (first, last) in cpus {
        match joined.last_mut() {
            Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    (!joined.is_empty()).then_some(joined)
}

/// What a field holds.
#[derive(Clone, Copy)]
enum Holds {
    Number(Size, bool),
    /// An array that is as long as no number.
    Bytes,
    Text,
}

impl Filter {
    /// Reads a filter for an event. `0` is the filter that takes all.
    ///
    /// # Errors
    /// If the kernel would refuse it, or it asks for what only the kernel has; also where the
    /// kernel takes an expression that ends too early.
    pub fn parse(text: &str, event: &Event) -> Result<Filter, ParseError> {
        if text.trim() == "0" {
            return Ok(Filter { expr: Expr::TRUE });
        }
        check_pairs(text.as_bytes())?;
        let mut parser = Parser { text, event, at: 0, depth: 0 };
        parser.skip_spaces();
        if parser.peek().is_none() {
            return Err(ParseError { position: 0, kind: ErrorKind::NoFilter });
        }
        let expr = parser.any()?;
        match parser.peek() {
            None => Ok(Filter { expr }),
            Some(_) => Err(parser.error(0, ErrorKind::TooManyPreds)),
        }
    }
}

/// Quotes and parentheses come in pairs. The kernel checks that first.
fn check_pairs(text: &[u8]) -> Result<(), ParseError> {
    let error = |position, kind| Err(ParseError { position, kind });
    let mut open = Vec::new();
    let mut quote = None;
    for (at, byte) in text.iter().enumerate() {
        match (quote, byte) {
            (Some((_, q)), byte) if q == byte => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some((at, byte)),
            (None, b'(') => open.push(at),
            (None, b')') if open.pop().is_none() => return error(at, ErrorKind::TooManyClose),
            (None, _) => {}
        }
    }
    if let Some((at, _)) = quote {
        return error(at, ErrorKind::MissingQuote);
    }
    open.last().map_or(Ok(()), |at| error(*at, ErrorKind::TooManyOpen))
}

struct Parser<'a> {
    text: &'a str,
    event: &'a Event,
    at: usize,
    depth: usize,
}

/// Operators in the order in which they are tried.
const OPERATORS: [(&str, Option<Op>); 8] = [
    ("~", None),
    ("!=", Some(Op::Ne)),
    ("==", Some(Op::Eq)),
    ("<=", Some(Op::Le)),
    ("<", Some(Op::Lt)),
    (">=", Some(Op::Ge)),
    (">", Some(Op::Gt)),
    ("&", Some(Op::And)),
];

impl<'a> Parser<'a> {
    fn error(&self, offset: usize, kind: ErrorKind) -> ParseError {
        ParseError { position: self.at + offset, kind }
    }

    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn peek(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    fn skip(&mut self, what: impl Fn(u8) -> bool) {
        self.at += self.rest().iter().take_while(|b| what(**b)).count();
    }

    fn skip_spaces(&mut self) {
        self.skip(is_space);
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token.as_bytes());
        if found {
            self.at += token.len();
        }
        found
    }

    fn any(&mut self) -> Result<Expr, ParseError> {
        let mut parts = vec![self.all()?];
        while self.take("||") {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expr::Any(parts) })
    }

    fn all(&mut self) -> Result<Expr, ParseError> {
        let mut parts = vec![self.term()?];
        while self.take("&&") {
            parts.push(self.term()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expr::All(parts) })
    }

    /// A term, and the blanks behind it.
    fn term(&mut self) -> Result<Expr, ParseError> {
        let mut negated = false;
        let expr = loop {
            self.skip_spaces();
            match self.rest() {
                [b'(', ..] => break self.group()?,
                [b'!', b'=' | b'~', ..] => return Err(self.error(0, ErrorKind::InvalidFilter)),
                [b'!', ..] => {
                    negated = !negated;
                    self.at += 1;
                }
                _ => break self.predicate()?,
            }
        };
        self.skip_spaces();
        Ok(if negated { expr.negate() } else { expr })
    }

    fn group(&mut self) -> Result<Expr, ParseError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(0, ErrorKind::TooDeep));
        }
        self.depth += 1;
        self.at += 1;
        let expr = self.any()?;
        self.depth -= 1;
        if self.take(")") { Ok(expr) } else { Err(self.error(0, ErrorKind::TooManyPreds)) }
    }

    /// `FIELD OPERATOR CONSTANT`. The kernel's errors here point one byte too far; those that it
    /// does not have do not.
    fn predicate(&mut self) -> Result<Expr, ParseError> {
        let start = self.at;
        self.skip(|b| b.is_ascii_alphanumeric() || b == b'_');
        let name = &self.text[start..self.at];
        if name.is_empty() {
            return Err(self.error(0, ErrorKind::InvalidFilter));
        }
        let (field, holds) = self.field(name)?;
        self.take(".ustring");
        if self.rest().starts_with(b".function") {
            return Err(self.error(0, ErrorKind::NoFunction));
        }
        self.skip_spaces();
        let operator = OPERATORS.iter().find(|(text, _)| self.take(text));
        let (_, op) = operator.ok_or_else(|| self.error(1, ErrorKind::InvalidOp))?;
        self.skip_spaces();
        match self.rest() {
            [b'C', b'P', b'U', b'S', ..] => self.cpus_term(field, holds, *op),
            [b'\'' | b'"', ..] => self.text_term(field, holds, *op),
            [b'0'..=b'9' | b'-', ..] => self.number_term(field, holds, *op),
            _ => Err(self.error(1, ErrorKind::InvalidValue)),
        }
    }

    fn field(&self, name: &str) -> Result<(Field, Holds), ParseError> {
        if let Some(index) = self.event.args.iter().position(|arg| arg.name == name) {
            let arg = &self.event.args[index];
            let holds = match (arg.ty, arg.count) {
                (Type::String, _) => Holds::Text,
                (ty, None) => Holds::Number(ty.size(), ty.is_signed()),
                // As in the kernel, an array is the number that its bytes are.
                (ty, Some(count)) => match ty.size().bytes() * count as usize {
                    1 => Holds::Number(Size::B, ty.is_signed()),
                    2 => Holds::Number(Size::H, ty.is_signed()),
                    4 => Holds::Number(Size::W, ty.is_signed()),
                    8 => Holds::Number(Size::Dw, ty.is_signed()),
                    _ => Holds::Bytes,
                },
            };
            return Ok((Field::Arg(index), holds));
        }
        let address = Holds::Number(Size::Dw, false);
        let number = Holds::Number(Size::W, true);
        match (name, self.event.kind) {
            ("__probe_ip", Kind::Entry) | ("__probe_ret_ip", Kind::Return) => Ok((Field::Ip, address)),
            ("__probe_func", Kind::Return) => Ok((Field::Func, address)),
            ("common_pid", _) => Ok((Field::Pid, number)),
            ("CPU" | "cpu", _) => Ok((Field::Cpu, number)),
            ("COMM" | "comm", _) => Ok((Field::Comm, Holds::Text)),
            ("common_type" | "common_flags" | "common_preempt_count" | "STACKTRACE" | "stacktrace", _) => {
                Err(self.error(0, ErrorKind::KernelField))
            }
            _ => Err(self.error(1, ErrorKind::FieldNotFound)),
        }
    }

    fn text_term(&mut self, field: Field, holds: Holds, op: Option<Op>) -> Result<Expr, ParseError> {
        let mut negated = match op {
            None | Some(Op::Eq) => false,
            Some(Op::Ne) => true,
            Some(_) => return Err(self.error(1, ErrorKind::IllegalFieldOp)),
        };
        if !matches!(holds, Holds::Text) {
            return Err(self.error(1, ErrorKind::ExpectDigit));
        }
        let quote = self.peek();
        self.at += 1;
        let start = self.at;
        self.skip(|b| Some(b) != quote);
        let text = &self.text.as_bytes()[start..self.at];
        if text.len() >= MAX_STRING {
            return Err(self.error(1, ErrorKind::OperandTooLong));
        }
        let pattern = match (op, text) {
            (None, [b'!', text @ ..]) => {
                negated = true;
                Pattern::glob(text)
            }
            (None, text) => Pattern::glob(text),
            (Some(_), text) => Some(Pattern::exact(text)),
        };
        let kind = ErrorKind::PatternTooLong;
        let pattern = pattern.ok_or(ParseError { position: start, kind })?;
        self.at += 1;
        if let Field::Arg(index) = field {
            if let Base::Text(text) = &self.event.args[index].fetch.base {
                return Ok(Expr::constant(pattern.matches(text.as_bytes()) != negated));
            }
        }
        Ok(Expr::Text { field, pattern, negated })
    }

    /// `CPUS{0-3,7}`: a set of numbers. `==` and `!=` compare with all of it, `&` asks whether the
    /// number is in it.
    fn cpus_term(&mut self, field: Field, holds: Holds, op: Option<Op>) -> Result<Expr, ParseError> {
        let illegal = self.error(1, ErrorKind::IllegalFieldOp);
        let (Holds::Number(size, _), Some(op @ (Op::Eq | Op::Ne | Op::And))) = (holds, op) else {
            return Err(illegal);
        };
        self.at += 4;
        if !self.take("{") {
            return Err(self.error(2, ErrorKind::MissingBraceOpen));
        }
        let start = self.at;
        self.skip(|b| b != b'}');
        if self.peek().is_none() {
            return Err(self.error(1, ErrorKind::MissingBraceClose));
        }
        let cpus = cpulist(&self.text[start..self.at]).ok_or_else(|| self.error(1, ErrorKind::InvalidCpulist))?;
        self.at += 1;
        let number = |op, value| Expr::Number { field, size, signed: false, op, value, negated: false };
        Ok(match (cpus.as_slice(), op) {
            ([(first, last)], Op::Eq | Op::And) if first == last => number(Op::Eq, *first),
            ([(first, last)], Op::Ne) if first == last => number(Op::Ne, *first),
            (_, Op::And) => {
                let largest = sidestep_bpf::alu::truncate(size, u64::MAX);
                let fits = cpus.into_iter().filter(|(first, _)| *first <= largest);
                let within = |(first, last): (_, u64)| [number(Op::Ge, first), number(Op::Le, last.min(largest))];
                Expr::Any(fits.map(|range| Expr::All(within(range).into())).collect())
            }
            // One number is not several.
            (_, op) => Expr::constant(op == Op::Ne),
        })
    }

    fn number_term(&mut self, field: Field, holds: Holds, op: Option<Op>) -> Result<Expr, ParseError> {
        let illegal = self.error(1, ErrorKind::IllegalFieldOp);
        let (size, signed) = match holds {
            Holds::Text => return Err(self.error(1, ErrorKind::ExpectString)),
            Holds::Bytes => return Err(illegal),
            Holds::Number(size, signed) => (size, signed),
        };
        let op = op.ok_or(illegal)?;
        let start = self.at;
        self.take("-");
        self.skip(|b| b.is_ascii_alphanumeric());
        let text = &self.text[start..self.at];
        if text.len() >= MAX_NUMBER {
            return Err(self.error(1, ErrorKind::OperandTooLong));
        }
        let value = if signed { number::signed(text).map(|value| value as u64) } else { number::unsigned(text) };
        let kind = ErrorKind::IllegalIntval;
        let value = value.ok_or(ParseError { position: start + 1, kind })?;
        let value = sidestep_bpf::alu::truncate(size, value);
        Ok(Expr::Number { field, size, signed, op, value, negated: false })
    }
}
