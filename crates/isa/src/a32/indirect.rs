//! Where the jumps of a function go that jump through a register or memory ([`crate::indirect`]).
//!
//! ```text
//! tbb [pc, r0]                  bytes behind it, from there, in halfwords
//! tbh [pc, r0, lsl #1]          halfwords behind it, likewise
//! ldr r3, [r0, #8]; bx r3       a stored pointer
//! ldr pc, [r12, #16]            a stored pointer: a procedure linkage table
//! ```
//!
//! Everything else is taken to be computed: also tables of pointers, since nothing says how long
//! those are.

use super::class::{Class, Op};
use super::decode::Insn;
use super::{LINK, PC};
use crate::Va;
use crate::indirect::{Entries, Origin, Table};
use crate::insn::Flow;

/// Instructions followed back from a jump.
const BUDGET: usize = 64;

/// All indirect jumps of a function. `insns` in ascending order; gaps between parts are fine.
/// `thunk`: as [`thunk`](super::thunk::thunk) says of an address.
pub(crate) fn indirect_jumps(insns: &[Insn], thunk: &dyn Fn(Va) -> Option<u8>) -> Vec<(Va, Origin)> {
    let mut targets: Vec<Va> = Vec::new();
    let mut tables: Vec<(usize, Origin)> = Vec::new();
    let mut jumps = Vec::new();
    for (i, insn) in insns.iter().enumerate() {
        match insn.flow() {
            Flow::Jump(target) | Flow::Branch(target) => {
                targets.push(target);
                let leaves = insns.binary_search_by_key(&target, Insn::va).is_err();
                jumps.extend(thunk(target).filter(|_| leaves).map(|register| (i, register)));
            }
            Flow::JumpIndirect => {
                let Some((va, op)) = insn.places().last() else { continue };
                match origin(va, &op) {
                    Ok(origin) => tables.push((i, origin)),
                    Err(register) => jumps.push((i, register)),
                }
            }
            _ => {}
        }
    }
    targets.sort_unstable();
    let followed = jumps.into_iter().map(|(i, register)| (i, follow(insns, &targets, i, register)));
    let mut all: Vec<_> = tables.into_iter().chain(followed).map(|(i, origin)| (insns[i].va(), origin)).collect();
    all.sort_unstable_by_key(|(va, _)| *va);
    all
}

/// What the jump itself says, or the register that it goes through.
fn origin(va: Va, op: &Op) -> Result<Origin, u8> {
    match op.class {
        Class::TableBranch if op.base == Some(PC) => {
            let base = op.pc(va);
            let entries = Entries { bytes: if op.bit(4) { 2 } else { 1 }, signed: false, shift: 1 };
            Ok(Origin::Table(vec![Table { base, start: base, certain: true, entries }]))
        }
        // A word at a register and a number: no table.
        Class::Load if op.offset().is_some() && op.base != Some(PC) => Ok(Origin::Pointer),
        Class::LoadMultiple => Ok(Origin::Pointer),
        Class::BranchRegister => Err(op.reads.trailing_zeros() as u8),
        _ => op.copied().filter(|(_, to)| *to == PC).map_or(Ok(Origin::Computed), |(from, _)| Err(from)),
    }
}

/// What a register has in front of an instruction, by the instructions that lie in front of it.
fn follow(insns: &[Insn], targets: &[Va], from: usize, mut register: u8) -> Origin {
    if register == PC {
        // `bx pc` goes to the other instruction set.
        return Origin::Pointer;
    }
    let mut next = insns[from].va();
    for insn in insns[..from].iter().rev().take(BUDGET) {
        let arrives = targets.binary_search(&next).is_ok();
        let calls = matches!(insn.flow(), Flow::Call(_) | Flow::CallIndirect | Flow::Syscall);
        if arrives || insn.next() != next || !insn.falls_through() || calls {
            return Origin::Computed;
        }
        next = insn.va();
        if insn.usage().writes >> register & 1 == 0 {
            continue;
        }
        let Some(op) = insn.plain() else { return Origin::Computed };
        let wrote_base = op.write_back && op.base == Some(register);
        match op.class {
            // A word on the stack may have been put there by the function.
            Class::Load
                if op.offset().is_some() && op.base != Some(PC) && op.base != Some(super::SP) && !wrote_base =>
            {
                return Origin::Pointer;
            }
            _ => match op.copied() {
                Some((from, _)) if from != PC && from != LINK => register = from,
                _ => return Origin::Computed,
            },
        }
    }
    // An argument, where the function begins here.
    let first = insns.first().is_some_and(|insn| insn.va() == next && targets.binary_search(&next).is_err());
    if first && register < 4 { Origin::Pointer } else { Origin::Computed }
}
