//! Room in a shadow stack: arrays, and what is no longer needed in them.

use sidestep_wire::ShadowEntry;
use sidestep_wire::private::SHADOW_FIRST;

use super::{HEAD, Stack, drop_entry, is_alive, is_watched, live, set_len};
use crate::memory::{Agent, Thread};

/// How many newer entries are looked at to prove that an entry's stack slot has been reused.
const WINDOW: u64 = 512;

/// Makes room in a full stack: copies the live entries to another array, twice as long if most are
/// alive. Where there is no memory, that is not tried at each call: a deep recursion would take
/// forever.
#[cold]
#[inline(never)]
pub(super) fn make_room(agent: Agent, thread: Thread) -> bool {
    let stack = Stack::of(thread);
    if stack.base == 0 || stack.is_given_up() {
        return false;
    }
    let pinned = stack.pin();
    let used = stack.len(thread);
    let alive = drop_dead(agent, stack, used);
    let cap = if alive * 4 > stack.cap * 3 { stack.cap * 2 } else { stack.cap };
    let new = array(agent, thread, cap);
    if let Some(new) = new {
        let mut to = 0;
        for index in 0..used {
            if let Some((_, entry)) = live(stack, index) {
                to += u64::from(new.entry(to).write(&entry));
            }
        }
        if thread.shadow_cap() < cap {
            thread.set_shadow_cap(cap);
        }
        // Fails if a handler was faster; ours then stays unused until the detach.
        if thread.replace_shadow(stack.base, new.base) {
            let _ = set_len(thread, used, to);
        }
    }
    if new.is_none() {
        stack.give_up();
    }
    if pinned {
        stack.unpin();
        if thread.shadow() != stack.base && stack.base != thread.first_array() + HEAD {
            thread.set_shadow_spare(stack.base);
        }
    }
    new.is_some()
}

/// The first array of a thread, in `room` bytes behind its state.
pub fn first(thread: Thread, room: u64) {
    let cap = (room.saturating_sub(HEAD) / size_of::<ShadowEntry>() as u64).min(SHADOW_FIRST as u64);
    let first = Stack::new(thread.first_array(), cap);
    thread.set_shadow_cap(cap);
    thread.set_shadow(first.base);
}

/// Drops dead entries; returns how many are left.
fn drop_dead(agent: Agent, stack: Stack, used: u64) -> u64 {
    let mut alive = 0;
    for index in (0..used).rev() {
        let Some((at, entry)) = live(stack, index) else { continue };
        if is_reused(agent, stack, index, used, &entry) || !is_alive(agent, &entry) {
            drop_entry(agent, at, &entry);
        } else {
            alive += 1;
        }
    }
    alive
}

/// Has a newer entry found a real return address in the same stack slot?
fn is_reused(agent: Agent, stack: Stack, index: u64, used: u64, entry: &ShadowEntry) -> bool {
    let end = used.min(index + 1 + WINDOW);
    let ends = |newer: ShadowEntry| {
        let kept = entry.probe & ShadowEntry::KEPT != 0;
        // Several probes may remember one call: all of them have found the same return address.
        let same_call = kept && newer.ret == entry.ret;
        kept && newer.probe & !ShadowEntry::JUMPED == entry.probe & !ShadowEntry::JUMPED
            || !same_call && !is_watched(agent, newer.ret)
    };
    (index + 1..end).any(|newer| stack.entry(newer).read(entry.slot).is_some_and(ends))
}

/// An empty array: the one that was in use before, or a new one.
fn array(agent: Agent, thread: Thread, cap: u64) -> Option<Stack> {
    if let Some(spare) = thread.take_spare().map(Stack::at) {
        if spare.cap == cap {
            (0..cap).for_each(|index| spare.entry(index).clear());
            return Some(spare);
        }
    }
    Some(Stack::new(agent.map(HEAD + cap * size_of::<ShadowEntry>() as u64)?, cap))
}
