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

use sidestep_wire::{Call as Fields, ProbeDesc, ShadowEntry};

use super::{Entry, SEARCHES, Stack, drop_copy, drop_dead_top, drop_top, is_alive, is_watched, len, reserve, trim};
use crate::arch;
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
    let is_former = slot == new.slot && found.number() == new.number();
    (slot == 0 || is_former || !is_alive(agent, &found)) && call.replace(slot, new)
}

/// Remembers the call in the shadow stack.
#[cold]
#[inline(never)]
fn push(agent: Agent, thread: Thread, entry: &ShadowEntry) -> bool {
    drop_former(agent, thread, entry);
    // Before the entry is there: the number may be too large, never too small.
    add(agent, entry.number(), ProbeDesc::STACKED);
    loop {
        let Some((stack, index)) = reserve(agent, thread) else {
            forget(agent, entry);
            return false;
        };
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

/// An exit that a thread has come to.
#[derive(Clone, Copy)]
pub struct Exit {
    /// Where the return address is: the stack pointer.
    pub slot: u64,
    /// The return address.
    pub ret: u64,
    /// [`sidestep_wire::ProbeDesc::pair`], less one.
    pub pair: u32,
    /// [`sidestep_wire::ProbeDesc::SHARED`].
    pub is_shared: bool,
}

impl Exit {
    /// Is it in another function than that of the probe? A call comes there by a jump.
    #[inline(always)]
    fn is_foreign(&self) -> bool {
        self.pair & ShadowEntry::JUMPED as u32 != 0
    }

    #[inline(always)]
    fn probe(&self) -> u32 {
        self.pair & !(ShadowEntry::JUMPED as u32)
    }

    /// The calls that can end here, whatever they return to.
    #[inline(always)]
    fn calls(&self) -> Wanted {
        Wanted { key: key(self.probe()), jumped: self.is_foreign(), ret: None }
    }

    /// Does a call that has this slot end here? One that an exception or `longjmp` has left may
    /// have it, too, if somebody else has called the function of this exit.
    #[inline(always)]
    fn ends(&self, agent: Agent, entry: &ShadowEntry) -> bool {
        self.calls().has(entry) && (!self.is_shared || entry.ret == self.ret || is_replaced(agent, entry.ret, self.ret))
    }
}

/// One of two return addresses of one call was replaced, and may stand for the other.
#[cold]
#[inline(never)]
fn is_replaced(agent: Agent, first: u64, second: u64) -> bool {
    !arch::LINKS && (is_watched(agent, first) || is_watched(agent, second))
}

/// Takes the newest call of a probe that ends at this exit from whatever thread remembers it. Gives
/// what the program of the entry left.
#[inline(always)]
pub fn end(agent: Agent, thread: Thread, exit: &Exit) -> Option<u64> {
    let slot = exit.slot;
    if !have_moved(agent) {
        let call = thread.call(slot);
        if let Some(entry) = call.read(slot).filter(|entry| exit.ends(agent, entry)) {
            if call.clear(slot) {
                return Some(entry.cookie);
            }
        }
        let stack = Stack::of(thread);
        let used = stack.len(thread);
        if used != 0 {
            let top = stack.entry(used - 1);
            if let Some(entry) = top.read(slot).filter(|entry| exit.ends(agent, entry)) {
                if top.kill(slot) {
                    if thread.shadow() == stack.base {
                        drop_top(thread, stack, used);
                    } else {
                        drop_copy(thread, &entry);
                    }
                    forget(agent, &entry);
                    return Some(entry.cookie);
                }
            }
        }
    }
    end_anywhere(agent, thread, exit)
}

#[cold]
#[inline(never)]
fn end_anywhere(agent: Agent, thread: Thread, exit: &Exit) -> Option<u64> {
    let slot = exit.slot;
    // A miss is repeated: another thread may have made room during the search.
    for _ in 0..SEARCHES {
        let (at, is_own) = find_ending(agent, thread, exit)?;
        let Some(entry) = at.read(slot) else { continue };
        if !exit.ends(agent, &entry) {
            // A call that was left has this slot, unless another one has taken the entry meanwhile.
            if exit.calls().has(&entry) {
                return None;
            }
            continue;
        }
        if is_own && !at.forget(slot) {
            continue;
        }
        if !is_own {
            agent.table().migrated().store(1, Ordering::Relaxed);
            at.forget_foreign(slot);
        }
        if let At::Stack(_) = at {
            if is_own {
                drop_copy(thread, &entry);
                drop_dead_top(agent, thread);
            }
            forget(agent, &entry);
        }
        return Some(entry.cookie);
    }
    None
}

/// Where the newest call is that ends at an exit, and whether that is this thread's own memory.
#[inline(never)]
fn find_ending(agent: Agent, thread: Thread, exit: &Exit) -> Option<(At, bool)> {
    // Functions that others jump to are mostly called. These calls end here, too, and must not look
    // at all that shadow stacks have.
    let least = if exit.is_foreign() { ProbeDesc::JUMPED } else { ProbeDesc::STACKED };
    let stacks = agent.stacked(exit.probe()).is_none_or(|n| n.load(Ordering::Acquire) >= least);
    // The search itself does not look for replaced return addresses: that takes too much stack.
    let mut wanted = exit.calls();
    wanted.ret = exit.is_shared.then_some(exit.ret);
    let found = find_anywhere(agent, thread, exit.slot, &wanted, stacks);
    if found.is_some() || !exit.is_shared || arch::LINKS {
        return found;
    }
    wanted.ret = None;
    find_anywhere(agent, thread, exit.slot, &wanted, stacks)
}

/// A call of a probe leaves the function by a jump to another one, where it goes on: from now on it
/// ends at exits of that one ([`Exit::is_foreign`]).
pub fn jumps(agent: Agent, thread: Thread, slot: u64, probe: u32) {
    let wanted = Wanted::of(probe);
    // Once more to see that it was done: a signal handler may have copied the entry meanwhile.
    for _ in 0..=SEARCHES {
        let call = thread.call(slot);
        let is_tabled = !have_moved(agent) && call.read(slot).is_some_and(|entry| wanted.has(&entry));
        let found =
            if is_tabled { Some((At::Table(call), true)) } else { find_anywhere(agent, thread, slot, &wanted, true) };
        let Some((at, is_own)) = found else { return };
        let Some(entry) = at.read(slot).filter(|entry| wanted.has(entry)) else { continue };
        if entry.probe & ShadowEntry::JUMPED != 0 {
            return;
        }
        if !is_own {
            agent.table().migrated().store(1, Ordering::Relaxed);
        }
        match at {
            At::Table(call) => {
                if call.jump(&entry) {
                    return;
                }
            }
            At::Stack(at) => {
                add(agent, probe, ProbeDesc::JUMPED);
                if !at.jump(&entry) {
                    add(agent, probe, ProbeDesc::JUMPED.wrapping_neg());
                }
            }
        }
    }
}

/// The call of an entry of a shadow stack has ended. Where an entry is dropped as a dead one,
/// nobody knows whether a copy was dropped before: the number stays too large.
fn forget(agent: Agent, entry: &ShadowEntry) {
    let jumped = if entry.probe & ShadowEntry::JUMPED != 0 { ProbeDesc::JUMPED } else { 0 };
    add(agent, entry.number(), (ProbeDesc::STACKED + jumped).wrapping_neg());
}

/// Adds to [`ProbeDesc::stacked`].
fn add(agent: Agent, probe: u32, count: u64) {
    if let Some(stacked) = agent.stacked(probe) {
        stacked.fetch_add(count, Ordering::AcqRel);
    }
}

/// Does any thread remember a call of a probe with this slot?
#[cold]
pub fn is_remembered(agent: Agent, slot: u64, probe: u32) -> bool {
    let threads = (0..agent.threads()).filter_map(|i| agent.thread(i));
    threads.into_iter().any(|thread| find(thread, slot, &Wanted::of(probe), true).is_some())
}

/// Where a call is remembered.
#[derive(Clone, Copy)]
enum At {
    Table(Call),
    Stack(Entry),
}

impl At {
    /// What is remembered there, if it has this slot still.
    fn read(self, slot: u64) -> Option<ShadowEntry> {
        match self {
            At::Table(call) => call.read(slot),
            At::Stack(entry) => entry.read(slot),
        }
    }

    /// When the call was pushed; those in a table have no time.
    fn time(self) -> u64 {
        match self {
            At::Table(_) => 0,
            At::Stack(entry) => entry.time(),
        }
    }

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

/// Which calls are looked for. No closures: a table of functions would need relocations.
#[derive(Clone, Copy)]
struct Wanted {
    /// The [`key`] of the probe.
    key: u64,
    /// Only calls that have jumped.
    jumped: bool,
    /// Only calls with this return address.
    ret: Option<u64>,
}

impl Wanted {
    fn of(probe: u32) -> Wanted {
        Wanted { key: key(probe), jumped: false, ret: None }
    }

    fn has(&self, entry: &ShadowEntry) -> bool {
        entry.probe & !ShadowEntry::JUMPED == self.key
            && (!self.jumped || entry.probe & ShadowEntry::JUMPED != 0)
            && self.ret.is_none_or(|ret| entry.ret == ret)
    }
}

/// Where the newest call with this slot is, and whether that is this thread's own memory. `stacks`:
/// shadow stacks are looked through, too. Gives no copies of calls: a goroutine's stack is small.
#[inline(never)]
fn find_anywhere(agent: Agent, thread: Thread, slot: u64, wanted: &Wanted, stacks: bool) -> Option<(At, bool)> {
    let own = find(thread, slot, wanted, stacks);
    if own.is_some() && !have_moved(agent) {
        return own.map(|at| (at, true));
    }
    let (mut newest, mut is_own) = (own, true);
    for other in (0..agent.threads()).filter_map(|i| agent.thread(i)).filter(|other| *other != thread) {
        let Some(found) = find(other, slot, wanted, stacks) else { continue };
        // Of two calls of the same time, that of this thread.
        if newest.is_none_or(|newest| newest.time() < found.time()) {
            (newest, is_own) = (Some(found), false);
        }
    }
    newest.map(|at| (at, is_own))
}

/// Where the newest call is that a thread remembers. Since calls have moved, no new ones are in the
/// table.
#[inline(never)]
fn find(thread: Thread, slot: u64, wanted: &Wanted, stacks: bool) -> Option<At> {
    let call = thread.call(slot);
    let tabled = call.read(slot).is_some_and(|entry| wanted.has(&entry)).then_some(At::Table(call));
    if !stacks {
        return tabled;
    }
    loop {
        let stack = Stack::of(thread);
        let newest_first = (0..stack.len(thread)).rev().map(|index| stack.entry(index));
        // Of the others only the slot is read: there may be many of them.
        for at in newest_first.filter(|at| at.stack_slot() == slot) {
            if at.read(slot).is_some_and(|entry| wanted.has(&entry)) {
                // Of two calls without a time, the one in the table is the newer one: as long as it
                // was alive, none was pushed.
                return tabled.filter(|_| at.time() == 0).or(Some(At::Stack(at)));
            }
        }
        if thread.shadow() == stack.base {
            return tabled;
        }
    }
}

/// The function was entered anew with the slot of a call that is still at the top: the former one
/// has ended in another way.
fn drop_former(agent: Agent, thread: Thread, new: &ShadowEntry) {
    let stack = Stack::of(thread);
    let Some(index) = stack.len(thread).checked_sub(1) else { return };
    let top = stack.entry(index);
    if let Some(former) = top.read(new.slot).filter(|entry| entry.probe & !ShadowEntry::JUMPED == new.probe) {
        if top.kill(new.slot) {
            forget(agent, &former);
        }
        trim(thread);
    }
}

#[cold]
#[inline(never)]
fn is_there(thread: Thread, entry: &ShadowEntry) -> bool {
    let found = find(thread, entry.slot, &Wanted::of(entry.number()), true);
    found.and_then(|at| at.read(entry.slot)).is_some_and(|found| found == *entry)
}

fn key(probe: u32) -> u64 {
    u64::from(probe) | ShadowEntry::KEPT
}

/// Have calls moved from one thread to another?
#[inline(always)]
fn have_moved(agent: Agent) -> bool {
    agent.table().migrated().load(Ordering::Relaxed) != 0
}
