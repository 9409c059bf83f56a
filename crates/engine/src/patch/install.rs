//! Installing probes. What is made ready while the target runs: code of slabs first, then trap
//! table and table of copies. So a controller that is killed in between leaves a correct target.
//! The sites follow ([`super::commit`]).

use std::collections::BTreeSet;
use std::mem::offset_of;

use sidestep_isa::{Len, Va};
use sidestep_plan::detour::{Detour, build};
use sidestep_plan::handler::Handler;
use sidestep_plan::thunk::{self, Thunks};
use sidestep_plan::{Patch, Plan};
use sidestep_sys::arch;
use sidestep_wire::{MapKind, Private, TrapEntry};

use crate::error::SessionError;
use crate::memory::layout::{PAGE, round};
use crate::memory::raw::bytes_of;
use crate::patch::commit::put_in;
use crate::patch::order::{Kind, Rank};
use crate::patch::share::Others;
use crate::target::allocator::Table;
use crate::target::hold::{Hold, Turn};
use crate::target::regions::Regions;
use crate::target::remote::Remote;
/// One site to install.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub plan: Plan,
    /// Run-time minus link-time address.
    pub bias: i64,
    /// A site of our own, without which others do harm: written first, restored last.
    pub own: bool,
    /// A user's exit of a function whose entry is a site of our own, and written as early.
    pub early: bool,
    /// What runs at a hit, in order.
    pub handlers: Vec<Handler>,
    /// The function that it is of, a run-time address: the lowest one if there are several.
    pub function: u64,
    /// It has an exit that looks for the entry of its call.
    pub is_paired: bool,
    /// Run-time range of the object's code and data that displaced instructions may refer to.
    pub object: std::ops::Range<u64>,
    /// Its functions run on stacks of goroutines.
    pub is_go: bool,
    /// Nothing else can come to its place while it is written: it is the program itself, no library
    /// that may be unloaded.
    pub stays: bool,
    /// The file of its object: inode number, 0 = none.
    pub inode: u64,
    /// What the file says is at the site.
    pub expected: Vec<u8>,
    /// Run-time address of the counter of who listens at a USDT probe.
    pub semaphore: Option<Va>,
    /// Run-time addresses of words that are to lead to the copy of the function in the detour.
    pub originals: Vec<Va>,
}

impl Job {
    /// Is it an exit of a function, and nothing else?
    pub fn is_exit(&self) -> bool {
        self.handlers.iter().all(Handler::is_exit)
    }

    /// Where its site is in the order in which sites are written.
    pub fn rank(&self) -> Rank {
        let exits = self.handlers.iter().any(Handler::is_exit);
        let kind = Kind::new(exits, self.is_exit(), self.is_paired);
        Rank::new(kind, self.plan.site.offset(self.bias).0, self.function)
    }
}

/// What became of a job.
pub(crate) enum Outcome {
    Installed { site: Va },
    Refused(String),
}

/// Installs a batch; `signals` are to be ours. One outcome per job.
///
/// All that can be made ready is, while the target runs: it is stopped for moments to map memory,
/// and once to look at its threads and to write the sites.
pub(crate) fn install(
    regions: &mut Regions,
    hold: &mut Hold<'_>,
    jobs: &[Job],
    signals: u64,
    others: &Others,
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
                    outcomes[i] = Some(Outcome::Refused("no free address space within the reach of a jump".into()));
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

    ready.retain(|(i, detour)| match is_ready(&jobs[*i], detour, &lost, others) {
        Ok(()) => true,
        Err(reason) => {
            outcomes[*i] = Some(Outcome::Refused(reason));
            false
        }
    });
    for (at, bytes) in ready.iter().filter_map(|(_, detour)| detour.stub.as_ref()) {
        regions.taken.borrow_mut().stubs.push(at.0);
        process.write(*at, bytes)?;
    }
    for (probe, switch) in ready.iter().flat_map(|(_, detour)| &detour.switches) {
        regions.describe_switch(&process, *probe, switch)?;
    }
    let has_traps = ready.iter().any(|(i, _)| jobs[*i].plan.has_traps());
    let signals = if has_traps { signals | crate::target::signals::TRAPS } else { signals };
    regions.add_traps(hold, ready.iter().map(|(_, detour)| detour), signals)?;
    regions.add_detours(hold, ready.iter().map(|(i, detour)| (&jobs[*i].plan, detour)))?;
    regions.show_unwinding(hold)?;

    let gone = put_in(regions, hold, jobs, &ready, signals, others)?;
    if !gone.is_empty() {
        let has = |one: &Detour, at: u64| (one.at.0..one.at.0 + one.bytes.len() as u64).contains(&at);
        regions.forget_traps(hold, |at| ready.iter().any(|(_, one)| gone.contains(&one.site.0) && has(one, at)))?;
    }
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

/// Whether a detour can be put into use. If not, why. What is at the site now is looked at when it
/// is written.
fn is_ready(job: &Job, detour: &Detour, lost: &BTreeSet<u64>, others: &Others) -> Result<(), String> {
    if detour.stub.as_ref().is_some_and(|(at, _)| lost.contains(&(at.0 & !(PAGE - 1)))) {
        return Err("the address space that its jump needs was taken meanwhile: try again".into());
    }
    let resumes_at = detour.at.0 + detour.copies.first().map_or(0, |(_, to)| u64::from(*to));
    if !others.reach(detour.site.0, detour.at.0, resumes_at) {
        return Err("no jump reaches the detour of another session".into());
    }
    let behind = needed(job, detour).get(detour.patch.len()..);
    if detour.relies_on.is_empty() || behind.is_some_and(|rest| rest.starts_with(&detour.relies_on)) {
        return Ok(());
    }
    Err(not_the_file(detour.site))
}

/// What has to be at a site: the displaced instructions, and what its jump relies on.
pub(crate) fn needed<'j>(job: &'j Job, detour: &Detour) -> &'j [u8] {
    let held = job.plan.held().0 as usize;
    let len = if job.plan.is_blocked() { held } else { (detour.patch.len() + detour.relies_on.len()).max(held) };
    &job.expected[..len.min(job.expected.len())]
}

