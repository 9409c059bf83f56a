//! Records: what a program writes into the ring, and how the kernel's trace file prints it.
//!
//! All numbers are little-endian. A record has a header of [`HEADER`] bytes, then a bit for each
//! argument whether it could not be read, then the values, then the strings:
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 4 | number of the event |
//! | 4 | 4 | 0; strings that could not be read point here |
//! | 8 | 8 | process in the upper half, thread in the lower |
//! | 16 | 16 | name of the thread |
//! | 32 | 8 | instruction pointer; at returns: where the function returns to |
//! | 40 | 8 | at returns: the function |
//!
//! A string is a word of 32 bits as in the kernel (`__data_loc`): length with its zero byte in the
//! upper half, 0 if it could not be read, and offset in the record in the lower.

use sidestep_bpf::{Size, Width, alu};

use super::compile::{CompileError, Options};
use super::event::{Base, Event, Kind, Type};

/// Length of the header.
pub(super) const HEADER: usize = 48;

/// Bytes of a record at most.
pub(super) const MAX_RECORD: usize = 4096;

/// Room for a string, at the least.
const MIN_STRING: usize = 16;

/// A zero byte in the header.
pub(super) const EMPTY: i32 = 4;
pub(super) const PID: i16 = 8;
pub(super) const COMM: i16 = 16;
/// Length of a thread's name with its zero byte, as in the kernel (`TASK_COMM_LEN`).
pub(super) const COMM_LEN: usize = 16;
pub(super) const IP: i16 = 32;
pub(super) const FUNC: i16 = 40;

/// A value of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// An unsigned number.
    Unsigned(u64),
    /// A signed number.
    Signed(i64),
    /// Text without its zero byte.
    Bytes(Vec<u8>),
    /// The elements of an array.
    Array(Vec<Value>),
    /// It could not be read.
    Fault,
}

/// A field of a record: an argument of the event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Name of the argument.
    pub name: String,
    /// What it is.
    pub ty: Type,
    /// Elements of an array.
    pub count: Option<u32>,
    pub(super) place: Place,
}

/// Where a value is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In the record, at this offset.
    At(usize),
    /// It is the thread's name.
    Comm,
    /// It is always the same.
    Text(String),
}

/// What all records begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Number of the event.
    pub event: u32,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's name without its zero byte.
    pub comm: Vec<u8>,
    /// The instruction pointer; at returns: where the function returns to.
    pub ip: u64,
    /// The function that returned; 0 at entries.
    pub func: u64,
}

/// Bytes that are no record of this event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// It ends too early.
    #[error("the record has {len} bytes, but bytes {from} to {to} are needed")]
    Short {
        /// Its length.
        len: usize,
        /// The first byte that is needed.
        from: usize,
        /// The end.
        to: usize,
    },
    /// Of another event.
    #[error("the record is of event {found}, not of {expected}")]
    Event {
        /// The number in the record.
        found: u32,
        /// The number of the event.
        expected: u32,
    },
}

