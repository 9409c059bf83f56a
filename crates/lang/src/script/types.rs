//! What values and maps are.

use std::sync::Arc;

use super::ctype::{CType, Enum};
use super::number;

/// What an expression gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Type {
    /// Nothing: a call that only does something.
    None,
    /// A number. Values are kept in 64 bits; narrower ones are extended by their sign. The type of
    /// a variable, map or key grows with what it is given: see [`super::number`].
    Int {
        /// 1, 2, 4 or 8.
        bytes: u8,
        /// It may be negative.
        signed: bool,
    },
    /// An address of the target, and what is there.
    Pointer(Box<CType>),
    /// A number that has a name.
    Enum(Arc<Enum>),
    /// Something of C that is more than a number or text: its bytes.
    Data {
        /// What they are.
        ty: CType,
        /// How many there are.
        size: usize,
    },
    /// A string of so many bytes at most.
    Text(usize),
    /// Bytes, so many at most.
    Bytes(usize),
    /// Elements of one type, whose number is only known when they are read. Kept as [`Type::Bytes`]
    /// are.
    List(List),
    /// A call stack, kept in the stack map with this number.
    Stack(usize),
    /// An address that is printed as a name (`usym`).
    Symbol,
    /// The probe that was hit, as the whole attach point or only its function.
    Probe {
        /// Only the function.
        func: bool,
    },
    /// A user id that is printed as a name (`username`).
    User,
    /// A number of the system, printed as what it means.
    Meaning(Meaning),
    /// A time that is printed by this format (`strftime`).
    Time(String),
    /// Values, one behind the other, which are one thing together: see [`Form`].
    Tuple(Parts),
}

/// A list of elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct List {
    /// What they are.
    pub of: Box<CType>,
    /// Bytes of one.
    pub size: usize,
    /// How many are printed at most.
    pub len: usize,
}

impl List {
    /// Bytes that are read at most: one element more tells that there are more than are printed.
    #[must_use]
    pub fn room(&self) -> usize {
        self.size * (self.len + 1)
    }
}

/// Types of values that are kept one behind the other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    types: Vec<Type>,
    form: Form,
}

/// What the values are together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Form {
    /// A tuple.
    #[default]
    Tuple,
    /// A record with these names.
    Record(Vec<String>),
    /// An enumeration of Rust with texts or lists in some variants. The first value says which of
    /// the members in this list is there, from 1 on, or 0. The second value is the bytes of the
    /// enumeration, which are zeros if such a member is there. The others are these members.
    Variants(Vec<usize>),
    /// A list of texts: how many there are, and the first of them. The number is at most one
    /// greater than that of these texts.
    Texts,
}

impl Parts {
    /// Those of a record, or of a tuple if there are no names.
    #[must_use]
    pub fn named(names: Vec<String>, types: Vec<Type>) -> Parts {
        let form = if names.is_empty() { Form::Tuple } else { Form::Record(names) };
        Parts { types, form }
    }

    /// Those of something else.
    #[must_use]
    pub fn of(form: Form, types: Vec<Type>) -> Parts {
        Parts { types, form }
    }

    /// What they are together.
    #[must_use]
    pub fn form(&self) -> &Form {
        &self.form
    }

    /// The names of a record's parts, in order; else none.
    #[must_use]
    pub fn names(&self) -> &[String] {
        match &self.form {
            Form::Record(names) => names,
            _ => &[],
        }
    }

    /// Whether it is a tuple.
    #[must_use]
    pub fn is_tuple(&self) -> bool {
        self.form == Form::Tuple
    }

    /// Whether they are as many keys of a map: a record is one key, and so is the empty tuple.
    #[must_use]
    pub fn are_keys(&self) -> bool {
        self.is_tuple() && !self.types.is_empty()
    }

    /// Whether parts of both have the same names in the same order, or none.
    fn fits(&self, other: &Parts) -> bool {
        let is_same = self.form == other.form && self.len() == other.len();
        is_same && self.iter().zip(&**other).all(|(a, b)| a.fits(b))
    }
}

impl From<Vec<Type>> for Parts {
    fn from(types: Vec<Type>) -> Parts {
        Parts { types, form: Form::Tuple }
    }
}

impl std::ops::Deref for Parts {
    type Target = [Type];

    fn deref(&self) -> &[Type] {
        &self.types
    }
}

impl std::ops::DerefMut for Parts {
    fn deref_mut(&mut self) -> &mut [Type] {
        &mut self.types
    }
}

/// Of what kind a number of the system is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// An error of the C library (`strerror`).
    Error,
    /// A signal (`signal_name`).
    Signal,
    /// A system call of 64-bit programs (`syscall_name`).
    SystemCall,
}

impl Type {
    /// `int64`
    pub const INT: Type = Type::Int { bytes: 8, signed: true };
    /// `uint64`
    pub const UINT: Type = Type::Int { bytes: 8, signed: false };
    /// `uint32`
    pub const UINT32: Type = Type::Int { bytes: 4, signed: false };

