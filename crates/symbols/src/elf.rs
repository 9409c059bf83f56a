//! One ELF file's headers, checked once, so that the rest of the crate can index without fear.
//!
//! Source of the facts: System V gABI and the psABIs of x86-64 and i386.

use std::path::Path;

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use sidestep_isa::{FileOff, Isa, Len, Va};

use crate::arch;
use crate::error::ObjectError;
use crate::image::Image;
use crate::symtab;

/// Longer section names are cut.
const NAME_MAX: usize = 256;

/// How an object is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program at a fixed address (`ET_EXEC`): link-time and run-time addresses are equal.
    Program,
    /// A position-independent program (`ET_DYN` with an interpreter or `DF_1_PIE`).
    PieProgram,
    /// A shared library.
    Library,
}

/// A `PT_LOAD` segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Link-time address.
    pub va: Va,
    /// Size in memory.
    pub size: Len,
    /// Where its bytes begin in the file.
    pub offset: FileOff,
    /// How many bytes of it are in the file; the rest is zero.
    pub file_size: Len,
    /// `PF_R`.
    pub read: bool,
    /// `PF_W`.
    pub write: bool,
    /// `PF_X`.
    pub execute: bool,
}

/// A section header.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) sh_type: u32,
    pub(crate) va: Va,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) link: usize,
    pub(crate) flags: u64,
    alloc: bool,
    execute: bool,
    tls: bool,
}

impl Section {
    /// Code that is mapped.
    pub(crate) fn is_text(&self) -> bool {
        self.alloc && self.execute && self.sh_type != elf::SHT_NOBITS && self.size > 0
    }

    /// Data that is mapped and has bytes in the file.
    pub(crate) fn is_data(&self) -> bool {
        self.alloc && !self.execute && !self.tls && self.sh_type != elf::SHT_NOBITS && self.size > 0
    }

    /// Addresses of functions that run before or behind the program.
    pub(crate) fn is_array(&self) -> bool {
        matches!(self.sh_type, elf::SHT_PREINIT_ARRAY | elf::SHT_INIT_ARRAY | elf::SHT_FINI_ARRAY)
    }

    pub(crate) fn is_alloc(&self) -> bool {
        self.alloc
    }

    /// The address behind it. Checked not to wrap.
    pub(crate) fn end(&self) -> Va {
        self.va.plus(Len(self.size))
    }
}

/// A parsed file. Section data may still be out of the file: [`Elf::data`] says so.
#[derive(Debug)]
pub(crate) struct Elf {
    image: Image,
    pub(crate) isa: Isa,
    pub(crate) e_type: u16,
    pub(crate) entry: Va,
    pub(crate) segments: Vec<Segment>,
    pub(crate) sections: Vec<Section>,
    pub(crate) interpreter: Option<String>,
    pub(crate) build_id: Option<Vec<u8>>,
}

impl Elf {
    /// A program or a library.
    pub(crate) fn parse(path: &Path, image: Image) -> Result<Elf, ObjectError> {
        let elf = Self::parse_any(path, image)?;
        let unsupported = |what: String| Err(ObjectError::Unsupported { path: path.to_owned(), what });
        match elf.e_type {
            elf::ET_EXEC | elf::ET_DYN => Ok(elf),
            elf::ET_REL => unsupported("an object file that is not linked yet".to_owned()),
            elf::ET_CORE => unsupported("a core dump".to_owned()),
            other => unsupported(format!("an ELF file of unknown type {other}")),
        }
    }

    /// A file of any type.
    pub(crate) fn parse_any(path: &Path, image: Image) -> Result<Elf, ObjectError> {
        let isa = check_ident(path, &image)?;
        match arch::is_64(isa) {
            true => Self::parse_as::<elf::FileHeader64<LE>>(path, image, isa),
            false => Self::parse_as::<elf::FileHeader32<LE>>(path, image, isa),
        }
    }

