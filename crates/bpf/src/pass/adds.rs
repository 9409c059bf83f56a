//! Programs that only add numbers to the thread's own memory: generated code does that without a
//! compiler for its instruction set.

use super::body::Body;
use super::known::{self, Base};
use crate::insn::{AtomicOp, Imm64, Insn, Width};
use crate::verify::{Memory, Verified};

/// A number that is added, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Add {
    /// Offset in the thread's memory of a word of 64 bits.
    pub offset: i32,
    /// The number.
    pub number: i32,
}

/// What a linked program adds to the thread's memory, in this order, if that is all that it does:
/// at each hit the same, and nothing else that anybody could see.
#[must_use]
pub fn adds(verified: &Verified) -> Option<Vec<Add>> {
    let body = Body::new(&verified.program, &verified.facts, &verified.origin)?;
    let mut adds = Vec::new();
    for (node, state) in body.nodes.iter().zip(known::before(&body)) {
        let state = state?;
        match node.insn {
            Insn::Alu { .. } | Insn::LoadImm64 { .. } => {}
            Insn::Store { .. } if node.memory == Some(Memory::Stack) => {}
            Insn::Atomic { width: Width::W64, op: AtomicOp::Add { fetch: false }, base, off, src } => {
                let from = state.reg(base).offset_from(Base::Imm(Imm64::Thread(0)))?;
                let offset = i32::try_from(from.checked_add(off.into())?).ok()?;
                adds.push(Add { offset, number: i32::try_from(state.reg(src).number()? as i64).ok()? });
            }
            Insn::Exit => return Some(adds),
            _ => return None,
        }
    }
    None
}
