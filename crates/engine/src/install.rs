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
use sidestep_sys::{Mapping, Stopped};
use sidestep_wire::header::ISLAND;
use sidestep_wire::{Header, JournalEntry, MapKind, Private, TrapEntry};

use crate::error::SessionError;
use crate::raw::bytes_of;
use crate::regions::Regions;
use crate::remote::Remote;
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
}

/// What became of a job.
pub(crate) enum Outcome {
    Installed { site: Va },
    Refused(String),
}

/// Installs a batch. One outcome per job.
pub(crate) fn install(
    regions: &mut Regions,
    stopped: &mut Stopped,
    mappings: &[Mapping],
    jobs: &[Job],
) -> Result<(Vec<Outcome>, usize), SessionError> {
    let mut outcomes: Vec<Option<Outcome>> = jobs.iter().map(|_| None).collect();
    let mut code_bytes = 0;
    let mut ready: Vec<(usize, Detour)> = Vec::new();
    let lost = map_stubs(regions, stopped, jobs)?;

    for group in groups(jobs) {
        let detours = match slab(regions, stopped, jobs, &group) {
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

    let mut traps = Vec::new();
    ready.retain(|(i, detour)| {
        let needs = [&detour.patch[..], &detour.relies_on].concat();
        let mut now = vec![0; needs.len()];
        let same = stopped.read(detour.site, &mut now).is_ok() && jobs[*i].expected.starts_with(&now);
        let stub = detour.stub.as_ref().map(|(at, _)| at.0 & !(PAGE - 1));
        if stub.is_some_and(|page| lost.contains(&page)) {
            let reason = "the address space that its jump needs was taken meanwhile: try again".into();
            outcomes[*i] = Some(Outcome::Refused(reason));
            return false;
        }
        if !same {
            let reason = format!("the code at {} is not what the file says: somebody else has changed it", detour.site);
            outcomes[*i] = Some(Outcome::Refused(reason));
        }
        let trap = |&(from, to): &(u16, u16)| TrapEntry {
            site: detour.site.0 + u64::from(from),
            detour: detour.at.0 + u64::from(to),
        };
        traps.extend(detour.traps.iter().filter(|_| same).map(trap));
        same && now.ends_with(&detour.relies_on)
    });
    if !traps.is_empty() {
        regions.add_traps(stopped, mappings, &traps)?;
    }
    regions.add_detours(stopped, ready.iter().map(|(i, detour)| (&jobs[*i].plan, detour)))?;

    // If we are killed in between, no trap without its guards, no replaced return address without its unwinders.
    ready.sort_by_key(|(i, _)| !jobs[*i].own);
    leave_regions(stopped, mappings, jobs, &ready, regions.detours.shown)?;
    for (i, detour) in &ready {
        if let Some((at, bytes)) = &detour.stub {
            stopped.write(*at, bytes)?;
        }
        if let Some((at, bytes)) = &detour.island {
            let mut padding = vec![0; bytes.len()];
            stopped.read(*at, &mut padding)?;
            regions.journal_island(detour.site, *at, &padding, bytes)?;
            stopped.write(*at, bytes)?;
        }
        let entry = regions.journal(&jobs[*i], detour, mappings)?;
        stopped.write(detour.site, &detour.patch)?;
        if let Some(semaphore) = jobs[*i].semaphore {
            semaphore::raise(stopped, entry, semaphore)?;
        }
        outcomes[*i] = Some(Outcome::Installed { site: detour.site });
    }
    let outcomes =
        outcomes.into_iter().map(|o| o.unwrap_or_else(|| Outcome::Refused("no detour was built".into()))).collect();
    Ok((outcomes, code_bytes))
}

/// Maps the pages that stubs of these jobs need and that are not there yet. Gives those that could not be mapped.
fn map_stubs(regions: &mut Regions, stopped: &mut Stopped, jobs: &[Job]) -> Result<BTreeSet<u64>, SessionError> {
    let page = |job: &Job| match job.plan.patch {
        Patch::Jump { stub: Some(at), .. } => Some(at.offset(job.bias).0 & !(PAGE - 1)),
        _ => None,
    };
    let mut lost = BTreeSet::new();
    let wanted: BTreeSet<u64> = jobs.iter().filter_map(page).filter(|at| !regions.stubs.contains(at)).collect();
    let wanted: Vec<u64> = wanted.into_iter().collect();
    for run in wanted.chunk_by(|a, b| a + PAGE == *b) {
        let (at, len) = (Va(run[0]), Len(run.len() as u64 * PAGE));
        regions.list_mapping(at, len, MapKind::Slab)?;
        match Remote(stopped).map_code(at, len) {
            Ok(_) => regions.stubs.extend(run),
            Err(_) => lost.extend(run),
        }
    }
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
fn slab(
    regions: &Regions,
    stopped: &mut Stopped,
    jobs: &[Job],
    group: &[usize],
) -> Result<(Built, usize), SessionError> {
    let near = jobs[group[0]].object.clone();
    // Lengths do not depend on addresses: measure at the object itself.
    let origin = Va(near.start);
    let measure = fill(regions, jobs, group, origin).1.len() as u64;
    let len = Len(crate::layout::round(measure, 4096));
    let mut remote = Remote(stopped);
    let at = remote.free_range(near, len)?.ok_or(SessionError::NoRoom { near: origin })?;
    // Listed before it is there: a mapping that is not listed would stay for ever if we died now.
    regions.list_mapping(at, len, MapKind::Slab)?;
    remote.map_code(at, len)?;
    let (built, bytes) = fill(regions, jobs, group, at);
    stopped.write(at, &bytes)?;
    Ok((built, bytes.len()))
}

/// The thunks and detours of a slab at `at`.
fn fill(regions: &Regions, jobs: &[Job], group: &[usize], at: Va) -> (Built, Vec<u8>) {
    let (mut bytes, thunks): (Vec<u8>, Thunks) =
        thunk::thunks(at, &regions.env, regions.globals.enter, &regions.programs.thunks(jobs[group[0]].is_go));
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
fn leave_regions(
    stopped: &mut Stopped,
    mappings: &[Mapping],
    jobs: &[Job],
    ready: &[(usize, Detour)],
    shown: bool,
) -> Result<(), SessionError> {
    let mut sites: Vec<(u64, u64, &Detour)> =
        ready.iter().map(|(i, d)| (d.site.0, d.site.0 + jobs[*i].plan.region.0, d)).collect();
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
    /// Journals a site, before it is written. Gives the address of the entry.
    fn journal(&self, job: &Job, detour: &Detour, mappings: &[Mapping]) -> Result<Va, SessionError> {
        let (inode, file_offset) = traces::file_of(mappings, detour.site);
        let mut entry = JournalEntry {
            site: detour.site.0,
            detour: detour.at.0,
            detour_len: detour.bytes.len() as u32,
            len: detour.patch.len() as u8,
            insns_len: detour.copies.len().min(16) as u8,
            own: u8::from(job.own),
            newest: job.handlers.iter().map(|handler| handler.probe() + 1).max().unwrap_or(0),
            optimized: u8::from(job.plan.patch != Patch::Trap),
            inode,
            file_offset,
            semaphore: job.semaphore.map_or(0, |va| va.0),
            ..JournalEntry::default()
        };
        entry.old[..detour.patch.len()].copy_from_slice(&job.expected[..detour.patch.len()]);
        entry.new[..detour.patch.len()].copy_from_slice(&detour.patch);
        for (to, from) in entry.insns.iter_mut().zip(&detour.copies) {
            *to = *from;
        }
        self.append(&entry)
    }

    /// Adds an entry to the journal. Gives its address.
    fn append(&self, entry: &JournalEntry) -> Result<Va, SessionError> {
        let count = self.shared.u32(offset_of!(Header, journal_len) as u64);
        let index = u64::from(count.load(Ordering::Acquire));
        if index >= self.layout.journal_cap {
            return Err(SessionError::TooMany { what: "sites" });
        }
        let off = self.layout.journal_off + index * size_of::<JournalEntry>() as u64;
        self.shared.write(off, bytes_of(entry));
        count.store(index as u32 + 1, Ordering::Release);
        Ok(Va(self.shared_va.0 + off))
    }

    /// Journals padding that is about to lead to the detour of a site.
    fn journal_island(&self, site: Va, at: Va, old: &[u8], new: &[u8]) -> Result<(), SessionError> {
        let mut entry = JournalEntry { site: at.0, detour: site.0, own: ISLAND, ..JournalEntry::default() };
        entry.len = new.len() as u8;
        entry.old[..old.len()].copy_from_slice(old);
        entry.new[..new.len()].copy_from_slice(new);
        self.append(&entry).map(drop)
    }

    /// Adds entries to the trap table (a new table replaces the old one) and installs the SIGTRAP handler.
    fn add_traps(
        &mut self,
        stopped: &mut Stopped,
        mappings: &[Mapping],
        new: &[TrapEntry],
    ) -> Result<(), SessionError> {
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
        let at = self.map_listed(stopped, Len(len), MapKind::Private)?;
        stopped.write(at, &bytes)?;
        let private = |off: usize| Va(self.private.0 + off as u64);
        stopped.write(private(offset_of!(Private, trap_mask)), &(size - 1).to_ne_bytes())?;
        stopped.write(private(offset_of!(Private, traps)), &at.0.to_ne_bytes())?;
        crate::signals::install(self, stopped, mappings, crate::signals::TRAPS)
    }
}
