//! Signals of ours in the target: our handler while they are, and nothing that blocks them. SIGTRAP
//! while there are trap probes, SIGSEGV and SIGBUS while probes read memory that may not be there,
//! and all that an instruction can raise while displaced ones may do so ([`super::faults`]). The
//! kernel kills a process whose `int3` or bad load finds its signal blocked. What the target does
//! about masks and actions later on is taken care of by probes of our own on its system calls
//! ([`calls`], `agent::guard`).
//!
//! One session of a process *owns* its signals, the first that takes any: its handler is the
//! kernel's, and what the program believes is kept in its memory. The others *share* them
//! ([`share`]): the owner's handler and all guards do for them what they do for the owner.
//! [`docs/internals/signals.md`](../../../../docs/internals/signals.md) says what holds when one of
//! them ends.

use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use sidestep_isa::{Len, Va};
use sidestep_sys::{Call, CallError, Process, Stopped, arch};
use sidestep_wire::masks::{Masks, SEES_HANDLERS_END};
use sidestep_wire::private::MASKS;
use sidestep_wire::signals::{
    CLOSED_MAX, SHARERS_MAX, SIGBUS, SIGFPE, SIGILL, SIGNALS, SIGSEGV, SIGTRAP, flags, flags_for, set_of,
};
use sidestep_wire::{Blocked, ClosedThread, Header, Private, SigAction, SigAction32, Signals, ThreadState, TrapEntry};

use crate::error::SessionError;
use crate::memory::raw::{bytes_of, from_bytes};
use crate::target::discovery::{Found, read_array, states};
use crate::target::regions::Regions;
use crate::target::remote::{Room, sigaction};
use crate::target::thread_positions::{Place, Position};

/// What trap probes need.
pub(crate) const TRAPS: u64 = set_of(SIGTRAP);
/// What reads without a system call need.
pub(crate) const READS: u64 = set_of(SIGSEGV) | set_of(SIGBUS);
/// What displaced instructions need that may fault; those that trap, [`TRAPS`] as well.
pub(crate) const FAULTS: u64 = READS | set_of(SIGILL) | set_of(SIGFPE);
const LAST: i32 = 64;

/// System calls by which a program could block a signal of ours or take it over, and those that end
/// a handler. Where masks say what the program blocks, also those that pass a mask on to another
/// program.
pub(crate) fn calls() -> Vec<u32> {
    let executes = if SEES_HANDLERS_END { &[][..] } else { arch::EXEC_CALLS };
    arch::SIGNAL_CALLS.iter().chain(executes).map(|number| *number as u32).collect()
}

/// Are actions short ones: [`SigAction32`]?
const SHORT: bool = size_of::<arch::Word>() == 4;

/// Address of a field of the private region's [`Signals`].
macro_rules! at {
    ($private:expr, $field:ident) => {
        Va($private.0 + (offset_of!(Private, signals) + offset_of!(Signals, $field)) as u64)
    };
}

/// Where the private region is of the session that owns the signals which this one uses.
pub(crate) fn owner(process: &Process, private: Va) -> Result<Va, SessionError> {
    let owner = owner_of_sharer(process, private)?;
    Ok(if owner == Va(0) { private } else { owner })
}

/// The same of a session that shares another one's; else 0.
pub(crate) fn owner_of_sharer(process: &Process, private: Va) -> Result<Va, SessionError> {
    Ok(Va(process.read_pod(Va(private.0 + offset_of!(Private, owner) as u64))?))
}

/// From here on a session uses the signals of another one. False: too many do.
pub(crate) fn share(stopped: &Stopped, private: Va, owner: Va) -> Result<bool, SessionError> {
    let sharers = sharers(stopped.process(), owner)?;
    let Some(free) = sharers.iter().position(|sharer| [0, private.0].contains(sharer)) else { return Ok(false) };
    stopped.write(Va(private.0 + offset_of!(Private, owner) as u64), &owner.0.to_ne_bytes())?;
    stopped.write(at!(owner, sharers).plus(Len((free * size_of::<u64>()) as u64)), &private.0.to_ne_bytes())?;
    let used = sharers.iter().rposition(|sharer| *sharer != 0).map_or(0, |last| last + 1);
    stopped.write(at!(owner, sharers_len), &(used.max(free + 1) as u64).to_ne_bytes())?;
    Ok(true)
}

