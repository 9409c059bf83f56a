//! Types of C: what lies in the memory of a program.
//!
//! Sources: the System V ABIs of x86-64 and i386 for sizes and alignment; GCC's "bit-field" rules
//! follow from them.

use std::collections::HashMap;
use std::sync::Arc;

/// A type of C, without the names that `typedef` gives and without `const`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CType {
    /// `void`
    Void,
    /// `char`: an array of it is a string.
    Char,
    /// A number.
    Int {
        /// 1, 2, 4 or 8.
        bytes: u8,
        /// It may be negative.
        signed: bool,
    },
    /// A floating-point number, which can be printed but not be calculated with.
    Float {
        /// 4, 8, or of a `long double` 12 or 16.
        bytes: u8,
    },
    /// `enum`, and `bool`.
    Enum(Arc<Enum>),
    /// An address of it.
    Pointer(Box<CType>),
    /// The same, of a reference: it stands for what is there.
    Reference(Box<CType>),
    /// So many of it.
    Array(Box<CType>, u64),
    /// `struct` or `union`.
    Record(Record),
    /// A function: there are only pointers to it.
    Function,
    /// An address of a network, which is printed as one.
    Net(Net),
}

/// Addresses of networks, which are kept as they are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Net {
    /// `192.168.0.1`
    V4,
    /// `::1`
    V6,
    /// `0A:1B:2C:3D:4E:5F`
    Mac,
}

impl Net {
    /// Bytes of an address.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Net::V4 => 4,
            Net::V6 => 16,
            Net::Mac => 6,
        }
    }
}

/// An enumeration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enum {
    /// With its keyword.
    pub name: String,
    /// 1, 2, 4 or 8.
    pub bytes: u8,
    /// There are negative ones.
    pub signed: bool,
    /// What the numbers are called, in the order of the declaration.
    pub values: Vec<(String, u64)>,
}

impl Enum {
    /// What a number is called.
    #[must_use]
    pub fn name_of(&self, value: u64) -> Option<&str> {
        self.values.iter().find(|(_, known)| *known == value).map(|(name, _)| &**name)
    }

    /// `bool`
    #[must_use]
    pub fn bool() -> Enum {
        let values = vec![("false".to_owned(), 0), ("true".to_owned(), 1)];
        Enum { name: "bool".to_owned(), bytes: 1, signed: false, values }
    }

    /// Whether it is `bool`.
    #[must_use]
    pub fn is_bool(&self) -> bool {
        self.name == "bool"
    }
}

/// Which `struct` or `union`. Two of one name are the same type: each file of a program describes
/// it again. What they consist of is looked up by place all the same, for other files may have
/// another one of this name.
#[derive(Clone, Debug)]
pub struct Record {
    /// With its keyword.
    pub name: Arc<str>,
    /// Where the program describes it; none: the script declares it.
    pub place: Option<u64>,
}

impl Record {
    /// For [`Layouts`].
    #[must_use]
    pub fn key(&self) -> RecordKey {
        (Arc::clone(&self.name), self.place)
    }
}

/// Name and place of a record.
pub type RecordKey = (Arc<str>, Option<u64>);

impl PartialEq for Record {
    fn eq(&self, other: &Record) -> bool {
        self.name == other.name
    }
}

impl Eq for Record {}

/// Languages with types of texts of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    /// C++
    Cpp,
    /// Go
    Go,
    /// Rust
    Rust,
    /// C, for example.
    Other,
}

/// What a `struct` or `union` consists of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Bytes.
    pub size: u64,
    /// Its address is a multiple of it.
    pub align: u64,
    /// In the order of the declaration.
    pub fields: Vec<Field>,
    /// Of an enumeration of Rust, what it is one of.
    pub variants: Option<Variants>,
    /// What it was written in, if that is known.
    pub language: Option<Language>,
    /// Its parameter, if it has one: the elements of a list.
    pub element: Option<CType>,
}

/// Members of which one is there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Variants {
    /// The member with the number that tells which; none if there is only one variant.
    pub tag: Option<usize>,
    /// Numbers and members; the member without a number is there at all other numbers. None: which
    /// is there is not known.
    pub fields: Vec<(Option<u64>, usize)>,
}

/// A member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Empty: its own members are members of what it is in.
    pub name: String,
    /// What it is.
    pub ty: CType,
    /// Its first bit, counted from the lowest of the first byte.
    pub bit: u64,
    /// Of a bit-field, how many bits.
    pub width: Option<u32>,
}

/// What is known of the records of a script, by [`Record::key`].
pub type Layouts = HashMap<RecordKey, Layout>;

/// The types that a script declares.
#[derive(Clone, PartialEq, Debug)]
pub struct Definitions {
    /// Bytes of a pointer: the programs that are probed are as wide as the tool.
    pub word: u8,
    /// Each `struct` and `union`.
    pub layouts: Layouts,
    /// `typedef`
    pub typedefs: HashMap<String, CType>,
    /// Each `enum`.
    pub enums: Vec<Arc<Enum>>,
    /// How many records have no name of their own.
    pub anonymous: u32,
}

impl Default for Definitions {
    fn default() -> Definitions {
        let word = size_of::<usize>() as u8;
        let (mut layouts, mut typedefs) = (Layouts::new(), HashMap::new());
        if word == 8 {
            // Nothing calculates with so many bits: its halves can be looked at.
            let half = |name: &str, bit| Field {
                name: name.to_owned(),
                ty: CType::Int { bytes: 8, signed: false },
                bit,
                width: None,
            };
            let wide = CType::wide();
            layouts.insert(
                Record { name: "__int128".into(), place: None }.key(),
                Layout { size: 16, align: 16, fields: vec![half("low", 0), half("high", 64)], ..Layout::default() },
            );
            typedefs.insert("__int128".to_owned(), wide);
        }
        Definitions { word, layouts, typedefs, enums: Vec::new(), anonymous: 0 }
    }
}

