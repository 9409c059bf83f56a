//! How an exit of a function is probed: the jump may begin at an instruction in front of the exit,
//! as most returns have one byte.
//!
//! The handler runs right before the exit, which is one of the displaced instructions. Those in
//! front of it run first.

use sidestep_isa::{Flow, Insn, Len, Va, relocated_len};

use super::site::Site;
use super::{Shape, attempt, locate, resume};
use crate::analysis::exits::Exit;
use crate::analysis::index::Index;
use crate::analysis::sweep::Stretch;
use crate::policy::plan::{Plan, Refusal, Rejected, SiteKind, Technique};
use crate::policy::room::Room;
use crate::reason::{NoReplacedReturn, Reason};

/// Instructions in front of an exit that are looked at.
const BEFORE: usize = 5;

/// Decides how to probe an exit. Without a room, techniques that need one are not considered; with
/// `trap_only`, only a trap is.
///
/// The exit is among [`Plan::displaced`]; handlers for it run right before it.
///
/// # Errors
/// Not even a trap is possible.
pub fn plan_exit(
    index: &Index<'_>,
    exit: Exit,
    trap_only: bool,
    mut room: Option<&mut dyn Room>,
) -> Result<Plan, Refusal> {
    let asked = exit.va;
    let refuse = |reason| Refusal { asked, reason };
    let stretch = locate(index, asked).map_err(refuse)?;
    let own = Site::new(index, stretch, asked).map_err(refuse)?;
    let mut rejected = Vec::new();
    let isa = index.code().isa;
    if let Some(room) = &mut room {
        room.is_free(asked, asked..own.end(1)).map_err(refuse)?;
    }
    let end = own.first.next();
    let mut found = None;
    if !trap_only {
        let group = group(index, exit.va);
        let sites: Vec<Site<'_, '_>> = group.iter().filter_map(|va| Site::new(index, stretch, *va).ok()).collect();
        // Rounds of a loop are no returns: they go through the detour only where the exit would be
        // a trap otherwise.
        let behind = sites.iter().skip(1).take_while(|site| site.first.flow() == Flow::Next).count();
        let always = &sites[..sites.len().min(1 + behind)];
        found = climb(always, end, &mut room, &mut rejected);
        if found.is_none() && always.len() < sites.len() {
            found = climb(&sites, end, &mut room, &mut Vec::new());
        }
    }
    let (site, shape) = match found {
        Some(found) => found,
        None => {
            let len = own.first.len();
            (own, Shape { technique: Technique::Trap, region: len, patch: crate::policy::plan::Patch::Trap })
        }
    };
    if let Some(room) = &mut room {
        room.claim(site.va, site.va..site.end(shape.region).max(end));
    }
    let displaced = site.displaced_to(end);
    for insn in &displaced {
        relocated_len(isa, insn.bytes(), insn.va).map_err(|error| refuse(error.into()))?;
    }
    Ok(Plan {
        isa,
        asked,
        site: site.va,
        kind: SiteKind::Inside,
        technique: shape.technique,
        patch: shape.patch,
        region: Len(shape.region as u64),
        resume: resume(isa, &displaced),
        emulated: None,
        displaced,
        before_handler: 0,
        // Of a return everything is live, and handlers of others may run at the first of the
        // displaced instructions.
        dead_regs: 0,
        dead_flags: false,
        returns: Err(NoReplacedReturn::NotAFunction),
        rejected,
        blocked_by: Vec::new(),
        gate: false,
        lead: None,
    })
}

/// Whether a conditional jump stays in the function, so that it is no exit itself: neither a tail
/// call nor a jump that stands for the return that it leads to ([`crate::jumps_to`]).
fn stays(index: &Index<'_>, stretch: &Stretch, target: Va) -> bool {
    let leads_on = |insn: Insn| !matches!(insn.flow(), Flow::Return | Flow::Jump(_) | Flow::JumpIndirect);
    let inside = (stretch.start..stretch.end).contains(&target) && !index.is_start(target);
    inside && !index.code().go && index.code().insn_at(target).is_some_and(leads_on)
}

/// The exit, and the instructions in front of it that lead nowhere else, or only by a conditional
/// jump; the nearest first. The handler is behind that jump, so it sees the returns only.
fn group(index: &Index<'_>, exit: Va) -> Vec<Va> {
    let mut all = vec![exit];
    let mut at = exit;
    let reach = if index.code().go { i64::MAX } else { index.code().isa.limits().jump as i64 };
    while all.len() <= BEFORE && exit.since(at) < reach {
        // Behind an instruction that others jump to, the jump cannot reach back.
        let before = at.offset(-1);
        let Some((_, stretch)) = index.stretch(before) else { break };
        let Some(insn) = stretch.insn_start(before).and_then(|start| index.code().insn_at(start)) else { break };
        let goes_on = match insn.flow() {
            Flow::Next => true,
            Flow::Branch(target) => stays(index, stretch, target),
            _ => false,
        };
        let leads = insn.next() == at && goes_on && !insn.is_target_mark() && !insn.is_breakpoint();
        if !leads || index.arrival(at, at.plus(Len(1))).is_some() || index.is_start(at) {
            break;
        }
        at = insn.va();
        all.push(at);
    }
    all
}

