//! The sites of the probes of one object: each planned once, whoever asks for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sidestep_isa::Va;
use sidestep_plan::reason::NoReplacedReturn;
use sidestep_plan::{
    Exit, GoCall, Index, Placement, Plan, Reason, Room, Technique, exits, go_call, jumps_to, plan_at, plan_exit,
    results, site_of,
};

use crate::planning::placement::There;
use crate::planning::surroundings::ObjectRoom;
use crate::planning::{Planned, REGION_MAX, Returns, Wish, plan_for_good};
use crate::programs::{Ends, Part};
use crate::refusal::{RefusalReason, Unproven};
use crate::resolve::Match;

/// Plans the sites of one object.
pub(crate) struct Planner<'p, 'i, 'a, 'r> {
    index: &'i Index<'a>,
    room: &'p mut ObjectRoom<'r>,
    placement: &'p dyn Fn(Va) -> Placement,
    there: Option<There<'p>>,
    /// Run-time minus link-time address of the object.
    bias: i64,
    /// Plans by the address that was asked for.
    asked: HashMap<Va, Result<Plan, Reason>>,
    /// Plans by the address of the site.
    sites: BTreeMap<Va, Plan>,
    /// Those of the exits of the function that is being planned.
    new: Vec<Va>,
    /// Functions whose returns cannot be seen, as the jump at the entry needs the bytes of an exit.
    crowded: BTreeSet<Va>,
    /// These are planned again, as traps among jumps.
    again: bool,
}

/// An exit or a jump to it, with its plan, and how many displaced instructions come before it.
type Way = (Va, Plan, usize);

/// Exits with their plans.
type Ways = Vec<(Exit, Vec<Way>)>;

impl<'p, 'i, 'a, 'r> Planner<'p, 'i, 'a, 'r> {
    /// Nothing is planned yet.
    pub fn new(
        index: &'i Index<'a>,
        room: &'p mut ObjectRoom<'r>,
        placement: &'p dyn Fn(Va) -> Placement,
        there: Option<There<'p>>,
        bias: i64,
    ) -> Planner<'p, 'i, 'a, 'r> {
        let (asked, sites, new, crowded) = (HashMap::new(), BTreeMap::new(), Vec::new(), BTreeSet::new());
        Planner { index, room, placement, there, bias, asked, sites, new, crowded, again: false }
    }

    /// A plan for an address: several requests for one site share what it needs.
    fn plan(&mut self, va: Va, trap_only: bool) -> Result<Plan, Reason> {
        if let Some(plan) = self.asked.get(&va).filter(|_| !trap_only) {
            return plan.clone();
        }
        let placement = (self.placement)(va);
        let plan = match trap_only {
            true => plan_at(self.index, va, true, placement).map_err(|refusal| refusal.reason),
            false => plan_for_good(self.index, va, placement, self.room),
        };
        if let Ok(plan) = &plan {
            self.sites.insert(plan.site, plan.for_now());
        }
        if !trap_only {
            self.asked.insert(va, plan.clone());
        }
        plan
    }

    /// A plan that displaces an exit, and how many of its instructions come before that.
    fn exit(&mut self, exit: Exit, trap_only: bool) -> Result<(Plan, usize), Reason> {
        let before = |plan: &Plan| plan.displaced.iter().position(|insn| insn.va == exit.va);
        let near = self.sites.range(..=exit.va).rev().take_while(|(site, _)| exit.va.since(**site) < REGION_MAX as i64);
        if let Some((plan, before)) = near.into_iter().find_map(|(_, plan)| Some((plan.clone(), before(plan)?))) {
            return Ok((plan, before));
        }
        let alone = trap_only && !self.again;
        let room: Option<&mut dyn Room> = if alone { None } else { Some(&mut *self.room) };
        let plan = plan_exit(self.index, exit, trap_only, room).map_err(|refusal| refusal.reason)?;
        let before = before(&plan).ok_or(Reason::ExitNotDisplaced)?;
        if self.sites.insert(plan.site, plan.clone()).is_none() {
            self.new.push(plan.site);
        }
        Ok((plan, before))
    }

    /// The plans of an exit: one, or those of all jumps to it where the exit itself could only be a
    /// trap.
    fn ways_out(&mut self, exit: Exit, trap_only: bool) -> Result<Vec<Way>, Reason> {
        let jumps = jumps_to(self.index, exit).unwrap_or_default();
        let mut one = |exit: Exit| self.exit(exit, trap_only).map(|(plan, before)| (exit.va, plan, before));
        let is_trap = |(_, plan, _): &Way| plan.technique == Technique::Trap;
        let own = one(exit)?;
        if trap_only || !is_trap(&own) {
            return Ok(vec![own]);
        }
        let jumps: Result<Vec<_>, Reason> = jumps.into_iter().map(&mut one).collect();
        let jumps = jumps.unwrap_or_default();
        let better = !jumps.is_empty() && !jumps.iter().any(is_trap);
        Ok(if better { jumps } else { vec![own] })
    }

