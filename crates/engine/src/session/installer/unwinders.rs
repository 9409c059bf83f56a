//! Unwinders: before one walks the stack, real return addresses are put back. So while return
//! addresses are replaced, each object that is mapped has its unwinders probed before any of its
//! code runs. Where that cannot be, return addresses stay as they are: new probes that would
//! replace them are refused, and those that are replaced are put back ([`Installer::unwatched`]).

use std::collections::HashSet;

use sidestep_plan::{Needs, Plan};
use sidestep_symbols::{MappedObject, Matcher, Object};
use sidestep_sys::Process;
use sidestep_wire::Flow;

use super::Installer;
use super::hooks::{Hook, load_of};
use super::sites::{overlap, place, returns};
use crate::error::SessionError;
use crate::planning::placement::There;
use crate::planning::{Planned, Wish, plan_all};
use crate::resolve::Match;
use crate::resolve::objects::Objects;

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

/// What objects are searched for to find unwinders.
const PURPOSE: &str = "unwinders";

impl Installer {
    /// Plans the sites that keep unwinders right, in objects that were not looked at yet, if return
    /// addresses are replaced or are about to be.
    pub(super) fn protect_returns(
        &mut self,
        planned: Vec<Planned>,
        process: &Process,
        objects: &mut Objects,
    ) -> Result<(Vec<Planned>, Vec<Hook>), SessionError> {
        let begins = planned.iter().any(|p| self.would_replace(p));
        if !begins && !self.replaces {
            return Ok((planned, Vec::new()));
        }
        let mut hooks = Vec::new();
        let mut reason = self.unwatched.clone();
        if reason.is_none() {
            reason = looks_at_returns(process)?;
        }
        if reason.is_none() {
            (hooks, reason) = self.plan_unwinders(&planned, process, objects)?;
        }
        match reason.or_else(|| self.unwinds_beside(&hooks)) {
            None => {
                self.replaces |= begins;
                Ok((planned, hooks))
            }
            Some(reason) => {
                // Nothing of this is there: a later look has to find the same.
                self.hooked.retain(|(purpose, _)| *purpose != PURPOSE);
                let planned = self.without(planned, &reason, Installer::would_replace);
                self.unwatched = self.replaces.then_some(reason);
                Ok((planned, Vec::new()))
            }
        }
    }

    /// Whether a probe would replace return addresses.
    pub(super) fn would_replace(&self, planned: &Planned) -> bool {
        planned.replaces_return(returns(&self.requests[planned.request].action))
    }

    /// Also says why return addresses cannot be replaced with what is mapped.
    fn plan_unwinders(
        &mut self,
        users: &[Planned],
        process: &Process,
        objects: &mut Objects,
    ) -> Result<(Vec<Hook>, Option<String>), SessionError> {
        const FLOWS: [Flow; 2] = [Flow::Unwind, Flow::Caught];
        let mut matches = Vec::new();
        // A library that was unloaded may come again, or another one in its place.
        let load = load_of(process);
        let mapped = Objects::mapped(process)?;
        let there: HashSet<u64> =
            mapped.iter().filter_map(|mapped| load(objects, mapped)).map(|loaded| loaded.range.start).collect();
        self.hooked.retain(|(purpose, start)| *purpose != PURPOSE || there.contains(start));
        for loaded in self.new_objects(process, objects, PURPOSE, load)? {
            if has_hidden_unwinder(&loaded.object) {
                let name = loaded.object.path().display();
                let reason = format!("{name} has exceptions and no symbol for the code that unwinds them");
                return Ok((Vec::new(), Some(reason)));
            }
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
        let there = Some(There { process, others: Some(&self.others), keeps_returns: false, may_trap: true });
        let all = plan_all(matches, &[wish; 2], &mut self.surroundings, analyses, there, &mut || {})?;
        let mut reason = None;
        let mut hooks = Vec::new();
        for mut planned in all {
            let shared = users.iter().find(|user| shares_site(&planned, user)).filter(|_| planned.plan.is_err());
            if let Some(user) = shared {
                (planned.plan, planned.expected) = (user.plan.clone(), user.expected.clone());
            }
            match &planned.plan {
                Ok(_) if place(&planned).is_some_and(|range| self.own.iter().any(|own| overlap(own, &range))) => {
                    reason = Some(needed(&planned, "a library that is gone had one at the same place"));
                }
                Ok(_) => hooks.push(Hook { flow: FLOWS[planned.request], planned, lends: None }),
                Err(why) => reason = Some(needed(&planned, &why.to_string())),
            }
        }
        Ok((hooks, reason))
    }

    /// Why returns cannot be watched beside another session: exceptions would go through the frames
    /// of both, and programs have died of that. In programs without them, unwinders may need places
    /// where the other one is in the way.
    fn unwinds_beside(&self, hooks: &[Hook]) -> Option<String> {
        let first = self.others.sessions().iter().find(|found| !found.retained)?.controller_pid;
        if hooks.iter().any(|hook| hook.flow == Flow::Caught) {
            return Some(format!("exceptions would go through returns of process {first}, too: end that first"));
        }
        let named = |hook: &Hook| Some(needed(&hook.planned, &self.refused_by_others(&hook.planned)?));
        hooks.iter().find_map(named)
    }
}

/// Is the unwinder probed by the user, too, right where it begins?
fn shares_site(unwinder: &Planned, user: &Planned) -> bool {
    let (own, matched) = (&unwinder.matched, &user.matched);
    let begins = |plan: &Plan| Ok(plan.site) == own.va && plan.before_handler == 0;
    own.object.path() == matched.object.path() && user.plan.as_ref().is_ok_and(begins)
}

/// Why return addresses are not replaced where an unwinder has no probe.
pub(super) fn needed(unwinder: &Planned, why: &str) -> String {
    format!("unwinders need {}: {why}", unwinder.matched.name)
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
pub(super) fn looks_at_returns(process: &Process) -> Result<Option<String>, SessionError> {
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

/// Does it unwind stacks by code that has no name? Exceptions could not be told from returns. Such
/// an unwinder finds its tables with the help of the C library, or the whole program is static.
fn has_hidden_unwinder(object: &Object) -> bool {
    let imports = |name: &str| !object.import_slots(name).is_empty();
    let unwinds = imports("dl_iterate_phdr") || imports("_dl_find_object") || object.is_static();
    let named = imports(UNWINDERS[0]) || !object.find(&Matcher::name(UNWINDERS[0])).is_empty();
    unwinds && !named && object.code().is_ok_and(|code| !code.landing_pads.is_empty())
}
