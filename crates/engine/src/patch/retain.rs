//! What stays of a session that has ended, while others share its signals or rely on its guards:
//! the handler, the guards, and what is known of signals. Its probes are gone, and its agent does
//! what it does in a forked child that nobody follows: no program runs, nothing is counted. The
//! last one that needs it removes it ([`super::detach`]).

use std::collections::HashSet;
use std::mem::offset_of;
use std::ops::Range;

use sidestep_isa::{Len, Va};
use sidestep_sys::{Mapping, Stopped, arch};
use sidestep_wire::lookup::LOOKUP_BUCKETS;
use sidestep_wire::signals::SIGNALS;
use sidestep_wire::{JournalEntry, LookupEntry, LookupTable, Private, ThreadState, TrapEntry};

use crate::error::SessionError;
use crate::patch::detach::Journal;
use crate::patch::share::Others;
use crate::target::discovery::{self, Found, agents};
use crate::target::remote::stopped_mappings;
use crate::target::signals;
use crate::target::thread_positions::{self, Place, Position};

/// The frames of a thunk and of the agent are smaller, in bytes.
const FRAMES: u64 = 8 << 10;
/// Bytes of an address.
const WORD: usize = size_of::<arch::Word>();

/// Leaves nothing but that, while nobody is in the session's code but at copies in guards. May be
/// repeated.
pub(crate) fn retain(stopped: &Stopped, found: &Found, journal: &Journal) -> Result<(), SessionError> {
    let word = |offset: usize| Va(found.private_va.0 + offset as u64);
    let kept = |detour: u64| journal.detour_at(detour).is_some_and(|index| journal.kept.contains(&index));
    signals::forget_traps(stopped, found.private_va, |trap| !kept(trap.detour & !TrapEntry::RECORD))?;
    // As in a forked child that has noticed: no thread has cells, so no program runs.
    stopped.write(word(offset_of!(Private, follow)), &0u32.to_ne_bytes())?;
    stopped.write(word(offset_of!(Private, child)), &1u32.to_ne_bytes())?;
    for state in discovery::state_addresses(stopped.process(), found.private_va)? {
        for offset in [offset_of!(ThreadState, cells), offset_of!(ThreadState, counting)] {
            stopped.write(state.plus(Len(offset as u64)), &0u64.to_ne_bytes())?;
        }
    }
    take_cells(stopped, Va(stopped.read_pod(word(offset_of!(Private, lookup)))?))?;
    // The header of a forked child is its parent's.
    if !found.is_child(stopped.process()) {
        for index in (0..journal.entries.len()).filter(|index| !journal.kept.contains(index)) {
            let newest = found.entry(index).0 + offset_of!(JournalEntry, newest) as u64;
            stopped.write(Va(newest), &0u32.to_ne_bytes())?;
        }
    }
    signals::retain(stopped, found.private_va)
}

/// Takes the cells from the entries of a lookup table: hits take the slow path, where the thread's
/// state says that it has none. Which thread has an entry stays, as one may be about to fill it.
fn take_cells(stopped: &Stopped, table: Va) -> Result<(), SessionError> {
    let at = table.plus(Len(offset_of!(LookupTable, buckets) as u64));
    let mut buckets = vec![0; LOOKUP_BUCKETS * size_of::<LookupEntry>()];
    stopped.read(at, &mut buckets)?;
    for entry in buckets.chunks_exact_mut(size_of::<LookupEntry>()) {
        for offset in [offset_of!(LookupEntry, key), offset_of!(LookupEntry, cells)] {
            entry[offset..offset + size_of::<u64>()].fill(0);
        }
    }
    Ok(stopped.write(at, &buckets)?)
}

/// Threads that were seen outside of code since nothing leads into it that matters. The traps of
/// other sessions may keep the same agents busy, so a look that finds all threads outside may never
/// come. Each thread is waited for by itself, as in a grace period of RCU.
#[derive(Default)]
pub(crate) struct Outside(HashSet<i32>);

impl Outside {
    /// Looks once more. Gives a thread that was inside at each look.
    pub fn look(&mut self, stopped: &Stopped, inside: &HashSet<i32>) -> Option<i32> {
        let threads = || stopped.threads().iter().map(|thread| thread.tid);
        self.0.extend(threads().filter(|tid| !inside.contains(tid)));
        threads().find(|tid| !self.0.contains(tid))
    }

    /// Was this thread outside at any look?
    pub fn has(&self, tid: i32) -> bool {
        self.0.contains(&tid)
    }
}

/// The owner of the signals does nothing more for a session that shares them. Gives a thread that
/// may have looked into the session's memory before that, and has not come back since: in another
/// session's agent, for a signal or in a guard. May be repeated.
pub(crate) fn part(
    stopped: &Stopped,
    found: &Found,
    others: &Others,
    outside: &mut Outside,
) -> Result<Option<i32>, SessionError> {
    let mut handler = None;
    if others.sessions().iter().any(|other| other.private_va == found.owner) {
        signals::unshare(stopped, found.private_va, found.owner)?;
        handler = Some(signals::handler(stopped.process(), found.owner)?);
    }
    let (agents, guards, maps) = (agents(others.sessions()), others.guards(), stopped_mappings(stopped)?);
    let positions = thread_positions::positions(stopped, &maps)?;
    let trapped: HashSet<i32> = positions.iter().filter_map(|position| caught(stopped, position)).collect();
    let looks = |position: &Position| {
        let tid = position.place.tid();
        let sp = match position.place {
            // A thread that meets traps all the time mostly stops where its handler begins.
            Place::Thread { .. } if Some(position.ip) == handler => return None,
            Place::Thread { .. } => stopped.threads().iter().find(|thread| thread.tid == tid)?.regs.sp(),
            Place::SignalFrame { frame, .. } => frame.sp,
        };
        let is_inside = agents.iter().any(|agent| agent.contains(&position.ip.0));
        (is_inside && (trapped.contains(&tid) || comes_from(stopped, &maps, sp, &guards))).then_some(tid)
    };
    Ok(outside.look(stopped, &positions.iter().filter_map(looks).collect()))
}

/// The thread of a frame of a signal that may be ours.
fn caught(stopped: &Stopped, position: &Position) -> Option<i32> {
    let Place::SignalFrame { frame, tid } = position.place else { return None };
    let signal: i32 = stopped.read_pod(frame.info_at?).ok()?;
    SIGNALS.contains(&signal).then_some(tid)
}

/// Does code with this stack come back to one of these places? The address is on the stack then;
/// elsewhere a word that was left there may look like one.
fn comes_from(stopped: &Stopped, maps: &[Mapping], sp: Va, places: &[Range<u64>]) -> bool {
    let end = maps.iter().find(|m| m.contains(sp)).map_or(sp.0, |m| m.end.0);
    let mut stack = vec![0; FRAMES.min(end - sp.0) as usize];
    if stopped.read(sp, &mut stack).is_err() {
        return true;
    }
    let value = |word: &[u8]| word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    stack.windows(WORD).any(|word| places.iter().any(|place| place.contains(&value(word))))
}
