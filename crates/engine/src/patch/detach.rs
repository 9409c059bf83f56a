//! Removing every trace, from what the target's own memory says. The end of a session and the
//! clean-up after a controller that was killed are the same code.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem::offset_of;
use std::ops::Range;
use std::time::{Duration, Instant};

use sidestep_isa::{Len, Va};
use sidestep_sys::{Limit, Mapping, Process, Stopped, arch, is_hurried};
use sidestep_wire::header::ISLAND;
use sidestep_wire::{Header, JournalEntry, MapEntry, MapKind};

use crate::api::Stops;
use crate::error::{Inside, SessionError};
use crate::patch::pages::{Stretch, pages, read_all, write_all};
use crate::patch::release;
use crate::patch::returns;
use crate::patch::semaphore;
use crate::patch::share::Others;
use crate::patch::toggle;
use crate::target::discovery::{self, Found, MEMFD_LINK, is_ours, is_written, original};
use crate::target::hold::{Hold, Turn, stop};
use crate::target::identity;
use crate::target::native::{self, Originals};
use crate::target::remote::{Remote, mappings, stopped_mappings};
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
/// After that long, threads that are in our code go on one by one, while all others stand: there is
/// always one of many that fault all the time.
const ALONE_AFTER: Duration = Duration::from_millis(300);
/// How much longer they go on each time, up to so many times that; then from the beginning. Between
/// two faults a thread may have a few microseconds, and where it is stopped at the second one, it
/// has gone too far.
const ALONE: Duration = Duration::from_micros(4);
const ROUNDS: u32 = 16;
/// How much longer a pause is for that, about. On a busy machine a thread waits for a CPU for tens
/// of milliseconds each time, so a pause lasts until all have gone on [`TRIES`] times, or until
/// this [`LONGEST`] time is over.
const LONG: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);
const TRIES: u32 = 8;
/// A detach is given up after [`PATIENCE`] if there were so many tries, and else after this time.
const LEAST_TRIES: u32 = 10 * TRIES;
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
    for found in chosen()? {
        match remove_one(process, found.shared_va) {
            Ok(more) => stops.append(more),
            Err(error @ SessionError::StillInside { .. }) => inside = inside.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    inside.map_or(Ok(stops), Err)
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
    let waited = discovery::at(process, shared)?.is_some_and(|found| found.detaching && !found.is_mine());
    let limit = Limit::after(if waited { SHORT_PATIENCE } else { PATIENCE });
    let alone_from = Limit::after(if waited { Duration::ZERO } else { ALONE_AFTER });
    let last_limit = Limit::after(LAST_PATIENCE);
    let runs = |inside: Option<StillThere>| inside.is_some_and(|inside| inside.how == Inside::Code);
    let (mut pause, mut tries, mut ran) = (Duration::from_micros(200), 0, false);
    loop {
        let Some(found) = discovery::at(process, shared)? else { return Ok(hold.stops()) };
        let others = Others::of(process, &mappings(process)?, Some(shared))?;
        let journal = Journal::of(process, &found, &others)?;
        let originals = Originals::of(process, &found)?;
        let suspended = process.is_suspended();
        process.use_gadgets(crate::target::regions::gadgets(found.batch));
        let waits = !limit.is_over() || ran && tries < LEAST_TRIES && !last_limit.is_over();
        let (inside, sharing) = hold.stopped("restoring", |stopped| {
            let mut inside = restore(stopped, &found, &others, &journal, &originals, waits)?;
            if inside.is_some() && suspended {
                usher(stopped, &found, &journal, pause)?;
            } else if alone_from.is_over() {
                let (begun, before) = (Instant::now(), tries);
                let goes_on = |tries| begun.elapsed() < LONG || tries < before + TRIES && begun.elapsed() < LONGEST;
                while runs(inside) && goes_on(tries) && !is_hurried() {
                    usher(stopped, &found, &journal, ALONE * (1 + tries % ROUNDS))?;
                    tries += 1;
                    inside = restore(stopped, &found, &others, &journal, &originals, waits)?;
                }
            }
            Ok((inside, identity::sharing(stopped)))
        })?;
        hold.note_sharing(sharing);
        ran = runs(inside) && !suspended;
        let Some(inside) = inside else {
            process.leave(&journal.code);
            unmap(&mut hold, &found)?;
            return Ok(hold.stops());
        };
        if !waits {
            // What stays is in nobody's way then. If that is not possible now, the others do
            // without signals.
            let _ =
                release::release_left(&mut hold, &found, &crate::target::regions::room(found.private_va, found.batch));
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

/// All sites, as far as they are looked up: that takes longer than a stop should.
pub(crate) struct Journal {
    pub entries: Vec<JournalEntry>,
    /// Those that are still written. What is not now is not going to be, as it is our turn.
    written: Vec<usize>,
    /// Those that have detours, by the addresses of these.
    detours: Vec<usize>,
    /// Islands, with the sites that lead there.
    islands: HashMap<u64, Va>,
    /// Our own sites, which are restored last.
    own: BTreeSet<u64>,
    /// Users' exits of functions whose entries are sites of our own.
    exits: BTreeSet<u64>,
    /// Where our code is.
    pub code: Vec<Range<u64>>,
}

impl Journal {
    pub fn of(process: &Process, found: &Found, others: &Others) -> Result<Journal, SessionError> {
        let (entries, written) = entries(process, found, others)?;
        let mut detours: Vec<usize> = (0..entries.len()).filter(|index| entries[*index].detour_len != 0).collect();
        detours.sort_by_key(|index| entries[*index].detour);
        let islands = entries.iter().rev().filter(|e| e.own == ISLAND).map(|e| (e.site, Va(e.detour))).collect();
        let is_code = |m: &&MapEntry| m.kind == MapKind::Agent as u32 || m.kind == MapKind::Slab as u32;
        let code = found.mappings(process)?.iter().filter(is_code).map(MapEntry::range).collect();
        // What does not say which probes it has has no exits.
        let exits = discovery::exits_of_own(&found.sites(process).unwrap_or_default());
        let is_written = written.iter().map(|index| &entries[*index]);
        let own = is_written.filter(|entry| entry.own == 1).map(|entry| entry.site).collect();
        Ok(Journal { entries, written, detours, islands, own, exits, code })
    }

    /// Is it restored with our own sites? An island is with the site that leads there. `waits`: so
    /// are the exits of functions whose entries are sites of our own.
    fn is_last(&self, entry: &JournalEntry, waits: bool) -> bool {
        let site = if entry.own == ISLAND { entry.detour } else { entry.site };
        self.own.contains(&site) || waits && self.exits.contains(&site)
    }

    /// Does a site have this byte?
    fn has_site_at(&self, at: u64) -> bool {
        let held = |entry: &JournalEntry| entry.site..entry.site + u64::from(entry.len);
        self.entries.iter().any(|entry| entry.own != ISLAND && held(entry).contains(&at))
    }

    /// The entry in whose detour an address is.
    pub fn detour_at(&self, ip: u64) -> Option<usize> {
        let next = self.detours.partition_point(|index| self.entries[*index].detour <= ip);
        let index = self.detours[next.checked_sub(1)?];
        let entry = &self.entries[index];
        (ip - entry.detour < u64::from(entry.detour_len)).then_some(index)
    }

    /// The original of a position in a detour at which no handler is under way, and the entry.
    pub fn original_of(&self, stopped: &Stopped, position: &Position) -> Option<(&JournalEntry, Va)> {
        let entry = &self.entries[self.detour_at(position.ip.0)?];
        Some((entry, original_of(entry, stopped, position)?))
    }
}

/// The original of a position in a detour at which no handler is under way.
///
/// The copy of a system call is more than one instruction where the call leaves an address in a
/// register. A call that is interrupted may end there with EINTR instead of being restarted
/// (`epoll_wait`, `io_uring_enter`), and its thread would make it again as soon as it runs: so it
/// never stands elsewhere.
pub(crate) fn original_of(entry: &JournalEntry, stopped: &Stopped, position: &Position) -> Option<Va> {
    let at = |Va(ip): Va| if ip == entry.detour { Some(entry.site) } else { entry.original_of(ip) };
    let len = arch::CALL_LEN;
    let behind_call = || {
        let call = at(position.ip.offset(-len)).filter(|_| position.is_behind_call(stopped))?;
        Some(call.wrapping_add_signed(len))
    };
    at(position.ip).or_else(behind_call).map(Va)
}

fn entries(process: &Process, found: &Found, others: &Others) -> Result<(Vec<JournalEntry>, Vec<usize>), SessionError> {
    let (mut journal, maps) = (found.journal(process)?, mappings(process)?);
    let child = found.is_child(process);
    if child {
        // It may have been forked between the change of a site and that of its entry.
        journal = found.entries(process)?;
        for entry in &mut journal {
            entry.disabled = 1;
            if entry.is_promotable() && !is_written(process, &maps, entry) {
                *entry = entry.trap();
            }
        }
    }
    let mut order: Vec<usize> = (0..journal.len()).collect();
    order.sort_unstable_by_key(|index| journal[*index].site);
    let mut written = Vec::new();
    for page in pages(&order, |index| journal[*index].site) {
        let places = page.iter().map(|index| (journal[*index].site, usize::from(journal[*index].len)));
        let text = Stretch::read(process, places);
        written.extend(page.iter().filter(|index| {
            let entry = &journal[**index];
            // A place next to it may have been unmapped.
            let now = text.at(entry.site, entry.len.into());
            let is = || now.map_or_else(|| is_written(process, &maps, entry), |now| is_ours(now, &maps, entry));
            // What is there now is another session's; but a child may have been forked before.
            let given_up = entry.is_given_up() && (!child || others.are_at(entry.site));
            // A blank one says nothing.
            entry.len != 0 && !given_up && (is() || others.leads_to(process, entry))
        }));
    }
    written.sort_unstable();
    Ok((journal, written))
}

/// A thread that keeps a detach from its end.
#[derive(Clone, Copy, Debug)]
struct StillThere {
    tid: i32,
    how: Inside,
}

/// Bytes of memory that a session takes in the target: not of address space, most of which is never
/// used.
fn resident(process: &Process, found: &Found) -> Result<u64, SessionError> {
    let ours = found.mappings(process)?;
    let is_ours = |at: Va| ours.iter().any(|m| m.range().contains(&at.0));
    Ok(process.resident(is_ours).unwrap_or(0))
}

/// Restores text and return addresses; gives a thread that is still inside our code, if any.
/// May be repeated. `waits`: it will be, so that no users' site has to go before our own do.
fn restore(
    stopped: &mut Stopped,
    found: &Found,
    others: &Others,
    journal: &Journal,
    originals: &Originals,
    waits: bool,
) -> Result<Option<StillThere>, SessionError> {
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
    let shared: Vec<&JournalEntry> = journal.entries.iter().filter(|entry| others.know(entry)).collect();
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
    positions.retain(|p| journal.code.iter().any(|range| range.contains(&p.ip.0)));
    // A thread may have executed a trap or an instruction that names its place, and not got its
    // signal yet: the handler must still be there.
    let named = found.taken & crate::target::signals::NAMED;
    let awaiting = if named != 0 { stopped.awaiting(named) } else { Vec::new() };
    positions.retain(|p| !matches!(p.place, Place::Thread { tid } if awaiting.contains(&tid)));
    let still = |how: Inside| move |tid: i32| StillThere { tid, how };
    let in_code = awaiting.first().copied().or(stopped.returning()).or(in_flight).map(still(Inside::Code));
    let mut inside = in_code.or(native::inside(stopped, found, &mappings)?.map(still(Inside::Function)));
    // Where others are behind us, what we displaced has no place of its own to go on at: such a
    // thread leaves by itself.
    let movable = |entry: &JournalEntry| !others.know(entry) || !others.are_in(&process, entry);
    let original_of = |position| journal.original_of(stopped, position).filter(|(entry, _)| movable(entry));
    let targets: Vec<Option<(&JournalEntry, Va)>> = positions.iter().map(original_of).collect();
    for (position, original) in positions.iter().zip(&targets) {
        if original.is_none() {
            inside = Some(match position.place {
                Place::Thread { tid } => StillThere { tid, how: Inside::Code },
                Place::SignalFrame { tid, .. } => StillThere { tid, how: Inside::SignalHandler },
            });
        }
    }
    // A thread in the agent may be about to replace a return address or to meet a trap: then our
    // own sites stay for now.
    if inside.is_none() {
        restore_sites(stopped, true)?;
    }
    for (position, original) in positions.iter().zip(targets) {
        match original {
            Some((entry, at)) if inside.is_none() || !is_last(entry) => {
                thread_positions::move_back(stopped, position, at)?
            }
            _ => {}
        }
    }
    if inside.is_none() && found.taken != 0 {
        crate::target::signals::restore(stopped, found, found.room(), &all_positions)?;
    }
    Ok(inside)
}

/// Lets threads go on for some time that are in our code, or on the way to a handler of it, while
/// all others stand. In a suspended process they never leave by themselves.
fn usher(stopped: &mut Stopped, found: &Found, journal: &Journal, time: Duration) -> Result<(), SessionError> {
    let awaiting = stopped.awaiting(found.taken & crate::target::signals::NAMED);
    let inside = |ip: Va| journal.code.iter().any(|range| range.contains(&ip.0));
    let leaves = |tid: i32| awaiting.contains(&tid) || stopped.returning() == Some(tid);
    let threads = stopped.threads().iter().filter(|t| inside(t.regs.ip()) || leaves(t.tid));
    let tids: Vec<i32> = threads.map(|thread| thread.tid).collect();
    for tid in tids {
        // One may have ended another one, or the process.
        if stopped.threads().iter().any(|thread| thread.tid == tid) {
            stopped.nudge(tid, time)?;
        }
    }
    Ok(())
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
