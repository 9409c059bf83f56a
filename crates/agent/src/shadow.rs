//! Shadow stacks: the real return addresses of the frames whose return address was replaced.
//!
//! A stack belongs to one thread. Its own signal handlers may run the same code in the middle of
//! any line here, push and pop, make room, or leave by `siglongjmp` and never come back; threads on
//! other processors may look for the entry of a coroutine that moved to them. Therefore:
//!
//! - `shadow_len` and `slot` change by single instructions only, and an entry counts from the store
//!   of its `slot` on;
//! - entries at `shadow_len` and above have `slot` 0;
//! - dead entries may lie anywhere ([`ShadowEntry`] says when one is dead); they are dropped when
//!   the stack is full;
//! - entries never move within an array: to make room, the live ones are copied to another array,
//!   which then becomes the stack by one instruction, or not at all if a handler has made room
//!   meanwhile;
//! - a push looks, after all is done, whether its entry is there, whole: a handler may have made
//!   room meanwhile and taken the unfinished entry for a dead one;
//! - arrays are never unmapped before the detach, so a search through an old one is harmless; it is
//!   repeated.
//!
//! At the end of a handler the live entries are those from before it, in the same order, so none of
//! them lies above where the interrupted code has seen it.

use core::ptr::{addr_of, addr_of_mut};
use core::sync::atomic::Ordering;

use sidestep_wire::{ShadowEntry, ShadowHead};

use crate::arch;
use crate::memory::{Agent, Entry, Thread};
use crate::{return_address, safe_read};

mod chain;
mod drops;
mod exceptions;
pub mod goroutines;
mod interrupted;
pub mod kept;
mod room;
pub use chain::{is_foreign, is_watched, past_foreign, real_before};
pub use drops::returned_from;
pub use exceptions::{caught, unwind};
pub use interrupted::is_interrupted;
pub use room::first;
use room::make_room;

/// How often an entry is searched before it is given up.
const SEARCHES: usize = 4;
/// Bytes of an array's head.
const HEAD: u64 = size_of::<ShadowHead>() as u64;

/// An array of entries, behind its head.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stack {
    base: u64,
    cap: u64,
}

impl Stack {
    /// The array in use at the moment.
    #[inline(always)]
    fn of(thread: Thread) -> Stack {
        Stack::at(thread.shadow())
    }

    #[inline(always)]
    fn at(base: u64) -> Stack {
        let mut stack = Stack { base, cap: 0 };
        if base != 0 {
            // SAFETY: the word lies in the head of an array, and does not change while the array is
            // in use.
            stack.cap = unsafe { addr_of!((*stack.head()).cap).read_volatile() };
        }
        stack
    }

    /// Makes an empty array of zeroed memory.
    fn new(memory: u64, cap: u64) -> Stack {
        let stack = Stack { base: memory + HEAD, cap };
        // SAFETY: `memory` is the start of memory for the head and `cap` entries.
        unsafe { addr_of_mut!((*stack.head()).cap).write_volatile(cap) };
        stack
    }

    #[inline(always)]
    fn head(self) -> *mut ShadowHead {
        (self.base - HEAD) as *mut ShadowHead
    }

    /// From here on nobody but the caller makes it the spare array. False: somebody else is copying
    /// from it already.
    fn pin(self) -> bool {
        // SAFETY: the word lies in the head of the array, which only this thread uses.
        unsafe { arch::replace(addr_of_mut!((*self.head()).pinned), 0, 1) }
    }

    fn unpin(self) {
        // SAFETY: the word lies in the head of the array, which only this thread uses.
        unsafe { addr_of_mut!((*self.head()).pinned).write_volatile(0) }
    }

    /// Lets as many calls of `make_room` fail as it has entries, all of which each of them would
    /// look at.
    fn give_up(self) {
        // SAFETY: the word lies in the head of the array, which only this thread uses.
        unsafe { addr_of_mut!((*self.head()).given_up).write_volatile(self.cap) };
    }

    /// Is this one of them?
    fn is_given_up(self) -> bool {
        // SAFETY: the word lies in the head of the array, which only this thread uses. What a
        // handler counts in between is of no matter.
        unsafe {
            let left = addr_of_mut!((*self.head()).given_up);
            let calls = left.read_volatile();
            left.write_volatile(calls.saturating_sub(1));
            calls != 0
        }
    }

