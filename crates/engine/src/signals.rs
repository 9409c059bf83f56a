//! Signals of ours in the target: our handler while they are, and nothing that blocks them. SIGTRAP while there are trap
//! probes, SIGSEGV and SIGBUS while probes read memory that may not be there, and all that an instruction can raise while
//! displaced ones may do so ([`crate::faults`]). The kernel kills a process
//! whose `int3` or bad load finds its signal blocked. What the target does about masks and actions later on is taken care
//! of by probes of our own on its system calls ([`calls`], `agent::guard`).

use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use sidestep_isa::Va;
use sidestep_sys::{Mapping, Process, Stopped, arch};
use sidestep_wire::signals::{CLOSED_MAX, SIGBUS, SIGFPE, SIGILL, SIGNALS, SIGSEGV, SIGTRAP, flags, flags_for, set_of};
use sidestep_wire::{Blocked, ClosedThread, Header, Private, SigAction, SigAction32, Signals, ThreadState};

use crate::error::SessionError;
use crate::raw::{bytes_of, from_bytes};
use crate::regions::Regions;
use crate::remote::Remote;
use crate::survey::{self, Place};
use crate::traces::{read_array, read_one, states};

/// What trap probes need.
pub(crate) const TRAPS: u64 = set_of(SIGTRAP);
/// What reads without a system call need.
pub(crate) const READS: u64 = set_of(SIGSEGV) | set_of(SIGBUS);
/// What displaced instructions need that may fault; those that trap, [`TRAPS`] as well.
pub(crate) const FAULTS: u64 = READS | set_of(SIGILL) | set_of(SIGFPE);
/// Those that say where they came from, besides the registers.
pub(crate) const NAMED: u64 = TRAPS | set_of(SIGILL) | set_of(SIGFPE);

const LAST: i32 = 64;

/// System calls by which a program could block a signal of ours or take it over, and those that end a handler.
pub(crate) fn calls() -> Vec<u32> {
    arch::SIGNAL_CALLS.iter().map(|number| *number as u32).collect()
}

/// Are actions short ones: [`SigAction32`]?
const SHORT: bool = size_of::<arch::Word>() == 4;

/// Address of a field of the private region's [`Signals`].
macro_rules! at {
    ($private:expr, $field:ident) => {
        Va($private.0 + (offset_of!(Private, signals) + offset_of!(Signals, $field)) as u64)
    };
}

/// Makes a set of signals ours: installs our handler and opens them everywhere. Does nothing for those that are.
pub(crate) fn install(
    regions: &Regions,
    stopped: &mut Stopped,
    mappings: &[Mapping],
    wanted: u64,
) -> Result<(), SessionError> {
    let installed = regions.shared.u64(offset_of!(Header, signals) as u64);
    let before = installed.load(Ordering::Acquire);
    let new = wanted & !before;
    if new == 0 {
        return Ok(());
    }
    let buffer = regions.scratch();
    let ours = SIGNALS.into_iter().enumerate().filter(|(_, signal)| new & set_of(*signal) != 0);
    let blocking: [u64; SIGNALS.len()] = stopped.read_pod(at!(regions.private, blocking))?;
    let caught = stopped.caught();
    // What has no handler does not have to be asked for: the kernel tells the agent when it puts ours there.
    let is_plain =
        |signal: i32| !SHORT && caught & set_of(signal) == 0 && blocking.iter().all(|set| set & set_of(signal) == 0);
    for (i, signal) in ours.clone().filter(|(_, signal)| !is_plain(*signal)) {
        let mut old = action(stopped, signal, buffer)?;
        for (set, ours) in blocking.iter().zip(SIGNALS) {
            if set & set_of(signal) != 0 {
                old.mask |= set_of(ours);
            }
        }
        // The agent must know the old action before ours is in force.
        let old_at = at!(regions.private, old).0 + (i * size_of::<SigAction>()) as u64;
        stopped.write(Va(old_at), bytes_of(&old))?;
    }
    stopped.write(at!(regions.private, ours), &(before | new).to_ne_bytes())?;
    installed.store(before | new, Ordering::Release);
    for (i, signal) in ours {
        let old_at = Va(at!(regions.private, old).0 + (i * size_of::<SigAction>()) as u64);
        let is_plain = is_plain(signal);
        let old = if is_plain { SigAction::default() } else { read_one(stopped.process(), old_at)? };
        let ours = SigAction {
            handler: regions.globals.signal.0,
            // In 32-bit programs frames have the vDSO's restorer, which stays when we go.
            flags: flags_for(&old) & if SHORT { !flags::RESTORER } else { u64::MAX },
            restorer: regions.globals.restorer.0,
            mask: 0,
        };
        replace_action(stopped, signal, buffer, &ours, if is_plain { old_at } else { Va(0) })?;
    }
    open_actions(regions, stopped, buffer, new, caught & !(before | new))?;
    open_threads(regions, stopped, mappings, new)
}

