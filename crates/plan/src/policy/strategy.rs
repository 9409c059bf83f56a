//! Choosing how a site is probed: the best technique that is proven safe.

mod exit;
mod site;

use sidestep_isa::emulate::{Emulated, prepare};
use sidestep_isa::go::stack_check;
use sidestep_isa::passed::Passed;
use sidestep_isa::{Isa, Len, Va, live, relocated_len};
use std::cell::OnceCell;

use crate::analysis::index::Index;
use crate::analysis::returns;
use crate::analysis::sweep::{Borders, How, Stretch};
use crate::policy::lead::{Lead, Placement};
use crate::policy::plan::{DisplacedInsn, Patch, Plan, Refusal, Rejected, SiteKind, Technique};
use crate::policy::room::Room;
use crate::reason::{NoReplacedReturn, Reason};
pub use exit::plan_exit;
use site::Site;

/// Decides how to probe the code at link-time address `asked`: the start of a function, or any
/// instruction in one. With `trap_only` better techniques than a trap are not considered, nor are
/// those that need a [`Room`].
///
/// The plan is complete: nothing that follows has a choice. Fails with the reason, in the user's
/// words, if no technique is safe.
pub fn plan(index: &Index<'_>, asked: Va, trap_only: bool) -> Result<Plan, Refusal> {
    plan_at(index, asked, trap_only, Placement::First)
}

/// As [`plan`], with the site where `placement` allows it.
pub fn plan_at(index: &Index<'_>, asked: Va, trap_only: bool, placement: Placement) -> Result<Plan, Refusal> {
    let ladder = if trap_only { Ladder::Trap } else { Ladder::Anywhere };
    plan_by(index, asked, ladder, placement)
}

/// As [`plan_at`], with all techniques. What the plan takes of the room is claimed.
pub fn plan_in(index: &Index<'_>, asked: Va, room: &mut dyn Room, placement: Placement) -> Result<Plan, Refusal> {
    plan_by(index, asked, Ladder::Within(room), placement)
}

fn plan_by(index: &Index<'_>, asked: Va, ladder: Ladder<'_>, placement: Placement) -> Result<Plan, Refusal> {
    match choose(index, asked, ladder, placement) {
        Ok(choice) => Ok(complete(index, choice)),
        Err(reason) => Err(Refusal { asked, reason }),
    }
}

/// The address that a probe at `asked` is written to: behind an `endbr64`, for example.
#[must_use]
pub fn site_of(index: &Index<'_>, asked: Va, placement: Placement) -> Option<Va> {
    let stretch = locate(index, asked).ok()?;
    Some(Site::placed(index, stretch, asked, placement).ok()?.va)
}

/// Which techniques are considered.
pub(crate) enum Ladder<'r> {
    Trap,
    Anywhere,
    Within(&'r mut dyn Room),
}

/// What a technique needs of a site.
struct Shape {
    technique: Technique,
    /// Bytes that become unusable.
    region: usize,
    patch: Patch,
}

impl Shape {
    fn jump(technique: Technique, region: usize) -> Shape {
        Shape { technique, region, patch: Patch::Jump { prefixes: 0, stub: None } }
    }
}

/// The technique for a site, with what a plan needs besides.
pub(crate) struct Choice<'i, 'a> {
    site: Site<'i, 'a>,
    entry: bool,
    /// Length and instructions of the stack check of a Go function that begins here.
    check: Option<(usize, usize)>,
    pub technique: Technique,
    region: usize,
    patch: Patch,
    displaced: Vec<DisplacedInsn>,
    pub rejected: Vec<Rejected>,
}

/// The first half of [`plan`]: all that can fail.
pub(crate) fn choose<'i, 'a>(
    index: &'i Index<'a>,
    asked: Va,
    ladder: Ladder<'_>,
    placement: Placement,
) -> Result<Choice<'i, 'a>, Reason> {
    let stretch = locate(index, asked)?;
    if index.code.go && !index.code.isa.limits().go {
        return Err(Reason::GoStacks);
    }
    let entry = index.is_start(asked);
    if !entry {
        on_boundary(index, stretch, asked)?;
    }
    let site = Site::placed(index, stretch, asked, placement)?;

    let check = if entry && index.code.go { stack_check(index.code.isa, site.code) } else { None };
    let mut rejected = Vec::new();
    // The bytes behind a trap stay as they are, but the check runs before the handler there, too.
    let trap_region = check.map_or(site.first.len(), |(len, _)| len);
    let shape = site.climb(ladder, check, &mut rejected)?.unwrap_or(Shape {
        technique: Technique::Trap,
        region: trap_region,
        patch: Patch::Trap,
    });
    let Shape { technique, region, patch } = shape;
    let displaced = site.displaced(region);
    for insn in &displaced {
        relocated_len(index.code.isa, insn.bytes(), insn.va)?;
    }
    Ok(Choice { site, entry, check, technique, region, patch, displaced, rejected })
}