    #[inline(always)]
    fn entry(self, index: u64) -> Entry {
        let at = self.base as *mut ShadowEntry;
        // SAFETY: callers pass an index below `cap`.
        unsafe { Entry::new(at.add(index as usize)) }
    }

    /// Entries in use. A branch that is never taken, not a minimum: what follows need not wait for
    /// the capacity.
    #[inline(always)]
    fn len(self, thread: Thread) -> u64 {
        let len = len(thread);
        if len > self.cap { cut(self.cap) } else { len }
    }
}

#[inline(always)]
fn len(thread: Thread) -> u64 {
    // SAFETY: the field lies in the thread's state, which stays mapped.
    unsafe { thread.shadow_len().read_volatile() }
}

#[cold]
#[inline(never)]
fn cut(cap: u64) -> u64 {
    cap
}

#[inline(always)]
fn set_len(thread: Thread, old: u64, new: u64) -> bool {
    // SAFETY: the field lies in the thread's state, which stays mapped. Only this thread writes it.
    unsafe { arch::replace(thread.shadow_len(), old, new) }
}

/// Replaces the return address at `slot` by the trampoline and remembers the real one. Does nothing
/// but count when there is no memory for it, or when the word there is not behind a call. `time` is
/// when, in nanoseconds: all threads' entries of one slot are told apart by it.
///
/// True if it was replaced by this hit. A frame that was jumped to from a watched one has been
/// called by the trampoline already.
///
/// # Safety
/// `slot` is the stack slot of a return address, at the entry of a function on this thread: it is
/// readable and writable.
#[inline(always)]
pub unsafe fn push(agent: Agent, thread: Thread, slot: u64, probe: u32, cookie: u64, time: u64) -> bool {
    let trampoline = agent.private().trampoline;
    // SAFETY: the caller promises that `slot` is the stack slot of a return address, so it is
    // readable (section "Safety" above).
    let ret = unsafe { arch::read_word(slot) };
    if ret != trampoline && !return_address::is_plausible(agent, thread, ret) || return_address::stays(agent) {
        agent.count_dropped(probe);
        return false;
    }
    let stack = Stack::of(thread);
    let used = stack.len(thread);
    if ret != trampoline && used != 0 && stack.entry(used - 1).stack_slot() == slot {
        drop_reused(agent, thread, slot, ret);
    }
    let entry = ShadowEntry { slot, ret, time, probe: u64::from(probe), cookie };
    loop {
        let Some((stack, index)) = reserve(agent, thread) else {
            // SAFETY: the caller promises that `slot` is writable (section "Safety" above). It gets
            // back what it held, if an earlier round has replaced that.
            unsafe { arch::write_word(slot, ret) };
            agent.count_dropped(probe);
            return false;
        };
        if !stack.entry(index).write(&entry) {
            continue; // a handler left something there
        }
        // SAFETY: the caller promises that `slot` is writable (section "Safety" above).
        unsafe { arch::write_word(slot, trampoline) };
        if return_address::stays(agent) {
            // Since the look above: the controller has put back all that was there.
            // SAFETY: the caller promises that `slot` is writable (section "Safety" above).
            unsafe { arch::write_word(slot, ret) };
            stack.entry(index).kill(slot);
            trim(thread);
            agent.count_dropped(probe);
            return false;
        }
        let in_use = thread.shadow() == stack.base && len(thread) > index;
        if (in_use && stack.entry(index).read(slot) == Some(entry)) || is_there(thread, &entry) {
            return ret != trampoline || is_second(agent, stack, index, &entry);
        }
        stack.entry(index).kill(slot);
    }
}

/// Is it the entry of another probe at the same site, and so perhaps of the same hit?
#[cold]
#[inline(never)]
fn is_second(agent: Agent, stack: Stack, index: u64, entry: &ShadowEntry) -> bool {
    let site = |entry: &ShadowEntry| agent.probe(entry.probe as u32).map(|desc| desc.site);
    let below = index.checked_sub(1).and_then(|below| stack.entry(below).read(entry.slot));
    below.is_some_and(|below| site(&below) == site(entry))
}

