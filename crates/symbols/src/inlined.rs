//! Source lines and inlined functions: what DWARF says of an address, or the table of a stripped Go
//! program. Read only when somebody asks.

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use addr2line::{LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{Dwarf, DwarfPackage, EndianArcSlice, LittleEndian, Reader as _, Section, SectionId};
use sidestep_isa::Va;

use crate::demangle;
use crate::dwarf::split::{self, Missing, Skeleton, Split};
use crate::object::Object;
use crate::pclntab;

type Reader = EndianArcSlice<LittleEndian>;

/// What an object says of its lines.
pub struct Lines(Source);

enum Source {
    Dwarf(Box<Described>),
    /// The lines alone.
    Go(pclntab::Lines),
}

/// The DWARF of an object.
struct Described {
    context: addr2line::Context<Reader>,
    split: Split,
    package: OnceCell<Option<DwarfPackage<Reader>>>,
    missing: RefCell<Option<Missing>>,
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

impl Object {
    /// Its lines and inlined functions, from itself or its debug file; of a Go program without
    /// DWARF, its lines. None: it has none of both, or none that can be read.
    #[must_use]
    pub fn lines(&self) -> Option<Lines> {
        let described = self.dwarf_lines().map(|described| Source::Dwarf(Box::new(described)));
        let source = described.or_else(|| pclntab::Lines::of(self.elf()).map(Source::Go))?;
        Some(Lines(source))
    }

    fn dwarf_lines(&self) -> Option<Described> {
        let place = self.debug_place();
        let found = place.open(self.elf(), SectionId::DebugInfo.name(), is_wanted).ok()?;
        let section = |id: SectionId| found.get(id.name()).map(|bytes| reader(&bytes));
        let dwarf = Dwarf::load(section).ok()?;
        Some(Described {
            context: addr2line::Context::from_dwarf(dwarf).ok()?,
            split: Split::new(place, &found),
            package: OnceCell::new(),
            missing: RefCell::default(),
        })
    }
}

impl Lines {
    /// The functions at a link-time address, innermost first: the last one is not inlined. Empty:
    /// nothing is known.
    #[must_use]
    pub fn at(&self, va: Va) -> Vec<Place> {
        match &self.0 {
            Source::Dwarf(described) => described.at(va),
            Source::Go(lines) => {
                lines.at(va).map(|line| Place { function: None, line: Some(line) }).into_iter().collect()
            }
        }
    }

    /// What is not known because the file that has it is missing: a clause.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let Source::Dwarf(described) = &self.0 else { return None };
        let missing = described.missing.borrow();
        missing.as_ref().map(|Missing { name, package, .. }| format!("neither {name} nor {package} is there"))
    }
}

impl Described {
    fn at(&self, va: Va) -> Vec<Place> {
        let mut lookup = self.context.find_frames(va.0);
        let mut frames = loop {
            match lookup {
                LookupResult::Output(Ok(frames)) => break frames,
                LookupResult::Output(Err(_)) => return Vec::new(),
                LookupResult::Load { load, continuation } => lookup = continuation.resume(self.load(&load)),
            }
        };
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

    /// What a unit is split into.
    fn load(&self, load: &SplitDwarfLoad<Reader>) -> Option<Arc<Dwarf<Reader>>> {
        let package = self.package.get_or_init(|| {
            let sections = self.split.package()?;
            sections.borrow(|bytes| reader(bytes), reader(&[])).ok()
        });
        let packed = package.as_ref().and_then(|package| package.find_cu(load.dwo_id, &load.parent).ok()?);
        if let Some(packed) = packed {
            return Some(Arc::new(packed));
        }
        let (name, dir) = (load.path.as_ref()?.to_slice().ok()?, load.comp_dir.as_ref().map(gimli::Reader::to_slice));
        let dir = dir.transpose().ok()?.unwrap_or_default();
        match self.split.open(&Skeleton { id: load.dwo_id, name: &name, dir: &dir }) {
            Ok(sections) => {
                let mut dwarf = sections.borrow(|bytes| reader(bytes));
                dwarf.make_dwo(&load.parent);
                // addr2line looks at the first unit.
                let mut info = dwarf.debug_info.reader().clone();
                info.skip(split::start(&dwarf, load.dwo_id)?).ok()?;
                dwarf.debug_info = info.into();
                Some(Arc::new(dwarf))
            }
            Err(missing) => {
                self.missing.borrow_mut().get_or_insert(missing);
                None
            }
        }
    }
}

fn reader(bytes: &[u8]) -> Reader {
    Reader::new(Arc::from(bytes), LittleEndian)
}

fn is_wanted(section: &[u8]) -> bool {
    section.starts_with(b".debug_") || section.starts_with(b".note")
}
