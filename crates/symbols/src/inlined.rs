//! Source lines and inlined functions: what DWARF says of an address. Read only when somebody asks.

use std::path::Path;
use std::sync::Arc;

use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};
use sidestep_isa::Va;

use crate::demangle;
use crate::elf::Elf;
use crate::image::Image;

type Reader = EndianArcSlice<LittleEndian>;

/// The DWARF of a file.
pub struct Lines {
    context: addr2line::Context<Reader>,
}

/// A function at an address: the one that the symbol table knows, or one that the compiler has put
/// into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its name as people write it, without parameters; none if DWARF has none.
    pub function: Option<String>,
    /// Path of the source file as the compiler was given it, and the line, from 1.
    pub line: Option<(String, u32)>,
}

impl Lines {
    /// Reads a file. None: it has no DWARF, or none that can be read.
    #[must_use]
    pub fn open(file: &Path) -> Option<Lines> {
        let wanted = |name: &[u8]| name.starts_with(b".debug_") || name.starts_with(b".note");
        let elf = Elf::parse(file, Image::read(file, wanted).ok()?).ok()?;
        elf.section(SectionId::DebugInfo.name())?;
        let load = |id: SectionId| {
            let data = elf.section(id.name()).and_then(|section| elf.data(section).ok()).unwrap_or(&[]);
            Ok::<_, gimli::Error>(Reader::new(Arc::from(data), LittleEndian))
        };
        let dwarf = Dwarf::load(load).ok()?;
        Some(Lines { context: addr2line::Context::from_dwarf(dwarf).ok()? })
    }

    /// The functions at a link-time address, innermost first: the last one is not inlined. Empty:
    /// nothing is known.
    #[must_use]
    pub fn at(&self, va: Va) -> Vec<Place> {
        let Ok(mut frames) = self.context.find_frames(va.0).skip_all_loads() else { return Vec::new() };
        let mut all = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let function = frame.function.and_then(|function| {
                let name = function.raw_name().ok()?.into_owned();
                Some(demangle::short(&name).unwrap_or(name))
            });
            let line = frame.location.and_then(|location| Some((location.file?.to_owned(), location.line?)));
            all.push(Place { function, line });
        }
        all
    }
}
