//! Records of `bpf_ringbuf_*`: one ring for all CPUs.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use std::time::Duration;

use super::call::wait_readable;
use super::map::{self, Map};
use super::pages::{Access, Pages, page_size};

// What the length of a record says besides (`BPF_RINGBUF_*`).
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// Bytes of a record before its data.
const HEADER: usize = 8;

/// Why a ring cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// It is a map of another kind.
    #[error("map '{name}' is of kind {kind}, not {expected}: it is no such ring")]
    Kind {
        /// The map.
        name: String,
        /// `enum bpf_map_type`.
        kind: u32,
        /// What it should be.
        expected: u32,
    },
    /// It could not be mapped, or opened.
    #[error("cannot map ring '{name}': {source}; make it smaller, or run as root")]
    Map {
        /// The map.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// It could not be waited for.
    #[error("cannot wait for ring '{name}': {source}")]
    Wait {
        /// The map.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// What lies in it is no record.
    #[error("ring '{name}' holds no record at {position}; attach again")]
    Broken {
        /// The map.
        name: String,
        /// Bytes since the ring was made.
        position: usize,
    },
    /// One buffer per CPU: their map could not take one.
    #[error(transparent)]
    Buffers(#[from] map::MapError),
}

pub(super) fn check_kind(map: &Map, expected: u32) -> Result<(), RingError> {
    if map.kind() == expected {
        return Ok(());
    }
    Err(RingError::Kind { name: map.name().to_owned(), kind: map.kind(), expected })
}

/// Reads a map of kind `BPF_MAP_TYPE_RINGBUF` (27). One reader per ring.
#[derive(Debug)]
pub struct RingBuffer<'a> {
    map: &'a Map,
    /// A page with our position.
    consumer: Pages,
    /// A page with the kernel's position, then the data twice, so that no record is cut at the end.
    producer: Pages,
    record: Vec<u8>,
}

impl<'a> RingBuffer<'a> {
    /// Maps the ring.
    ///
    /// # Errors
    /// If the map is no ring.
    pub fn new(map: &'a Map) -> Result<RingBuffer<'a>, RingError> {
        check_kind(map, map::RING)?;
        let failed = |source| RingError::Map { name: map.name().to_owned(), source };
        let page = page_size();
        let consumer = Pages::map(map.as_fd(), 0, page, Access::Write).map_err(failed)?;
        let producer = Pages::map(map.as_fd(), page, page + 2 * map.max_entries(), Access::Read).map_err(failed)?;
        Ok(RingBuffer { map, consumer, producer, record: Vec::new() })
    }

    /// Waits until there is a record, at most so long. False: the time is over, or a signal came.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(&self, at_most: Duration) -> Result<bool, RingError> {
        let failed = |source| RingError::Wait { name: self.map.name().to_owned(), source };
        wait_readable(&[self.map.as_fd()], at_most).map_err(failed)
    }

    /// Hands over the records that are there, in order, up to the first that is not finished.
    /// Returns how many.
    ///
    /// # Errors
    /// If the ring is broken.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) -> Result<usize, RingError> {
        let (page, len) = (page_size(), self.map.max_entries());
        let broken = |position| RingError::Broken { name: self.map.name().to_owned(), position };
        let ours: &AtomicUsize = self.consumer.at(0).ok_or_else(|| broken(0))?;
        let kernels: &AtomicUsize = self.producer.at(0).ok_or_else(|| broken(0))?;
        let mut position = ours.load(Ordering::Relaxed);
        let mut count = 0;
        // Pages for reading allow relaxed loads only; with the fences they are acquires.
        while position != kernels.load(Ordering::Relaxed) {
            fence(Ordering::Acquire);
            let start = page + (position & (len - 1));
            let header: &AtomicU32 = self.producer.at(start).ok_or_else(|| broken(position))?;
            let header = header.load(Ordering::Relaxed);
            if header & BUSY != 0 {
                break;
            }
            fence(Ordering::Acquire);
            let size = (header & !DISCARDED) as usize;
            if size > len {
                return Err(broken(position));
            }
            if header & DISCARDED == 0 {
                self.record.clear();
                if !self.producer.copy(start + HEADER, size, &mut self.record) {
                    return Err(broken(position));
                }
                each(&self.record);
                count += 1;
            }
            position = position.wrapping_add((HEADER + size).next_multiple_of(8));
            // Full barrier: the kernel wakes us only if it sees that we had caught up.
            ours.store(position, Ordering::SeqCst);
        }
        Ok(count)
    }
}
