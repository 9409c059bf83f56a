//! Installs what was planned in one go: the sites of probes, and sites of our own.

use std::collections::HashMap;

use sidestep_isa::{Len, Va};
use sidestep_plan::handler::Handler;
use sidestep_sys::Process;
use sidestep_wire::{Flow, MapKind, ProbeDesc, ShadowEntry};

use super::Installer;
use super::arguments::Completed;
use super::hooks::Hook;
use super::jobs::{Jobs, add_job, asked, describe, find_early, whole};
use super::sites::{limit, overlap, place, site};
use super::unwinders::needed;
use crate::error::SessionError;
use crate::memory::layout::{PAGE, round};
use crate::patch::install::{self, Job, Outcome};
use crate::patch::toggle;
use crate::planning::Planned;
use crate::programs::{Ends, Part};
use crate::resolve::Match;
use crate::session::registry::Whose;
use crate::target::hold::Hold;
use crate::target::regions::Regions;
use crate::target::signals;

/// What is going to be installed.
#[derive(Default)]
struct Work {
    jobs: Jobs,
    /// The descriptors of all probes.
    descs: Vec<ProbeDesc>,
    /// Probes, each with its number and its cookie.
    pending: Vec<(Planned, u32, u64)>,
    /// Sites of functions that are replaced, and the words that lead to the originals.
    originals: Vec<(Option<u64>, Va)>,
}

impl Work {
    /// All jobs, and of each the indices of its probes.
    fn jobs(&mut self) -> (Vec<Job>, Vec<Vec<usize>>) {
        for (site, original) in &self.originals {
            if let Some((job, _)) = site.and_then(|site| self.jobs.get_mut(&site)) {
                job.originals.push(*original);
            }
        }
        std::mem::take(&mut self.jobs).into_values().unzip()
    }
}

impl Installer {
    /// Installs sites and hooks in memory that is mapped.
    pub(super) fn install_in(
        &mut self,
        regions: &mut Regions,
        hold: &mut Hold<'_>,
        planned: Vec<Planned>,
        mut hooks: Vec<Hook>,
    ) -> Result<(), SessionError> {
        let process = hold.process();
        self.share_signals(regions, hold, &planned, &mut hooks)?;
        let unwinders = hooks.iter().filter(|hook| hook.is_unwinder());
        let unwinders: Vec<Planned> = unwinders.map(|hook| hook.planned.clone()).collect();
        let places = self.map_places(regions, hold, &planned)?;
        let completed = self.complete_programs(regions, hold, &planned)?;
        self.own.extend(hooks.iter().filter_map(|hook| place(&hook.planned)));

        let mut work = Work::default();
        self.add_probes(&mut work, regions, places, planned, completed)?;
        self.add_hooks(&mut work, regions, &process, hooks)?;
        find_early(&mut work.jobs, work.pending.iter().map(|(p, ..)| p));
        regions.describe(&process, std::mem::take(&mut work.descs))?;
        for (job, _) in work.jobs.values_mut() {
            job.stays |= self.options.live || self.permanent.contains(&job.object.start);
        }
        let (jobs, who) = work.jobs();
        let guarded = self.has_guards();
        let reads = self.reads_memory() && guarded;
        regions.detours.shown |= guarded && self.faults != 0;
        let wanted = self.wanted_signals(guarded, reads);
        let (outcomes, code_bytes) = install::install(regions, hold, &jobs, wanted, &self.others)?;
        self.note_unwatched(&jobs, &outcomes, &unwinders);
        signals::set_readable(regions, &process, reads && !self.unsafe_reads)?;
        self.stats.code_bytes += code_bytes;
        self.note_outcomes(work.pending, outcomes, who);
        if !self.incomplete.is_empty() && hold.is_running() {
            toggle::withdraw(&process, regions.head.at, &std::mem::take(&mut self.incomplete))?;
        }
        Ok(())
    }

    /// Adds the sites of probes. `places` is where those that watch a limited number of calls keep
    /// them; `completed` are the programs that were completed for the arguments of a site.
    fn add_probes(
        &mut self,
        work: &mut Work,
        regions: &mut Regions,
        mut places: Va,
        mut planned: Vec<Planned>,
        completed: Completed,
    ) -> Result<(), SessionError> {
        for p in planned.iter_mut().filter(|p| self.meets_own(p)) {
            // What keeps a jump away is there to stay.
            if let Ok(plan) = &mut p.plan {
                *plan = plan.for_now();
            }
        }
        let mut reasons = Vec::new();
        let mut entries: HashMap<(usize, u64), usize> = HashMap::new();
        for (p, completed) in planned.iter().zip(completed) {
            let reason = match completed {
                Ok(entry) => {
                    entries.extend(entry.map(|entry| ((p.request, asked(p).0), entry)));
                    None
                }
                Err(reason) => Some(reason),
            };
            reasons.push(self.refusal(regions, p).or(reason));
        }
        // Of probes with several sites: the number of the first one, which is the entry if that is
        // one of them.
        let mut firsts: HashMap<(usize, Va, Va), u32> = HashMap::new();
        for p in self.without_whole(planned, reasons) {
            let mut action = self.requests[p.request].action;
            action.entry = entries.get(&(p.request, asked(&p).0)).copied().or(action.entry);
            let function = Match { va: Ok(p.of), ..p.matched.clone() };
            let cookie = match self.cookie(p.request, action.cookie, &function, regions)? {
                Ok(cookie) => cookie,
                Err(reason) => {
                    self.refuse(&p.matched, reason);
                    continue;
                }
            };
            let number = self.number(regions, Whose::Request(p.request), &p, &work.jobs)?;
            let mut desc = regions.programs.desc(&action, number, cookie, &p.part);
            if p.matched.usdt.is_some() {
                desc.flags |= ProbeDesc::USDT;
            }
            match p.part {
                // Calls of goroutines need no place.
                Part::Whole | Part::Enter if !p.goroutine && limit(&action) != 0 => {
                    (desc.maxactive, desc.places) = (u64::from(action.maxactive), places.0);
                    places = Va(places.0 + limit(&action));
                }
                _ => {}
            }
            if p.part != Part::Whole {
                let first = *firsts.entry(whole(&p)).or_insert(number);
                desc.group = first + 1;
                match p.part {
                    Part::Exit { ends: Ends::Jumped, .. } => desc.pair = (first | ShadowEntry::JUMPED as u32) + 1,
                    Part::Exit { paired: true, .. } => desc.pair = first + 1,
                    _ => {}
                }
            }
            work.descs.extend(describe(&work.jobs, &p, desc));
            let handler = regions.programs.handler(&action, number, cookie, asked(&p), &p.part);
            if let Some(original) = regions.programs.original(&action) {
                work.originals.push((site(&p), original));
            }
            if add_job(&mut work.jobs, &p, handler, work.pending.len()) {
                self.done.insert((p.request, p.matched.object.path().to_owned(), p.of));
                work.pending.push((p, number, cookie));
            }
        }
        Ok(())
    }