impl Definitions {
    /// The enumeration that a constant is of, and its value.
    #[must_use]
    pub fn constant(&self, name: &str) -> Option<(&Arc<Enum>, u64)> {
        self.enums.iter().find_map(|of| {
            let (_, value) = of.values.iter().find(|(known, _)| known == name)?;
            Some((of, *value))
        })
    }
}

impl CType {
    /// `__int128`
    #[must_use]
    pub fn wide() -> CType {
        CType::Record(Record { name: "__int128".into(), place: None })
    }

    /// `bool`
    #[must_use]
    pub fn bool() -> CType {
        CType::Enum(Arc::new(Enum::bool()))
    }

    /// A type that has a name of its own in C or bpftrace. `word`: bytes of a pointer.
    #[must_use]
    pub fn named(words: &[&str], word: u8) -> Option<CType> {
        let signed = !words.contains(&"unsigned");
        let mut rest: Vec<&str> =
            words.iter().copied().filter(|word| !matches!(*word, "unsigned" | "signed")).collect();
        let explicit = rest.len() < words.len();
        // `long unsigned int` and `unsigned long int` are one type.
        if rest.len() > 1 && rest.last() == Some(&"int") {
            rest.pop();
        }
        let int = |bytes, signed| Some(CType::Int { bytes, signed });
        let fixed = match *rest {
            ["void"] => Some(CType::Void),
            ["bool" | "_Bool"] => Some(CType::bool()),
            ["float"] => Some(CType::Float { bytes: 4 }),
            ["double"] => Some(CType::Float { bytes: 8 }),
            ["long", "double"] => Some(CType::Float { bytes: if word == 8 { 16 } else { 12 } }),
            ["int8" | "int8_t" | "s8" | "__s8"] => int(1, true),
            ["uint8" | "uint8_t" | "u8" | "__u8"] => int(1, false),
            ["int16" | "int16_t" | "s16" | "__s16"] => int(2, true),
            ["uint16" | "uint16_t" | "u16" | "__u16"] => int(2, false),
            ["int32" | "int32_t" | "s32" | "__s32"] => int(4, true),
            ["uint32" | "uint32_t" | "u32" | "__u32"] => int(4, false),
            ["int64" | "int64_t" | "s64" | "__s64"] => int(8, true),
            ["uint64" | "uint64_t" | "u64" | "__u64"] => int(8, false),
            ["ssize_t" | "intptr_t" | "ptrdiff_t" | "off_t"] => int(word, true),
            ["size_t" | "uintptr_t"] => int(word, false),
            ["char"] if !explicit => Some(CType::Char),
            _ => None,
        };
        if fixed.is_some() {
            return fixed.filter(|_| !explicit);
        }
        match *rest {
            ["char"] => int(1, signed),
            ["short"] => int(2, signed),
            ["int"] => int(4, signed),
            ["long"] => int(word, signed),
            ["long", "long"] => int(8, signed),
            [] if explicit => int(4, signed),
            _ => None,
        }
    }

    /// As bpftrace names it in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            CType::Void => "void".to_owned(),
            CType::Char => "int8".to_owned(),
            CType::Int { bytes, signed } => format!("{}int{}", if *signed { "" } else { "u" }, 8 * u32::from(*bytes)),
            CType::Float { bytes: 4 } => "float".to_owned(),
            CType::Float { bytes: 8 } => "double".to_owned(),
            CType::Float { .. } => "long double".to_owned(),
            CType::Enum(of) => of.name.clone(),
            CType::Pointer(of) | CType::Reference(of) => {
                let name = of.name();
                if name.ends_with('*') { format!("{name}*") } else { format!("{name} *") }
            }
            CType::Array(of, length) => format!("{}[{length}]", of.name()),
            CType::Record(record) => record.name.to_string(),
            CType::Function => "function".to_owned(),
            CType::Net(Net::Mac) => "mac_address".to_owned(),
            CType::Net(_) => "inet".to_owned(),
        }
    }

    /// Its bytes; `None` if they are not known. Layouts are asked for through `layout`.
    pub fn size<'l>(&self, word: u8, layout: &mut impl FnMut(&Record) -> Option<&'l Layout>) -> Option<u64> {
        Some(match self {
            CType::Void | CType::Char => 1,
            CType::Int { bytes, .. } | CType::Float { bytes } => (*bytes).into(),
            CType::Enum(of) => of.bytes.into(),
            CType::Pointer(_) | CType::Reference(_) => word.into(),
            CType::Array(of, length) => of.size(word, layout)?.checked_mul(*length)?,
            CType::Record(record) => layout(record)?.size,
            CType::Function => return None,
            CType::Net(of) => of.size() as u64,
        })
    }

    /// What its address is a multiple of, as a member of something.
    pub fn align<'l>(&self, word: u8, layout: &mut impl FnMut(&Record) -> Option<&'l Layout>) -> Option<u64> {
        Some(match self {
            CType::Array(of, _) => of.align(word, layout)?,
            CType::Record(record) => layout(record)?.align,
            CType::Net(_) => 1,
            // On i386 nothing in a struct needs more than a word.
            other => match (other.size(word, layout)?, word) {
                (size, 4) => size.min(4),
                (size, _) => size,
            },
        })
    }
}
