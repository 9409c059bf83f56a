//! Types of C: where they are looked up, and what is read of the memory that has them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use sidestep_isa::{Context, Isa};

use super::super::ast::{self, TypeName};
use super::super::checked::{Value, ValueKind};
use super::super::ctype::{CType, Definitions, Field, Layout, Layouts, Record, RecordKey};
use super::super::diagnostic::Span;
use super::super::program::{Program, Signature, Symbol};
use super::super::types::Type;
use super::expr::truth;
use super::failure::noted;
use super::{Checker, Checking, Wrong};

/// Bytes of data that is printed at most.
const PRINTED: u64 = 32 << 10;
/// Members that are printed at most, with those of members.
const SHOWN: u64 = 1 << 16;
/// Records within records at most.
const DEPTH: u32 = 64;
/// Bytes of a value that is kept or compared at most: as far as instructions reach, and a word.
pub(super) const WIDEST: usize = 32_752;
/// Bytes of data that is copied at most.
const COPIED: usize = 1024;

/// What is known of types: by the script, and by the programs that are probed.
pub(super) struct Types<'a> {
    program: &'a mut dyn Program,
    script: &'a Definitions,
    /// Those that were asked for, also those that are not known.
    layouts: HashMap<RecordKey, Result<Layout, String>>,
    signatures: HashMap<String, Result<Signature, String>>,
    /// Types of programs by the attach points they are wanted at, and their names.
    names: HashMap<(Vec<ast::Point>, String), Result<CType, String>>,
    symbols: HashMap<(String, String), Result<Symbol, String>>,
    goroutines: HashMap<String, Result<(), String>>,
    /// How many records are within each other in those that were looked into, and how many members
    /// are printed of them.
    heights: HashMap<RecordKey, (u32, u64)>,
    /// How many texts and lists are in them.
    pub seen: HashMap<RecordKey, usize>,
}

impl<'a> Types<'a> {
    pub fn new(program: &'a mut dyn Program, script: &'a Definitions) -> Types<'a> {
        Types {
            program,
            script,
            layouts: HashMap::new(),
            signatures: HashMap::new(),
            names: HashMap::new(),
            symbols: HashMap::new(),
            goroutines: HashMap::new(),
            heights: HashMap::new(),
            seen: HashMap::new(),
        }
    }

    /// Bytes of a pointer.
    pub fn word(&self) -> u8 {
        self.script.word
    }

    /// Where programs find the registers.
    pub fn context(&self) -> &'static Context {
        Isa::with_word(self.script.word).limits().context
    }

    /// What the functions at an attach point take.
    pub fn signature(&mut self, point: &ast::Point) -> Result<Signature, String> {
        let program = &mut *self.program;
        self.signatures.entry(point.text()).or_insert_with(|| program.signature(point)).clone()
    }

    /// A type by its name with its keyword, or of a `typedef`.
    fn named(&mut self, points: &[ast::Point], name: &str) -> Result<CType, String> {
        if let Some(ty) = self.script.typedefs.get(name) {
            return Ok(ty.clone());
        }
        if let Some(of) = self.script.enums.iter().find(|of| of.name == name) {
            return Ok(CType::Enum(Arc::clone(of)));
        }
        let record = Record { name: name.into(), place: None };
        if self.script.layouts.contains_key(&record.key()) {
            return Ok(CType::Record(record));
        }
        let program = &mut *self.program;
        let find = || program.named(points, name);
        self.names.entry((points.to_vec(), name.to_owned())).or_insert_with(find).clone()
    }

    pub fn layout(&mut self, points: &[ast::Point], record: &Record) -> Result<&Layout, String> {
        let key = record.key();
        if !self.layouts.contains_key(&key) {
            let found = match (self.script.layouts.get(&key), record.place) {
                (Some(layout), _) => Ok(layout.clone()),
                (None, Some(place)) => self.program.layout(place),
                (None, None) => Err(match self.named(points, &record.name) {
                    Err(error) => error,
                    Ok(_) => format!("Cannot resolve unknown type \"{}\"", record.name),
                }),
            };
            self.layouts.insert(key.clone(), found);
        }
        match &self.layouts[&key] {
            Ok(layout) => Ok(layout),
            Err(error) => Err(error.clone()),
        }
    }

    /// What a symbol names.
    pub fn symbol(&mut self, point: &ast::Point, name: &str) -> Result<Symbol, String> {
        let program = &mut *self.program;
        let find = || program.symbol(point, name);
        self.symbols.entry((point.text(), name.to_owned())).or_insert_with(find).clone()
    }

    /// Whether there are goroutines.
    pub fn goroutines(&mut self, point: &ast::Point) -> Result<(), String> {
        let program = &mut *self.program;
        self.goroutines.entry(point.text()).or_insert_with(|| program.goroutines(point)).clone()
    }

    /// Keeps the layout of something that only this script has.
    pub fn own(&mut self, record: Record, layout: Layout) {
        self.layouts.insert(record.key(), Ok(layout));
    }

    /// All records that were asked for.
    pub fn known(self) -> Layouts {
        self.layouts.into_iter().filter_map(|(key, layout)| Some((key, layout.ok()?))).collect()
    }

    /// A constant of an enumeration.
    pub fn constant(&mut self, points: &[ast::Point], name: &str) -> Option<Value> {
        let found = self.script.constant(name).map(|(of, value)| (Arc::clone(of), value));
        let (of, value) = found.or_else(|| self.program.constant(points, name))?;
        Some(Value { ty: Type::Enum(of), kind: ValueKind::Int(value) })
    }
}

