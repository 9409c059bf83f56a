//! Texts and lists whose length is known: where the records of C++, Go and Rust have their
//! addresses and lengths.
//!
//! Sources: `StringSlice`, `String`, slices and `Vec` of Rust's libraries as rustc describes them;
//! `stringStruct` and `slice` of Go's runtime; `basic_string`, `basic_string_view`, `vector` and
//! `initializer_list` of GNU's C++ library.

use std::collections::HashSet;

use super::super::ast::BinaryOp;
use super::super::checked::{Value, ValueKind};
use super::super::ctype::{CType, Language, Layout, Record, RecordKey};
use super::super::diagnostic::Span;
use super::super::types::{Form, List, Parts, Type};
use super::expr::{int, truth};
use super::memory::{Base, Place, plus, times, value};
use super::view::either;
use super::{Checker, Checking};

/// Records within records at most, on the way to the address.
const DEPTH: u32 = 16;
/// How many texts of a list are read.
const LISTED: usize = 8;
/// Bytes of an element of a list at most.
const ELEMENT: u64 = 1024;

/// Where a kind of text or list has its address and its length.
struct Kind {
    language: Language,
    is_named: fn(&str) -> bool,
    /// The path to the address. If a record is there, its first pointer is the address.
    address: &'static [&'static str],
    length: Length,
    elements: Elements,
}

/// What says how many elements there are.
enum Length {
    /// A number.
    Is(&'static [&'static str]),
    /// A pointer behind the last one.
    Ends(&'static [&'static str]),
}

/// What there is at the address.
#[derive(PartialEq)]
enum Elements {
    /// Characters of a text.
    Characters,
    /// What the address points to.
    Pointed,
    /// What the parameter of the record says: `T` of `Vec<T>`. The address points to bytes.
    Parameter,
}

const KINDS: [Kind; 10] = [
    Kind {
        language: Language::Rust,
        is_named: |name| matches!(name, "&str" | "&mut str") || name.starts_with("Box<str"),
        address: &["data_ptr"],
        length: Length::Is(&["length"]),
        elements: Elements::Characters,
    },
    Kind {
        language: Language::Rust,
        is_named: |name| name == "String",
        address: &["vec", "buf"],
        length: Length::Is(&["vec", "len"]),
        elements: Elements::Characters,
    },
    // Also a type of its own: `main.name`
    Kind {
        language: Language::Go,
        is_named: |name| name == "string" || name.contains('.'),
        address: &["str"],
        length: Length::Is(&["len"]),
        elements: Elements::Characters,
    },
    Kind {
        language: Language::Cpp,
        is_named: |name| name.starts_with("basic_string<char,"),
        address: &["_M_dataplus", "_M_p"],
        length: Length::Is(&["_M_string_length"]),
        elements: Elements::Characters,
    },
    Kind {
        language: Language::Cpp,
        is_named: |name| name.starts_with("basic_string_view<char,"),
        address: &["_M_str"],
        length: Length::Is(&["_M_len"]),
        elements: Elements::Characters,
    },
    Kind {
        language: Language::Rust,
        is_named: |name| ["&[", "&mut [", "Box<["].iter().any(|kind| name.starts_with(kind)),
        address: &["data_ptr"],
        length: Length::Is(&["length"]),
        elements: Elements::Pointed,
    },
    Kind {
        language: Language::Rust,
        is_named: |name| name.starts_with("Vec<"),
        address: &["buf"],
        length: Length::Is(&["len"]),
        elements: Elements::Parameter,
    },
    Kind {
        language: Language::Go,
        is_named: |name| name.starts_with("[]") || name.contains('.'),
        address: &["array"],
        length: Length::Is(&["len"]),
        elements: Elements::Pointed,
    },
    Kind {
        language: Language::Cpp,
        is_named: |name| name.starts_with("vector<"),
        address: &["_M_impl", "_M_start"],
        length: Length::Ends(&["_M_impl", "_M_finish"]),
        elements: Elements::Pointed,
    },
    Kind {
        language: Language::Cpp,
        is_named: |name| name.starts_with("initializer_list<"),
        address: &["_M_array"],
        length: Length::Is(&["_M_len"]),
        elements: Elements::Pointed,
    },
];

/// A part of a record: its first bit, and what it is.
type Part = (u64, CType);

