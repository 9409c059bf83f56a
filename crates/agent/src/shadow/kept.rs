//! Calls that end at an exit of their function: they are remembered like replaced return addresses,
//! but the stack stays as it is.
//!
//! Such an entry ([`ShadowEntry::KEPT`]) belongs to one probe: several probes at one function have
//! one entry each, with the same slot.

use core::sync::atomic::Ordering;

use sidestep_wire::ShadowEntry;

use super::{Entry, SEARCHES, Stack, drop_copy, drop_dead_top, drop_top, len, reserve, trim};
use crate::arch;
use crate::memory::{Agent, Thread};

/// Remembers a call whose return address is at `slot`. False: there is no memory for it. Calls that
/// are not seen to end are the difference of what entries and exits have counted.
///
/// # Safety
/// `slot` is the stack slot of a return address, at the entry of a function on this thread.
#[inline(always)]
pub unsafe fn remember(agent: Agent, thread: Thread, slot: u64, probe: u32, cookie: u64) -> bool {
    // SAFETY: this function's contract.
    let ret = unsafe { arch::read_word(slot) };
    let entry = ShadowEntry { slot, ret, time: time(agent), probe: key(probe), cookie };
    let stack = Stack::of(thread);
    let used = stack.len(thread);
    if used != 0 && stack.entry(used - 1).read(slot).is_some_and(|top| top.probe == entry.probe) {
        drop_former(thread, &entry);
    }
    loop {
        let Some((stack, index)) = reserve(agent, thread) else { return false };
        if !stack.entry(index).write(&entry) {
            continue; // a handler left something there
        }
        let in_use = thread.shadow() == stack.base && len(thread) > index;
        if (in_use && stack.entry(index).read(slot) == Some(entry)) || is_there(thread, &entry) {
            return true;
        }
        stack.entry(index).kill(slot);
    }
}

/// Takes the newest call of a probe with this slot out of whatever shadow stack it is in. Gives
/// what the program of the entry left.
#[inline(always)]
pub fn end(agent: Agent, thread: Thread, slot: u64, probe: u32) -> Option<u64> {
    let stack = Stack::of(thread);
    let used = stack.len(thread);
    if used != 0 && agent.table().migrated().load(Ordering::Relaxed) == 0 {
        let top = stack.entry(used - 1);
        if let Some(entry) = top.read(slot).filter(|entry| entry.probe == key(probe)) {
            if top.kill(slot) {
                if thread.shadow() == stack.base {
                    drop_top(thread, stack, used);
                } else {
                    drop_copy(thread, &entry);
                }
                return Some(entry.cookie);
            }
        }
    }
    end_anywhere(agent, thread, slot, probe)
}

#[cold]
#[inline(never)]
fn end_anywhere(agent: Agent, thread: Thread, slot: u64, probe: u32) -> Option<u64> {
    // A miss is repeated: another thread may have made room during the search.
    for _ in 0..SEARCHES {
        let own = find(thread, slot, probe);
        let (at, entry, is_own) = match own {
            Some((at, entry)) if agent.table().migrated().load(Ordering::Relaxed) == 0 => (at, entry, true),
            _ => match (own, find_elsewhere(agent, thread, slot, probe)) {
                (own, Some((at, entry))) if own.is_none_or(|(_, own)| own.time < entry.time) => (at, entry, false),
                (Some((at, entry)), _) => (at, entry, true),
                _ => return None,
            },
        };
        if !is_own {
            agent.table().migrated().store(1, Ordering::Relaxed);
            at.kill_foreign(slot);
            return Some(entry.cookie);
        }
        if at.kill(slot) {
            drop_copy(thread, &entry);
            drop_dead_top(agent, thread);
            return Some(entry.cookie);
        }
    }
    None
}

/// Does any thread remember a call of a probe with this slot?
#[cold]
pub fn is_remembered(agent: Agent, slot: u64, probe: u32) -> bool {
    (0..agent.threads()).filter_map(|i| agent.thread(i)).any(|thread| find(thread, slot, probe).is_some())
}

fn find(thread: Thread, slot: u64, probe: u32) -> Option<(Entry, ShadowEntry)> {
    loop {
        let stack = Stack::of(thread);
        let newest_first = (0..stack.len(thread)).rev().map(|index| stack.entry(index));
        for at in newest_first {
            if let Some(entry) = at.read(slot).filter(|entry| entry.probe == key(probe)) {
                return Some((at, entry));
            }
        }
        if thread.shadow() == stack.base {
            return None;
        }
    }
}

fn find_elsewhere(agent: Agent, not: Thread, slot: u64, probe: u32) -> Option<(Entry, ShadowEntry)> {
    let others = (0..agent.threads()).filter_map(|i| agent.thread(i)).filter(|other| *other != not);
    others.filter_map(|other| find(other, slot, probe)).max_by_key(|(_, entry)| entry.time)
}

/// The function was entered anew with the slot of a call that is still at the top: the former one
/// has ended in another way.
#[cold]
#[inline(never)]
fn drop_former(thread: Thread, new: &ShadowEntry) {
    let stack = Stack::of(thread);
    let Some(index) = stack.len(thread).checked_sub(1) else { return };
    let top = stack.entry(index);
    if top.read(new.slot).is_some_and(|entry| entry.probe == new.probe) {
        top.kill(new.slot);
    }
    trim(thread);
}

#[cold]
#[inline(never)]
fn is_there(thread: Thread, entry: &ShadowEntry) -> bool {
    find(thread, entry.slot, entry.probe as u32).is_some_and(|(_, found)| found == *entry)
}

fn key(probe: u32) -> u64 {
    u64::from(probe) | ShadowEntry::KEPT
}

/// Entries of one slot in several shadow stacks are told apart by their time: there are none before
/// a coroutine has moved.
#[inline(always)]
fn time(agent: Agent) -> u64 {
    if agent.table().migrated().load(Ordering::Relaxed) == 0 { 0 } else { agent.monotonic() }
}
