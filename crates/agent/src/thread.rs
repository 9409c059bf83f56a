//! From a thread's `fs` base to its lookup entry: found, or made at the thread's first hit.
//!
//! Two kinds of interruption are expected anywhere in here: other threads that claim entries of
//! their own, and a signal handler of this very thread that hits a probe. The handler finds the
//! claim (`owner`) and completes it; the interrupted code then finds the winner's state, and the
//! state that it took itself stays unused.

use core::sync::atomic::Ordering;

use sidestep_wire::lookup::{LENT, LOOKUP_BUCKETS, LOOKUP_MARKER, bucket};
use sidestep_wire::masks::SEES_HANDLERS_END;
use sidestep_wire::{Slot, ThreadState};

use crate::arch;
use crate::memory::{Agent, Bucket, Table, Thread};
use crate::{blocked, helpers, kernel, safe_read, shadow};

/// It is not known where C libraries keep the thread id: the kernel is asked each time.
pub const ASKS: bool = arch::TID_WORDS.is_empty();

/// Most buckets that a search looks at.
const PROBES: usize = 128;
/// A stack pointer that is no farther below that of a guarded call was in the guard.
const GUARD: u64 = 4096;
/// A stack pointer that is no farther above that of a guarded call is on the same stack.
const ABOVE: u64 = 8 << 20;
/// Where [`ThreadState::lent_at`] has how often the owner was found to be the one who runs.
const LOOKS: u64 = 0xff << 56;
/// The rest of it.
const ADDRESS: u64 = !LOOKS;
/// So many hits of the owner, each of which asks the kernel, are no more taken for a handler's.
const MOST_LOOKS: u64 = 200;
/// Most states that one call looks at for a dead thread: misses must stay cheap when all threads
/// live.
const RECLAIM: usize = 8;
/// Bytes of a stack for programs, more than any of them needs (`NATIVE_STACK` in the engine).
const STACK: u64 = 128 << 10;

/// The entry of the thread with this `fs` base, complete; `None` = no room.
pub fn slot(agent: Agent, fs_base: u64) -> Option<Bucket> {
    let entry = claimed(agent, fs_base)?;
    if is_complete(entry, fs_base) {
        return Some(entry);
    }
    let owner = agent.owner();
    if owner.address() != agent.address() {
        // What the thread blocks is dealt with there, for all who share the signals.
        let own = claimed(owner, fs_base).filter(|own| !is_complete(*own, fs_base));
        let _ = own.and_then(|own| fill(owner, own, fs_base));
    }
    fill(agent, entry, fs_base)
}

/// The entry, complete or not.
fn claimed(agent: Agent, fs_base: u64) -> Option<Bucket> {
    let table = agent.table();
    if table.marker().load(Ordering::Acquire) != LOOKUP_MARKER {
        enter_child(agent, table);
    }
    claim(table, fs_base)
}

fn is_complete(entry: Bucket, fs_base: u64) -> bool {
    entry.key().load(Ordering::Acquire) == fs_base && entry.cells().load(Ordering::Acquire) != 0
}

/// The calling thread; `None` = no room.
pub fn current(agent: Agent) -> Option<Thread> {
    let bucket = slot(agent, arch::thread_pointer())?;
    agent.state_at(bucket.state().load(Ordering::Acquire))
}

/// The table was wiped by a fork: from here on nothing that is the parent's is written.
fn enter_child(agent: Agent, table: Table) {
    let private = agent.private();
    private.child.store(1, Ordering::Release);
    // No process has the id 0: nothing of the parent's is this child's.
    private.pid.store(if agent.is_silent() { 0 } else { kernel::process_id() }, Ordering::Release);
    table.marker().store(LOOKUP_MARKER, Ordering::Release);
}

/// Is this process one that only borrows the memory (`vfork`, `posix_spawn`), and so has signal
/// masks and actions of its own, but none of its own here?
#[cold]
pub fn is_borrower(agent: Agent) -> bool {
    !agent.is_silent() && agent.private().pid.load(Ordering::Acquire) != kernel::process_id()
}

