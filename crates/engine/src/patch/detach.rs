//! Removing every trace, from what the target's own memory says. The end of a session and the
//! clean-up after a controller that was killed are the same code.

use std::collections::HashSet;
use std::mem::offset_of;
use std::ops::Range;
use std::time::Duration;

use sidestep_isa::{Len, Va};
use sidestep_sys::{Limit, Mapping, Process, Stopped};
use sidestep_wire::header::ISLAND;
use sidestep_wire::{Header, JournalEntry, MapEntry, MapKind};

use crate::api::Stops;
use crate::error::{Inside, SessionError};
use crate::patch::journal::Journal;
use crate::patch::pages::{pages, read_all, write_all};
use crate::patch::retain::{Outside, part, retain};
use crate::patch::returns;
use crate::patch::semaphore;
use crate::patch::share::Others;
use crate::patch::toggle;
use crate::patch::usher::{StillThere, Usher};
use crate::target::discovery::{self, Found, MEMFD_LINK, is_ours, is_written, original};
use crate::target::hold::{Hold, Turn, stop};
use crate::target::identity;
use crate::target::native::{self, Originals};
use crate::target::remote::{Remote, mappings, stopped_mappings};
use crate::target::signals;
use crate::target::thread_positions::{self, Place, Position};

/// How long is waited at most for a thread that runs in our code, before the next look.
const RUNNING_PAUSE: Duration = Duration::from_millis(2);
/// The same for a thread in a signal handler.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// More sites than can be restored in one pause that is short.
const MANY: u32 = 128;
/// How long threads get to leave our code by themselves.
const PATIENCE: Duration = Duration::from_secs(3);
/// The same, if a detach has been given up before.
const SHORT_PATIENCE: Duration = Duration::from_millis(300);
/// After that long, threads go on one by one, while all others stand ([`Usher`]).
const ALONE_AFTER: Duration = Duration::from_millis(300);
/// How long threads get in all, as long as they go on one by one: on a busy machine a thread waits
/// long for a CPU.
const LAST_PATIENCE: Duration = Duration::from_secs(30);

/// Removes everything of the sessions that `which` chooses, once `take` gives the turn. On success
/// nothing of theirs is left in the target. Says how it stood still meanwhile.
pub(crate) fn remove(
    process: &Process,
    take: impl FnOnce(&Process) -> Result<sidestep_sys::Turn, SessionError>,
    which: impl Fn(&Found) -> bool,
) -> Result<Stops, SessionError> {
    let chosen = || -> Result<Vec<Found>, SessionError> {
        let all = discovery::all(process, &mappings(process)?);
        Ok(all.into_iter().filter(&which).collect())
    };
    let mut stops = Stops::default();
    if chosen()?.is_empty() {
        return Ok(stops);
    }
    let _turn = take(process)?;
    // Somebody may have removed one of them, or finished one, before it was our turn. A thread that
    // is inside the code of one keeps none of the others.
    let mut inside = None;
    let mut remove = |found: &Found| match remove_one(process, found.shared_va) {
        Ok(more) => {
            stops.append(more);
            Ok(())
        }
        Err(error @ SessionError::StillInside { .. }) => {
            inside.get_or_insert(error);
            Ok(())
        }
        Err(error) => Err(error),
    };
    // Those that share signals go before their owner.
    let mut chosen = chosen()?;
    chosen.sort_by_key(|found| found.owner == Va(0));
    chosen.iter().try_for_each(&mut remove)?;
    for owners in [false, true] {
        unneeded(process, owners)?.iter().try_for_each(&mut remove)?;
    }
    inside.map_or(Ok(stops), Err)
}

/// The sessions that have ended and that nobody needs any more. `owners`: those that own signals,
/// or those that do not.
fn unneeded(process: &Process, owners: bool) -> Result<Vec<Found>, SessionError> {
    let maps = mappings(process)?;
    let all = discovery::all(process, &maps);
    let is_it = |found: &&Found| (found.owner == Va(0)) == owners && found.is_unneeded(&all);
    Ok(all.iter().filter(is_it).filter(|found| found.made_up(process, &maps).is_none()).copied().collect())
}