    /// Whether one can calculate with it.
    #[must_use]
    pub fn is_int(&self) -> bool {
        matches!(self, Type::Int { .. } | Type::Pointer(_) | Type::Enum(_))
    }

    /// `bool`
    #[must_use]
    pub fn bool() -> Type {
        Type::Enum(Arc::new(Enum::bool()))
    }

    /// Whether it is `bool`.
    #[must_use]
    pub fn is_bool(&self) -> bool {
        matches!(self, Type::Enum(of) if of.is_bool())
    }

    /// Whether it is a number without a sign.
    #[must_use]
    pub fn is_unsigned(&self) -> bool {
        match self {
            Type::Int { signed, .. } => !signed,
            // As in C, where it is an `int` as soon as anything is computed.
            Type::Enum(of) => !of.signed && !of.is_bool(),
            ty => matches!(ty, Type::Pointer(_)),
        }
    }

    /// Whether values of both may be in one place.
    #[must_use]
    pub fn fits(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Int { .. }, Type::Int { .. } | Type::Enum(_))
            | (Type::Enum(_), Type::Int { .. })
            | (Type::Text(_), Type::Text(_))
            | (Type::Bytes(_), Type::Bytes(_)) => true,
            (Type::Probe { func: a }, Type::Probe { func: b }) => a == b,
            (Type::Tuple(a), Type::Tuple(b)) => a.fits(b),
            (a, b) => a == b,
        }
    }

    /// Makes room for values of another type that [`Type::fits`].
    pub fn widen(&mut self, other: &Type) {
        match (self, other) {
            (Type::Text(len), Type::Text(new)) | (Type::Bytes(len), Type::Bytes(new)) => *len = (*len).max(*new),
            (Type::Tuple(types), Type::Tuple(new)) => types.iter_mut().zip(&**new).for_each(|(ty, new)| ty.widen(new)),
            // Some are numbers, so none is true or false only.
            (known @ Type::Enum(_), new @ Type::Int { .. }) if known.is_bool() => *known = new.clone(),
            (known @ Type::Int { .. }, new @ Type::Int { .. }) => *known = number::joined(known, new).0,
            _ => {}
        }
    }

    /// Whether values lie in memory: they do not fit into a register.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        matches!(self, Type::Text(_) | Type::Bytes(_) | Type::List(_) | Type::Tuple(_) | Type::Data { .. })
    }

    /// Whether it is this type, or has it inside.
    #[must_use]
    pub fn contains(&self, ty: &Type) -> bool {
        self == ty || matches!(self, Type::Tuple(types) if types.iter().any(|part| part.contains(ty)))
    }

    /// As bpftrace names it in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Type::None => "none".to_owned(),
            Type::Int { bytes, signed } => format!("{}int{}", if *signed { "" } else { "u" }, 8 * u32::from(*bytes)),
            Type::Pointer(of) => CType::Pointer(of.clone()).name(),
            Type::Enum(of) => of.name.clone(),
            Type::Data { ty, .. } => ty.name(),
            Type::List(List { of, .. }) => format!("{}[]", of.name()),
            // With the NUL that ends it.
            Type::Text(len) => format!("string[{}]", len + 1),
            Type::Bytes(len) => format!("buffer[{len}]"),
            Type::Tuple(types) => {
                let mut names = types.iter().map(Type::name);
                match types.form() {
                    Form::Tuple => format!("({})", names.collect::<Vec<_>>().join(",")),
                    Form::Record(known) => {
                        let parts: Vec<String> =
                            known.iter().zip(names).map(|(name, ty)| format!(".{name} = {ty}")).collect();
                        format!("record {{ {} }}", parts.join(", "))
                    }
                    Form::Variants(_) => names.nth(1).unwrap_or_default(),
                    Form::Texts => "string[]".to_owned(),
                }
            }
            _ => self.kind().to_owned(),
        }
    }

    /// As bpftrace names its kind in messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Type::None => "none",
            Type::Int { .. } => "integer",
            Type::Pointer(_) => "pointer",
            Type::Enum(_) => "enum",
            Type::Data { ty: CType::Array(..), .. } => "array",
            Type::Data { ty: CType::Float { .. }, .. } => "float",
            Type::Data { .. } => "record",
            Type::Text(_) => "string",
            Type::Bytes(_) => "buffer",
            Type::List(_) => "list",
            Type::Stack(_) => "ustack",
            Type::Symbol => "usym",
            Type::Probe { .. } => "probe",
            Type::User => "username",
            Type::Meaning(_) => "string",
            Type::Time(_) => "timestamp",
            Type::Tuple(types) => match types.form() {
                Form::Tuple => "tuple",
                Form::Texts => "list",
                Form::Record(_) | Form::Variants(_) => "record",
            },
        }
    }

    /// Bytes of it in a key or value of a map: whole words.
    #[must_use]
    pub fn stored(&self) -> usize {
        match self {
            Type::Text(len) => text_room(*len),
            // Their length is before them.
            Type::Bytes(len) => 8 + len.next_multiple_of(8),
            Type::List(list) => 8 + list.room().next_multiple_of(8),
            // Also the empty one has a place.
            Type::Tuple(types) => types.iter().map(Type::stored).sum::<usize>().max(8),
            Type::Data { size, .. } => size.next_multiple_of(8).max(8),
            _ => 8,
        }
    }
}

