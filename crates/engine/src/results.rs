//! Reading what the agent wrote, while the target runs and afterwards: cells summed over threads, rings drained.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use sidestep_wire::{ArgKind, Header, Histogram, RecordHeader, RecordState, Slot};

use crate::api::{Distribution, Record, Value};
use crate::raw::from_bytes;
use crate::regions::Regions;

impl Regions {
    /// Slots in use.
    fn slots(&self) -> u64 {
        let used = self.shared.u32(offset_of!(Header, slots_used) as u64).load(Ordering::Acquire);
        u64::from(used).min(self.layout.slots_max)
    }

    /// Sum of one cell over all threads.
    pub fn cell(&self, cell: u32) -> u64 {
        let off = self.layout.cells_off + u64::from(cell) * 8;
        (0..self.slots()).map(|s| self.shared.u64(self.layout.slot(s) + off).load(Ordering::Relaxed)).sum()
    }

    /// Hits of a probe that found no slot.
    pub fn missed(&self, probe: u32) -> u64 {
        self.shared.u64(self.layout.missed_off + u64::from(probe) * 8).load(Ordering::Relaxed)
    }

    /// Returns that were never seen.
    pub fn returns_dropped(&self) -> u64 {
        self.shared.u64(offset_of!(Header, returns_dropped) as u64).load(Ordering::Relaxed)
    }

    /// A histogram, summed over all threads.
    pub fn histogram(&self, first_cell: u32) -> Distribution {
        let mut cells = vec![0u64; Histogram::CELLS];
        for slot in 0..self.slots() {
            let off = self.layout.slot(slot) + self.layout.cells_off + u64::from(first_cell) * 8;
            for (sum, cell) in cells.iter_mut().zip(self.shared.words(off, Histogram::CELLS as u64)) {
                *sum += cell.load(Ordering::Relaxed);
            }
        }
        let buckets: Vec<_> = cells[..Histogram::BUCKETS]
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(i, n)| (Histogram::low(i), Histogram::low(i + 1), *n))
            .collect();
        let count = buckets.iter().map(|b| b.2).sum();
        Distribution { buckets, sum: cells[Histogram::SUM], count }
    }

    /// Takes all complete records out of all rings; not sorted. `args_of` gives the kinds of a probe's arguments.
    pub fn drain(&self, args_of: &dyn Fn(u32) -> Option<Vec<ArgKind>>, stuck: &mut Stuck) -> Vec<(u64, Record)> {
        let mut records = Vec::new();
        if self.layout.ring_len != 0 {
            for slot in 0..self.slots() {
                self.drain_slot(slot, args_of, stuck, &mut records);
            }
        }
        records
    }

    fn drain_slot(
        &self,
        slot: u64,
        args_of: &dyn Fn(u32) -> Option<Vec<ArgKind>>,
        stuck: &mut Stuck,
        out: &mut Vec<(u64, Record)>,
    ) {
        let base = self.layout.slot(slot);
        let head = self.shared.u64(base + offset_of!(Slot, head) as u64);
        let tail_word = self.shared.u64(base + offset_of!(Slot, tail) as u64);
        let mut tail = tail_word.load(Ordering::Relaxed);
        let ring = self.shared.words(base + self.layout.ring_off, self.layout.ring_len / 8);
        let word = |at: u64| &ring[(at / 8) as usize & (ring.len() - 1)];
        let end = tail + self.layout.ring_len; // one round at most, however fast the writer is
        loop {
            // Anew for each record: the writer of the last one may have given back a part of its room.
            let head = head.load(Ordering::Acquire);
            if tail >= head.min(end) {
                break;
            }
            let state_len = word(tail).load(Ordering::Acquire);
            let (state, len) = (state_len as u32, state_len >> 32);
            if len < size_of::<RecordHeader>() as u64 || len % 8 != 0 || len > head - tail {
                // Reserved, but not even the length is there yet.
                if !stuck.give_up(slot, tail) {
                    break;
                }
                // Its writer never came back, and nothing behind it can be found: start over at the head.
                tail = head;
                break;
            }
            if state == RecordState::Committed as u32 {
                let bytes: Vec<u8> =
                    (0..len / 8).flat_map(|i| word(tail + i * 8).load(Ordering::Relaxed).to_ne_bytes()).collect();
                if let Some(record) = parse(&bytes, args_of) {
                    out.push(record);
                }
            } else if state != RecordState::Pad as u32 {
                if !stuck.give_up(slot, tail) {
                    break;
                }
                let abandoned = len << 32 | RecordState::Abandoned as u64;
                // If the writer commits at this very moment, the next round takes the record.
                if word(tail).compare_exchange(state_len, abandoned, Ordering::AcqRel, Ordering::Acquire).is_err() {
                    break;
                }
            }
            tail += len;
        }
        tail_word.store(tail, Ordering::Release);
    }
}

/// Remembers since when a ring waits for a record whose writer was interrupted.
#[derive(Default)]
pub(crate) struct Stuck {
    since: std::collections::HashMap<u64, (u64, std::time::Instant)>,
}

impl Stuck {
    /// A writer is interrupted by a signal handler at most; after this long it has jumped away.
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

    fn give_up(&mut self, slot: u64, at: u64) -> bool {
        let now = std::time::Instant::now();
        let entry = self.since.entry(slot).or_insert((at, now));
        if entry.0 != at {
            *entry = (at, now);
        }
        now - entry.1 >= Self::PATIENCE
    }
}

/// A committed record: time stamp as written, and the rest.
fn parse(bytes: &[u8], args_of: &dyn Fn(u32) -> Option<Vec<ArgKind>>) -> Option<(u64, Record)> {
    let header: RecordHeader = from_bytes(bytes)?;
    let probe = header.probe_tid as u32;
    let kinds = args_of(probe)?;
    let words = bytes.get(size_of::<RecordHeader>()..)?;
    let mut strings = words.get(kinds.len() * 8..)?;
    let mut args = Vec::with_capacity(kinds.len());
    for (i, kind) in kinds.iter().enumerate() {
        let word: u64 = from_bytes(words.get(i * 8..)?)?;
        args.push(match kind {
            ArgKind::Int => Value::Int(word),
            ArgKind::Str if word == u64::MAX => Value::Fault(0),
            ArgKind::Str => {
                let text = strings.get(..word as usize)?.to_vec();
                strings = strings.get((word as usize).next_multiple_of(8)..)?;
                Value::Str(text)
            }
        });
    }
    let end = header.comm.iter().position(|b| *b == 0).unwrap_or(header.comm.len());
    let comm = String::from_utf8_lossy(&header.comm[..end]).into_owned();
    let tid = (header.probe_tid >> 32) as u32;
    Some((header.time, Record { probe: probe as usize, tid, comm, time_ns: 0, args }))
}
