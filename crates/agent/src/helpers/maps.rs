//! Maps: 1, 2, 3, 258, 259. Where their entries are says [`sidestep_wire::map`].

use core::sync::atomic::{AtomicU64, Ordering};

use sidestep_wire::hash::{Found, Words};
use sidestep_wire::map::{
    ARRAY, EXIST, HASH, LRU_HASH, LRU_PERCPU_HASH, NO_EXIST, PERCPU_ARRAY, PERCPU_HASH, STACK_TRACE,
};
use sidestep_wire::{MapDesc, MapError, Stacks, Table, ThreadState};

use super::{E2BIG, EINVAL, ENOENT, here, map};
use crate::arch;
use crate::memory::{Agent, Thread};

/// A key or value in a program's memory.
#[derive(Clone, Copy)]
struct Bytes {
    at: u64,
    len: u64,
}

impl Bytes {
    /// # Safety
    /// `len` bytes are readable at `at`, as long as this is used.
    unsafe fn new(at: u64, len: u32) -> Bytes {
        Bytes { at, len: len.into() }
    }
}

impl Words for Bytes {
    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        let first = index as u64 * 8;
        let at = self.at + first;
        if first + 8 <= self.len {
            // SAFETY: `new` demands that `len` bytes are readable at `at`. The word ends at `len`
            // or before.
            return unsafe { (at as *const u64).read_unaligned() };
        }
        let rest = self.len.saturating_sub(first);
        // SAFETY: `new` demands that `len` bytes are readable at `at`. Only those from `first` to
        // the end are read.
        (0..rest).rev().fold(0, |word, i| word << 8 | u64::from(unsafe { ((at + i) as *const u8).read_volatile() }))
    }
}

/// The words of a map in shared memory.
fn words(agent: Agent, desc: &MapDesc) -> &'static [AtomicU64] {
    let at = (agent.private().shared + desc.data) as *const AtomicU64;
    // SAFETY: the controller has reserved as much there, aligned, until the detach.
    unsafe { core::slice::from_raw_parts(at, desc.data_len() as usize / 8) }
}

/// The stacks of a map.
pub fn stacks(agent: Agent, desc: &MapDesc) -> Stacks<'_> {
    Stacks::new(desc, words(agent, desc))
}

fn table(agent: Agent, desc: &MapDesc) -> Table<'_> {
    Table::shared(desc, agent.live(desc), words(agent, desc))
}

/// The address of an element of an array; `None` = past its end.
fn element(agent: Agent, thread: Thread, desc: &MapDesc, key: Bytes) -> Option<u64> {
    let index = key.word(0);
    if index >= desc.max_entries.into() {
        return None;
    }
    let first = match desc.kind {
        ARRAY => agent.private().shared + desc.data,
        _ => thread.cells() + desc.cells,
    };
    Some(first + index * desc.stride)
}

/// The address of the thread's own value of an entry. If what is there belongs to an earlier use of
/// the entry, it becomes zero.
fn own_value(thread: Thread, desc: &MapDesc, found: Found) -> u64 {
    let generation = (thread.cells() + desc.cells + found.index * desc.stride) as *mut u64;
    // SAFETY: the value and its generation lie in the cells of this thread, which nobody else
    // writes.
    unsafe {
        if generation.read_volatile() != found.generation {
            renew(generation, (desc.stride / 8) as usize, found.generation);
        }
    }
    generation as u64 + 8
}

/// A handler may renew the value, too, and use it then: so a word is only cleared if it is what was
/// there before this looked at the generation.
///
/// # Safety
/// `generation` and the words behind it, `words` in all, are the thread's own.
#[cold]
#[inline(never)]
unsafe fn renew(generation: *mut u64, words: usize, new: u64) {
    for word in 1..words {
        // SAFETY: the caller promises that all `words` words from `generation` on are this thread's
        // own (section "Safety" above).
        unsafe {
            let place = generation.add(word);
            loop {
                let old = place.read_volatile();
                if generation.read_volatile() == new {
                    return;
                }
                if arch::replace(place, old, 0) {
                    break;
                }
            }
        }
    }
    // SAFETY: the caller promises that the word at `generation` is this thread's own (section
    // "Safety" above).
    unsafe { generation.write_volatile(new) }
}

/// # Safety
/// `to` is the address of a value of a map, which has the size of `value`, padded to words.
unsafe fn set(to: u64, value: Bytes) {
    for word in 0..value.len.div_ceil(8) {
        // SAFETY: the caller promises that `to` has room for `value`, padded to whole words
        // (section "Safety" above).
        unsafe { ((to + word * 8) as *mut u64).write_volatile(value.word(word as usize)) }
    }
}

