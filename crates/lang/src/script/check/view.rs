//! Records that are texts to the programmer: they are read as what they stand for.
//!
//! Sources: `StringSlice` and `String` of Rust's libraries as rustc describes them; `stringStruct`
//! of Go's runtime; `basic_string` and `basic_string_view` of GNU's C++ library.

use super::super::checked::{Value, ValueKind};
use super::super::ctype::{CType, Language, Layout, Record};
use super::super::diagnostic::Span;
use super::super::types::{Parts, Type};
use super::memory::{Base, Place, value};
use super::{Checker, Checking};

/// Texts in one record that are read with it at most.
const TEXTS: usize = 16;
/// Records within records at most, on the way to the address of a text.
const DEPTH: u32 = 16;
/// Members of one record that are read one by one at most.
const MEMBERS: usize = 4096;

/// Where a kind of text has its address and its length.
struct Text {
    language: Language,
    is_named: fn(&str) -> bool,
    /// Or a record, in which the first pointer is the address.
    address: &'static [&'static str],
    length: &'static [&'static str],
}

const KINDS: [Text; 5] = [
    Text {
        language: Language::Rust,
        is_named: |name| matches!(name, "&str" | "&mut str") || name.starts_with("Box<str"),
        address: &["data_ptr"],
        length: &["length"],
    },
    Text {
        language: Language::Rust,
        is_named: |name| name == "String",
        address: &["vec", "buf"],
        length: &["vec", "len"],
    },
    // Also a type of its own: `main.name`
    Text {
        language: Language::Go,
        is_named: |name| name == "string" || name.contains('.'),
        address: &["str"],
        length: &["len"],
    },
    Text {
        language: Language::Cpp,
        is_named: |name| name.starts_with("basic_string<char,"),
        address: &["_M_dataplus", "_M_p"],
        length: &["_M_string_length"],
    },
    Text {
        language: Language::Cpp,
        is_named: |name| name.starts_with("basic_string_view<char,"),
        address: &["_M_str"],
        length: &["_M_len"],
    },
];

impl Checker<'_> {
    /// What is in a place, as its programmer thinks of it; `None`: as it lies there.
    pub(super) fn view(&mut self, place: &Place, span: Span) -> Checking<Option<Value>> {
        if let Some(text) = self.text_in(place) {
            return Ok(Some(text));
        }
        let CType::Record(record) = &place.ty else { return Ok(None) };
        let record = record.clone();
        // What contains itself has no end of members.
        self.look_inside(&record, span)?;
        if !(1..=TEXTS).contains(&self.texts(&record)) {
            return Ok(None);
        }
        let mut members = Members { names: Vec::new(), items: Vec::new(), left: MEMBERS };
        self.members(place, &record, false, span, &mut members)?;
        Ok(Some(named(members.names, members.items)))
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
        let language = self.types.layout(self.points, record).ok()?.language;
        // `dwz` collects types in units that do not say: there a name that C cannot have is enough.
        let is_c = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let is_of = |kind: &Text| language.map_or(!is_c, |language| language == kind.language);
        let kind = KINDS.iter().find(|kind| (kind.is_named)(name) && is_of(kind))?;
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

    /// How many texts are in a record that does not contain itself, none if it is one itself; of
    /// many, only that they are too many. Of the members of a union or of variants only one is
    /// what it says.
    fn texts(&mut self, record: &Record) -> usize {
        if let Some(known) = self.types.texts.get(&record.key()) {
            return *known;
        }
        let mut count = 0;
        if !record.name.starts_with("union") && self.text_shape(record).is_none() {
            let layout = self.known_layout(record).filter(|layout| layout.variants.is_none());
            for field in layout.map_or(Vec::new(), |layout| layout.fields) {
                count += match &field.ty {
                    CType::Record(of) if self.text_shape(of).is_none() => self.texts(of),
                    CType::Record(_) => 1,
                    CType::Reference(of) => match &**of {
                        CType::Record(of) => usize::from(self.text_shape(of).is_some()),
                        _ => 0,
                    },
                    _ => 0,
                };
                if count > TEXTS {
                    break;
                }
            }
        }
        self.types.texts.insert(record.key(), count);
        count
    }

    /// Adds the members of a record. `plain`: as they lie there.
    fn members(
        &mut self,
        place: &Place,
        record: &Record,
        plain: bool,
        span: Span,
        found: &mut Members,
    ) -> Checking<()> {
        // Only one member of a union is what it says.
        let plain = plain || record.name.starts_with("union");
        for field in self.layout(record, span)?.fields {
            let Some(left) = found.left.checked_sub(1) else {
                return self.error(span, format!("'{}' has more than {MEMBERS} members: name one", record.name));
            };
            found.left = left;
            let member =
                Place { bit: place.bit + field.bit, ty: field.ty, width: field.width, base: place.base.clone() };
            // Members of what has no name are members of what it is in.
            match &member.ty {
                CType::Record(of) if field.name.is_empty() && self.is_open(of, plain) => {
                    self.members(&member, of, plain, span, found)?;
                }
                _ => {
                    let item = if plain { self.plain(&member, span) } else { self.read(&member, span) }?;
                    found.names.push(field.name);
                    found.items.push(item);
                }
            }
        }
        Ok(())
    }

    /// Whether a record is all of its members, and not a text or one of several.
    fn is_open(&mut self, record: &Record, plain: bool) -> bool {
        let has_variants = self.known_layout(record).is_some_and(|layout| layout.variants.is_some());
        !has_variants && (plain || self.text_shape(record).is_none())
    }

    fn known_layout(&mut self, record: &Record) -> Option<Layout> {
        self.types.layout(self.points, record).ok().cloned()
    }
}

/// Members on their way to a record of the script.
struct Members {
    names: Vec<String>,
    items: Vec<Value>,
    /// As many may follow.
    left: usize,
}

/// A record of the script.
pub(super) fn named(names: Vec<String>, items: Vec<Value>) -> Value {
    let types = items.iter().map(|item| item.ty.clone()).collect();
    value(Type::Tuple(Parts::named(names, types)), ValueKind::Tuple(items))
}