/// Removes a session, given by the address of its shared region.
fn remove_one(process: &Process, shared: Va) -> Result<Stops, SessionError> {
    // Many sites are restored before the threads stand. What this leaves is restored then, as is
    // all of a child.
    let many = discovery::at(process, shared)?.is_some_and(|found| found.journal.1 > MANY);
    let mut hold = Hold::running(process);
    if let (true, Ok(switched)) = (many, toggle::off(process, shared)) {
        hold.note_live(switched.sites - switched.stopped, switched.longest);
    }
    // Somebody may have waited for its threads before.
    let gave_up = |found: Found| found.detaching && !found.retained && !found.is_mine();
    let waited = discovery::at(process, shared)?.is_some_and(gave_up);
    let limit = Limit::after(if waited { SHORT_PATIENCE } else { PATIENCE });
    let alone_from = Limit::after(if waited { Duration::ZERO } else { ALONE_AFTER });
    let last_limit = Limit::after(LAST_PATIENCE);
    let (mut pause, mut usher, mut ran) = (Duration::from_micros(200), Usher::default(), false);
    let mut outside = Outside::default();
    loop {
        let Some(found) = discovery::at(process, shared)? else { return Ok(hold.stops()) };
        let others = Others::of(process, &mappings(process)?, Some(shared))?;
        let journal = Journal::of(process, &found, &others)?;
        if journal.is_needed && found.retained {
            return Ok(hold.stops());
        }
        let originals = Originals::of(process, &found)?;
        let suspended = process.is_suspended();
        process.use_gadgets(crate::target::regions::gadgets(found.batch));
        let waits = !limit.is_over() || ran && !last_limit.is_over();
        let mut end = |stopped: &mut Stopped| {
            let stay = restore(stopped, &found, &others, &journal, &originals, &mut outside, waits)?;
            if !stay.is_empty() {
                return Ok(stay);
            }
            if journal.is_needed {
                return retain(stopped, &found, &journal).map(|()| stay);
            }
            let tid = if found.owner == Va(0) { None } else { part(stopped, &found, &others, &mut outside)? };
            Ok::<_, SessionError>(tid.into_iter().map(StillThere::in_code).collect())
        };
        let acting = if found.owner == Va(0) { Vec::new() } else { discovery::agents(others.sessions()) };
        let code: Vec<Range<u64>> = journal.code.iter().cloned().chain(acting).collect();
        let (stay, sharing) = hold.stopped("restoring", |stopped| {
            let mut stay = end(stopped)?;
            if suspended || alone_from.is_over() {
                stay = usher.pass(stopped, &code, stay, suspended.then_some(pause), &mut end)?;
            }
            Ok((stay, identity::sharing(stopped)))
        })?;
        hold.note_sharing(sharing);
        let Some(inside) = stay.last() else {
            if !journal.is_needed {
                process.leave(&journal.code);
                unmap(&mut hold, &found)?;
            }
            return Ok(hold.stops());
        };
        ran = !suspended && stay.iter().all(|thread| usher.can_help(*thread));
        if !waits {
            let (pid, bytes) = (process.pid(), resident(process, &found)?);
            return Err(SessionError::StillInside { pid, tid: inside.tid, inside: inside.how, bytes });
        }
        std::thread::sleep(pause);
        // A handler may take long. A thread in our code runs, and each look finds it elsewhere with
        // the same probability: a program whose instructions fault all the time spends nine tenths
        // of the time in the kernel or in the agent.
        let longest = if inside.how == Inside::Code { RUNNING_PAUSE } else { LONGEST_PAUSE };
        pause = (pause * 2).min(longest);
    }
}

/// Bytes of memory that a session takes in the target: not of address space, most of which is never
/// used.
fn resident(process: &Process, found: &Found) -> Result<u64, SessionError> {
    let ours = found.mappings(process)?;
    let is_ours = |at: Va| ours.iter().any(|m| m.range().contains(&at.0));
    Ok(process.resident(is_ours).unwrap_or(0))
}

