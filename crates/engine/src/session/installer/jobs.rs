//! Planned probes as work for the installation: one job for each site, with all that runs there.

use std::collections::{BTreeMap, HashSet};

use sidestep_isa::Va;
use sidestep_plan::handler::Handler;
use sidestep_symbols::Kind;
use sidestep_wire::ProbeDesc;

use super::sites::{is_at_start, site};
use crate::patch::install::Job;
use crate::planning::Planned;
use crate::programs::Part;

/// By address, with which of the pending probes wait for it.
pub(super) type Jobs = BTreeMap<u64, (Job, Vec<usize>)>;

/// Run-time address that was asked for.
pub(super) fn asked(p: &Planned) -> Va {
    match (&p.plan, &p.matched.loaded) {
        (Ok(_), Some(loaded)) => p.of.offset(loaded.bias),
        _ => Va::default(),
    }
}

/// What all sites of one probe have in common: the request, the run-time address that was asked for
/// and the symbol. Two indirect functions that the request means may have one implementation.
pub(super) fn whole(p: &Planned) -> (usize, Va, Va) {
    (p.request, asked(p), p.matched.symbol_va)
}

/// The descriptor of a probe that comes behind those which its site has.
pub(super) fn describe(jobs: &Jobs, p: &Planned, desc: ProbeDesc) -> Option<ProbeDesc> {
    let (Ok(plan), Some(loaded)) = (&p.plan, &p.matched.loaded) else { return None };
    let site = plan.site.offset(loaded.bias).0;
    let before = jobs.get(&site).and_then(|(job, _)| job.handlers.last());
    let older = before.map_or(0, |handler| handler.probe() + 1);
    let drops = match p.part {
        Part::Exit { before, .. } => {
            let exit = plan.displaced.get(before).and_then(|insn| insn.decoded(plan.isa).ok());
            exit.and_then(|insn| insn.dropped_by_return()).map_or(0, u64::from)
        }
        Part::Whole | Part::Enter => plan.returns.map_or(0, u64::from),
    };
    let mut desc = ProbeDesc { site: plan.hit_at().offset(loaded.bias).0, asked: asked(p).0, older, drops, ..desc };
    if p.goroutine {
        desc.flags |= ProbeDesc::GOROUTINE;
    }
    if matches!(p.part, Part::Exit { before: 1.., .. }) {
        desc.flags |= ProbeDesc::BEHIND;
    }
    match plan.behind() {
        Ok(behind) if desc.flags & ProbeDesc::POST != 0 => desc.site = behind.offset(loaded.bias).0,
        _ if is_at_start(plan) && !matches!(p.part, Part::Exit { .. }) => desc.flags |= ProbeDesc::FUNCTION,
        _ => {}
    }
    Some(desc)
}

/// Finds the users' exits of functions whose entries are sites of our own, which are written first:
/// calls would be seen that never return.
pub(super) fn find_early<'p>(jobs: &mut Jobs, users: impl Iterator<Item = &'p Planned> + Clone) {
    let is_own = |p: &&Planned| site(p).and_then(|site| jobs.get(&site)).is_some_and(|(job, _)| job.own);
    let of_exit = |p: &&Planned| matches!(p.part, Part::Exit { .. });
    let entries: HashSet<Va> = users.clone().filter(|p| !of_exit(p)).filter(is_own).map(asked).collect();
    for exit in users.filter(of_exit).filter(|p| entries.contains(&asked(p))) {
        if let Some((job, _)) = site(exit).and_then(|site| jobs.get_mut(&site)) {
            job.early = job.is_exit();
        }
    }
}

/// Adds a handler to the job of its site. `false` if there is no plan (it was refused before).
pub(super) fn add_job(jobs: &mut Jobs, p: &Planned, handler: Handler, who: usize) -> bool {
    let (Ok(plan), Some(loaded)) = (&p.plan, &p.matched.loaded) else { return false };
    let handler = if loaded.object.is_go() { handler.on_goroutine() } else { handler };
    let site = plan.site.offset(loaded.bias);
    let own = who == usize::MAX || jobs.get(&site.0).is_some_and(|(job, _)| job.own);
    // A site of our own is not promoted, nor one with an exit: its handler is between the copies.
    let fixed =
        own || handler.is_exit() || jobs.get(&site.0).is_some_and(|(job, _)| job.handlers.iter().any(Handler::is_exit));
    let plan = if fixed { &plan.for_good() } else { plan };
    let (job, waiting) = jobs.entry(site.0).or_insert_with(|| {
        let job = Job {
            plan: plan.clone(),
            bias: loaded.bias,
            own: false,
            early: false,
            handlers: Vec::new(),
            function: u64::MAX,
            is_paired: false,
            object: loaded.range.clone(),
            is_go: loaded.object.is_go(),
            stays: loaded.object.kind() != Kind::Library,
            inode: loaded.inode,
            expected: p.expected.clone(),
            semaphore: None,
            originals: Vec::new(),
        };
        (job, Vec::new())
    });
    if fixed {
        job.plan = job.plan.for_good();
    }
    // A guard displaces all up to its system call, an exit all up to itself.
    // An instruction in front of the site that stays there is the same for all handlers.
    let lead = job.plan.lead.or(plan.lead);
    if plan.displaced.len() > job.plan.displaced.len() {
        job.plan = plan.clone();
    }
    job.plan.lead = lead;
    job.own = own;
    let semaphore = p.matched.usdt.as_ref().and_then(|probe| probe.semaphore);
    job.semaphore = job.semaphore.or(semaphore.map(|va| va.offset(loaded.bias)));
    job.handlers.push(handler);
    job.function = job.function.min(asked(p).0);
    job.is_paired |= matches!(p.part, Part::Exit { paired: true, .. });
    waiting.push(who);
    true
}
