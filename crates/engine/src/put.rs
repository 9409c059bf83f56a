//! Putting sites in: the threads that stand in their way leave, the journal says what is about to be there, and then it is.
//! All of it a page at a time and while the threads are stopped, but not for long: in several pauses if need be.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::Ordering;

use sidestep_isa::Va;
use sidestep_plan::Patch;
use sidestep_plan::detour::Detour;
use sidestep_sys::{Mapping, Process, Stopped};
use sidestep_wire::header::ISLAND;
use sidestep_wire::{BlockState, Header, JournalEntry};

use crate::error::SessionError;
use crate::hold::{Hold, Turn};
use crate::install::{Job, needed};
use crate::pages::{Stretch, pages};
use crate::raw::bytes_of;
use crate::regions::Regions;
use crate::remote::{mappings, stopped_mappings};
use crate::survey::{self, Place, Position};
use crate::{semaphore, traces};

/// For so many pauses in all, sites wait for threads that are on their way to or from a handler.
const PATIENCE: u32 = 100;

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
}

/// How the threads stand at the beginning of a pause.
struct Scene {
    positions: Vec<Position>,
    /// Our own code.
    ours: Vec<Range<u64>>,
    /// A handler sees its fault at the original, and comes back to the copy by itself.
    shown: bool,
}

/// Makes signals ours and writes sites. Gives those that are not any more as they were when their detours were made: the
/// program ran meanwhile, and may have unloaded an object and loaded another one there.
///
/// Our own sites and the signals go first, and in one pause: if we are killed after that, no trap is there without its guards and
/// no replaced return address without its unwinders, and a handler that begins after that returns through a guard, which knows all
/// the copies. One that began before finds the users' sites as they were, or is moved like everybody else.
pub(crate) fn put_in(
    regions: &Regions,
    hold: &mut Hold<'_>,
    jobs: &[Job],
    ready: &[(usize, Detour)],
    signals: u64,
) -> Result<BTreeSet<u64>, SessionError> {
    let process = hold.process();
    let all = changes(&process, jobs, ready)?;
    let (own, users) = all.split_at(all.partition_point(|change| change.job.own));
    let site = |change: &Change<'_>| change.entry.site;
    let mut work: Vec<Vec<&[Change<'_>]>> = vec![pages(own, site).collect()];
    work.extend(pages(users, site).map(|page| vec![page]));
    let ours = regions.code();
    let mut gone = BTreeSet::new();
    let look = |stopped: &mut Stopped| {
        let mappings = stopped_mappings(stopped)?;
        crate::signals::install(regions, stopped, &mappings, signals)?;
        let positions = survey::positions(stopped, &mappings)?;
        Ok(Scene { positions, ours: ours.clone(), shown: regions.detours.shown })
    };
    let mut waited = 0;
    hold.in_turns(&work, look, |stopped, scene, piece| {
        if waited < PATIENCE && piece.iter().any(|page| scene.is_early(stopped, page)) {
            waited += 1;
            return Ok(Turn::Later);
        }
        piece.iter().try_for_each(|page| put_page(regions, stopped, scene, page, &mut gone))?;
        Ok(Turn::Done)
    })?;
    Ok(gone)
}

/// What is written, in this order: our own before the users', islands before the sites that need them, all by address.
fn changes<'j>(
    process: &Process,
    jobs: &'j [Job],
    ready: &'j [(usize, Detour)],
) -> Result<Vec<Change<'j>>, SessionError> {
    let mappings = mappings(process)?;
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
        all.push(Change {
            job,
            detour,
            entry: site_entry(job, detour, &mappings),
            needed: needed(job, detour).to_vec(),
        });
    }
    all.sort_by_key(|change| (!change.job.own, !change.is_island(), change.entry.site));
    Ok(all)
}

