//! Members of zip archives that are mapped as they lie there: `/data/app.apk!/lib/libx.so`.
//!
//! Android's linker maps libraries out of the archive of an app. Such a member is stored, not
//! compressed, and begins at a page of the archive. Source of the format: PKWARE's APPNOTE.TXT,
//! 4.3.7 (local header), 4.3.12 (central directory), 4.3.16 (end of it); of the name: libbpf's
//! `elf_find_func_offset_from_archive`.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::ObjectError;
use crate::image::read_range;

/// Between the path of an archive and the name of a member.
pub const SEPARATOR: &str = "!/";
/// Bytes of the end of the directory, without its comment.
const END: u64 = 22;
/// The longest comment.
const COMMENT: u64 = 0xffff;
/// A directory that is larger is not read.
const DIRECTORY: u64 = 64 << 20;
/// Members begin at a page; the smallest there is.
const PAGE: u64 = 4096;
/// Of Linux on x86 and Arm.
const O_NONBLOCK: i32 = 0o4000;
/// The same: nothing is opened but the place.
const O_PATH: i32 = 0o10_000_000;

/// The archive and the member of a path; `None`: it is a file of its own.
#[must_use]
pub fn split(path: &Path) -> Option<(PathBuf, &str)> {
    let (archive, member) = path.to_str()?.split_once(SEPARATOR)?;
    (!archive.is_empty() && !member.is_empty()).then(|| (PathBuf::from(archive), member))
}

/// The path of a member.
#[must_use]
pub fn joined(archive: &Path, member: &str) -> PathBuf {
    let mut path = archive.as_os_str().to_owned();
    path.push(SEPARATOR);
    path.push(member);
    PathBuf::from(path)
}

/// A path whose links are followed; of a member, those of its archive. A path through the root of
/// a process in another mount namespace (`/proc/PID/root/...`) stays as it is. The link names a
/// path in that namespace. Here the same path is another file, or no file.
///
/// # Errors
/// There is no such file.
pub fn canonicalize(path: &Path) -> std::io::Result<PathBuf> {
    if let Some((archive, member)) = split(path).filter(|_| !path.exists()) {
        return Ok(joined(&canonicalize(&archive)?, member));
    }
    let place = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino()));
    let here = place(path)?;
    Ok(path.canonicalize().ok().filter(|real| place(real).is_ok_and(|there| there == here)).unwrap_or(path.to_owned()))
}

