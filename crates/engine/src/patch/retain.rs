//! What stays of a session that has ended, while others share its signals or rely on its guards:
//! the handler, the guards, and what is known of signals. Its probes are gone, and its agent does
//! what it does in a forked child that nobody follows: no program runs, nothing is counted. When
//! the last of those others ends, its detach removes this, too ([`super::detach`]).

use std::collections::HashSet;
use std::mem::offset_of;

use sidestep_isa::{Len, Va};
use sidestep_sys::{Mapping, Stopped};
use sidestep_wire::lookup::LOOKUP_BUCKETS;
use sidestep_wire::signals::looking_mark;
use sidestep_wire::{JournalEntry, LookupEntry, LookupTable, Private, ThreadState, TrapEntry};

use crate::error::SessionError;
use crate::patch::journal::Journal;
use crate::patch::share::Others;
use crate::target::discovery::{self, Found, agents};
use crate::target::remote::stopped_mappings;
use crate::target::signals;
use crate::target::thread_positions::{self, Place, Position};

/// The frames of a thunk and of the agent are smaller, in bytes.
const FRAMES: u64 = 8 << 10;

/// Ends the session, but for what others need. Threads may be at copies in its guards, and nowhere
/// else in its code. May be repeated.
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
    // The journal in the header of a forked child is that of its parent.
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
    // Nothing is there if the owner's memory was unmapped by the program.
    if stopped.read_pod::<u64>(found.owner).is_ok() {
        signals::unshare(stopped, found.private_va, found.owner)?;
    }
    let (agents, maps) = (agents(others.sessions()), stopped_mappings(stopped)?);
    let looks = |position: &Position| {
        let tid = position.place.tid();
        let sp = match position.place {
            Place::Thread { .. } => stopped.threads().iter().find(|thread| thread.tid == tid)?.regs.sp(),
            Place::SignalFrame { frame, .. } => frame.sp,
        };
        let is_inside = agents.iter().any(|agent| agent.contains(&position.ip.0));
        (is_inside && has_mark(stopped, &maps, sp)).then_some(tid)
    };
    let positions = thread_positions::positions(stopped, &maps)?;
    Ok(outside.look(stopped, &positions.iter().filter_map(looks).collect()))
}

/// Is there a mark of code that looks into the memory of sharers on the stack of an agent? One may
/// be left by a handler of the program that has gone elsewhere by `longjmp`. Where the stack cannot
/// be read, there may be one.
fn has_mark(stopped: &Stopped, maps: &[Mapping], sp: Va) -> bool {
    let start = sp.0.next_multiple_of(4);
    // A stack may be several mappings, one behind the other.
    let mut end = start;
    for map in maps.iter().filter(|map| map.end.0 > start) {
        if map.start.0 > end || end - start >= FRAMES {
            break;
        }
        end = map.end.0.min(start.saturating_add(FRAMES));
    }
    let mut stack = vec![0; (end - start) as usize];
    if stack.is_empty() || stopped.read(Va(start), &mut stack).is_err() {
        return true;
    }
    let words = stack.windows(size_of::<u64>()).step_by(4);
    (start..).step_by(4).zip(words).any(|(at, word)| looking_mark(at).to_le_bytes() == word)
}
