//! From matches to jobs: every site planned once, its handlers in the order of the requests.

pub(crate) mod coverage;
pub(crate) mod faults;
pub(crate) mod placement;
mod planner;
pub(crate) mod preview;
pub(crate) mod surroundings;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use sidestep_isa::object::{Bytes, Extent, ObjectCode};
use sidestep_isa::syscalls::calls;
use sidestep_isa::{Len, Va};
use sidestep_plan::syscalls::SyscallSite;
use sidestep_plan::{
    Index, Needs, Placement, Plan, Reason, Technique, plan_at, plan_in, promotable, site_of, syscall_guard, syscalls,
};
use sidestep_symbols::{Matcher, Object};
use sidestep_sys::{arch, is_hurried};

use crate::error::SessionError;
use crate::planning::placement::{There, placements};
use crate::planning::planner::Planner;
use crate::planning::surroundings::{ObjectRoom, Surroundings};
use crate::programs::Part;
use crate::refusal::{RefusalReason, Unproven};
use crate::resolve::Match;
use crate::resolve::analyses::Analyses;
use crate::resolve::objects::Loaded;

/// Longest region that a plan can have, with a margin.
pub(crate) const REGION_MAX: usize = 64;

/// A match with its plan.
#[derive(Clone)]
pub(crate) struct Planned {
    /// Which request it came from.
    pub request: usize,
    pub matched: Match,
    pub plan: Result<Plan, RefusalReason>,
    /// What the file says is at the site.
    pub expected: Vec<u8>,
    /// It is where another site's jump is, or will be: that is a trap for as long as this one is
    /// enabled.
    pub inside: bool,
    /// Which part of its probe this site is.
    pub part: Part,
    /// Link-time address of the function or instruction that the probe is at.
    pub of: Va,
    /// Calls of the function are known by their goroutines.
    pub goroutine: bool,
    /// Why a return probe is not at the exits of the function.
    pub unproven: Option<Unproven>,
}

impl Planned {
    /// Whether its probe replaces the return address.
    pub fn replaces_return(&self, returns: bool) -> bool {
        returns && self.part == Part::Whole
    }
}

/// What to plan.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    /// Watch for returns.
    pub returns: Option<Returns>,
    /// Run behind the instruction.
    pub post: bool,
    /// Traps only.
    pub trap_only: bool,
    /// Other sites may come later.
    pub more: bool,
    /// Jumps of the function to computed addresses leave it.
    pub leaves: bool,
    /// What the handlers need of the state in front of the instruction; `None`: the site has to be
    /// at that.
    pub needs: Option<Needs>,
}

/// What a return probe needs.
#[derive(Clone, Copy)]
pub(crate) struct Returns {
    /// The result of the function, or a place to change it.
    pub result: bool,
    /// What the entry of the same call left.
    pub entry: bool,
}

