//! Maps of the kernel.
#![allow(unsafe_code, reason = "bpf(2) takes pointers to keys and values")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::call::{Command, Element, Freeze, MapCreate, bpf, bpf_new, short_name};

pub(super) const PERF_EVENT_ARRAY: u32 = 4;
pub(super) const RING: u32 = 27;
/// Hash, array and least-recently-used hash with a value per CPU.
const PER_CPU: [u32; 3] = [5, 6, 10];
/// Besides those and the rings: hash, array, stack traces, least-recently-used hash. How long the
/// values of a kind are is the kernel's knowledge (`bpf_map_value_size`), which keeps it from
/// writing behind ours; so no kind that we do not know.
const ONE_VALUE: [u32; 4] = [1, 2, 7, 9];
/// `BPF_F_RDONLY_PROG`
const READ_ONLY_FOR_PROGRAMS: u32 = 1 << 7;

/// What a map shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapSpec<'a> {
    /// For messages, and for `bpftool map`, which sees 15 characters of it.
    pub name: &'a str,
    /// `enum bpf_map_type`: those that probes can use (1, 2, 4 to 7, 9, 10, 27).
    pub kind: u32,
    /// In bytes; 0 for rings.
    pub key_size: u32,
    /// In bytes; 0 for rings.
    pub value_size: u32,
    /// For rings, their length in bytes; 0 for perf event arrays: as many as CPUs.
    pub max_entries: u32,
    /// `BPF_F_*` flags of creation.
    pub flags: u32,
    /// The value of key 0; empty: zeros.
    pub initial: &'a [u8],
    /// Nobody may write to it after that.
    pub readonly: bool,
}

/// When an update is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// Always.
    Any = 0,
    /// If there is no such key.
    New = 1,
    /// If there is one.
    Existing = 2,
}

/// What went wrong with a map.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// No kind that is known here.
    #[error("map '{name}' is of kind {kind}, which probes cannot use; take a hash, an array or a ring")]
    Kind {
        /// Its name.
        name: String,
        /// `enum bpf_map_type`.
        kind: u32,
    },
    /// It could not be created.
    #[error(
        "the kernel refuses map '{name}' (kind {kind}, {key_size} + {value_size} bytes, {entries} entries): {source}; see bpf::permitted"
    )]
    Create {
        /// Its name.
        name: String,
        /// `enum bpf_map_type`.
        kind: u32,
        /// In bytes.
        key_size: u32,
        /// In bytes.
        value_size: u32,
        /// Most entries.
        entries: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// It could not be read or written.
    #[error("cannot {what} map '{name}': {source}")]
    Access {
        /// What was tried.
        what: &'static str,
        /// The map.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A key or value has the wrong length.
    #[error("{what} of map '{name}' has {given} bytes instead of {expected}; pass as many as the map was created with")]
    Length {
        /// `a key` or `a value`.
        what: &'static str,
        /// The map.
        name: String,
        /// In bytes.
        given: usize,
        /// In bytes.
        expected: usize,
    },
    /// The list of CPUs could not be read.
    #[error("cannot read {}: {source}; mount sysfs", CPUS)]
    Cpus {
        /// What the kernel said.
        source: io::Error,
    },
}

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// A map. The kernel keeps it as long as this, or a program that uses it, is there.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    name: String,
    kind: u32,
    key_size: usize,
    value_size: usize,
    max_entries: usize,
    /// Values under one key.
    copies: usize,
}

const CPUS: &str = "/sys/devices/system/cpu/possible";

/// The CPUs that this machine could have, in the order of values under one key.
///
/// # Errors
/// If sysfs does not tell.
pub fn possible_cpus() -> Result<Vec<u32>, MapError> {
    let text = std::fs::read_to_string(CPUS).map_err(|source| MapError::Cpus { source })?;
    parse_cpus(&text).ok_or_else(|| MapError::Cpus { source: io::ErrorKind::InvalidData.into() })
}

