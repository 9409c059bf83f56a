//! Which registers hold something that is read later.

use super::body::Body;
use crate::insn::{AtomicOp, Insn, Operand, Reg};
use crate::verify::Helper;

/// Registers, a bit each.
pub type Set = u16;

/// `r1` to `r5`.
const ARGUMENTS: Set = 0b11_1110;

/// The set of one.
pub fn bit(reg: Reg) -> Set {
    1 << reg.number()
}

fn operand(src: Operand) -> Set {
    if let Operand::Reg(reg) = src { bit(reg) } else { 0 }
}

/// Registers that an instruction reads; `result`: someone looks at `r0` in the end.
pub fn uses(insn: &Insn, result: bool) -> Set {
    match *insn {
        Insn::Alu { op: crate::AluOp::Mov, src, .. } => operand(src),
        Insn::Alu { dst, src, .. } | Insn::Branch { dst, src, .. } => bit(dst) | operand(src),
        Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => bit(dst),
        Insn::MovSx { src, .. } => bit(src),
        Insn::Load { base, .. } => bit(base),
        Insn::Store { base, src, .. } => bit(base) | operand(src),
        Insn::Atomic { op: AtomicOp::Cmpxchg, base, src, .. } => bit(base) | bit(src) | bit(Reg::R0),
        Insn::Atomic { base, src, .. } => bit(base) | bit(src),
        Insn::CallHelper(number) => {
            let arity = Helper::by_number(number).map_or(5, Helper::arity);
            ARGUMENTS & ((2 << arity) - 1)
        }
        Insn::CallLocal(_) => ARGUMENTS,
        Insn::Exit if result => bit(Reg::R0),
        Insn::Exit | Insn::Goto { .. } | Insn::LoadImm64 { .. } => 0,
    }
}

/// Registers that an instruction writes.
pub fn writes(insn: &Insn) -> Set {
    match *insn {
        Insn::Alu { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::Swap { dst, .. }
        | Insn::MovSx { dst, .. }
        | Insn::Load { dst, .. }
        | Insn::LoadImm64 { dst, .. } => bit(dst),
        Insn::Atomic { op, src, .. } => op.result(src).map_or(0, bit),
        Insn::CallHelper(_) | Insn::CallLocal(_) => ARGUMENTS | bit(Reg::R0),
        Insn::Store { .. } | Insn::Branch { .. } | Insn::Goto { .. } | Insn::Exit => 0,
    }
}

/// Whether it does nothing but write its register.
pub fn is_pure(insn: &Insn) -> bool {
    matches!(
        insn,
        Insn::Alu { .. }
            | Insn::Neg { .. }
            | Insn::Swap { .. }
            | Insn::MovSx { .. }
            | Insn::Load { .. }
            | Insn::LoadImm64 { .. }
    )
}

/// Registers that are live after each instruction. Pure ones that write nothing live read nothing.
/// `reads` says what each instruction reads, given what it would by itself.
pub fn after(body: &Body, result: bool, reads: impl Fn(usize, Set) -> Set) -> Vec<Set> {
    let mut after = vec![0; body.nodes.len()];
    for (index, range) in body.ranges().into_iter().enumerate() {
        let mut before: Vec<Set> = vec![0; range.len() + 1];
        loop {
            let mut changed = false;
            for i in range.clone().rev() {
                let node = &body.nodes[i];
                let mut out = 0;
                if node.insn.falls_through() {
                    out |= before[i + 1 - range.start];
                }
                if let (Some(_), Some(to)) = (node.insn.jump(), node.target) {
                    out |= before.get(to.wrapping_sub(range.start)).copied().unwrap_or(0);
                }
                after[i] = out;
                let writes = writes(&node.insn);
                // Only the program's own result may be of no interest: functions are called for
                // theirs.
                let read = reads(i, uses(&node.insn, result || index > 0));
                let dead = is_pure(&node.insn) && out & writes == 0;
                let live = out & !writes | if dead { 0 } else { read };
                if before[i - range.start] != live {
                    before[i - range.start] = live;
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
    }
    after
}
