//! The bytes of a file, without those that nobody will look at.
//!
//! Programs with debug information can have gigabytes of DWARF; symbols, code and data are a small
//! part. Reading copies instead of mapping: a mapped file that somebody truncates kills its reader
//! with SIGBUS.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use object::LittleEndian as LE;
use object::elf::{ELFCLASS32, FileHeader32, FileHeader64, SHT_NOBITS};
use object::read::ReadRef;
use object::read::elf::{FileHeader, SectionHeader};

use crate::error::ObjectError;
use crate::zip::Part;

/// At most so many bytes of one file are read.
const LIMIT: u64 = 2 << 30;
/// At most so many of one whose headers do not say what is wanted.
const WHOLE_LIMIT: u64 = 256 << 20;
/// Holes up to this size between wanted parts are read, too: fewer parts, fewer calls.
const HOLE: u64 = 64 << 10;
/// Files up to this size are read whole.
const SMALL: u64 = 1 << 20;
/// Parts of a file at their offsets, ascending and disjoint.
#[derive(Debug)]
pub(crate) struct Image {
    len: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

impl Image {
    /// A file that is in memory already.
    pub(crate) fn from_bytes(data: Vec<u8>) -> Image {
        Image { len: data.len() as u64, parts: vec![(0, data)] }
    }

    /// Reads what is needed of the ELF file `path`. `wanted` decides by section name.
    pub(crate) fn read(path: &Path, wanted: fn(&[u8]) -> bool) -> Result<Image, ObjectError> {
        let fail = |source| ObjectError::Read { path: path.to_owned(), source };
        let file = Part::open(path)?;
        let len = file.len();
        let planned = if len > SMALL { Self::plan(&file, len, wanted) } else { None };
        // What is no object is not read to its end.
        let head = file.read(&(0..4.min(len))).map_err(fail)?;
        let whole = 0..if head == *b"\x7fELF" { len } else { len.min(SMALL) };
        let limit = if planned.is_some() { LIMIT } else { WHOLE_LIMIT };
        let ranges = planned.unwrap_or_else(|| vec![whole]);
        let bytes: u64 = ranges.iter().map(|r| r.end - r.start).sum();
        if bytes > limit {
            return Err(ObjectError::TooLarge { path: path.to_owned(), bytes, limit });
        }
        let mut parts = Vec::new();
        for range in ranges {
            let part = file.read(&range).map_err(fail)?;
            parts.push((range.start, part));
        }
        Ok(Image { len, parts })
    }

    /// Which ranges hold the headers and the wanted sections; `None` if the headers make no sense.
    fn plan(file: &Part, len: u64, wanted: fn(&[u8]) -> bool) -> Option<Vec<Range<u64>>> {
        let first = file.read(&(0..4096.min(len))).ok()?;
        match first.get(4) {
            Some(&ELFCLASS32) => Self::plan_as::<FileHeader32<LE>>(file, len, &first, wanted),
            _ => Self::plan_as::<FileHeader64<LE>>(file, len, &first, wanted),
        }
    }

    fn plan_as<H: FileHeader<Endian = LE>>(
        file: &Part,
        len: u64,
        first: &[u8],
        wanted: fn(&[u8]) -> bool,
    ) -> Option<Vec<Range<u64>>> {
        let clip = |start: u64, size: u64| {
            let end = start.checked_add(size)?;
            (end <= len).then_some(start..end)
        };
        let header = H::parse(first).ok()?;
        let segments = u64::from(header.e_phnum(LE)) * size_of::<H::ProgramHeader>() as u64;
        let mut ranges = vec![0..first.len() as u64, clip(header.e_phoff(LE).into(), segments)?];
        // With 0xff00 sections or more the count is elsewhere (gABI, e_shnum); such a file is read
        // whole.
        let count = u64::from(header.e_shnum(LE));
        if count == 0 {
            return None;
        }
        let table = clip(header.e_shoff(LE).into(), count * size_of::<H::SectionHeader>() as u64)?;
        let raw = file.read(&table).ok()?;
        ranges.push(table);
        let (sections, _) = object::pod::slice_from_bytes::<H::SectionHeader>(&raw, count as usize).ok()?;
        let strings = sections.get(usize::from(header.e_shstrndx(LE)))?;
        let names = clip(strings.sh_offset(LE).into(), strings.sh_size(LE).into())?;
        let strings = file.read(&names).ok()?;
        ranges.push(names);
        for section in sections {
            let name = strings.get(section.sh_name(LE) as usize..)?;
            let name = name.split(|&b| b == 0).next()?;
            if section.sh_type(LE) != SHT_NOBITS && wanted(name) {
                ranges.push(clip(section.sh_offset(LE).into(), section.sh_size(LE).into())?);
            }
        }
        Some(merge(ranges))
    }

    /// `size` bytes at `offset`; `None` if the file does not have them (or they were not wanted).
    pub(crate) fn get(&self, offset: u64, size: u64) -> Option<&[u8]> {
        if size == 0 {
            return Some(&[]);
        }
        let part = self.parts.partition_point(|(start, _)| *start <= offset).checked_sub(1)?;
        let (start, data) = self.parts.get(part)?;
        let from = usize::try_from(offset - start).ok()?;
        let to = from.checked_add(usize::try_from(size).ok()?)?;
        data.get(from..to)
    }
}

pub(crate) fn read_range(mut file: &File, range: &Range<u64>) -> std::io::Result<Vec<u8>> {
    let size = range.end.saturating_sub(range.start);
    let mut part = Vec::new();
    let room = usize::try_from(size).map_err(|_| ErrorKind::OutOfMemory)?;
    part.try_reserve_exact(room).map_err(|_| ErrorKind::OutOfMemory)?;
    file.seek(SeekFrom::Start(range.start))?;
    // Not over zeros, which would cost as much as reading.
    file.take(size).read_to_end(&mut part)?;
    if part.len() == room { Ok(part) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

fn merge(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|r| r.start < r.end);
    ranges.sort_by_key(|r| r.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(HOLE) => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

impl<'a> ReadRef<'a> for &'a Image {
    fn len(self) -> Result<u64, ()> {
        Ok(self.len)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.get(offset, size).ok_or(())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let bytes = self.get(range.start, range.end.checked_sub(range.start).ok_or(())?).ok_or(())?;
        let end = bytes.iter().position(|&b| b == delimiter).ok_or(())?;
        Ok(&bytes[..end])
    }
}
