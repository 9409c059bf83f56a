//! Putting sites in: the threads that stand in their way leave, the journal says what is about to
//! be there, and then it is.
//!
//! Where SIGTRAP is ours, users' sites are put into the journal as disabled ones, and then enabled
//! like any others: while the threads run ([`super::switch`]). Elsewhere they are written while the
//! threads are stopped, but not for long: in several pauses if need be, in each the sites of the
//! functions that begin on some pages. Our own sites always are.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::rc::Rc;

use sidestep_isa::Va;
use sidestep_plan::Patch;
use sidestep_plan::detour::Detour;
use sidestep_sys::{Mapping, Process, Stopped};
use sidestep_wire::header::ISLAND;
use sidestep_wire::{BlockState, Header, JournalEntry};

use crate::error::SessionError;
use crate::memory::raw::bytes_of;
use crate::patch::install::{Job, needed};
use crate::patch::order::Rank;
use crate::patch::pages::{Stretch, pages, read_all, write_all};
use crate::patch::promote::{self, Neighbours};
use crate::patch::semaphore;
use crate::patch::share::Others;
use crate::patch::switch::{Switch, Switched, in_turn};
use crate::patch::thread_state::{Ground, LOOKS, Scene};
use crate::target::discovery::{self, Site};
use crate::target::hold::{Hold, Turn};
use crate::target::regions::Regions;
use crate::target::remote::{mappings, stopped_mappings};
use crate::target::thread_positions::{self, Place, Position};

/// How things are while the threads stand.
type Seen = (Scene, Rc<Vec<Mapping>>);

/// Whose sites are written, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Own,
    /// Users', in one pause with our own.
    Early,
    Users,
}

/// What is written at once, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    phase: Phase,
    /// It is no island.
    is_site: bool,
    /// Of users' sites: those of functions that begin on one page.
    functions: Option<Rank>,
    is_entry: bool,
}

/// A site, or an island that leads to its detour.
struct Change<'j> {
    job: &'j Job,
    detour: &'j Detour,
    entry: JournalEntry,
    /// What has to be there.
    needed: Vec<u8>,
}

impl Change<'_> {
    fn is_island(&self) -> bool {
        self.entry.own == ISLAND
    }

    /// Of what it is a part. Parts are written one after the other: our own sites before the
    /// users', islands before the sites that need them, and the users' sites function by function
    /// ([`super::order`]). `early`: those exits that can be written in one pause with our own sites
    /// are.
    fn part(&self, early: bool) -> Part {
        let phase = match self.job.own {
            true => Phase::Own,
            false if early && self.job.early => Phase::Early,
            false => Phase::Users,
        };
        let rank = self.job.rank();
        let functions = (phase == Phase::Users).then(|| rank.page());
        Part { phase, is_site: !self.is_island(), functions, is_entry: !self.job.is_exit() }
    }

    /// Its entry, with the file that the site is mapped from now; `None` if that is another one
    /// than the plan was made from: another library took the place of its own.
    fn in_its_file(&self, mappings: &[Mapping]) -> Option<JournalEntry> {
        let (inode, file_offset) = discovery::file_of(mappings, Va(self.entry.site));
        let is_it = [inode, self.job.inode].contains(&0) || inode == self.job.inode;
        is_it.then_some(JournalEntry { inode, file_offset, ..self.entry })
    }
}

