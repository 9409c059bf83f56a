//! The ELF file of an object: what the loader needs of it, read once.

use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object as _, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionKind};
use object::{SymbolKind, elf};

use super::error::ObjectError;

/// A section.
#[derive(Debug)]
pub(super) struct Section<'a> {
    pub index: usize,
    pub name: String,
    /// Empty if it is all zeros.
    pub data: &'a [u8],
    pub size: u64,
    pub is_code: bool,
    /// By rising offset.
    pub relocations: Vec<Relocation>,
}

/// Where to put what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relocation {
    pub offset: u64,
    pub kind: u32,
    /// Index in [`Elf::symbols`].
    pub symbol: usize,
}

/// A symbol.
#[derive(Debug, Default)]
pub(super) struct Symbol {
    /// Of the section, if it is that section's.
    pub name: String,
    pub offset: u64,
    pub size: u64,
    /// `None`: not in the object.
    pub section: Option<usize>,
    pub is_function: bool,
}

/// An object.
#[derive(Debug)]
pub(super) struct Elf<'a> {
    pub sections: Vec<Section<'a>>,
    pub symbols: Vec<Symbol>,
}

impl<'a> Elf<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Elf<'a>, ObjectError> {
        if bytes.len() > super::MAX_FILE {
            return Err(ObjectError::TooLarge(bytes.len()));
        }
        let wrong = |e: object::Error| ObjectError::Elf(e.to_string());
        let file = ElfFile64::<Endianness>::parse(bytes).map_err(wrong)?;
        let endian = file.endian();
        if file.elf_header().e_machine(endian) != elf::EM_BPF {
            return Err(ObjectError::Machine);
        }
        if endian == Endianness::Big {
            return Err(ObjectError::BigEndian);
        }
        let mut sections = Vec::new();
        for section in file.sections() {
            let mut relocations = Vec::new();
            for (offset, relocation) in section.relocations() {
                let RelocationFlags::Elf { r_type: kind } = relocation.flags() else { continue };
                let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
                relocations.push(Relocation { offset, kind, symbol: symbol.0 });
            }
            relocations.sort_by_key(|r| r.offset);
            sections.push(Section {
                index: section.index().0,
                name: String::from_utf8_lossy(section.name_bytes().map_err(wrong)?).into_owned(),
                data: section.data().map_err(wrong)?,
                size: section.size(),
                is_code: section.kind() == SectionKind::Text,
                relocations,
            });
        }
        let mut symbols = Vec::new();
        for symbol in file.symbols() {
            // The index in the table is what relocations name.
            symbols.resize_with(symbol.index().0, Symbol::default);
            let section = symbol.section_index().map(|i| i.0);
            let mut name = String::from_utf8_lossy(symbol.name_bytes().unwrap_or_default()).into_owned();
            if symbol.kind() == SymbolKind::Section || name.is_empty() {
                let at = section.and_then(|index| sections.binary_search_by_key(&index, |s| s.index).ok());
                name = at.map_or(name, |at| sections[at].name.clone());
            }
            let is_function = symbol.kind() == SymbolKind::Text && !symbol.is_undefined();
            symbols.push(Symbol { name, offset: symbol.address(), size: symbol.size(), section, is_function });
        }
        Ok(Elf { sections, symbols })
    }

    /// The section with this index of the file.
    pub fn section(&self, index: usize) -> Option<&Section<'a>> {
        self.sections.binary_search_by_key(&index, |s| s.index).ok().map(|at| &self.sections[at])
    }

    /// The content of the section with this name.
    pub fn data(&self, name: &str) -> Option<&'a [u8]> {
        self.sections.iter().find(|s| s.name == name).map(|s| s.data)
    }
}
