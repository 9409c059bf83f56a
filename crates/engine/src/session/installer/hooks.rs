//! Sites of our own: probes without which others would do harm. System calls that could block
//! signals of ours, and those that make children on the parent's memory, are guarded; unwinders are
//! in [`super::unwinders`].

use sidestep_bpf::verify::Helper;
use sidestep_isa::object::Bytes;
use sidestep_isa::{Isa, Va};
use sidestep_plan::{Needs, Plan, syscall_guard, syscalls};
use sidestep_symbols::{Kind, MappedObject, Matcher};
use sidestep_sys::{Process, arch, is_hurried};
use sidestep_wire::Flow;
use sidestep_wire::signals::SHARERS_MAX;

use super::Installer;
use super::sites::{overlap, place, site};
use crate::api::Program;
use crate::error::SessionError;
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
use crate::target::signals::{self, TRAPS, calls};

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

impl Hook {
    /// Does it keep unwinders right?
    pub fn is_unwinder(&self) -> bool {
        matches!(self.flow, Flow::Unwind | Flow::Caught)
    }
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
        let (planned, mut hooks) = self.protect_returns(planned, process, objects)?;
        let before = self.regions.as_ref().map_or(Ok(0), Regions::signals)? & TRAPS != 0;
        self.faults |= planned.iter().fold(0, |set, p| set | faults::raised(p));
        self.must_show |= planned.iter().any(faults::must_show);
        let bound =
            before || self.must_show || planned.iter().any(needs_trap) || hooks.iter().any(|h| needs_trap(&h.planned));
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
        if bound || self.faults != 0 || self.reads_memory() || self.takes_traps || follows {
            let mut guards = self.plan_guards(process, objects)?;
            guards.append(&mut self.held);
            guards.iter_mut().for_each(|guard| give_way(guard, &planned));
            let is_refused = |i: &Installer, guard: &Hook| {
                !i.has_others_guard(guard) && i.refused_by_others(&guard.planned).is_some()
            };
            guards.retain(|guard| guard.lends.is_none() || !is_refused(self, guard));
            if let Some(meets) = guards.iter().find(|guard| is_refused(self, guard)) {
                let at = meets.planned.plan.as_ref().map_or(meets.planned.matched.symbol_va, |plan| plan.site);
                self.unguarded = Some((meets.planned.matched.object.path().to_owned(), at));
            }
            if let (true, Some((object, at))) = (bound, &self.unguarded) {
                let call = format!("the system call at {at} of {}", object.display());
                let trap = format!("it needs a trap, and {call} could block SIGTRAP, which kills a process at a trap");
                let fault = format!("an instruction there stops the program by its address, and {call} could hide it");
                let planned = self.leave_out(&mut hooks, planned, &trap);
                let planned = self.without(planned, &trap, |_, p| needs_trap(p));
                return Ok((self.without(planned, &fault, |_, p| faults::must_show(p)), hooks));
            }
            // Reads can do without, and so can most faults.
            if bound || (follows || self.unguarded.is_none()) && !planned.iter().any(|p| meets(guards.iter(), p)) {
                hooks.append(&mut guards);
            }
            self.held = guards;
        }
        Ok((planned, hooks))
    }

    /// Leaves out sites of our own that need traps, which cannot be had for this reason. Without an
    /// unwinder's, return addresses stay as they are.
    fn leave_out(&mut self, hooks: &mut Vec<Hook>, planned: Vec<Planned>, reason: &str) -> Vec<Planned> {
        let is_bare = hooks.iter().any(|hook| needs_trap(&hook.planned) && hook.is_unwinder());
        hooks.retain(|hook| !needs_trap(&hook.planned));
        if !is_bare {
            return planned;
        }
        self.unwatched = Some(reason.to_owned());
        self.without(planned, reason, Installer::would_replace)
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
        let there = Some(There { process, others: Some(&self.others), keeps_returns: false, may_trap: true });
        let planned = plan_all(matches, &[wish], &mut self.surroundings, analyses, there, &mut || {})?;
        // No trap for it: signals may be blocked.
        let jumps = planned.into_iter().filter(|p| p.plan.as_ref().is_ok_and(|plan| !plan.has_traps()));
        Ok(jumps.map(|planned| Hook { flow: Flow::Mapped, planned, lends: None }).collect())
    }

    /// Before what was planned is put in: looks at what others have in the process by now. If one
    /// of them owns the signals, and they are wanted, this session shares them. Guards that others
    /// have, too, are left out: those do the same for all who use the signals.
    pub(super) fn share_signals(
        &mut self,
        regions: &Regions,
        hold: &mut Hold<'_>,
        planned: &[Planned],
        hooks: &mut Vec<Hook>,
    ) -> Result<(), SessionError> {
        let process = hold.process();
        self.others = Others::of(&process, &mappings(&process)?, Some(regions.head.at))?;
        let is_guard = |hook: &Hook| hook.flow == Flow::SignalCall;
        let wanted = self.takes_traps || self.faults != 0 || self.reads_memory();
        let wanted = wanted || hooks.iter().any(|hook| is_guard(hook) || needs_trap(&hook.planned));
        let wanted = wanted || planned.iter().any(needs_trap);
        if let Some(controller) = self.others.ending().filter(|_| wanted) {
            let reason = format!("wait until process {controller} has ended its session");
            return Err(SessionError::Overtaken { pid: process.pid(), reason });
        }
        let Some(owner) = self.others.owner().filter(|_| wanted) else { return Ok(()) };
        let (private, owner) = (regions.private, owner.private_va);
        let is_sharer = signals::owner_of_sharer(&process, private)? == owner;
        if !is_sharer && !hold.stopped("signals", |stopped| signals::share(stopped, private, owner))? {
            let reason = format!("{SHARERS_MAX} sessions share the signals, and there is no room for another one");
            return Err(SessionError::Beside { pid: process.pid(), reason });
        }
        hooks.retain(|hook| !is_guard(hook) || !self.has_others_guard(hook));
        Ok(())
    }

    /// Have others a guard where one of ours would be?
    fn has_others_guard(&self, guard: &Hook) -> bool {
        site(&guard.planned).is_some_and(|site| self.others.guard(site))
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
            let mut registry = self.registry.borrow_mut();
            let guards = registry.guards(&loaded.object, &numbers);
            if is_hurried() {
                // They may lack what was not looked at to the end.
                return Err(SessionError::Interrupted);
            }
            match guards {
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
    pub(super) fn new_objects(
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

/// Is a site a trap, or has it any, or may it become one?
fn needs_trap(p: &Planned) -> bool {
    p.inside || p.plan.as_ref().is_ok_and(Plan::has_traps)
}

/// Loads any object.
pub(super) fn load_of(process: &Process) -> impl Fn(&mut Objects, &MappedObject) -> Option<Loaded> + use<'_> {
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
