//! What becomes of planned sites: which cannot be installed, and which probes have all of theirs.

use sidestep_isa::Va;

use super::jobs::{asked, whole};
use super::sites::{can_replace, no_override, site};
use super::{Installer, Numbers};
use crate::api::Probe;
use crate::planning::Planned;
use crate::programs::Part;
use crate::target::regions::Regions;

impl Installer {
    /// The row of a probe whose library was unloaded, and which is there again.
    fn row_of_unloaded(&mut self, numbers: &Numbers) -> Option<usize> {
        let is_again = numbers.all().any(|number| self.unloaded.remove(&number));
        let is_same = |known: &Numbers| known.all().any(|number| numbers.all().any(|own| own == number));
        if is_again { self.numbers.iter().position(is_same) } else { None }
    }

    /// Why a planned site cannot be one of this session.
    pub(super) fn refusal(&self, regions: &Regions, p: &Planned) -> Option<String> {
        if site(p).is_some_and(|site| self.live.contains(&site)) {
            return Some("there is a probe already: unregister it first, or register both at once".into());
        }
        if self.meets_own(p) {
            return Some("a probe that keeps signals deliverable is there".into());
        }
        if let Some(reason) = self.refused_by_others(p) {
            return Some(reason);
        }
        let action = &self.requests[p.request].action;
        let programs = &regions.programs;
        if let Some(why) = no_override(p, action).filter(|_| programs.overrides(action)) {
            return Some(why.into());
        }
        if programs.redirects(action) && action.exit.is_some() {
            return Some("a program that changes the instruction pointer cannot watch returns".into());
        }
        let replaces = programs.original(action).is_some() && !can_replace(p);
        replaces.then(|| "only a whole function can be replaced".into())
    }

    /// Notes the probes of which all sites are there.
    pub(super) fn note_installed(
        &mut self,
        pending: Vec<(Planned, u32, u64)>,
        results: Vec<Option<Result<Va, String>>>,
    ) {
        let mut sites = pending.into_iter().zip(results).peekable();
        while let Some(((p, number, cookie), result)) = sites.next() {
            let mut numbers = Numbers::of(number, &p.part);
            let mut technique = p.plan.as_ref().ok().map(|plan| plan.for_now().technique);
            let mut result = result;
            let is_same = |other: &Planned| other.part != Part::Whole && whole(other) == whole(&p);
            while let Some(((more, number, _), other)) =
                sites.next_if(|((more, ..), _)| p.part != Part::Whole && is_same(more))
            {
                numbers.add(number, &more.part);
                technique = technique.max(more.plan.as_ref().ok().map(|plan| plan.technique));
                if !matches!(result, Some(Err(_))) && matches!(other, Some(Err(_))) {
                    result = other;
                }
            }
            numbers.counts_exits = self.requests[p.request].action.entry.is_none() && !numbers.exits.is_empty();
            match (result, technique) {
                (Some(Ok(site)), Some(technique)) => {
                    let id = self.row_of_unloaded(&numbers).unwrap_or(self.probes.len());
                    let lead = p.plan.as_ref().ok().and_then(|plan| plan.lead.as_ref());
                    let va = match p.part {
                        Part::Whole => lead.map_or(site, |lead| lead.insn.va.offset(p.matched.bias())),
                        Part::Enter | Part::Exit { .. } => asked(&p),
                    };
                    let probe = Probe {
                        id,
                        request: p.request,
                        name: p.matched.name,
                        object: p.matched.object.path().to_owned(),
                        va,
                        site,
                        technique,
                        cookie,
                    };
                    if id < self.probes.len() {
                        self.numbers[id].merge(&numbers);
                        self.probes[id] = probe;
                    } else {
                        self.numbers.push(numbers);
                        self.probes.push(probe);
                    }
                }
                (Some(Err(reason)), _) => {
                    // Of a probe with several sites the others are there.
                    self.incomplete.extend(numbers.all());
                    self.refuse(&p.matched, reason);
                }
                _ => {}
            }
        }
    }
}
