//! Programs at the entry of a function that do nothing but prepare for its return.

use super::body::Body;
use super::known::{self, Known};
use crate::insn::{Insn, Reg};
use crate::verify::{Memory, Verified};

/// Whether a program of an entry has no effect but the word that it keeps for the return of the
/// call, and always lets the return be watched: its result is 0. Such a program may run twice at
/// one hit. Helpers are not looked at: code with calls to them is no part of generated code.
#[must_use]
pub fn only_keeps(verified: &Verified) -> bool {
    let Some(body) = Body::new(&verified.program, &verified.facts, &verified.origin) else { return false };
    let states = known::before(&body);
    body.nodes.iter().zip(&states).all(|(node, state)| match node.insn {
        Insn::Store { .. } => matches!(node.memory, Some(Memory::Stack | Memory::Context)),
        Insn::Atomic { .. } | Insn::CallLocal(_) => false,
        Insn::Exit => state.as_ref().is_none_or(|state| matches!(state.reg(Reg::R0), Known::Number(0))),
        _ => true,
    })
}
