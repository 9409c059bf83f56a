//! References that bytes would make if they were instructions ([`crate::scan`]).

use super::class::{Class, Op};
use super::decode::alone;
use crate::scan::{Distance, Reference};
use crate::{Isa, Len, Va};

/// Each instruction that some bytes may hold, whether or not others overlap it.
fn each(isa: Isa, start: Va, bytes: &[u8], mut found: impl FnMut(usize, Va, &Op)) {
    let step = isa.limits().alignment;
    let first = (start.0.next_multiple_of(step) - start.0) as usize;
    for at in (first..bytes.len()).step_by(step as usize) {
        if let Some(op) = bytes.get(at..).and_then(|rest| alone(isa, rest)) {
            found(at, start.plus(Len(at as u64)), &op);
        }
    }
}

/// Where a direct branch leads, which may be one to the other instruction set.
fn branch(op: &Op, va: Va) -> Option<Va> {
    op.target(va).filter(|_| op.class != Class::Address || op.writes_pc())
}

/// See [`crate::scan::distances`].
pub(crate) fn distances(isa: Isa, start: Va, bytes: &[u8], mut found: impl FnMut(Distance)) {
    each(isa, start, bytes, |at, va, op| {
        let branch = branch(op, va);
        if let Some(target) = branch.or_else(|| op.operand(va)) {
            found(Distance { at, target, is_branch: branch.is_some(), is_operand: branch.is_none() });
        }
    });
}

/// See [`crate::scan::references`]. `movw` and `movt` name halves: all pairs of one register that
/// lie near each other.
pub(crate) fn references(isa: Isa, start: Va, bytes: &[u8], found: &mut dyn FnMut(Reference)) {
    // Lower halves that are not far behind.
    const WINDOW: u64 = 64;
    let mut lower = Vec::<(Va, u16, u32)>::new();
    each(isa, start, bytes, |_, va, op| {
        if let Some(target) = branch(op, va) {
            found(Reference::Branch { source: va, target });
        } else if let Some(target) = op.operand(va) {
            found(Reference::Names(target));
        }
        let value = op.offset().unwrap_or(0) as u32;
        match op.class {
            Class::Constant if value > 0xffff => found(Reference::Names(Va(value.into()))),
            Class::Constant => {
                lower.retain(|(at, ..)| va.since(*at) <= WINDOW as i64);
                lower.push((va, op.writes, value));
            }
            Class::MoveTop => {
                let near = lower.iter().filter(|(at, d, _)| *d == op.writes && va.since(*at) <= WINDOW as i64);
                near.for_each(|(_, _, low)| found(Reference::Names(Va((value << 16 | low).into()))));
            }
            _ => {}
        }
    });
}
