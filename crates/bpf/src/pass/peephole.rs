//! Short sequences that are one instruction.

use super::body::{Body, New, Node};
use super::live;
use crate::insn::{AluOp, Insn, Operand, Reg, Size, Width};

/// Instructions before a load in which the store of what it loads is looked for.
const DISTANCE: usize = 8;

/// Shifts to the left and back, as compilers without 32-bit arithmetic extend numbers, become one
/// extension.
pub fn extend(body: &mut Body) -> bool {
    let arrivals = body.arrivals();
    let mut gone = vec![false; body.nodes.len()];
    for at in 1..body.nodes.len() {
        let pair = (body.nodes[at - 1].insn, body.nodes[at].insn);
        if let (0, Some(insn)) = (arrivals[at], extension(pair)) {
            body.nodes[at].insn = insn;
            gone[at - 1] = true;
        }
    }
    body.remove(&gone)
}

fn extension(pair: (Insn, Insn)) -> Option<Insn> {
    let (
        Insn::Alu { width: Width::W64, op: AluOp::Lsh, dst: left, src: Operand::Imm(by) },
        Insn::Alu { width: Width::W64, op, dst, src: Operand::Imm(back) },
    ) = pair
    else {
        return None;
    };
    if left != dst || by != back {
        return None;
    }
    let from = match by {
        32 => Size::W,
        48 => Size::H,
        56 => Size::B,
        _ => return None,
    };
    match (op, from) {
        (AluOp::Arsh, from) => Some(Insn::MovSx { width: Width::W64, dst, src: dst, from }),
        (AluOp::Rsh, Size::W) => Some(Insn::Alu { width: Width::W32, op: AluOp::Mov, dst, src: Operand::Reg(dst) }),
        (AluOp::Rsh, from) => {
            let mask = Operand::Imm((1 << from.bits()) - 1);
            Some(Insn::Alu { width: Width::W64, op: AluOp::And, dst, src: mask })
        }
        _ => None,
    }
}

/// Loads of what was stored from a register that still has it become moves.
pub fn forward(body: &mut Body) -> bool {
    let arrivals = body.arrivals();
    let found: Vec<Option<Node>> = (0..body.nodes.len()).map(|at| stored(body, &arrivals, at)).collect();
    let any = found.iter().any(Option::is_some);
    if any {
        body.replace(|at, _| found[at].map(|node| vec![New::from(node)]));
    }
    any
}

fn stored(body: &Body, arrivals: &[usize], at: usize) -> Option<Node> {
    let Insn::Load { size, signed: false, dst, base: Reg::R10, off } = body.nodes[at].insn else { return None };
    let width = match size {
        Size::Dw => Width::W64,
        Size::W => Width::W32,
        Size::B | Size::H => return None,
    };
    let mut changed = 0;
    for i in (at.saturating_sub(DISTANCE)..at).rev() {
        let node = &body.nodes[i];
        if arrivals[i + 1] != 0 {
            return None;
        }
        match node.insn {
            Insn::Store { src: Operand::Reg(src), .. } if node.insn == store(size, off, src) => {
                let insn = Insn::Alu { width, op: AluOp::Mov, dst, src: Operand::Reg(src) };
                let same = changed & live::bit(src) == 0 && src != Reg::R10;
                return same.then(|| body.nodes[at].with(insn));
            }
            insn if live::is_pure(&insn) => changed |= live::writes(&insn),
            _ => return None,
        }
    }
    None
}

fn store(size: Size, off: i16, src: Reg) -> Insn {
    Insn::Store { size, base: Reg::R10, off, src: Operand::Reg(src) }
}
