//! Installing probes: the only place that writes over code of the target.
//!
//! Order, so that a controller that is killed in between leaves a correct target: code of slabs first, then trap table and
//! table of copies, then threads that stand inside a region are moved to their copies (valid whether the site is patched or
//! not), then the journal entry, then the site itself.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use sidestep_isa::{Len, Va};
use sidestep_plan::detour::{Detour, build};
use sidestep_plan::handler::Handler;
use sidestep_plan::thunk::{self, Thunks};
use sidestep_plan::{Patch, Plan};
use sidestep_sys::{Mapping, Process, Stopped};
use sidestep_wire::header::ISLAND;
use sidestep_wire::{Header, JournalEntry, MapKind, Private, TrapEntry};

use crate::error::SessionError;
use crate::hold::Hold;
use crate::raw::bytes_of;
use crate::regions::Regions;
use crate::remote::{Remote, mappings};
use crate::survey::{self, Place};
use crate::{semaphore, traces};

const PAGE: u64 = 4096;

/// One site to install.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub plan: Plan,
    /// Run-time minus link-time address.
    pub bias: i64,
    /// A site of our own, without which others do harm: written first, restored last.
    pub own: bool,
    /// What runs at a hit, in order.
    pub handlers: Vec<Handler>,
    /// Run-time range of the object's code and data that displaced instructions may refer to.
    pub object: std::ops::Range<u64>,
    /// Its functions run on stacks of goroutines.
    pub is_go: bool,
    /// What the file says is at the site.
    pub expected: Vec<u8>,
    /// Run-time address of the counter of who listens at a USDT probe.
    pub semaphore: Option<Va>,
    /// Run-time addresses of words that are to lead to the copy of the function in the detour.
    pub originals: Vec<Va>,
}

/// What became of a job.
pub(crate) enum Outcome {
    Installed { site: Va },
    Refused(String),
}

