//! The debug sections of an object: its own, or those of its debug file. They can be most of a
//! file, so they are read when they are asked for, each time.

pub(crate) mod split;

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use object::elf::{ELFCOMPRESS_ZLIB, SHF_COMPRESSED};
use sidestep_isa::Isa;

use crate::arch;
use crate::debugfile::{self, DebugSearch};
use crate::elf::{Elf, Section};
use crate::error::ObjectError;
use crate::image::Image;

/// A section is at most so large when it is unpacked.
const UNPACKED_MAX: usize = 1 << 30;

/// Where the debug sections of an object may be.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The object's file, as we see it; `None`: its bytes were given.
    pub(crate) file: Option<PathBuf>,
    /// Its path, for debug files beside it.
    pub(crate) path: PathBuf,
    /// Where else debug files are looked for.
    pub(crate) search: DebugSearch,
}

/// A file with the sections that were wanted.
pub(crate) struct Sections {
    file: PathBuf,
    elf: Elf,
}

impl Place {
    /// The first file that has the section `has`: that of the object, or its debug file. `wanted`
    /// says which sections are read, by their names. If there is none, the places that were looked
    /// at.
    pub(crate) fn open(&self, elf: &Elf, has: &str, wanted: fn(&[u8]) -> bool) -> Result<Sections, Vec<String>> {
        let mut looked = Vec::new();
        let own = self.file.iter().map(|file| (file.clone(), None));
        // What we see in place of a file of a process that has ended by now.
        let everybodys = self.file.iter().filter(|file| !file.exists()).map(|_| (self.path.clone(), None));
        for (file, crc) in own.chain(everybodys).chain(debugfile::candidates(&self.path, elf, &self.search)) {
            let is_own = Some(&file) == self.file.as_ref() || elf.build_id.is_none() && file == self.path;
            match Sections::read(&file, wanted, Elf::parse) {
                Ok(debug) if debug.elf.section(has).is_none() => looked.push(self.shown(&file)),
                Ok(debug) if is_own => return Ok(debug),
                Ok(debug) => match debugfile::fits(&file, elf, &debug.elf, crc) {
                    Ok(()) => return Ok(debug),
                    Err(why) => looked.push(format!("{}: {why}", self.shown(&file))),
                },
                Err(_) => looked.push(self.shown(&file)),
            }
        }
        // The same below two roots.
        let mut seen = HashSet::new();
        looked.retain(|file| seen.insert(file.clone()));
        Err(looked)
    }

    /// The object's own path is the one that the user knows.
    fn shown(&self, file: &Path) -> String {
        let path = if self.file.as_deref() == Some(file) { self.path.clone() } else { self.search.shown(file) };
        path.display().to_string()
    }
}

type Parse = fn(&Path, Image) -> Result<Elf, ObjectError>;

impl Sections {
    fn read(file: &Path, wanted: fn(&[u8]) -> bool, parse: Parse) -> Result<Sections, ObjectError> {
        let elf = Image::read(file, wanted).and_then(|image| parse(file, image))?;
        Ok(Sections { file: file.to_owned(), elf })
    }

    /// The instruction set: how long addresses are.
    pub(crate) fn isa(&self) -> Isa {
        self.elf.isa
    }

    /// What the file has.
    pub(crate) fn elf(&self) -> &Elf {
        &self.elf
    }

    /// Its path, as we see it.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// A section, unpacked; empty if there is none. A file that is not linked yet may have several
    /// with one name: all, one behind the other. An error is a clause.
    pub(crate) fn get(&self, name: &str) -> Result<Cow<'_, [u8]>, &'static str> {
        let mut named = self.elf.sections.iter().filter(|section| section.name == name);
        let mut all = named.next().map_or(Ok(Cow::Borrowed(&[][..])), |section| self.unpacked(section))?;
        for section in named {
            let more = self.unpacked(section)?;
            if all.len() + more.len() > UNPACKED_MAX {
                return Err("a section has too many parts");
            }
            all.to_mut().extend_from_slice(&more);
        }
        Ok(all)
    }

    fn unpacked(&self, section: &Section) -> Result<Cow<'_, [u8]>, &'static str> {
        let data = self.elf.data(section)?;
        if section.flags & u64::from(SHF_COMPRESSED) == 0 {
            return Ok(Cow::Borrowed(data));
        }
        // Elf32_Chdr: type, size, alignment; Elf64_Chdr has a word of padding behind the type.
        let header = if arch::is_64(self.elf.isa) { 24 } else { 12 };
        let (header, packed) = data.split_at_checked(header).ok_or("a compressed section has no header")?;
        if header[..4] != ELFCOMPRESS_ZLIB.to_le_bytes() {
            return Err("a section is compressed, but not by zlib");
        }
        let unpacked = decompress_to_vec_zlib_with_limit(packed, UNPACKED_MAX);
        unpacked.map(Cow::Owned).map_err(|_| "a compressed section does not unpack")
    }
}