/// Restores text and return addresses; gives the threads that are still inside our code. May be
/// repeated. `waits`: it will be, so that no users' site has to go before our own do.
fn restore(
    stopped: &mut Stopped,
    found: &Found,
    others: &Others,
    journal: &Journal,
    originals: &Originals,
    outside: &mut Outside,
    waits: bool,
) -> Result<Vec<StillThere>, SessionError> {
    if found.controller_pid != 0 {
        stopped.write(Va(found.shared_va.0 + offset_of!(Header, detaching) as u64), &1u32.to_ne_bytes())?;
    }
    // Return addresses first and our own sites last: if we are killed in between, no trap is left
    // without its guards, and no replaced return address without its unwinders.
    if found.has_private(stopped.process()) {
        returns::restore(stopped, found, others.sessions())?;
    }
    let mappings = stopped_mappings(stopped)?;
    lower(stopped, found, &mappings, others, journal)?;
    let process = stopped.process().clone();
    let gone = journal.entries.iter().enumerate().filter(|(index, _)| !journal.kept.contains(index));
    let shared: Vec<&JournalEntry> = gone.map(|(_, entry)| entry).filter(|entry| others.know(entry)).collect();
    let is_last = |entry: &JournalEntry| journal.is_last(entry, waits);
    let written: Vec<&JournalEntry> = journal.written.iter().rev().map(|index| &journal.entries[*index]).collect();
    // Users' sites before our own, and islands after the sites that lead there.
    let restore_sites = |stopped: &mut Stopped, last: bool| {
        for kind in [0, 1, ISLAND] {
            let is_it = |entry: &&&JournalEntry| entry.own == kind && is_last(entry) == last;
            shared.iter().filter(is_it).try_for_each(|entry| others.unlink(&process, entry))?;
            let entries: Vec<&JournalEntry> = written.iter().filter(is_it).copied().collect();
            restore_text(stopped, &mappings, &entries)?;
        }
        Ok::<(), SessionError>(())
    };
    restore_sites(stopped, false)?;
    originals.restore(stopped)?;
    let mut positions = thread_positions::positions(stopped, &mappings)?;
    // A thread that has jumped to an island has not executed anything of the site. One that has
    // executed the trap in front of it is there, too, and its handler has yet to look at where that
    // was.
    for position in &positions {
        if let Some(site) = journal.islands.get(&position.ip.0) {
            if !(journal.has_site_at(position.ip.0 - 1) && thread_positions::has_trapped(stopped, position)) {
                thread_positions::move_to(stopped, position, *site)?;
            }
        }
    }
    let in_flight = returns::in_flight(stopped, found.trampoline, &journal.code, others.sessions(), &positions)?;
    let all_positions = positions.clone();
    // What other sessions need of the handler stays, and a thread that is about to execute its
    // first instruction has looked at nothing.
    let needed = journal.is_needed && found.owner == Va(0);
    let handler = needed.then(|| signals::handler(&process, found.private_va)).transpose()?;
    positions.retain(|p| journal.code.iter().any(|range| range.contains(&p.ip.0)) && !journal.stays_at(stopped, p));
    positions.retain(|p| Some(p.ip) != handler);
    let in_code = stopped.returning().or(in_flight).map(StillThere::in_code);
    let in_function = native::inside(stopped, found, &mappings)?.map(StillThere::in_function);
    // Where others are behind us, what we displaced has no place of its own to go on at: such a
    // thread leaves by itself.
    let movable = |entry: &JournalEntry| !others.know(entry) || !others.are_in(&process, entry);
    let original_of = |position| journal.original_of(stopped, position).filter(|(entry, _)| movable(entry));
    let targets: Vec<Option<(&JournalEntry, Va)>> = positions.iter().map(original_of).collect();
    let stays = |(position, original): (&Position, &Option<_>)| match (original, position.place) {
        (Some(_), _) => None,
        (None, Place::Thread { tid }) => Some(StillThere::in_code(tid)),
        (None, Place::SignalFrame { tid, .. }) => Some(StillThere::in_handler(tid)),
    };
    let mut stay: Vec<StillThere> = positions.iter().zip(&targets).filter_map(stays).collect();
    // What stays works for other sessions meanwhile, so each thread is waited for by itself. The
    // memory stays, too.
    if journal.is_needed {
        let acting = acts_for(stopped, &all_positions, others, journal)?;
        stay.retain(|still| !acting.contains(&still.tid));
        outside.look(stopped, &stay.iter().map(|still| still.tid).collect());
        stay.retain(|still| !outside.has(still.tid));
    }
    stay.splice(0..0, in_function.into_iter().chain(in_code));
    // A thread in the agent may be about to replace a return address or to meet a trap: then our
    // own sites stay for now.
    if stay.is_empty() {
        if found.taken != 0 && !journal.is_needed {
            signals::end(stopped, found.private_va)?;
        }
        restore_sites(stopped, true)?;
    }
    for (position, original) in positions.iter().zip(targets) {
        match original {
            Some((entry, at)) if stay.is_empty() || !is_last(entry) => {
                thread_positions::move_back(stopped, position, at)?
            }
            _ => {}
        }
    }
    if stay.is_empty() && found.taken != 0 && !journal.is_needed {
        signals::restore(stopped, found, found.room(), &all_positions)?;
    }
    Ok(stay)
}