/// Makes signals ours and writes sites. Gives those that are not any more as they were when their
/// detours were made: the program ran meanwhile, and may have unloaded an object and loaded another
/// one there.
///
/// Our own sites and the signals go first, and in one pause: if we are killed after that, no trap
/// is there without its guards and no replaced return address without its unwinders, and a handler
/// that begins after that returns through a guard, which knows all the copies. One that began
/// before finds the users' sites as they were, or is moved like everybody else.
pub(crate) fn put_in(
    regions: &Regions,
    hold: &mut Hold<'_>,
    jobs: &[Job],
    ready: &[(usize, Detour)],
    signals: u64,
    others: &Others,
) -> Result<BTreeSet<u64>, SessionError> {
    let process = hold.process();
    let early = ready.iter().filter(|(i, _)| jobs[*i].early).map(|(_, detour)| detour.site.0);
    let early = !regions.is_around_any(early)?;
    let all = changes(&process, jobs, ready, early);
    let (first, users) = all.split_at(all.partition_point(|change| change.part(early).phase != Phase::Users));
    let parts = |changes| <[Change<'_>]>::chunk_by(changes, |a, b| a.part(early) == b.part(early));
    let taken = regions.signals()?;
    let new_signals = signals & !taken;
    let traps = (signals | taken) & crate::target::signals::TRAPS != 0;
    let alone = |change: &Change<'_>| !others.are_at(change.entry.site);
    let is_live = hold.is_running() && traps && users.iter().all(|change| change.job.stays && alone(change));
    let (live, users) = if is_live { users.split_at(users.len()) } else { users.split_at(0) };
    let makes_way = hold.is_running() && regions.is_around_any(users.iter().chain(live).map(site))?;
    // What is written in one pause: parts, each of which is pages. A page may be in several parts.
    type Piece<'c, 'j> = Vec<Vec<&'c [Change<'j>]>>;
    let mut work: Vec<Piece<'_, '_>> = Vec::new();
    if !first.is_empty() || new_signals != 0 || makes_way {
        work.push(parts(first).map(|part| pages(part, site).collect()).collect());
    }
    // The exits and the entry of a function in one pause: what returned between two would be
    // counted without its entry.
    let key = |change: &Change<'_>| Part { is_entry: false, ..change.part(early) };
    let functions = users.chunk_by(|a, b| key(a) == key(b));
    work.extend(functions.map(|piece| parts(piece).map(|part| pages(part, site).collect()).collect()));
    let ours = regions.code()?.into_iter().chain(discovery::agents(others.sessions())).collect();
    let ground = Ground { ours, shown: regions.detours.shown };
    let mut gone = BTreeSet::new();
    let look = |stopped: &mut Stopped| {
        let mappings = stopped_mappings(stopped)?;
        Ok((Scene::new(stopped, &mappings, &ground)?, mappings))
    };
    let purpose = |piece: &Piece<'_, '_>| {
        let is_users = |page: &&[Change<'_>]| page.iter().all(|change| !change.job.own);
        if piece.iter().flatten().any(is_users) { "sites" } else { "signals" }
    };
    let mut waited = 0;
    let mut put = |stopped: &mut Stopped, (scene, mappings): &Seen, piece: &Piece<'_, '_>| {
        let process = stopped.process().clone();
        let is_early = |page: &&[Change<'_>]| {
            let shared = page.iter().filter(|change| !alone(change));
            scene.is_early(stopped, |position| is_in_the_way(page, position))
                || shared.into_iter().any(|change| !others.can_link(&process, scene, &change.entry))
        };
        if waited < LOOKS && piece.iter().flatten().any(is_early) {
            waited += 1;
            return Ok(Turn::Later);
        }
        // Not before our own sites can be written: where signals are ours without guards, what is
        // noted of the threads' masks is wrong when the guards come.
        crate::target::signals::install(regions, stopped, &scene.positions, signals)?;
        // Each part by itself: what is read of a page is written back as a whole.
        for pages in piece {
            put_pages(regions, stopped, scene, mappings, pages, others, &mut gone)?;
        }
        Ok(Turn::Done)
    };
    if makes_way {
        // The jumps there become traps, for which the signals have to be ours.
        let rest = work.split_off(1);
        hold.in_turns(purpose, &work, look, &mut put)?;
        work = rest;
        let sites = users.iter().chain(live).map(site).collect();
        promote::make_way(&process, &discovery::session(&process, regions.head.at)?, &sites)?;
    }
    hold.in_turns(purpose, &work, look, put)?;
    if !live.is_empty() {
        let switched = put_live(regions, &process, live, &mut gone)?;
        hold.note_live(switched.sites - switched.stopped, switched.longest);
    }
    Ok(gone)
}

fn site(change: &Change<'_>) -> u64 {
    change.entry.site
}

/// Writes users' sites while the threads run. Nobody executes an island before its site leads
/// there.
fn put_live(
    regions: &Regions,
    process: &Process,
    users: &[Change<'_>],
    gone: &mut BTreeSet<u64>,
) -> Result<Switched, SessionError> {
    let mappings = mappings(process)?;
    for page in pages(users, site) {
        let text = Stretch::read(process, page.iter().map(|change| (change.entry.site, change.needed.len())));
        let is_gone = |change: &&Change<'_>| text.at(change.entry.site, change.needed.len()) != Some(&change.needed);
        gone.extend(page.iter().filter(is_gone).map(|change| change.detour.site.0));
    }
    let mut there: Vec<&Change<'_>> = Vec::new();
    let mut entries = Vec::new();
    for change in users {
        match change.in_its_file(&mappings) {
            Some(entry) if !gone.contains(&change.detour.site.0) => {
                there.push(change);
                entries.push(JournalEntry { disabled: u32::from(!change.is_island()), ..entry });
            }
            _ => _ = gone.insert(change.detour.site.0),
        }
    }
    let indices = regions.publish(&entries)?;
    for Change { entry, .. } in there.iter().filter(|change| change.is_island()) {
        process.write(Va(entry.site), &entry.new[..usize::from(entry.len)])?;
    }
    let own: BTreeMap<usize, JournalEntry> =
        indices.into_iter().map(|index| index as usize).zip(entries).filter(|(_, entry)| entry.own != ISLAND).collect();
    // Their probes say which sites are exits, which are written before entries. The entries are our
    // own: the target may have changed those in its memory.
    let listed = discovery::session(process, regions.head.at)?.sites(process)?;
    let sites: Vec<Site> = listed
        .into_iter()
        .filter_map(|site| own.get(&site.index).map(|entry| Site { entry: *entry, ..site }))
        .collect();
    there.iter().try_for_each(|change| lead_to_original(process, change))?;
    let switched = in_turn(process, regions.head.at, &sites, Switch::On)?;
    for (site, _) in &switched.refused {
        gone.insert(site.0);
        // Nobody is to enable it.
        let mut entries = sites.iter().filter(|s| s.entry.site == site.0);
        entries.try_for_each(|s| regions.retire(s.index as u64))?;
    }
    Ok(switched)
}

/// Before the function can be entered by its replacement: what calls the original goes to the copy.
fn lead_to_original(process: &Process, Change { job, detour, entry, .. }: &Change<'_>) -> Result<(), SessionError> {
    let words = job.originals.iter().filter(|_| entry.own != ISLAND);
    let copy = detour.copies.first().map_or(detour.site.0, |(_, to)| detour.at.0 + u64::from(*to));
    Ok(words.copied().try_for_each(|word| process.write(word, &copy.to_ne_bytes()))?)
}

/// Is it behind the first byte of a users' site?
fn is_in_the_way(page: &[Change<'_>], position: &Position) -> bool {
    page.iter()
        .filter(|change| !change.job.own)
        .any(|change| (1..change.job.plan.held().0).contains(&position.ip.0.wrapping_sub(change.detour.site.0)))
}

/// What is written, by parts ([`Change::part`]) and addresses.
fn changes<'j>(process: &Process, jobs: &'j [Job], ready: &'j [(usize, Detour)], early: bool) -> Vec<Change<'j>> {
    let mut all = Vec::new();
    for (i, detour) in ready {
        let job = &jobs[*i];
        if let Some((at, bytes)) = &detour.island {
            let mut padding = vec![0; bytes.len()];
            // What cannot be read is not what it was when the sites are about to be written.
            process.read(*at, &mut padding).ok();
            let entry = JournalEntry { site: at.0, detour: detour.site.0, own: ISLAND, ..change(&padding, bytes) };
            all.push(Change { job, detour, entry, needed: padding });
        }
        all.push(Change { job, detour, entry: site_entry(job, detour), needed: needed(job, detour).to_vec() });
    }
    all.sort_by_key(|change| (change.part(early), change.entry.site));
    all
}

fn site_entry(job: &Job, detour: &Detour) -> JournalEntry {
    let mut entry = JournalEntry {
        site: detour.site.0,
        detour: detour.at.0,
        detour_len: detour.bytes.len() as u32,
        insns_len: detour.copies.len().min(16) as u8,
        own: u8::from(job.own),
        newest: job.handlers.iter().map(|handler| handler.probe() + 1).max().unwrap_or(0),
        optimized: u8::from(job.plan.patch != Patch::Trap),
        semaphore: job.semaphore.map_or(0, |va| va.0),
        gate: detour.gate.unwrap_or(0),
        stays: u32::from(job.stays),
        blocked: if job.plan.is_blocked() { BlockState::Yes } else { BlockState::No } as u16,
        ..change(&job.expected, &detour.patch)
    };
    let resume = detour.copies.first().and_then(|(_, to)| detour.bytes.get(usize::from(*to)..)).unwrap_or_default();
    for (to, from) in entry.resume.iter_mut().zip(resume) {
        *to = *from;
    }
    for (to, from) in entry.insns.iter_mut().zip(&detour.copies) {
        *to = *from;
    }
    entry
}

/// The bytes that are written and those that were there, of which there may be more.
fn change(old: &[u8], new: &[u8]) -> JournalEntry {
    let mut entry = JournalEntry { len: new.len() as u8, ..JournalEntry::default() };
    entry.old[..new.len()].copy_from_slice(&old[..new.len()]);
    entry.new[..new.len()].copy_from_slice(new);
    entry
}

/// Writes what lies on some pages, but for what is not as it was.
fn put_pages(
    regions: &Regions,
    stopped: &mut Stopped,
    scene: &Scene,
    mappings: &[Mapping],
    pages: &[&[Change<'_>]],
    others: &Others,
    gone: &mut BTreeSet<u64>,
) -> Result<(), SessionError> {
    let process = stopped.process().clone();
    let mut texts = read_all(&process, pages, |change| (change.entry.site, change.needed.len()));
    let (mut there, mut entries) = (Vec::new(), Vec::new());
    for (text, page) in texts.iter_mut().zip(pages) {
        for change in *page {
            let site = change.detour.site.0;
            let shared = others.are_at(change.entry.site);
            let now = text.at(change.entry.site, change.needed.len()).map(|now| {
                let mut now = now.to_vec();
                others.undo(change.entry.site, &mut now);
                now
            });
            if now.as_ref() != Some(&change.needed) || shared && !others.can_link(&process, scene, &change.entry) {
                gone.insert(site);
            }
            match change.in_its_file(mappings) {
                // One whose island is not there cannot be, either.
                Some(entry) if !gone.contains(&site) => {
                    there.push(change);
                    entries.push(entry);
                    let entry = entry.for_now();
                    if !shared {
                        text.put(entry.site, &entry.new[..usize::from(entry.len)]);
                    }
                }
                _ => _ = gone.insert(site),
            }
        }
    }
    leave_regions(stopped, scene, &there)?;
    let indices = regions.publish(&entries)?;
    there.iter().try_for_each(|change| lead_to_original(&process, change))?;
    write_all(&process, &texts)?;
    for change in there.iter().filter(|change| others.are_at(change.entry.site)) {
        others.link(stopped, scene, &change.entry)?;
    }
    let with_semaphore = indices.into_iter().zip(&there).filter(|(_, change)| change.entry.semaphore != 0);
    let raises = with_semaphore.map(|(index, change)| semaphore::Change {
        entry: regions.journal_entry(index),
        semaphore: Va(change.entry.semaphore),
        raised: true,
    });
    semaphore::change(stopped, &regions.room(), &raises.collect::<Vec<_>>())
}

/// Where guarded system calls are, and their guards.
fn guards(detour: &Detour) -> impl Iterator<Item = (Va, Va)> {
    let at = |va: Va, offset: u16| Va(va.0 + u64::from(offset));
    detour.guards.iter().map(move |(from, to)| (at(detour.site, *from), at(detour.at, *to)))
}

/// Moves every thread that stands behind the first instruction of a region to the copy of the
/// instruction it stands at, and every one that is about to make a guarded system call to the
/// guard.
fn leave_regions(stopped: &mut Stopped, scene: &Scene, there: &[&Change<'_>]) -> Result<(), SessionError> {
    let sites: Vec<&&Change<'_>> = there.iter().filter(|change| !change.is_island()).collect();
    let guards: BTreeMap<Va, Va> = sites.iter().flat_map(|change| guards(change.detour)).collect();
    for position in &scene.positions {
        let caller = if guards.is_empty() { None } else { position.caller(stopped) };
        if let Some((caller, guard)) = caller.and_then(|caller| Some((caller, guards.get(&caller.call)?))) {
            thread_positions::go_back(stopped, position, &caller, *guard)?;
            continue;
        }
        let ip = position.ip.0;
        let index = sites.partition_point(|change| change.entry.site < ip);
        let Some(Change { job, detour, .. }) = index.checked_sub(1).map(|i| sites[i]) else { continue };
        let start = detour.site.0;
        // The kernel makes a call that it restarts itself.
        let waits = match position.place {
            Place::Thread { tid } => stopped.threads().iter().any(|t| t.tid == tid && t.regs.may_wait()),
            Place::SignalFrame { .. } => false,
        };
        let guards = detour.guards.iter().filter(|_| !waits);
        let copies = detour.copies.iter().filter(|_| ip < start + job.plan.held().0);
        let Some((_, to)) = guards.chain(copies).find(|(from, _)| u64::from(*from) == ip - start) else { continue };
        if !scene.comes_back(stopped, position) {
            thread_positions::move_to(stopped, position, Va(detour.at.0 + u64::from(*to)))?;
        }
    }
    Ok(())
}

impl Regions {
    /// Are any of these sites, run-time addresses, inside jumps of others?
    fn is_around_any(&self, mut sites: impl Iterator<Item = u64>) -> Result<bool, SessionError> {
        let len = u64::from(self.head.u32(offset_of!(Header, journal_len) as u64)?).min(self.layout.journal_cap);
        let entries: Vec<JournalEntry> = self.head.read_array(self.layout.journal_off, len)?;
        let journal = Neighbours::of(entries.into_iter().map(JournalEntry::checked).collect());
        Ok(sites.any(|site| journal.is_inside(site)))
    }

    /// Adds entries to the journal: before what they say is done. Gives the index of each.
    fn publish(&self, entries: &[JournalEntry]) -> Result<Vec<u64>, SessionError> {
        let len_at = offset_of!(Header, journal_len) as u64;
        let first = u64::from(self.head.u32(len_at)?);
        let mut spare = self.spare.borrow_mut();
        let left = spare.entries.len().saturating_sub(entries.len());
        let mut indices = spare.entries.split_off(left);
        let (again, new) = entries.split_at(indices.len());
        let end = first + new.len() as u64;
        if end > self.layout.journal_cap {
            return Err(SessionError::TooMany { what: "sites" });
        }
        for (index, entry) in indices.iter().zip(again) {
            // Blank for as long as it is not complete.
            self.head.write(self.entry_off(*index), bytes_of(&JournalEntry { len: 0, ..*entry }))?;
            self.head.write(self.entry_off(*index) + offset_of!(JournalEntry, len) as u64, &[entry.len])?;
        }
        let bytes: Vec<u8> = new.iter().flat_map(bytes_of).copied().collect();
        self.head.write(self.entry_off(first), &bytes)?;
        self.head.set_u32(len_at, end as u32)?;
        indices.extend(first..end);
        self.taken.borrow_mut().entries.extend(&indices);
        Ok(indices)
    }

    /// The site of an entry is nobody's any more: see [`crate::target::native::retire`].
    fn retire(&self, index: u64) -> Result<(), SessionError> {
        self.head.set_u32(self.entry_off(index) + offset_of!(JournalEntry, newest) as u64, 0)
    }

    /// Where an entry of the journal is in the head.
    pub fn entry_off(&self, index: u64) -> u64 {
        self.layout.journal_off + index * size_of::<JournalEntry>() as u64
    }

    /// Where an entry of the journal is in the target.
    fn journal_entry(&self, index: u64) -> Va {
        Va(self.head.at.0 + self.entry_off(index))
    }
}