/// Plans all matches. `wishes` is per request; `planned_one` is called for each. No plan touches
/// the first byte of another site. `there`: the process, if the plans are for one.
pub(crate) fn plan_all(
    matches: Vec<(usize, Match)>,
    wishes: &[Wish],
    surroundings: &mut Surroundings,
    analyses: &mut Analyses,
    there: Option<There<'_>>,
    planned_one: &mut dyn FnMut(),
) -> Result<Vec<Planned>, SessionError> {
    let mut by_object: BTreeMap<(*const Object, i64), Vec<(usize, Match)>> = BTreeMap::new();
    let mut order = Vec::new();
    for (request, matched) in matches {
        let key = (Rc::as_ptr(&matched.object), matched.bias());
        if !by_object.contains_key(&key) {
            order.push(key);
        }
        by_object.entry(key).or_default().push((request, matched));
    }
    let mut all = Vec::new();
    for key in order {
        let Some(group) = by_object.remove(&key) else { continue };
        let Some(first) = group.first().map(|(_, m)| m.clone()) else { continue };
        let any_returns = group.iter().any(|(request, _)| wishes[*request].returns.is_some());
        // Who else comes to an exit is known of the whole object alone.
        let some = if any_returns { None } else { some_of(&first.object, &group, wishes, analyses) };
        let is_part = some.is_some();
        let mut index = match some {
            Some(index) => index,
            None => analyses.index(&first.object)?,
        };
        for (_, matched) in group.iter().filter(|(request, _)| wishes[*request].leaves) {
            index.computed_jumps_leave(matched.symbol_va);
        }
        let mut room = surroundings.of(first.object.isa(), first.bias(), first.image().start);
        let asked: Vec<(Va, Option<Needs>)> =
            group.iter().filter_map(|(request, m)| Some((m.va.ok()?, wishes[*request].needs))).collect();
        let is_taken = |site| room.is_taken(site);
        let mut placed = placements(&index, first.bias(), &asked, there, is_taken);
        if is_part && placed.values().any(|placement| matches!(placement, Placement::Forced(_))) {
            // What is around the sites was enough for others.
            index = analyses.index(&first.object)?;
            placed = placements(&index, first.bias(), &asked, there, is_taken);
        }
        let index = index;
        let placement = |va: Va| placed.get(&va).copied().unwrap_or(Placement::First);
        let optimized = group.iter().filter(|(request, _)| !wishes[*request].trap_only);
        let sites: Vec<Va> =
            optimized.filter_map(|(_, m)| site_of(&index, m.va.ok()?, placement(m.va.ok()?))).collect();
        room.expect(sites);
        let first = all.len();
        let bias = group.first().map_or(0, |(_, matched)| matched.bias());
        let mut planner = Planner::new(&index, &mut room, &placement, there, bias);
        for (request, matched) in group {
            if is_hurried() {
                return Err(SessionError::Interrupted);
            }
            planned_one();
            all.extend(planner.probe(request, matched, wishes[request]));
        }
        let crowded = planner.make_room();
        if !crowded.is_empty() && there.is_none_or(|there| there.may_trap) {
            let planned = all.split_off(first);
            all.extend(plan_crowded(&mut planner, planned, &crowded, wishes));
        }
        for p in &mut all[first..] {
            if let Ok(plan) = &p.plan {
                p.expected = expected(&index, plan);
            }
        }
        let wanted: Vec<Range<Va>> = room.wanted().collect();
        for p in &mut all[first..] {
            // What displaces an exit stays as it is.
            if let (Ok(plan), false) = (&mut p.plan, matches!(p.part, Part::Exit { .. })) {
                p.inside = near(&wanted, plan.site).any(|range| range.contains(&plan.site));
                let may = wishes[p.request].more && (plan.may_be_inside() || plan.may_be_around());
                if may || plan.leads_into(near(&wanted, plan.site)) {
                    plan.add_gate();
                }
                if let Some(range) = plan.yields().filter(|_| wishes[p.request].more) {
                    room.may_yield(plan.site, range);
                }
            }
        }
    }
    Ok(all)
}

/// Plans the probes of crowded functions anew, as traps.
fn plan_crowded(
    planner: &mut Planner<'_, '_, '_, '_>,
    planned: Vec<Planned>,
    crowded: &BTreeSet<Va>,
    wishes: &[Wish],
) -> Vec<Planned> {
    let (mut all, mut done) = (Vec::new(), BTreeSet::new());
    for p in planned {
        if !crowded.contains(&p.of) {
            all.push(p);
        } else if done.insert((p.request, p.of)) {
            let wish = Wish { trap_only: true, ..wishes[p.request] };
            all.extend(planner.probe(p.request, Match { va: Ok(p.of), ..p.matched }, wish));
        }
    }
    all
}

/// Sites of an object for which its whole code is not looked at.
const FEW: usize = 32;

/// The index of what is around a few sites, if it says as much about these as that of the whole
/// object.
fn some_of<'o>(
    object: &'o Rc<Object>,
    group: &[(usize, Match)],
    wishes: &[Wish],
    analyses: &Analyses,
) -> Option<Index<'o>> {
    if group.len() > FEW || group.iter().any(|(request, _)| wishes[*request].leaves) || analyses.knows(object) {
        return None;
    }
    let sites: Vec<Va> = group.iter().filter_map(|(_, matched)| matched.va.ok()).collect();
    let index = Index::around(object.code().ok()?, &sites);
    let is_enough = |(request, matched): &(usize, Match)| {
        let trap_only = wishes[*request].trap_only;
        let described = matched.va.ok().filter(|va| index.is_described(*va));
        let needs = wishes[*request].needs;
        let placed = needs.map_or(Placement::First, Placement::Behind);
        let is_best = |p: Plan| trap_only || is_best(p.technique);
        // Which of the two it is going to be is not known yet.
        let both =
            |va| [Placement::First, placed].iter().all(|at| plan_at(&index, va, trap_only, *at).is_ok_and(is_best));
        described.is_some_and(both)
    };
    group.iter().all(is_enough).then_some(index)
}

/// Not with what speaks against a better technique, which may be that not all is known.
fn is_best(technique: Technique) -> bool {
    matches!(technique, Technique::NopSite | Technique::Jump | Technique::JumpOverSeveral)
}