fn site_entry(job: &Job, detour: &Detour, mappings: &[Mapping]) -> JournalEntry {
    let (inode, file_offset) = traces::file_of(mappings, detour.site);
    let mut entry = JournalEntry {
        site: detour.site.0,
        detour: detour.at.0,
        detour_len: detour.bytes.len() as u32,
        insns_len: detour.copies.len().min(16) as u8,
        own: u8::from(job.own),
        newest: job.handlers.iter().map(|handler| handler.probe() + 1).max().unwrap_or(0),
        optimized: u8::from(job.plan.patch != Patch::Trap),
        inode,
        file_offset,
        semaphore: job.semaphore.map_or(0, |va| va.0),
        gate: detour.gate.unwrap_or(0),
        blocked: if job.plan.is_blocked() { BlockState::Yes } else { BlockState::No } as u16,
        ..change(&job.expected, &detour.patch)
    };
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

/// Writes what lies on one page, but for what is not as it was.
fn put_page(
    regions: &Regions,
    stopped: &mut Stopped,
    scene: &Scene,
    page: &[Change<'_>],
    gone: &mut BTreeSet<u64>,
) -> Result<(), SessionError> {
    let process = stopped.process().clone();
    let mut text = Stretch::read(&process, page.iter().map(|change| (change.entry.site, change.needed.len())));
    let mut there = Vec::new();
    for change in page {
        let site = change.detour.site.0;
        if text.at(change.entry.site, change.needed.len()) != Some(&change.needed[..]) {
            gone.insert(site);
        }
        // One whose island is not there cannot be, either.
        if !gone.contains(&site) {
            there.push(change);
            let entry = change.entry.for_now();
            text.put(entry.site, &entry.new[..usize::from(entry.len)]);
        }
    }
    leave_regions(stopped, scene, &there)?;
    let first = regions.publish(&there)?;
    // Before the function can be entered by its replacement.
    for Change { job, detour, .. } in there.iter().filter(|change| !change.is_island()) {
        let copy = detour.copies.first().map_or(detour.site.0, |(_, to)| detour.at.0 + u64::from(*to));
        job.originals.iter().try_for_each(|word| stopped.write(*word, &copy.to_ne_bytes()))?;
    }
    text.write(&process)?;
    for (index, change) in (first..).zip(&there) {
        if change.entry.semaphore != 0 {
            semaphore::raise(stopped, regions.journal_entry(index), Va(change.entry.semaphore))?;
        }
    }
    Ok(())
}

/// Moves every thread that stands behind the first instruction of a region to the copy of the instruction it stands at,
/// and every one that is about to make a guarded system call to the guard.
fn leave_regions(stopped: &mut Stopped, scene: &Scene, there: &[&Change<'_>]) -> Result<(), SessionError> {
    let sites: Vec<&&Change<'_>> = there.iter().filter(|change| !change.is_island()).collect();
    for position in &scene.positions {
        let ip = position.ip.0;
        let index = sites.partition_point(|change| change.entry.site < ip);
        let Some(Change { job, detour, .. }) = index.checked_sub(1).map(|i| sites[i]) else { continue };
        let start = detour.site.0;
        // The kernel makes a call that it restarts itself.
        let restarts = match position.place {
            Place::Thread { tid } => stopped.threads().iter().any(|t| t.tid == tid && t.regs.restarts()),
            Place::SignalFrame { .. } => false,
        };
        let guards = detour.guards.iter().filter(|_| !restarts);
        let copies = detour.copies.iter().filter(|_| ip < start + job.plan.held().0);
        let Some((_, to)) = guards.chain(copies).find(|(from, _)| u64::from(*from) == ip - start) else { continue };
        if !scene.comes_back(stopped, position) {
            survey::move_to(stopped, position, Va(detour.at.0 + u64::from(*to)))?;
        }
    }
    Ok(())
}

impl Scene {
    /// Will a guard bring it to the copy? Not one that may have gone by it already, with an older table of copies.
    fn comes_back(&self, stopped: &Stopped, position: &Position) -> bool {
        self.shown && survey::has_faulted(stopped, position) && !self.is_inside(stopped, position)
    }

    /// Is there a fault where the users' sites of a page are to be, whose thread is in our code? It may be about to show the
    /// original address to the program's handler, or have gone by the guard behind that: it can neither be moved nor left where it is.
    fn is_early(&self, stopped: &Stopped, page: &[Change<'_>]) -> bool {
        let is_behind = |change: &Change<'_>, ip: u64| {
            !change.job.own && (1..change.job.plan.held().0).contains(&ip.wrapping_sub(change.detour.site.0))
        };
        self.positions.iter().any(|position| {
            page.iter().any(|change| is_behind(change, position.ip.0))
                && self.is_inside(stopped, position)
                && survey::has_faulted(stopped, position)
        })
    }

    /// A frame whose thread executes our own code.
    fn is_inside(&self, stopped: &Stopped, position: &Position) -> bool {
        let Place::SignalFrame { tid, .. } = position.place else { return false };
        let ip = stopped.threads().iter().find(|t| t.tid == tid).map(|t| t.regs.ip().0);
        ip.is_none_or(|ip| self.ours.iter().any(|range| range.contains(&ip)))
    }
}

impl Regions {
    /// Adds entries to the journal: before what they say is done. Gives the index of the first.
    fn publish(&self, changes: &[&Change<'_>]) -> Result<u64, SessionError> {
        let len = self.shared.u32(offset_of!(Header, journal_len) as u64);
        let first = u64::from(len.load(Ordering::Acquire));
        let count = first + changes.len() as u64;
        if count > self.layout.journal_cap {
            return Err(SessionError::TooMany { what: "sites" });
        }
        for (index, change) in (first..).zip(changes) {
            self.shared.write(self.entry_off(index), bytes_of(&change.entry));
        }
        len.store(count as u32, Ordering::Release);
        Ok(first)
    }

    fn entry_off(&self, index: u64) -> u64 {
        self.layout.journal_off + index * size_of::<JournalEntry>() as u64
    }

    /// Where an entry of the journal is in the target.
    fn journal_entry(&self, index: u64) -> Va {
        Va(self.shared_va.0 + self.entry_off(index))
    }
}