/// The calling thread is about to make a child that runs with its memory and its thread pointer:
/// from here on its hits are looked at ([`Thread::counts`]) until it hits a probe itself. `sp` is
/// the stack pointer of the call.
///
/// A signal handler that hits one before the call is made would end that too early; [`returns_to`]
/// sees it return.
pub fn lend(agent: Agent, thread: Thread, sp: u64) {
    let Some(entry) = claim(agent.table(), thread.fs_base()) else { return };
    thread.set_lent_at(sp);
    loop {
        thread.set_counting(0);
        entry.key().store(LENT, Ordering::Release);
        // A signal handler in between may have hit one.
        if thread.counting() == 0 {
            return;
        }
    }
}

/// A signal handler with this context returns: if it has interrupted the guard of such a call, or
/// the call, that is still to be made, or made again.
pub fn returns_to(agent: Agent, thread: Thread, context: u64) {
    let at = thread.lent_at() & ADDRESS;
    if at != 0 {
        let sp = safe_read::word(agent, context.wrapping_add(arch::UCONTEXT_SP as u64));
        if sp.is_some_and(|sp| at.wrapping_sub(sp) < GUARD) {
            lend(agent, thread, at);
        }
    }
}

/// A thread that has lent its memory, or has none to count in: is it the owner who has come back?
#[cold]
#[inline(never)]
fn is_back(agent: Agent, thread: Thread) -> bool {
    let back = thread.cells() != 0 && !is_borrower(agent);
    if back && (SEES_HANDLERS_END || !may_still_lend(thread)) {
        thread.set_counting(1);
    }
    back
}

/// May a hit of the owner be one in a signal handler that came before the call was made? The stack
/// pointer is below the handler's frame then, or on another stack. The end of the handler is not
/// seen, so the child has to be looked for at the next hits, too.
fn may_still_lend(thread: Thread) -> bool {
    let lent = thread.lent_at();
    let looks = (lent >> LOOKS.trailing_zeros()) + 1;
    let (at, here) = (lent & ADDRESS, core::ptr::from_ref(&lent) as u64);
    let is_near = at.wrapping_sub(here) < GUARD || here.wrapping_sub(at) < ABOVE;
    if at == 0 || is_near || looks > MOST_LOOKS {
        return false;
    }
    thread.set_lent_at(at | looks << LOOKS.trailing_zeros());
    true
}

fn claim(table: Table, fs_base: u64) -> Option<Bucket> {
    if fs_base == 0 {
        return Some(table.bucket(0));
    }
    buckets(table, fs_base).find(|entry| {
        match entry.owner().compare_exchange(0, fs_base, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(owner) => owner == fs_base,
        }
    })
}

/// Where the entry of an `fs` base may be.
fn buckets(table: Table, fs_base: u64) -> impl Iterator<Item = Bucket> {
    let first = bucket(fs_base);
    (first..first + PROBES).filter(|index| index % LOOKUP_BUCKETS != 0).map(move |index| table.bucket(index))
}

#[inline(never)]
fn fill(agent: Agent, entry: Bucket, fs_base: u64) -> Option<Bucket> {
    let thread = match agent.state_at(entry.state().load(Ordering::Acquire)) {
        Some(thread) => thread,
        None => {
            let new = new(agent, fs_base)?;
            let at = new.as_ptr() as u64;
            match entry.state().compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => new,
                Err(winner) => agent.state_at(winner)?,
            }
        }
    };
    if thread.cells() != 0 && !thread.counts(agent) {
        return Some(thread.guest());
    }
    // From here on nothing but the key changes: who has been given the entry may go on with it.
    entry.cells().store(thread.cells(), Ordering::Release);
    if thread.cells() == 0 || thread.counting() != 0 {
        entry.key().store(fs_base, Ordering::Release);
    }
    Some(entry)
}

/// A state for a thread that is met for the first time, and its slot.
fn new(agent: Agent, fs_base: u64) -> Option<Thread> {
    let (mut thread, fresh) = state(agent, fs_base)?;
    match agent.counts() {
        true => {
            let slot = match own_slot(agent, thread).or_else(|| take_slot(agent)) {
                Some(slot) => slot,
                None => {
                    // Other processes have all that is left.
                    let Some(index) = reclaim(agent) else {
                        give_back(agent, fresh);
                        return None;
                    };
                    thread = agent.thread(index)?;
                    own_slot(agent, thread)?
                }
            };
            let at = core::ptr::from_ref(slot) as u64;
            thread.set_slot(at);
            thread.set_cells(at + agent.layout().cells_off);
            thread.set_counting(1);
            prepare(agent, thread, fs_base);
            slot.tid.store(thread.tid(), Ordering::Relaxed);
            slot.fs_base.store(thread.fs_base(), Ordering::Release);
        }
        false => {
            thread.set_slot(0);
            thread.set_cells(0);
            thread.set_counting(0);
            prepare(agent, thread, fs_base);
        }
    }
    Some(thread)
}

