//! Code of the target, a page at a time: a system call for each site would take longer than what it
//! is for.

use sidestep_isa::Va;
use sidestep_sys::{MemoryError, Process};

use crate::memory::layout::PAGE;
/// What lies on the same page, of something in the order of its addresses.
pub(crate) fn pages<T>(items: &[T], at: impl Fn(&T) -> u64) -> impl Iterator<Item = &[T]> {
    items.chunk_by(move |a, b| at(a) / PAGE == at(b) / PAGE)
}

/// Pages of a process that stands still, read at once.
pub(crate) fn read_all<T>(process: &Process, pages: &[&[T]], place: impl Fn(&T) -> (u64, usize)) -> Vec<Stretch> {
    let ends: Vec<(u64, u64)> = pages.iter().map(|page| ends(page.iter().map(&place))).collect();
    let places: Vec<(Va, usize)> = ends.iter().map(|(start, end)| (Va(*start), (end - start) as usize)).collect();
    let stretch = |((start, _), bytes): (&(u64, u64), Option<Vec<u8>>)| Stretch {
        start: *start,
        bytes: bytes.unwrap_or_default(),
        changed: false,
    };
    ends.iter().zip(process.read_many(&places)).map(stretch).collect()
}

/// Writes what was put, in this order. Nobody else may have changed anything since the places were
/// read: the threads stand still.
pub(crate) fn write_all(process: &Process, pages: &[Stretch]) -> Result<(), MemoryError> {
    let changed = pages.iter().filter(|page| page.changed);
    process.write_many(&changed.map(|page| (Va(page.start), &page.bytes[..])).collect::<Vec<_>>())
}

/// The first address of some places, and the first behind them.
fn ends(places: impl Iterator<Item = (u64, usize)>) -> (u64, u64) {
    let (start, end) = places.fold((u64::MAX, 0), |(start, end), (at, len)| (start.min(at), end.max(at + len as u64)));
    (start.min(end), end)
}

/// The bytes from the first to the last of some places on a page.
pub(crate) struct Stretch {
    start: u64,
    /// None, if they cannot be read.
    bytes: Vec<u8>,
    changed: bool,
}

impl Stretch {
    /// Reads places, given by address and length.
    pub fn read(process: &Process, places: impl Iterator<Item = (u64, usize)>) -> Stretch {
        let (start, end) = ends(places);
        let mut bytes = vec![0; (end - start) as usize];
        if process.read(Va(start), &mut bytes).is_err() {
            bytes.clear();
        }
        Stretch { start, bytes, changed: false }
    }

    /// What is at a place; `None`: it cannot be read.
    pub fn at(&self, at: u64, len: usize) -> Option<&[u8]> {
        let from = at.checked_sub(self.start)? as usize;
        self.bytes.get(from..from + len)
    }

    /// What is to be at a place that can be read.
    pub fn put(&mut self, at: u64, new: &[u8]) {
        let from = (at - self.start) as usize;
        if let Some(bytes) = self.bytes.get_mut(from..from + new.len()) {
            self.changed |= bytes != new;
            bytes.copy_from_slice(new);
        }
    }
}