/// The owner does nothing for this session any more.
pub(crate) fn unshare(stopped: &Stopped, private: Va, owner: Va) -> Result<(), SessionError> {
    for (index, _) in sharers(stopped.process(), owner)?.iter().enumerate().filter(|(_, at)| **at == private.0) {
        stopped.write(at!(owner, sharers).plus(Len((index * size_of::<u64>()) as u64)), &0u64.to_ne_bytes())?;
    }
    Ok(())
}

fn sharers(process: &Process, owner: Va) -> Result<[u64; SHARERS_MAX], SessionError> {
    Ok(process.read_pod(at!(owner, sharers))?)
}

/// Where the handler of the session that owns the signals begins: a thread there has looked at
/// nothing yet.
pub(crate) fn handler(process: &Process, owner: Va) -> Result<Va, SessionError> {
    Ok(Va(process.read_pod(at!(owner, handler))?))
}

/// Has the session ended, and what others need of it stays?
pub(crate) fn is_retained(process: &Process, private: Va) -> Result<bool, SessionError> {
    Ok(process.read_pod::<u32>(at!(private, retained))? != 0)
}

/// Is the program getting its signals back from this session?
pub(crate) fn is_ending(process: &Process, private: Va) -> Result<bool, SessionError> {
    Ok(process.read_pod::<u32>(at!(private, ending))? != 0)
}

/// Says that it is, before the first guard goes.
pub(crate) fn end(stopped: &Stopped, private: Va) -> Result<(), SessionError> {
    Ok(stopped.write(at!(private, ending), &1u32.to_ne_bytes())?)
}

/// A trap that led to one of these detours is not this session's any more.
pub(crate) fn forget_traps(
    stopped: &Stopped,
    private: Va,
    is_gone: impl Fn(&TrapEntry) -> bool,
) -> Result<(), SessionError> {
    let word = |offset: usize| stopped.read_pod::<u64>(Va(private.0 + offset as u64));
    let (table, mask) = (word(offset_of!(Private, traps))?, word(offset_of!(Private, trap_mask))?);
    if table == 0 {
        return Ok(());
    }
    let entries: Vec<TrapEntry> = read_array(stopped.process(), Va(table), mask.saturating_add(1))?;
    for (index, _) in entries.iter().enumerate().filter(|(_, entry)| entry.site != 0 && is_gone(entry)) {
        let at = table + (index * size_of::<TrapEntry>() + offset_of!(TrapEntry, detour)) as u64;
        stopped.write(Va(at), &0u64.to_ne_bytes())?;
    }
    Ok(())
}

/// Says that the session has ended, and what others need of it stays.
pub(crate) fn retain(stopped: &Stopped, private: Va) -> Result<(), SessionError> {
    Ok(stopped.write(at!(private, retained), &1u32.to_ne_bytes())?)
}

/// Makes a set of signals ours: installs the handler of their owner, and opens them everywhere.
/// Does nothing for those that are. `positions`: of all threads.
pub(crate) fn install(
    regions: &Regions,
    stopped: &mut Stopped,
    positions: &[Position],
    wanted: u64,
) -> Result<(), SessionError> {
    let at = offset_of!(Header, signals) as u64;
    let relied_on = regions.head.u64(at)?;
    if wanted & !relied_on != 0 {
        let owner = owner(stopped.process(), regions.private)?;
        install_for(owner, regions.room(), stopped, positions, wanted & !relied_on)?;
        regions.head.set_u64(at, relied_on | wanted)?;
    }
    Ok(())
}