/// In a forked child, the thread that called `fork` has its state from before, with the return
/// addresses that are replaced on its stack. Else a state that nobody uses; its number, if nobody
/// has used it before.
fn state(agent: Agent, fs_base: u64) -> Option<(Thread, Option<u32>)> {
    if agent.is_child() {
        let known = (0..agent.threads()).filter_map(|i| agent.thread(i)).find(|t| t.fs_base() == fs_base);
        if let Some(known) = known {
            return Some((known, None));
        }
    }
    let next = |used: u32| (used < agent.layout().slots_max).then_some(used + 1);
    let (index, fresh) = match agent.private().states_used.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
        Ok(index) => (u64::from(index), Some(index)),
        Err(_) => (reclaim(agent)?, None),
    };
    Some((agent.thread(index)?, fresh))
}

/// A new state is not used, for want of a slot. If another thread has taken the next one meanwhile,
/// it stays unused.
fn give_back(agent: Agent, fresh: Option<u32>) {
    if let Some(index) = fresh {
        let used = &agent.private().states_used;
        let _ = used.compare_exchange(index + 1, index, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// The slot that a state has from the thread before, if that was one of this process.
fn own_slot(agent: Agent, thread: Thread) -> Option<&'static Slot> {
    let pid = agent.private().pid.load(Ordering::Acquire);
    thread.shared_slot().filter(|slot| slot.owner.load(Ordering::Acquire) == pid)
}

/// A slot that no process has: one whose process has ended, or a new one. This process may have
/// mapped fewer slots than other processes of the session.
fn take_slot(agent: Agent) -> Option<&'static Slot> {
    let (common, slots_max) = (agent.common(), agent.layout().slots_max);
    let pid = agent.private().pid.load(Ordering::Acquire);
    let take = |index: u32| {
        let slot = agent.slot(u64::from(index));
        // Most have an owner: a load is cheaper than an exchange that fails.
        let is_free = slot.owner.load(Ordering::Relaxed) == 0;
        (is_free && slot.owner.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire).is_ok()).then_some(slot)
    };
    let less = |free: u32| free.checked_sub(1);
    if common.slots_free.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok() {
        let used = common.slots_used.load(Ordering::Acquire);
        // The last one first: processes that have mapped fewer need those at the start.
        if let Some(slot) = (0..used.min(slots_max)).rev().find_map(take) {
            return Some(slot);
        }
        if used > slots_max {
            // The free slot is one that only others have mapped.
            common.slots_free.fetch_add(1, Ordering::AcqRel);
        }
    }
    for _ in 0..slots_max {
        let next = |used: u32| (used < slots_max).then_some(used + 1);
        let index = common.slots_used.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
        // Somebody who looks for a free one may be faster.
        if let Some(slot) = take(index) {
            return Some(slot);
        }
    }
    None
}

fn prepare(agent: Agent, thread: Thread, fs_base: u64) {
    blocked::prepare(agent, thread, fs_base);
    thread.set_fs_base(fs_base);
    thread.set_private(agent.address());
    thread.guest().state().store(thread.as_ptr() as u64, Ordering::Release);
    thread.set_busy(0);
    thread.set_altstack(0);
    helpers::install(thread);
    if thread.shadow() == 0 {
        let room = agent.private().state_stride.saturating_sub(size_of::<ThreadState>() as u64);
        shadow::first(thread, room);
    }
    if agent.is_silent() {
        // Nothing that is done then asks for it.
        thread.set_tid(0);
        thread.set_tid_word(0);
    } else {
        let tid = kernel::thread_id();
        thread.set_tid(tid);
        thread.set_tid_word(find_tid_word(agent, fs_base, tid));
    }
    // Asked when a program wants it: a thread is often seen here before it gives itself a name.
    thread.set_comm_time(0);
}

/// A stack of the thread's own for programs; its end. `None`: there is no memory for it.
#[cold]
pub fn stack(agent: Agent, thread: Thread) -> Option<u64> {
    match thread.stack() {
        0 => {
            let end = agent.map(STACK)? + STACK;
            thread.set_stack(end);
            Some(end)
        }
        end => Some(end),
    }
}

