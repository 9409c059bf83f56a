//! Split DWARF: debug information that the compiler left in files of its own (`.dwo`), or that a
//! tool has put into a package of those (`.dwp`). The object has a skeleton of each unit: which
//! addresses are of it, and the name and the number of its file.
//!
//! Source of the facts: DWARF 5, sections 3.1.3 and 7.3.2; for version 4 the page "DebugFission" of
//! GCC's wiki.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{
    Dwarf, DwarfFileType, DwarfPackageSections, DwarfSections, DwoId, EndianSlice, LittleEndian, Reader, SectionId,
};

use super::{Place, Sections};
use crate::debugfile::below;
use crate::elf::Elf;
use crate::error::ObjectError;

/// At most so many bytes of all files together are read.
const ROOM: u64 = 2 << 30;
/// What each look for a file counts at least: there are not endlessly many.
const LOOK: u64 = 16 << 10;

/// Where the files of an object are looked for.
pub(crate) struct Split {
    place: Place,
    /// The file that has the skeletons: the object, or its debug file.
    file: PathBuf,
    /// How many bytes may still be read.
    room: AtomicU64,
}

/// A file that is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Missing {
    /// Its name as the compiler wrote it.
    pub(crate) name: String,
    /// The name of a package that could stand for it.
    pub(crate) package: String,
    /// Where it was looked for, and what was wrong there: clauses.
    pub(crate) looked: Vec<String>,
}

/// What a skeleton says of its file.
pub(crate) struct Skeleton<'a> {
    pub(crate) id: DwoId,
    /// Below the directory, if it is relative.
    pub(crate) name: &'a [u8],
    /// Where the compiler ran.
    pub(crate) dir: &'a [u8],
}

impl Split {
    /// Of the object at a place, whose skeletons are in these sections.
    pub(crate) fn new(place: &Place, skeletons: &Sections) -> Split {
        Split { place: place.clone(), file: skeletons.file().to_owned(), room: AtomicU64::new(ROOM) }
    }

    /// The package of all files, if there is one.
    pub(crate) fn package(&self) -> Option<DwarfPackageSections<Vec<u8>>> {
        let read = |file: PathBuf| -> Option<DwarfPackageSections<Vec<u8>>> {
            let found = Sections::read(&file, is_wanted, Elf::parse_any).ok()?;
            found.elf().section(SectionId::DebugCuIndex.dwo_name()?)?;
            DwarfPackageSections::load(|id| self.take(&found, id)).ok()
        };
        self.packages().into_iter().find_map(read)
    }

    /// The file of a skeleton.
    pub(crate) fn open(&self, skeleton: &Skeleton) -> Result<DwarfSections<Vec<u8>>, Missing> {
        let mut looked = Vec::new();
        for file in self.files(skeleton) {
            let shown = self.place.shown(&file);
            if self.room.load(Ordering::Relaxed) < LOOK {
                looked.push(format!("{shown}: there are more than {ROOM} bytes of such files"));
                break;
            }
            self.room.fetch_sub(LOOK, Ordering::Relaxed);
            let found = match Sections::read(&file, is_wanted, Elf::parse_any) {
                Ok(found) => found,
                Err(ObjectError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    looked.push(shown);
                    continue;
                }
                Err(_) => {
                    looked.push(format!("{shown}: it cannot be read"));
                    continue;
                }
            };
            match DwarfSections::load(|id| self.take(&found, id)) {
                Ok(sections) if has_unit(&sections, skeleton.id) => return Ok(sections),
                Ok(_) => looked.push(format!("{shown}: it is of another build")),
                Err(_) => looked.push(format!("{shown}: it cannot be read")),
            }
        }
        let name = String::from_utf8_lossy(skeleton.name).into_owned();
        let package = with_ending(self.place.path.file_name().unwrap_or_default());
        Err(Missing { name, package: package.to_string_lossy().into_owned(), looked })
    }

    /// A section, as far as there is room for it.
    fn take(&self, found: &Sections, id: SectionId) -> Result<Vec<u8>, gimli::Error> {
        let Some(name) = id.dwo_name().filter(|_| is_used(id)) else { return Ok(Vec::new()) };
        let bytes = found.get(name).map_err(|_| gimli::Error::Io)?.into_owned();
        let left = self.room.load(Ordering::Relaxed).checked_sub(bytes.len() as u64).ok_or(gimli::Error::Io)?;
        self.room.store(left, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Paths of packages, best first.
    fn packages(&self) -> Vec<PathBuf> {
        let object = &self.place.path;
        let mut found = Vec::new();
        for root in &self.place.search.roots {
            found.push(with_ending(below(root, object).as_os_str()).into());
        }
        if self.place.file.as_ref() != Some(&self.file) {
            found.push(with_ending(self.file.as_os_str()).into());
            found.push(self.file.with_extension("dwp"));
        }
        let name = with_ending(object.file_name().unwrap_or_default());
        found.extend(self.place.search.directories().map(|dir| dir.join(&name)));
        found
    }

    /// Paths of a unit's file, best first.
    fn files(&self, skeleton: &Skeleton) -> Vec<PathBuf> {
        let name = Path::new(OsStr::from_bytes(skeleton.name));
        let full = Path::new(OsStr::from_bytes(skeleton.dir)).join(name);
        let beside = self.place.path.parent().unwrap_or(Path::new("/"));
        let last = Path::new(name.file_name().unwrap_or_default());
        // Of builds that leave their directory out, the names are relative.
        let names = [full.as_path(), name, last];
        let mut found = Vec::new();
        for name in names {
            found.extend(self.place.search.roots.iter().map(|root| below(root, &beside.join(name))));
        }
        found.extend(self.place.search.directories().map(|dir| dir.join(last)));
        let mut seen = HashSet::new();
        found.retain(|file| seen.insert(file.clone()));
        found
    }
}

/// Whether one of the units in a file has this number.
fn has_unit(sections: &DwarfSections<Vec<u8>>, id: DwoId) -> bool {
    let mut dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian));
    dwarf.file_type = DwarfFileType::Dwo;
    start(&dwarf, id).is_some()
}

/// Where the unit with this number begins in `.debug_info`: type units may be in front.
pub(crate) fn start<R: Reader<Offset = usize>>(dwarf: &Dwarf<R>, id: DwoId) -> Option<usize> {
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        let at = header.offset().as_debug_info_offset()?.0;
        if dwarf.unit(header).is_ok_and(|unit| unit.dwo_id == Some(id)) {
            return Some(at);
        }
    }
    None
}

/// `NAME.dwp`
fn with_ending(name: &OsStr) -> OsString {
    let mut name = name.to_owned();
    name.push(".dwp");
    name
}

fn is_wanted(section: &[u8]) -> bool {
    section.starts_with(b".debug_") && (section.ends_with(b".dwo") || section.ends_with(b"_index"))
}

fn is_used(id: SectionId) -> bool {
    !matches!(id, SectionId::DebugMacinfo | SectionId::DebugMacro)
}
