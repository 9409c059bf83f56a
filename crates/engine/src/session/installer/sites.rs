//! What a planned site takes: its range, its places, and what programs may do there.

use std::ops::Range;

use sidestep_plan::{Plan, SiteKind};

use crate::api::Action;
use crate::planning::Planned;

/// Bytes of places that a probe needs.
pub(super) fn limit(action: &Action) -> u64 {
    match action.maxactive {
        limit @ 1.. if returns(action) => 8 * (1 + u64::from(limit)),
        _ => 0,
    }
}

pub(super) fn returns(action: &Action) -> bool {
    action.exit.is_some()
}

/// Run-time range of what is displaced or relied on: for a guard, more than its region.
pub(super) fn place(p: &Planned) -> Option<Range<u64>> {
    let (Ok(plan), Some(loaded)) = (&p.plan, &p.matched.loaded) else { return None };
    let start = plan.site.offset(loaded.bias).0;
    let last = plan.displaced.last().map_or(0, |insn| insn.va.since(plan.site) as u64 + u64::from(insn.len));
    Some(start..start + plan.relies_on().0.max(last))
}

/// Run-time address of a site.
pub(super) fn site(p: &Planned) -> Option<u64> {
    let (Ok(plan), Some(loaded)) = (&p.plan, &p.matched.loaded) else { return None };
    Some(plan.site.offset(loaded.bias).0)
}

/// Whether the copy in the detour is all of the function.
pub(super) fn can_replace(p: &Planned) -> bool {
    p.plan.as_ref().is_ok_and(|plan| plan.kind == SiteKind::FunctionEntry && plan.before_handler == 0)
}

/// Two regions must not overlap: one jump would cut the other, or lead around it.
pub(super) fn overlap(own: &Range<u64>, range: &Range<u64>) -> bool {
    own.start < range.end && range.start < own.end && own.start != range.start
}

/// Why a program cannot return in place of the function: it can where the return address is on top
/// of the stack and nothing but it is taken off, and the function has not returned yet.
pub(super) fn no_override(p: &Planned, action: &Action) -> Option<&'static str> {
    match &p.plan {
        Ok(Plan { returns: Ok(1..), .. }) => {
            Some("it takes its arguments off the stack when it returns: it cannot be overridden")
        }
        Ok(plan) if action.exit.is_none() && !action.post && is_at_start(plan) => None,
        _ => Some("a function can only be overridden at its start"),
    }
}

/// Whether the site is where a function begins: its return address is on top of the stack.
pub(super) fn is_at_start(plan: &Plan) -> bool {
    plan.kind == SiteKind::FunctionEntry || plan.returns.is_ok()
}