/// Where one record has its text or list.
struct Shape {
    address: Part,
    /// A number, or a pointer behind the last element.
    length: Part,
    /// An element; none: it is a text.
    of: Option<CType>,
}

/// A name without the modules that rustc puts in front of some: `alloc::boxed::Box<[u16]>`.
fn without_path(name: &str) -> &str {
    let own = name.split(['<', '[', '&', '(']).next().unwrap_or_default();
    own.rfind("::").map_or(name, |at| &name[at + 2..])
}

/// Elements of a list in the target's memory.
pub(super) struct Counted {
    /// The first one.
    pub first: Place,
    /// How many there are.
    pub length: Value,
}

/// How many elements of this size there are in so many bytes.
fn elements(bytes: Value, size: usize) -> Value {
    match (size, bytes.kind) {
        (1, kind) => value(Type::UINT, kind),
        (size, ValueKind::Binary(BinaryOp::Mul, _, count, by)) if matches!(by.kind, ValueKind::Int(n) if n == size as u64) => {
            *count
        }
        (size, kind) => {
            let (bytes, size) = (value(Type::UINT, kind), value(Type::UINT, ValueKind::Int(size as u64)));
            value(Type::UINT, ValueKind::Binary(BinaryOp::Div, true, Box::new(bytes), Box::new(size)))
        }
    }
}