/// The same; `private`: the region of the session that owns the signals. May be repeated: the owner
/// may be another session, and a controller that was about to do this may have been killed.
fn install_for(
    private: Va,
    room: Room,
    stopped: &mut Stopped,
    positions: &[Position],
    wanted: u64,
) -> Result<(), SessionError> {
    let taken = taken(stopped.process(), private)?;
    let in_force: u64 = stopped.read_pod(at!(private, in_force))?;
    // Code that was loaded since may have no guards, and have blocked them or set another action.
    // With stand-ins, masks do not say that.
    let before = in_force & if SEES_HANDLERS_END { !wanted } else { u64::MAX };
    let new = wanted & !before;
    if new == 0 {
        return Ok(());
    }
    let [handler, restorer]: [u64; 2] = stopped.read_pod(at!(private, handler))?;
    let ours = SIGNALS.into_iter().enumerate().filter(|(_, signal)| new & set_of(*signal) != 0);
    let mut blocking: [u64; SIGNALS.len()] = stopped.read_pod(at!(private, blocking))?;
    let caught = stopped.caught();
    // What has no handler does not have to be asked for: the kernel tells the agent when it puts
    // ours there.
    let is_plain = |signal: i32| {
        !SHORT && (caught | taken) & set_of(signal) == 0 && blocking.iter().all(|set| set & set_of(signal) == 0)
    };
    let others = caught & !(before | new | set_of(libc::SIGKILL) | set_of(libc::SIGSTOP));
    let opening = Opening::of(private, stopped, positions, before, new)?;
    let asked = ours.clone().map(|(_, signal)| signal).filter(|signal| !is_plain(*signal)).chain(all_of(others));
    let asked: Vec<i32> = asked.collect();
    let mut actions = Actions { stopped, room };
    let known: HashMap<i32, SigAction> = asked.iter().copied().zip(actions.get(&asked)?).collect();
    let uses_stack = known.values().any(|action| action.handler > 1 && action.flags & flags::ONSTACK != 0);
    let is_shared = actions.stopped.read_pod::<u32>(at!(private, shared_stack))? != 0
        || uses_stack && share_a_stack(actions.stopped, actions.room)?;
    actions.stopped.write(at!(private, shared_stack), &u32::from(is_shared).to_ne_bytes())?;

    let noted: Vec<SigAction> = read_array(actions.stopped.process(), at!(private, old), SIGNALS.len() as u64)?;
    let mut changes = Vec::new();
    for (i, signal) in ours {
        let old_at = Va(at!(private, old).0 + (i * size_of::<SigAction>()) as u64);
        let now = known.get(&signal).copied().unwrap_or_default();
        let is_noted = is_noted(&now, &noted[i], handler, set_of(signal), (taken, in_force));
        let mut old = if is_noted { noted[i] } else { now };
        if !is_noted {
            old.mask = opening.before.told(old.mask);
            for (set, ours) in blocking.iter().zip(SIGNALS) {
                if set & set_of(signal) != 0 {
                    old.mask |= set_of(ours);
                }
            }
        }
        // The agent must know the old action before ours is in force.
        if known.contains_key(&signal) {
            actions.stopped.write(old_at, bytes_of(&old))?;
        }
        let ours = SigAction {
            handler,
            // In 32-bit programs frames have the vDSO's restorer, which stays when we go.
            flags: flags_for(&old, is_shared) & if SHORT { !flags::RESTORER } else { u64::MAX },
            restorer,
            mask: 0,
        };
        changes.push(Change { signal, action: ours, old: if known.contains_key(&signal) { Va(0) } else { old_at } });
    }
    // Handlers of other signals must not run with signals of ours blocked.
    for signal in all_of(others) {
        let mut action = known.get(&signal).copied().unwrap_or_default();
        let mask = opening.mask(action.mask);
        if action.mask == mask || action.handler <= 1 {
            continue;
        }
        for (set, ours) in blocking.iter_mut().zip(SIGNALS).filter(|_| SEES_HANDLERS_END) {
            if action.mask & new & set_of(ours) != 0 {
                *set |= set_of(signal);
            }
        }
        action.mask = mask;
        changes.push(Change { signal, action, old: Va(0) });
    }
    actions.stopped.write(at!(private, blocking), &blocking.map(u64::to_ne_bytes).concat())?;
    actions.stopped.write(at!(private, ours), &(taken | new).to_ne_bytes())?;
    actions.set(&changes)?;
    open_threads(private, stopped, positions, &opening)?;
    Ok(stopped.write(at!(private, in_force), &(in_force | new).to_ne_bytes())?)
}