/// Installs a batch; `signals` are to be ours. One outcome per job.
///
/// All that can be made ready is, while the target runs: it is stopped for moments to map memory, and once to look at its threads
/// and to write the sites.
pub(crate) fn install(
    regions: &mut Regions,
    hold: &mut Hold<'_>,
    jobs: &[Job],
    signals: u64,
) -> Result<(Vec<Outcome>, usize), SessionError> {
    let process = hold.process();
    let mut outcomes: Vec<Option<Outcome>> = jobs.iter().map(|_| None).collect();
    let mut code_bytes = 0;
    let mut ready: Vec<(usize, Detour)> = Vec::new();
    let lost = map_stubs(regions, hold, jobs)?;

    for group in groups(jobs) {
        let detours = match slab(regions, hold, jobs, &group) {
            Ok((detours, len)) => {
                code_bytes += len;
                detours
            }
            Err(SessionError::NoRoom { .. }) => {
                for i in group {
                    outcomes[i] = Some(Outcome::Refused("no free address space within 2 GiB of the code".into()));
                }
                continue;
            }
            Err(e) => return Err(e),
        };
        for (i, result) in detours {
            match result {
                Ok(detour) => ready.push((i, detour)),
                Err(reason) => outcomes[i] = Some(Outcome::Refused(reason)),
            }
        }
    }

    ready.retain(|(i, detour)| match is_ready(&process, &jobs[*i], detour, &lost) {
        Ok(()) => true,
        Err(reason) => {
            outcomes[*i] = Some(Outcome::Refused(reason));
            false
        }
    });
    for (at, bytes) in ready.iter().filter_map(|(_, detour)| detour.stub.as_ref()) {
        process.write(*at, bytes)?;
    }
    let traps: Vec<TrapEntry> = ready.iter().flat_map(|(_, detour)| detour.trap_entries()).collect();
    let signals = if traps.is_empty() { signals } else { signals | crate::signals::TRAPS };
    if !traps.is_empty() {
        regions.add_traps(hold, &traps)?;
    }
    regions.add_detours(hold, ready.iter().map(|(i, detour)| (&jobs[*i].plan, detour)))?;

    // Our own sites first: if we are killed in between, no trap is there without its guards, no replaced return address
    // without its unwinders.
    ready.sort_by_key(|(i, _)| !jobs[*i].own);
    let mut entries = entries(&process, jobs, &ready)?;
    let mut count = regions.note(&entries)?;
    // All in one pause: a handler that has begun before its return was guarded must not meet a patch.
    let gone = hold.stopped(|stopped| {
        let mappings = mappings(&process)?;
        crate::signals::install(regions, stopped, &mappings, signals)?;
        let gone = changed(stopped, jobs, &ready, &entries);
        if !gone.is_empty() {
            entries.retain(|entry| !gone.contains(&patched(entry)));
            count = regions.note(&entries)?;
        }
        let there = ready.iter().filter(|(_, detour)| !gone.contains(&detour.site.0));
        leave_regions(stopped, &mappings, jobs, there, regions.detours.shown)?;
        // Before the function can be entered by its replacement.
        for (i, detour) in ready.iter().filter(|(_, detour)| !gone.contains(&detour.site.0)) {
            let copy = detour.copies.first().map_or(detour.site.0, |(_, to)| detour.at.0 + u64::from(*to));
            jobs[*i].originals.iter().try_for_each(|word| stopped.write(*word, &copy.to_ne_bytes()))?;
        }
        regions.publish(count);
        // Of the entries that are written together, none may need another.
        for of_one_kind in entries.chunk_by(|a, b| a.own == b.own) {
            write_sites(stopped, of_one_kind)?;
        }
        for (entry, at) in entries.iter().zip(regions.noted(count, entries.len())) {
            if entry.semaphore != 0 {
                semaphore::raise(stopped, at, Va(entry.semaphore))?;
            }
        }
        Ok(gone)
    })?;
    for (i, detour) in &ready {
        outcomes[*i] = Some(match gone.contains(&detour.site.0) {
            true => Outcome::Refused(not_the_file(detour.site)),
            false => Outcome::Installed { site: detour.site },
        });
    }
    let outcomes =
        outcomes.into_iter().map(|o| o.unwrap_or_else(|| Outcome::Refused("no detour was built".into()))).collect();
    Ok((outcomes, code_bytes))
}

/// Whether a detour can be put into use. If not, why.
fn is_ready(process: &Process, job: &Job, detour: &Detour, lost: &BTreeSet<u64>) -> Result<(), String> {
    if detour.stub.as_ref().is_some_and(|(at, _)| lost.contains(&(at.0 & !(PAGE - 1)))) {
        return Err("the address space that its jump needs was taken meanwhile: try again".into());
    }
    let needed = needed(job, detour);
    let mut now = vec![0; needed.len()];
    let read = process.read(detour.site, &mut now).is_ok();
    if read && now == needed && now.get(detour.patch.len()..).is_some_and(|rest| rest.starts_with(&detour.relies_on)) {
        return Ok(());
    }
    Err(not_the_file(detour.site))
}

/// What has to be at a site: the displaced instructions, and what its jump relies on.
fn needed<'j>(job: &'j Job, detour: &Detour) -> &'j [u8] {
    let len = (detour.patch.len() + detour.relies_on.len()).max(job.plan.region.0 as usize);
    &job.expected[..len.min(job.expected.len())]
}

fn not_the_file(site: Va) -> String {
    format!("the code at {site} is not what the file says: somebody else has changed it")
}