/// Memory that has a type of C.
#[derive(Clone)]
pub(super) struct Place {
    pub base: Base,
    /// From the lowest bit of the first byte.
    pub bit: u64,
    pub ty: CType,
    /// Of a bit-field.
    pub width: Option<u32>,
    /// What is noted if it cannot be read: an index into `Checked::reads`.
    pub read: Option<usize>,
    /// Bits of the base that are there, counted from its first one; empty: all.
    pub there: Vec<Range<u64>>,
}

/// What a place lies in.
#[derive(Clone)]
pub(super) enum Base {
    /// The target's memory, at this address.
    Address(Value),
    /// Registers, for example.
    Words(Vec<Value>),
    /// Data of our own.
    Own(Value),
}

pub(super) fn value(ty: Type, kind: ValueKind) -> Value {
    Value { ty, kind }
}

fn boxed(value: Value) -> Box<Value> {
    Box::new(value)
}

fn number(n: u64) -> Value {
    value(Type::INT, ValueKind::Int(n))
}

/// A number and another one.
pub(super) fn plus(a: Value, b: Value) -> Value {
    match (&a.kind, &b.kind) {
        (_, ValueKind::Int(0)) => a,
        (ValueKind::Int(x), ValueKind::Int(y)) => value(Type::UINT, ValueKind::Int(x.wrapping_add(*y))),
        _ => value(Type::UINT, ValueKind::Binary(ast::BinaryOp::Add, true, boxed(a), boxed(b))),
    }
}

/// A number so many times.
pub(super) fn times(a: Value, n: u64) -> Value {
    match a.kind {
        _ if n == 1 => a,
        ValueKind::Int(x) => value(Type::INT, ValueKind::Int(x.wrapping_mul(n))),
        _ => value(Type::INT, ValueKind::Binary(ast::BinaryOp::Mul, false, boxed(a), boxed(number(n)))),
    }
}

/// A number shifted by so many bits.
pub(super) fn shift(op: ast::BinaryOp, unsigned: bool, a: Value, by: u64) -> Value {
    if by == 0 { a } else { value(Type::UINT, ValueKind::Binary(op, unsigned, boxed(a), boxed(number(by)))) }
}

/// So many bits of a number, from one on.
fn bits(of: Value, from: u64, width: u64, signed: bool) -> Value {
    let left = shift(ast::BinaryOp::Shl, true, of, 64 - width - from);
    shift(ast::BinaryOp::Shr, !signed, left, 64 - width)
}

impl Place {
    pub fn new(base: Base, ty: CType) -> Place {
        Place { base, bit: 0, ty, width: None, there: Vec::new(), read: None }
    }

    /// One of its members, `bit` bits behind its first.
    pub fn member(&self, bit: u64, ty: CType, width: Option<u32>) -> Place {
        Place { bit: self.bit.wrapping_add(bit), ty, width, ..self.clone() }
    }

    /// Whether so many of its bits are there.
    fn has(&self, bits: u64) -> bool {
        let mut next = self.bit;
        for part in &self.there {
            if part.contains(&next) {
                next = part.end;
            }
        }
        self.there.is_empty() || self.bit.saturating_add(bits) <= next
    }

