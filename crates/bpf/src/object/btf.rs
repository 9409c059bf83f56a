//! BTF: the types of an object (`Documentation/bpf/btf.rst`, sections 2 and 3).

use super::error::BtfError;

/// Types nested deeper than this are a circle.
const MAX_DEPTH: usize = 32;

/// A type, by its number; 0 is `void`.
pub type TypeId = u32;

/// A type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Type {
    /// Empty if it has none.
    pub name: String,
    /// What it is.
    pub kind: Kind,
}

/// What a type is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `void`
    Void,
    /// An integer.
    Int {
        /// In bytes.
        size: u32,
        /// Signed.
        signed: bool,
        /// `char`
        is_char: bool,
        /// `bool`
        is_bool: bool,
    },
    /// A pointer to a type.
    Pointer(TypeId),
    /// An array.
    Array {
        /// Of what.
        element: TypeId,
        /// The number of entries.
        count: u32,
    },
    /// A structure or union.
    Composite {
        /// `union`
        is_union: bool,
        /// In bytes.
        size: u32,
        /// In order.
        members: Vec<Member>,
    },
    /// An enumeration.
    Enum {
        /// In bytes.
        size: u32,
        /// Names and values.
        values: Vec<(String, i64)>,
    },
    /// A structure or union that is declared only.
    Forward,
    /// `typedef`, `volatile`, `const`, `restrict`, or a tag: another name for a type.
    Alias(TypeId),
    /// A function, with its prototype.
    Function(TypeId),
    /// What functions take and give.
    Prototype,
    /// A variable of a type.
    Variable(TypeId),
    /// A section of variables.
    Section(Vec<Variable>),
    /// A floating-point number of so many bytes.
    Float(u32),
    /// A note about another type.
    Note,
}

/// A member of a structure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Empty if it has none.
    pub name: String,
    /// Its type.
    pub ty: TypeId,
    /// Its start, in bits.
    pub bit: u32,
    /// Its length in bits, if it is a bit field; else 0.
    pub bits: u32,
}

/// A variable in a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variable {
    /// The [`Kind::Variable`].
    pub ty: TypeId,
    /// Where, in bytes.
    pub offset: u32,
    /// In bytes.
    pub size: u32,
}

/// All types of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Btf {
    types: Vec<Type>,
    strings: Vec<u8>,
}

/// Numbers one after another; reading behind the end is an error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    data: &'a [u8],
}

impl<'a> Words<'a> {
    pub fn new(data: &'a [u8]) -> Words<'a> {
        Words { data }
    }

    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    pub fn next(&mut self) -> Result<u32, BtfError> {
        let (word, rest) = self.data.split_first_chunk::<4>().ok_or(BtfError::Truncated)?;
        self.data = rest;
        Ok(u32::from_le_bytes(*word))
    }

    pub fn take(&mut self, bytes: usize) -> Result<Words<'a>, BtfError> {
        let (taken, rest) = self.data.split_at_checked(bytes).ok_or(BtfError::Truncated)?;
        self.data = rest;
        Ok(Words { data: taken })
    }
}

/// The part of `data` from `start` on with `len` bytes.
pub(super) fn part(data: &[u8], start: usize, len: u32) -> Result<&[u8], BtfError> {
    let end = start.checked_add(len as usize).ok_or(BtfError::Truncated)?;
    data.get(start..end).ok_or(BtfError::Truncated)
}

/// Checks magic and version of `.BTF` and `.BTF.ext`; returns the length of the header, and what
/// follows in it.
pub(super) fn header(data: &[u8]) -> Result<(usize, Words<'_>), BtfError> {
    let mut words = Words::new(data);
    let first = words.next()?;
    match first & 0xffff {
        0xeb9f => {}
        0x9feb => return Err(BtfError::BigEndian),
        _ => return Err(BtfError::Magic),
    }
    if first >> 16 & 0xff != 1 {
        return Err(BtfError::Version((first >> 16 & 0xff) as u8));
    }
    let len = words.next()? as usize;
    let inside = Words::new(data.get(8..len).ok_or(BtfError::Truncated)?);
    Ok((len, inside))
}

impl Btf {
    /// The types of a `.BTF` section.
    ///
    /// # Errors
    /// If it is cut off or of another version.
    pub fn parse(data: &[u8]) -> Result<Btf, BtfError> {
        let (start, mut fields) = header(data)?;
        let (type_off, type_len) = (fields.next()?, fields.next()?);
        let (str_off, str_len) = (fields.next()?, fields.next()?);
        let at = |off: u32| start.checked_add(off as usize).ok_or(BtfError::Truncated);
        let mut words = Words::new(part(data, at(type_off)?, type_len)?);
        let strings = part(data, at(str_off)?, str_len)?.to_vec();
        let mut btf = Btf { types: vec![Type { name: String::new(), kind: Kind::Void }], strings };
        while !words.is_empty() {
            let ty = btf.read_type(&mut words)?;
            btf.types.push(ty);
        }
        Ok(btf)
    }

