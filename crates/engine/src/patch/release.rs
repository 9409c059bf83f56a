//! Signals that a session has taken only so that its sites can be switched while the threads run.
//! When another one cannot do without them, its controller gives them up in the first one's name:
//! all that is needed is in the target's memory. The first counts on, and its sites are switched in
//! pauses from then on.
//!
//! All is done in one pause, in this order:
//!
//! 1. [`Header::signals`] becomes 0: nobody writes a trap of this session any more.
//! 2. The guards' sites get their original code, and the threads in their detours go back there.
//! 3. The program gets its actions and masks.
//! 4. The guards' entries are nobody's ([`JournalEntry::is_given_up`]), and `Signals::ours` becomes
//!    0.
//!
//! Until the last step `ours` says what a detach has to put back, or the next one who wants the
//! signals. A thread whose guard would have had an effect is waited for: one that has seen the
//! signals as ours would make the program's call as if they still were.

use std::collections::HashSet;
use std::mem::offset_of;
use std::time::Duration;

use sidestep_isa::Va;
use sidestep_sys::{Limit, Mapping, Process, Stopped, arch};
use sidestep_wire::header::ISLAND;
use sidestep_wire::signals::set_of;
use sidestep_wire::{Flow, Header, JournalEntry, Private, ProbeDesc};

use crate::error::SessionError;
use crate::memory::layout::PAGE;
use crate::patch::detach::{Journal, restore_text};
use crate::patch::share::Others;
use crate::patch::switch::{Switch, note};
use crate::target::discovery::{self, Found, Site, Text};
use crate::target::hold::Hold;
use crate::target::remote::{Room, mappings, stopped_mappings};
use crate::target::signals::{self, READS, TRAPS};
use crate::target::thread_positions::{self, Place, Position};

/// How long threads get to leave guards by themselves.
const PATIENCE: Duration = Duration::from_secs(3);
/// The frames of a thunk and of the agent are smaller, in bytes.
const FRAMES: u64 = 8 << 10;
/// Bytes of an address.
const WORD: usize = size_of::<arch::Word>();

/// The guards of a session that would do without the signals that it has taken; `None`: it needs
/// them.
pub(crate) fn spare_guards(process: &Process, found: &Found) -> Result<Option<Vec<Site>>, SessionError> {
    if found.detaching || found.is_child(process) || !is_spare(process, found)? {
        return Ok(None);
    }
    let follow = follows(process, found)?;
    let (guards, sites): (Vec<Site>, Vec<Site>) = found
        .sites(process)?
        .into_iter()
        .filter(|site| site.entry.newest != 0 && site.entry.len != 0)
        .partition(is_guard);
    let maps = mappings(process)?;
    let others = Others::of(process, &maps, Some(found.shared_va))?;
    if follow || guards.iter().any(|guard| others.are_at(guard.entry.site)) {
        return Ok(None);
    }
    // Somebody was killed while he gave them up: nothing relies on them any more.
    if found.signals == 0 {
        return Ok(Some(guards));
    }
    let traps = found.traps(process)?;
    let needs = |site: &Site| {
        let entry = &site.entry;
        let is = |flag: u32| site.probes.iter().any(|(_, desc)| desc.flags & flag != 0);
        // Of a guarded jump, or of a site inside that blocks this one while it is enabled.
        let inner = || traps.range(entry.inner(entry.reach())).next().is_some();
        site.probes.iter().any(|(_, desc)| is_signal_call(desc))
            || entry.is_trap()
            || entry.optimized == 0
            || entry.blocked != 0
            || is(ProbeDesc::POST)
            || inner()
            || discovery::text(process, &maps, entry) == Text::Trapped
    };
    Ok(if sites.iter().any(needs) { None } else { Some(guards) })
}