/// Is what the program believes of a signal noted, and the kernel's action no news? So it is where
/// the handler is ours. Where ours was not installed any more when a controller was killed, guards
/// have noted what the program has set since. `(taken, in_force)`: as in [`Signals`].
fn is_noted(now: &SigAction, noted: &SigAction, handler: u64, signal: u64, (taken, in_force): (u64, u64)) -> bool {
    now.handler == handler || taken & !in_force & signal != 0 && noted.handler != 0
}

/// How masks change in which signals become ours.
struct Opening {
    /// Those that become ours.
    new: u64,
    /// What the masks say now.
    before: Masks,
    /// The stand-ins that the program uses itself.
    own: u64,
}

impl Opening {
    /// Finds out which stand-ins the program uses itself, and tells the agent.
    fn of(
        private: Va,
        stopped: &mut Stopped,
        positions: &[Position],
        ours: u64,
        new: u64,
    ) -> Result<Opening, SessionError> {
        let at = at!(private, own);
        let before = Masks { ours, own: stopped.read_pod(at)? };
        let mut own = before.own;
        if !SEES_HANDLERS_END {
            let frames = positions.iter().filter_map(|position| frame_mask(stopped, position));
            let masks: Vec<u64> = frames.map(|(_, _, mask)| mask).collect();
            let all = masks.into_iter().chain(stopped.masks()?.into_iter().map(|(_, mask)| mask));
            own |= all.fold(Masks::uses(stopped.caught()), |own, mask| own | Masks::uses(before.told(mask)));
            stopped.write(at, &own.to_ne_bytes())?;
        }
        Ok(Opening { new, before, own })
    }

    fn mask(&self, mask: u64) -> u64 {
        Masks { ours: self.new, own: self.own }.kept(self.before.normal(mask))
    }
}

/// Do threads share an alternate signal stack? Where some do, nearly all do, so only some are
/// asked. What threads set from now on, the agent sees (`agent::altstack`).
fn share_a_stack(stopped: &mut Stopped, room: Room) -> Result<bool, SessionError> {
    /// Each of them takes some 0.1 ms of the pause.
    const ASKED: usize = 16;
    let pid = stopped.process().pid();
    let threads: Vec<i32> = stopped.threads().iter().filter(|t| t.pid == pid).map(|t| t.tid).collect();
    let mut seen = HashSet::new();
    for tid in threads.iter().copied().step_by(threads.len().div_ceil(ASKED).max(1)) {
        match stopped.call_in(tid, libc::SYS_sigaltstack, [0, room.data.0, 0, 0, 0, 0]) {
            Err(CallError::Seccomp { .. }) => continue,
            result => result?,
        };
        // `stack_t`: address, flags (an `int`), size.
        let [start, flags, _]: [arch::Word; 3] = stopped.read_pod(room.data)?;
        if flags as i32 & libc::SS_DISABLE == 0 && !seen.insert(start) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The signals of a set.
fn all_of(set: u64) -> impl Iterator<Item = i32> + Clone {
    (1..=LAST).filter(move |signal| set & set_of(*signal) != 0)
}

/// The signals that a session owns. Of a forked child, those that it owned in its parent then.
pub(crate) fn taken(process: &Process, private: Va) -> Result<u64, SessionError> {
    Ok(process.read_pod(at!(private, ours))?)
}

/// Says whether bad addresses may be read directly.
pub(crate) fn set_readable(regions: &Regions, process: &Process, readable: bool) -> Result<(), SessionError> {
    Ok(process.write(at!(regions.private, readable), &u32::from(readable).to_ne_bytes())?)
}

/// What is to be done about a signal.
struct Change {
    signal: i32,
    action: SigAction,
    /// Where the kernel puts the action that was in force, or 0.
    old: Va,
}

/// Actions of a stopped process: all that are asked for at one go.
struct Actions<'s> {
    stopped: &'s mut Stopped,
    room: Room,
}

impl Actions<'_> {
    /// Those in force.
    fn get(&mut self, signals: &[i32]) -> Result<Vec<SigAction>, SessionError> {
        let calls: Vec<Call> = signals.iter().zip(0..).map(|(s, i)| sigaction(*s, Va(0), self.place(i))).collect();
        self.make(&calls)?;
        self.read(signals.len())
    }

    /// Puts others into force.
    fn set(&mut self, changes: &[Change]) -> Result<(), SessionError> {
        let mut bytes = Vec::new();
        for Change { action, .. } in changes {
            let short = action.short();
            bytes.extend_from_slice(if SHORT { bytes_of(&short) } else { bytes_of(action) });
            bytes.resize(bytes.len().next_multiple_of(size_of::<SigAction>()), 0);
        }
        self.stopped.write(self.place(0), &bytes)?;
        let calls: Vec<Call> =
            changes.iter().zip(0..).map(|(c, i)| sigaction(c.signal, self.place(i), c.old)).collect();
        self.make(&calls)
    }

    /// The same; gives those that were in force.
    fn replace(&mut self, actions: &[(i32, SigAction)]) -> Result<Vec<SigAction>, SessionError> {
        let behind = |i: usize| self.place(actions.len() + i);
        let change = |(i, (signal, action)): (usize, &(i32, SigAction))| Change {
            signal: *signal,
            action: *action,
            old: behind(i),
        };
        let changes: Vec<Change> = actions.iter().enumerate().map(change).collect();
        self.set(&changes)?;
        let mut all = self.read(2 * actions.len())?;
        Ok(all.split_off(actions.len()))
    }

    fn make(&mut self, calls: &[Call]) -> Result<(), SessionError> {
        if calls.is_empty() { Ok(()) } else { Ok(self.stopped.batch(&self.room.batch, calls).map(drop)?) }
    }

    /// In the target, for an action.
    fn place(&self, index: usize) -> Va {
        self.room.data.plus(Len((index * size_of::<SigAction>()) as u64))
    }

    /// Actions as the kernel has put them there.
    fn read(&self, count: usize) -> Result<Vec<SigAction>, SessionError> {
        let mut bytes = vec![0; count * size_of::<SigAction>()];
        self.stopped.read(self.place(0), &mut bytes)?;
        let short = |bytes: &[u8]| from_bytes::<SigAction32>(bytes).map(|action| action.wide());
        let action = |bytes| if SHORT { short(bytes) } else { from_bytes(bytes) };
        Ok(bytes.chunks_exact(size_of::<SigAction>()).map(|bytes| action(bytes).unwrap_or_default()).collect())
    }
}

