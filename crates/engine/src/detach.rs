//! Removing every trace, from what the target's own memory says. The end of a session and the clean-up after a
//! controller that was killed are the same code.

use std::mem::offset_of;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use sidestep_isa::{Len, Va};
use sidestep_sys::{Mapping, Process, Stopped};
use sidestep_wire::header::{ISLAND, MAGIC, VERSION};
use sidestep_wire::{Header, JournalEntry, MapEntry, MapKind, Private, SemaphoreState, ShadowEntry, ThreadState};

use crate::error::SessionError;
use crate::raw::{Plain, bytes_of, from_bytes};
use crate::remote::{Remote, mappings};
use crate::survey::{self, Place};

/// How our memfd shows in `/proc/PID/maps` and `/proc/PID/fd`.
const MEMFD_LINK: &str = "/memfd:sidestep";
/// How long threads get to leave our code by themselves.
const PATIENCE: Duration = Duration::from_secs(3);

/// The header of a shared region as read from a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub shared_va: Va,
    pub controller_pid: i32,
    pub controller_start: u64,
    pub target_pid: i32,
    private_va: Va,
    agent: (u64, u64),
    trampoline: u64,
    journal: (u64, u32),
    maps: (u64, u32),
    signals: u64,
}

/// Looks for a shared region among the mappings of a process.
pub(crate) fn find(process: &Process, mappings: &[Mapping]) -> Result<Option<Found>, SessionError> {
    for mapping in mappings {
        if !mapping.name.to_string_lossy().starts_with(MEMFD_LINK) || mapping.exec {
            continue;
        }
        let mut head = [0; size_of::<Header>()];
        if process.read(mapping.start, &mut head).is_err() {
            continue;
        }
        let word = |off: usize| u64::from_ne_bytes(head[off..off + 8].try_into().unwrap_or_default());
        let half = |off: usize| u32::from_ne_bytes(head[off..off + 4].try_into().unwrap_or_default());
        if word(offset_of!(Header, magic)) != MAGIC {
            // Killed before anything else was mapped, or no region of ours.
            if half(offset_of!(Header, controller_pid)) == 0 || half(offset_of!(Header, version)) == VERSION {
                return Ok(Some(Found::bare(mapping.start)));
            }
            continue;
        }
        if half(offset_of!(Header, version)) != VERSION {
            return Err(SessionError::ForeignVersion { pid: process.pid() });
        }
        return Ok(Some(Found {
            shared_va: mapping.start,
            controller_pid: half(offset_of!(Header, controller_pid)) as i32,
            controller_start: word(offset_of!(Header, controller_start)),
            target_pid: half(offset_of!(Header, target_pid)) as i32,
            private_va: Va(word(offset_of!(Header, private_va))),
            agent: (word(offset_of!(Header, agent_va)), word(offset_of!(Header, agent_len))),
            trampoline: word(offset_of!(Header, trampoline_va)),
            journal: (word(offset_of!(Header, journal_off)), half(offset_of!(Header, journal_len))),
            maps: (word(offset_of!(Header, maps_off)), half(offset_of!(Header, maps_len))),
            signals: word(offset_of!(Header, signals)),
        }));
    }
    Ok(None)
}

impl Found {
    fn bare(shared_va: Va) -> Found {
        Found {
            shared_va,
            controller_pid: 0,
            controller_start: 0,
            target_pid: 0,
            private_va: Va(0),
            agent: (0, 0),
            trampoline: 0,
            journal: (0, 0),
            maps: (0, 0),
            signals: 0,
        }
    }

    /// Is the controller that made this still there?
    pub fn controller_alive(&self) -> bool {
        self.controller_pid > 0 && sidestep_sys::start_time_of(self.controller_pid) == Some(self.controller_start)
    }

    /// Is the private region there? Not yet, or not any more, if a controller died while it mapped or unmapped. (The
    /// header cannot say: forked children share it.)
    fn has_private(&self, stopped: &Stopped) -> bool {
        self.private_va != Va(0)
            && stopped.read_pod::<u64>(self.private_va).is_ok_and(|shared| shared == self.shared_va.0)
    }

