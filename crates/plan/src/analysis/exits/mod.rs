//! Where a function ends: all of its exits, found by walking its control flow from the first
//! instruction.
//!
//! An exit is a return, or a jump that leaves the function (a tail call), conditional or not. Each
//! path from the entry to the end of a call passes exactly one exit. So a handler at the exits sees
//! each return once, and the stack stays as the program made it.
//!
//! What the walk relies on is said by [`NoExits`]: whatever is not proven is an error, and the
//! caller has to watch the function in another way, or not at all.

mod unproven;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

use sidestep_isa::{Flow, Len, Va};

use crate::analysis::index::Index;
pub use unproven::NoExits;
use walk::{Walk, is_run_into};

/// An instruction by which a function ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exit {
    /// Link-time address.
    pub va: Va,
    /// How it leaves.
    pub kind: ExitKind,
}

/// How an exit leaves its function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitKind {
    /// `ret`, with the number of bytes of arguments that it takes off the stack.
    Return {
        /// In bytes.
        drops: u16,
    },
    /// A jump to another function.
    TailCall {
        /// Link-time address of the function; `None`: it is known only when the jump is made.
        to: Option<Va>,
    },
    /// The same, if a condition holds. Else the function goes on.
    ConditionalTailCall {
        /// Link-time address of the other function.
        to: Va,
    },
}

/// The exits of a function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exits {
    /// By address; one at least.
    pub all: Vec<Exit>,
    /// Nobody comes to an exit of the function's own but through its entry: a hit there is a return
    /// of the function. Else others share some of its code, and which function ends is known only
    /// from the entry of the call.
    pub exclusive: bool,
    /// Those of [`Exits::all`] that are returns of other functions alone ([`results`]).
    pub foreign: BTreeSet<Va>,
    /// Where a call goes on in another function, to end at one of [`Exits::foreign`]: the jumps of
    /// the function itself. Each path from the entry to such an exit passes one of them last.
    pub jumps: Vec<Exit>,
}

impl Exits {
    /// Whether the function ends by a jump to another one, at least at times: its result is not
    /// known there.
    #[must_use]
    pub fn has_tail_calls(&self) -> bool {
        self.all.iter().any(|exit| !matches!(exit.kind, ExitKind::Return { .. }))
    }
}

/// Finds the exits of the function that starts at `entry`, a link-time address.
///
/// # Errors
/// They are not proven: [`NoExits`] says which part of the proof is missing.
pub fn exits(index: &Index<'_>, entry: Va) -> Result<Exits, NoExits> {
    if !index.is_start(entry) || index.is_part(entry) {
        return Err(NoExits::NotAFunction);
    }
    if index.has_odd_frame(entry) {
        return Err(NoExits::OddFrame);
    }
    let walk = Walk::through(index, entry)?;
    if walk.exits.is_empty() {
        return Err(NoExits::NeverReturns);
    }
    let all = walk.exits.iter().map(|(va, kind)| Exit { va: *va, kind: *kind }).collect();
    Ok(Exits { all, exclusive: walk.is_exclusive(), foreign: BTreeSet::new(), jumps: Vec::new() })
}

/// Finds where the result of the function that starts at `entry` is known: its returns, and those
/// of the functions to which it jumps. They are returns of this function only for calls that were
/// seen to begin.
///
/// # Errors
/// As [`exits`], of any of these functions.
pub fn results(index: &Index<'_>, entry: Va) -> Result<Exits, NoExits> {
    let mut found = exits(index, entry)?;
    if !found.has_tail_calls() {
        return Ok(found);
    }
    let own: Vec<Exit> = found.all.clone();
    let is_own = |va: &Va| own.iter().any(|exit| exit.va == *va);
    let (mut returns, mut done, mut todo) = (BTreeMap::new(), BTreeSet::from([entry]), found.all);
    while let Some(exit) = todo.pop() {
        let to = match exit.kind {
            ExitKind::Return { .. } => {
                returns.insert(exit.va, exit);
                continue;
            }
            ExitKind::TailCall { to } => to.ok_or(NoExits::ForeignResult { at: exit.va })?,
            ExitKind::ConditionalTailCall { to } => to,
        };
        if done.insert(to) {
            match exits(index, to) {
                Ok(more) => todo.extend(more.all),
                Err(NoExits::NeverReturns) => {}
                Err(NoExits::NotAFunction) => return Err(NoExits::ForeignResult { at: exit.va }),
                Err(why) => return Err(why),
            }
        }
    }
    if returns.is_empty() {
        return Err(NoExits::NeverReturns);
    }
    let foreign: BTreeSet<Va> = returns.keys().copied().filter(|va| !is_own(va)).collect();
    let is_jump = |exit: &Exit| !foreign.is_empty() && !matches!(exit.kind, ExitKind::Return { .. });
    let jumps = own.iter().copied().filter(is_jump).collect();
    // Of the function's own returns, `exclusive` still says who comes there.
    found = Exits { all: returns.into_values().collect(), foreign, jumps, ..found };
    Ok(found)
}

/// The jumps to a return, as exits in its place: all that lead to it, if these are direct jumps of
/// the same code alone. A return has one byte, often too few for a jump; a jump to it has more.
/// `None`: others may come to it.
#[must_use]
pub fn jumps_to(index: &Index<'_>, exit: Exit) -> Option<Vec<Exit>> {
    let Exit { va, kind: ExitKind::Return { drops: 0 } } = exit else { return None };
    let end = va.plus(Len(1));
    let named = index.is_start(va) || index.has_symbol(va) || index.is_named(va);
    let lands = !index.landing_pads(va, end).is_empty();
    let unknown = index.code().go || index.control_flow_known(va.offset(-1), end).is_err();
    if named || lands || unknown || is_run_into(index, va, |_| false) {
        return None;
    }
    let jump = |source: Va| {
        let insn = index.code().insn_at(source)?;
        match insn.flow() {
            Flow::Jump(to) if to == va => Some(Exit { va: source, kind: ExitKind::TailCall { to: Some(va) } }),
            Flow::Branch(to) if to == va && insn.condition().is_some() => {
                Some(Exit { va: source, kind: ExitKind::ConditionalTailCall { to: va } })
            }
            _ => None,
        }
    };
    let edges = index.edges_to(va, end);
    let all: Option<Vec<Exit>> = edges.iter().map(|edge| jump(edge.source)).collect();
    all.filter(|all| !all.is_empty())
}
