//! Sites of our own: probes without which others would do harm. Before an unwinder walks the stack
//! real return addresses are put back; system calls that could block signals of ours, and those
//! that make children on the parent's memory, are guarded.

use sidestep_bpf::verify::Helper;
use sidestep_isa::object::Bytes;
use sidestep_isa::{Isa, Va};
use sidestep_plan::{Needs, Plan, syscall_guard, syscalls};
use sidestep_symbols::{Kind, MappedObject, Matcher};
use sidestep_sys::{Process, arch};
use sidestep_wire::Flow;

use super::Installer;
use super::sites::{overlap, place, returns, site};
use crate::api::Program;
use crate::error::SessionError;
use crate::patch::release;
use crate::patch::share::Others;
use crate::planning::faults;
use crate::planning::placement::There;
use crate::planning::{Planned, Wish, place_guards, plan_all, plan_sigreturns};
use crate::resolve::Match;
use crate::resolve::objects::{self, Loaded, Objects};
use crate::target::hold::Hold;
use crate::target::permanent;
use crate::target::regions::Regions;
use crate::target::remote::mappings;
use crate::target::signals::{TRAPS, calls};

/// Functions that walk the stack, and must find real return addresses there (Itanium C++ ABI,
/// exception handling, 1.3, and libgcc's extensions), and the one that ends the walk in C++.
const UNWINDERS: [&str; 5] = [
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_ForcedUnwind",
    "_Unwind_Backtrace",
];
const CATCHERS: [&str; 1] = ["__cxa_begin_catch"];

/// What objects are searched for to find the system calls that have to be guarded.
const GUARDS: &str = "signal calls";

/// A site of our own.
#[derive(Clone)]
pub(crate) struct Hook {
    pub flow: Flow,
    pub planned: Planned,
    /// Link-time address of the system call that may make a child, if it is a guard of one:
    /// everything else comes first.
    pub lends: Option<Va>,
}

