//! Types of a program's functions and data, from its DWARF (DWARF 5, chapters 2, 3 and 5; versions
//! 2 to 5).
//!
//! Units, and the files that they are split into, are read when something of them is asked for. A
//! function is found by `.debug_aranges` where a compiler wrote it, else by the ranges of the
//! units.

mod function;
mod passed;
mod read;
mod units;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::OnceLock;

use gimli::{Dwarf, DwarfPackageSections, DwarfSections, EndianSlice, LittleEndian, SectionId};
use sidestep_isa::{Isa, Va};

use self::units::{Die, Range, Reading};
use crate::dwarf::Place;
use crate::dwarf::split::{Missing, Split};
use crate::elf::Elf;
use crate::error::TypeError;

type Slice<'d> = EndianSlice<'d, LittleEndian>;

/// A type as it lies in memory, without `typedef` and `const`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataType {
    /// `void`
    Void,
    /// `char`
    Char,
    /// A number.
    Number {
        /// 1, 2, 4 or 8.
        bytes: u8,
        /// It may be negative.
        signed: bool,
    },
    /// True or false.
    Bool,
    /// A floating-point number of so many bytes.
    Float(u8),
    /// A number of 16 bytes.
    Wide,
    /// An enumeration.
    Enum(Enumeration),
    /// A pointer.
    Pointer(Box<DataType>),
    /// A pointer that stands for what it leads to: a reference, or the address that is passed
    /// instead of an object.
    Reference(Box<DataType>),
    /// So many of it.
    Array(Box<DataType>, u64),
    /// `struct`, `class` or `union`.
    Record {
        /// With `struct` or `union` before it.
        name: String,
        /// For [`DebugInfo::layout`].
        place: u64,
    },
    /// A function.
    Function,
}

/// An enumeration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enumeration {
    /// With `enum` before it.
    pub name: String,
    /// 1, 2, 4 or 8.
    pub bytes: u8,
    /// There are negative ones.
    pub signed: bool,
    /// Names and numbers, those extended to 64 bits.
    pub values: Vec<(String, u64)>,
}

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

/// What a record consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordLayout {
    /// Bytes.
    pub size: u64,
    /// In the order of the declaration.
    pub members: Vec<RecordMember>,
    /// Of an enumeration of Rust, what it is one of.
    pub variants: Option<Variants>,
    /// Of the unit that describes it, if that says.
    pub language: Option<Language>,
    /// Its first parameter that is a type, if it has one: of `Vec<T>`, `T`.
    pub parameter: Option<DataType>,
}

/// Members of which one is there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Variants {
    /// The member with the number that tells which; none if there is only one variant.
    pub tag: Option<usize>,
    /// Numbers and members; the member without a number is there at all other numbers. None: which
    /// is there is not known.
    pub members: Vec<(Option<u64>, usize)>,
}

/// A member of a record. A base class is one without a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordMember {
    /// Empty if it has none.
    pub name: String,
    /// What it is.
    pub ty: DataType,
    /// As the source has it: `const char*`.
    pub text: String,
    /// Its first bit, counted from the lowest of the first byte.
    pub bit: u64,
    /// Of a bit-field, how many bits.
    pub width: Option<u32>,
}

/// Where a function finds a parameter when it is entered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Passed {
    /// Where the ABI says.
    Abi,
    /// In registers, from its first byte on.
    Pieces(Vec<Piece>),
    /// At the address in a register.
    At(Argument),
    /// In the register with this DWARF number: 32-bit programs.
    Register(u16),
    /// On the stack, so many bytes above the return address: 32-bit programs.
    Stack(u64),
    /// The debug information does not say: of 32-bit programs, whose compilers need not follow the
    /// ABI; or a class of C++ is passed, or returned, of which nobody knows whether its copies are
    /// calls.
    Unknown,
}

/// A part of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it is.
    pub register: Argument,
    /// How many bytes it has.
    pub bytes: u8,
}

/// A register that functions take arguments in: the how manyth of its kind, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// For numbers and addresses.
    Integer(u8),
    /// For floating-point numbers.
    Float(u8),
}

/// A parameter of a function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionParameter {
    /// Empty if it has none.
    pub name: String,
    /// What is passed: a pointer if that is what the compiler passes instead of an object.
    pub ty: DataType,
    /// As the source has it: `const char*`.
    pub text: String,
    /// Where it is.
    pub passed: Passed,
    /// Of records, arrays and 16-byte numbers, the bytes that the function has; empty: all. Callers
    /// need not pass the others, which it does not use.
    pub parts: Vec<Part>,
}

/// Bytes of a parameter that are there when a function is entered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Counted from its first byte.
    pub bytes: std::ops::Range<u64>,
    /// The register that they are in as a whole, if the debug information says so.
    pub register: Option<Argument>,
}

/// What a function takes and gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionType {
    /// In order.
    pub parameters: Vec<FunctionParameter>,
    /// What it returns: of several results of Go, the first.
    pub result: DataType,
    /// As the source has it.
    pub result_text: String,
    /// It is a class of C++ that is passed by its address, whatever its size.
    pub result_in_memory: bool,
    /// Who says where parameters are.
    pub convention: Convention,
    /// Of each parameter, whether it is where that says: it may have been left out, or moved.
    pub kept: Vec<bool>,
}

/// Who says where parameters are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Convention {
    /// The ABI of C.
    C,
    /// The compiler alone.
    Compiler,
    /// The ABI of Go.
    Go {
        /// It passes them in registers, as of Go 1.17.
        registers: bool,
    },
}

