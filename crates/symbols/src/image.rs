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
/// At most so many bytes of names of sections: 64 Ki names of 256 bytes.
const NAMES_LIMIT: u64 = 16 << 20;
/// No wanted section has a name as long as this.
const NAME_MAX: usize = 256;
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
        if names.end - names.start > NAMES_LIMIT {
            return None;
        }
        let strings = file.read(&names).ok()?;
        ranges.push(names);
        for section in sections {
            let name = strings.get(section.sh_name(LE) as usize..)?;
            let name = name[..name.len().min(NAME_MAX)].split(|&b| b == 0).next()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The names were read, all 3 GiB of them, before the limit was looked at.
    #[test]
    fn names_of_sections_that_are_gigabytes_are_not_read() {
        const LEN: u64 = 3 << 30;
        let path = std::env::temp_dir().join(format!("sidestep-names.{}", std::process::id()));
        let file = File::create(&path).unwrap();
        // No blocks are used for what is not written.
        file.set_len(LEN).unwrap();
        let mut head = [0u8; 192];
        head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        let mut set = |at: usize, value: &[u8]| head[at..at + value.len()].copy_from_slice(value);
        // Two sections at 64; the second is their names: all of the file.
        set(40, &64u64.to_le_bytes());
        set(58, &64u16.to_le_bytes());
        set(60, &2u16.to_le_bytes());
        set(62, &1u16.to_le_bytes());
        set(128 + 32, &LEN.to_le_bytes());
        std::os::unix::fs::FileExt::write_all_at(&file, &head, 0).unwrap();
        let read = Image::read(&path, |_| true);
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(read, Err(ObjectError::TooLarge { bytes: LEN, limit: WHOLE_LIMIT, .. })), "{read:?}");
    }
}