/// 1: the address of the value, or 0.
pub unsafe extern "C" fn lookup_elem(desc: u64, key: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the verifier has proven that `desc` is a map. The sixth argument is the state of this
    // thread.
    let (desc, (agent, thread)) = unsafe { (map(desc), here(state)) };
    // SAFETY: the verifier has proven that a whole key of the map can be read at `key`.
    let key = unsafe { Bytes::new(key, desc.key_size) };
    match desc.kind {
        ARRAY | PERCPU_ARRAY => element(agent, thread, desc, key).unwrap_or(0),
        HASH | LRU_HASH => {
            let table = table(agent, desc);
            let offset = |found| agent.private().shared + desc.data + table.value_offset(&found);
            table.lookup(&key).map_or(0, offset)
        }
        PERCPU_HASH | LRU_PERCPU_HASH => {
            table(agent, desc).lookup(&key).map_or(0, |found| own_value(thread, desc, found))
        }
        _ => 0,
    }
}

/// 2
pub unsafe extern "C" fn update_elem(
    desc: u64,
    key: u64,
    value: u64,
    flags: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    // SAFETY: the verifier has proven that `desc` is a map. The sixth argument is the state of this
    // thread.
    let (desc, (agent, thread)) = unsafe { (map(desc), here(state)) };
    // SAFETY: the verifier has proven that a whole key of the map can be read at `key`, and a whole
    // value at `value`.
    let (key, value) = unsafe { (Bytes::new(key, desc.key_size), Bytes::new(value, desc.value_size)) };
    match desc.kind {
        ARRAY | PERCPU_ARRAY if flags > EXIST => EINVAL,
        ARRAY | PERCPU_ARRAY => match element(agent, thread, desc, key) {
            None => E2BIG,
            Some(_) if flags == NO_EXIST => MapError::Exists.errno() as u64,
            Some(at) => {
                // SAFETY: `element` gives the address of a value of the map, and `value` has its
                // size.
                unsafe { set(at, value) };
                0
            }
        },
        HASH | LRU_HASH => result(table(agent, desc).update(&key, &value, flags).map(|_| ())),
        PERCPU_HASH | LRU_PERCPU_HASH => result(table(agent, desc).update(&key, &value, flags).map(|found| {
            // SAFETY: `own_value` gives the address of a value of the map, and `value` has its
            // size.
            unsafe { set(own_value(thread, desc, found), value) }
        })),
        _ => EINVAL,
    }
}

/// 3
pub unsafe extern "C" fn delete_elem(desc: u64, key: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the verifier has proven that `desc` is a map. The sixth argument is the state of this
    // thread.
    let (desc, (agent, _)) = unsafe { (map(desc), here(state)) };
    // SAFETY: the verifier has proven that a whole key of the map can be read at `key`.
    let key = unsafe { Bytes::new(key, desc.key_size) };
    match desc.kind {
        HASH | LRU_HASH | PERCPU_HASH | LRU_PERCPU_HASH => result(table(agent, desc).delete(&key)),
        STACK_TRACE => stacks(agent, desc).delete(key.word(0)).map_or(ENOENT, |()| 0),
        _ => EINVAL,
    }
}

/// 258
pub unsafe extern "C" fn map_next(desc: u64, cursor: u64, to: u64, len: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the verifier has proven that `desc` is a map. The sixth argument is the state of this
    // thread.
    let (desc, (agent, _)) = unsafe { (map(desc), here(state)) };
    let table = table(agent, desc);
    let (key_words, value_words) = table.sizes();
    if 8 * (key_words + value_words) as u64 > len {
        return 0;
    }
    // SAFETY: the verifier has proven that `to` points to `len` bytes. A key fits in there, which
    // was checked above.
    let last = unsafe { Bytes::new(to, 8 * key_words as u32) };
    let next = table.after(cursor, &last, |found| {
        for word in 0..key_words + value_words {
            let value = match word.checked_sub(key_words) {
                Some(word) => table.value_word(found, word).map_or(0, |word| word.load(Ordering::Relaxed)),
                None => table.key_word(found, word),
            };
            // SAFETY: the verifier has proven that `to` points to `len` bytes. A key and a value
            // fit in there, which was checked above.
            unsafe { ((to + 8 * word as u64) as *mut u64).write_unaligned(value) }
        }
    });
    next.unwrap_or(0)
}

/// 259
pub unsafe extern "C" fn map_len(desc: u64, id: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the verifier has proven that `desc` is a map. The sixth argument is the state of this
    // thread.
    let (desc, (agent, _)) = unsafe { (map(desc), here(state)) };
    if desc.kind != STACK_TRACE {
        return agent.live(desc).count.load(Ordering::Relaxed);
    }
    let mut len = 0;
    // The process is in the upper half.
    let id = id & u64::from(u32::MAX);
    if id < desc.buckets.into() && stacks(agent, desc).read(id, |_| len += 1) { len } else { 0 }
}

fn result(result: Result<(), MapError>) -> u64 {
    match result {
        Ok(()) => 0,
        Err(error) => error.errno() as u64,
    }
}