    fn parse_as<H: FileHeader<Endian = LE>>(path: &Path, image: Image, isa: Isa) -> Result<Elf, ObjectError> {
        let corrupt = |what| ObjectError::Corrupt { path: path.to_owned(), what };
        let header = H::parse(&image).map_err(|_| corrupt("the file header is not valid"))?;
        let raw_segments =
            header.program_headers(LE, &image).map_err(|_| corrupt("the program headers are outside of the file"))?;
        let raw_sections =
            header.section_headers(LE, &image).map_err(|_| corrupt("the section headers are outside of the file"))?;
        if raw_sections.len() < 2 {
            return Err(ObjectError::Unsupported {
                path: path.to_owned(),
                what: "a program without section headers (packed or stripped of them)".to_owned(),
            });
        }
        let names = usize::try_from(header.shstrndx(LE, &image).unwrap_or(0)).unwrap_or(0);
        let names = raw_sections
            .get(names)
            .and_then(|s| image.get(s.sh_offset(LE).into(), s.sh_size(LE).into()))
            .ok_or_else(|| corrupt("the section names are outside of the file"))?;

        let mut sections = Vec::with_capacity(raw_sections.len());
        for raw in raw_sections {
            let flags: u64 = raw.sh_flags(LE).into();
            let section = Section {
                name: text_at(names, raw.sh_name(LE) as usize),
                sh_type: raw.sh_type(LE),
                va: Va(raw.sh_addr(LE).into()),
                offset: raw.sh_offset(LE).into(),
                size: raw.sh_size(LE).into(),
                link: raw.sh_link(LE) as usize,
                flags,
                alloc: flags & u64::from(elf::SHF_ALLOC) != 0,
                execute: flags & u64::from(elf::SHF_EXECINSTR) != 0,
                tls: flags & u64::from(elf::SHF_TLS) != 0,
            };
            if section.alloc && isa.after(section.va, section.size).is_none() {
                return Err(corrupt("a section ends behind the last address"));
            }
            sections.push(section);
        }
        let mut segments = Vec::new();
        let mut interpreter = None;
        for raw in raw_segments {
            match raw.p_type(LE) {
                elf::PT_LOAD => {
                    let segment = segment(raw);
                    if isa.after(segment.va, segment.size.0).is_none()
                        || segment.offset.0.checked_add(segment.file_size.0).is_none()
                    {
                        return Err(corrupt("a segment ends behind the last address"));
                    }
                    segments.push(segment);
                }
                elf::PT_INTERP => {
                    interpreter =
                        image.get(raw.p_offset(LE).into(), raw.p_filesz(LE).into()).map(|bytes| text_at(bytes, 0));
                }
                _ => {}
            }
        }
        let (e_type, entry) = (header.e_type(LE), Va(header.e_entry(LE).into()));
        let mut elf = Elf { image, isa, e_type, entry, segments, sections, interpreter, build_id: None };
        elf.build_id = elf.find_build_id();
        if arch::has_two(isa) {
            elf.isa = arch::most(isa, symtab::functions(&elf).into_iter());
        }
        Ok(elf)
    }

    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// Link-time address of the `_GLOBAL_OFFSET_TABLE_` of x86-32: where the linker puts the symbol
    /// (binutils, `elf_i386_create_dynamic_sections`).
    pub(crate) fn global_offset_table(&self) -> Option<Va> {
        self.section(".got.plt").or_else(|| self.section(".got")).map(|section| section.va)
    }

    pub(crate) fn of_type(&self, sh_type: u32) -> Option<&Section> {
        self.sections.iter().find(|s| s.sh_type == sh_type)
    }

    /// A section's bytes; `Err` if they are outside of the file.
    pub(crate) fn data(&self, section: &Section) -> Result<&[u8], &'static str> {
        if section.sh_type == elf::SHT_NOBITS {
            return Ok(&[]);
        }
        self.image.get(section.offset, section.size).ok_or("a section's bytes are outside of the file")
    }

    /// The bytes of the file from a link-time address to the end of its section.
    pub(crate) fn data_from(&self, va: Va) -> Option<&[u8]> {
        // .tbss has no bytes, and its addresses are also those of the section behind it.
        let has = |s: &&Section| s.alloc && s.sh_type != elf::SHT_NOBITS && s.va <= va && va < s.end();
        let section = self.sections.iter().find(has)?;
        self.data(section).ok()?.get(usize::try_from(va.0 - section.va.0).ok()?..)
    }

    /// Is this link-time address in an executable section?
    pub(crate) fn in_text(&self, va: Va) -> bool {
        self.sections.iter().any(|s| s.is_text() && s.va <= va && va < s.end())
    }

    /// The executable sections, for many questions.
    pub(crate) fn text_ranges(&self) -> TextRanges {
        let mut ranges: Vec<(Va, Va)> = self.sections.iter().filter(|s| s.is_text()).map(|s| (s.va, s.end())).collect();
        ranges.sort_unstable();
        TextRanges(ranges)
    }

    /// Whether the loader writes addresses into its code.
    pub(crate) fn has_text_relocations(&self) -> bool {
        let flags = self.dynamic(i64::from(elf::DT_FLAGS));
        let flagged = flags.iter().any(|flags| flags & u64::from(elf::DF_TEXTREL) != 0);
        flagged || !self.dynamic(i64::from(elf::DT_TEXTREL)).is_empty()
    }

    /// Values of the dynamic section with this tag (`DT_…`), in order.
    pub(crate) fn dynamic(&self, tag: i64) -> Vec<u64> {
        let Some(data) = self.of_type(elf::SHT_DYNAMIC).and_then(|s| self.data(s).ok()) else {
            return Vec::new();
        };
        let word = |entry: &[u8], at| word(self.word(), entry, at);
        data.chunks_exact(2 * self.word())
            .map(|entry| (word(entry, 0) as i64, word(entry, self.word())))
            .take_while(|(t, _)| *t != 0)
            .filter(|(t, _)| *t == tag)
            .map(|(_, value)| value)
            .collect()
    }

    /// Strings of the dynamic section with this tag (`DT_NEEDED`, `DT_SONAME`).
    pub(crate) fn dynamic_strings(&self, tag: i64) -> Vec<String> {
        let strings = self
            .of_type(elf::SHT_DYNAMIC)
            .and_then(|s| self.sections.get(s.link))
            .and_then(|s| self.data(s).ok())
            .unwrap_or(&[]);
        let offsets = self.dynamic(tag);
        offsets.into_iter().map(|at| text_at(strings, usize::try_from(at).unwrap_or(usize::MAX))).collect()
    }

    /// Bytes of an address.
    pub(crate) fn word(&self) -> usize {
        self.isa.word() as usize
    }

    /// The descriptor of the note `GNU`/`NT_GNU_BUILD_ID`.
    fn find_build_id(&self) -> Option<Vec<u8>> {
        for section in self.sections.iter().filter(|s| s.sh_type == elf::SHT_NOTE) {
            let mut rest = self.data(section).ok()?;
            while rest.len() >= 12 {
                let field = |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
                let (name_size, size, note) = (field(0) as usize, field(4) as usize, field(8));
                let desc_at = 12 + name_size.next_multiple_of(4);
                let Some(desc) = rest.get(desc_at..desc_at.saturating_add(size)) else {
                    break;
                };
                if note == elf::NT_GNU_BUILD_ID && rest.get(12..16) == Some(b"GNU\0") && !desc.is_empty() {
                    return Some(desc.to_vec());
                }
                rest = rest.get(desc_at + size.next_multiple_of(4)..).unwrap_or(&[]);
            }
        }
        None
    }
}

