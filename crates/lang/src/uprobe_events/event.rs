//! What an event is: where it happens and what it records.

use std::fmt;

use sidestep_bpf::Size;
use sidestep_isa::{Context, Isa};

use super::error::ParseError;
use super::line;

/// Elements of an array at most, as in the kernel (`MAX_ARRAY_LEN`).
pub(super) const MAX_ARRAY: u32 = 64;

/// When an event happens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Before the probed instruction.
    Entry,
    /// When the function that starts at the probed instruction returns.
    Return,
}

/// An event: a line of `uprobe_events`, or what a program builds in its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Entry or return.
    pub kind: Kind,
    /// Its group; `uprobes` if the line says none.
    pub group: String,
    /// Its name.
    pub name: String,
    /// The object's file.
    pub path: String,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// Where in the file the semaphore of a USDT probe is, in bytes.
    pub ref_ctr: Option<u64>,
    /// How many calls are watched at a time, as `kprobe_events` has it: `r10:GROUP/EVENT`. 0 = any
    /// number. Only at a return.
    pub maxactive: u32,
    /// What is recorded, in this order.
    pub args: Vec<Arg>,
}

impl Event {
    /// Reads a line.
    ///
    /// # Errors
    /// If the kernel would refuse it, or it asks for what only the kernel has; and lines that
    /// define nothing: comments and `-:GROUP/EVENT`.
    pub fn parse(line: &str) -> Result<Event, ParseError> {
        line::parse(line)
    }

    /// An event without arguments that says nothing about a file: for probes that are found in
    /// another way.
    #[must_use]
    pub fn new(kind: Kind, group: &str, name: &str) -> Event {
        let (group, name) = (group.to_owned(), name.to_owned());
        Event { kind, group, name, path: String::new(), offset: 0, ref_ctr: None, maxactive: 0, args: Vec::new() }
    }

    /// The same event with one more argument.
    #[must_use]
    pub fn with(mut self, arg: Arg) -> Event {
        self.args.push(arg);
        self
    }
}

impl fmt::Display for Event {
    /// As `uprobe_events` lists it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == Kind::Return { 'r' } else { 'p' };
        write!(f, "{kind}")?;
        if self.maxactive != 0 {
            write!(f, "{}", self.maxactive)?;
        }
        write!(f, ":{}/{} {}:{:#018x}", self.group, self.name, self.path, self.offset)?;
        if let Some(offset) = self.ref_ctr {
            write!(f, "({offset:#x})")?;
        }
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

/// An argument: a value that an event records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arg {
    /// Its name.
    pub name: String,
    /// Where the value is.
    pub fetch: Fetch,
    /// What it is.
    pub ty: Type,
    /// Elements of an array, 1 to 64; `None` if it is none.
    pub count: Option<u32>,
}

impl Arg {
    /// A single value.
    #[must_use]
    pub fn new(name: &str, fetch: Fetch, ty: Type) -> Arg {
        Arg { name: name.to_owned(), fetch, ty, count: None }
    }
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.fetch)?;
        if !self.fetch.is_text() {
            write!(f, ":{}", self.ty)?;
        }
        self.count.map_or(Ok(()), |count| write!(f, "[{count}]"))
    }
}

/// Where a value is: a base, and offsets at which memory is read, one after the other.
///
/// `+8(+0(%di))` is the base `%di` with the derefs 0 and 8. A string or array begins where the last
/// deref points to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// What it starts with.
    pub base: Base,
    /// Offsets, in bytes; the first is applied first.
    pub derefs: Vec<i64>,
}

impl Fetch {
    /// The base itself.
    #[must_use]
    pub fn value(base: Base) -> Fetch {
        Fetch { base, derefs: Vec::new() }
    }

    /// What is in memory at `offset` from this value.
    #[must_use]
    pub fn deref(mut self, offset: i64) -> Fetch {
        self.derefs.push(offset);
        self
    }

    /// Whether it is text by itself, not an address.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.base, Base::Comm | Base::Text(_))
    }
}

impl fmt::Display for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `@+OFFSET` is a base with a deref of 0.
        let is_file = matches!(self.base, Base::FileOffset(_)) && self.derefs.first() == Some(&0);
        let derefs = &self.derefs[usize::from(is_file)..];
        derefs.iter().rev().try_for_each(|offset| write!(f, "{offset:+}("))?;
        write!(f, "{}", self.base)?;
        derefs.iter().try_for_each(|_| f.write_str(")"))
    }
}

/// A word of the programs that this build probes: what the stack consists of, and as long as an
/// address.
pub(super) const WORD: Size = if size_of::<usize>() == 4 { Size::W } else { Size::Dw };