/// The path by which a process shows a file that it has mapped: the one in its own namespace.
pub(crate) fn shown(path: &Path) -> Option<PathBuf> {
    let file = OpenOptions::new().read(true).custom_flags(O_PATH).open(path).ok()?;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// A file, or a part of one.
#[derive(Debug)]
pub(crate) struct Part {
    file: File,
    range: Range<u64>,
}

impl Part {
    /// Opens a file, if it is one, or a member of an archive.
    pub fn open(path: &Path) -> Result<Part, ObjectError> {
        let Some((archive, member)) = split(path).filter(|_| !path.exists()) else {
            let file = regular(path)?;
            let len = file.metadata().map_err(|source| ObjectError::Read { path: path.to_owned(), source })?.len();
            return Ok(Part { file, range: 0..len });
        };
        let file = regular(&archive)?;
        let found = Archive::read(&file).and_then(|archive| archive.member(member));
        match found {
            Ok(range) => Ok(Part { file, range }),
            Err(what) => Err(ObjectError::Archived { path: path.to_owned(), what }),
        }
    }

    /// How long it is.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The file, if it is no part of one.
    pub fn whole(self) -> File {
        self.file
    }

    /// What lies there in it.
    pub fn read(&self, range: &Range<u64>) -> std::io::Result<Vec<u8>> {
        let place = |at: u64| self.range.start.saturating_add(at).min(self.range.end);
        let (start, end) = (place(range.start), place(range.end));
        let wanted = range.end.saturating_sub(range.start);
        if end - start < wanted {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        read_range(&self.file, &(start..end))
    }
}

fn regular(path: &Path) -> Result<File, ObjectError> {
    let fail = |source| ObjectError::Read { path: path.to_owned(), source };
    // Looked at before it is opened: opening a device may do anything. It may be another one by
    // then: to open a pipe must not block.
    if !std::fs::metadata(path).map_err(fail)?.is_file() {
        return Err(ObjectError::NotRegular { path: path.to_owned() });
    }
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).map_err(fail)?;
    match file.metadata().map_err(fail)?.is_file() {
        true => Ok(file),
        false => Err(ObjectError::NotRegular { path: path.to_owned() }),
    }
}

/// The members of an archive that can be mapped: names, and where their bytes are.
#[derive(Clone, Debug, Default)]
pub struct Members(Vec<(String, Range<u64>)>);

impl Members {
    /// Those of a file; none if it is no archive.
    #[must_use]
    pub fn of(path: &Path) -> Members {
        let Ok(file) = regular(path) else { return Members::default() };
        if read_range(&file, &(0..4)).is_ok_and(|head| head == *b"PK\x03\x04") {
            return Archive::read(&file).map(|archive| archive.mappable()).unwrap_or_default();
        }
        Members::default()
    }

    /// The name of the one that this byte of the archive belongs to, and where it begins.
    #[must_use]
    pub fn at(&self, offset: u64) -> Option<(&str, u64)> {
        let found = self.0.iter().find(|(_, range)| range.contains(&offset))?;
        Some((&found.0, found.1.start))
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An entry of the directory.
struct Entry {
    name: Vec<u8>,
    stored: bool,
    encrypted: bool,
    size: u64,
    header: u64,
}

struct Archive<'f> {
    file: &'f File,
    entries: Vec<Entry>,
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?).into())
}

impl<'f> Archive<'f> {
    fn read(file: &'f File) -> Result<Archive<'f>, &'static str> {
        const BROKEN: &str = "this is no zip archive: there is no directory at the end of the file";
        let len = file.metadata().map_err(|_| BROKEN)?.len();
        let tail = read_range(file, &(len.saturating_sub(END + COMMENT)..len)).map_err(|_| BROKEN)?;
        let is_end = |at: &usize| tail[*at..].starts_with(b"PK\x05\x06") && tail.len() - at >= END as usize;
        let end = &tail[(0..tail.len()).rev().find(is_end).ok_or(BROKEN)?..];
        let (size, start) = long(end, 12).zip(long(end, 16)).ok_or(BROKEN)?;
        if size == 0xffff_ffff || start == 0xffff_ffff || size > DIRECTORY {
            return Err("archives in the format for more than 4 GiB (zip64) are not read");
        }
        let directory = read_range(file, &(start..start.saturating_add(size))).map_err(|_| BROKEN)?;
        let mut entries = Vec::new();
        let mut rest = &*directory;
        while rest.starts_with(b"PK\x01\x02") {
            let (entry, next) = Self::entry(rest).ok_or("the directory of the archive makes no sense")?;
            entries.push(entry);
            rest = next;
        }
        Ok(Archive { file, entries })
    }

    /// The first entry, and what is behind it.
    fn entry(bytes: &[u8]) -> Option<(Entry, &[u8])> {
        let name_len = word(bytes, 28)? as usize;
        let others = (word(bytes, 30)? + word(bytes, 32)?) as usize;
        let entry = Entry {
            name: bytes.get(46..46 + name_len)?.to_vec(),
            stored: word(bytes, 10)? == 0,
            encrypted: word(bytes, 8)? & 1 == 1,
            size: long(bytes, 24)?,
            header: long(bytes, 42)?,
        };
        Some((entry, bytes.get(46 + name_len + others..)?))
    }

    /// Where the bytes of an entry are.
    fn range(&self, entry: &Entry) -> Option<Range<u64>> {
        let header = read_range(self.file, &(entry.header..entry.header + 30)).ok()?;
        if !header.starts_with(b"PK\x03\x04") {
            return None;
        }
        let start = entry.header + 30 + word(&header, 26)? + word(&header, 28)?;
        Some(start..start.checked_add(entry.size)?)
    }

