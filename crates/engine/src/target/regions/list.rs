//! The list of mappings in the head of a process, and memory that is mapped by it.

use std::ops::Range;

use sidestep_isa::{Len, Va};
use sidestep_sys::{CallError, Mapping, Process, Stopped};
use sidestep_wire::{MapEntry, MapKind};

use crate::error::SessionError;
use crate::memory::layout::Layout;
use crate::memory::raw::bytes_of;
use crate::target::regions::Head;
use crate::target::remote::{Remote, mappings, stopped_mappings, used};
use crate::target::space;

/// The list of mappings.
pub(super) struct List<'a> {
    pub head: &'a Head,
    pub layout: &'a Layout,
}

impl List<'_> {
    /// Gives the index of the entry.
    pub fn add(&self, at: Va, len: u64, kind: MapKind) -> Result<u64, SessionError> {
        let index = u64::from(self.head.u32(at!(maps_len))?);
        if index >= self.layout.maps_cap {
            return Err(SessionError::TooMany { what: "mappings" });
        }
        if self.layout.max_memory != u64::MAX {
            let all: Vec<MapEntry> = self.head.read_array(self.layout.maps_off, index)?;
            let needed = all.iter().fold(len, |sum, entry| sum.saturating_add(entry.len));
            if needed > self.layout.max_memory {
                return Err(SessionError::MemoryLimit { needed, limit: self.layout.max_memory });
            }
        }
        let entry = MapEntry { addr: at.0, len, kind: kind as u32, pad: 0 };
        self.write(index, &entry)?;
        self.head.set_u32(at!(maps_len), index as u32 + 1)?;
        Ok(index)
    }

    fn write(&self, index: u64, entry: &MapEntry) -> Result<(), SessionError> {
        self.head.write(self.layout.maps_off + index * size_of::<MapEntry>() as u64, bytes_of(entry))
    }

    /// Maps memory. It is listed before it is there: if we died in between, what is not listed
    /// would stay for ever, and what is listed but not there does no harm.
    pub fn map(&self, stopped: &mut Stopped, place: &Place, kind: MapKind) -> Result<Va, SessionError> {
        match self.map_at(stopped, place, kind) {
            Err(SessionError::Call(CallError::Errno { errno: libc::EEXIST, .. })) => {
                let now = Place::among(&stopped_mappings(stopped)?, place.near.clone(), place.len, place.is_code)?;
                self.map_at(stopped, &now, kind)
            }
            result => result,
        }
    }

    fn map_at(&self, stopped: &mut Stopped, place: &Place, kind: MapKind) -> Result<Va, SessionError> {
        let Place { at, len, .. } = *place;
        let index = self.add(at, len.0, kind)?;
        let mut remote = Remote(stopped);
        let is_code = matches!(kind, MapKind::Agent | MapKind::Slab);
        let mapped = if is_code { remote.map_code(at, len) } else { remote.map_data(at, len) };
        if let Err(CallError::Errno { errno: libc::EEXIST, .. }) = mapped {
            // What is there is the program's, and stays when we go.
            self.write(index, &MapEntry::default())?;
        }
        Ok(mapped?)
    }
}

/// A free range of the address space, found while the target runs: when it is stopped, the range
/// may be free no more.
pub(super) struct Place {
    at: Va,
    len: Len,
    /// From where all of it has to be in reach.
    near: Range<u64>,
    /// Jumps lead there from code of the target.
    is_code: bool,
}

impl Place {
    /// For memory of our own.
    pub fn find(process: &Process, near: Range<u64>, len: Len) -> Result<Place, SessionError> {
        Place::among(&mappings(process)?, near, len, false)
    }

    /// For detours.
    pub fn for_code(process: &Process, near: Range<u64>, len: Len) -> Result<Place, SessionError> {
        Place::among(&mappings(process)?, near, len, true)
    }

    /// Whether a displacement of x86 can name all of it.
    pub fn is_below_2_gib(&self) -> bool {
        self.at.0 + self.len.0 <= i32::MAX as u64
    }

    fn among(mappings: &[Mapping], near: Range<u64>, len: Len, is_code: bool) -> Result<Place, SessionError> {
        let (used, range) = (used(mappings), near.clone());
        let found = match is_code {
            true => space::find(space::least_reach(), &used, range, len),
            false => space::find_own(&used, range, len),
        };
        let at = found.ok_or(SessionError::NoRoom { near: Va(near.start) })?;
        Ok(Place { at, len, near, is_code })
    }
}