/// The second half of [`plan`]: what the detour and the user should know besides.
fn complete(index: &Index<'_>, choice: Choice<'_, '_>) -> Plan {
    let Choice { site, entry, check, technique, region, patch, displaced, rejected } = choice;
    let Site { asked, stretch, lead, .. } = site;
    let before_handler = check.map_or(0, |(_, insns)| insns).min(displaced.len());
    let handler_at = displaced.get(before_handler).map_or(site.va.plus(Len(region as u64)), |insn| insn.va);
    let has_labels = OnceCell::new();
    let recovers = |at| index.is_protected(at) || *has_labels.get_or_init(|| index.has_inner_labels(stretch));
    let dead_at = |at| match index.code.text_at(stretch.start, stretch.end) {
        Some(code) => live::dead_before(index.code.isa, code, stretch.start, at, &recovers),
        None => live::Dead::default(),
    };
    let mut dead = dead_at(handler_at);
    // It may be executed once more, behind the handler.
    if let Some(Lead { insn, passed: Passed::Stack { .. } }) = lead {
        let before = dead_at(insn.va);
        dead = live::Dead { regs: dead.regs & before.regs, flags: dead.flags && before.flags };
    }
    let (kind, at_start) = nature(index, &site, entry, check.is_some());
    let text = |va: Va| {
        let (_, stretch) = index.stretch(va)?;
        Some((stretch.start, index.code.text_at(stretch.start, stretch.end)?))
    };
    let returns = at_start.and_then(|()| returns::watched(index.code.isa, &text, asked));
    Plan {
        isa: index.code.isa,
        asked,
        site: site.va,
        lead,
        kind,
        technique,
        patch,
        region: Len(region as u64),
        resume: resume(index.code.isa, &displaced),
        emulated: emulated(index.code.isa, technique, &displaced),
        displaced,
        before_handler,
        dead_regs: dead.regs,
        dead_flags: dead.flags,
        returns,
        rejected,
        blocked_by: Vec::new(),
        gate: false,
    }
}

/// Keeps a technique, or notes why it was not possible.
fn attempt(rejected: &mut Vec<Rejected>, technique: Technique, shape: Result<Shape, Reason>) -> Option<Shape> {
    shape.map_err(|reason| rejected.push(Rejected { technique, reason })).ok()
}

fn locate<'i>(index: &'i Index<'_>, asked: Va) -> Result<&'i Stretch, Reason> {
    match index.stretch(asked) {
        None => Err(Reason::NoSection),
        Some((_, stretch)) if stretch.borders == Borders::Gap => {
            Err(Reason::NoFunction { start: stretch.start, end: stretch.end })
        }
        Some((_, stretch)) => Ok(stretch),
    }
}

/// Whether an instruction starts at `asked`, its function decoded from the start.
fn on_boundary(index: &Index<'_>, stretch: &Stretch, asked: Va) -> Result<(), Reason> {
    if let Some(fault) = stretch.fault {
        return Err(Reason::UncertainBoundaries(fault));
    }
    match stretch.insn_start(asked).and_then(|start| index.code.insn_at(start)) {
        Some(insn) if insn.va() == asked => Ok(()),
        Some(insn) => Err(Reason::InsideInstruction { insn }),
        None => Err(Reason::NotDecoded),
    }
}

/// What the return addresses and the red zone at a site are like.
fn nature(
    index: &Index<'_>,
    site: &Site<'_, '_>,
    entry: bool,
    go_check: bool,
) -> (SiteKind, Result<(), NoReplacedReturn>) {
    if !entry {
        return (SiteKind::Inside, Err(NoReplacedReturn::NotAFunction));
    }
    if index.code.go {
        // Where a stack check is, it is Go's own code, which uses no red zone. Without one it may
        // be C.
        let kind = if go_check { SiteKind::FunctionEntry } else { nature_of_entry(index, site).0 };
        // Go's runtime walks stacks by return addresses and moves them.
        return (kind, Err(NoReplacedReturn::Go));
    }
    nature_of_entry(index, site)
}