/// Of ranges, by their start, those that an instruction at a site may lead into.
fn near(ranges: &[Range<Va>], site: Va) -> impl Iterator<Item = Range<Va>> {
    let first = ranges.partition_point(|range| range.end <= site);
    ranges[first..].iter().take_while(move |range| range.start.since(site) < REGION_MAX as i64).cloned()
}

/// As [`plan_in`]; with a plan for when it is not blocked any more.
pub(crate) fn plan_for_good(
    index: &Index<'_>,
    va: Va,
    placement: Placement,
    room: &mut ObjectRoom<'_>,
) -> Result<Plan, Reason> {
    let plan = plan_in(index, va, room, placement).map_err(|refusal| {
        match site_of(index, va, placement).is_some_and(|site| room.is_taken(site)) {
            true => Reason::RegisterFirst(Box::new(refusal.reason)),
            false => refusal.reason,
        }
    })?;
    let Some(jump) = promotable(index, &plan, |range| room.inside(plan.site, range)) else { return Ok(plan) };
    if let Some(wanted) = jump.wanted() {
        room.want(jump.site, wanted);
    }
    Ok(jump)
}

/// What the file says is at the site.
fn expected(index: &Index<'_>, plan: &Plan) -> Vec<u8> {
    let bytes = index.code().bytes_at(plan.site).unwrap_or_default();
    bytes[..bytes.len().min(REGION_MAX)].to_vec()
}

/// A guard.
pub(crate) struct Guard {
    pub plan: Plan,
    /// What the file says is at its site.
    pub expected: Vec<u8>,
    /// Link-time address of its system call.
    pub call: Va,
    /// That is one that makes children: traps can do without the guard.
    pub lends: bool,
}

/// Those of an object. `Err`: the link-time address of a place that cannot be guarded, and has to
/// be.
pub(crate) type Guards = Result<Vec<Guard>, Va>;

/// Guards of all places in an object that make one of these system calls.
pub(crate) fn plan_guards(object: &Rc<Object>, numbers: &[u32], analyses: &mut Analyses) -> Guards {
    let mut sites = object.text().map_or_else(|_| Vec::new(), |text| syscalls::find(object.isa(), &text, numbers));
    if sites.is_empty() {
        return Ok(Vec::new());
    }
    // An object whose code cannot be analysed was never probed, so its code is not known to run.
    let Ok(code) = object.code() else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    let lends =
        |site: &SyscallSite| site.number.is_some_and(|n| arch::LENDING_CALLS.iter().any(|call| *call as u32 == n));
    let mut keep = |index: &Index<'_>, site: &SyscallSite, plan: Plan| {
        let expected = expected(index, &plan);
        all.push(Guard { plan, expected, call: site.syscall, lends: lends(site) });
    };
    // Most are planned without what the rest of the object says.
    let index = match analyses.known(object) {
        Some(index) => index,
        None => Index::around(code, &sites.iter().map(|site| site.mov).collect::<Vec<Va>>()),
    };
    sites.retain(|site| match syscall_guard::guard(&index, *site).filter(|_| index.is_described(site.mov)) {
        Some(Ok(plan)) => {
            keep(&index, site, plan);
            false
        }
        Some(Err(_)) => false,
        None => true,
    });
    if !sites.is_empty() {
        let Ok(index) = analyses.index(object) else { return Ok(Vec::new()) };
        for site in sites {
            match syscall_guard::guard(&index, site) {
                Some(Ok(plan)) => keep(&index, &site, plan),
                // No instruction of the program.
                Some(Err(_)) => {}
                None if site.number.is_some() && !lends(&site) => return Err(site.mov),
                // It may be any call; a function that passes them all on is guarded or is not used
                // for these.
                None => {}
            }
        }
    }
    Ok(all)
}

/// Guards of the code in the vDSO to which signal handlers return. Its unwind information begins in
/// front of it, so that it cannot be analysed like other code; but it is known what it is, and that
/// nothing else leads there (`arch/x86/entry/vdso/vdso32/sigreturn.S`,
/// `arch/arm64/kernel/vdso/sigreturn.S`).
pub(crate) fn plan_sigreturns(vdso: &Object, numbers: &[u32]) -> Vec<Guard> {
    const FUNCTIONS: [&str; 2] = ["__kernel_sigreturn", "__kernel_rt_sigreturn"];
    let Ok(text) = vdso.text() else { return Vec::new() };
    let guard = |start: Va| {
        let from = |section: &Bytes<'_>| usize::try_from(start.since(section.va)).ok();
        let (section, code) = text.iter().find_map(|section| Some((section, section.data.get(from(section)?..)?)))?;
        let end = |call: &&[u8]| Some(code.windows(call.len()).take(REGION_MAX).position(|b| b == *call)? + call.len());
        let len = calls(vdso.isa()).iter().filter_map(end).min()?;
        let function = Bytes { name: section.name, va: start, data: &code[..len] };
        let site = *syscalls::find(vdso.isa(), std::slice::from_ref(&function), numbers).first()?;
        let index = Index::new(ObjectCode {
            text: vec![function],
            extents: vec![Extent { start, len: Len(len as u64) }],
            ..ObjectCode::new(vdso.isa())
        });
        let plan = syscall_guard::guard(&index, site)?.ok()?;
        let expected = expected(&index, &plan);
        Some(Guard { plan, expected, call: site.syscall, lends: false })
    };
    FUNCTIONS.iter().flat_map(|name| vdso.find(&Matcher::name(name))).filter_map(|found| guard(found.va)).collect()
}

