//! Records: 6, 25, 130 to 134, 257.

use core::sync::atomic::Ordering;

use sidestep_wire::map::TRACE;
use sidestep_wire::{MapDesc, ThreadState};

use super::{EAGAIN, EINVAL, ENOSPC, here, map, task};
use crate::memory::{Agent, Thread};
use crate::record::Ring;
use crate::safe_read;

/// `BPF_RB_NO_WAKEUP` and `BPF_RB_FORCE_WAKEUP`: nobody is woken here.
const WAKEUP_FLAGS: u64 = 3;
/// `BPF_F_INDEX_MASK`.
const INDEX_MASK: u64 = u32::MAX as u64;
/// Most bytes of a text that a `%s` of `trace_printk` names, with its NUL.
const TEXT: u64 = 64;
/// Most conversions of `trace_printk`.
const ARGUMENTS: usize = 3;

/// Room for a record. The time goes into it when it is submitted: programs mostly take it in
/// between, and one is enough.
fn reserve(agent: Agent, thread: Thread, desc: &MapDesc, bytes: u64) -> Option<(Ring, u64)> {
    let ring = Ring::of(agent, thread)?;
    match ring.reserve(bytes, desc.index) {
        Some(record) => Some((ring, record)),
        None => {
            agent.live(desc).dropped.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

/// Copies from the program's memory to a record, which begins at a multiple of 8.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes.
unsafe fn copy(from: u64, to: u64, len: u64) {
    let whole = len & !7;
    // SAFETY: the caller promises that `len` bytes are readable at `from` and writable at `to`
    // (section "Safety" above). Volatile, so that this becomes no call of `memcpy`.
    unsafe {
        for i in (0..whole).step_by(8) {
            ((to + i) as *mut u64).write_volatile(((from + i) as *const u64).read_unaligned());
        }
        for i in whole..len {
            ((to + i) as *mut u8).write_volatile(((from + i) as *const u8).read());
        }
    }
}

/// # Safety
/// `state` is the running thread's, prepared; `data` is readable for `len` bytes.
unsafe fn write(desc: &MapDesc, data: u64, len: u64, state: *mut ThreadState) -> bool {
    // SAFETY: the caller promises that `state` is the prepared state of this thread (section
    // "Safety" above).
    let (agent, thread) = unsafe { here(state) };
    let Some((ring, record)) = reserve(agent, thread, desc, len) else { return false };
    // SAFETY: the caller promises that `len` bytes are readable at `data` (section "Safety" above).
    // `reserve` gave a record of `len` bytes.
    unsafe { copy(data, record, len) };
    ring.submit(record, None, task::stamp(agent, thread));
    true
}

/// 25: a record with the number of the map. The index of a CPU in `flags` means nothing here.
pub unsafe extern "C" fn perf_event_output(
    _: u64,
    desc: u64,
    flags: u64,
    data: u64,
    len: u64,
    state: *mut ThreadState,
) -> u64 {
    if flags & !INDEX_MASK != 0 {
        return EINVAL;
    }
    // SAFETY: the verifier has proven that `desc` is a map and that `len` bytes can be read at
    // `data`. The sixth argument is the state of this thread.
    if unsafe { write(map(desc), data, len, state) } { 0 } else { ENOSPC }
}

/// 130
pub unsafe extern "C" fn ringbuf_output(
    desc: u64,
    data: u64,
    len: u64,
    flags: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    if flags & !WAKEUP_FLAGS != 0 {
        return EINVAL;
    }
    // SAFETY: the verifier has proven that `desc` is a map and that `len` bytes can be read at
    // `data`. The sixth argument is the state of this thread.
    if unsafe { write(map(desc), data, len, state) } { 0 } else { EAGAIN }
}

/// 131: the address of the record's bytes, or 0.
pub unsafe extern "C" fn ringbuf_reserve(
    desc: u64,
    len: u64,
    flags: u64,
    _: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    if flags != 0 {
        return 0;
    }
    // SAFETY: the verifier has proven that `desc` is a map. The sixth argument is the state of this
    // thread.
    let (desc, (agent, thread)) = unsafe { (map(desc), here(state)) };
    reserve(agent, thread, desc, len).map_or(0, |(_, record)| record)
}

/// 132
pub unsafe extern "C" fn ringbuf_submit(record: u64, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, thread) = unsafe { here(state) };
    if let Some(ring) = Ring::of(agent, thread) {
        ring.submit(record, None, task::stamp(agent, thread));
    }
    0
}

/// 133
pub unsafe extern "C" fn ringbuf_discard(record: u64, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, thread) = unsafe { here(state) };
    if let Some(ring) = Ring::of(agent, thread) {
        ring.discard(record);
    }
    0
}

/// 134: `BPF_RB_AVAIL_DATA`, `_RING_SIZE`, `_CONS_POS`, `_PROD_POS` of the thread's ring.
pub unsafe extern "C" fn ringbuf_query(_: u64, what: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, thread) = unsafe { here(state) };
    let Some(ring) = Ring::of(agent, thread) else { return 0 };
    let (head, tail) = ring.positions();
    match what {
        0 => head.saturating_sub(tail),
        1 => ring.len(),
        2 => tail,
        3 => head,
        _ => 0,
    }
}