/// Top entries of the same stack slot: a return address was just stored there, so they are dead,
/// unless it is another session's trampoline.
#[cold]
#[inline(never)]
fn drop_reused(agent: Agent, thread: Thread, slot: u64, ret: u64) {
    if is_foreign(agent, ret) {
        return;
    }
    loop {
        let stack = Stack::of(thread);
        let used = stack.len(thread);
        if used == 0 || stack.entry(used - 1).stack_slot() != slot {
            return;
        }
        // A call that ends at an exit may have jumped to the function that is entered now.
        let is_same_call = |entry: ShadowEntry| entry.probe & ShadowEntry::KEPT != 0 && entry.ret == ret;
        if stack.entry(used - 1).read(slot).is_some_and(is_same_call) {
            return;
        }
        let top = stack.entry(used - 1);
        match top.read(slot) {
            Some(entry) => drop_entry(agent, top, &entry),
            None => _ = top.kill(slot),
        }
        trim(thread);
    }
}

#[inline(always)]
fn reserve(agent: Agent, thread: Thread) -> Option<(Stack, u64)> {
    loop {
        let stack = Stack::of(thread);
        let used = len(thread);
        if used < stack.cap {
            if set_len(thread, used, used + 1) {
                return Some((stack, used));
            }
        } else if !make_room(agent, thread) {
            return None;
        }
    }
}

#[cold]
#[inline(never)]
fn is_there(thread: Thread, entry: &ShadowEntry) -> bool {
    find(thread, entry.slot).is_some_and(|found| found.read(entry.slot) == Some(*entry))
}

/// The newest entry of a stack slot.
#[inline(never)]
fn find(thread: Thread, slot: u64) -> Option<Entry> {
    loop {
        let stack = Stack::of(thread);
        let mut index = stack.len(thread);
        while index != 0 {
            index -= 1;
            let at = stack.entry(index);
            if at.stack_slot() == slot && at.read(slot).is_some_and(|entry| entry.probe & ShadowEntry::KEPT == 0) {
                return Some(at);
            }
        }
        if thread.shadow() == stack.base {
            return None;
        }
    }
}

/// Gives back dead entries at the top.
#[inline(always)]
fn trim(thread: Thread) {
    loop {
        let stack = Stack::of(thread);
        let used = stack.len(thread);
        if used == 0 || stack.entry(used - 1).stack_slot() != 0 {
            return;
        }
        let _ = set_len(thread, used, used - 1);
    }
}

/// Gives back the last of `used` entries, which is dead, and those below it that are.
#[inline(always)]
fn drop_top(thread: Thread, stack: Stack, used: u64) {
    if !set_len(thread, used, used - 1) || (used > 1 && stack.entry(used - 2).stack_slot() == 0) {
        trim_below(thread);
    }
}

#[cold]
#[inline(never)]
fn trim_below(thread: Thread) {
    trim(thread);
}

/// Takes the newest entry of a stack slot out of whatever shadow stack it is in.
#[inline(always)]
pub fn take(agent: Agent, thread: Option<Thread>, slot: u64) -> Option<ShadowEntry> {
    if let Some(thread) = thread {
        let stack = Stack::of(thread);
        let used = stack.len(thread);
        if used != 0 && agent.table().migrated().load(Ordering::Relaxed) == 0 {
            let top = stack.entry(used - 1);
            if let Some(entry) = top.read(slot).filter(|entry| entry.probe & ShadowEntry::KEPT == 0) {
                if top.kill(slot) {
                    if thread.shadow() == stack.base {
                        drop_top(thread, stack, used);
                    } else {
                        drop_copy(thread, &entry);
                    }
                    return Some(entry);
                }
            }
        }
    }
    take_from_anywhere(agent, thread, slot)
}

#[cold]
#[inline(never)]
fn take_from_anywhere(agent: Agent, thread: Option<Thread>, slot: u64) -> Option<ShadowEntry> {
    // A miss is repeated: another thread may have made room during the search.
    for _ in 0..SEARCHES {
        let Some((at, own)) = search(agent, thread, slot) else { continue };
        let Some(entry) = at.read(slot) else { continue };
        match thread {
            Some(thread) if own => {
                at.kill(slot);
                drop_copy(thread, &entry);
                drop_dead_top(agent, thread);
            }
            _ => at.kill_foreign(slot),
        }
        return Some(entry);
    }
    None
}

