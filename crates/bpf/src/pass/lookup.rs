//! Lookups in arrays without a call: arithmetic and a comparison, as the kernel's
//! `array_map_gen_lookup`.

use super::body::{Body, New, Node};
use super::{Link, Values};
use crate::insn::{AluOp, Cond, Imm64, Insn, Operand, Reg, Size, Width};

/// Moves after a lookup that are looked through to find its check for null.
const MOVES: usize = 2;

/// Replaces the calls of `map_lookup_elem` for maps whose values have an address.
pub fn inline(body: &mut Body, links: &[Link]) {
    let tails: Vec<Option<Tail>> = (0..body.nodes.len()).map(|at| Tail::after(body, at)).collect();
    body.replace(|at, node| {
        let lookup = node.lookup?;
        let values = links.get(lookup.map?)?.values?;
        match lookup.key {
            Some(key) => constant(node, &values, key),
            None => variable(node, &values, tails[at].as_ref()),
        }
    });
}

fn load(node: &Node, dst: Reg, imm: Imm64) -> New {
    node.with(Insn::LoadImm64 { dst, imm }).into()
}

fn alu(node: &Node, op: AluOp, dst: Reg, src: Operand) -> New {
    node.with(Insn::Alu { width: Width::W64, op, dst, src }).into()
}

fn constant(node: &Node, values: &Values, key: u64) -> Option<Vec<New>> {
    if key >= values.entries.into() {
        return Some(vec![alu(node, AluOp::Mov, Reg::R0, Operand::Imm(0))]);
    }
    let address = values.at(key * u64::from(values.stride))?;
    Some(vec![load(node, Reg::R0, address)])
}

/// `r0` and `r1` are free: the call would have changed them.
fn variable(node: &Node, values: &Values, tail: Option<&Tail>) -> Option<Vec<New>> {
    let last = i32::try_from(values.entries.checked_sub(1)?).ok()?;
    let stride = i32::try_from(values.stride).ok()?;
    values.at(u64::from(values.entries) * u64::from(values.stride))?;
    let key = Insn::Load { size: Size::W, signed: false, dst: Reg::R0, base: Reg::R2, off: 0 };
    let mut list = vec![New::from(node.with(key))];
    let compare = Insn::Branch { width: Width::W64, cond: Cond::Gt, dst: Reg::R0, src: Operand::Imm(last), off: 0 };
    list.push(node.with(compare).into());
    let scale = if values.stride.is_power_of_two() {
        alu(node, AluOp::Lsh, Reg::R0, Operand::Imm(values.stride.trailing_zeros() as i32))
    } else {
        alu(node, AluOp::Mul, Reg::R0, Operand::Imm(stride))
    };
    list.push(scale);
    list.push(load(node, Reg::R1, values.base));
    list.push(alu(node, AluOp::Add, Reg::R0, Operand::Reg(Reg::R1)));
    let goto = node.with(Insn::Goto { off: 0, long: false });
    let leave = |list: &mut Vec<New>, to: Option<usize>| match (tail, to) {
        // The moves again, so that who comes here by another way finds all as it was.
        (Some(tail), Some(to)) => {
            list.extend(tail.moves.iter().map(|m| New::from(Node { target: None, ..*m })));
            list.push(Node { target: Some(to), ..goto }.into());
        }
        _ => list.push(goto.into()),
    };
    leave(&mut list, tail.map(|t| t.found));
    list[1].target = Some(list.len());
    list.push(alu(node, AluOp::Mov, Reg::R0, Operand::Imm(0)));
    leave(&mut list, tail.map(|t| t.missing));
    let end = list.len();
    // Without a check for null both go to the end.
    for new in list.iter_mut().filter(|new| matches!(new.node.insn, Insn::Goto { .. }) && new.node.target.is_none()) {
        new.target = Some(end);
    }
    Some(list)
}

/// The check for null right after a lookup.
struct Tail {
    /// Copies of `r0` before the check.
    moves: Vec<Node>,
    /// Where it goes on with a value, and without.
    found: usize,
    missing: usize,
}

impl Tail {
    fn after(body: &Body, at: usize) -> Option<Tail> {
        body.nodes[at].lookup?;
        let (mut copies, mut moves) = (vec![Reg::R0], Vec::new());
        for (i, node) in body.nodes.iter().enumerate().skip(at + 1).take(MOVES + 1) {
            match node.insn {
                Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src: Operand::Reg(src) }
                    if copies.contains(&src) =>
                {
                    copies.push(dst);
                    moves.push(*node);
                }
                Insn::Branch { width: Width::W64, cond, dst, src: Operand::Imm(0), .. } if copies.contains(&dst) => {
                    return match cond {
                        Cond::Eq => Some(Tail { moves, found: i + 1, missing: node.target? }),
                        Cond::Ne => Some(Tail { moves, found: node.target?, missing: i + 1 }),
                        _ => None,
                    };
                }
                _ => return None,
            }
        }
        None
    }
}