    /// The number that is there, as it is kept in 64 bits. `None`: no number of this size is read
    /// at once.
    pub fn number(&self, bytes: u8, signed: bool) -> Option<Value> {
        let width = self.width.map_or(8 * u64::from(bytes), u64::from);
        let (first, from) = (self.bit / 8, self.bit % 8);
        let span = (from + width).div_ceil(8);
        if span > 8 || width == 0 || !self.has(width) {
            return None;
        }
        let is_whole = self.width.is_none() && from == 0;
        let part = match is_whole {
            true => Type::Int { bytes, signed },
            false => Type::Int { bytes: span as u8, signed: false },
        };
        let part = match &self.base {
            Base::Address(address) => value(part, ValueKind::Load(boxed(self.address(address)))),
            Base::Own(data) => value(part, ValueKind::Part(boxed(data.clone()), first as usize)),
            Base::Words(words) => {
                let (word, from) = ((self.bit / 64) as usize, self.bit % 64);
                let number = match (words.get(word)?, words.get(word + 1)) {
                    (low, _) if from + width <= 64 => bits(low.clone(), from, width, signed),
                    _ => return None,
                };
                return Some(Value { ty: Type::Int { bytes, signed }, ..number });
            }
        };
        match is_whole {
            true => Some(part),
            false => Some(Value { ty: Type::Int { bytes, signed }, ..bits(part, from, width, signed) }),
        }
    }

    /// The address of its first byte, where it is read.
    fn address(&self, base: &Value) -> Value {
        noted(plus(base.clone(), number(self.bit / 8)), self.read)
    }

    /// The data that is there.
    pub(super) fn data(&self, size: usize) -> Value {
        let ty = Type::Data { ty: self.ty.clone(), size };
        let first = self.bit / 8;
        value(
            ty.clone(),
            match &self.base {
                Base::Address(address) => ValueKind::Load(boxed(self.address(address))),
                Base::Own(data) if data.ty == ty && first == 0 => data.kind.clone(),
                Base::Own(data) => ValueKind::Part(boxed(data.clone()), first as usize),
                Base::Words(words) if first == 0 => ValueKind::Words(words.clone()),
                Base::Words(words) => {
                    let all = Type::Data { ty: self.ty.clone(), size: 8 * words.len() };
                    ValueKind::Part(boxed(value(all, ValueKind::Words(words.clone()))), first as usize)
                }
            },
        )
    }
}

/// The address of an array and how many bytes it has, if a value is one in the target's memory.
pub(super) fn array(of: &Value) -> Option<(Value, usize)> {
    let (data, size) = match (&of.ty, &of.kind) {
        (Type::Data { ty: CType::Array(..), size }, _) => (of, *size),
        (Type::Text(size), ValueKind::Part(data, 0)) => (&**data, *size),
        _ => return None,
    };
    match &data.kind {
        ValueKind::Load(address) => Some(((**address).clone(), size)),
        _ => None,
    }
}

/// As many bytes at an address.
pub(super) fn bytes_at(address: Value, len: usize) -> Value {
    let len_value = Value { ty: Type::UINT, kind: ValueKind::Int(len as u64) };
    Value { ty: Type::Bytes(len), kind: ValueKind::ReadBytes(Box::new(address), Box::new(len_value)) }
}

/// Bytes of arrays that are compared at most, if not both are in the target's memory.
pub(super) const COMPARED: usize = 64;

/// Whether two pieces of data have the same bytes, words at a time.
pub(super) fn same_data(a: &Value, b: &Value, size: usize) -> Value {
    let (mut all, mut at) = (None, 0);
    while at < size {
        let bytes = [8, 4, 2].into_iter().find(|bytes| at + bytes <= size).unwrap_or(1);
        let part = |of: &Value| {
            let ty = Type::Int { bytes: bytes as u8, signed: false };
            boxed(value(ty, ValueKind::Part(boxed(of.clone()), at)))
        };
        let same = truth(ValueKind::Binary(ast::BinaryOp::Eq, true, part(a), part(b)));
        all = Some(match all {
            None => same,
            Some(all) => truth(ValueKind::Binary(ast::BinaryOp::LogicalAnd, false, boxed(all), boxed(same))),
        });
        at += bytes;
    }
    all.unwrap_or(truth(ValueKind::Int(1)))
}

/// What kind of value a number of C is.
pub(super) fn number_type(ty: &CType) -> Option<Type> {
    Some(match ty {
        CType::Char => Type::Int { bytes: 1, signed: true },
        CType::Int { bytes, signed } => Type::Int { bytes: *bytes, signed: *signed },
        CType::Enum(of) => Type::Enum(Arc::clone(of)),
        CType::Pointer(of) | CType::Reference(of) => Type::Pointer(of.clone()),
        _ => return None,
    })
}