/// The sites that are not any more as they were when their detours were made: the program ran meanwhile, and may have unloaded
/// an object and loaded another one there.
fn changed(stopped: &Stopped, jobs: &[Job], part: &[(usize, Detour)], entries: &[JournalEntry]) -> BTreeSet<u64> {
    let sites = part.iter().map(|(i, detour)| (detour.site.0, needed(&jobs[*i], detour), detour.site.0));
    let islands = entries.iter().filter(|entry| entry.own == ISLAND);
    let islands = islands.map(|entry| (entry.site, &entry.old[..usize::from(entry.len)], patched(entry)));
    let mut all: Vec<(u64, &[u8], u64)> = sites.chain(islands).collect();
    all.sort_unstable();
    let mut changed = BTreeSet::new();
    for page in all.chunk_by(|a, b| a.0 / PAGE == b.0 / PAGE) {
        let start = page[0].0;
        let end = page.iter().map(|(at, bytes, _)| at + bytes.len() as u64).max().unwrap_or(start);
        let mut now = vec![0; (end - start) as usize];
        let read = stopped.read(Va(start), &mut now).is_ok();
        let differs = |at: u64, bytes: &[u8]| !read || !now[(at - start) as usize..].starts_with(bytes);
        changed.extend(page.iter().filter(|(at, bytes, _)| differs(*at, bytes)).map(|(.., site)| *site));
    }
    changed
}

/// The site of an entry, also of one for an island.
fn patched(entry: &JournalEntry) -> u64 {
    if entry.own == ISLAND { entry.detour } else { entry.site }
}

/// What the journal says of sites and of the islands that lead to their detours, in the order in which they are written.
fn entries(process: &Process, jobs: &[Job], ready: &[(usize, Detour)]) -> Result<Vec<JournalEntry>, SessionError> {
    let mappings = mappings(process)?;
    let mut all = Vec::new();
    for (_, detour) in ready {
        if let Some((at, bytes)) = &detour.island {
            let mut padding = vec![0; bytes.len()];
            // What cannot be read is not what it was when the sites are about to be written.
            process.read(*at, &mut padding).ok();
            all.push(island_entry(detour.site, *at, &padding, bytes));
        }
    }
    all.extend(ready.iter().map(|(i, detour)| site_entry(&jobs[*i], detour, &mappings)));
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
        ..change(&job.expected, &detour.patch)
    };
    for (to, from) in entry.insns.iter_mut().zip(&detour.copies) {
        *to = *from;
    }
    entry
}

fn island_entry(site: Va, at: Va, old: &[u8], new: &[u8]) -> JournalEntry {
    JournalEntry { site: at.0, detour: site.0, own: ISLAND, ..change(old, new) }
}

/// The bytes that are written and those that were there, of which there may be more.
fn change(old: &[u8], new: &[u8]) -> JournalEntry {
    let mut entry = JournalEntry { len: new.len() as u8, ..JournalEntry::default() };
    entry.old[..new.len()].copy_from_slice(&old[..new.len()]);
    entry.new[..new.len()].copy_from_slice(new);
    entry
}

/// Writes what the journal says, a page at a time: the threads wait.
fn write_sites(stopped: &Stopped, entries: &[JournalEntry]) -> Result<(), SessionError> {
    let mut sorted: Vec<&JournalEntry> = entries.iter().collect();
    sorted.sort_by_key(|entry| entry.site);
    for page in sorted.chunk_by(|a, b| a.site / PAGE == b.site / PAGE) {
        let start = page[0].site;
        let end = page.iter().map(|entry| entry.site + u64::from(entry.len)).max().unwrap_or(start);
        let mut bytes = vec![0; (end - start) as usize];
        stopped.read(Va(start), &mut bytes)?;
        for entry in page {
            let at = (entry.site - start) as usize;
            bytes[at..at + usize::from(entry.len)].copy_from_slice(&entry.new[..usize::from(entry.len)]);
        }
        stopped.write(Va(start), &bytes)?;
    }
    Ok(())
}

