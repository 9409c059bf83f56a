//! What a session has installed, and the way there: numbers, cells and descriptors for each probe.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;

use sidestep_isa::Va;
use sidestep_plan::Technique;
use sidestep_plan::handler::Handler;
use sidestep_symbols::Matcher;
use sidestep_sys::{Process, Stopped};
use sidestep_wire::{ArgKind, ArgSpec, Flow, Histogram, ProbeDesc};

use crate::api::{Action, Arg, AttachStats, Options, Probe, Refused, Request};
use crate::error::SessionError;
use crate::install::{self, Job, Outcome};
use crate::layout::{Layout, Needs};
use crate::objects::{Loaded, Objects};
use crate::planning::{Planned, Wish, plan_all, plan_guards};
use crate::regions::Regions;
use crate::remote::mappings;
use crate::resolve::Match;
use crate::sigtrap::CALLS;

/// Ring of a thread, unless asked for otherwise.
const RING_DEFAULT: usize = 256 * 1024;
const RING_MIN: usize = 4096;
const RING_MAX: usize = 64 << 20;
/// Probes and histograms for which a spawned command gets room: what it will match is not known before its
/// libraries are there.
const SPAWN_PROBES: u64 = 64 * 1024;
const SPAWN_HISTOGRAMS: u64 = 512;

/// Functions that walk the stack, and must find real return addresses there (Itanium C++ ABI, exception handling,
/// 1.3, and libgcc's extensions), and the one that ends the walk in C++.
const UNWINDERS: [&str; 5] = [
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_ForcedUnwind",
    "_Unwind_Backtrace",
];
const CATCHERS: [&str; 1] = ["__cxa_begin_catch"];

/// Where the results of a probe are.
#[derive(Clone, Debug)]
pub(crate) struct Plumbing {
    /// Number in descriptors, records and missed counts.
    pub number: u32,
    pub hits: u32,
    pub lost: Option<u32>,
    pub hist: Option<u32>,
    pub args: Vec<ArgKind>,
}

/// A site of our own.
pub(crate) struct Hook {
    flow: Flow,
    planned: Planned,
}

/// What is installed.
pub(crate) struct Installer {
    requests: Vec<Request>,
    options: Options,
    regions: Option<Regions>,
    layout: Option<Layout>,
    pub probes: Vec<Probe>,
    pub plumbing: Vec<Plumbing>,
    pub refused: Vec<Refused>,
    pub stats: AttachStats,
    by_number: HashMap<u32, usize>,
    next_number: u32,
    next_histogram: u64,
    shared_histogram: HashMap<usize, u32>,
    /// Sites that were dealt with: a later look at the same process finds them again.
    done: HashSet<(usize, PathBuf, Va)>,
    /// Run-time ranges that the detours of sites of our own stand for.
    own: Vec<Range<u64>>,
    /// Objects that were searched for sites of our own: purpose, run-time address.
    hooked: HashSet<(&'static str, u64)>,
}

impl Installer {
    pub fn new(requests: &[Request], options: &Options) -> Installer {
        Installer {
            requests: requests.to_vec(),
            options: options.clone(),
            regions: None,
            layout: None,
            probes: Vec::new(),
            plumbing: Vec::new(),
            refused: Vec::new(),
            stats: AttachStats::default(),
            by_number: HashMap::new(),
            next_number: 0,
            next_histogram: 0,
            shared_histogram: HashMap::new(),
            done: HashSet::new(),
            own: Vec::new(),
            hooked: HashSet::new(),
        }
    }

    pub fn regions(&self) -> Option<&Regions> {
        self.regions.as_ref()
    }

    /// The program is about to begin: see [`Regions::promote_thread_pointer`].
    pub fn begin_program(&mut self, stopped: &mut Stopped) -> Result<(), SessionError> {
        match &mut self.regions {
            Some(regions) => regions.promote_thread_pointer(stopped),
            None => Ok(()),
        }
    }

    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The probe with this number in descriptors and records.
    pub fn probe_of(&self, number: u32) -> Option<usize> {
        self.by_number.get(&number).copied()
    }

    pub fn wishes(&self) -> Vec<Wish> {
        let trap_only = self.options.no_optimize;
        self.requests.iter().map(|r| Wish { returns: returns(&r.action), trap_only }).collect()
    }