/// The guards of a session whose detach was given up, as a thread does not leave its code. The
/// users' sites are restored, so nothing needs a trap. `None`: that thread may read bad addresses,
/// or somebody else is at the guards' sites.
fn left_guards(process: &Process, found: &Found) -> Result<Option<Vec<Site>>, SessionError> {
    if found.is_child(process) || signals::are_readable(process, found.private_va)? || follows(process, found)? {
        return Ok(None);
    }
    let others = Others::of(process, &mappings(process)?, Some(found.shared_va))?;
    let guards = |site: &Site| site.entry.own == 1 && site.probes.iter().any(|(_, desc)| is_signal_call(desc));
    let guards: Vec<Site> = found.sites(process)?.into_iter().filter(guards).collect();
    Ok(if guards.iter().any(|guard| others.are_at(guard.entry.site)) { None } else { Some(guards) })
}

fn follows(process: &Process, found: &Found) -> Result<bool, SessionError> {
    Ok(process.read_pod::<u32>(Va(found.private_va.0 + offset_of!(Private, follow) as u64))? != 0)
}

/// Does a session need none of its signals? SIGTRAP is there for sites that are written while the
/// threads run, SIGSEGV and SIGBUS for stacks that end, which is worth no other session's probes;
/// but if they guard reads, they stay.
fn is_spare(process: &Process, found: &Found) -> Result<bool, SessionError> {
    Ok(found.taken & !READS == TRAPS && !signals::are_readable(process, found.private_va)?)
}

/// Is it a site of our own for nothing but a system call?
fn is_guard(site: &Site) -> bool {
    site.entry.own == 1 && site.probes.iter().all(|(_, desc)| is_signal_call(desc))
}

fn is_signal_call(desc: &ProbeDesc) -> bool {
    desc.flow == Flow::SignalCall as u32
}

/// Gives up the signals of a session that would do without them, by who has the turn. `room`: for
/// remote calls. On an error nothing has changed.
pub(crate) fn release(hold: &mut Hold<'_>, found: &Found, room: &Room) -> Result<(), SessionError> {
    match spare_guards(&hold.process(), found)? {
        Some(guards) => release_guards(hold, found, &guards, room),
        None => Ok(()),
    }
}

/// The same of a session whose detach has been given up, as a thread does not leave its code: the
/// users' sites are restored.
pub(crate) fn release_left(hold: &mut Hold<'_>, found: &Found, room: &Room) -> Result<(), SessionError> {
    match left_guards(&hold.process(), found)? {
        Some(guards) => release_guards(hold, found, &guards, room),
        None => Ok(()),
    }
}