    fn journal(&self, stopped: &Stopped) -> Result<Vec<JournalEntry>, SessionError> {
        read_array(stopped, Va(self.shared_va.0 + self.journal.0), u64::from(self.journal.1))
    }

    fn mappings(&self, stopped: &Stopped) -> Result<Vec<MapEntry>, SessionError> {
        // The agent may have appended since the header was read.
        let mut len = [0; 4];
        stopped.read(Va(self.shared_va.0 + offset_of!(Header, maps_len) as u64), &mut len)?;
        let entries: Vec<MapEntry> =
            read_array(stopped, Va(self.shared_va.0 + self.maps.0), u64::from(u32::from_ne_bytes(len)))?;
        Ok(entries.into_iter().filter(|e| e.kind != 0 && e.len != 0).collect())
    }
}

/// The states of all threads that have hit a probe, and where they are.
pub(crate) fn states(stopped: &Stopped, private: Va) -> Result<Vec<(Va, ThreadState)>, SessionError> {
    let head: Private = read_one(stopped, private)?;
    let shared = |off: usize| stopped.read_pod::<u32>(Va(head.shared + off as u64));
    let slots = shared(offset_of!(Header, slots_used))?.min(shared(offset_of!(Header, slots_max))?);
    let given = slots.max(head.states_used.into_inner());
    let state = |i: u32| {
        let at = Va(head.states + u64::from(i) * head.state_stride);
        Ok((at, read_one(stopped, at)?))
    };
    (0..given).map(state).collect()
}

pub(crate) fn read_array<T: Plain>(stopped: &Stopped, at: Va, count: u64) -> Result<Vec<T>, SessionError> {
    let mut bytes = vec![0; count as usize * size_of::<T>()];
    stopped.read(at, &mut bytes)?;
    Ok(bytes.chunks_exact(size_of::<T>()).filter_map(from_bytes).collect())
}

