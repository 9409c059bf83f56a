//! Code that stands for a jump through a register: thunks, and returns to what was just pushed.

use iced_x86::{Mnemonic, OpKind, Register};

use super::decode::Insn;
use crate::Va;
use crate::insn::Flow;

/// Bytes within which the inner call of a thunk leads.
pub(super) const THUNK: i64 = 64;

/// If a jump to `at` is one to the address in a register: which. Compilers make such code in place
/// of indirect jumps (`-mindirect-branch=thunk`, retpolines). `insn`: the instruction at an
/// address.
pub fn thunk(at: Va, insn: impl Fn(Va) -> Option<Insn>) -> Option<Register> {
    let mut first = insn(at)?;
    if first.is_target_mark() {
        first = insn(first.next())?;
    }
    match first.flow() {
        Flow::JumpIndirect if first.iced.op0_kind() == OpKind::Register => Some(first.iced.op0_register()),
        Flow::Call(to) if (0..THUNK).contains(&to.since(first.next())) => {
            let store = insn(to)?;
            handed_to(&store, &insn(store.next())?)
        }
        Flow::Next => handed_to(&first, &insn(first.next())?),
        _ => None,
    }
}

/// If two instructions, one behind the other, jump to the address in a register by a return.
#[must_use]
pub fn handed_to(before: &Insn, insn: &Insn) -> Option<Register> {
    let iced = &before.iced;
    if insn.flow() != Flow::Return || before.next() != insn.va() {
        return None;
    }
    let on_top = || {
        let is_stack = matches!(iced.memory_base(), Register::RSP | Register::ESP);
        is_stack && iced.memory_index() == Register::None && before.displacement() == 0
    };
    match iced.mnemonic() {
        Mnemonic::Push if iced.op0_kind() == OpKind::Register => Some(iced.op0_register()),
        Mnemonic::Mov if iced.op0_kind() == OpKind::Memory && iced.op1_kind() == OpKind::Register && on_top() => {
            Some(iced.op1_register())
        }
        _ => None,
    }
}