/// What a fetch starts with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Base {
    /// A register at the probe.
    Register(Register),
    /// The stack pointer.
    StackPointer,
    /// The n-th word of the stack, from the stack pointer on.
    Stack(u32),
    /// What the function returns. Only at a return.
    ReturnValue,
    /// The n-th integer argument of the function, from 0 on, as the System V ABI passes it. Only at
    /// a function's entry.
    Argument(u32),
    /// The name of the thread. Always a string.
    Comm,
    /// A number.
    Immediate(u64),
    /// The address of this byte of the probed file.
    FileOffset(i64),
    /// Text. Always a string.
    Text(String),
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Base::Register(register) => write!(f, "%{}", register.name()),
            Base::StackPointer => f.write_str("$stack"),
            Base::Stack(n) => write!(f, "$stack{n}"),
            Base::ReturnValue => f.write_str("$retval"),
            Base::Argument(n) => write!(f, "$arg{}", u64::from(*n) + 1),
            Base::Comm => f.write_str("$comm"),
            Base::Immediate(value) => write!(f, "\\{value}"),
            Base::FileOffset(offset) => write!(f, "@+{offset}"),
            Base::Text(text) => write!(f, "\\\"{text}\""),
        }
    }
}

/// A register of the context of a hit, by its name in the kernel's `regs_query_register_offset`, or
/// the lower half of one for floating-point numbers: its offset in the context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Register(u16);

/// Where they are.
fn context() -> &'static Context {
    Isa::with_word(WORD.bytes() as u8).limits().context
}

impl Register {
    /// What a function returns.
    #[must_use]
    pub fn result() -> Register {
        Register(context().result)
    }

    /// The address of the probed instruction.
    #[must_use]
    pub fn pc() -> Register {
        Register(context().pc)
    }

    /// The stack pointer.
    #[must_use]
    pub fn stack_pointer() -> Register {
        Register(context().stack_pointer)
    }

    /// What the first arguments are in; those behind them are on the stack.
    pub(super) fn arguments() -> impl ExactSizeIterator<Item = Register> {
        context().arguments.iter().map(|at| Register(*at))
    }

    /// The register with this name: as in `struct pt_regs`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Register> {
        Register::all().find(|register| register.name() == name)
    }

    /// All of them, in the order of the context.
    pub fn all() -> impl Iterator<Item = Register> {
        named().map(|(_, at)| Register(at))
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        named().find_map(|(name, at)| (at == self.0).then_some(name)).unwrap_or_default()
    }

    /// Its offset in the context, in bytes.
    #[must_use]
    pub fn offset(self) -> i16 {
        self.0 as i16
    }
}

fn named() -> impl Iterator<Item = (&'static str, u16)> {
    context().words().chain(context().float_words())
}

/// What a value is and how it is printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// `u8` to `u64`.
    Unsigned(Size),
    /// `s8` to `s64`.
    Signed(Size),
    /// `x8` to `x64`: unsigned, printed in hexadecimal.
    Hex(Size),
    /// A byte, printed as a character.
    Char,
    /// `bWIDTH@SHIFT/SIZE`: bits of a number.
    Bits {
        /// How many bits.
        width: u8,
        /// The lowest.
        shift: u8,
        /// Of a number of this length.
        size: Size,
    },
    /// Text that ends with a zero byte. `ustring` is the same here.
    String,
}

impl Type {
    /// The type with this name, except those of bits.
    pub(super) fn by_name(name: &str) -> Option<Type> {
        match name {
            "string" | "ustring" => return Some(Type::String),
            "char" => return Some(Type::Char),
            _ => {}
        }
        let size = size_of_bits(name.get(1..)?)?;
        match name.as_bytes().first()? {
            b'u' => Some(Type::Unsigned(size)),
            b's' => Some(Type::Signed(size)),
            b'x' => Some(Type::Hex(size)),
            _ => None,
        }
    }

    /// Length of a value in a record, in bytes; of a string: of the word that says where it is.
    #[must_use]
    pub fn size(self) -> Size {
        match self {
            Type::Unsigned(size) | Type::Signed(size) | Type::Hex(size) | Type::Bits { size, .. } => size,
            Type::Char => Size::B,
            Type::String => Size::W,
        }
    }

    /// Whether it is compared as a signed number.
    #[must_use]
    pub fn is_signed(self) -> bool {
        matches!(self, Type::Signed(_))
    }
}

fn size_of_bits(bits: &str) -> Option<Size> {
    [("8", Size::B), ("16", Size::H), ("32", Size::W), ("64", Size::Dw)]
        .into_iter()
        .find_map(|(name, size)| (name == bits).then_some(size))
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Unsigned(size) => write!(f, "u{}", size.bits()),
            Type::Signed(size) => write!(f, "s{}", size.bits()),
            Type::Hex(size) => write!(f, "x{}", size.bits()),
            Type::Char => f.write_str("char"),
            Type::Bits { width, shift, size } => write!(f, "b{width}@{shift}/{}", size.bits()),
            Type::String => f.write_str("string"),
        }
    }
}