    /// Leaves out matches that were dealt with.
    pub fn only_new(&self, matches: Vec<(usize, Match)>) -> Vec<(usize, Match)> {
        let new = |(request, m): &(usize, Match)| {
            let va = m.va.unwrap_or(m.symbol_va);
            !self.done.contains(&(*request, m.object.path().to_owned(), va))
        };
        matches.into_iter().filter(new).collect()
    }

    /// Sorts out what was refused.
    pub fn accept(&mut self, planned: Vec<Planned>) -> Vec<Planned> {
        let (accepted, refused): (Vec<_>, Vec<_>) = planned.into_iter().partition(|p| p.plan.is_ok());
        for p in refused {
            if let Err(reason) = p.plan {
                self.refuse(&p.matched, reason);
            }
            self.done.insert((p.request, p.matched.object.path().to_owned(), p.matched.symbol_va));
        }
        accepted
    }

    fn refuse(&mut self, m: &Match, reason: String) {
        self.refused.push(Refused { name: m.name.clone(), object: m.object.path().to_owned(), reason });
    }

    /// The error if nothing is left to be probed.
    pub fn nothing(&self) -> SessionError {
        match self.refused.first() {
            Some(first) => SessionError::AllRefused {
                name: first.name.clone(),
                object: first.object.clone(),
                reason: first.reason.clone(),
                others: self.refused.len() - 1,
            },
            None => SessionError::EndedEarly,
        }
    }

    /// Plans the sites of our own that the accepted ones need, in all objects of a process that were not looked at yet.
    pub fn complete(
        &mut self,
        planned: Vec<Planned>,
        process: &Process,
        objects: &mut Objects,
    ) -> Result<(Vec<Planned>, Vec<Hook>), SessionError> {
        let mut hooks = Vec::new();
        let mut planned = planned;
        if self.requests.iter().any(|r| returns(&r.action)) {
            let unsafe_here = match copies_stacks(process)? {
                Some(library) => Some(format!("{library} moves stacks, and with them return addresses")),
                None => hidden_unwinder(process, objects)?,
            };
            if let Some(reason) = unsafe_here {
                planned = self.without(planned, &reason, |i, p| returns(&i.requests[p.request].action));
            }
            hooks = self.plan_unwinders(process, objects)?;
        }
        let traps = |p: &Planned| p.plan.as_ref().is_ok_and(|p| p.technique == Technique::Trap);
        let before = self.regions.as_ref().is_some_and(|r| !r.traps.is_empty());
        if before || planned.iter().any(traps) || hooks.iter().any(|h| traps(&h.planned)) {
            match self.plan_guards(process, objects)? {
                Ok(guards) => hooks.extend(guards),
                Err((object, at)) => {
                    let reason = format!(
                        "it needs a trap, and the system call at {at} of {} could block SIGTRAP, which kills a process \
                         at a trap",
                        object.display()
                    );
                    hooks.retain(|h| !traps(&h.planned));
                    return Ok((self.without(planned, &reason, |_, p| traps(p)), hooks));
                }
            }
        }
        Ok((planned, hooks))
    }

    /// Refuses those for which `which` is true.
    fn without(
        &mut self,
        planned: Vec<Planned>,
        reason: &str,
        which: impl Fn(&Installer, &Planned) -> bool,
    ) -> Vec<Planned> {
        let (refused, rest): (Vec<_>, Vec<_>) = planned.into_iter().partition(|p| which(self, p));
        for p in refused {
            self.refuse(&p.matched, reason.to_owned());
        }
        rest
    }

    fn plan_unwinders(&mut self, process: &Process, objects: &mut Objects) -> Result<Vec<Hook>, SessionError> {
        const FLOWS: [Flow; 2] = [Flow::Unwind, Flow::Caught];
        let mut matches = Vec::new();
        for loaded in self.new_objects(process, objects, "unwinders")? {
            for (kind, names) in [&UNWINDERS[..], &CATCHERS[..]].into_iter().enumerate() {
                for name in names {
                    let found = loaded.object.find(&Matcher::name(name));
                    matches.extend(found.into_iter().map(|f| (kind, Match::own(&loaded, name, f.va))));
                }
            }
        }
        let wish = Wish { returns: false, trap_only: false };
        let planned = plan_all(matches, &[wish; 2], &mut || {})?.into_iter().filter(|p| p.plan.is_ok());
        Ok(planned.map(|planned| Hook { flow: FLOWS[planned.request], planned }).collect())
    }