    /// Adds sites of our own.
    fn add_hooks(
        &mut self,
        work: &mut Work,
        regions: &Regions,
        process: &Process,
        hooks: Vec<Hook>,
    ) -> Result<(), SessionError> {
        for mut hook in hooks {
            if let Some(reason) = self.refused_by_others(&hook.planned) {
                return Err(SessionError::Overtaken { pid: process.pid(), reason });
            }
            let number = self.number(regions, hook.flow.into(), &hook.planned, &work.jobs)?;
            let mut desc = ProbeDesc { flow: hook.flow as u32, hits: number, ..ProbeDesc::default() };
            let before = hook.planned.plan.as_ref().map_or(0, |plan| plan.before_handler);
            if hook.flow == Flow::SignalCall && before != 0 {
                desc.flags |= ProbeDesc::BEHIND;
            }
            work.descs.extend(describe(&work.jobs, &hook.planned, desc));
            let handler = match (hook.flow, &mut hook.planned.plan) {
                (Flow::SignalCall, Ok(plan)) => {
                    Handler::Guard { probe: number, before: std::mem::take(&mut plan.before_handler) }
                }
                _ => Handler::Agent { probe: number },
            };
            add_job(&mut work.jobs, &hook.planned, handler, usize::MAX);
        }
        Ok(())
    }

    /// The signals that the session takes. `guarded`: there are guards for them; `reads`: programs
    /// read memory.
    fn wanted_signals(&self, guarded: bool, reads: bool) -> u64 {
        let wanted = if reads { signals::READS } else { 0 } | if guarded { self.faults } else { 0 };
        // Where the guards are there anyway, sites can be switched while the threads run.
        let traps = wanted != 0 || guarded && self.takes_traps;
        if traps { wanted | signals::TRAPS } else { wanted }
    }

    /// Notes what the session cannot do, as sites of our own were refused.
    fn note_unwatched(&mut self, jobs: &[Job], outcomes: &[Outcome], unwinders: &[Planned]) {
        for (outcome, job) in outcomes.iter().zip(jobs) {
            let Outcome::Refused(why) = outcome else { continue };
            self.unsafe_reads |= job.own;
            let unwinder = unwinders.iter().find(|unwinder| site(unwinder) == Some(job.plan.site.offset(job.bias).0));
            self.unwatched = unwinder.map(|unwinder| needed(unwinder, why)).or(self.unwatched.take());
        }
    }

    /// Notes what became of each probe. `who` are the probes of each outcome.
    fn note_outcomes(&mut self, pending: Vec<(Planned, u32, u64)>, outcomes: Vec<Outcome>, who: Vec<Vec<usize>>) {
        let mut results: Vec<Option<Result<Va, String>>> = pending.iter().map(|_| None).collect();
        for (outcome, who) in outcomes.into_iter().zip(who) {
            let result = match outcome {
                Outcome::Installed { site } => {
                    self.live.insert(site.0);
                    Ok(site)
                }
                Outcome::Refused(reason) => Err(reason),
            };
            for i in who.into_iter().filter(|i| *i != usize::MAX) {
                results[i] = Some(result.clone());
            }
        }
        self.note_installed(pending, results);
    }

    /// Maps memory for the places of probes that watch a limited number of calls (`places` in the
    /// agent).
    fn map_places(&self, regions: &Regions, hold: &mut Hold<'_>, planned: &[Planned]) -> Result<Va, SessionError> {
        let bytes: u64 = planned.iter().map(|p| limit(&self.requests[p.request].action)).sum();
        if bytes == 0 {
            return Ok(Va::default());
        }
        let len = Len(round(bytes, PAGE));
        regions.map_listed(hold, "tables", len, MapKind::Private)
    }

    /// Why other sessions keep a site from being one of this.
    pub(super) fn refused_by_others(&self, p: &Planned) -> Option<String> {
        let (Ok(plan), Some(loaded), Some(needs)) = (&p.plan, &p.matched.loaded, place(p)) else { return None };
        self.others.refuse(plan, loaded.bias, &needs)
    }

    pub(super) fn meets_own(&self, p: &Planned) -> bool {
        place(p).is_some_and(|range| self.own.iter().any(|own| overlap(own, &range)))
    }
}