/// Where the frame of a stack slot that holds the trampoline's address returns to in the end: past
/// all probes that share the frame.
#[cold]
#[inline(never)]
pub fn real_return(agent: Agent, thread: Option<Thread>, slot: u64) -> Option<u64> {
    let own = thread.and_then(|thread| find_real(agent, thread, slot));
    if own.is_some() && agent.table().migrated().load(Ordering::Relaxed) == 0 {
        return own.map(|entry| entry.ret);
    }
    let others = (0..agent.threads()).filter_map(|i| agent.thread(i));
    let newest = others.filter_map(|other| find_real(agent, other, slot)).max_by_key(|entry| entry.time);
    newest.map(|entry| entry.ret)
}

/// The newest entry of a stack slot that has a real return address.
fn find_real(agent: Agent, thread: Thread, slot: u64) -> Option<ShadowEntry> {
    let stack = Stack::of(thread);
    let entries = (0..stack.len(thread)).rev().filter_map(|index| stack.entry(index).read(slot));
    entries.into_iter().find(|entry| entry.ret != agent.private().trampoline)
}

/// Drops the copy of an entry that a handler has made in another array meanwhile.
fn drop_copy(thread: Thread, entry: &ShadowEntry) {
    let stack = Stack::of(thread);
    let mut all = (0..stack.len(thread)).rev().map(|index| stack.entry(index));
    if let Some(copy) = all.find(|at| at.read(entry.slot) == Some(*entry)) {
        copy.kill(entry.slot);
    }
}

/// The newest entry of a stack slot, and whether it is in this thread's own shadow stack.
fn search(agent: Agent, thread: Option<Thread>, slot: u64) -> Option<(Entry, bool)> {
    let migrated = agent.table().migrated();
    let own = thread.and_then(|thread| find(thread, slot));
    if own.is_none() || migrated.load(Ordering::Relaxed) != 0 {
        if let Some((other, entry)) = search_others(agent, thread, slot) {
            // The newest wins: an older one of the same address is what a longjmp left behind.
            if own.is_none_or(|own| own.time() < entry.time()) {
                // One thread with two states (its `fs` base changed: TLS was set up) is no
                // migration.
                if thread.is_none_or(|thread| thread.tid() != other.tid()) {
                    migrated.store(1, Ordering::Relaxed);
                }
                return Some((entry, false));
            }
        }
    }
    own.map(|entry| (entry, true))
}

fn search_others(agent: Agent, not: Option<Thread>, slot: u64) -> Option<(Thread, Entry)> {
    let others = (0..agent.threads()).filter_map(|i| agent.thread(i)).filter(|other| not != Some(*other));
    others.filter_map(|other| Some((other, find(other, slot)?))).max_by_key(|(_, entry)| entry.time())
}

/// Does the stack slot of an entry still hold what it must hold if the frame is alive? Where the
/// return address is in a register there is no telling.
fn is_alive(agent: Agent, entry: &ShadowEntry) -> bool {
    if arch::LINKS {
        return true;
    }
    match safe_read::word(agent, entry.slot) {
        Some(word) => {
            let restored = entry.probe & (ShadowEntry::RESTORED | ShadowEntry::KEPT) != 0;
            let holds = is_watched(agent, word) || (restored && word == entry.ret);
            holds || is_interrupted(agent, entry.slot)
        }
        None => false,
    }
}

/// After a return that was not the top entry's: what lies above may be left over from a longjmp.
fn drop_dead_top(agent: Agent, thread: Thread) {
    loop {
        trim(thread);
        let stack = Stack::of(thread);
        let used = stack.len(thread);
        if used == 0 {
            break;
        }
        match live(stack, used - 1) {
            Some((_, entry)) if is_alive(agent, &entry) => break,
            Some((top, entry)) => drop_entry(agent, top, &entry),
            None => {}
        }
    }
}

/// Drops the entry of a call that has ended in another way. Exits count their calls themselves.
fn drop_entry(agent: Agent, at: Entry, entry: &ShadowEntry) {
    if at.kill(entry.slot) && entry.probe & ShadowEntry::KEPT == 0 {
        agent.count_dropped(entry.probe as u32);
    }
}

/// The entry at an index, unless it is dead.
fn live(stack: Stack, index: u64) -> Option<(Entry, ShadowEntry)> {
    let at = stack.entry(index);
    match at.stack_slot() {
        0 => None,
        slot => Some((at, at.read(slot)?)),
    }
}