    /// The inner error: a system call that cannot be guarded.
    fn plan_guards(
        &mut self,
        process: &Process,
        objects: &mut Objects,
    ) -> Result<Result<Vec<Hook>, (PathBuf, Va)>, SessionError> {
        let mut hooks = Vec::new();
        for loaded in self.new_objects(process, objects, "signal calls")? {
            match plan_guards(&loaded, &CALLS) {
                Ok(planned) => {
                    hooks.extend(planned.into_iter().map(|planned| Hook { flow: Flow::SignalCall, planned }))
                }
                Err(at) => return Ok(Err((loaded.object.path().to_owned(), at))),
            }
        }
        Ok(Ok(hooks))
    }

    /// The objects of a process that were not asked for this purpose before.
    fn new_objects(
        &mut self,
        process: &Process,
        objects: &mut Objects,
        purpose: &'static str,
    ) -> Result<Vec<Loaded>, SessionError> {
        let mut new = Vec::new();
        for mapped in Objects::mapped(process)? {
            let Ok(loaded) = objects.load(process, &mapped) else { continue };
            if self.hooked.insert((purpose, loaded.range.start)) {
                new.push(loaded);
            }
        }
        Ok(new)
    }

    /// Decides the sizes for an attach, where all matches are known.
    pub fn size_for(&mut self, probes: usize) {
        let shared = self.requests.iter().filter(|r| matches!(r.action, Action::Latency { .. })).count();
        let per_function =
            self.requests.iter().any(|r| matches!(r.action, Action::Latency { per_function: true })).then_some(probes);
        let histograms = (shared + per_function.unwrap_or(0)) as u64;
        self.size(probes as u64, histograms);
    }

    /// Decides the sizes for a spawn.
    pub fn size_for_spawn(&mut self) {
        let latency = self.requests.iter().any(|r| matches!(r.action, Action::Latency { .. }));
        self.size(SPAWN_PROBES, if latency { SPAWN_HISTOGRAMS } else { 0 });
    }

    fn size(&mut self, probes: u64, histograms: u64) {
        let records = self.requests.iter().any(|r| matches!(r.action, Action::Record { .. }));
        let ring = match self.options.ring_bytes {
            0 => RING_DEFAULT,
            n => n.clamp(RING_MIN, RING_MAX).next_power_of_two(),
        };
        let ring_len = if records { ring as u64 } else { 0 };
        self.layout = Some(Layout::new(Needs { probes: probes.max(1), histograms, ring_len }));
    }

    /// Installs planned sites and hooks. The regions are mapped first, if they are not there yet.
    pub fn install(
        &mut self,
        stopped: &mut Stopped,
        planned: Vec<Planned>,
        hooks: Vec<Hook>,
        clock: Option<sidestep_sys::TscScale>,
    ) -> Result<(), SessionError> {
        if planned.is_empty() && hooks.is_empty() {
            return Ok(());
        }
        let mut regions = match (self.regions.take(), self.layout) {
            (Some(regions), _) => regions,
            (None, Some(layout)) => {
                crate::seccomp::check(stopped)?;
                Regions::map(stopped, layout, clock)?
            }
            (None, None) => return Err(SessionError::TooMany { what: "probes" }),
        };
        let result = self.install_in(&mut regions, stopped, planned, hooks);
        self.regions = Some(regions);
        result
    }