impl Checker<'_> {
    /// The layout of a record; an error is said at `span`.
    pub(super) fn layout(&mut self, record: &Record, span: Span) -> Checking<Layout> {
        match self.types.layout(self.points, record) {
            Ok(layout) => Ok(layout.clone()),
            Err(message) => self.error(span, message),
        }
    }

    /// Bytes of something of this type.
    pub(super) fn size(&mut self, ty: &CType, span: Span) -> Checking<u64> {
        Ok(match ty {
            CType::Array(of, length) => self.size(of, span)?.saturating_mul(*length),
            CType::Record(record) => self.layout(record, span)?.size,
            CType::Function => return self.error(span, "a function has no size"),
            other => other.size(self.types.word(), &mut |_| None).unwrap_or(1),
        })
    }

    /// A type by its name.
    pub(super) fn ctype(&mut self, name: &TypeName, span: Span) -> Checking<CType> {
        let words: Vec<&str> = name.name.split(' ').collect();
        let own = if name.keyword.is_empty() { CType::named(&words, self.types.word()) } else { None };
        let mut ty = match own {
            Some(ty) => ty,
            None => match self.types.named(self.points, &name.full_name()) {
                Ok(ty) => ty,
                // What is behind a pointer is missed when it is followed.
                Err(_) if name.stars > 0 && matches!(name.keyword, "struct" | "union") => {
                    CType::Record(Record { name: name.full_name().into(), place: None })
                }
                Err(message) => return self.error(span, message),
            },
        };
        for _ in 0..name.stars {
            ty = CType::Pointer(Box::new(ty));
        }
        ty = name.length.map_or(ty.clone(), |length| CType::Array(Box::new(ty), length));
        for _ in 0..name.pointers {
            ty = CType::Pointer(Box::new(ty));
        }
        Ok(ty)
    }

    /// A member, also of what has no name in it; its bit is counted from where `layout` begins.
    pub(super) fn field(&mut self, layout: &Layout, name: &str, span: Span) -> Checking<Option<Field>> {
        if let Some(field) = layout.fields.iter().find(|field| field.name == name && !name.is_empty()) {
            return Ok(Some(field.clone()));
        }
        for inner in layout.fields.iter().filter(|field| field.name.is_empty()) {
            let CType::Record(record) = &inner.ty else { continue };
            let layout = self.layout(record, span)?;
            if let Some(found) = self.field(&layout, name, span)? {
                return Ok(Some(Field { bit: found.bit + inner.bit, ..found }));
            }
        }
        Ok(None)
    }

    /// What is in a place: a number, a text, or data.
    pub(super) fn read(&mut self, place: &Place, span: Span) -> Checking<Value> {
        match self.view(place, span)? {
            Some(value) => Ok(value),
            None => self.plain(place, span),
        }
    }

    /// The same, as it lies there: a reference is a pointer.
    pub(super) fn plain(&mut self, place: &Place, span: Span) -> Checking<Value> {
        self.is_there(place, span)?;
        if let Some(ty) = number_type(&place.ty) {
            let (bytes, signed) = match &ty {
                // A bit-field has no bit for a sign, as in bpftrace, unless it is as wide as its
                // type.
                Type::Int { bytes, signed } => {
                    (*bytes, *signed && place.width.is_none_or(|width| width == 8 * u32::from(*bytes)))
                }
                Type::Enum(of) => (of.bytes, of.signed),
                _ => (self.types.word(), false),
            };
            let Some(number) = place.number(bytes, signed) else {
                return self.error(span, "this bit-field lies in more than 8 bytes and cannot be read");
            };
            return Ok(match ty {
                Type::Int { .. } => Value { ty, ..number },
                ty => value(ty, ValueKind::Shown(Box::new(number))),
            });
        }
        let size = self.size(&place.ty, span)?;
        match &place.ty {
            CType::Void => return self.error(span, "a void cannot be read: cast the pointer to what is there"),
            // Of an array whose length is not known, the address is.
            CType::Array(of, 0) => {
                let first = Place { ty: (**of).clone(), ..place.clone() };
                return self.address_of(&first, span);
            }
            CType::Array(of, length) if **of == CType::Char => {
                let most = (*length as usize).min(self.out.config.max_strlen);
                let whole = Place { ty: CType::Array(of.clone(), most as u64), ..place.clone() };
                let kind = ValueKind::Part(boxed(whole.data(most)), 0);
                return Ok(value(Type::Text(most), kind));
            }
            _ => {}
        }
        if size > PRINTED {
            let message =
                format!("'{}' has {size} bytes: read its members, at most {PRINTED} at once", place.ty.name());
            return self.error(span, message);
        }
        if let CType::Record(record) = &place.ty {
            let record = record.clone();
            self.look_inside(&record, span)?;
        }
        Ok(place.data(size as usize))
    }

    /// Makes sure that no part of a place was left out by the compiler.
    pub(super) fn is_there(&mut self, place: &Place, span: Span) -> Checking<()> {
        if place.there.is_empty() {
            return Ok(());
        }
        if let CType::Record(record) = &place.ty {
            for field in self.layout(record, span)?.fields {
                self.is_there(&place.member(field.bit, field.ty, field.width), span)?;
            }
            return Ok(());
        }
        let bits = match place.width {
            Some(width) => u64::from(width),
            None => 8 * self.size(&place.ty, span)?,
        };
        if place.has(bits) {
            return Ok(());
        }
        let message = "the compiler has left out this part of the argument";
        self.error_with(span, message, "the function does not use it, and callers need not pass it")
    }

    /// Makes sure that all that is printed of a record is known, and has an end.
    pub(super) fn look_inside(&mut self, record: &Record, span: Span) -> Checking<()> {
        let (_, members) = self.height(record, 0, span)?;
        if members > SHOWN {
            let message = format!("'{}' has more than {SHOWN} members, with those of its members", record.name);
            return self.error_with(span, message, "name one of them");
        }
        Ok(())
    }

    /// How many records are within each other in one that `depth` others are around, and how many
    /// members are printed.
    fn height(&mut self, record: &Record, depth: u32, span: Span) -> Checking<(u32, u64)> {
        let known = self.types.heights.get(&record.key()).copied();
        if depth + known.map_or(0, |(height, _)| height) > DEPTH {
            return self.error(span, format!("'{}' contains itself", record.name));
        }
        if let Some(known) = known {
            return Ok(known);
        }
        let (mut height, mut members) = (0, 0_u64);
        for field in self.layout(record, span)?.fields {
            let (mut ty, mut count) = (&field.ty, 1_u64);
            while let CType::Array(of, length) = ty {
                (ty, count) = (of, count.saturating_mul(*length));
            }
            let mut own = 1;
            if let CType::Record(inner) = ty {
                let (inner, of) = self.height(inner, depth + 1, span)?;
                height = height.max(1 + inner);
                // Elements of arrays have bytes, which are counted elsewhere, or are nothing.
                own = of.saturating_mul(count.min(SHOWN)).saturating_add(1);
            }
            members = members.saturating_add(own);
        }
        self.types.heights.insert(record.key(), (height, members));
        Ok((height, members))
    }

    /// Whether there is room for a copy.
    pub(super) fn small(&mut self, ty: &Type, span: Span) -> Checking<()> {
        match ty {
            Type::Data { ty, size } if *size > COPIED => {
                let message = format!("'{}' has {size} bytes: at most {COPIED} are copied", ty.name());
                self.error_with(span, message, "keep a pointer to it, or its members")
            }
            ty if ty.stored() > WIDEST => {
                let (kind, size) = (ty.kind(), ty.stored());
                let message =
                    format!("a value of type {kind} takes {size} bytes: at most {WIDEST} are kept or compared");
                self.error_with(span, message, "keep some of its members, or lower max_strlen")
            }
            _ => Ok(()),
        }
    }

    /// An address as a pointer, if the place has one.
    pub(super) fn address_of(&mut self, place: &Place, span: Span) -> Checking<Value> {
        match (&place.base, place.width) {
            (_, Some(_)) => self.error(span, "a bit-field has no address"),
            (Base::Address(address), None) => {
                let address = plus(address.clone(), number(place.bit / 8));
                Ok(value(Type::Pointer(Box::new(place.ty.clone())), address.kind))
            }
            _ => self.error(span, "it has no address: it is in registers, or a copy"),
        }
    }

    /// A value that is not known yet; at the end, a mistake that was noted.
    pub(super) fn unknown<T>(&self) -> Checking<T> {
        Err(Wrong)
    }

    /// The same of an expression. In the last round all that has a name has a type, or was refused
    /// where it got the name.
    pub(super) fn no_value<T>(&mut self, span: Span) -> Checking<T> {
        if self.last { self.error(span, "this expression has no value") } else { self.unknown() }
    }
}
