//! Removes what is constant, dead or never reached, and makes one instruction of those that are one
//! in the machine.

use super::body::{Body, New, Node};
use super::known::{self, Base, Known, State};
use super::{live, peephole};
use crate::insn::{AluOp, AtomicOp, Imm64, Insn, Operand, Reg, Size, Width};
use crate::verify::Memory;

/// Rounds at most; programs are done after two or three.
const ROUNDS: usize = 8;

/// Does all of it until nothing changes.
pub fn run(body: &mut Body) {
    for _ in 0..ROUNDS {
        let states = known::before(body);
        let mut changed = fold(body, &states);
        changed |= thread(body);
        changed |= remove_unreached(body);
        changed |= peephole::extend(body);
        changed |= peephole::forward(body);
        changed |= fuse(body);
        changed |= remove_dead(body);
        changed |= remove_stores(body);
        if !changed {
            return;
        }
    }
}

/// Operands and results that are known become immediates; branches that are decided, jumps or
/// nothing.
fn fold(body: &mut Body, states: &[Option<State>]) -> bool {
    let mut gone = vec![false; body.nodes.len()];
    let mut changed = false;
    for ((node, state), gone) in body.nodes.iter_mut().zip(states).zip(&mut gone) {
        let Some(state) = state else { continue };
        if let Insn::Branch { width, cond, dst, src, .. } = node.insn {
            match state.decides(width, cond, dst, src) {
                Some(true) => node.insn = Insn::Goto { off: 0, long: false },
                Some(false) => *gone = true,
                None => {
                    let new = operands(node.insn, state);
                    changed |= new != node.insn;
                    node.insn = new;
                }
            }
            changed |= !matches!(node.insn, Insn::Branch { .. });
            continue;
        }
        *gone = is_idle(&node.insn, state);
        let new = operands(node.insn, state);
        changed |= new != node.insn;
        node.insn = new;
    }
    body.remove(&gone) || changed
}

/// Whether it clears the upper half of what has none.
fn is_idle(insn: &Insn, state: &State) -> bool {
    let Insn::Alu { width: Width::W32, op: AluOp::Mov, dst, src } = *insn else { return false };
    src == Operand::Reg(dst) && state.reg(dst).is_half()
}

/// The instruction with immediates for what is known.
fn operands(insn: Insn, state: &State) -> Insn {
    if let (true, Known::Number(value)) = (live::is_pure(&insn), state.result(&insn)) {
        let dst = Reg::all().find(|&reg| live::writes(&insn) == live::bit(reg)).unwrap_or(Reg::R0);
        return match i32::try_from(value as i64) {
            Ok(imm) => Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src: Operand::Imm(imm) },
            Err(_) => Insn::LoadImm64 { dst, imm: Imm64::Value(value) },
        };
    }
    let immediate = |width: Width, src: Operand| match (src, state.operand(width, src)) {
        (Operand::Imm(_), _) => src,
        (_, Known::Number(value)) if width == Width::W32 => Operand::Imm(value as u32 as i32),
        (_, Known::Number(value)) => i32::try_from(value as i64).map_or(src, Operand::Imm),
        _ => src,
    };
    let on_stack = |base: Reg, off: i16| {
        let offset = state.reg(base).offset_from(Base::Frame).map(|o| o.wrapping_add(off.into()));
        match offset.map(i16::try_from) {
            Some(Ok(off)) => (Reg::R10, off),
            _ => (base, off),
        }
    };
    match insn {
        // Immediate divisors and counts have rules of their own.
        Insn::Alu { op: AluOp::Div | AluOp::Sdiv | AluOp::Mod | AluOp::Smod, .. } => insn,
        Insn::Alu { width, op: op @ (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh), dst, src } => {
            match immediate(width, src) {
                Operand::Imm(by) => Insn::Alu { width, op, dst, src: Operand::Imm(by & (width.bits() as i32 - 1)) },
                src => Insn::Alu { width, op, dst, src },
            }
        }
        Insn::Alu { width, op, dst, src } => Insn::Alu { width, op, dst, src: immediate(width, src) },
        Insn::Branch { width, cond, dst, src, off } => {
            let src = immediate(width, src);
            let half = state.reg(dst).is_half() && matches!(src, Operand::Imm(0..)) && !cond.is_signed();
            Insn::Branch { width: if half { Width::W32 } else { width }, cond, dst, src, off }
        }
        Insn::Load { size, signed, dst, base, off } => {
            let (base, off) = on_stack(base, off);
            Insn::Load { size, signed, dst, base, off }
        }
        Insn::Store { size, base, off, src } => {
            let (base, off) = on_stack(base, off);
            let width = if size == Size::Dw { Width::W64 } else { Width::W32 };
            Insn::Store { size, base, off, src: immediate(width, src) }
        }
        Insn::Atomic { width, op, base, off, src } => {
            let (base, off) = on_stack(base, off);
            Insn::Atomic { width, op, base, off, src }
        }
        other => other,
    }
}

