//! Records: a thread writes into the ring of its own slot, the controller reads.
//!
//! A signal handler of the same thread may write records in the middle of one. So room is reserved
//! by one instruction, and a record counts once its first word says `Committed`. The state
//! `Reserved` has to be in the ring before `head` covers it: it is put there by an instruction that
//! fails if a handler has been there first.
//!
//! No record wraps. One that does not fit before the end of the ring begins at its start, behind a
//! pad; so the longest that always finds room in an empty ring has half its length.

use core::sync::atomic::Ordering;

use sidestep_wire::{RECORD_ALIGN, RecordHeader, RecordState, Slot};

use crate::arch;
use crate::memory::{Agent, Thread};

const HEADER: u64 = size_of::<RecordHeader>() as u64;
/// How far ahead memory is asked for: some short records.
const AHEAD: u64 = 4 * RECORD_ALIGN;

/// So many handlers in a row never come in between. Somebody else may write to the ring.
const ROUNDS: u32 = 64;

/// The ring of a thread.
pub struct Ring {
    slot: &'static Slot,
    thread: Thread,
    base: u64,
    /// A power of two, or 0.
    len: u64,
}

impl Ring {
    /// The thread's; none in a forked child, where nobody reads.
    #[must_use]
    pub fn of(agent: Agent, thread: Thread) -> Option<Ring> {
        let slot = thread.shared_slot()?;
        let layout = agent.layout();
        Some(Ring { slot, thread, base: thread.slot() + layout.ring_off, len: layout.ring_len })
    }

    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes ever reserved and ever consumed.
    #[must_use]
    pub fn positions(&self) -> (u64, u64) {
        (self.slot.head.load(Ordering::Relaxed), self.slot.tail.load(Ordering::Acquire))
    }

    /// Room for a record of `bytes` bytes, at the address that it gives; `None` = full.
    #[must_use]
    pub fn reserve(&self, bytes: u64, map: u32) -> Option<u64> {
        if bytes > self.len {
            return None;
        }
        let room = align(HEADER + bytes);
        let at = self.room(room)?;
        // The reader had it last: a record that comes soon shall not wait for it.
        arch::prefetch_for_write(self.word(at + room + AHEAD));
        self.put(at + 8, RecordHeader::what(map, self.thread.writer(), bytes));
        Some(self.word(at) as u64 + HEADER)
    }

    /// Publishes the first `bytes` bytes of the record at `record`, and gives the rest back. `time`
    /// is what it carries.
    pub fn submit(&self, record: u64, bytes: Option<u64>, time: u64) {
        let Some((at, room)) = self.find(record) else { return };
        self.put(at + 16, time);
        let mut len = room;
        if let Some(bytes) = bytes {
            let word = self.word(at + 8);
            // SAFETY: in the record.
            let (what, bytes) = RecordHeader::cut(unsafe { word.read_volatile() }, bytes);
            self.put(at + 8, what);
            len = align(HEADER + bytes).min(room);
        }
        let reserved = RecordState::Reserved.word(len);
        if len < room {
            // Valid at every step: a record and a pad, or, if no handler has written behind them, a
            // record alone.
            self.put(at + len, RecordState::Pad.word(room - len));
            if !self.replace(at, RecordState::Reserved.word(room), reserved) {
                return; // given up by the controller
            }
            let _ = self.move_head(at + room, at + len);
        }
        let _ = self.replace(at, reserved, RecordState::Committed.word(len));
    }

    /// Gives the record at `record` back.
    pub fn discard(&self, record: u64) {
        let Some((at, room)) = self.find(record) else { return };
        // A pad that the controller has already seen must not become something else: it stays
        // `Reserved` if `head` goes back, for then nobody looks at it.
        if !self.move_head(at + room, at) {
            let _ = self.replace(at, RecordState::Reserved.word(room), RecordState::Pad.word(room));
        }
    }

    /// Position and length of a record that is still reserved.
    fn find(&self, record: u64) -> Option<(u64, u64)> {
        let offset = record.wrapping_sub(HEADER).wrapping_sub(self.base);
        if offset >= self.len || offset % RECORD_ALIGN != 0 {
            return None;
        }
        let head = self.slot.head.load(Ordering::Relaxed);
        // Where it begins below `head`; 0 is the whole ring.
        let below = head.wrapping_sub(offset) & (self.len - 1);
        let at = head.wrapping_sub(if below == 0 { self.len } else { below });
        // SAFETY: in the ring.
        let first = unsafe { self.word(at).read_volatile() };
        (first as u32 == RecordState::Reserved as u32).then_some((at, first >> 32))
    }

    fn word(&self, at: u64) -> *mut u64 {
        (self.base + (at & (self.len - 1) & !7)) as *mut u64
    }

    fn put(&self, at: u64, value: u64) {
        // SAFETY: `word` lies in the ring, and `at` in the reserved part of it.
        unsafe { self.word(at).write_volatile(value) }
    }

    fn replace(&self, at: u64, old: u64, new: u64) -> bool {
        // SAFETY: `word` lies in the ring. The controller may give up a record at the same moment;
        // what this thread writes then is read by nobody.
        unsafe { arch::replace(self.word(at), old, new) }
    }

    fn move_head(&self, old: u64, new: u64) -> bool {
        // SAFETY: only this thread writes its `head`.
        unsafe { arch::replace(self.slot.head.as_ptr(), old, new) }
    }

    /// Position of `len` bytes of room in state `Reserved`; `None` = full.
    fn room(&self, len: u64) -> Option<u64> {
        for _ in 0..ROUNDS {
            let (head, tail) = self.positions();
            let used = head.wrapping_sub(tail);
            if used > self.len {
                // The controller gave up a record while a part of it was given back.
                if self.len == 0 || tail % RECORD_ALIGN != 0 || !self.move_head(head, tail) {
                    return None;
                }
                continue;
            }
            let left = self.len - (head & self.len.wrapping_sub(1));
            let (part, needed) = if len > left { (left, left + len) } else { (len, len) };
            if self.len - used < needed {
                return None;
            }
            let reserved = RecordState::Reserved.word(part);
            // SAFETY: in the ring.
            let before = unsafe { self.word(head).read_volatile() };
            if self.replace(head, before, reserved) {
                if !self.move_head(head, head + part) {
                    // A handler wrote a record here between the two lines that read; its first word
                    // was `before`.
                    let _ = self.replace(head, reserved, before);
                } else if part == needed {
                    return Some(head);
                } else {
                    let _ = self.replace(head, reserved, RecordState::Pad.word(part));
                }
            }
        }
        None
    }
}

fn align(len: u64) -> u64 {
    len.next_multiple_of(RECORD_ALIGN)
}