/// Says whether bad addresses may be read directly. In 32-bit programs they never are: signals of ours may be blocked in their
/// handlers.
pub(crate) fn set_readable(regions: &Regions, process: &Process, readable: bool) -> Result<(), SessionError> {
    Ok(process.write(at!(regions.private, readable), &u32::from(readable && !SHORT).to_ne_bytes())?)
}

fn action(stopped: &mut Stopped, signal: i32, buffer: Va) -> Result<SigAction, SessionError> {
    Remote(stopped).sigaction(signal, Va(0), buffer)?;
    read_action(stopped, buffer)
}

/// An action as the kernel has put it there.
fn read_action(stopped: &Stopped, at: Va) -> Result<SigAction, SessionError> {
    let mut bytes = [0; size_of::<SigAction>()];
    stopped.read(at, &mut bytes)?;
    let short = || from_bytes::<SigAction32>(&bytes).map(|action| action.wide());
    Ok(if SHORT { short() } else { from_bytes(&bytes) }.unwrap_or_default())
}

fn set_action(stopped: &mut Stopped, signal: i32, buffer: Va, action: &SigAction) -> Result<(), SessionError> {
    replace_action(stopped, signal, buffer, action, Va(0))
}

/// The same; the old one is put to `old` in the target, unless that is 0.
fn replace_action(
    stopped: &mut Stopped,
    signal: i32,
    buffer: Va,
    action: &SigAction,
    old: Va,
) -> Result<(), SessionError> {
    let short = action.short();
    stopped.write(buffer, if SHORT { bytes_of(&short) } else { bytes_of(action) })?;
    Ok(Remote(stopped).sigaction(signal, buffer, old)?)
}

/// Handlers of other signals must not run with signals of ours blocked. `caught`: those that have a handler.
fn open_actions(
    regions: &Regions,
    stopped: &mut Stopped,
    buffer: Va,
    new: u64,
    caught: u64,
) -> Result<(), SessionError> {
    let mut blocking: [u64; SIGNALS.len()] = stopped.read_pod(at!(regions.private, blocking))?;
    let handled = caught & !(set_of(libc::SIGKILL) | set_of(libc::SIGSTOP));
    for signal in (1..=LAST).filter(|s| handled & set_of(*s) != 0) {
        let mut action = action(stopped, signal, buffer)?;
        if action.mask & new == 0 || action.handler <= 1 {
            continue;
        }
        for (set, ours) in blocking.iter_mut().zip(SIGNALS) {
            if action.mask & new & set_of(ours) != 0 {
                *set |= set_of(signal);
            }
        }
        stopped.write(at!(regions.private, blocking), &blocking.map(u64::to_ne_bytes).concat())?;
        action.mask &= !new;
        set_action(stopped, signal, buffer, &action)?;
    }
    Ok(())
}

/// Threads, and the masks that signal frames on their stacks will restore.
fn open_threads(regions: &Regions, stopped: &mut Stopped, mappings: &[Mapping], new: u64) -> Result<(), SessionError> {
    // What stays blocked in a thread when its signal handlers have returned.
    let mut after: HashMap<i32, u64> = HashMap::new();
    for position in survey::positions(stopped, mappings)? {
        if let Place::SignalFrame { frame, tid } = position.place {
            let mask_at = frame.mask_at;
            let mask: u64 = stopped.read_pod(mask_at)?;
            *after.entry(tid).or_insert(u64::MAX) &= mask;
            if mask & new != 0 {
                stopped.write(mask_at, &(mask & !new).to_ne_bytes())?;
            }
        }
    }
    let mut closed: HashMap<i32, u64> = HashMap::new();
    for signal in SIGNALS.into_iter().filter(|s| new & set_of(*s) != 0) {
        for tid in stopped.unblock(signal)? {
            *closed.entry(tid).or_default() |= set_of(signal);
        }
    }
    let threads: Vec<_> = stopped.threads().iter().map(|t| (t.tid, t.regs.thread_pointer(), t.regs.sp())).collect();
    for (tid, fs_base, sp) in threads {
        let Some(now) = closed.get(&tid) else { continue };
        let after = after.get(&tid).copied().unwrap_or(u64::MAX);
        note(regions, stopped, fs_base.0, Blocked { now: *now, after: now & after, sp: sp.0 })?;
    }
    Ok(())
}