/// 257: submits the first `len` bytes of a record.
pub unsafe extern "C" fn ringbuf_submit_part(
    record: u64,
    len: u64,
    _: u64,
    _: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, thread) = unsafe { here(state) };
    if let Some(ring) = Ring::of(agent, thread) {
        ring.submit(record, Some(len), task::stamp(agent, thread));
    }
    0
}

/// 6: a record as [`TRACE`] says. The texts that `%s` names are read now: later they may be others.
pub unsafe extern "C" fn trace_printk(format: u64, len: u64, a: u64, b: u64, c: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, thread) = unsafe { here(state) };
    let Some(ring) = Ring::of(agent, thread) else { return EINVAL };
    let head = 8 * (1 + ARGUMENTS as u64);
    let room = head + len + TEXT * ARGUMENTS as u64;
    let Some(record) = ring.reserve(room, TRACE) else {
        agent.common().lines_dropped.fetch_add(1, Ordering::Relaxed);
        return ENOSPC;
    };
    let mut end = record + head + len;
    // SAFETY: `ring.reserve` gave `room` bytes at `record`, enough for all that is written here.
    // The verifier has proven that `len` bytes can be read at `format`.
    unsafe {
        let words = record as *mut u64;
        words.write_volatile(len);
        words.add(1).write_volatile(a);
        words.add(2).write_volatile(b);
        words.add(3).write_volatile(c);
        copy(format, record + head, len);
        let mut used = 0;
        let mut texts = Conversions { at: format, end: format + len };
        while let Some(conversion) = texts.next() {
            let value = match used {
                0 => a,
                1 => b,
                2 => c,
                _ => break,
            };
            used += 1;
            if conversion == b's' {
                let text = safe_read::copy_str(agent, value, end as *mut u8, TEXT - 1).unwrap_or(0);
                ((end + text) as *mut u8).write_volatile(0);
                end += text + 1;
            }
        }
    }
    ring.submit(record, Some(end - record), task::stamp(agent, thread));
    end - record
}

/// The letters that end the conversions of a format.
struct Conversions {
    at: u64,
    end: u64,
}

impl Conversions {
    /// # Safety
    /// All bytes from `at` to `end` are readable.
    unsafe fn next(&mut self) -> Option<u8> {
        let mut inside = false;
        while self.at < self.end {
            // SAFETY: the caller promises that the format is readable up to `end` (section "Safety"
            // above). `at` is below `end`.
            let byte = unsafe { (self.at as *const u8).read() };
            self.at += 1;
            match byte {
                b'%' => inside = !inside,
                b'0'..=b'9' | b'-' | b'+' | b' ' | b'#' | b'.' | b'l' => {}
                // `%pks` and `%pus` are texts, too (kernel: bpf_bprintf_prepare).
                b'p' if inside && self.is_text() => {
                    self.at += 2;
                    return Some(b's');
                }
                _ if inside => return Some(byte),
                _ => {}
            }
        }
        None
    }

    fn is_text(&self) -> bool {
        // SAFETY: only `next` calls this, whose caller promises that the format is readable up to
        // `end`. Both bytes lie before `end`.
        self.at + 2 <= self.end
            && unsafe {
                let kind = (self.at as *const u8).read();
                (kind == b'k' || kind == b'u') && ((self.at + 1) as *const u8).read() == b's'
            }
    }
}