    fn member(&self, name: &str) -> Result<Range<u64>, &'static str> {
        let entry = self.entries.iter().find(|entry| entry.name == name.as_bytes());
        let entry = entry.ok_or("the archive has no such member")?;
        if entry.encrypted {
            return Err("it is encrypted in the archive, so that no process can map it");
        }
        if !entry.stored {
            return Err("it is compressed in the archive, so that no process can map it");
        }
        let range = self.range(entry).ok_or("its header in the archive makes no sense")?;
        match range.start % PAGE {
            0 => Ok(range),
            _ => Err("it does not begin at a page of the archive, so that no process can map it"),
        }
    }

    fn mappable(&self) -> Members {
        let is_it = |entry: &&Entry| entry.stored && !entry.encrypted && entry.size > 0;
        let of = |entry: &Entry| {
            let range = self.range(entry).filter(|range| range.start % PAGE == 0)?;
            Some((String::from_utf8(entry.name.clone()).ok()?, range))
        };
        Members(self.entries.iter().filter(is_it).filter_map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive of one member, whose bytes begin at `at`.
    fn archive(name: &str, method: u16, at: usize, data: &[u8]) -> Vec<u8> {
        let mut file = b"PK\x03\x04".to_vec();
        file.extend([10, 0, 0, 0]);
        file.extend(method.to_le_bytes());
        file.extend([0; 8]);
        let size = (data.len() as u32).to_le_bytes();
        file.extend(size);
        file.extend(size);
        file.extend((name.len() as u16).to_le_bytes());
        file.extend(((at - 30 - name.len()) as u16).to_le_bytes());
        file.extend(name.as_bytes());
        file.resize(at, 0);
        file.extend(data);
        let directory = file.len() as u32;
        file.extend(b"PK\x01\x02\x0a\0\x0a\0\0\0");
        file.extend(method.to_le_bytes());
        file.extend([0; 8]);
        file.extend(size);
        file.extend(size);
        file.extend((name.len() as u16).to_le_bytes());
        file.extend([0; 16]);
        file.extend(name.as_bytes());
        let len = file.len() as u32 - directory;
        file.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
        file.extend(len.to_le_bytes());
        file.extend(directory.to_le_bytes());
        file.extend([0, 0]);
        file
    }

    #[test]
    fn members_are_read_where_they_lie() {
        let path = std::env::temp_dir().join(format!("sidestep-zip-{}", std::process::id()));
        let error = |path: &Path| Part::open(path).unwrap_err().to_string();
        std::fs::write(&path, archive("lib/x.so", 0, 4096, b"abcdef")).unwrap();
        let part = Part::open(&joined(&path, "lib/x.so")).unwrap();
        assert_eq!((part.len(), part.read(&(1..3)).unwrap()), (6, b"bc".to_vec()));
        assert!(part.read(&(1..9)).is_err());
        let members = Members::of(&path);
        assert_eq!(members.at(4097), Some(("lib/x.so", 4096)));
        assert_eq!(members.at(4102), None);
        assert!(error(&joined(&path, "lib/y.so")).contains("no such member"));
        std::fs::write(&path, archive("lib/x.so", 8, 4096, b"abcdef")).unwrap();
        assert!(error(&joined(&path, "lib/x.so")).contains("compressed"));
        std::fs::write(&path, archive("lib/x.so", 0, 100, b"abcdef")).unwrap();
        assert!(error(&joined(&path, "lib/x.so")).contains("does not begin at a page"));
        assert!(Members::of(&path).is_empty());
        std::fs::write(&path, b"PK\x03\x04 and nothing else").unwrap();
        assert!(error(&joined(&path, "lib/x.so")).contains("no directory"));
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn paths_of_members() {
        assert_eq!(split(Path::new("/a/b.apk!/lib/c.so")), Some((PathBuf::from("/a/b.apk"), "lib/c.so")));
        assert_eq!(split(Path::new("/a/b.so")), None);
        assert_eq!(joined(Path::new("/a/b.apk"), "lib/c.so"), Path::new("/a/b.apk!/lib/c.so"));
    }
}