/// Bytes that a string of at most `len` takes: one more tells that it was cut, and one ends it.
#[must_use]
pub fn text_room(len: usize) -> usize {
    (len + 2).next_multiple_of(8)
}

/// Bytes of `comm`, `leader_comm` and `pcomm`, without the NUL.
pub const COMM: usize = 15;

/// Bytes of the name of a function that programs see; longer ones are cut.
pub const NAME: usize = 126;

/// Bytes of an attach point that programs see; longer ones are cut.
pub const POINT: usize = 254;

/// What a map holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Values.
    Value(Type),
    /// `count()`
    Count,
    /// `sum(n)`
    Sum {
        /// Of numbers with a sign.
        signed: bool,
    },
    /// `avg(n)`
    Avg {
        /// Of numbers with a sign.
        signed: bool,
    },
    /// `min(n)`
    Min {
        /// Of numbers with a sign.
        signed: bool,
    },
    /// `max(n)`
    Max {
        /// Of numbers with a sign.
        signed: bool,
    },
    /// `stats(n)`
    Stats {
        /// Of numbers with a sign.
        signed: bool,
    },
    /// `hist(n, bits)`
    Hist {
        /// Log2 of the buckets per power of two.
        bits: u32,
    },
    /// `lhist(n, min, max, step)`
    Lhist {
        /// What is below is in the first bucket.
        min: i64,
        /// What is not below is in the last.
        max: i64,
        /// From one bucket to the next.
        step: i64,
    },
    /// `tseries(n, interval, intervals, merge)`
    Tseries {
        /// Nanoseconds.
        interval: u64,
        /// How many are kept.
        intervals: u32,
        /// Of several values in one.
        merge: Merge,
        /// Of numbers with a sign.
        signed: bool,
    },
}

/// What becomes of several values in one interval of a `tseries`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Merge {
    /// The last one is kept.
    Last,
    /// Their average.
    Avg,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Their sum.
    Sum,
}

/// Bytes of an interval of a `tseries`: the number of the next one since 1970, a value, and how
/// many values that are, or when the last one came.
pub const INTERVAL: usize = 24;

impl Content {
    /// As bpftrace names it in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Content::Value(ty) => ty.name(),
            Content::Count => "count".to_owned(),
            Content::Sum { .. } => "sum".to_owned(),
            Content::Avg { .. } => "avg".to_owned(),
            Content::Min { .. } => "min".to_owned(),
            Content::Max { .. } => "max".to_owned(),
            Content::Stats { .. } => "stats".to_owned(),
            Content::Hist { .. } => "hist".to_owned(),
            Content::Lhist { .. } => "lhist".to_owned(),
            Content::Tseries { .. } => "tseries".to_owned(),
        }
    }

    /// Whether values of both may be in one map.
    #[must_use]
    pub fn fits(&self, other: &Content) -> bool {
        use std::mem::discriminant;
        match (self, other) {
            (Content::Value(a), Content::Value(b)) => a.fits(b),
            // Their signs may differ, as those of sum() may: the first one counts.
            (
                Content::Tseries { interval: a, intervals: b, merge: c, .. },
                Content::Tseries { interval: x, intervals: y, merge: z, .. },
            ) => (a, b, c) == (x, y, z),
            (Content::Hist { .. } | Content::Lhist { .. }, _) => self == other,
            (a, b) => discriminant(a) == discriminant(b),
        }
    }

    /// Bytes of an entry's value. What is counted has as its last word how often, so that nothing
    /// is told from zero.
    #[must_use]
    pub fn stored(&self) -> usize {
        match self {
            Content::Value(ty) => ty.stored(),
            Content::Count => 8,
            Content::Sum { .. }
            | Content::Avg { .. }
            | Content::Min { .. }
            | Content::Max { .. }
            | Content::Stats { .. } => 16,
            Content::Hist { bits } => 8 * hist_buckets(*bits),
            Content::Lhist { min, max, step } => 8 * lhist_buckets(*min, *max, *step),
            Content::Tseries { intervals, .. } => INTERVAL * *intervals as usize,
        }
    }

    /// Whether each thread has its own.
    #[must_use]
    pub fn is_aggregate(&self) -> bool {
        !matches!(self, Content::Value(_))
    }

    /// Whether the values of threads are added up, word by word.
    #[must_use]
    pub fn is_sum(&self) -> bool {
        self.is_aggregate() && !matches!(self, Content::Min { .. } | Content::Max { .. } | Content::Tseries { .. })
    }
}

/// Buckets of `hist(n, bits)`.
#[must_use]
pub const fn hist_buckets(bits: u32) -> usize {
    ((65 - bits as usize) << bits) + 2
}

/// Buckets of `lhist`.
#[must_use]
pub const fn lhist_buckets(min: i64, max: i64, step: i64) -> usize {
    (max.wrapping_sub(min) as u64).div_ceil(step as u64) as usize + 2
}