impl Installer {
    /// Plans the sites of our own that the accepted ones need, in all objects of a process that
    /// were not looked at yet.
    pub(super) fn complete(
        &mut self,
        planned: Vec<Planned>,
        process: &Process,
        objects: &mut Objects,
    ) -> Result<(Vec<Planned>, Vec<Hook>), SessionError> {
        if self.silent {
            return Ok((self.refuse_calls(planned), Vec::new()));
        }
        let mut hooks = Vec::new();
        let mut planned = planned;
        let replaces = |i: &Installer, p: &Planned| p.replaces_return(returns(&i.requests[p.request].action));
        if planned.iter().any(|p| replaces(self, p)) {
            let unsafe_here = match looks_at_returns(process)? {
                Some(reason) => Some(reason),
                None => hidden_unwinder(process, objects)?,
            };
            if let Some(reason) = unsafe_here {
                planned = self.without(planned, &reason, replaces);
            }
            hooks = self.plan_unwinders(process, objects)?;
            if hooks.iter().any(|h| h.planned.plan.as_ref().is_ok_and(Plan::has_traps)) {
                self.expect_signals(process)?;
            }
            if let Some(reason) = self.unwinds_beside(&hooks) {
                planned = self.without(planned, &reason, replaces);
                hooks.clear();
            }
            self.replaces |= planned.iter().any(|p| replaces(self, p));
        }
        let traps = |p: &Planned| p.inside || p.plan.as_ref().is_ok_and(Plan::has_traps);
        let before = self.regions.as_ref().is_some_and(|r| r.signals() & TRAPS != 0);
        self.faults |= planned.iter().fold(0, |set, p| set | faults::raised(p));
        self.must_show |= planned.iter().any(faults::must_show);
        let bound = before || self.must_show || planned.iter().any(traps) || hooks.iter().any(|h| traps(&h.planned));
        self.takes_traps |= self.options.live || planned.iter().any(|p| p.inside);
        let loaded = || planned.iter().filter_map(|p| p.matched.loaded.as_ref());
        let stays =
            |i: &Installer, l: &Loaded| l.object.kind() != Kind::Library || i.permanent.contains(&l.range.start);
        if loaded().any(|loaded| !stays(self, loaded)) {
            self.permanent.extend(permanent::libraries(process, objects)?);
        }
        // All sites can be switched while the threads run then. A program that has closed SIGTRAP
        // would notice.
        let stay = !planned.is_empty() && loaded().all(|loaded| stays(self, loaded));
        self.takes_traps |= stay && process.closed() & TRAPS == 0;
        // That alone is not worth the guards of system calls.
        if (bound || self.takes_traps) && process.closed() & (TRAPS | faults::AT_END) == 0 && !planned.is_empty() {
            self.faults |= faults::AT_END;
        }
        let follows = self.options.follow;
        self.needs_signals = bound || follows || self.reads_memory();
        if self.needs_signals {
            self.expect_signals(process)?;
        }
        self.beside_owner = self.others.signals().is_some();
        if let Some(controller) = self.others.signals() {
            if follows {
                let reason = format!("process {controller} has taken the signals, and --follow has to: end that first");
                return Err(SessionError::Beside { pid: process.pid(), reason });
            }
            let whose = format!("the signals are those of the session of process {controller}: end that first");
            let (trap, fault) = (format!("it needs a trap, and {whose}"), format!("it may fault, and {whose}"));
            hooks.retain(|h| !traps(&h.planned));
            let planned = self.without(planned, &trap, |_, p| traps(p));
            return Ok((self.without(planned, &fault, |_, p| faults::must_show(p)), hooks));
        }
        if bound || self.faults != 0 || self.reads_memory() || self.takes_traps || follows {
            let mut guards = self.plan_guards(process, objects)?;
            guards.append(&mut self.held);
            guards.iter_mut().for_each(|guard| give_way(guard, &planned));
            guards.retain(|guard| guard.lends.is_none() || self.refused_by_others(&guard.planned).is_none());
            if let Some(meets) = guards.iter().find(|guard| self.refused_by_others(&guard.planned).is_some()) {
                let at = meets.planned.plan.as_ref().map_or(meets.planned.matched.symbol_va, |plan| plan.site);
                self.unguarded = Some((meets.planned.matched.object.path().to_owned(), at));
            }
            if let (true, Some((object, at))) = (bound, &self.unguarded) {
                self.needs_signals = follows;
                let call = format!("the system call at {at} of {}", object.display());
                let trap = format!("it needs a trap, and {call} could block SIGTRAP, which kills a process at a trap");
                let fault = format!("an instruction there stops the program by its address, and {call} could hide it");
                hooks.retain(|h| !traps(&h.planned));
                let planned = self.without(planned, &trap, |_, p| traps(p));
                return Ok((self.without(planned, &fault, |_, p| faults::must_show(p)), hooks));
            }
            // Reads can do without, and so can most faults.
            if bound || (follows || self.unguarded.is_none()) && !planned.iter().any(|p| meets(guards.iter(), p)) {
                hooks.append(&mut guards);
            }
            self.held = guards;
            self.needs_signals = bound || follows || self.reads_memory() && self.has_guards();
        }
        Ok((planned, hooks))
    }

    /// Plans the site of our own by which a dynamic loader says what it has mapped: debuggers stop
    /// there, too.
    pub fn plan_loader(&mut self, process: &Process, objects: &mut Objects) -> Result<Vec<Hook>, SessionError> {
        const LOADER: &str = "_dl_debug_state";
        if !self.listens() {
            return Ok(Vec::new());
        }
        let mut matches = Vec::new();
        for loaded in self.new_objects(process, objects, "loaders", load_of(process))? {
            let found = loaded.object.find(&Matcher::name(LOADER));
            matches.extend(found.into_iter().map(|f| (0, Match::own(&loaded, LOADER, f.va))));
        }
        let needs = Some(Needs::default());
        let wish = Wish { returns: None, post: false, trap_only: false, more: false, leaves: false, needs };
        let analyses = &mut objects.analyses.borrow_mut();
        let there = Some(There { process, others: Some(&self.others) });
        let planned = plan_all(matches, &[wish], &mut self.surroundings, analyses, there, &mut || {})?;
        // No trap for it: signals may be blocked.
        let jumps = planned.into_iter().filter(|p| p.plan.as_ref().is_ok_and(|plan| !plan.has_traps()));
        Ok(jumps.map(|planned| Hook { flow: Flow::Mapped, planned, lends: None }).collect())
    }