/// Maps the pages that stubs of these jobs need and that are not there yet. Gives those that could not be mapped.
fn map_stubs(regions: &mut Regions, hold: &mut Hold<'_>, jobs: &[Job]) -> Result<BTreeSet<u64>, SessionError> {
    let page = |job: &Job| match job.plan.patch {
        Patch::Jump { stub: Some(at), .. } => Some(at.offset(job.bias).0 & !(PAGE - 1)),
        _ => None,
    };
    let mut lost = BTreeSet::new();
    let wanted: BTreeSet<u64> = jobs.iter().filter_map(page).filter(|at| !regions.stubs.contains(at)).collect();
    let wanted: Vec<u64> = wanted.into_iter().collect();
    if wanted.is_empty() {
        return Ok(lost);
    }
    hold.stopped(|stopped| {
        for run in wanted.chunk_by(|a, b| a + PAGE == *b) {
            let (at, len) = (Va(run[0]), Len(run.len() as u64 * PAGE));
            regions.list_mapping(at, len, MapKind::Slab)?;
            match Remote(stopped).map_code(at, len) {
                Ok(_) => regions.stubs.extend(run),
                Err(_) => {
                    // What is there is the program's, and stays when we go.
                    regions.unlist_mapping();
                    lost.extend(run);
                }
            }
        }
        Ok(())
    })?;
    Ok(lost)
}

/// Jobs of one object share slabs; a slab must reach everything that its instructions refer to.
fn groups(jobs: &[Job]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|i| (jobs[*i].object.start, *i));
    order.chunk_by(|a, b| jobs[*a].object == jobs[*b].object).map(<[usize]>::to_vec).collect()
}

type Built = Vec<(usize, Result<Detour, String>)>;

/// Maps and fills a slab for the jobs of one object.
fn slab(regions: &Regions, hold: &mut Hold<'_>, jobs: &[Job], group: &[usize]) -> Result<(Built, usize), SessionError> {
    let near = jobs[group[0]].object.clone();
    // Lengths do not depend on addresses: measure at the object itself.
    let origin = Va(near.start);
    let measure = fill(regions, jobs, group, origin).1.len() as u64;
    let len = Len(crate::layout::round(measure, 4096));
    let at = hold.stopped(|stopped| {
        let mut remote = Remote(stopped);
        let at = remote.free_range(near, len)?.ok_or(SessionError::NoRoom { near: origin })?;
        // Listed before it is there: a mapping that is not listed would stay for ever if we died now.
        regions.list_mapping(at, len, MapKind::Slab)?;
        remote.map_code(at, len)?;
        Ok(at)
    })?;
    let (built, bytes) = fill(regions, jobs, group, at);
    hold.process().write(at, &bytes)?;
    Ok((built, bytes.len()))
}

/// The thunks and detours of a slab at `at`.
fn fill(regions: &Regions, jobs: &[Job], group: &[usize], at: Va) -> (Built, Vec<u8>) {
    let needed = group.iter().flat_map(|i| &jobs[*i].handlers).filter_map(Handler::thunk).collect();
    let programs = regions.programs.thunks(&needed, jobs[group[0]].is_go);
    let (mut bytes, thunks): (Vec<u8>, Thunks) = thunk::thunks(at, &regions.env, regions.globals.enter, &programs);
    let mut built = Vec::new();
    for i in group {
        let job = &jobs[*i];
        let here = Va(at.0 + bytes.len() as u64);
        let detour = build(&job.plan, &job.handlers, here, job.bias, &thunks, &regions.env);
        if let Ok(d) = &detour {
            bytes.extend_from_slice(&d.bytes);
            // Detours start on their own half cache line.
            bytes.resize(bytes.len().next_multiple_of(16), 0xcc);
        }
        built.push((*i, detour.map_err(|e| e.to_string())));
    }
    (built, bytes)
}

