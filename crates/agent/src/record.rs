//! Records: a thread writes into the ring of its own slot, the controller reads.
//!
//! A signal handler of the same thread may write records in the middle of one. So room is reserved by one instruction,
//! and a record counts once its first word says `Committed`. The state `Reserved` has to be in the ring before `head`
//! covers it: it is put there by an instruction that fails if a handler has been there first.

use core::sync::atomic::Ordering;

use sidestep_wire::private::{ARGS_MAX, STR_MAX};
use sidestep_wire::{ArgKind, ArgSpec, Frame, ProbeDesc, RECORD_ALIGN, RecordHeader, RecordState, Slot};

use crate::arch;
use crate::memory::{Agent, Thread};
use crate::safe_read;

/// How long a thread name may be out of date, in nanoseconds.
const COMM_AGE: u64 = 10_000_000;
/// Arg word of a string that could not be read.
const UNREADABLE: u64 = u64::MAX;

const HEADER: u64 = size_of::<RecordHeader>() as u64;

/// Writes a record, or counts it as lost.
#[inline(never)]
pub fn write(agent: Agent, thread: Thread, desc: &ProbeDesc, probe: u32, frame: &Frame, now: u64) {
    let Some(slot) = thread.shared_slot() else { return }; // a forked child: nobody reads
    let header = agent.header();
    let ring = Ring { slot, base: thread.slot() + header.ring_off, len: header.ring_len };
    let args = &desc.args[..(desc.nargs as usize).min(ARGS_MAX)];
    let strings = args.iter().filter(|arg| is_string(arg)).count();
    let room = align(HEADER + (args.len() * 8 + strings * STR_MAX) as u64);
    let Some(at) = ring.reserve(room) else { return thread.count(agent, u64::from(desc.lost), 1) };

    if agent.nanoseconds(now.wrapping_sub(thread.comm_time())) > COMM_AGE {
        thread.refresh_comm(now);
    }
    ring.put(at + 8, u64::from(probe) | u64::from(thread.current_tid()) << 32);
    ring.put(at + 16, now);
    // SAFETY: the name is two words of the thread's state.
    let comm = unsafe { [thread.comm().read_volatile(), thread.comm().add(1).read_volatile()] };
    ring.put(at + 24, comm[0]);
    ring.put(at + 32, comm[1]);
    let mut end = at + HEADER + args.len() as u64 * 8;
    let mut word = at + HEADER;
    for arg in args {
        let mut value = argument(arg, frame);
        if is_string(arg) {
            value = value.and_then(|from| ring.put_string(end, from));
            end += value.unwrap_or(0).next_multiple_of(8);
        }
        ring.put(word, value.unwrap_or(UNREADABLE));
        word += 8;
    }
    ring.finish(at, room, align(end - at));
}

fn is_string(arg: &ArgSpec) -> bool {
    arg.kind == ArgKind::Str as u32
}

fn align(len: u64) -> u64 {
    len.next_multiple_of(RECORD_ALIGN)
}

/// The value of an argument: System V ABI, AMD64 supplement, 3.2.3.
fn argument(arg: &ArgSpec, frame: &Frame) -> Option<u64> {
    Some(match arg.source {
        0 => frame.rdi,
        1 => frame.rsi,
        2 => frame.rdx,
        3 => frame.rcx,
        4 => frame.r8,
        5 => frame.r9,
        ArgSpec::RETVAL => frame.rax,
        n => {
            let at = frame.rsp.wrapping_add(8 + (u64::from(n) - 6) * 8);
            return safe_read::word(at, frame.rsp);
        }
    })
}

struct Ring<'a> {
    slot: &'a Slot,
    base: u64,
    /// A power of two, or 0.
    len: u64,
}

impl Ring<'_> {
    fn word(&self, at: u64) -> *mut u64 {
        (self.base + (at & (self.len - 1) & !7)) as *mut u64
    }

    fn put(&self, at: u64, value: u64) {
        // SAFETY: `word` lies in the ring, and `at` in the reserved part of it.
        unsafe { self.word(at).write_volatile(value) }
    }

    fn replace(&self, at: u64, old: u64, new: u64) -> bool {
        // SAFETY: `word` lies in the ring. The controller may give up a record at the same moment; what this thread
        // writes then is read by nobody.
        unsafe { arch::replace(self.word(at), old, new) }
    }

    fn move_head(&self, old: u64, new: u64) -> bool {
        // SAFETY: only this thread writes its `head`.
        unsafe { arch::replace(self.slot.head.as_ptr(), old, new) }
    }

    /// Position of `len` bytes of room in state `Reserved`; `None` = full.
    fn reserve(&self, len: u64) -> Option<u64> {
        let reserved = RecordState::Reserved.word(len);
        loop {
            let head = self.slot.head.load(Ordering::Relaxed);
            let tail = self.slot.tail.load(Ordering::Acquire);
            let used = head.wrapping_sub(tail);
            if used > self.len {
                // The controller gave up a record while `finish` gave back a part of it.
                if self.len == 0 || tail % RECORD_ALIGN != 0 || !self.move_head(head, tail) {
                    return None;
                }
                continue;
            }
            if self.len - used < len {
                return None;
            }
            // SAFETY: in the ring.
            let before = unsafe { self.word(head).read_volatile() };
            if self.replace(head, before, reserved) {
                if self.move_head(head, head + len) {
                    return Some(head);
                }
                // A handler wrote a record here between the two lines that read; its first word was `before`.
                let _ = self.replace(head, reserved, before);
            }
        }
    }

    /// Copies a string into the ring, page by page; its length, or `None` if its first byte cannot be read.
    fn put_string(&self, at: u64, from: u64) -> Option<u64> {
        let max = STR_MAX as u64;
        let mut done = 0;
        while done < max {
            let position = (at + done) & (self.len - 1);
            let to = (self.base + position) as *mut u8;
            let want = (max - done).min(self.len - position);
            // SAFETY: `want` bytes from `to` lie in the ring and in the reserved part of it.
            let got = unsafe { safe_read::within_page(from.wrapping_add(done), to, want) };
            // SAFETY: as above; the bytes were just written.
            let nul = (0..got).find(|i| unsafe { to.add(*i as usize).read_volatile() } == 0);
            if let Some(nul) = nul {
                return Some(done + nul);
            }
            if got == 0 {
                return (done != 0).then_some(done);
            }
            done += got;
        }
        Some(done)
    }

    /// Publishes a record of `len` bytes of which `room` were reserved, and gives the rest back.
    fn finish(&self, at: u64, room: u64, len: u64) {
        let reserved = RecordState::Reserved.word(len);
        if len < room {
            // Valid at every step: a record and a pad, or, if no handler has written behind them, a record alone.
            self.put(at + len, RecordState::Pad.word(room - len));
            if !self.replace(at, RecordState::Reserved.word(room), reserved) {
                return; // given up by the controller
            }
            let _ = self.move_head(at + room, at + len);
        }
        let _ = self.replace(at, reserved, RecordState::Committed.word(len));
    }
}