/// Jumps to jumps go to where those go; jumps to what follows are none.
fn thread(body: &mut Body) -> bool {
    let targets: Vec<Option<usize>> =
        body.nodes.iter().map(|node| if matches!(node.insn, Insn::Goto { .. }) { node.target } else { None }).collect();
    let mut changed = false;
    for node in body.nodes.iter_mut().filter(|node| node.insn.jump().is_some()) {
        // A few steps: endless loops of jumps exist.
        for _ in 0..4 {
            match node.target.and_then(|to| targets.get(to).copied().flatten()) {
                Some(next) if node.target != Some(next) => (node.target, changed) = (Some(next), true),
                _ => break,
            }
        }
    }
    let nodes = &body.nodes;
    let gone: Vec<bool> =
        (0..nodes.len()).map(|i| nodes[i].insn.jump().is_some() && nodes[i].target == Some(i + 1)).collect();
    body.remove(&gone) || changed
}

fn remove_unreached(body: &mut Body) -> bool {
    let mut reached = vec![false; body.nodes.len()];
    let mut open: Vec<usize> = body.functions.iter().map(|f| f.start).collect();
    while let Some(at) = open.pop() {
        let Some(node) = body.nodes.get(at) else { continue };
        if std::mem::replace(&mut reached[at], true) {
            continue;
        }
        if node.insn.falls_through() {
            open.push(at + 1);
        }
        open.extend(node.insn.jump().and(node.target));
    }
    let gone: Vec<bool> = reached.into_iter().map(|r| !r).collect();
    body.remove(&gone)
}

/// Instructions whose result nobody reads; atomic operations whose old value nobody reads give
/// none.
fn remove_dead(body: &mut Body) -> bool {
    let after = live::after(body, true, |_, reads| reads);
    let mut changed = false;
    let mut gone = vec![false; body.nodes.len()];
    for (i, node) in body.nodes.iter_mut().enumerate() {
        let dead = live::writes(&node.insn) & after[i] == 0;
        let same = |dst: Reg, src: Operand| src == Operand::Reg(dst);
        match &mut node.insn {
            Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src } if same(*dst, *src) => gone[i] = true,
            Insn::Atomic {
                op: AtomicOp::Add { fetch } | AtomicOp::Or { fetch } | AtomicOp::And { fetch } | AtomicOp::Xor { fetch },
                ..
            } if dead => changed |= std::mem::replace(fetch, false),
            insn => gone[i] = dead && live::is_pure(insn),
        }
    }
    body.remove(&gone) || changed
}

/// Stores to the stack that no load of the function reads, where all that is done to its stack can
/// be seen.
fn remove_stores(body: &mut Body) -> bool {
    let mut gone = vec![false; body.nodes.len()];
    for range in body.ranges() {
        let mut read = [false; crate::program::MAX_STACK as usize];
        let mut place = |off: i16, len: usize| {
            let from = crate::program::MAX_STACK as i64 + i64::from(off);
            let bytes = usize::try_from(from).ok().and_then(|from| read.get_mut(from..from + len));
            bytes.map(|bytes| bytes.fill(true)).is_some()
        };
        let seen = body.nodes[range.clone()].iter().all(|node| match node.insn {
            Insn::Load { size, base: Reg::R10, off, .. } => place(off, size.bytes()),
            Insn::Atomic { width, base: Reg::R10, off, src, .. } if src != Reg::R10 => place(off, width.size().bytes()),
            Insn::Store { base: Reg::R10, src, .. } => src != Operand::Reg(Reg::R10),
            insn => live::uses(&insn, true) & live::bit(Reg::R10) == 0,
        });
        if !seen {
            continue;
        }
        for i in range {
            if let Insn::Store { size, base: Reg::R10, off, .. } = body.nodes[i].insn {
                let from = (crate::program::MAX_STACK as i64 + i64::from(off)) as usize;
                gone[i] = read.get(from..from + size.bytes()).is_some_and(|bytes| !bytes.contains(&true));
            }
        }
    }
    body.remove(&gone)
}