/// The best technique of any of these sites, which all lead to `end`: the end of the exit.
fn climb<'i, 'a>(
    sites: &[Site<'i, 'a>],
    end: Va,
    room: &mut Option<&mut dyn Room>,
    rejected: &mut Vec<Rejected>,
) -> Option<(Site<'i, 'a>, Shape)> {
    use Technique::{Jump, JumpOverSeveral, ShortJump};
    let (own, before) = sites.split_first()?;
    let whole = if own.is_go() { &sites[..1] } else { sites };
    for (i, site) in whole.iter().enumerate() {
        let technique = if i == 0 { Jump } else { JumpOverSeveral };
        let shape = site.up_to(end).and_then(|region| {
            if let Some(room) = room {
                room.is_free(site.va, site.va..site.end(region))?;
            }
            Ok(Shape::jump(technique, region))
        });
        if let Some(shape) = attempt(rejected, technique, shape) {
            return Some((site.clone(), shape));
        }
    }
    if own.is_go() {
        let found = climb_go(before, end, room, rejected);
        return found.or_else(|| attempt_pun(own, end, room.as_deref_mut()?, rejected));
    }
    let room = room.as_deref_mut().filter(|_| own.has_overlaps())?;
    // The more instructions, the more bytes of the jump can be chosen.
    for site in sites.iter().rev() {
        if let Some(found) = attempt_pun(site, end, room, rejected) {
            return Some(found);
        }
    }
    for site in sites.iter().rev() {
        let len = end.since(site.va) as usize;
        let shape = site.closed(end).and_then(|()| site.short(len, room));
        if let Some(shape) = attempt(rejected, ShortJump, shape) {
            return Some((site.clone(), shape));
        }
    }
    None
}

/// A jump that overlaps what is behind the exit.
fn attempt_pun<'i, 'a>(
    site: &Site<'i, 'a>,
    end: Va,
    room: &mut dyn Room,
    rejected: &mut Vec<Rejected>,
) -> Option<(Site<'i, 'a>, Shape)> {
    let len = end.since(site.va) as usize;
    if len > site.jump() {
        return None;
    }
    let shape = site.closed(end).and_then(|()| site.pun(len, room));
    attempt(rejected, Technique::Pun, shape).map(|shape| (site.clone(), shape))
}

/// The same where a goroutine may stand between two of the instructions, and nobody sees where:
/// only the first one makes room for the jump. The others stay, for goroutines that stand there;
/// their copies run in the detour.
fn climb_go<'i, 'a>(
    sites: &[Site<'i, 'a>],
    end: Va,
    room: &mut Option<&mut dyn Room>,
    rejected: &mut Vec<Rejected>,
) -> Option<(Site<'i, 'a>, Shape)> {
    use Technique::{GuardedJump, Jump, Pun, ShortJump};
    // Faults are told to the program as those of the original, which takes its signals: not where
    // it can be avoided.
    let calm = |site: &&Site<'_, '_>| !site.may_fault(end);
    let (calm, faulty): (Vec<_>, Vec<_>) = sites.iter().partition(calm);
    for sites in [calm, faulty] {
        for technique in [Jump, Pun, ShortJump] {
            for site in &sites {
                let len = site.first.len();
                let shape = site.first_of(end).and_then(|()| match (technique, room.as_deref_mut()) {
                    (Jump, room) => {
                        let region = site.single()?;
                        room.map_or(Ok(()), |room| room.is_free(site.va, site.va..end))?;
                        Ok(Shape::jump(Jump, region))
                    }
                    (_, None) => Err(Reason::NeedsRoom),
                    (Pun, Some(room)) => site.pun(len, room),
                    (_, Some(room)) => site.short(len, room),
                });
                if let Some(shape) = attempt(rejected, technique, shape) {
                    return Some(((*site).clone(), shape));
                }
            }
        }
    }
    // Or a trap leads from the others to their copies.
    let room = room.as_deref_mut()?;
    sites.iter().find_map(|site| {
        let shape = attempt(rejected, GuardedJump, site.guarded_to(end, room))?;
        Some((site.clone(), shape))
    })
}