/// Moves every thread that stands behind the first instruction of a region to the copy of the instruction it stands at,
/// and every one that is about to make a guarded system call to the guard. `shown`: a handler sees its fault at the
/// original, and comes back to the copy by itself.
fn leave_regions<'d>(
    stopped: &mut Stopped,
    mappings: &[Mapping],
    jobs: &[Job],
    ready: impl Iterator<Item = &'d (usize, Detour)>,
    shown: bool,
) -> Result<(), SessionError> {
    let mut sites: Vec<(u64, u64, &Detour)> =
        ready.map(|(i, d)| (d.site.0, d.site.0 + jobs[*i].plan.region.0, d)).collect();
    sites.sort_by_key(|s| s.0);
    for position in survey::positions(stopped, mappings)? {
        let ip = position.ip.0;
        let index = sites.partition_point(|s| s.0 < ip);
        let Some((start, end, detour)) = index.checked_sub(1).map(|i| sites[i]) else { continue };
        if shown && survey::has_faulted(stopped, &position) {
            continue;
        }
        // The kernel makes a call that it restarts itself.
        let restarts = match position.place {
            Place::Thread { tid } => stopped.threads().iter().any(|t| t.tid == tid && t.regs.restarts()),
            Place::SignalFrame { .. } => false,
        };
        let guards = detour.guards.iter().filter(|_| !restarts);
        let copies = detour.copies.iter().filter(|_| ip < end);
        if let Some((_, to)) = guards.chain(copies).find(|(from, _)| u64::from(*from) == ip - start) {
            survey::move_to(stopped, &position, Va(detour.at.0 + u64::from(*to)))?;
        }
    }
    Ok(())
}

impl Regions {
    /// Writes entries behind the journal, to which they do not belong yet. Gives the length of the journal with them.
    fn note(&self, entries: &[JournalEntry]) -> Result<u32, SessionError> {
        let first = self.shared.u32(offset_of!(Header, journal_len) as u64).load(Ordering::Acquire);
        let count = first + entries.len() as u32;
        if u64::from(count) > self.layout.journal_cap {
            return Err(SessionError::TooMany { what: "sites" });
        }
        for (index, entry) in (first..).zip(entries) {
            let off = u64::from(index) * size_of::<JournalEntry>() as u64;
            self.shared.write(self.layout.journal_off + off, bytes_of(entry));
        }
        Ok(count)
    }

    /// From now on the journal is as long as that: before what its entries say is done.
    fn publish(&self, count: u32) {
        self.shared.u32(offset_of!(Header, journal_len) as u64).store(count, Ordering::Release);
    }

    /// The addresses of the last `entries` of so many in the journal.
    fn noted(&self, count: u32, entries: usize) -> impl Iterator<Item = Va> {
        let start = self.shared_va.0 + self.layout.journal_off;
        let at = move |index| Va(start + u64::from(index) * size_of::<JournalEntry>() as u64);
        (count - entries as u32..count).map(at)
    }

    /// Adds entries to the trap table: a new table replaces the old one.
    fn add_traps(&mut self, hold: &mut Hold<'_>, new: &[TrapEntry]) -> Result<(), SessionError> {
        // A trap that is put where one was before leads to the new detour.
        let again: BTreeSet<u64> = new.iter().map(|entry| entry.site).collect();
        self.traps.retain(|entry| !again.contains(&entry.site));
        self.traps.extend_from_slice(new);
        let size = (self.traps.len() as u64 * 2).next_power_of_two();
        let mut table = vec![TrapEntry::default(); size as usize];
        for entry in &self.traps {
            let mut bucket = TrapEntry::bucket(entry.site, size - 1);
            while table[bucket as usize].site != 0 {
                bucket = (bucket + 1) & (size - 1);
            }
            table[bucket as usize] = *entry;
        }
        let bytes: Vec<u8> = table.iter().flat_map(|e| bytes_of(e).to_vec()).collect();
        let len = crate::layout::round(bytes.len() as u64, 4096);
        let private = |off: usize| Va(self.private.0 + off as u64);
        // Table and mask change together.
        hold.stopped(|stopped| {
            let at = self.map_listed(stopped, Len(len), MapKind::Private)?;
            stopped.write(at, &bytes)?;
            stopped.write(private(offset_of!(Private, trap_mask)), &(size - 1).to_ne_bytes())?;
            Ok(stopped.write(private(offset_of!(Private, traps)), &at.0.to_ne_bytes())?)
        })
    }
}