/// The mask that a signal frame will restore: its thread, where it is, and what it is.
///
/// On memory that nobody has written since a handler ended, a frame may be left of which a part is
/// in use again. So the word counts only if its copy says the same, but for signals that were
/// opened before.
fn frame_mask(stopped: &Stopped, position: &Position) -> Option<(i32, Va, u64)> {
    let Place::SignalFrame { frame, tid } = position.place else { return None };
    let mask: u64 = stopped.read_pod(frame.mask_at).ok()?;
    let differs = mask as u32 ^ frame.mask_copy;
    (differs & (mask as u32 | !(TRAPS | FAULTS) as u32) == 0).then_some((tid, frame.mask_at, mask))
}

/// Threads, and the masks that signal frames on their stacks will restore.
fn open_threads(
    private: Va,
    stopped: &mut Stopped,
    positions: &[Position],
    opening: &Opening,
) -> Result<(), SessionError> {
    let new = opening.new;
    // What stays blocked in a thread when its signal handlers have returned.
    let mut after: HashMap<i32, u64> = HashMap::new();
    for (tid, mask_at, mask) in positions.iter().filter_map(|position| frame_mask(stopped, position)) {
        *after.entry(tid).or_insert(u64::MAX) &= mask;
        let open = opening.mask(mask);
        if open != mask {
            stopped.write(mask_at, &open.to_ne_bytes())?;
        }
    }
    let closed: HashMap<i32, u64> = stopped.change_masks(|_, mask| opening.mask(mask))?.into_iter().collect();
    if !SEES_HANDLERS_END {
        return Ok(());
    }
    let threads: Vec<_> = stopped.threads().iter().map(|t| (t.tid, t.regs.thread_pointer(), t.regs.sp())).collect();
    for (tid, fs_base, sp) in threads {
        let Some(now) = closed.get(&tid).map(|mask| mask & new) else { continue };
        let after = now & after.get(&tid).copied().unwrap_or(u64::MAX);
        note(private, stopped, fs_base.0, Blocked { now, after, sp: sp.0 })?;
    }
    Ok(())
}

