//! Types of a program's functions and data, from its DWARF (DWARF 5, chapters 2, 3 and 5; versions
//! 2 to 5).
//!
//! Units are read when something of them is asked for. A function is found by `.debug_aranges`
//! where a compiler wrote it, else by the ranges of the units.

mod function;
mod passed;
mod read;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;

use gimli::{Dwarf, EndianSlice, LittleEndian, SectionId, UnitSectionOffset};
use sidestep_isa::Va;

use crate::arch;
use crate::dwarf::Place;
use crate::elf::Elf;
use crate::error::TypeError;
use read::Reading;

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
    /// An enumeration.
    Enum(Enumeration),
    /// A pointer, or a reference.
    Pointer(Box<DataType>),
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

/// What a record consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordLayout {
    /// Bytes.
    pub size: u64,
    /// In the order of the declaration.
    pub members: Vec<RecordMember>,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passed {
    /// Where the ABI says.
    Abi,
    /// In the register with this DWARF number: 32-bit programs.
    Register(u16),
    /// On the stack, so many bytes above the return address: 32-bit programs.
    Stack(u64),
    /// The compiler does not say, and the ABI need not be right: 32-bit programs.
    Unknown,
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
}

/// What a function takes and gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionType {
    /// In order.
    pub parameters: Vec<FunctionParameter>,
    /// What it returns.
    pub result: DataType,
    /// As the source has it.
    pub result_text: String,
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
    sections: HashMap<SectionId, Vec<u8>>,
    /// Where units begin, ascending.
    units: Vec<usize>,
}

impl DebugInfo {
    /// Reads the sections: of the object, or of its debug file.
    pub(crate) fn open(place: &Place, elf: &Elf) -> Result<DebugInfo, TypeError> {
        let path = place.path.clone();
        let found = place
            .open(elf, ".debug_info", if arch::of(elf.isa).arguments_on_stack { is_wanted_32 } else { is_wanted })
            .map_err(|looked| TypeError::NoDebugInfo { path: path.clone(), looked: some_of(&looked) })?;
        let corrupt = |what: &str| TypeError::Corrupt { path: path.clone(), what: what.to_owned() };
        let mut sections = HashMap::new();
        let locations = if arch::of(elf.isa).arguments_on_stack { LOCATIONS } else { &[] };
        for id in WANTED.iter().chain(locations) {
            sections.insert(*id, found.get(id.name()).map(Cow::into_owned).map_err(corrupt)?);
        }
        let mut info = DebugInfo { path: path.clone(), sections, units: Vec::new() };
        let mut units = Vec::new();
        let mut headers = info.dwarf().units();
        while let Some(header) = headers.next().map_err(|error| corrupt(&error.to_string()))? {
            if let UnitSectionOffset::DebugInfoOffset(at) = header.offset() {
                units.push(at.0);
            }
        }
        info.units = units;
        Ok(info)
    }

    fn dwarf(&self) -> Dwarf<Slice<'_>> {
        let section = |id: SectionId| {
            let bytes = self.sections.get(&id).map_or(&[][..], Vec::as_slice);
            Ok::<_, std::convert::Infallible>(EndianSlice::new(bytes, LittleEndian))
        };
        Dwarf::load(section).unwrap_or_default()
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
        let dwarf = self.dwarf();
        let reading = Reading { info: self, dwarf: &dwarf };
        let found = reading.function(va).map_err(|error| self.corrupt(error))?;
        found.ok_or_else(|| TypeError::NoFunction { name: name.to_owned(), path: self.path.clone() })
    }

    /// A type by its name: `struct a`, `union b`, `enum c`, or a `typedef`. It is looked for first
    /// where the function at `near` comes from.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, name: &str, near: Option<Va>) -> Result<DataType, TypeError> {
        let dwarf = self.dwarf();
        let reading = Reading { info: self, dwarf: &dwarf };
        let found = reading.find(name, near).map_err(|error| self.corrupt(error))?;
        found.ok_or_else(|| TypeError::NoType { name: name.to_owned(), path: self.path.clone() })
    }

    /// What the record at a place consists of.
    ///
    /// # Errors
    /// It is only declared.
    pub fn layout(&self, place: u64) -> Result<RecordLayout, TypeError> {
        let dwarf = self.dwarf();
        let reading = Reading { info: self, dwarf: &dwarf };
        match reading.layout(place).map_err(|error| self.corrupt(error))? {
            Ok(layout) => Ok(layout),
            // Other files of the program may have what this one only declares.
            Err(name) => match self.find(&name, None)? {
                DataType::Record { place, .. } => match reading.layout(place).map_err(|error| self.corrupt(error))? {
                    Ok(layout) => Ok(layout),
                    Err(name) => Err(TypeError::NoType { name, path: self.path.clone() }),
                },
                _ => Err(TypeError::NoType { name, path: self.path.clone() }),
            },
        }
    }

    /// The enumeration with a constant of this name that the file of the function at `near` has.
    #[must_use]
    pub fn constant(&self, name: &str, near: Va) -> Option<Enumeration> {
        let dwarf = self.dwarf();
        Reading { info: self, dwarf: &dwarf }.constant(name, near).ok().flatten()
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
];

/// What says where parameters are.
const LOCATIONS: &[SectionId] = &[SectionId::DebugLoc, SectionId::DebugLocLists];

fn is_wanted_32(section: &[u8]) -> bool {
    is_wanted(section) || LOCATIONS.iter().any(|id| id.name().as_bytes() == section)
}

fn is_wanted(section: &[u8]) -> bool {
    section.starts_with(b".note") || WANTED.iter().any(|id| id.name().as_bytes() == section)
}