    fn install_in(
        &mut self,
        regions: &mut Regions,
        stopped: &mut Stopped,
        planned: Vec<Planned>,
        hooks: Vec<Hook>,
    ) -> Result<(), SessionError> {
        let mut jobs: BTreeMap<u64, (Job, Vec<usize>)> = BTreeMap::new();
        let mut pending = Vec::new();
        self.own.extend(hooks.iter().filter_map(|h| place(&h.planned)));
        for p in planned {
            if self.meets_own(&p) {
                self.refuse(&p.matched, "a probe that keeps SIGTRAP deliverable is there".into());
                continue;
            }
            let number = self.number(regions)?;
            let (desc, plumbing) = self.describe(regions, p.request, number)?;
            let handler = match &self.requests[p.request].action {
                Action::Count => Handler::Count { cell: plumbing.hits, probe: number },
                Action::Latency { .. } | Action::Record { .. } => Handler::Agent { probe: number },
            };
            regions.describe(stopped, number, &desc)?;
            if add_job(&mut jobs, &p, handler, pending.len()) {
                self.done.insert((p.request, p.matched.object.path().to_owned(), p.matched.va.unwrap_or_default()));
                pending.push((p, plumbing));
            }
        }
        for mut hook in hooks {
            let number = self.number(regions)?;
            let desc = ProbeDesc {
                flow: hook.flow as u32,
                hist: u32::MAX,
                hits: number * 2,
                lost: number * 2 + 1,
                ..ProbeDesc::default()
            };
            regions.describe(stopped, number, &desc)?;
            let handler = match (hook.flow, &mut hook.planned.plan) {
                (Flow::SignalCall, Ok(plan)) => {
                    Handler::Guard { probe: number, before: std::mem::take(&mut plan.before_handler) }
                }
                _ => Handler::Agent { probe: number },
            };
            add_job(&mut jobs, &hook.planned, handler, usize::MAX);
        }
        let (jobs, who): (Vec<Job>, Vec<Vec<usize>>) = jobs.into_values().unzip();
        let mappings = mappings(stopped.process())?;
        let (outcomes, code_bytes) = install::install(regions, stopped, &mappings, &jobs)?;
        self.stats.code_bytes += code_bytes;
        let mut results: Vec<Option<Result<Va, String>>> = pending.iter().map(|_| None).collect();
        for (outcome, who) in outcomes.into_iter().zip(who) {
            for i in who.into_iter().filter(|i| *i != usize::MAX) {
                results[i] = Some(match &outcome {
                    Outcome::Installed { site } => Ok(*site),
                    Outcome::Refused(reason) => Err(reason.clone()),
                });
            }
        }
        for ((p, plumbing), result) in pending.into_iter().zip(results) {
            match (result, p.plan) {
                (Some(Ok(site)), Ok(plan)) => {
                    let id = self.probes.len();
                    self.by_number.insert(plumbing.number, id);
                    self.plumbing.push(plumbing);
                    self.probes.push(Probe {
                        id,
                        request: p.request,
                        name: p.matched.name,
                        object: p.matched.object.path().to_owned(),
                        va: site,
                        technique: plan.technique,
                    });
                }
                (Some(Err(reason)), _) => self.refuse(&p.matched, reason),
                _ => {}
            }
        }
        Ok(())
    }

    /// Two regions must not overlap: one jump would cut the other, or lead around it. The same site is fine.
    fn meets_own(&self, p: &Planned) -> bool {
        place(p).is_some_and(|range| {
            self.own.iter().any(|own| own.start < range.end && range.start < own.end && own.start != range.start)
        })
    }

    fn number(&mut self, regions: &Regions) -> Result<u32, SessionError> {
        let number = self.next_number;
        if u64::from(number) >= regions.layout.probes_max {
            return Err(SessionError::TooMany { what: "probes" });
        }
        self.next_number += 1;
        Ok(number)
    }

    /// Cells and descriptor of a probe.
    fn describe(
        &mut self,
        regions: &Regions,
        request: usize,
        number: u32,
    ) -> Result<(ProbeDesc, Plumbing), SessionError> {
        let (hits, lost) = (number * 2, number * 2 + 1);
        let mut desc = ProbeDesc { hits, lost, hist: u32::MAX, ..ProbeDesc::default() };
        let mut plumbing = Plumbing { number, hits, lost: None, hist: None, args: Vec::new() };
        match self.requests[request].action.clone() {
            Action::Count => {}
            Action::Latency { per_function } => {
                desc.flow = Flow::Latency as u32;
                desc.hist = match self.shared_histogram.get(&request) {
                    Some(hist) if !per_function => *hist,
                    _ => self.histogram(regions)?,
                };
                self.shared_histogram.insert(request, desc.hist);
                plumbing.hist = Some(desc.hist);
            }
            Action::Record { at_return, args } => {
                desc.flow = if at_return { Flow::Return } else { Flow::Entry } as u32;
                desc.record = 1;
                desc.nargs = args.len().min(desc.args.len()) as u32;
                for (to, from) in desc.args.iter_mut().zip(&args) {
                    *to = arg_spec(from);
                }
                plumbing.lost = Some(lost);
                plumbing.args = args.iter().map(|a| if a.string { ArgKind::Str } else { ArgKind::Int }).collect();
            }
        }
        Ok((desc, plumbing))
    }