/// `0-3,8`
fn parse_cpus(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

impl Map {
    /// Creates a map, and fills and freezes it if so described.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(spec: &MapSpec<'_>) -> Result<Map, MapError> {
        let copies = match spec.kind {
            kind if PER_CPU.contains(&kind) => possible_cpus()?.len(),
            kind if ONE_VALUE.contains(&kind) || matches!(kind, PERF_EVENT_ARRAY | RING) => 1,
            kind => return Err(MapError::Kind { name: spec.name.to_owned(), kind }),
        };
        let max_entries = match spec.max_entries {
            0 if spec.kind == PERF_EVENT_ARRAY => possible_cpus()?.len() as u32,
            given => given,
        };
        let mut attr = MapCreate {
            kind: spec.kind,
            key_size: spec.key_size,
            value_size: spec.value_size,
            max_entries,
            flags: spec.flags | if spec.readonly { READ_ONLY_FOR_PROGRAMS } else { 0 },
            name: short_name(spec.name),
            ..MapCreate::default()
        };
        // SAFETY: the attribute of this command, without pointers.
        let fd = unsafe { bpf_new(Command::MapCreate, &mut attr) }.map_err(|source| MapError::Create {
            name: spec.name.to_owned(),
            kind: spec.kind,
            key_size: spec.key_size,
            value_size: spec.value_size,
            entries: max_entries,
            source,
        })?;
        let map = Map {
            fd,
            name: spec.name.to_owned(),
            kind: spec.kind,
            key_size: spec.key_size as usize,
            value_size: spec.value_size as usize,
            max_entries: max_entries as usize,
            copies,
        };
        if !spec.initial.is_empty() {
            map.update(&vec![0; map.key_size], spec.initial, Update::Any)?;
        }
        if spec.readonly {
            map.freeze()?;
        }
        Ok(map)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `enum bpf_map_type`.
    #[must_use]
    pub fn kind(&self) -> u32 {
        self.kind
    }

    /// Bytes of one value.
    #[must_use]
    pub fn value_size(&self) -> usize {
        self.value_size
    }

    /// Most entries; of rings, their bytes.
    #[must_use]
    pub fn max_entries(&self) -> usize {
        self.max_entries
    }

    /// Values under one key: 1, or as many as [`possible_cpus`].
    #[must_use]
    pub fn copies(&self) -> usize {
        self.copies
    }

    /// The value of a key, if it is there; of a map with a value per CPU all of them, one behind
    /// the other.
    ///
    /// # Errors
    /// What the kernel says, or a key of the wrong length.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapError> {
        self.check("a key", key.len(), self.key_size)?;
        let mut room = vec![0; self.stride() * self.copies];
        let found = self.element(Command::MapLookup, key, room.as_mut_ptr() as u64, 0);
        if !self.unless_missing("look up in", found)? {
            return Ok(None);
        }
        if self.copies > 1 || self.stride() != self.value_size {
            let values = room.chunks_exact(self.stride().max(1)).flat_map(|value| &value[..self.value_size]);
            room = values.copied().collect();
        }
        Ok(Some(room))
    }

    /// Sets the value of a key; of a map with a value per CPU all of them, as [`Map::lookup`] gives
    /// them.
    ///
    /// # Errors
    /// What the kernel says, or a key or value of the wrong length.
    pub fn update(&self, key: &[u8], value: &[u8], when: Update) -> Result<(), MapError> {
        self.check("a key", key.len(), self.key_size)?;
        self.check("a value", value.len(), self.value_size * self.copies)?;
        let mut room = vec![0; self.stride() * self.copies];
        let places = room.chunks_exact_mut(self.stride().max(1));
        places.zip(value.chunks_exact(self.value_size.max(1))).for_each(|(to, v)| to[..v.len()].copy_from_slice(v));
        let done = self.element(Command::MapUpdate, key, room.as_mut_ptr() as u64, when as u64);
        done.map_err(|source| self.access("update", source))
    }

    /// Removes a key. False: it was not there.
    ///
    /// # Errors
    /// What the kernel says, or a key of the wrong length.
    pub fn delete(&self, key: &[u8]) -> Result<bool, MapError> {
        self.check("a key", key.len(), self.key_size)?;
        self.unless_missing("delete from", self.element(Command::MapDelete, key, 0, 0))
    }

    /// The key behind this one in the kernel's order; the first for `None`, and for a key that is
    /// not there.
    ///
    /// # Errors
    /// What the kernel says, or a key of the wrong length.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Option<Vec<u8>>, MapError> {
        let key = key.unwrap_or_default();
        if !key.is_empty() {
            self.check("a key", key.len(), self.key_size)?;
        }
        let mut next = vec![0; self.key_size];
        let found = self.element(Command::MapNextKey, key, next.as_mut_ptr() as u64, 0);
        Ok(self.unless_missing("walk", found)?.then_some(next))
    }

    /// All keys with their values, as [`Map::lookup`] gives them, by rising bytes of the key. While
    /// programs add and delete keys, some of those may be missing.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn entries(&self) -> Result<Vec<Entry>, MapError> {
        let mut entries = BTreeMap::new();
        let mut key = None;
        // If a key is deleted before we ask for the next, the kernel begins anew: twice is enough
        // for who is unlucky.
        for _ in 0..2 * self.max_entries.max(1) {
            let Some(next) = self.next_key(key.as_deref())? else { break };
            if let Some(value) = self.lookup(&next)? {
                entries.insert(next.clone(), value);
            }
            key = Some(next);
        }
        Ok(entries.into_iter().collect())
    }

    /// From now on the map cannot be changed through [`Map::update`] and [`Map::delete`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn freeze(&self) -> Result<(), MapError> {
        let mut attr = Freeze { map: self.raw() };
        // SAFETY: the attribute of this command, without pointers.
        let done = unsafe { bpf(Command::MapFreeze, &mut attr) };
        done.map(drop).map_err(|source| self.access("freeze", source))
    }

    /// From the start of one value to the next: `round_up(value_size, 8)` where there are several.
    fn stride(&self) -> usize {
        if self.copies > 1 { self.value_size.next_multiple_of(8) } else { self.value_size }
    }

    /// `key` is empty (no key), or as long as keys are; `value` is 0, or the address of a value or
    /// key of this map.
    fn element(&self, command: Command, key: &[u8], value: u64, flags: u64) -> io::Result<()> {
        let key = if key.is_empty() { 0 } else { key.as_ptr() as u64 };
        let mut attr = Element { map: self.raw(), padding: 0, key, value, flags };
        // SAFETY: the attribute of these commands. All callers are methods of [`Map`] in this file:
        // they check the lengths of keys and values against those that the map was created
        // with, and hold keys and values during the call.
        unsafe { bpf(command, &mut attr) }.map(drop)
    }

    fn raw(&self) -> u32 {
        self.fd.as_raw_fd() as u32
    }

    fn check(&self, what: &'static str, given: usize, expected: usize) -> Result<(), MapError> {
        if given == expected {
            return Ok(());
        }
        Err(MapError::Length { what, name: self.name.clone(), given, expected })
    }

    fn unless_missing(&self, what: &'static str, result: io::Result<()>) -> Result<bool, MapError> {
        match result {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(self.access(what, source)),
        }
    }

    fn access(&self, what: &'static str, source: io::Error) -> MapError {
        MapError::Access { what, name: self.name.clone(), source }
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Map {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::parse_cpus;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse_cpus("0\n"), Some(vec![0]));
        assert_eq!(parse_cpus("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse_cpus(""), None);
        assert_eq!(parse_cpus("0-x"), None);
    }
}