/// Load, arithmetic and store of one place that no other thread touches become an operation on
/// memory. So it is whole for signals of the thread, too.
fn fuse(body: &mut Body) -> bool {
    let arrivals = body.arrivals();
    let after = live::after(body, true, |_, reads| reads);
    let mut found: Vec<Option<Vec<New>>> = Vec::new();
    found.resize_with(body.nodes.len(), || None);
    let mut at = 0;
    while at + 2 < body.nodes.len() {
        let alone = arrivals[at + 1] == 0 && arrivals[at + 2] == 0;
        let list = if alone { fused(&body.nodes[at..at + 3], after[at + 2]) } else { None };
        if let Some(list) = list {
            found[at] = Some(list);
            found[at + 1] = Some(Vec::new());
            found[at + 2] = Some(Vec::new());
            at += 2;
        }
        at += 1;
    }
    let any = found.iter().any(Option::is_some);
    if any {
        body.replace(|i, _| found[i].take());
    }
    any
}

fn fused(nodes: &[Node], live: live::Set) -> Option<Vec<New>> {
    let [load, change, store] = nodes else { return None };
    let Insn::Load { size, signed: false, dst: reg, base, off } = load.insn else { return None };
    let Insn::Alu { width, op, dst, src } = change.insn else { return None };
    let whole = match size {
        Size::Dw => Width::W64,
        Size::W => Width::W32,
        Size::B | Size::H => return None,
    };
    let same_place = store.insn == Insn::Store { size, base, off, src: Operand::Reg(reg) };
    let same_memory = load.memory == store.memory && !load.unaligned && !store.unaligned;
    let local = matches!(load.memory, Some(Memory::ThreadMap(_) | Memory::Stack));
    let own = base != reg
        && src != Operand::Reg(reg)
        && src != Operand::Reg(Reg::R10)
        && dst == reg
        && live & live::bit(reg) == 0;
    if !(same_place && same_memory && local && own) || whole == Width::W64 && width == Width::W32 {
        return None;
    }
    let alu = |op, src| New::from(change.with(Insn::Alu { width: Width::W64, op, dst: reg, src }));
    let (op, mut list) = match (op, src) {
        (AluOp::Add, Operand::Reg(_)) => (AtomicOp::Add { fetch: false }, vec![]),
        (AluOp::Sub, Operand::Reg(_)) => {
            let negate = New::from(change.with(Insn::Neg { width: Width::W64, dst: reg }));
            (AtomicOp::Add { fetch: false }, vec![alu(AluOp::Mov, src), negate])
        }
        (AluOp::Sub, Operand::Imm(imm)) => {
            (AtomicOp::Add { fetch: false }, vec![alu(AluOp::Mov, Operand::Imm(imm.checked_neg()?))])
        }
        (AluOp::Add, _) => (AtomicOp::Add { fetch: false }, vec![alu(AluOp::Mov, src)]),
        (AluOp::Or, _) => (AtomicOp::Or { fetch: false }, vec![alu(AluOp::Mov, src)]),
        (AluOp::And, _) => (AtomicOp::And { fetch: false }, vec![alu(AluOp::Mov, src)]),
        (AluOp::Xor, _) => (AtomicOp::Xor { fetch: false }, vec![alu(AluOp::Mov, src)]),
        _ => return None,
    };
    let operand = match (list.is_empty(), src) {
        (true, Operand::Reg(src)) => src,
        _ => reg,
    };
    let atomic = Insn::Atomic { width: whole, op, base, off, src: operand };
    list.push(Node { insn: atomic, ..*store }.into());
    Some(list)
}