fn find_tid_word(agent: Agent, fs_base: u64, tid: u32) -> u32 {
    if fs_base == 0 {
        return 0;
    }
    let holds = |word: &u32| read_u32(agent, fs_base.wrapping_add(u64::from(*word))) == Some(tid);
    arch::TID_WORDS.into_iter().find(holds).unwrap_or(0)
}

fn read_u32(agent: Agent, at: u64) -> Option<u32> {
    safe_read::word(agent, at).map(|word| word as u32)
}

/// The state of a thread that has ended. Its shadow stack is kept: a coroutine of the dead thread
/// may go on elsewhere.
#[cold]
fn reclaim(agent: Agent) -> Option<u64> {
    let table = agent.table();
    for _ in 0..RECLAIM {
        let next = table.reclaim().fetch_add(1, Ordering::Relaxed);
        let index = next.checked_rem(u64::from(agent.layout().slots_max))?;
        let thread = agent.thread(index)?;
        if !is_dead(agent, thread) {
            continue;
        }
        let fs_base = thread.fs_base();
        let Some(entry) = buckets(table, fs_base).find(|e| e.owner().load(Ordering::Acquire) == fs_base) else {
            continue;
        };
        let at = thread.as_ptr() as u64;
        if entry.state().compare_exchange(at, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            continue;
        }
        entry.cells().store(0, Ordering::Release);
        entry.key().store(0, Ordering::Release);
        // A new thread with the same `fs` base may have come by before the entry was cleared. Then
        // the state is left to it and used by nobody after its next hit.
        if is_dead(agent, thread) {
            return Some(index);
        }
    }
    None
}

/// The C library's thread id says which thread owns the `fs` base now. The thread is dead if the
/// memory is gone, if the kernel has cleared the word (`CLONE_CHILD_CLEARTID`) or glibc made it
/// negative (a stack kept for the next thread), or if it is the id of no thread of this process.
/// Without such a word nothing can be proven.
fn is_dead(agent: Agent, thread: Thread) -> bool {
    if thread.tid_word() == 0 {
        return false;
    }
    match read_u32(agent, thread.fs_base().wrapping_add(u64::from(thread.tid_word()))) {
        None => true,
        Some(tid) if tid as i32 <= 0 => true,
        Some(tid) => kernel::has_ended(tid),
    }
}

/// Has another living thread the same alternate signal stack?
#[cold]
pub fn shares_altstack(agent: Agent, thread: Thread) -> bool {
    let used = u64::from(agent.private().states_used.load(Ordering::Acquire));
    let others = (0..used.min(agent.threads())).filter_map(|i| agent.thread(i));
    let is_other = |other: &Thread| other.fs_base() != thread.fs_base() && other.altstack() == thread.altstack();
    others.filter(is_other).any(|other| !is_dead(agent, other))
}

impl Thread {
    /// Are its hits counted? Not in a child.
    #[inline(always)]
    #[must_use]
    pub fn counts(self, agent: Agent) -> bool {
        self.counting() != 0 || is_back(agent, self)
    }

    /// This thread's id: the C library's word if it agrees with what we know, else the kernel's.
    #[inline(always)]
    pub fn current_tid(self) -> u32 {
        let library = self.library_tid();
        if library == Some(self.tid()) {
            return self.tid();
        }
        let tid = kernel::thread_id();
        // A child on its parent's memory finds its parent's id there: the state is the parent's.
        // Where no library's word is known, such a child is known by its own process id.
        let is_child = match library {
            Some(library) => library != tid,
            None => ASKS && kernel::process_id() == tid,
        };
        if tid != self.tid() && !is_child {
            // Another thread on the stack of one that has ended.
            self.set_tid(tid);
            self.set_comm_time(0);
            if library.is_some() || ASKS {
                blocked::forget(self);
            }
        }
        tid
    }

    /// This thread's id in records: without a call of the kernel, as long as the C library's word
    /// agrees with what we know or is unknown.
    #[inline(always)]
    pub fn writer(self) -> u32 {
        if self.tid_word() == 0 && !ASKS { self.tid() } else { self.current_tid() }
    }

    /// Asks the kernel for the thread's name.
    #[cold]
    pub fn refresh_comm(self, now: u64) {
        self.ask_name();
        self.set_comm_time(now);
    }
}