/// Removes everything. On success nothing of ours is left in the target.
pub(crate) fn remove(process: &Process, mappings: &[Mapping]) -> Result<(), SessionError> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        let Some(found) = find(process, mappings)? else { return Ok(()) };
        let mut stopped = process.stop()?;
        let inside = restore(&mut stopped, &found)?;
        let Some(tid) = inside else {
            unmap(&mut stopped, &found)?;
            stopped.resume()?;
            return Ok(());
        };
        let bytes = found.mappings(&stopped)?.iter().map(|m| m.len).sum();
        stopped.resume()?;
        if start.elapsed() > PATIENCE {
            return Err(SessionError::StillInside { pid: process.pid(), tid, bytes });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Restores text and return addresses; gives a thread that is still inside our code, if any.
/// May be repeated.
fn restore(stopped: &mut Stopped, found: &Found) -> Result<Option<i32>, SessionError> {
    let journal = found.journal(stopped)?;
    // Return addresses first and our own sites last: if we are killed in between, no trap is left without its guards, and no
    // replaced return address without its unwinders.
    if found.has_private(stopped) {
        restore_returns(stopped, found)?;
    }
    lower(stopped, found, &journal)?;
    let (own, users): (Vec<_>, Vec<_>) = journal.iter().rev().partition(|e| e.own == 1);
    restore_text(stopped, &users)?;
    let mappings = mappings(stopped.process())?;
    let ours = found.mappings(stopped)?;
    let code: Vec<(u64, u64)> = ours
        .iter()
        .filter(|m| m.kind == MapKind::Agent as u32 || m.kind == MapKind::Slab as u32)
        .map(|m| (m.addr, m.addr + m.len))
        .collect();
    let mut positions = survey::positions(stopped, &mappings)?;
    // A thread that has jumped to an island has not executed anything of the site.
    let island = |ip: Va| journal.iter().find(|e| e.own == ISLAND && e.site == ip.0).map(|e| Va(e.detour));
    for position in &positions {
        if let Some(site) = island(position.ip) {
            survey::move_to(stopped, position, site)?;
        }
    }
    positions.retain(|p| code.iter().any(|(start, end)| (*start..*end).contains(&p.ip.0)));
    // A thread may have executed a trap and not got its signal yet: the handler must still be there.
    let mut inside =
        if found.signals & crate::signals::TRAPS != 0 { stopped.awaiting(libc::SIGTRAP).pop() } else { None };
    for position in &positions {
        if original_of(&journal, position.ip.0).is_none() {
            inside = Some(match position.place {
                Place::Thread { tid } | Place::SignalFrame { tid, .. } => tid,
            });
        }
    }
    // A thread in the agent may be about to replace a return address or to meet a trap: then our own sites stay for now.
    if inside.is_none() {
        restore_text(stopped, &own)?;
    }
    for position in &positions {
        let restored = |e: &&JournalEntry| inside.is_none() || e.own == 0;
        if let Some(at) = original_of(journal.iter().filter(restored), position.ip.0) {
            survey::move_to(stopped, position, at)?;
        }
    }
    Ok(inside)
}

/// Lowers the semaphores of sites that are still written: where a library was unloaded, something else may be now.
fn lower(stopped: &mut Stopped, found: &Found, journal: &[JournalEntry]) -> Result<(), SessionError> {
    // A forked child has its own semaphores, but no journal of its own: they were raised when it was forked.
    let child = found.target_pid != stopped.process().pid();
    for (index, entry) in journal.iter().enumerate().filter(|(_, e)| e.semaphore != 0) {
        let Ok(now) = stopped.read_pod::<u16>(Va(entry.semaphore)) else { continue };
        if !is_written(stopped, entry) || now == 0 || !(child || entry.is_raised(now)) {
            continue;
        }
        let at = found.shared_va.0 + found.journal.0 + (index * size_of::<JournalEntry>()) as u64;
        let announce = |stopped: &mut Stopped, state: SemaphoreState| match child {
            true => Ok(()),
            false => stopped.write(
                Va(at + offset_of!(JournalEntry, semaphore_state) as u64),
                bytes_of(&(state as u64 | u64::from(now) << 32)),
            ),
        };
        announce(stopped, SemaphoreState::Lowering)?;
        stopped.write(Va(entry.semaphore), &(now - 1).to_ne_bytes())?;
        announce(stopped, SemaphoreState::Low)?;
    }
    Ok(())
}

/// Is our patch at the site? A site whose library was unloaded is gone; one that somebody else has changed since is not
/// ours to restore.
fn is_written(stopped: &Stopped, entry: &JournalEntry) -> bool {
    let mut now = vec![0; usize::from(entry.len)];
    stopped.read(Va(entry.site), &mut now).is_ok() && now == entry.new[..usize::from(entry.len)]
}

fn restore_text(stopped: &mut Stopped, entries: &[&JournalEntry]) -> Result<(), SessionError> {
    for entry in entries {
        if is_written(stopped, entry) {
            stopped.write(Va(entry.site), &entry.old[..usize::from(entry.len)])?;
        }
    }
    Ok(())
}

/// The original of an address in a detour at which no handler is under way.
fn original_of<'a>(journal: impl IntoIterator<Item = &'a JournalEntry>, ip: u64) -> Option<Va> {
    let entry = journal.into_iter().find(|e| (e.detour..e.detour + u64::from(e.detour_len)).contains(&ip))?;
    let offset = ip - entry.detour;
    if offset == 0 {
        return Some(Va(entry.site));
    }
    let copies = &entry.insns[..usize::from(entry.insns_len).min(entry.insns.len())];
    copies.iter().find(|(_, to)| u64::from(*to) == offset).map(|(from, _)| Va(entry.site + u64::from(*from)))
}