fn not_the_file(site: Va) -> String {
    format!("the code at {site} is not what the file says: somebody else has changed it")
}

/// Maps the pages that stubs of these jobs need and that are not there yet. Gives those that could
/// not be mapped.
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
    let runs: Vec<&[u64]> = wanted.chunk_by(|a, b| a + PAGE == *b).collect();
    hold.in_turns(
        |_| "stubs",
        &runs,
        |_| Ok(()),
        |stopped, (), run| {
            let (at, len) = (Va(run[0]), Len(run.len() as u64 * PAGE));
            regions.list_mapping(at, len, MapKind::Slab)?;
            match Remote(stopped).map_code(at, len) {
                Ok(_) => regions.stubs.extend(*run),
                Err(_) => {
                    // What is there is the program's, and stays when we go.
                    regions.unlist_mapping()?;
                    lost.extend(*run);
                }
            }
            Ok(Turn::Done)
        },
    )?;
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
    let len = Len(round(measure, PAGE));
    let map = || regions.map_near(hold, "code", near.clone(), len, MapKind::Slab);
    let at = regions.room_for_code(Some(&near), len, map)?;
    let (built, bytes) = fill(regions, jobs, group, at);
    hold.process().write(at, &bytes)?;
    Ok((built, bytes.len()))
}

/// The thunks and detours of a slab at `at`.
fn fill(regions: &Regions, jobs: &[Job], group: &[usize], at: Va) -> (Built, Vec<u8>) {
    let needed = group.iter().flat_map(|i| &jobs[*i].handlers).filter_map(Handler::thunk).collect();
    let is_go = jobs[group[0]].is_go;
    let programs = regions.programs.thunks(&needed, is_go);
    let ends = group.iter().flat_map(|i| &jobs[*i].handlers).filter_map(Handler::end).collect();
    let ends = regions.programs.ends(&ends);
    let (mut bytes, thunks): (Vec<u8>, Thunks) = thunk::thunks(
        at,
        &regions.env,
        regions.globals.enter,
        &programs,
        &ends,
        is_go.then(|| regions.programs.agent_stack()),
    );
    let mut built = Vec::new();
    for i in group {
        let job = &jobs[*i];
        let here = Va(at.0 + bytes.len() as u64);
        let detour = build(&job.plan, &job.handlers, here, job.bias, &thunks, &regions.env);
        if let Ok(d) = &detour {
            bytes.extend_from_slice(&d.bytes);
            // Detours start on their own half cache line.
            bytes.resize(bytes.len().next_multiple_of(16), arch::ISA.limits().breakpoint[0]);
        }
        built.push((*i, detour.map_err(|e| e.to_string())));
    }
    (built, bytes)
}

impl Regions {
    /// Traps that would lead to a detour for which `is_gone` is true are none: another session may
    /// have one there, and the handler asks all sessions.
    fn forget_traps(&mut self, hold: &mut Hold<'_>, is_gone: impl Fn(u64) -> bool) -> Result<(), SessionError> {
        let is_gone = |trap: &TrapEntry| is_gone(trap.detour & !TrapEntry::RECORD);
        self.traps.retain(|trap| !is_gone(trap));
        hold.stopped("tables", |stopped| crate::target::signals::forget_traps(stopped, self.private, is_gone))
    }

    /// Adds sites to the trap table: a new table replaces the old one. All sites, since any may
    /// become a trap; but none, as long as there are no traps at all.
    fn add_traps<'d>(
        &mut self,
        hold: &mut Hold<'_>,
        new: impl Iterator<Item = &'d Detour>,
        signals: u64,
    ) -> Result<(), SessionError> {
        // A site that was there before leads to the new detour.
        let new: Vec<TrapEntry> = new.flat_map(Detour::trap_entries).collect();
        let again: BTreeSet<u64> = new.iter().map(|entry| entry.site).collect();
        self.traps.retain(|entry| !again.contains(&entry.site));
        self.traps.extend(new);
        if (signals | self.signals()?) & crate::target::signals::TRAPS == 0 {
            return Ok(());
        }
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
        let len = round(bytes.len() as u64, PAGE);
        let private = |off: usize| Va(self.private.0 + off as u64);
        let table = self.room_for_table(hold, Len(len))?;
        hold.process().write(Va(table.start), &bytes)?;
        // Table and mask change together.
        hold.stopped("tables", |stopped| {
            stopped.write(private(offset_of!(Private, trap_mask)), &(size - 1).to_ne_bytes())?;
            Ok(stopped.write(private(offset_of!(Private, traps)), &table.start.to_ne_bytes())?)
        })?;
        self.spare.borrow_mut().put_into_use(Table::Traps, table);
        Ok(())
    }
}