/// Executable sections as sorted ranges.
pub(crate) struct TextRanges(Vec<(Va, Va)>);

impl TextRanges {
    #[cfg(test)]
    pub(crate) fn of(ranges: &[(Va, Va)]) -> TextRanges {
        TextRanges(ranges.to_vec())
    }

    pub(crate) fn contain(&self, va: Va) -> bool {
        let before = self.0.partition_point(|(start, _)| *start <= va);
        before > 0 && va < self.0[before - 1].1
    }
}

fn segment(raw: &impl ProgramHeader<Endian = LE>) -> Segment {
    let flags = raw.p_flags(LE);
    Segment {
        va: Va(raw.p_vaddr(LE).into()),
        size: Len(raw.p_memsz(LE).into()),
        offset: FileOff(raw.p_offset(LE).into()),
        file_size: Len(raw.p_filesz(LE).into()),
        read: flags & elf::PF_R != 0,
        write: flags & elf::PF_W != 0,
        execute: flags & elf::PF_X != 0,
    }
}

/// The instruction set of an x86 program or library; an error says what else the file is.
fn check_ident(path: &Path, image: &Image) -> Result<Isa, ObjectError> {
    let unsupported = |what: String| Err(ObjectError::Unsupported { path: path.to_owned(), what });
    let Some(magic) = image.get(0, 4) else {
        return Err(ObjectError::NotElf { path: path.to_owned() });
    };
    if magic != elf::ELFMAG {
        return Err(ObjectError::NotElf { path: path.to_owned() });
    }
    // e_machine is at the same place in both classes.
    let Some(ident) = image.get(0, 20) else {
        return Err(ObjectError::Corrupt { path: path.to_owned(), what: "it ends within the file header" });
    };
    if ident[5] != elf::ELFDATA2LSB {
        return unsupported("a big-endian program".to_owned());
    }
    let machine = u16::from_le_bytes([ident[18], ident[19]]);
    let bits = if ident[4] == elf::ELFCLASS64 { "64" } else { "32" };
    match (arch::isa_of(ident[4], machine), machine) {
        (Some(isa), _) => Ok(isa),
        (_, elf::EM_X86_64) => unsupported("a 32-bit x32 program".to_owned()),
        (_, elf::EM_386) => unsupported(format!("a {bits}-bit i386 program")),
        (_, elf::EM_ARM) => unsupported(format!("a {bits}-bit Arm program")),
        (_, elf::EM_AARCH64) => unsupported(format!("a {bits}-bit arm64 program")),
        (_, other) => unsupported(format!("a {bits}-bit program for another machine (e_machine {other})")),
    }
}

/// The little-endian number of `len` bytes at `at`, which must be there.
pub(crate) fn word(len: usize, bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw[..len].copy_from_slice(&bytes[at..at + len]);
    u64::from_le_bytes(raw)
}

/// The text at `at` up to its NUL, cut at [`NAME_MAX`]; empty if out of range.
fn text_at(bytes: &[u8], at: usize) -> String {
    let rest = bytes.get(at..).unwrap_or(&[]);
    let rest = &rest[..rest.len().min(NAME_MAX)];
    let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
    String::from_utf8_lossy(&rest[..end]).into_owned()
}