/// Puts the real return addresses back into all stack slots that still hold the trampoline's.
fn restore_returns(stopped: &mut Stopped, found: &Found) -> Result<(), SessionError> {
    if found.trampoline == 0 {
        return Ok(());
    }
    let mut slots: Vec<ShadowEntry> = Vec::new();
    for (_, state) in states(stopped, found.private_va)? {
        let len = AtomicU64::into_inner(state.shadow_len).min(state.shadow_cap);
        if state.shadow != 0 && len != 0 {
            slots.extend(read_array::<ShadowEntry>(stopped, Va(state.shadow), len)?);
        }
    }
    // Several entries may name one stack slot: probes on one frame (chained to the trampoline), or a dead one and its
    // successor. The newest entry with a real address is right.
    slots.retain(|e| e.slot != 0 && e.ret != found.trampoline);
    slots.sort_by_key(|e| std::cmp::Reverse(e.time));
    for entry in slots {
        let mut word = [0; 8];
        if stopped.read(Va(entry.slot), &mut word).is_ok() {
            let newest_wins = u64::from_ne_bytes(word);
            if newest_wins == found.trampoline {
                stopped.write(Va(entry.slot), &entry.ret.to_ne_bytes())?;
            }
        }
    }
    Ok(())
}

pub(crate) fn read_one<T: Plain>(stopped: &Stopped, at: Va) -> Result<T, SessionError> {
    let mut all = read_array(stopped, at, 1)?;
    all.pop().ok_or(SessionError::TooMany { what: "nothing" })
}

/// Unmaps everything of ours, the list last.
fn unmap(stopped: &mut Stopped, found: &Found) -> Result<(), SessionError> {
    let ours = found.mappings(stopped)?;
    if found.signals != 0 && found.has_private(stopped) {
        let buffer = Va(found.private_va.0 + crate::regions::SCRATCH);
        let agent = found.agent.0..found.agent.0 + found.agent.1;
        crate::signals::restore(stopped, found.private_va, buffer, agent, found.signals)?;
    }
    let shared = |m: &&MapEntry| m.kind == MapKind::Shared as u32 || m.addr == found.shared_va.0;
    let maps = mappings(stopped.process())?;
    let child = found.target_pid != stopped.process().pid();
    let foreign = |m: &&MapEntry| child && m.kind == MapKind::Grown as u32;
    let mut remote = Remote(stopped);
    for entry in ours.iter().filter(|m| !shared(m) && !foreign(m)).filter(|m| is_there(m, &maps)) {
        remote.unmap(Va(entry.addr), Len(entry.len))?;
    }
    close_all(&mut remote)?;
    let len = ours.iter().find(shared).map(|m| m.len).or_else(|| {
        let maps = remote.0.process().maps().ok()?;
        maps.iter().find(|m| m.start == found.shared_va).map(|m| m.end.0 - m.start.0)
    });
    if let Some(len) = len {
        remote.unmap(found.shared_va, Len(len))?;
    }
    Ok(())
}

/// Is a listed mapping there? A controller may have died before it was made, or after it was unmapped, and the program
/// may have put something else there.
fn is_there(entry: &MapEntry, maps: &[Mapping]) -> bool {
    let code = entry.kind == MapKind::Agent as u32 || entry.kind == MapKind::Slab as u32;
    let (start, end) = (entry.addr, entry.addr + entry.len);
    let mut at = start;
    for m in maps.iter().filter(|m| m.start.0 < end && m.end.0 > start) {
        if m.start.0 > at || !m.name.is_empty() || m.exec != code || m.write == code {
            return false;
        }
        at = m.end.0;
    }
    at >= end
}

/// A controller that was killed between making the memfd and closing it left a descriptor.
fn close_all(remote: &mut Remote<'_>) -> Result<(), SessionError> {
    for fd in remote.0.process().descriptors(MEMFD_LINK) {
        remote.close(fd)?;
    }
    Ok(())
}

/// The same for a process that has no region of ours.
pub(crate) fn close_descriptors(process: &Process) -> Result<(), SessionError> {
    if process.descriptors(MEMFD_LINK).is_empty() {
        return Ok(());
    }
    let mut stopped = process.stop()?;
    close_all(&mut Remote(&mut stopped))?;
    Ok(stopped.resume()?)
}