    /// The plans of all exits of a function. The jump of one may need the bytes of another exit:
    /// that one is planned first then.
    fn all_ways_out(&mut self, mut exits: Vec<Exit>, trap_only: bool) -> Result<Ways, Reason> {
        let mut moved = BTreeSet::new();
        loop {
            self.new.clear();
            let claimed = self.room.claimed();
            let way = |exit: &Exit| match self.ways_out(*exit, trap_only) {
                Ok(ways) => Ok((*exit, ways)),
                Err(reason) => Err((*exit, reason)),
            };
            let (exit, reason) = match exits.iter().map(way).collect() {
                Ok(ways) => return Ok(ways),
                Err(why) => why,
            };
            self.forget_new(claimed);
            if !moved.insert(exit.va) {
                return Err(reason);
            }
            exits.sort_by_key(|other| other.va != exit.va);
        }
    }

    /// Forgets the plans of exits since the last call of [`Planner::all_ways_out`].
    fn forget_new(&mut self, claimed: usize) {
        for site in self.new.drain(..) {
            self.sites.remove(&site);
        }
        self.room.release_since(claimed);
    }

    /// The plans of the jumps by which calls of a function go on in others. `None`: these are not
    /// worth a trap, nor that other sessions keep away from a short function. The exits of the
    /// others go by the return address alone then.
    fn jumps(&mut self, entry: Va, jumps: &[Exit], trap_only: bool) -> Option<Vec<Way>> {
        let claimed = self.room.claimed();
        let ways = self.all_ways_out(jumps.to_vec(), trap_only).ok()?;
        let ways: Vec<Way> = ways.into_iter().flat_map(|(_, ways)| ways).collect();
        let site = site_of(self.index, entry, (self.placement)(entry)).unwrap_or(entry);
        let in_entry = |(at, plan, _): &Way| plan.site <= site && site <= *at;
        let is_good = |way: &Way| {
            let (_, plan, before) = way;
            let is_fast = trap_only || plan.technique != Technique::Trap;
            let is_short = plan.isa.bits() == 32 && in_entry(way);
            is_fast && !is_short && self.beside(plan, *before).is_none()
        };
        // A call is hardly left between an entry and a jump with which it is displaced.
        if ways.iter().all(is_good) && !ways.iter().all(in_entry) {
            return Some(ways);
        }
        self.forget_new(claimed);
        None
    }

    /// The sites of a probe: one, or with returns the exits of the function, and the entry if that
    /// has to be seen.
    pub fn probe(&mut self, request: usize, matched: Match, wish: Wish) -> Vec<Planned> {
        let of = matched.va.unwrap_or(matched.symbol_va);
        let is_go = self.index.code().go && matched.object.is_go_code(of);
        let goroutine = is_go && go_call(self.index, of) == Ok(GoCall::ByGoroutine);
        let whole = |plan| Planned {
            request,
            matched: matched.clone(),
            plan,
            expected: Vec::new(),
            inside: false,
            goroutine,
            part: Part::Whole,
            of,
            unproven: None,
        };
        let va = match matched.va {
            Ok(va) => va,
            Err(why) => return vec![whole(Err(RefusalReason::Symbol(why)))],
        };
        if let Some(returns) = wish.returns {
            match self.exits(request, &matched, va, wish.trap_only, returns) {
                Ok(all) => return all,
                Err(exits) if exits.never_returns() => return vec![whole(Err(exits.into()))],
                Err(why) => {
                    let exits = why.clone();
                    let plan = self.plan(va, wish.trap_only).map_err(RefusalReason::from);
                    let plan = plan.and_then(|plan| match plan.returns {
                        Ok(_) => Ok(plan),
                        Err(address) if exits.is_like(address) => Err(exits.into()),
                        Err(address) => Err(RefusalReason::Neither { exits, address }),
                    });
                    let is_refused = plan.is_err() || self.there.is_some_and(|there| there.keeps_returns);
                    if is_refused && !wish.trap_only && self.is_in_the_way(va, &why) {
                        self.crowded.insert(va);
                    }
                    return vec![Planned { unproven: Some(why), ..whole(plan) }];
                }
            }
        }
        let plan = self.plan(va, wish.trap_only).map_err(RefusalReason::from);
        vec![whole(plan.and_then(|plan| match wish.post {
            true => plan.behind().map(|_| plan).map_err(RefusalReason::from),
            false => Ok(plan),
        }))]
    }

