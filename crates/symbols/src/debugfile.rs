//! Symbols that were moved out of the object: `.gnu_debugdata`, `.gnu_debuglink`, build-id files.
//!
//! Source of the facts: the GDB manual, "Debugging Information in Separate Files" and
//! "MiniDebugInfo".

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use object::elf;
use xz4rust::{XzDecoder, XzNextBlockResult};

use crate::elf::{Elf, TextRanges};
use crate::error::ObjectError;
use crate::function::Source;
use crate::image::Image;
use crate::symtab::{self, Symbols};
use crate::zip::Part;

/// An unpacked `.gnu_debugdata` is at most so large.
const UNPACKED_MAX: usize = 256 << 20;
/// The dictionary of `xz -9`, the largest that the tool uses by itself.
const DICTIONARY_MAX: usize = 64 << 20;
/// Bytes of a file whose checksum is computed.
const CHECKED_MAX: u64 = 1 << 30;

/// Where to look for debug files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugSearch {
    /// Roots to look under, in order: `/` and, for a process in another mount namespace,
    /// `/proc/PID/root` before it.
    pub roots: Vec<PathBuf>,
    /// Global debug directories, as paths below each root; those that are relative, and debug files
    /// (`NAME.debug`), as they are.
    pub dirs: Vec<PathBuf>,
}

impl Default for DebugSearch {
    /// `/usr/lib/debug` below `/`.
    fn default() -> Self {
        Self { roots: vec!["/".into()], dirs: vec!["/usr/lib/debug".into()] }
    }
}

impl DebugSearch {
    /// `dirs` first, then `/usr/lib/debug`, below `/`.
    #[must_use]
    pub fn with_dirs(dirs: &[PathBuf]) -> Self {
        let mut search = Self::default();
        search.dirs.splice(0..0, dirs.iter().cloned());
        search
    }

    /// A path as the process sees it: `/proc/PID/root` says nothing to anybody when the process is
    /// gone.
    pub(crate) fn shown(&self, path: &Path) -> PathBuf {
        let below = self.roots.iter().find_map(|root| path.strip_prefix(root).ok());
        below.map_or_else(|| path.to_owned(), |rest| Path::new("/").join(rest))
    }

    /// The global debug directories as we see them, best first.
    pub(crate) fn directories(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let below = |dir: &PathBuf, root: &PathBuf| if dir.is_relative() { dir.clone() } else { below(root, dir) };
        self.roots.iter().flat_map(move |root| self.dirs.iter().map(move |dir| below(dir, root)))
    }

    /// The same below the root of a process (`/proc/PID/root`) first. A debug file is used only if
    /// its build id or checksum fits, so that looking under both roots is safe.
    #[must_use]
    pub fn in_root(mut self, root: &Path) -> Self {
        self.roots.insert(0, root.to_owned());
        self
    }
}

/// What became of one place where symbols may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is there and has so many functions.
    Found(usize),
    /// There is no such section or file.
    Absent,
    /// It is there but was not used, and why.
    Rejected(String),
}

/// A place where symbols were looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Searched {
    /// A section (`.symtab`) or the path of a debug file.
    pub place: String,
    /// What became of it.
    pub outcome: Outcome,
}

impl Searched {
    /// Whether the place is a file, and not a section of the object.
    #[must_use]
    pub fn is_file(&self) -> bool {
        !self.place.starts_with('.')
    }
}

impl fmt::Display for Searched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Found(count) => write!(f, "{} ({count} functions)", self.place),
            Outcome::Absent => write!(f, "no {}", self.place),
            Outcome::Rejected(why) => write!(f, "{} not used: {why}", self.place),
        }
    }
}

/// Reads the symbols in `.gnu_debugdata`.
pub(crate) fn read_debugdata(path: &Path, elf: &Elf, text: &TextRanges, out: &mut Symbols) -> Outcome {
    let Some(section) = elf.section(".gnu_debugdata") else {
        return Outcome::Absent;
    };
    let mut read = || -> Result<usize, String> {
        let unpacked = unpack(elf.data(section)?)?;
        let inner = Elf::parse(path, Image::from_bytes(unpacked)).map_err(|e| e.to_string())?;
        let found = symtab::read(&inner, elf::SHT_SYMTAB, Source::DebugData, text, out)?;
        Ok(found.unwrap_or(0))
    };
    read().map_or_else(Outcome::Rejected, Outcome::Found)
}

/// Looks for a separate debug file and reads its symbols. Adds each path that was tried to
/// `searched`, stops at the first that fits.
pub(crate) fn read_debug_file(
    path: &Path,
    elf: &Elf,
    search: &DebugSearch,
    text: &TextRanges,
    out: &mut Symbols,
    searched: &mut Vec<Searched>,
) {
    for (candidate, crc) in candidates(path, elf, search) {
        let outcome = read_candidate(&candidate, elf, crc, text, out);
        let found = matches!(outcome, Outcome::Found(_));
        searched.push(Searched { place: format!("debug file {}", search.shown(&candidate).display()), outcome });
        if found {
            return;
        }
    }
}