impl Checker<'_> {
    /// The text or list that a record is, or what a reference to one leads to.
    pub(super) fn counted_in(&mut self, place: &Place, span: Span) -> Checking<Option<Value>> {
        let Some(value) = self.counted_value(place) else {
            self.is_described(place, span)?;
            return Ok(None);
        };
        if let Type::List(List { of, .. }) = &value.ty {
            if let CType::Record(element) = &**of {
                if self.shape(element).is_some_and(|shape| shape.of.is_none()) {
                    return Ok(Some(self.texts(value)));
                }
            }
            let mut of = &**of;
            while let CType::Array(inner, _) = of {
                of = inner;
            }
            if let CType::Record(record) = of {
                self.look_inside(record, span)?;
            }
        }
        Ok(Some(value))
    }

    /// Makes sure that a text or list of C++ is not only declared: without `-fstandalone-debug`,
    /// clang leaves the description of its library's types to the library.
    fn is_described(&mut self, place: &Place, span: Span) -> Checking<()> {
        let ty = if let CType::Reference(of) = &place.ty { of } else { &place.ty };
        let CType::Record(record) = ty else { return Ok(()) };
        let (record, name) = (record.clone(), record.name.split_once(' ').map_or(&*record.name, |(_, name)| name));
        let is_known = KINDS.iter().any(|kind| kind.language == Language::Cpp && (kind.is_named)(name));
        if !is_known || self.known_layout(&record).is_some() {
            return Ok(());
        }
        let message = format!("what is in '{}' is not known: the debug information only declares it", record.name);
        self.error_with(span, message, "with -fstandalone-debug, clang++ describes the types of the library, too")
    }

    /// A list of texts ([`Form::Texts`]).
    fn texts(&mut self, list: Value) -> Value {
        let (Type::List(ty), ValueKind::ReadBytes(address, bytes)) = (&list.ty, &list.kind) else { return list };
        let len = ty.len.min(LISTED);
        let binary = |op, a: Value, b| truth(ValueKind::Binary(op, true, Box::new(a), Box::new(b)));
        let (count, most) = (elements((**bytes).clone(), ty.size), len as u64 + 1);
        let mut items = vec![either(&binary(BinaryOp::Lt, count.clone(), int(most)), count, int(most))];
        for n in 0..len {
            let at = int((n * ty.size) as u64);
            let is_there = binary(BinaryOp::Gt, (**bytes).clone(), at.clone());
            let first = Place::new(Base::Address(plus((**address).clone(), at)), (*ty.of).clone());
            let Some(text) = self.counted_value(&first) else { continue };
            let none = value(text.ty.clone(), ValueKind::Text(Vec::new()));
            items.push(either(&is_there, text, none));
        }
        let types = items.iter().map(|item| item.ty.clone()).collect();
        value(Type::Tuple(Parts::of(Form::Texts, types)), ValueKind::Tuple(items))
    }

    fn counted_value(&mut self, place: &Place) -> Option<Value> {
        let (own, shape) = self.shaped(place)?;
        let address = Box::new(self.part(&own, &shape.address)?);
        let Some(of) = &shape.of else {
            let kind = ValueKind::CountedText(address, Box::new(self.part(&own, &shape.length)?));
            return Some(value(Type::Text(self.out.config.max_strlen), kind));
        };
        let size = self.known_size(of)?;
        let bytes = match shape.length.1 {
            CType::Pointer(_) => self.distance(&own, &shape)?,
            _ => times(self.part(&own, &shape.length)?, size),
        };
        let len = (self.out.config.max_strlen / size as usize).max(1);
        let list = List { of: Box::new(of.clone()), size: size as usize, len };
        Some(value(Type::List(list), ValueKind::ReadBytes(address, Box::new(bytes))))
    }

    /// The elements of the list in a place; `None`: there is none.
    pub(super) fn list(&mut self, place: &Place) -> Option<Counted> {
        let Value { ty: Type::List(List { of, size, .. }), kind: ValueKind::ReadBytes(address, bytes) } =
            self.counted_value(place)?
        else {
            return None;
        };
        Some(Counted { first: Place::new(Base::Address(*address), *of), length: elements(*bytes, size) })
    }

    /// How many texts are read with a record that is a text or a list; of a list of other things,
    /// 1. `None`: it is neither.
    pub(super) fn weight(&mut self, record: &Record) -> Option<usize> {
        Some(match self.shape(record)?.of {
            Some(CType::Record(of)) if self.shape(&of).is_some_and(|shape| shape.of.is_none()) => LISTED,
            _ => 1,
        })
    }

    /// The record that a place has or refers to, and its shape.
    fn shaped(&mut self, place: &Place) -> Option<(Place, Shape)> {
        let own = match &place.ty {
            CType::Record(_) => place.clone(),
            CType::Reference(of) if matches!(**of, CType::Record(_)) => {
                let address = place.number(self.types.word(), false)?;
                Place::new(Base::Address(address), (**of).clone())
            }
            _ => return None,
        };
        let CType::Record(record) = &own.ty else { return None };
        let shape = self.shape(&record.clone())?;
        Some((own, shape))
    }

    /// A number of a place.
    fn part(&self, of: &Place, (bit, ty): &Part) -> Option<Value> {
        let member = of.member(*bit, ty.clone(), None);
        member.number(self.types.word(), false)
    }

    /// Bytes from the address to the end.
    fn distance(&self, of: &Place, shape: &Shape) -> Option<Value> {
        let (end, start) = (self.part(of, &shape.length)?, self.part(of, &shape.address)?);
        Some(value(Type::UINT, ValueKind::Binary(BinaryOp::Sub, true, Box::new(end), Box::new(start))))
    }

    fn shape(&mut self, record: &Record) -> Option<Shape> {
        let name = record.name.strip_prefix("struct ").or_else(|| record.name.strip_prefix("class "))?;
        // `dwz` collects types in units that do not say: there a name that C cannot have is enough.
        let is_c = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let name = without_path(name);
        let kinds: Vec<&Kind> = KINDS.iter().filter(|kind| (kind.is_named)(name)).collect();
        if kinds.is_empty() {
            return None;
        }
        let layout = self.known_layout(record)?;
        let is_of = |kind: &Kind| layout.language.map_or(!is_c, |language| language == kind.language);
        let mut kinds = kinds.into_iter().filter(|kind| is_of(kind));
        kinds.find_map(|kind| self.shape_as(kind, record, &layout))
    }

    /// The shape, if the record has the members of this kind.
    fn shape_as(&mut self, kind: &Kind, record: &Record, layout: &Layout) -> Option<Shape> {
        let word = self.types.word();
        // A type of Go may have any name, so others may have these members among more.
        let members: &[&str] =
            if kind.elements == Elements::Characters { &["str", "len"] } else { &["array", "len", "cap"] };
        if kind.language == Language::Go && !layout.fields.iter().map(|field| &*field.name).eq(members.iter().copied())
        {
            return None;
        }
        let address = self.inner(record, kind.address).or_else(|| self.only_pointer(kind, layout))?;
        let address = match &address.1 {
            CType::Record(of) => self.first_pointer(&of.clone(), address.0, 0, &mut HashSet::new())?,
            _ => address,
        };
        let CType::Pointer(to) = &address.1 else { return None };
        let length = match kind.length {
            Length::Is(path) => {
                self.inner(record, path).filter(|(_, ty)| matches!(ty, CType::Int { bytes, .. } if *bytes == word))
            }
            Length::Ends(path) => self.inner(record, path).filter(|(_, ty)| *ty == address.1),
        }?;
        let of = match kind.elements {
            Elements::Characters => {
                let is_byte = matches!(**to, CType::Char | CType::Int { bytes: 1, .. });
                return is_byte.then_some(Shape { address, length, of: None });
            }
            Elements::Pointed => (**to).clone(),
            Elements::Parameter => layout.element.clone()?,
        };
        let size = self.known_size(&of)?;
        (1..=ELEMENT).contains(&size).then_some(Shape { address, length, of: Some(of) })
    }

    /// The address of a text of C++ in a member that is only declared, and has room for a pointer
    /// only: `_Alloc_hider` of `basic_string`, as clang describes it without `-fstandalone-debug`.
    fn only_pointer(&mut self, kind: &Kind, layout: &Layout) -> Option<Part> {
        if kind.language != Language::Cpp || kind.elements != Elements::Characters {
            return None;
        }
        let holder = layout.fields.iter().find(|field| Some(&&*field.name) == kind.address.first())?;
        let CType::Record(of) = &holder.ty else { return None };
        let next = layout.fields.iter().map(|field| field.bit).filter(|bit| *bit > holder.bit).min()?;
        let is_word = next - holder.bit == 8 * u64::from(self.types.word());
        let is_pointer = is_word && self.known_layout(&of.clone()).is_none();
        is_pointer.then(|| (holder.bit, CType::Pointer(Box::new(CType::Char))))
    }

    /// A member of members: its first bit, and what it is.
    fn inner(&mut self, record: &Record, path: &[&str]) -> Option<Part> {
        let (mut bit, mut ty) = (0, CType::Record(record.clone()));
        for name in path {
            let CType::Record(record) = &ty else { return None };
            let (at, of) = self.known_member(&record.clone(), name, 0, &mut HashSet::new())?;
            (bit, ty) = (bit + at, of);
        }
        Some((bit, ty))
    }

    /// A member, also of what has no name in the record, such as a base class. `before`: records
    /// that were looked into and do not have it.
    fn known_member(
        &mut self,
        record: &Record,
        name: &str,
        depth: u32,
        before: &mut HashSet<RecordKey>,
    ) -> Option<Part> {
        if depth == DEPTH || !before.insert(record.key()) {
            return None;
        }
        let fields = self.known_layout(record)?.fields;
        if let Some(field) = fields.iter().find(|field| field.name == name) {
            return Some((field.bit, field.ty.clone()));
        }
        fields.iter().filter(|field| field.name.is_empty()).find_map(|field| match &field.ty {
            CType::Record(of) => {
                let (bit, ty) = self.known_member(of, name, depth + 1, before)?;
                Some((field.bit + bit, ty))
            }
            _ => None,
        })
    }

    /// The first pointer in a record. `before`: records that were looked into and have none.
    fn first_pointer(
        &mut self,
        record: &Record,
        bit: u64,
        depth: u32,
        before: &mut HashSet<RecordKey>,
    ) -> Option<Part> {
        if depth == DEPTH || !before.insert(record.key()) {
            return None;
        }
        self.known_layout(record)?.fields.into_iter().find_map(|field| match field.ty {
            CType::Pointer(_) => Some((bit + field.bit, field.ty)),
            CType::Record(of) => self.first_pointer(&of, bit + field.bit, depth + 1, before),
            _ => None,
        })
    }

    /// Bytes of something of this type, if they are known.
    pub(super) fn known_size(&mut self, ty: &CType) -> Option<u64> {
        match ty {
            CType::Array(of, length) => self.known_size(of)?.checked_mul(*length),
            CType::Record(record) => Some(self.known_layout(record)?.size),
            other => other.size(self.types.word(), &mut |_| None),
        }
    }

    pub(super) fn known_layout(&mut self, record: &Record) -> Option<Layout> {
        self.types.layout(self.points, record).ok().cloned()
    }
}