    fn histogram(&mut self, regions: &Regions) -> Result<u32, SessionError> {
        let first = regions.layout.probes_max * 2 + self.next_histogram * Histogram::CELLS as u64;
        if first + Histogram::CELLS as u64 > regions.layout.cells {
            return Err(SessionError::TooMany { what: "histograms" });
        }
        self.next_histogram += 1;
        Ok(first as u32)
    }
}

/// The library by which a process copies parts of its stacks away and back (Python's greenlet does): a replaced return
/// address is then not found where it was put.
fn copies_stacks(process: &Process) -> Result<Option<String>, SessionError> {
    let name = |o: &sidestep_symbols::MappedObject| Some(o.path.file_name()?.to_str()?.to_owned());
    Ok(Objects::mapped(process)?.iter().filter_map(name).find(|n| n.contains("greenlet")))
}

/// The object of a process that unwinds stacks by code that has no name: exceptions could not be told from returns. Such
/// an unwinder finds its tables with the help of the C library, or the whole program is static.
fn hidden_unwinder(process: &Process, objects: &mut Objects) -> Result<Option<String>, SessionError> {
    for mapped in Objects::mapped(process)? {
        let Ok(loaded) = objects.load(process, &mapped) else { continue };
        let object = &loaded.object;
        let imports = |name: &str| !object.import_slots(name).is_empty();
        let unwinds = imports("dl_iterate_phdr") || imports("_dl_find_object") || object.is_static();
        let named = imports(UNWINDERS[0]) || !object.find(&Matcher::name(UNWINDERS[0])).is_empty();
        if unwinds && !named && object.code().is_ok_and(|code| !code.landing_pads.is_empty()) {
            let name = object.path().display();
            return Ok(Some(format!("{name} has exceptions and no symbol for the code that unwinds them")));
        }
    }
    Ok(None)
}

fn returns(action: &Action) -> bool {
    matches!(action, Action::Latency { .. } | Action::Record { at_return: true, .. })
}

fn arg_spec(arg: &Arg) -> ArgSpec {
    ArgSpec {
        kind: if arg.string { ArgKind::Str } else { ArgKind::Int } as u32,
        source: arg.index.unwrap_or(ArgSpec::RETVAL),
    }
}

/// Run-time range of what is displaced: for a guard, more than its region.
fn place(p: &Planned) -> Option<Range<u64>> {
    let (Ok(plan), Some(loaded)) = (&p.plan, &p.matched.loaded) else { return None };
    let start = plan.site.offset(loaded.bias).0;
    let last = plan.displaced.last().map_or(0, |insn| insn.va.since(plan.site) as u64 + u64::from(insn.len));
    Some(start..start + plan.region.0.max(last))
}

/// Adds a handler to the job of its site. `false` if there is no plan (it was refused before).
fn add_job(jobs: &mut BTreeMap<u64, (Job, Vec<usize>)>, p: &Planned, handler: Handler, who: usize) -> bool {
    let (Ok(plan), Some(loaded)) = (&p.plan, &p.matched.loaded) else { return false };
    let site = plan.site.offset(loaded.bias);
    let (job, waiting) = jobs.entry(site.0).or_insert_with(|| {
        let job = Job {
            plan: plan.clone(),
            bias: loaded.bias,
            own: false,
            handlers: Vec::new(),
            object: loaded.range.clone(),
            expected: p.expected.clone(),
        };
        (job, Vec::new())
    });
    // A guard displaces all up to its system call.
    if plan.displaced.len() > job.plan.displaced.len() {
        job.plan = plan.clone();
    }
    job.own |= who == usize::MAX;
    job.handlers.push(handler);
    waiting.push(who);
    true
}