/// The debug information of an object.
pub struct DebugInfo {
    path: PathBuf,
    isa: Isa,
    sections: DwarfSections<Vec<u8>>,
    /// Where units begin, ascending: in `.debug_info`, and in `.debug_types`.
    units: Vec<usize>,
    type_units: Vec<usize>,
    split: Split,
    package: OnceLock<Option<DwarfPackageSections<Vec<u8>>>>,
    /// Of each unit, what the file has that it is split into.
    files: Vec<OnceLock<SplitFile>>,
    /// Addresses of units, by `.debug_aranges` and by the units themselves, ascending.
    aranges: OnceLock<gimli::Result<Vec<Range>>>,
    ranges: OnceLock<gimli::Result<Vec<Range>>>,
}

type SplitFile = Result<Box<DwarfSections<Vec<u8>>>, Box<Missing>>;

impl DebugInfo {
    /// Reads the sections: of the object, or of its debug file.
    pub(crate) fn open(place: &Place, elf: &Elf) -> Result<DebugInfo, TypeError> {
        let path = place.path.clone();
        let found = place
            .open(elf, ".debug_info", is_wanted)
            .map_err(|looked| TypeError::NoDebugInfo { path: path.clone(), looked: some_of(&looked) })?;
        let corrupt = |what: &str| TypeError::Corrupt { path: path.clone(), what: what.to_owned() };
        let section = |id: SectionId| match WANTED.contains(&id) {
            true => found.get(id.name()).map(Cow::into_owned),
            false => Ok(Vec::new()),
        };
        let sections = DwarfSections::load(section).map_err(corrupt)?;
        let mut info = DebugInfo {
            path: path.clone(),
            isa: found.isa(),
            sections,
            units: Vec::new(),
            type_units: Vec::new(),
            split: Split::new(place, &found),
            package: OnceLock::new(),
            files: Vec::new(),
            aranges: OnceLock::new(),
            ranges: OnceLock::new(),
        };
        let read = |info: &DebugInfo| Ok((units::units(&info.dwarf())?, units::type_units(&info.dwarf())?));
        (info.units, info.type_units) = read(&info).map_err(|error: gimli::Error| corrupt(&error.to_string()))?;
        info.files.resize_with(info.units.len(), OnceLock::new);
        Ok(info)
    }

    fn dwarf(&self) -> Dwarf<Slice<'_>> {
        self.sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian))
    }

    /// What was not found may be in a file that is missing.
    fn without(&self, reading: &Reading, not_found: TypeError) -> TypeError {
        match reading.missing() {
            Some(Missing { name, package, looked }) => TypeError::NoSplit {
                path: self.path.clone(),
                name: name.clone(),
                package: package.clone(),
                looked: some_of(looked),
            },
            None => not_found,
        }
    }

    fn corrupt(&self, error: gimli::Error) -> TypeError {
        TypeError::Corrupt { path: self.path.clone(), what: error.to_string() }
    }

    /// What the function at a link-time address takes and gives. `name` is for messages.
    ///
    /// # Errors
    /// It is not described, or it is not the function that the source has.
    pub fn function(&self, va: Va, name: &str) -> Result<FunctionType, TypeError> {
        // Copies that leave parameters out, or pass them otherwise.
        if [".isra.", ".constprop.", ".part."].iter().any(|mark| name.contains(mark)) {
            return Err(TypeError::Changed { name: name.to_owned() });
        }
        let reading = Reading::new(self);
        let found = reading.function(va).map_err(|error| self.corrupt(error))?;
        let none = || TypeError::NoFunction { name: name.to_owned(), path: self.path.clone() };
        found.ok_or_else(|| self.without(&reading, none()))
    }

    /// A type by its name: `struct a`, `union b`, `enum c`, or a `typedef`. It is looked for first
    /// where the function at `near` comes from.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, name: &str, near: Option<Va>) -> Result<DataType, TypeError> {
        let reading = Reading::new(self);
        let found = reading.find(name, near).map_err(|error| self.corrupt(error))?;
        let none = || TypeError::NoType { name: name.to_owned(), path: self.path.clone() };
        found.ok_or_else(|| self.without(&reading, none()))
    }

    /// What the record at a place consists of.
    ///
    /// # Errors
    /// It is only declared.
    pub fn layout(&self, place: u64) -> Result<RecordLayout, TypeError> {
        let reading = Reading::new(self);
        match reading.layout(Die(place)).map_err(|error| self.corrupt(error))? {
            Ok(layout) => Ok(layout),
            // Other files of the program may have what this one only declares.
            Err(name) => match self.find(&name, None)? {
                DataType::Record { place, .. } => {
                    match reading.layout(Die(place)).map_err(|error| self.corrupt(error))? {
                        Ok(layout) => Ok(layout),
                        Err(name) => Err(TypeError::NoType { name, path: self.path.clone() }),
                    }
                }
                _ => Err(TypeError::NoType { name, path: self.path.clone() }),
            },
        }
    }

    /// The enumeration with a constant of this name that the file of the function at `near` has.
    #[must_use]
    pub fn constant(&self, name: &str, near: Va) -> Option<Enumeration> {
        Reading::new(self).constant(name, near).ok().flatten()
    }
}

/// The first two places, and how many others there are.
fn some_of(looked: &[String]) -> String {
    let first = looked.iter().take(2).cloned().collect::<Vec<_>>().join(", ");
    if looked.len() > 2 { format!("{first} and {} other places", looked.len() - 2) } else { first }
}

const WANTED: &[SectionId] = &[
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugStr,
    // gimli reads the head of a unit's line table with the unit.
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugTypes,
    // They say where parameters are.
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
];

fn is_wanted(section: &[u8]) -> bool {
    section.starts_with(b".note") || WANTED.iter().any(|id| id.name().as_bytes() == section)
}