/// A path, seen from a root.
pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Paths where the debug file may be, best first; with the checksum that it must have if a debug
/// link names it.
pub(crate) fn candidates(path: &Path, elf: &Elf, search: &DebugSearch) -> Vec<(PathBuf, Option<u32>)> {
    let mut found = Vec::new();
    // A debug file may be named itself, in place of a directory.
    let is_file = |dir: &&PathBuf| dir.extension().is_some_and(|ext| ext == "debug") || dir.is_file();
    let files = search.dirs.iter().filter(is_file);
    found.extend(files.map(|file| (file.clone(), debuglink(elf).map(|(_, crc)| crc))));
    if let Some([first, rest @ ..]) = elf.build_id.as_deref() {
        let rest: String = rest.iter().map(|b| format!("{b:02x}")).collect();
        let name = format!(".build-id/{first:02x}/{rest}.debug");
        found.extend(search.directories().map(|dir| (dir.join(&name), None)));
    }
    if let Some((name, crc)) = debuglink(elf) {
        let dir = path.parent().unwrap_or(Path::new("/"));
        for root in &search.roots {
            let beside = below(root, dir);
            found.push((beside.join(&name), Some(crc)));
            found.push((beside.join(".debug").join(&name), Some(crc)));
        }
        found.extend(search.directories().map(|global| (below(&global, dir).join(&name), Some(crc))));
    }
    // By the object's own name, where the user says to look. As in elfutils, a relative directory
    // may also be one beside the object.
    if let (Some(name), Some(beside)) = (path.file_name(), path.parent()) {
        let mut name = name.to_owned();
        name.push(".debug");
        for dir in search.dirs.iter().filter(|dir| !is_file(dir)) {
            found.push((dir.join(&name), None));
            if dir.is_relative() {
                found.push((beside.join(dir).join(&name), None));
            }
        }
    }
    found
}

/// The file name and checksum in `.gnu_debuglink`. A name with a slash is not one.
fn debuglink(elf: &Elf) -> Option<(String, u32)> {
    let data = elf.data(elf.section(".gnu_debuglink")?).ok()?;
    let end = data.iter().position(|&b| b == 0)?;
    let name = std::str::from_utf8(&data[..end]).ok()?;
    let at = (end + 1).next_multiple_of(4);
    let crc = u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?);
    (!name.is_empty() && !name.contains('/') && name != "..").then(|| (name.to_owned(), crc))
}

fn read_candidate(path: &Path, object: &Elf, crc: Option<u32>, text: &TextRanges, out: &mut Symbols) -> Outcome {
    let wanted = |name: &[u8]| matches!(name, b".symtab" | b".strtab") || name.starts_with(b".note");
    let image = match Image::read(path, wanted) {
        Ok(image) => image,
        Err(ObjectError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Outcome::Absent;
        }
        Err(e) => return Outcome::Rejected(e.to_string()),
    };
    let read = || -> Result<usize, String> {
        let debug = Elf::parse(path, image).map_err(|e| e.to_string())?;
        fits(path, object, &debug, crc)?;
        let found = symtab::read(&debug, elf::SHT_SYMTAB, Source::DebugFile, text, out)?;
        Ok(found.unwrap_or(0))
    };
    read().map_or_else(Outcome::Rejected, Outcome::Found)
}

/// Whether the file `path` is the debug file of an object; why not. `crc` is what the debug link
/// says.
pub(crate) fn fits(path: &Path, object: &Elf, debug: &Elf, crc: Option<u32>) -> Result<(), String> {
    match (crc, &object.build_id, &debug.build_id) {
        // A build id says more than a checksum, and need not read gigabytes.
        (_, Some(ours), Some(theirs)) if ours == theirs => Ok(()),
        (_, Some(_), Some(_)) => Err("it has another build id".to_owned()),
        (None, ..) => Err("it has no build id".to_owned()),
        (Some(wanted), ..) => {
            let file = Part::open(path).map_err(|e| e.to_string())?;
            if file.len() > CHECKED_MAX {
                return Err(format!("it has no build id, and is too large for its checksum ({CHECKED_MAX} bytes)"));
            }
            match crc32(file.whole().take(CHECKED_MAX)).map_err(|e| e.to_string())? {
                found if found == wanted => Ok(()),
                found => Err(format!("its checksum is {found:08x}, the debug link wants {wanted:08x}")),
            }
        }
    }
}

/// The CRC-32 of `.gnu_debuglink`: the reflected polynomial 0xedb88320 of IEEE 802.3, as in zip and
/// gzip.
fn crc32(mut file: impl Read) -> io::Result<u32> {
    let mut table = [0u32; 256];
    for (byte, entry) in (0u32..).zip(&mut table) {
        *entry = (0..8).fold(byte, |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 });
    }
    let mut crc = !0u32;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(!crc);
        }
        for &byte in &buffer[..count] {
            crc = table[usize::from(crc as u8 ^ byte)] ^ crc >> 8;
        }
    }
}

/// Unpacks an xz file, at most [`UNPACKED_MAX`] bytes.
fn unpack(mut packed: &[u8]) -> Result<Vec<u8>, String> {
    let mut decoder = XzDecoder::in_heap_with_alloc_dict_size(0, DICTIONARY_MAX);
    let mut unpacked = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let step = decoder.decode(packed, &mut buffer).map_err(|e| format!("it does not unpack: {e}"))?;
        unpacked.extend_from_slice(&buffer[..step.output_produced()]);
        packed = &packed[step.input_consumed()..];
        if unpacked.len() > UNPACKED_MAX {
            return Err("it unpacks to more than is sensible".to_owned());
        }
        match step {
            XzNextBlockResult::EndOfStream(..) => return Ok(unpacked),
            XzNextBlockResult::NeedMoreData(..) if !step.made_progress() => {
                return Err("it does not unpack: it is cut off".to_owned());
            }
            XzNextBlockResult::NeedMoreData(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::crc32;

    #[test]
    fn crc_is_that_of_gzip() {
        // The check value that every description of CRC-32/ISO-HDLC gives.
        assert_eq!(crc32(&b"123456789"[..]).unwrap(), 0xcbf4_3926);
    }
}