fn release_guards(hold: &mut Hold<'_>, found: &Found, guards: &[Site], room: &Room) -> Result<(), SessionError> {
    let process = hold.process();
    let others = Others::of(&process, &mappings(&process)?, Some(found.shared_va))?;
    let guards = Guards {
        found,
        journal: Journal::of(&process, found, &others)?,
        indices: guards.iter().map(|guard| guard.index).collect(),
    };
    let limit = Limit::after(PATIENCE);
    let mut pause = Duration::from_micros(200);
    while !hold.stopped("signals", |stopped| guards.give_up(stopped, room))? {
        if limit.is_over() {
            return Err(SessionError::Occupied { pid: process.pid() });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    Ok(())
}

/// Ends what somebody has begun who was killed.
pub(crate) fn finish(hold: &mut Hold<'_>, shared: Va, room: &Room) -> Result<(), SessionError> {
    match discovery::at(&hold.process(), shared)? {
        Some(found) if found.signals == 0 && found.taken != 0 => release(hold, &found, room),
        _ => Ok(()),
    }
}

/// The guards of a session.
struct Guards<'f> {
    found: &'f Found,
    journal: Journal,
    /// In the journal.
    indices: Vec<usize>,
}

impl Guards<'_> {
    /// `false`: not as the threads stand, nothing has changed.
    fn give_up(&self, stopped: &mut Stopped, room: &Room) -> Result<bool, SessionError> {
        let Guards { found, journal, indices } = self;
        let process = stopped.process().clone();
        let maps = stopped_mappings(stopped)?;
        let positions = thread_positions::positions(stopped, &maps)?;
        if stopped.returning().is_some()
            || !stopped.awaiting(found.taken).is_empty()
            || self.are_in_use(stopped, &maps, &positions)
            || self.come_back(stopped, &positions)
        {
            return Ok(false);
        }
        stopped.write(Va(found.shared_va.0 + offset_of!(Header, signals) as u64), &0u64.to_ne_bytes())?;
        note(&process, found, indices, Switch::Off)?;
        let entries: Vec<&JournalEntry> = indices.iter().map(|index| &journal.entries[*index]).collect();
        restore_text(stopped, &maps, &entries)?;
        for position in positions.iter().filter(|position| self.detour_at(position.ip).is_some()) {
            if let Some((_, original)) = journal.original_of(stopped, position) {
                thread_positions::move_back(stopped, position, original)?;
            }
        }
        signals::restore(stopped, found, *room, &positions)?;
        for index in indices {
            let newest = found.entry(*index).0 + offset_of!(JournalEntry, newest) as u64;
            stopped.write(Va(newest), &0u32.to_ne_bytes())?;
        }
        signals::set_taken(stopped, found.private_va, 0)?;
        Ok(true)
    }

    /// Is a thread between a guard's site and its copies, or in the handler of a signal that would
    /// not be ours any more?
    fn are_in_use(&self, stopped: &Stopped, maps: &[Mapping], positions: &[Position]) -> bool {
        let caught = |position| caught(stopped, position, self.found.taken);
        let trapped: HashSet<i32> = positions.iter().filter_map(caught).collect();
        positions.iter().any(|position| match self.journal.detour_at(position.ip.0) {
            Some(index) => self.indices.contains(&index) && self.journal.original_of(stopped, position).is_none(),
            None if !self.journal.code.iter().any(|range| range.contains(&position.ip.0)) => false,
            // No program runs at a guard.
            None if self.is_in_program(position.ip) => trapped.contains(&position.place.tid()),
            None => trapped.contains(&position.place.tid()) || self.comes_from_guard(stopped, maps, position),
        })
    }

    /// Was a handler shown the original address of a fault inside a site? Its return goes through a
    /// guard to the copy.
    fn come_back(&self, stopped: &Stopped, positions: &[Position]) -> bool {
        let inside = |entry: &JournalEntry, ip: u64| entry.own != ISLAND && entry.is_around(ip);
        let is_inside = |ip: u64| self.journal.entries.iter().any(|entry| inside(entry, ip));
        positions.iter().any(|position| thread_positions::has_faulted(stopped, position) && is_inside(position.ip.0))
    }

    /// Is it in the code of a program? That lies in the agent's mapping, behind the page of code
    /// for several calls.
    fn is_in_program(&self, ip: Va) -> bool {
        let (start, len) = self.found.agent;
        let programs = (self.found.batch.0 | (PAGE - 1)) + 1;
        (programs..start + len).contains(&ip.0)
    }

    /// In a thunk or in the agent: does it come back to a guard's detour? That address is on its
    /// stack then; elsewhere a word that was left there may look like one.
    fn comes_from_guard(&self, stopped: &Stopped, maps: &[Mapping], position: &Position) -> bool {
        let sp = match position.place {
            Place::SignalFrame { frame, .. } => Some(frame.sp),
            Place::Thread { tid } => stopped.threads().iter().find(|t| t.tid == tid).map(|t| t.regs.sp()),
        };
        let Some(sp) = sp else { return true };
        let end = maps.iter().find(|m| m.contains(sp)).map_or(sp.0, |m| m.end.0);
        let mut stack = vec![0; FRAMES.min(end - sp.0) as usize];
        if stopped.read(sp, &mut stack).is_err() {
            return true;
        }
        let value = |word: &[u8]| word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        stack.windows(WORD).any(|word| self.detour_at(Va(value(word))).is_some())
    }

    /// The guard in whose detour an address is.
    fn detour_at(&self, ip: Va) -> Option<usize> {
        self.journal.detour_at(ip.0).filter(|index| self.indices.contains(index))
    }
}

/// The thread of a frame of a signal of a set.
fn caught(stopped: &Stopped, position: &Position, set: u64) -> Option<i32> {
    let Place::SignalFrame { frame, tid } = position.place else { return None };
    let signal: i32 = stopped.read_pod(frame.info_at?).ok()?;
    ((1..=64).contains(&signal) && set_of(signal) & set != 0).then_some(tid)
}