/// Notes what a thread has blocked: in its state, or where its state will find it.
fn note(private: Va, stopped: &Stopped, fs_base: u64, new: Blocked) -> Result<(), SessionError> {
    let add = |at: Va| -> Result<(), SessionError> {
        let old: [u64; 3] = stopped.read_pod(at)?;
        let sum = Blocked { now: old[0] | new.now, after: old[1] & old[0] | new.after, sp: new.sp };
        Ok(stopped.write(at, bytes_of(&sum))?)
    };
    for state in states(stopped.process(), private)? {
        if state.1.fs_base == fs_base && fs_base != 0 {
            return add(Va(state.0.0 + offset_of!(ThreadState, blocked) as u64));
        }
    }
    let list = at!(private, closed);
    let entries = read_array::<ClosedThread>(stopped.process(), list, CLOSED_MAX as u64)?;
    let known = entries.iter().position(|e| e.fs_base.load(Ordering::Relaxed) == fs_base);
    let free = || entries.iter().position(|e| e.fs_base.load(Ordering::Relaxed) == 0);
    let Some(index) = known.or_else(free) else { return Ok(()) };
    let at = list.0 + (index * size_of::<ClosedThread>()) as u64;
    add(Va(at + offset_of!(ClosedThread, blocked) as u64))?;
    Ok(stopped.write(Va(at), &fs_base.to_ne_bytes())?)
}

/// Blocks in each thread what it believes to be blocked. What has been put back is forgotten: the
/// guards are gone, so whoever comes after a controller that was killed here would not know what
/// the thread has changed since.
fn close_threads(stopped: &mut Stopped, private: Va, positions: &[Position], masks: Masks) -> Result<(), SessionError> {
    let mut believed: HashMap<u64, Vec<(Blocked, Va)>> = HashMap::new();
    let mut add = |fs_base: u64, blocked: Blocked, at: Va| believed.entry(fs_base).or_default().push((blocked, at));
    let list = at!(private, closed);
    let closed = read_array::<ClosedThread>(stopped.process(), list, CLOSED_MAX as u64)?;
    for (i, thread) in closed.into_iter().enumerate() {
        let offset = i * size_of::<ClosedThread>() + offset_of!(ClosedThread, blocked);
        add(thread.fs_base.into_inner(), thread.blocked, list.plus(Len(offset as u64)));
    }
    for (at, state) in states(stopped.process(), private)? {
        add(state.fs_base, state.blocked, at.plus(Len(offset_of!(ThreadState, blocked) as u64)));
    }
    let threads: Vec<_> = stopped.threads().iter().map(|t| (t.tid, t.regs.thread_pointer().0)).collect();
    let mut closing: HashMap<i32, u64> = HashMap::new();
    let mut done = Vec::new();
    for (tid, fs_base) in threads.into_iter().filter(|(_, fs_base)| *fs_base != 0) {
        let Some(places) = believed.get(&fs_base) else { continue };
        let sum = places.iter().fold(0, |sum, (blocked, _)| sum | blocked.now) & masks.ours;
        if sum != 0 {
            closing.insert(tid, sum);
            done.extend(places.iter().map(|(_, at)| *at));
        }
    }
    let frames: Vec<_> = positions.iter().filter_map(|position| frame_mask(stopped, position)).collect();
    for (_, at, mask) in frames.into_iter().filter(|(.., mask)| masks.told(*mask) != *mask) {
        stopped.write(at, &masks.told(mask).to_ne_bytes())?;
    }
    if !(SEES_HANDLERS_END && closing.is_empty()) {
        stopped.change_masks(|tid, mask| masks.told(mask) | closing.get(&tid).copied().unwrap_or(0))?;
    }
    done.into_iter().try_for_each(|at| Ok(stopped.write(at, bytes_of(&Blocked::default()))?))
}

