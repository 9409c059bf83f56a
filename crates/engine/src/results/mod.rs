//! Reading what programs wrote, while the target runs and afterwards: cells summed over threads,
//! rings drained.

pub(crate) mod address_spaces;
pub(crate) mod controller;
pub(crate) mod maps;
pub(crate) mod status;

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use sidestep_wire::map::TRACE;
use sidestep_wire::ring::Next;
use sidestep_wire::{Common, MapDesc, RecordHeader, RecordState, Ring, Slot};

use crate::api::Record;
use crate::memory::raw::from_bytes;
use crate::target::regions::Regions;

impl Regions {
    /// Slots in use.
    pub fn slots(&self) -> u64 {
        self.maps().slots()
    }

    /// Sum of one cell over all threads.
    pub fn cell(&self, cell: u32) -> u64 {
        let off = self.layout.cells_off + u64::from(cell) * 8;
        (0..self.slots()).map(|s| self.common.u64(self.layout.slot(s) + off).load(Ordering::Relaxed)).sum()
    }

    /// Hits of a probe that found no slot, or interrupted a program that must not be entered again.
    pub fn missed(&self, probe: u32) -> u64 {
        self.common.u64(self.layout.missed_off + u64::from(probe) * 8).load(Ordering::Relaxed)
    }

    fn common_word(&self, field: usize) -> &AtomicU64 {
        self.common.u64(self.layout.common_off + field as u64)
    }

    /// Replaced return addresses of a probe that were never seen again.
    pub fn dropped_returns(&self, probe: u32) -> u64 {
        self.dropped(probe).load(Ordering::Relaxed)
    }

    /// The probe goes, and its number may become another one's.
    pub fn forget_dropped(&self, probe: u32) {
        let dropped = self.dropped(probe).swap(0, Ordering::Relaxed);
        self.common_word(offset_of!(Common, returns_dropped)).fetch_add(dropped, Ordering::Relaxed);
    }

    fn dropped(&self, probe: u32) -> &AtomicU64 {
        self.common.u64(self.layout.shared().dropped_off() + u64::from(probe) * 8)
    }

    /// The same of probes that have gone.
    pub fn returns_dropped(&self) -> u64 {
        self.common_word(offset_of!(Common, returns_dropped)).load(Ordering::Relaxed)
    }

    /// Lines of `trace_printk` that did not fit.
    pub fn lines_dropped(&self) -> u64 {
        self.common_word(offset_of!(Common, lines_dropped)).load(Ordering::Relaxed)
    }

    /// Is there no record in the ring of a slot?
    pub fn is_drained(&self, slot: u64) -> bool {
        let word = |field: usize| self.common.u64(self.layout.slot(slot) + field as u64).load(Ordering::Acquire);
        self.layout.ring_len == 0 || word(offset_of!(Slot, head)) == word(offset_of!(Slot, tail))
    }

    /// Takes all complete records out of all rings; not sorted.
    pub fn drain(&self, rings: &mut Rings) -> Vec<Record> {
        let mut records = Vec::new();
        if self.layout.ring_len != 0 {
            for slot in 0..self.slots() {
                self.drain_slot(slot, rings, &mut records);
            }
        }
        records
    }

    fn drain_slot(&self, slot: u64, rings: &mut Rings, out: &mut Vec<Record>) {
        let base = self.layout.slot(slot);
        let pid = self.common.u32(base + offset_of!(Slot, owner) as u64).load(Ordering::Relaxed);
        let head = self.common.u64(base + offset_of!(Slot, head) as u64);
        let tail_word = self.common.u64(base + offset_of!(Slot, tail) as u64);
        let mut tail = rings.tail(slot);
        let Some(ring) = Ring::new(self.common.words(base + self.layout.ring_off, self.layout.ring_len / 8)) else {
            return;
        };
        let bytes = |at: u64, len: u64| -> Vec<u8> {
            (0..len / 8).flat_map(|i| ring.word(at + i * 8).load(Ordering::Relaxed).to_ne_bytes()).collect()
        };
        let end = tail.saturating_add(ring.len()); // one round at most, however fast the writer is
        while tail < end {
            // The head anew for each record: the writer of the last one may have given back a part
            // of its room.
            let head = head.load(Ordering::Acquire);
            match ring.next(head, tail) {
                Next::Nothing => break,
                Next::Overwritten(to) => {
                    tail = to;
                    self.count_lost(None);
                    break;
                }
                Next::Reserved => {
                    // If its writer never comes back, nothing behind it can be found: start over at
                    // the head.
                    if rings.give_up(slot, tail) {
                        tail = head;
                    }
                    break;
                }
                Next::Record(len) => {
                    out.extend(parse(&bytes(tail, len), pid));
                    tail += len;
                }
                Next::Pad(len) => tail += len,
                Next::Unfinished(state_len, len) => {
                    if !rings.give_up(slot, tail) {
                        break;
                    }
                    let abandoned = len << 32 | RecordState::Abandoned as u64;
                    // If the writer commits at this very moment, the next round takes the record.
                    let first = ring.word(tail);
                    if first.compare_exchange(state_len, abandoned, Ordering::AcqRel, Ordering::Acquire).is_err() {
                        break;
                    }
                    let head = bytes(tail, size_of::<RecordHeader>() as u64);
                    self.count_lost(from_bytes(&head).as_ref().map(RecordHeader::map));
                    tail += len;
                }
            }
        }
        rings.set_tail(slot, tail);
        tail_word.store(tail, Ordering::Release);
    }

    /// A record that nobody will read.
    fn count_lost(&self, map: Option<u32>) {
        let at = match map {
            Some(map) if (map as usize) < self.maps.len() => {
                self.layout.map_desc(map as usize) + offset_of!(MapDesc, dropped) as u64
            }
            _ => self.layout.common_off + offset_of!(Common, lines_dropped) as u64,
        };
        self.common.u64(at).fetch_add(1, Ordering::Relaxed);
    }
}

/// What the controller knows of rings by itself: how far it has read, and since when a ring waits
/// for a record whose writer was interrupted.
#[derive(Default)]
pub(crate) struct Rings {
    tails: std::collections::HashMap<u64, u64>,
    since: std::collections::HashMap<u64, (u64, std::time::Instant)>,
}

impl Rings {
    /// A writer is interrupted by a signal handler at most; after this long it has jumped away.
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

    fn tail(&self, slot: u64) -> u64 {
        self.tails.get(&slot).copied().unwrap_or(0)
    }

    fn set_tail(&mut self, slot: u64, tail: u64) {
        self.tails.insert(slot, tail);
    }

    fn give_up(&mut self, slot: u64, at: u64) -> bool {
        let now = std::time::Instant::now();
        let entry = self.since.entry(slot).or_insert((at, now));
        if entry.0 != at {
            *entry = (at, now);
        }
        now - entry.1 >= Self::PATIENCE
    }
}

/// A committed record of a process.
fn parse(bytes: &[u8], pid: u32) -> Option<Record> {
    let header: RecordHeader = from_bytes(bytes)?;
    let written = bytes.get(size_of::<RecordHeader>()..)?.get(..header.len() as usize)?;
    let map = (header.map() != TRACE).then_some(header.map() as usize);
    Some(Record { map, pid, tid: header.tid(), time_ns: header.time, bytes: written.to_vec() })
}
