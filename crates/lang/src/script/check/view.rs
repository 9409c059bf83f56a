//! Records that are texts to the programmer: they are read as what they stand for.
//!
//! Sources: `StringSlice` and `String` of Rust's libraries as rustc describes them; `stringStruct`
//! of Go's runtime; `basic_string` and `basic_string_view` of GNU's C++ library.

use super::super::checked::{Value, ValueKind};
use super::super::ctype::{CType, Layout, Record};
use super::super::diagnostic::Span;
use super::super::types::{Parts, Type};
use super::memory::{Base, Place, value};
use super::{Checker, Checking};

/// Texts in one record that are read with it at most.
const TEXTS: usize = 16;
/// Records within records at most.
const DEPTH: u32 = 16;

/// Where a kind of text has its address and its length.
struct Text {
    is_named: fn(&str) -> bool,
    /// Or a record, in which the first pointer is the address.
    address: &'static [&'static str],
    length: &'static [&'static str],
}

const KINDS: [Text; 5] = [
    // Rust
    Text {
        is_named: |name| matches!(name, "&str" | "&mut str") || name.starts_with("Box<str"),
        address: &["data_ptr"],
        length: &["length"],
    },
    Text { is_named: |name| name == "String", address: &["vec", "buf"], length: &["vec", "len"] },
    // Go, also a type of its own: `main.name`
    Text { is_named: |name| name == "string" || name.contains('.'), address: &["str"], length: &["len"] },
    // C++
    Text {
        is_named: |name| name.starts_with("basic_string<char,"),
        address: &["_M_dataplus", "_M_p"],
        length: &["_M_string_length"],
    },
    Text { is_named: |name| name.starts_with("basic_string_view<char,"), address: &["_M_str"], length: &["_M_len"] },
];

impl Checker<'_> {
    /// What is in a place, as its programmer thinks of it; `None`: as it lies there.
    pub(super) fn view(&mut self, place: &Place, span: Span) -> Checking<Option<Value>> {
        if let Some(text) = self.text_in(place) {
            return Ok(Some(text));
        }
        match &place.ty {
            CType::Record(record) if (1..=TEXTS).contains(&self.texts(&record.clone(), 0)) => {
                self.members(place, &record.clone(), span).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The text that a record is, or what a reference to one leads to.
    pub(super) fn text_in(&mut self, place: &Place) -> Option<Value> {
        let own = match &place.ty {
            CType::Record(_) => place.clone(),
            CType::Reference(of) if matches!(**of, CType::Record(_)) => {
                let address = place.number(self.types.word(), false)?;
                Place::new(Base::Address(address), (**of).clone())
            }
            _ => return None,
        };
        let CType::Record(record) = &own.ty else { return None };
        let (address, length) = self.text_shape(record)?;
        let number = |(bit, ty): (u64, CType)| {
            let member = Place { bit: own.bit + bit, ty, width: None, base: own.base.clone() };
            member.number(self.types.word(), false).map(Box::new)
        };
        let kind = ValueKind::CountedText(number(address)?, number(length)?);
        Some(value(Type::Text(self.out.config.max_strlen), kind))
    }

    /// The members of a record that are the address and the length of a text.
    fn text_shape(&mut self, record: &Record) -> Option<((u64, CType), (u64, CType))> {
        let name = record.name.strip_prefix("struct ")?;
        let kind = KINDS.iter().find(|kind| (kind.is_named)(name))?;
        let address = self.inner(record, kind.address)?;
        let address = match &address.1 {
            CType::Record(of) => self.first_pointer(&of.clone(), address.0, 0)?,
            _ => address,
        };
        let length = self.inner(record, kind.length)?;
        let is_byte =
            matches!(&address.1, CType::Pointer(to) if matches!(**to, CType::Char | CType::Int { bytes: 1, .. }));
        let is_text = is_byte && matches!(&length.1, CType::Int { bytes, .. } if *bytes == self.types.word());
        is_text.then_some((address, length))
    }

    /// A member of members: its first bit, and what it is.
    fn inner(&mut self, record: &Record, path: &[&str]) -> Option<(u64, CType)> {
        let (mut bit, mut ty) = (0, CType::Record(record.clone()));
        for name in path {
            let CType::Record(record) = &ty else { return None };
            let layout = self.known_layout(&record.clone())?;
            let field = layout.fields.into_iter().find(|field| field.name == *name)?;
            (bit, ty) = (bit + field.bit, field.ty);
        }
        Some((bit, ty))
    }

    fn first_pointer(&mut self, record: &Record, bit: u64, depth: u32) -> Option<(u64, CType)> {
        if depth == DEPTH {
            return None;
        }
        self.known_layout(record)?.fields.into_iter().find_map(|field| match field.ty {
            CType::Pointer(_) => Some((bit + field.bit, field.ty)),
            CType::Record(of) => self.first_pointer(&of, bit + field.bit, depth + 1),
            _ => None,
        })
    }

    /// How many texts are in a record, none if it is one itself. Of the members of a
    /// union or of variants only one is what it says.
    fn texts(&mut self, record: &Record, depth: u32) -> usize {
        if depth == DEPTH || record.name.starts_with("union") || self.text_shape(record).is_some() {
            return 0;
        }
        let layout = self.known_layout(record).filter(|layout| layout.variants.is_none());
        let fields = layout.map_or(Vec::new(), |layout| layout.fields);
        let mut count = 0;
        for field in fields {
            count += match &field.ty {
                CType::Record(of) => match self.text_shape(of) {
                    Some(_) => 1,
                    None => self.texts(of, depth + 1),
                },
                CType::Reference(of) => match &**of {
                    CType::Record(of) => usize::from(self.text_shape(of).is_some()),
                    _ => 0,
                },
                _ => 0,
            };
        }
        count
    }

    /// The members of a record, as a record of the script.
    fn members(&mut self, place: &Place, record: &Record, span: Span) -> Checking<Value> {
        let (mut names, mut items) = (Vec::new(), Vec::new());
        for field in self.layout(record, span)?.fields {
            let member =
                Place { bit: place.bit + field.bit, ty: field.ty, width: field.width, base: place.base.clone() };
            let item = self.read(&member, span)?;
            match (item.ty, item.kind) {
                // Members of what has no name are members of what it is in.
                (Type::Tuple(parts), ValueKind::Tuple(inner)) if field.name.is_empty() => {
                    names.extend(parts.names().to_vec());
                    items.extend(inner);
                }
                (ty, kind) => {
                    names.push(field.name);
                    items.push(value(ty, kind));
                }
            }
        }
        Ok(named(names, items))
    }

    fn known_layout(&mut self, record: &Record) -> Option<Layout> {
        self.types.layout(self.points, record).ok().cloned()
    }
}

/// A record of the script.
pub(super) fn named(names: Vec<String>, items: Vec<Value>) -> Value {
    let types = items.iter().map(|item| item.ty.clone()).collect();
    value(Type::Tuple(Parts::named(names, types)), ValueKind::Tuple(items))
}