/// The same where a function seems to begin.
fn nature_of_entry(index: &Index<'_>, site: &Site<'_, '_>) -> (SiteKind, Result<(), NoReplacedReturn>) {
    if index.is_part(site.asked) {
        return (SiteKind::Inside, Err(NoReplacedReturn::Part));
    }
    if index.is_loop_head(site.va) {
        return (SiteKind::Inside, Err(NoReplacedReturn::LoopHead));
    }
    // A cold part looks like a function, but is only jumped to, from where the red zone may be in
    // use.
    let end = site.va.plus(Len(1));
    let (mut called, mut jumped, mut branched) = (false, false, false);
    for edge in index.edges_to(site.asked, end) {
        match edge.how {
            How::Call => called = true,
            How::Jump => jumped = true,
            How::Branch => branched = true,
            How::Maybe => {}
        }
    }
    // Of what nothing describes, only a call says for certain that it is a function.
    let named = index.is_named(site.asked) && site.stretch.borders != Borders::Found;
    if branched && !called && !named {
        return (SiteKind::Inside, Err(NoReplacedReturn::Part));
    }
    // Only what is called, or has the name of a function, certainly begins with nothing below the
    // stack pointer. What unwind information alone knows may be a part that a jump table leads to,
    // also a table of pointers: that something names it is no proof.
    let has_name = !index.is_nameless(site.asked) && site.stretch.borders != Borders::Found;
    let kind = match called || has_name && (named || !jumped) {
        true => SiteKind::FunctionEntry,
        false => SiteKind::Inside,
    };
    let on_stack = index.code.isa.limits().context.link.is_none();
    let returns = match () {
        // The canonical frame address is not that of a call (`.eh_frame`), so the return address is
        // somewhere else.
        () if index.has_odd_frame(site.asked) => Err(NoReplacedReturn::OddFrame),
        () if site.stretch.fault.is_some() => Err(NoReplacedReturn::Uncertain),
        // Compilers of some languages have a stack of their own. What is on top of the processor's
        // may look like a return address, and be none.
        () if on_stack && !called && !index.has_frame(site.asked) => Err(NoReplacedReturn::NotCalled),
        () => Ok(()),
    };
    (kind, returns)
}

/// What a trap handler does without the copy.
fn emulated(isa: Isa, technique: Technique, displaced: &[DisplacedInsn]) -> Option<Emulated> {
    match (technique, displaced) {
        (Technique::Trap, [only]) => prepare(isa, only.bytes()),
        _ => None,
    }
}

fn resume(isa: Isa, displaced: &[DisplacedInsn]) -> Option<Va> {
    let insn = displaced.last()?.decoded(isa).ok()?;
    insn.falls_through().then(|| insn.next())
}

impl Site<'_, '_> {
    /// The best technique that is safe, none = a trap. Fails if not even that is possible.
    fn climb(
        &self,
        ladder: Ladder<'_>,
        check: Option<(usize, usize)>,
        rejected: &mut Vec<Rejected>,
    ) -> Result<Option<Shape>, Reason> {
        use Technique::{GuardedJump, Jump, JumpOverSeveral, NopSite, Pun, ShortJump};
        let mut room: Option<&mut dyn Room> = match ladder {
            Ladder::Trap => return Ok(None),
            Ladder::Anywhere => None,
            Ladder::Within(room) => Some(room),
        };
        if let Some(room) = &mut room {
            room.is_free(self.va, self.va..self.end(1))?;
            room.claim(self.va, self.va..self.end(1));
        }
        // Claims what a technique needs; a region that holds another site is none.
        let mut jump = |technique, region: Result<usize, Reason>, room: &mut Option<&mut dyn Room>| {
            let shape = region.and_then(|region| {
                if let Some(room) = room {
                    room.is_free(self.va, self.va..self.end(region))?;
                    room.claim(self.va, self.va..self.end(region));
                }
                Ok(Shape::jump(technique, region))
            });
            attempt(rejected, technique, shape)
        };
        let found = match check {
            Some(check) => jump(JumpOverSeveral, self.stack_check(check), &mut room),
            None => jump(NopSite, self.nop(), &mut room)
                .or_else(|| jump(Jump, self.single(), &mut room))
                .or_else(|| jump(JumpOverSeveral, self.several(true), &mut room)),
        };
        // A stack check that cannot be displaced by a jump is by the trap: behind it is where a
        // call is counted, once.
        let behind_check = check.is_some_and(|check| self.stack_check(check).is_err());
        let room = match (found, room) {
            (None, Some(room)) if !behind_check && self.has_overlaps() => room,
            (found, _) => return Ok(found),
        };
        // Short instructions leave a pun so little choice that it often gets a page of its own.
        let roomy = self.first.len() > 2;
        let mut pun = |room: &mut dyn Room| attempt(rejected, Pun, self.pun(self.first.len(), room));
        let early = if roomy { pun(room) } else { None };
        Ok(early
            .or_else(|| attempt(rejected, GuardedJump, self.guarded(room)))
            .or_else(|| if roomy { None } else { attempt(rejected, Pun, self.pun(self.first.len(), room)) })
            .or_else(|| attempt(rejected, ShortJump, self.short(self.first.len(), room))))
    }
}