/// Threads in our handler for the sake of traps of other sessions. All that they execute of ours is
/// the handler, unless a signal has come meanwhile.
fn acts_for(
    stopped: &Stopped,
    positions: &[Position],
    others: &Others,
    journal: &Journal,
) -> Result<HashSet<i32>, SessionError> {
    let mut traps = HashSet::new();
    for found in others.sessions() {
        traps.extend(found.traps(stopped.process())?.into_keys());
    }
    let (mut acting, mut interrupted) = (HashSet::new(), HashSet::new());
    for position in positions {
        let (Place::SignalFrame { tid, .. }, Va(ip)) = (position.place, position.ip) else { continue };
        if journal.code.iter().any(|range| range.contains(&ip)) {
            interrupted.insert(tid);
        }
        let theirs = thread_positions::trap_places(position.ip).iter().any(|at| traps.contains(at));
        if theirs && thread_positions::has_trapped(stopped, position) {
            acting.insert(tid);
        }
    }
    Ok(acting.difference(&interrupted).copied().collect())
}

/// Lowers the semaphores of sites that are still written: where a library was unloaded, something
/// else may be now.
fn lower(
    stopped: &mut Stopped,
    found: &Found,
    mappings: &[Mapping],
    others: &Others,
    journal: &Journal,
) -> Result<(), SessionError> {
    let written = journal.written.iter().map(|index| (*index, &journal.entries[*index]));
    let process = stopped.process().clone();
    let is_due = |entry: &JournalEntry| {
        let written = is_written(&process, mappings, entry) || others.leads_to(&process, entry);
        written && entry.is_raised()
    };
    let due = written.filter(|(_, entry)| entry.semaphore != 0 && is_due(entry));
    let changes = due.map(|(index, entry)| semaphore::Change {
        entry: found.entry(index),
        semaphore: Va(entry.semaphore),
        raised: false,
    });
    semaphore::change(stopped, &found.room(), &changes.collect::<Vec<_>>())
}

/// Puts back what was there, a page at a time. Of a place that has two entries the first is right:
/// the other one is older.
pub(crate) fn restore_text(
    stopped: &mut Stopped,
    mappings: &[Mapping],
    entries: &[&JournalEntry],
) -> Result<(), SessionError> {
    let mut sorted = entries.to_vec();
    sorted.sort_by_key(|entry| entry.site);
    let process = stopped.process();
    let pages: Vec<&[&JournalEntry]> = pages(&sorted, |entry| entry.site).collect();
    let mut texts = read_all(process, &pages, |entry| (entry.site, usize::from(entry.len)));
    for (text, page) in texts.iter_mut().zip(&pages) {
        for entry in *page {
            let len = usize::from(entry.len);
            match text.at(entry.site, len) {
                Some(now) if is_ours(now, mappings, entry) => {
                    let old = original(now, mappings, entry);
                    text.put(entry.site, &old);
                }
                Some(_) => {}
                // A place next to it has been unmapped.
                None if is_written(process, mappings, entry) => process.write(Va(entry.site), &entry.old[..len])?,
                None => {}
            }
        }
    }
    Ok(write_all(process, &texts)?)
}

/// Unmaps everything of ours, the list last. Nobody is in there, and nothing leads there any more.
fn unmap(hold: &mut Hold<'_>, found: &Found) -> Result<(), SessionError> {
    let process = hold.process();
    let ours = found.mappings(&process)?;
    let shared = |m: &&MapEntry| m.kind == MapKind::Shared as u32 || m.addr == found.shared_va.0;
    let maps = mappings(&process)?;
    // Each once, whatever the target has listed: threads stand still meanwhile.
    let mut listed = HashSet::new();
    let rest: Vec<&MapEntry> =
        ours.iter().filter(|m| !shared(m) && listed.insert((m.addr, m.len))).filter(|m| is_there(m, &maps)).collect();
    hold.in_turns(
        |_| "unmapping",
        &rest,
        |_| Ok(()),
        |stopped, (), entry| {
            Remote(stopped).unmap(Va(entry.addr), Len(entry.len))?;
            Ok(Turn::Done)
        },
    )?;
    let listed = ours.iter().find(shared).map(|m| Len(m.len));
    // Killed before it was listed.
    let len = listed.unwrap_or_else(|| discovery::mapped_len(&maps, found.shared_va));
    let left_open = !process.descriptors(MEMFD_LINK).is_empty();
    hold.stopped("unmapping", |stopped| {
        let mut remote = Remote(stopped);
        if left_open {
            close_all(&mut remote)?;
        }
        if len == Len(0) {
            return Ok(());
        }
        Ok(remote.unmap(found.shared_va, len)?)
    })
}

/// Is a listed mapping there? A controller may have died before it was made, or after it was
/// unmapped, and the program may have put something else there.
fn is_there(entry: &MapEntry, maps: &[Mapping]) -> bool {
    let code = entry.kind == MapKind::Agent as u32 || entry.kind == MapKind::Slab as u32;
    let Range { start, end } = entry.range();
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
    let mut stopped = stop(process)?;
    close_all(&mut Remote(&mut stopped))?;
    Ok(stopped.resume()?)
}