/// Guards of an object where a process has it, with [`Guard::call`] of those that lend.
pub(crate) fn place_guards<'g>(
    loaded: &'g Loaded,
    guards: &'g [Guard],
) -> impl Iterator<Item = (Planned, Option<Va>)> + use<'g> {
    let planned = |guard: &Guard| Planned {
        request: 0,
        matched: Match::own(loaded, "a signal call", guard.plan.site),
        expected: guard.expected.clone(),
        plan: Ok(guard.plan.clone()),
        inside: false,
        goroutine: false,
        part: Part::Whole,
        of: guard.plan.asked,
        unproven: None,
    };
    guards.iter().map(move |guard| (planned(guard), guard.lends.then_some(guard.call)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sidestep_sys::arch;

    use super::*;
    use crate::target::signals::calls;

    /// The objects that this test is made of, or those that `SIDESTEP_OBJECTS` names, with a colon
    /// between two.
    fn objects() -> Vec<Object> {
        let own = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut paths: Vec<String> = match std::env::var("SIDESTEP_OBJECTS") {
            Ok(given) => given.split(':').map(str::to_owned).collect(),
            Err(_) => own.lines().filter_map(|line| line.find('/').map(|at| line[at..].to_owned())).collect(),
        };
        paths.dedup();
        paths.iter().filter_map(|path| Object::open(Path::new(path), &[]).ok()).collect()
    }

    fn plain(plan: Plan) -> Plan {
        Plan { rejected: Vec::new(), ..plan }
    }

    #[test]
    fn what_is_around_a_call_is_enough_for_its_guard() {
        let (mut planned, mut left) = (0, 0);
        for object in objects() {
            let mut numbers = calls();
            numbers.extend(arch::EXEC_CALLS.iter().map(|number| *number as u32));
            let sites = syscalls::find(object.isa(), &object.text().unwrap(), &numbers);
            let Ok(code) = object.code() else { continue };
            let all = Index::new(code.clone());
            let some = Index::around(code, &sites.iter().map(|site| site.mov).collect::<Vec<Va>>());
            for site in sites {
                let whole = syscall_guard::guard(&all, site).map(|guard| guard.map(plain));
                match syscall_guard::guard(&some, site).filter(|_| some.is_described(site.mov)) {
                    Some(Ok(plan)) => {
                        planned += 1;
                        assert_eq!(Some(Ok(plain(plan))), whole, "{}", object.path().display());
                    }
                    Some(Err(_)) => {
                        assert!(matches!(whole, Some(Err(_))), "{} {site:?} {whole:?}", object.path().display())
                    }
                    _ => left += 1,
                }
            }
        }
        assert!(planned > 10 && left < planned / 10, "{planned} planned, {left} left");
    }

    #[test]
    fn what_is_around_a_few_functions_is_enough_for_their_plans() {
        let (mut planned, mut left) = (0, 0);
        for object in objects().into_iter().map(Rc::new) {
            let Ok(code) = object.code() else { continue };
            let all = Index::new(code);
            let functions = object.functions();
            for first in 0..8 {
                let few: Vec<Va> =
                    functions.iter().skip(first).step_by(functions.len() / 4 + 1).map(|f| f.va).collect();
                let some = Index::around(object.code().unwrap(), &few);
                for va in few {
                    match plan_at(&some, va, false, Placement::default()) {
                        Ok(found) if is_best(found.technique) && some.is_described(va) => {
                            planned += 1;
                            let whole = plan_at(&all, va, false, Placement::default()).map(plain);
                            assert_eq!(Ok(plain(found)), whole, "{}", object.path().display());
                        }
                        _ if plan_at(&all, va, false, Placement::default())
                            .is_ok_and(|whole| is_best(whole.technique)) =>
                        {
                            left += 1
                        }
                        _ => {}
                    }
                }
            }
        }
        assert!(planned > 10 && left < planned / 2, "{planned} planned, {left} left");
    }
}