    /// From here on plans are made as if another session had given up the signals, if it would do
    /// without them.
    fn expect_signals(&mut self, process: &Process) -> Result<(), SessionError> {
        let Some(found) = self.others.holder() else { return Ok(()) };
        match release::spare_guards(process, found) {
            Ok(guards) => guards.into_iter().for_each(|guards| self.others.without(&guards)),
            // Its memory cannot be read if that session has ended since it was found.
            Err(error) => {
                let ended = found.shared_va;
                let own = self.regions.as_ref().map(|regions| regions.shared_va);
                self.others = Others::of(process, &mappings(process)?, own)?;
                if self.others.holder().is_some_and(|found| found.shared_va == ended) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Before what was planned is put in: takes the signals from another session that would do
    /// without them, if that is needed. Are they another one's, or were they since the plans were
    /// made? Then there are no guards.
    pub(super) fn claim_signals(&mut self, regions: &Regions, hold: &mut Hold<'_>) -> Result<bool, SessionError> {
        let process = hold.process();
        let look = || Others::of(&process, &mappings(&process)?, Some(regions.shared_va));
        self.others = look()?;
        if self.has_lost_signals(regions) || self.beside_owner {
            return Ok(true);
        }
        release::finish(hold, regions.shared_va, &regions.room())?;
        if let Some(found) = self.others.holder().filter(|_| self.needs_signals) {
            release::release(hold, found, &regions.room())?;
            self.others = look()?;
        }
        Ok(self.others.holder().is_some())
    }

    /// Signals that another session has taken from this one may be had again later, with new
    /// guards.
    pub(super) fn forget_guards(&mut self) {
        if self.regions.as_ref().is_some_and(|regions| self.has_lost_signals(regions)) {
            self.hooked.retain(|(purpose, _)| *purpose != GUARDS);
            self.own.retain(|range| !self.guards.contains(range));
            self.live.retain(|site| !self.guards.iter().any(|range| range.start == *site));
            self.guards.clear();
        }
    }

    /// There were guards, and another session needs the signals: see [`crate::patch::release`].
    fn has_lost_signals(&self, regions: &Regions) -> bool {
        !self.guards.is_empty() && regions.signals() == 0
    }

    /// Are all system calls guarded, or going to be, that could block signals?
    pub(super) fn has_guards(&self) -> bool {
        self.unguarded.is_none() && self.held.is_empty()
    }

    /// Do probes read memory that may not be there?
    pub(super) fn reads_memory(&self) -> bool {
        let reads = |program: &Program| program.verified().is_some_and(|v| v.facts.calls(Helper::reads_target));
        self.reads_arguments || self.bundle.programs.iter().any(reads)
    }

    /// Refuses those for which `which` is true.
    pub(super) fn without(
        &mut self,
        planned: Vec<Planned>,
        reason: &str,
        which: impl Fn(&Installer, &Planned) -> bool,
    ) -> Vec<Planned> {
        let reason = |p: &Planned| {
            which(self, p).then(|| match &p.unproven {
                Some(why) => format!("{why}; and its return address cannot be replaced: {reason}"),
                None => reason.to_owned(),
            })
        };
        let reasons: Vec<Option<String>> = planned.iter().map(reason).collect();
        self.without_whole(planned, reasons)
    }

    fn plan_unwinders(&mut self, process: &Process, objects: &mut Objects) -> Result<Vec<Hook>, SessionError> {
        const FLOWS: [Flow; 2] = [Flow::Unwind, Flow::Caught];
        let mut matches = Vec::new();
        for loaded in self.new_objects(process, objects, "unwinders", load_of(process))? {
            for (kind, names) in [&UNWINDERS[..], &CATCHERS[..]].into_iter().enumerate() {
                for name in names {
                    let found = loaded.object.find(&Matcher::name(name));
                    matches.extend(found.into_iter().map(|f| (kind, Match::own(&loaded, name, f.va))));
                }
            }
        }
        // They compute the address of a landing pad, or of the function that they stand for.
        let needs = Some(Needs::default());
        let wish = Wish { returns: None, post: false, trap_only: false, more: false, leaves: true, needs };
        let analyses = &mut objects.analyses.borrow_mut();
        let there = Some(There { process, others: Some(&self.others) });
        let planned = plan_all(matches, &[wish; 2], &mut self.surroundings, analyses, there, &mut || {})?;
        let planned = planned.into_iter().filter(|p| p.plan.is_ok());
        Ok(planned.map(|planned| Hook { flow: FLOWS[planned.request], planned, lends: None }).collect())
    }

    /// Why returns cannot be watched beside another session: exceptions would go through the frames
    /// of both, and programs have died of that. In programs without them, unwinders may need places
    /// where the other one is in the way.
    fn unwinds_beside(&self, hooks: &[Hook]) -> Option<String> {
        let first = self.others.sessions().first()?.controller_pid;
        if hooks.iter().any(|hook| hook.flow == Flow::Caught) {
            return Some(format!("exceptions would go through returns of process {first}, too: end that first"));
        }
        let needs = |hook: &Hook| match (self.others.signals(), &hook.planned.plan) {
            (Some(controller), Ok(plan)) if plan.has_traps() => {
                Some(format!("a trap there, and process {controller} has taken the signals: end that first"))
            }
            _ => self.refused_by_others(&hook.planned),
        };
        let named = |hook: &Hook| Some(format!("unwinders need {}: {}", hook.planned.matched.name, needs(hook)?));
        hooks.iter().find_map(named)
    }

    fn plan_guards(&mut self, process: &Process, objects: &mut Objects) -> Result<Vec<Hook>, SessionError> {
        let mut hooks = Vec::new();
        let mut numbers = calls();
        numbers.extend(arch::LENDING_CALLS.iter().map(|number| *number as u32));
        if self.options.follow {
            numbers.extend(arch::EXEC_CALLS.iter().map(|number| *number as u32));
        }
        let calls = |isa: Isa, text: &[Bytes<'_>]| !syscalls::find(isa, text, &numbers).is_empty();
        let load = |objects: &mut Objects, mapped: &MappedObject| objects.load_if(process, mapped, calls);
        for loaded in self.new_objects(process, objects, GUARDS, load)? {
            match self.registry.borrow_mut().guards(&loaded.object, &numbers) {
                Ok(guards) => hooks.extend(place_guards(&loaded, guards).map(guard)),
                Err(at) => self.unguarded = Some((loaded.object.path().to_owned(), *at)),
            }
        }
        // Signal handlers may return there.
        let vdso = if arch::RETURNS_IN_VDSO { objects::vdso(process) } else { None };
        if let Some(vdso) = vdso.filter(|vdso| self.hooked.insert((GUARDS, vdso.range.start))) {
            let guards = plan_sigreturns(&vdso.object, &numbers);
            hooks.extend(place_guards(&vdso, &guards).map(guard));
        }
        Ok(hooks)
    }

    /// The objects of a process that were not asked for this purpose before.
    fn new_objects(
        &mut self,
        process: &Process,
        objects: &mut Objects,
        purpose: &'static str,
        load: impl Fn(&mut Objects, &MappedObject) -> Option<Loaded>,
    ) -> Result<Vec<Loaded>, SessionError> {
        let mut new = Vec::new();
        for mapped in Objects::mapped(process)? {
            let Some(loaded) = load(objects, &mapped) else { continue };
            if self.hooked.insert((purpose, loaded.range.start)) {
                new.push(loaded);
            }
        }
        Ok(new)
    }
}

/// Loads any object.
fn load_of(process: &Process) -> impl Fn(&mut Objects, &MappedObject) -> Option<Loaded> + use<'_> {
    |objects, mapped| objects.load(process, mapped).ok()
}

fn guard((planned, lends): (Planned, Option<Va>)) -> Hook {
    Hook { flow: Flow::SignalCall, planned, lends }
}

/// A guard of a call that makes children is at the last of the users' sites that it would meet, if
/// there are any: no probe is refused for it.
fn give_way(guard: &mut Hook, planned: &[Planned]) {
    let (Some(call), Some(own), Some(loaded)) = (guard.lends, place(&guard.planned), &guard.planned.matched.loaded)
    else {
        return;
    };
    let end = call.offset(loaded.bias).0 + 1;
    let meets = |p: &&Planned| place(p).is_some_and(|range| range.start < end && own.start < range.end);
    let Some(last) = planned.iter().filter(meets).max_by_key(|p| site(p)) else { return };
    let (Ok(plan), Ok(code)) = (&last.plan, guard.planned.matched.object.code()) else { return };
    if let Some(plan) = syscall_guard::guard_at(&code, plan.for_now(), call) {
        guard.planned.plan = Ok(plan);
        guard.planned.expected.clone_from(&last.expected);
    }
}

/// Would a probe overlap one of these sites of our own? The same site is fine.
fn meets<'a>(mut hooks: impl Iterator<Item = &'a Hook>, p: &Planned) -> bool {
    let Some(range) = place(p) else { return false };
    hooks.any(|h| place(&h.planned).is_some_and(|own| overlap(&own, &range)))
}

/// Programs and libraries that look at return addresses, or move them: a replaced one is not found
/// where it was put, or is taken for code of theirs. By the beginning of the file's name.
const LOOKS_AT_RETURNS: [(&str, &str); 15] = [
    ("greenlet", "moves stacks"),
    ("_greenlet", "moves stacks"),
    ("libjvm.so", "walks stacks by return addresses"),
    ("libcoreclr.so", "walks stacks by return addresses"),
    ("mono", "walks stacks by return addresses"),
    ("libmono", "walks stacks by return addresses"),
    ("libmonosgen", "walks stacks by return addresses"),
    ("libmonoboehm", "walks stacks by return addresses"),
    ("libmonobdwgc", "walks stacks by return addresses"),
    ("beam.smp", "checks return addresses"),
    ("node", "walks stacks by return addresses"),
    ("libnode.so", "walks stacks by return addresses"),
    ("libv8", "walks stacks by return addresses"),
    ("python", "may load a library that moves stacks"),
    ("libpython", "may load a library that moves stacks"),
];

/// The first of the objects of a process that does so, and what it does.
pub(crate) fn looks_at_returns(process: &Process) -> Result<Option<String>, SessionError> {
    let name = |o: &MappedObject| Some(o.path.file_name()?.to_str()?.to_owned());
    let known = |name: String| {
        let is = |(begin, _): &&(&str, &str)| {
            let rest = name.strip_prefix(begin);
            // A version, or nothing: `node` is not `nodelist`.
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphabetic()))
        };
        LOOKS_AT_RETURNS.iter().find(is).map(|(_, what)| format!("{name} {what}"))
    };
    Ok(Objects::mapped(process)?.iter().filter_map(name).find_map(known))
}

/// The object of a process that unwinds stacks by code that has no name: exceptions could not be
/// told from returns. Such an unwinder finds its tables with the help of the C library, or the
/// whole program is static.
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
