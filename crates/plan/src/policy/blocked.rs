//! Sites that other sites keep from being jumps. kprobes has a trap there until the reason ends,
//! and so do we: a plan is made for both, and the session promotes it.
//!
//! One detour serves both. Behind the copy of its first instruction is a *gate*, a jump by a word:
//!
//! ```text
//!   blocked:   trap ─► detour: handlers, first copy, gate ─► the second instruction
//!   promoted:  jump ─► detour: handlers, first copy, gate ─► the other copies
//! ```
//!
//! The detours of the sites inside have a gate, too. Who is in one of them when the jump comes goes
//! on at the copies.
//!
//! Where further sites may come at any time, all jumps over several instructions have a gate, which
//! is open: when one comes inside, the jump becomes a blocked one.

use std::ops::Range;

use sidestep_isa::{Len, Va};

use crate::analysis::index::Index;
use crate::policy::lead::{Needs, Placement};
use crate::policy::plan::{Patch, Plan, Technique};
use crate::policy::strategy::plan_at;

/// A trap's plan as that of a jump which has to wait for the sites inside it, of which `inside`
/// gives the addresses. `None`: it is not they that keep it from being one.
#[must_use]
pub fn promotable(index: &Index<'_>, trap: &Plan, inside: impl FnOnce(Range<Va>) -> Vec<Va>) -> Option<Plan> {
    if trap.technique != Technique::Trap {
        return None;
    }
    // Without a room: what needs one was considered with it.
    let placement = match trap.lead {
        // What its handlers need was looked at when the trap was planned.
        Some(_) => Placement::Forced(Needs::default()),
        None => Placement::First,
    };
    let jump = plan_at(index, trap.asked, false, placement).ok().filter(Plan::may_be_around)?;
    let blocked_by = inside(jump.site.plus(Len(1))..jump.site.plus(jump.plain_jump()));
    let rejected = trap.rejected.clone();
    (!blocked_by.is_empty()).then_some(Plan { blocked_by, gate: true, rejected, ..jump })
}

impl Plan {
    /// Is it a trap for now?
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        !self.blocked_by.is_empty()
    }

    /// Bytes of the original code that nobody executes for now: [`Plan::region`], if it is not
    /// blocked.
    #[must_use]
    pub fn held(&self) -> Len {
        match self.displaced.first() {
            Some(first) if self.is_blocked() => Len(u64::from(first.len)),
            _ => self.region,
        }
    }

    /// Where a jump will be once it is not blocked any more, behind its first byte.
    #[must_use]
    pub fn wanted(&self) -> Option<Range<Va>> {
        self.is_blocked().then(|| self.site.plus(Len(1))..self.site.plus(self.plain_jump()))
    }

    /// Can sites be inside its jump?
    #[must_use]
    pub fn may_be_around(&self) -> bool {
        let is_jump = self.patch == Patch::Jump { prefixes: 0, stub: None };
        is_jump && self.before_handler == 0 && self.displaced.len() > 1
    }

    /// Of a jump that becomes a trap when sites come inside it later, where those would be. It has
    /// a gate, which is open; or its displacement goes on in the next instruction, which stays
    /// where it is.
    #[must_use]
    pub fn yields(&self) -> Option<Range<Va>> {
        let is_pun = self.technique == Technique::Pun && self.before_handler == 0;
        let can = is_pun || self.gate && self.may_be_around() && !self.is_blocked();
        can.then(|| self.site.plus(Len(1))..self.site.plus(self.jump_len()))
    }

    /// Bytes of a jump without prefixes: other sites must not be there.
    fn plain_jump(&self) -> Len {
        Len(self.isa.limits().jump as u64)
    }

    /// Bytes of its jump.
    fn jump_len(&self) -> Len {
        match self.patch {
            Patch::Jump { prefixes, .. } => Len(u64::from(prefixes) + self.plain_jump().0),
            Patch::Short { .. } | Patch::Trap => self.plain_jump(),
        }
    }

    /// What it is for as long as the session lasts: of a site of our own, which neither is promoted
    /// nor makes way.
    #[must_use]
    pub fn for_good(&self) -> Plan {
        let mut plan = self.for_now();
        plan.gate &= !plan.may_be_around();
        plan
    }

    /// What it is for now: of a plan that is not blocked, itself.
    #[must_use]
    pub fn for_now(&self) -> Plan {
        let mut now = self.clone();
        if let (true, Some(first)) = (self.is_blocked(), self.displaced.first()) {
            now.technique = Technique::Trap;
            now.patch = Patch::Trap;
            now.region = self.held();
            now.resume = Some(first.va.plus(now.region));
            now.displaced.truncate(1);
            now.blocked_by.clear();
            now.gate = false;
        }
        now
    }

    /// Does the way on behind its only instruction lead into another jump? Then a gate is needed
    /// there. `wanted` are the places of such jumps.
    #[must_use]
    pub fn leads_into(&self, mut wanted: impl Iterator<Item = Range<Va>>) -> bool {
        match (&self.displaced[..], self.resume) {
            ([_], Some(resume)) => wanted.any(|range| range.contains(&resume)),
            _ => false,
        }
    }

    /// Adds a gate. What the trap handler does by itself would go past it.
    pub fn add_gate(&mut self) {
        self.gate = true;
        self.emulated = None;
    }

    /// Can there be such a jump?
    #[must_use]
    pub fn may_be_inside(&self) -> bool {
        let last = self.site.plus(self.plain_jump()).offset(-1);
        self.leads_into(std::iter::once(self.site..last))
    }
}