/// Notes what a thread has blocked: in its state, or where its state will find it.
fn note(regions: &Regions, stopped: &Stopped, fs_base: u64, new: Blocked) -> Result<(), SessionError> {
    let add = |at: Va| -> Result<(), SessionError> {
        let old: [u64; 3] = stopped.read_pod(at)?;
        let sum = Blocked { now: old[0] | new.now, after: old[1] & old[0] | new.after, sp: new.sp };
        Ok(stopped.write(at, bytes_of(&sum))?)
    };
    for state in states(stopped.process(), regions.private)? {
        if state.1.fs_base == fs_base && fs_base != 0 {
            return add(Va(state.0.0 + offset_of!(ThreadState, blocked) as u64));
        }
    }
    let list = at!(regions.private, closed);
    let entries = read_array::<ClosedThread>(stopped.process(), list, CLOSED_MAX as u64)?;
    let known = entries.iter().position(|e| e.fs_base.load(Ordering::Relaxed) == fs_base);
    let free = || entries.iter().position(|e| e.fs_base.load(Ordering::Relaxed) == 0);
    let Some(index) = known.or_else(free) else { return Ok(()) };
    let at = list.0 + (index * size_of::<ClosedThread>()) as u64;
    add(Va(at + offset_of!(ClosedThread, blocked) as u64))?;
    Ok(stopped.write(Va(at), &fs_base.to_ne_bytes())?)
}

/// Puts back what the program believes, where ours is still the action in force. `buffer`: 128 bytes of the target;
/// `agent`: range of our handler; `set`: the signals that are ours.
pub(crate) fn restore(
    stopped: &mut Stopped,
    private: Va,
    buffer: Va,
    agent: std::ops::Range<u64>,
    set: u64,
) -> Result<(), SessionError> {
    let ours = || SIGNALS.into_iter().enumerate().filter(|(_, signal)| set & set_of(*signal) != 0);
    let there = Va(buffer.0 + size_of::<SigAction>() as u64);
    for (i, signal) in ours() {
        let old_at = at!(private, old).0 + (i * size_of::<SigAction>()) as u64;
        let old = read_one(stopped.process(), Va(old_at))?;
        replace_action(stopped, signal, buffer, &old, there)?;
        let replaced = read_action(stopped, there)?;
        if !agent.contains(&replaced.handler) {
            set_action(stopped, signal, buffer, &replaced)?;
        }
    }
    let blocking: [u64; SIGNALS.len()] = stopped.read_pod(at!(private, blocking))?;
    for signal in (1..=LAST).filter(|s| set & set_of(*s) == 0) {
        let mask = ours().filter(|(i, _)| blocking[*i] & set_of(signal) != 0).fold(0, |m, (_, s)| m | set_of(s));
        if mask != 0 {
            let mut action = action(stopped, signal, buffer)?;
            if action.handler > 1 {
                action.mask |= mask;
                set_action(stopped, signal, buffer, &action)?;
            }
        }
    }
    let mut blocked: HashMap<u64, u64> = HashMap::new();
    for closed in read_array::<ClosedThread>(stopped.process(), at!(private, closed), CLOSED_MAX as u64)? {
        *blocked.entry(closed.fs_base.into_inner()).or_default() |= closed.blocked.now;
    }
    for (_, state) in states(stopped.process(), private)? {
        *blocked.entry(state.fs_base).or_default() |= state.blocked.now;
    }
    let threads: Vec<_> = stopped.threads().iter().map(|t| (t.tid, t.regs.thread_pointer().0)).collect();
    for (tid, fs_base) in threads {
        let believed = blocked.get(&fs_base).copied().filter(|_| fs_base != 0).unwrap_or(0);
        for (_, signal) in ours().filter(|(_, signal)| believed & set_of(*signal) != 0) {
            stopped.block(tid, signal)?;
        }
    }
    Ok(())
}
