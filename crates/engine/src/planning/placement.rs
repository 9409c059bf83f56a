//! Where sites may be: at what was asked for, or behind it, where a uprobe of the kernel at the
//! same address does no harm ([`sidestep_plan::Lead`]).

use std::collections::{BTreeMap, HashMap};

use sidestep_isa::Va;
use sidestep_plan::thunk::Context;
use sidestep_plan::{Index, Needs, Placement, site_of};
use sidestep_sys::Process;

use crate::api::{Action, Code, Program};
use crate::patch::share::Others;
use crate::programs::{changed_registers, context_at_entry};

/// The process that plans are made for.
#[derive(Clone, Copy)]
pub(crate) struct There<'a> {
    pub process: &'a Process,
    /// Other sessions in it.
    pub others: Option<&'a Others>,
    /// Return addresses are known to stay as they are.
    pub keeps_returns: bool,
    /// Traps are possible, as far as is known.
    pub may_trap: bool,
}

/// What an action needs of the state in front of the probed instruction; `None`: it has to be at
/// that.
pub(crate) fn needs(action: &Action, programs: &[Program]) -> Option<Needs> {
    if action.post {
        return None;
    }
    match action.entry.and_then(|program| programs.get(program)).map(|program| &program.code) {
        None => Some(Needs::default()),
        Some(Code::Verified(verified)) => {
            // The instruction may have read the memory that a helper writes.
            let writes = verified.facts.calls(|helper| helper.is_unsafe);
            let changes = writes || changed_registers(verified) != Context::default();
            Some(Needs { reads: context_at_entry(verified), changes })
        }
        Some(Code::Native { .. }) => Some(Needs { reads: Context::ALL, changes: true }),
        // The copy in the detour is the function, from its first instruction on.
        Some(Code::Replace { .. }) => None,
    }
}

/// Where the sites of one object may be, by the address that is asked for. `asked`: with what the
/// requests there need. `is_taken`: a run-time address at which this session has a site already.
pub(crate) fn placements(
    index: &Index<'_>,
    bias: i64,
    asked: &[(Va, Option<Needs>)],
    there: Option<There<'_>>,
    is_taken: impl Fn(Va) -> bool,
) -> HashMap<Va, Placement> {
    let mut all: BTreeMap<Va, Option<Needs>> = BTreeMap::new();
    for (va, needs) in asked.iter().copied() {
        let both = |before: Option<Needs>| Some(before?.union(needs?));
        all.entry(va).and_modify(|before| *before = both(*before)).or_insert(needs);
    }
    let firsts: Vec<Option<Va>> = all.keys().map(|va| site_of(index, *va, Placement::First)).collect();
    let broken = breakpoints(index, bias, &firsts, there);
    let has_others = |va: Va| there.and_then(|there| there.others).is_some_and(|o| o.are_at(va.offset(bias).0));
    let mut placements = HashMap::new();
    for (((va, needs), first), broken) in all.iter().zip(firsts).zip(broken) {
        let placement = match (first, *needs) {
            // What is there is a probe like this one, and shares its site.
            (Some(first), Some(_)) if is_taken(first) || has_others(first) => Placement::First,
            (Some(_), Some(needs)) if broken => Placement::Forced(needs),
            (Some(_), Some(needs)) => Placement::Behind(needs),
            _ => Placement::First,
        };
        let site = site_of(index, *va, placement);
        // Somebody asks for the next instruction, too.
        let meets = site != first && site.is_some_and(|site| all.contains_key(&site));
        placements.insert(*va, if meets { Placement::First } else { placement });
    }
    placements
}

/// At which of these addresses a process has a breakpoint that its file has not.
fn breakpoints(index: &Index<'_>, bias: i64, at: &[Option<Va>], there: Option<There<'_>>) -> Vec<bool> {
    let Some(there) = there else { return vec![false; at.len()] };
    let trap = index.code().isa.limits().breakpoint;
    let places: Vec<(Va, usize)> = at.iter().flatten().map(|va| (va.offset(bias), trap.len())).collect();
    let mut bytes = there.process.read_many(&places).into_iter();
    let in_file = |va: Va| index.code().bytes_at(va).is_some_and(|bytes| bytes.starts_with(trap));
    let is_broken = |va: &Option<Va>| {
        let va = (*va)?;
        let now = bytes.next()??;
        Some(now == trap && !in_file(va))
    };
    at.iter().map(is_broken).map(|broken| broken.unwrap_or(false)).collect()
}