/// Which event a record is of.
#[must_use]
pub fn event_number(record: &[u8]) -> Option<u32> {
    record.get(..4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// What the records of an event look like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordFormat {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) number: u32,
    pub(super) fields: Vec<Field>,
    /// Where the strings start, aligned to 8.
    pub(super) strings: usize,
    /// Room for each string.
    pub(super) room: usize,
    /// Length at most.
    pub(super) size: usize,
}

impl RecordFormat {
    pub(super) fn new(event: &Event, number: u32, options: &Options) -> Result<RecordFormat, CompileError> {
        let mut at = HEADER + event.args.len().div_ceil(8);
        let mut texts = 0;
        let mut fields = Vec::with_capacity(event.args.len());
        for arg in &event.args {
            let place = match &arg.fetch.base {
                Base::Comm => Place::Comm,
                Base::Text(text) => Place::Text(text.clone()),
                _ => {
                    let (size, count) = (arg.ty.size().bytes(), arg.count.unwrap_or(1) as usize);
                    let start = at.next_multiple_of(size);
                    at = start + size * count;
                    texts += if arg.ty == Type::String { count } else { 0 };
                    Place::At(start)
                }
            };
            fields.push(Field { name: arg.name.clone(), ty: arg.ty, count: arg.count, place });
        }
        let strings = at.next_multiple_of(8);
        let left = MAX_RECORD.checked_sub(strings).ok_or(CompileError::TooBig { size: strings })?;
        let room = left.checked_div(texts).map_or(0, |room| room.min(options.max_string));
        if texts > 0 && room < MIN_STRING {
            return Err(CompileError::TooManyStrings { strings: texts });
        }
        let (kind, name, size) = (event.kind, event.name.clone(), (strings + room * texts).next_multiple_of(8));
        Ok(RecordFormat { kind, name, number, fields, strings, room, size: size.min(MAX_RECORD) })
    }

    /// Whether records have strings behind their values.
    pub(super) fn has_strings(&self) -> bool {
        self.room > 0
    }

    /// The arguments of the event, in its order.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Number of the event: its index among those that were compiled together.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Name of the event.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of a record at most.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.size
    }

    /// What a record begins with.
    ///
    /// # Errors
    /// If it is too short, or of another event.
    pub fn header(&self, record: &[u8]) -> Result<Header, RecordError> {
        let number = |from, size| number(record, from, size);
        let event = number(0, Size::W)? as u32;
        if event != self.number {
            return Err(RecordError::Event { found: event, expected: self.number });
        }
        let pid_tgid = number(PID as usize, Size::Dw)?;
        let comm = text(record, COMM as usize, COMM_LEN)?;
        let (ip, func) = (number(IP as usize, Size::Dw)?, number(FUNC as usize, Size::Dw)?);
        Ok(Header { event, pid: (pid_tgid >> 32) as u32, tid: pid_tgid as u32, comm, ip, func })
    }

    /// The value of the field with this index; `None` if there is none.
    ///
    /// # Errors
    /// If the record is too short.
    pub fn value(&self, record: &[u8], index: usize) -> Result<Option<Value>, RecordError> {
        self.fields.get(index).map(|field| self.field_value(record, index, field)).transpose()
    }

    fn field_value(&self, record: &[u8], index: usize, field: &Field) -> Result<Value, RecordError> {
        let at = match &field.place {
            Place::Comm => return Ok(Value::Bytes(text(record, COMM as usize, COMM_LEN)?)),
            Place::Text(text) => return Ok(Value::Bytes(text.clone().into_bytes())),
            Place::At(at) => *at,
        };
        let faults = number(record, HEADER + index / 8, Size::B)?;
        if field.ty != Type::String && faults >> (index % 8) & 1 == 1 {
            return Ok(Value::Fault);
        }
        match field.count {
            None => element(record, at, field.ty),
            Some(count) => {
                let size = field.ty.size().bytes();
                let elements = (0..count as usize).map(|n| element(record, at + n * size, field.ty));
                elements.collect::<Result<_, _>>().map(Value::Array)
            }
        }
    }

    /// A record as the kernel's trace file prints it, from the event's name on:
    /// `NAME: (0xIP) a=1 b="text"`.
    ///
    /// # Errors
    /// If the record is too short, or of another event.
    pub fn render(&self, record: &[u8]) -> Result<String, RecordError> {
        let header = self.header(record)?;
        let place = match self.kind {
            Kind::Entry => format!("{:#x}", header.ip),
            Kind::Return => format!("{:#x} <- {:#x}", header.ip, header.func),
        };
        let mut out = format!("{}: ({place})", self.name).into_bytes();
        for (index, field) in self.fields.iter().enumerate() {
            out.extend_from_slice(format!(" {}=", field.name).as_bytes());
            match self.field_value(record, index, field)? {
                Value::Array(elements) => {
                    for (n, value) in elements.iter().enumerate() {
                        out.push(if n == 0 { b'{' } else { b',' });
                        print(&mut out, value, field.ty);
                    }
                    out.push(b'}');
                }
                value => print(&mut out, &value, field.ty),
            }
        }
        Ok(String::from_utf8_lossy(&out).into_owned())
    }
}

fn print(out: &mut Vec<u8>, value: &Value, ty: Type) {
    let number = match value {
        Value::Unsigned(byte) if ty == Type::Char => {
            out.extend_from_slice(&[b'\'', *byte as u8, b'\'']);
            return;
        }
        Value::Bytes(text) => {
            out.push(b'"');
            out.extend_from_slice(text);
            out.push(b'"');
            return;
        }
        Value::Unsigned(number) if matches!(ty, Type::Hex(_)) => format!("{number:#x}"),
        Value::Unsigned(number) => number.to_string(),
        Value::Signed(number) => number.to_string(),
        Value::Array(_) | Value::Fault => "(fault)".to_owned(),
    };
    out.extend_from_slice(number.as_bytes());
}

fn bytes(record: &[u8], from: usize, len: usize) -> Result<&[u8], RecordError> {
    let to = from + len;
    record.get(from..to).ok_or(RecordError::Short { len: record.len(), from, to })
}

fn number(record: &[u8], from: usize, size: Size) -> Result<u64, RecordError> {
    let mut word = [0; 8];
    word[..size.bytes()].copy_from_slice(bytes(record, from, size.bytes())?);
    Ok(u64::from_le_bytes(word))
}

/// Text up to its zero byte.
fn text(record: &[u8], from: usize, len: usize) -> Result<Vec<u8>, RecordError> {
    let bytes = bytes(record, from, len)?;
    Ok(bytes.split(|b| *b == 0).next().unwrap_or_default().to_vec())
}

fn element(record: &[u8], at: usize, ty: Type) -> Result<Value, RecordError> {
    let number = number(record, at, ty.size())?;
    Ok(match ty {
        Type::String if number >> 16 == 0 => Value::Fault,
        Type::String => Value::Bytes(text(record, number as usize & 0xffff, number as usize >> 16)?),
        Type::Signed(Size::Dw) => Value::Signed(number as i64),
        Type::Signed(size) => Value::Signed(alu::sign_extend(Width::W64, size, number) as i64),
        _ => Value::Unsigned(number),
    })
}
