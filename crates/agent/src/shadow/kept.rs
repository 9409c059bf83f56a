//! Calls that end at an exit of their function: they are remembered like replaced return addresses,
//! but the stack stays as it is.
//!
//! The thread's table of calls has one entry for each stack slot of a return address, as far as
//! slots do not collide ([`sidestep_wire::Call`]): no chain of one call to the next, and nothing to
//! clear after a `longjmp`, as the next call at this slot takes the entry. Where the entry is that
//! of another call, and everywhere as soon as calls have moved from one thread to another, the
//! shadow stack has them ([`ShadowEntry::KEPT`]).
//!
//! A call belongs to one probe: several probes at one function have one each, with the same slot.

use core::sync::atomic::Ordering;

use sidestep_wire::{Call as Fields, ShadowEntry};

use super::{Entry, SEARCHES, Stack, drop_copy, drop_dead_top, drop_top, is_alive, len, reserve, trim};
use crate::memory::{Agent, Call, Thread};

/// Remembers a call that will return to `ret`. `slot` is the stack pointer at its entry, where the
/// return address is, unless that is in a register. False: there is no memory for it. Calls that
/// are not seen to end are the difference of what entries and exits have counted.
#[inline(always)]
pub fn remember(agent: Agent, thread: Thread, slot: u64, ret: u64, probe: u32, cookie: u64) -> bool {
    let moves = have_moved(agent);
    // Calls of one slot are told apart by their time if they may be of different threads.
    let time = if moves { agent.monotonic() } else { 0 };
    let entry = ShadowEntry { slot, ret, time, probe: key(probe), cookie };
    let call = thread.call(slot);
    if !moves && (call.replace(0, &entry) || take_over(agent, call, &entry)) {
        return true;
    }
    push(agent, thread, &entry)
}

/// The entry is in use: by an earlier call of this probe at this slot, which has ended in another
/// way, or by a call that is over. Else false.
#[cold]
#[inline(never)]
fn take_over(agent: Agent, call: Call, new: &ShadowEntry) -> bool {
    let slot = call.slot();
    let Some(found) = (slot != Fields::BUSY).then(|| call.read(slot)).flatten() else { return false };
    let is_former = slot == new.slot && found.probe == new.probe;
    (slot == 0 || is_former || !is_alive(agent, &found)) && call.replace(slot, new)
}

/// Remembers the call in the shadow stack.
#[cold]
#[inline(never)]
fn push(agent: Agent, thread: Thread, entry: &ShadowEntry) -> bool {
    drop_former(thread, entry);
    loop {
        let Some((stack, index)) = reserve(agent, thread) else { return false };
        if !stack.entry(index).write(entry) {
            continue; // a handler left something there
        }
        let in_use = thread.shadow() == stack.base && len(thread) > index;
        if (in_use && stack.entry(index).read(entry.slot) == Some(*entry)) || is_there(thread, entry) {
            return true;
        }
        stack.entry(index).kill(entry.slot);
    }
}

/// Takes the newest call of a probe with this slot from whatever thread remembers it. Gives what
/// the program of the entry left.
#[inline(always)]
pub fn end(agent: Agent, thread: Thread, slot: u64, probe: u32) -> Option<u64> {
    if !have_moved(agent) {
        let call = thread.call(slot);
        if let Some(entry) = call.read(slot).filter(|entry| entry.probe == key(probe)) {
            if call.clear(slot) {
                return Some(entry.cookie);
            }
        }
        let stack = Stack::of(thread);
        let used = stack.len(thread);
        if used != 0 {
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
            Some((at, entry)) if !have_moved(agent) => (at, entry, true),
            _ => match (own, find_elsewhere(agent, thread, slot, probe)) {
                (own, Some((at, entry))) if own.is_none_or(|(_, own)| own.time < entry.time) => (at, entry, false),
                (Some((at, entry)), _) => (at, entry, true),
                _ => return None,
            },
        };
        if !is_own {
            agent.table().migrated().store(1, Ordering::Relaxed);
            at.forget_foreign(slot);
            return Some(entry.cookie);
        }
        if at.forget(slot) {
            if let At::Stack(_) = at {
                drop_copy(thread, &entry);
                drop_dead_top(agent, thread);
            }
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

/// Where a call is remembered.
#[derive(Clone, Copy)]
enum At {
    Table(Call),
    Stack(Entry),
}

impl At {
    fn forget(self, slot: u64) -> bool {
        match self {
            At::Table(call) => call.clear(slot),
            At::Stack(entry) => entry.kill(slot),
        }
    }

    fn forget_foreign(self, slot: u64) {
        match self {
            At::Table(call) => call.clear_foreign(slot),
            At::Stack(entry) => entry.kill_foreign(slot),
        }
    }
}

/// The newest call that a thread remembers. Since calls have moved, no new ones are in the table.
fn find(thread: Thread, slot: u64, probe: u32) -> Option<(At, ShadowEntry)> {
    let is_wanted = |entry: &ShadowEntry| entry.probe == key(probe);
    let call = thread.call(slot);
    let tabled = call.read(slot).filter(is_wanted).map(|entry| (At::Table(call), entry));
    loop {
        let stack = Stack::of(thread);
        let newest_first = (0..stack.len(thread)).rev().map(|index| stack.entry(index));
        for at in newest_first {
            if let Some(entry) = at.read(slot).filter(is_wanted) {
                // Of two calls without a time, the one in the table is the newer one: as long as it
                // was alive, none was pushed.
                if tabled.is_some() && entry.time == 0 {
                    return tabled;
                }
                return Some((At::Stack(at), entry));
            }
        }
        if thread.shadow() == stack.base {
            return tabled;
        }
    }
}

fn find_elsewhere(agent: Agent, not: Thread, slot: u64, probe: u32) -> Option<(At, ShadowEntry)> {
    let others = (0..agent.threads()).filter_map(|i| agent.thread(i)).filter(|other| *other != not);
    others.filter_map(|other| find(other, slot, probe)).max_by_key(|(_, entry)| entry.time)
}

/// The function was entered anew with the slot of a call that is still at the top: the former one
/// has ended in another way.
fn drop_former(thread: Thread, new: &ShadowEntry) {
    let stack = Stack::of(thread);
    let Some(index) = stack.len(thread).checked_sub(1) else { return };
    let top = stack.entry(index);
    if top.read(new.slot).is_some_and(|entry| entry.probe == new.probe) {
        top.kill(new.slot);
        trim(thread);
    }
}

#[cold]
#[inline(never)]
fn is_there(thread: Thread, entry: &ShadowEntry) -> bool {
    find(thread, entry.slot, entry.probe as u32).is_some_and(|(_, found)| found == *entry)
}

fn key(probe: u32) -> u64 {
    u64::from(probe) | ShadowEntry::KEPT
}

/// Have calls moved from one thread to another?
#[inline(always)]
fn have_moved(agent: Agent) -> bool {
    agent.table().migrated().load(Ordering::Relaxed) != 0
}