    fn read_type(&self, words: &mut Words) -> Result<Type, BtfError> {
        let (name, info, size) = (words.next()?, words.next()?, words.next()?);
        let count = info & 0xffff;
        let flag = info >> 31 == 1;
        let bytes = |each: usize| count as usize * each;
        let kind = match info >> 24 & 0x1f {
            1 => {
                let encoding = words.next()? >> 24;
                Kind::Int { size, signed: encoding & 1 != 0, is_char: encoding & 2 != 0, is_bool: encoding & 4 != 0 }
            }
            2 => Kind::Pointer(size),
            3 => {
                let (element, _index, count) = (words.next()?, words.next()?, words.next()?);
                Kind::Array { element, count }
            }
            kind @ (4 | 5) => {
                let mut list = words.take(bytes(12))?;
                let mut members = Vec::with_capacity(count as usize);
                while !list.is_empty() {
                    let (name, ty, place) = (list.next()?, list.next()?, list.next()?);
                    let (bit, bits) = if flag { (place & 0xff_ffff, place >> 24) } else { (place, 0) };
                    members.push(Member { name: self.string(name)?, ty, bit, bits });
                }
                Kind::Composite { is_union: kind == 5, size, members }
            }
            kind @ (6 | 19) => {
                let mut list = words.take(bytes(if kind == 6 { 8 } else { 12 }))?;
                let mut values = Vec::with_capacity(count as usize);
                while !list.is_empty() {
                    let (name, low) = (list.next()?, list.next()?);
                    let value = match kind {
                        6 if flag => i64::from(low as i32),
                        6 => i64::from(low),
                        _ => (u64::from(list.next()?) << 32 | u64::from(low)) as i64,
                    };
                    values.push((self.string(name)?, value));
                }
                Kind::Enum { size, values }
            }
            7 => Kind::Forward,
            8..=11 | 18 => Kind::Alias(size),
            12 => Kind::Function(size),
            13 => {
                words.take(bytes(8))?;
                Kind::Prototype
            }
            14 => {
                words.next()?;
                Kind::Variable(size)
            }
            15 => {
                let mut list = words.take(bytes(12))?;
                let mut variables = Vec::with_capacity(count as usize);
                while !list.is_empty() {
                    variables.push(Variable { ty: list.next()?, offset: list.next()?, size: list.next()? });
                }
                Kind::Section(variables)
            }
            16 => Kind::Float(size),
            17 => {
                words.next()?;
                Kind::Note
            }
            other => return Err(BtfError::Kind(other)),
        };
        Ok(Type { name: self.string(name)?, kind })
    }

    /// The string at an offset.
    ///
    /// # Errors
    /// If there is none.
    pub fn string(&self, offset: u32) -> Result<String, BtfError> {
        let rest = self.strings.get(offset as usize..).ok_or(BtfError::String(offset))?;
        let len = rest.iter().position(|b| *b == 0).ok_or(BtfError::String(offset))?;
        Ok(String::from_utf8_lossy(&rest[..len]).into_owned())
    }

    /// A type.
    ///
    /// # Errors
    /// If there is none with this number.
    pub fn get(&self, id: TypeId) -> Result<&Type, BtfError> {
        self.types.get(id as usize).ok_or(BtfError::Type(id))
    }

    /// The type behind other names for it.
    ///
    /// # Errors
    /// If there is none, or the names go in a circle.
    pub fn resolve(&self, mut id: TypeId) -> Result<&Type, BtfError> {
        for _ in 0..MAX_DEPTH {
            match self.get(id)? {
                Type { kind: Kind::Alias(next), .. } => id = *next,
                found => return Ok(found),
            }
        }
        Err(BtfError::Circle(id))
    }

    /// Its length, in bytes.
    ///
    /// # Errors
    /// If it has none.
    pub fn size(&self, id: TypeId) -> Result<u32, BtfError> {
        self.size_within(id, MAX_DEPTH)
    }

    fn size_within(&self, id: TypeId, depth: usize) -> Result<u32, BtfError> {
        match self.resolve(id)?.kind {
            Kind::Int { size, .. } | Kind::Composite { size, .. } | Kind::Enum { size, .. } | Kind::Float(size) => {
                Ok(size)
            }
            Kind::Pointer(_) => Ok(8),
            Kind::Array { element, count } => {
                let depth = depth.checked_sub(1).ok_or(BtfError::Circle(id))?;
                self.size_within(element, depth)?.checked_mul(count).ok_or(BtfError::NoSize(id))
            }
            Kind::Variable(ty) => {
                let depth = depth.checked_sub(1).ok_or(BtfError::Circle(id))?;
                self.size_within(ty, depth)
            }
            _ => Err(BtfError::NoSize(id)),
        }
    }

    /// The section of this name.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&[Variable]> {
        self.types.iter().find_map(|ty| match &ty.kind {
            Kind::Section(variables) if ty.name == name => Some(variables.as_slice()),
            _ => None,
        })
    }

    /// What a relocation of BTF accesses, as C writes it: `struct task_struct`, or
    /// `pid of struct task_struct`. `path` is a list of member and element numbers, the first an
    /// index of the whole.
    #[must_use]
    pub fn describe_access(&self, id: TypeId, path: &str) -> String {
        let Ok(root) = self.resolve(id) else { return format!("type {id}") };
        let name = if root.name.is_empty() { "(anonymous)" } else { &root.name };
        let whole = match root.kind {
            Kind::Composite { is_union: true, .. } => format!("union {name}"),
            Kind::Composite { .. } | Kind::Forward => format!("struct {name}"),
            Kind::Enum { .. } => format!("enum {name}"),
            _ => name.to_owned(),
        };
        let mut fields = String::new();
        let mut at = id;
        for step in path.split(':').skip(1) {
            let (Ok(step), Ok(ty)) = (step.parse::<usize>(), self.resolve(at)) else { break };
            match &ty.kind {
                Kind::Composite { members, .. } => {
                    let Some(member) = members.get(step) else { break };
                    if !fields.is_empty() && !member.name.is_empty() {
                        fields.push('.');
                    }
                    fields += &member.name;
                    at = member.ty;
                }
                Kind::Array { element, .. } => {
                    fields += &format!("[{step}]");
                    at = *element;
                }
                _ => break,
            }
        }
        if fields.is_empty() { whole } else { format!("{fields} of {whole}") }
    }
}