/// Gives system calls back what the program has passed to them, where a guard has put a signal set
/// of its own in the place of that: a call that the kernel restarts reads it again, when our memory
/// is gone.
fn return_arguments(stopped: &mut Stopped, private: Va) -> Result<(), SessionError> {
    let states = states(stopped.process(), private)?;
    let threads: Vec<_> = stopped.threads().iter().map(|t| (t.tid, t.regs.thread_pointer().0)).collect();
    for (tid, fs_base) in threads.into_iter().filter(|(_, fs_base)| *fs_base != 0) {
        for (at, state) in states.iter().filter(|(_, state)| state.fs_base == fs_base) {
            let masks = at.plus(Len(offset_of!(ThreadState, masks) as u64)).0;
            let pair = size_of_val(&state.masks) / MASKS;
            let passed = |value: u64| {
                let offset = usize::try_from(value.checked_sub(masks)?).ok()?;
                state.mask_from.get(offset / pair).filter(|_| offset % pair == 0).copied()
            };
            stopped.replace_arguments(tid, passed)?;
        }
    }
    Ok(())
}

/// Puts back what the program believes in a process that executes in the same memory, where ours is
/// still the action in force: it has copies of the actions, from when it was made.
fn leave_handlers(
    actions: &mut Actions<'_>,
    believed: &[(i32, SigAction)],
    agent: &std::ops::Range<u64>,
) -> Result<(), SessionError> {
    let signals: Vec<i32> = believed.iter().map(|(signal, _)| *signal).collect();
    let now = actions.get(&signals)?;
    let ours = believed.iter().zip(now).filter(|(_, now)| agent.contains(&now.handler));
    let change =
        |((signal, action), _): (&(i32, SigAction), _)| Change { signal: *signal, action: *action, old: Va(0) };
    let changes: Vec<Change> = ours.map(change).collect();
    if changes.is_empty() { Ok(()) } else { actions.set(&changes) }
}

/// Puts back what the program believes, where ours is still the action in force. `positions`: of
/// all threads.
pub(crate) fn restore(
    stopped: &mut Stopped,
    found: &Found,
    room: Room,
    positions: &[Position],
) -> Result<(), SessionError> {
    let (private, set) = (found.private_va, found.taken);
    let agent = found.agent.0..found.agent.0 + found.agent.1;
    let masks = Masks { ours: set, own: stopped.read_pod(at!(private, own))? };
    return_arguments(stopped, private)?;
    close_threads(stopped, private, positions, masks)?;
    let ours = || SIGNALS.into_iter().enumerate().filter(|(_, signal)| set & set_of(*signal) != 0);
    let old: Vec<SigAction> = read_array(stopped.process(), at!(private, old), SIGNALS.len() as u64)?;
    let believed: Vec<(i32, SigAction)> = ours().map(|(i, signal)| (signal, old[i])).collect();
    let blocking: [u64; SIGNALS.len()] = stopped.read_pod(at!(private, blocking))?;
    let mask =
        |signal: i32| ours().filter(|(i, _)| blocking[*i] & set_of(signal) != 0).fold(0, |m, (_, s)| m | set_of(s));
    // Any action may have stand-ins.
    let asked = if SEES_HANDLERS_END { 0 } else { stopped.caught() };
    let others: Vec<i32> = all_of(!set).filter(|signal| (asked & set_of(*signal) | mask(*signal)) != 0).collect();
    let mut actions = Actions { stopped, room };
    let replaced = actions.replace(&believed)?;
    let foreign = believed.iter().zip(replaced).filter(|(_, replaced)| !agent.contains(&replaced.handler));
    let mut changes: Vec<Change> =
        foreign.map(|((signal, _), replaced)| Change { signal: *signal, action: replaced, old: Va(0) }).collect();
    for (signal, action) in others.iter().zip(actions.get(&others)?).filter(|(_, action)| action.handler > 1) {
        let mask = masks.told(action.mask) | mask(*signal);
        if mask != action.mask {
            changes.push(Change { signal: *signal, action: SigAction { mask, ..action }, old: Va(0) });
        }
    }
    if !changes.is_empty() {
        actions.set(&changes)?;
    }
    let room = actions.room;
    for pid in stopped.others() {
        stopped.make_calls_in(pid)?;
        leave_handlers(&mut Actions { stopped, room }, &believed, &agent)?;
    }
    stopped.make_calls_in(stopped.process().pid())?;
    // As with the threads: handlers are the program's own from now on.
    Ok(stopped.write(at!(private, blocking), &[0; size_of::<[u64; SIGNALS.len()]>()])?)
}
