//! Records of `bpf_perf_event_output`: one buffer per CPU.
#![allow(unsafe_code, reason = "perf_event_open")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::call::{EventAttr, EventRequest, event_request, perf_event_open, wait_readable};
use super::map::{self, Map, Update, possible_cpus};
use super::pages::{Access, Pages, page_size};
use super::ring::{RingError, check_kind};

// linux/perf_event.h
const TYPE_SOFTWARE: u32 = 1;
const COUNT_SW_BPF_OUTPUT: u64 = 10;
const SAMPLE_RAW: u64 = 1 << 10;
const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
/// In `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
/// `struct perf_event_header`
const HEADER: usize = 8;

/// What a program put out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PerfRecord<'a> {
    /// A record. Perf makes it longer, with whatever bytes, to four more than a multiple of eight.
    Data {
        /// Where the program ran.
        cpu: u32,
        /// What it put out.
        bytes: &'a [u8],
    },
    /// The buffer was full.
    Lost {
        /// Where the program ran.
        cpu: u32,
        /// How many records.
        count: u64,
    },
}

/// The buffer of one CPU.
#[derive(Debug)]
struct Buffer {
    cpu: u32,
    // In this order: unmapped before it is closed.
    pages: Pages,
    event: OwnedFd,
}

/// Reads a map of kind `BPF_MAP_TYPE_PERF_EVENT_ARRAY` (4). One reader per map.
#[derive(Debug)]
pub struct PerfBuffer<'a> {
    map: &'a Map,
    buffers: Vec<Buffer>,
    /// Bytes of each.
    len: usize,
}

impl<'a> PerfBuffer<'a> {
    /// Makes a buffer of `pages` pages (a power of two) for each CPU that is there, and puts it
    /// into the map.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(map: &'a Map, pages: usize) -> Result<PerfBuffer<'a>, RingError> {
        check_kind(map, map::PERF_EVENT_ARRAY)?;
        let len = pages * page_size();
        let mut buffers = Vec::new();
        for cpu in possible_cpus()? {
            if let Some(buffer) = Buffer::new(map, cpu, len)? {
                buffers.push(buffer);
            }
        }
        Ok(PerfBuffer { map, buffers, len })
    }

    /// Waits until there is a record, at most so long. False: the time is over, or a signal came.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(&self, at_most: Duration) -> Result<bool, RingError> {
        let fds: Vec<_> = self.buffers.iter().map(|buffer| buffer.event.as_fd()).collect();
        wait_readable(&fds, at_most).map_err(|source| RingError::Wait { name: self.map.name().to_owned(), source })
    }

    /// Hands over the records that are there, of one CPU after the other. Returns how many, the
    /// lost not counted.
    ///
    /// # Errors
    /// If a buffer is broken.
    pub fn read(&mut self, mut each: impl FnMut(PerfRecord<'_>)) -> Result<usize, RingError> {
        let mut count = 0;
        for buffer in &self.buffers {
            let done = buffer.read(self.len, |record| {
                count += usize::from(matches!(record, PerfRecord::Data { .. }));
                each(record);
            });
            let name = || self.map.name().to_owned();
            done.map_err(|position| RingError::Broken { name: name(), position: position as usize })?;
        }
        Ok(count)
    }
}

impl Buffer {
    /// None: this CPU is off.
    fn new(map: &Map, cpu: u32, len: usize) -> Result<Option<Buffer>, RingError> {
        let failed = |source| RingError::Map { name: map.name().to_owned(), source };
        let attr = EventAttr {
            kind: TYPE_SOFTWARE,
            config: COUNT_SW_BPF_OUTPUT,
            sample_period: 1,
            sample_type: SAMPLE_RAW,
            wakeup_events: 1,
            ..EventAttr::default()
        };
        // SAFETY: an event without pointers.
        let event = match unsafe { perf_event_open(&attr, -1, cpu as i32) } {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            event => event.map_err(failed)?,
        };
        let pages = Pages::map(event.as_fd(), 0, page_size() + len, Access::Write).map_err(failed)?;
        let descriptor = event.as_raw_fd().to_ne_bytes();
        map.update(&cpu.to_ne_bytes(), &descriptor, Update::Any)?;
        event_request(event.as_fd(), EventRequest::Enable, 0).map_err(failed)?;
        Ok(Some(Buffer { cpu, pages, event }))
    }

    /// The error is the position of what is no record.
    fn read(&self, len: usize, mut each: impl FnMut(PerfRecord<'_>)) -> Result<(), u64> {
        let (Some(head), Some(tail)) = (self.pages.at::<AtomicU64>(DATA_HEAD), self.pages.at::<AtomicU64>(DATA_TAIL))
        else {
            return Err(0);
        };
        let end = head.load(Ordering::Acquire);
        let mut position = tail.load(Ordering::Relaxed);
        let mut record = Vec::new();
        while position != end {
            self.copy(position, HEADER, len, &mut record)?;
            let size = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            let kind = u32::from_ne_bytes([record[0], record[1], record[2], record[3]]);
            if size < HEADER {
                return Err(position);
            }
            self.copy(position, size, len, &mut record)?;
            let cpu = self.cpu;
            match (kind, record[HEADER..].split_first_chunk::<4>()) {
                (RECORD_SAMPLE, Some((bytes, data))) => {
                    let bytes = u32::from_ne_bytes(*bytes) as usize;
                    each(PerfRecord::Data { cpu, bytes: data.get(..bytes).ok_or(position)? });
                }
                (RECORD_LOST, _) => {
                    // The number of the event, and how many.
                    let count = record[HEADER..].get(8..16).and_then(|n| n.try_into().ok()).ok_or(position)?;
                    each(PerfRecord::Lost { cpu, count: u64::from_ne_bytes(count) });
                }
                _ => {}
            }
            position = position.wrapping_add(size as u64);
            tail.store(position, Ordering::Release);
        }
        Ok(())
    }

    /// Replaces `to` by bytes of the buffer, which goes on at its start.
    fn copy(&self, position: u64, count: usize, len: usize, to: &mut Vec<u8>) -> Result<(), u64> {
        to.clear();
        let start = (position % len.max(1) as u64) as usize;
        let first = count.min(len - start);
        let data = page_size();
        let copied = self.pages.copy(data + start, first, to) && self.pages.copy(data, count - first, to);
        if copied { Ok(()) } else { Err(position) }
    }
}
