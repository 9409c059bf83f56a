//! The decision of a program whether it has anything to do.

use super::body::{Body, Node};
use super::simplify;
use crate::insn::{AluOp, Insn, Operand, Reg, Width};
use crate::verify::{Memory, Verified};

/// Longer filters are not worth their code: they are executed twice at hits that go on.
const MAX_NODES: usize = 64;

/// The pure beginning of a program, as a program of its own: its result is 0 at each exit that the
/// original reaches without an effect, and 1 before the first instruction that has one, or cannot
/// be inlined: calls, atomic operations, stores (but to the stack), loops. It loads words of the
/// context and values of arrays only.
///
/// To be asked of a linked program, where lookups in arrays are no calls. None if no path ends
/// without effects, or if it is long.
#[must_use]
pub fn filter(verified: &Verified) -> Option<Verified> {
    let mut body = Body::new(&verified.program, &verified.facts, &verified.origin)?;
    let end = body.ranges().first()?.end;
    body.nodes.truncate(end);
    body.functions.truncate(1);
    let first = *body.nodes.first()?;
    let (stop, go) = (end, end + 2);
    for at in 0..end {
        let node = &mut body.nodes[at];
        let to = match node.insn {
            Insn::Exit => stop,
            insn if is_allowed(&insn, node.memory) && node.target.is_none_or(|to| to > at) => continue,
            _ => go,
        };
        *node = Node { target: Some(to), ..node.with(Insn::Goto { off: 0, long: false }) };
    }
    for result in [0, 1] {
        let mov = Insn::Alu { width: Width::W64, op: AluOp::Mov, dst: Reg::R0, src: Operand::Imm(result) };
        body.nodes.extend([first.with(mov), first.with(Insn::Exit)]);
    }
    simplify::run(&mut body);
    let exits = |result| {
        let mov = Insn::Alu { width: Width::W64, op: AluOp::Mov, dst: Reg::R0, src: Operand::Imm(result) };
        body.nodes.windows(2).any(|pair| pair[0].insn == mov && pair[1].insn == Insn::Exit)
    };
    if body.nodes.len() > MAX_NODES || !exits(0) {
        return None;
    }
    body.finish(verified)
}

fn is_allowed(insn: &Insn, memory: Option<Memory>) -> bool {
    match insn {
        Insn::Load { base, .. } => {
            let known = matches!(memory, Some(Memory::Context | Memory::Stack | Memory::Map(_) | Memory::ThreadMap(_)));
            known || *base == Reg::R10
        }
        Insn::Store { .. } => memory == Some(Memory::Stack),
        Insn::Atomic { .. } | Insn::CallHelper(_) | Insn::CallLocal(_) => false,
        Insn::LoadImm64 { imm, .. } => !matches!(imm, crate::Imm64::Func(_)),
        _ => true,
    }
}