    /// Whether the jump at the entry of a function keeps its exits from being probed.
    fn is_in_the_way(&self, entry: Va, why: &Unproven) -> bool {
        match why {
            Unproven::ExitInEntryJump => true,
            Unproven::Site(Reason::Claimed { owner, .. }) => {
                self.asked.get(&entry).is_some_and(|plan| plan.as_ref().is_ok_and(|plan| plan.site == *owner))
            }
            _ => false,
        }
    }

    /// Functions whose returns are seen only if their entries are traps. Forgets the plans of these
    /// entries: what is planned from now on is traps.
    pub fn make_room(&mut self) -> BTreeSet<Va> {
        for entry in &self.crowded {
            if let Some(Ok(plan)) = self.asked.remove(entry) {
                self.sites.remove(&plan.site);
                self.room.release(plan.site);
            }
        }
        self.again = true;
        std::mem::take(&mut self.crowded)
    }

    /// The sites of a return probe at a function whose exits are proven. Else why not.
    fn exits(
        &mut self,
        request: usize,
        matched: &Match,
        va: Va,
        trap_only: bool,
        returns: Returns,
    ) -> Result<Vec<Planned>, Unproven> {
        let index = self.index;
        // A time reaches over the functions to which this one jumps, as far as they are known.
        let found = match returns {
            Returns { result: true, .. } => results(index, va),
            Returns { entry: true, .. } => results(index, va).or_else(|_| exits(index, va)),
            _ => exits(index, va),
        }?;
        let paired = returns.entry || !found.exclusive || !found.foreign.is_empty();
        let is_go = index.code().go && matched.object.is_go_code(va);
        let goroutine = is_go && go_call(index, va) == Ok(GoCall::ByGoroutine);
        let site = |plan: Plan, at: Va, part: Part| Planned {
            request,
            matched: Match { va: Ok(at), ..matched.clone() },
            plan: Ok(plan),
            expected: Vec::new(),
            inside: false,
            goroutine,
            part,
            of: va,
            unproven: None,
        };
        let mut all = Vec::new();
        if paired {
            if is_go {
                go_call(index, va)?;
            }
            let plan = self.plan(va, trap_only)?;
            all.push(site(plan, va, Part::Enter));
        }
        let ways = self.all_ways_out(found.all, trap_only)?;
        // Goroutines are told apart in another way.
        let jumps = if is_go || found.jumps.is_empty() { None } else { self.jumps(va, &found.jumps, trap_only) };
        let ends = |exit: Exit| match found.foreign.contains(&exit.va) {
            _ if is_go => Ends::Own,
            true if jumps.is_some() => Ends::Jumped,
            false if found.exclusive => Ends::Own,
            _ => Ends::Shared,
        };
        let ways = ways.into_iter().flat_map(|(exit, ways)| ways.into_iter().map(move |way| (exit, way)));
        for (exit, (exit_at, plan, before)) in ways {
            // Functions of a few bytes are common in 32-bit code. A handler in the detour of the
            // entry keeps all other sessions away from the function, and nothing that looks at the
            // stack runs in so few instructions. So a replaced return address is better there.
            let entry = site_of(index, va, (self.placement)(va));
            let in_entry = before > 0 && entry.is_some_and(|entry| entry >= plan.site && entry <= exit_at);
            let never = [Err(NoReplacedReturn::InRegister), Err(NoReplacedReturn::NotCalled)].contains(&plan.returns);
            if in_entry && plan.isa.bits() == 32 && !never {
                return Err(Unproven::ExitInEntryJump);
            }
            if let Some(reason) = self.beside(&plan, before) {
                return Err(reason);
            }
            all.push(site(plan, exit_at, Part::Exit { before, paired, ends: ends(exit) }));
        }
        for (at, plan, before) in jumps.into_iter().flatten() {
            all.push(site(plan, at, Part::Exit { before, paired, ends: Ends::Not }));
        }
        Ok(all)
    }

    /// Why an exit cannot be probed beside other sessions. Handlers behind displaced instructions
    /// are not shared.
    fn beside(&self, plan: &Plan, before: usize) -> Option<Unproven> {
        let others = self.there?.others?;
        let site = plan.site.offset(self.bias).0;
        let last = plan.displaced.last().map_or(0, |insn| insn.va.since(plan.site) as u64 + u64::from(insn.len));
        let reason = others.refuse(plan, self.bias, &(site..site + plan.relies_on().0.max(last)));
        let shared = before > 0 && others.are_at(site);
        reason.map(Unproven::Beside).or(shared.then_some(Unproven::OtherSession))
    }
}
