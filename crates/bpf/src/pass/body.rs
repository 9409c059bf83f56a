//! A program as passes see it: jumps name the instruction that they go to, so that others can come
//! and go.

use crate::insn::{Imm64, Insn};
use crate::program::{self, Function, Program};
use crate::verify::{Facts, Lookup, Memory, Verified};

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    pub insn: Insn,
    /// Where it jumps to, or what it calls or takes the address of: an index in [`Body::nodes`].
    pub target: Option<usize>,
    /// What it touches.
    pub memory: Option<Memory>,
    pub unaligned: bool,
    pub lookup: Option<Lookup>,
    /// Its slot in the verified program.
    pub origin: usize,
}

impl Node {
    /// An instruction that stands for a part of this one, and touches nothing.
    pub fn with(&self, insn: Insn) -> Node {
        Node { insn, target: None, memory: None, unaligned: false, lookup: None, origin: self.origin }
    }
}

/// What takes the place of an instruction. Targets that are new count from the first of the new
/// instructions.
pub struct New {
    pub node: Node,
    pub target: Option<usize>,
}

impl From<Node> for New {
    fn from(node: Node) -> New {
        New { node, target: None }
    }
}

/// All instructions of a program.
#[derive(Clone, Debug)]
pub struct Body {
    pub nodes: Vec<Node>,
    /// First instruction of each function, and its stack.
    pub functions: Vec<Function>,
}

impl Body {
    /// The program; `None` if it is none that was verified.
    pub fn new(program: &Program, facts: &Facts, origin: &[usize]) -> Option<Body> {
        let mut index = vec![usize::MAX; program.slots.len()];
        let insns: Vec<(usize, Insn)> = program.iter().collect::<Result<_, _>>().ok()?;
        for (i, (at, _)) in insns.iter().enumerate() {
            index[*at] = i;
        }
        let find = |slot: usize| index.get(slot).copied().filter(|i| *i != usize::MAX);
        let mut nodes = Vec::with_capacity(insns.len());
        for &(at, insn) in &insns {
            let target = match program::jump_target(at, &insn).or_else(|| program::target(at, &insn)) {
                Some(slot) => Some(find(slot)?),
                None => None,
            };
            nodes.push(Node {
                insn,
                target,
                memory: facts.accesses.get(&at).copied(),
                unaligned: facts.unaligned.contains(&at),
                lookup: facts.lookups.get(&at).copied(),
                origin: origin.get(at).copied().unwrap_or(at),
            });
        }
        let functions = program.functions.iter().map(|f| Some(Function { start: find(f.start)?, ..*f }));
        Some(Body { nodes, functions: functions.collect::<Option<_>>()? })
    }

    /// The program again; `None` if a jump became longer than 16 bits.
    pub fn finish(self, verified: &Verified) -> Option<Verified> {
        let mut starts = Vec::with_capacity(self.nodes.len());
        let mut len = 0;
        for node in &self.nodes {
            starts.push(len);
            len += node.insn.slots();
        }
        let mut facts = Facts { helper_writes: verified.facts.helper_writes, ..Facts::default() };
        facts.context_escapes = verified.facts.context_escapes;
        facts.context_is_data = verified.facts.context_is_data;
        let (mut insns, mut origin) = (Vec::with_capacity(len), Vec::with_capacity(len));
        for (node, &at) in self.nodes.iter().zip(&starts) {
            let distance = node.target.map_or(0, |to| starts.get(to).copied().unwrap_or(len) as i64 - at as i64 - 1);
            let far = i32::try_from(distance).ok()?;
            insns.push(match node.insn {
                Insn::Goto { .. } => Insn::Goto { off: far, long: i16::try_from(far).is_err() },
                Insn::Branch { width, cond, dst, src, .. } => {
                    Insn::Branch { width, cond, dst, src, off: i16::try_from(far).ok()? }
                }
                Insn::CallLocal(_) => Insn::CallLocal(far),
                Insn::LoadImm64 { dst, imm: Imm64::Func(_) } => Insn::LoadImm64 { dst, imm: Imm64::Func(far) },
                other => other,
            });
            origin.extend(std::iter::repeat_n(node.origin, node.insn.slots()));
            facts.accesses.extend(node.memory.map(|m| (at, m)));
            facts.lookups.extend(node.lookup.map(|l| (at, l)));
            if node.unaligned {
                facts.unaligned.insert(at);
            }
        }
        let functions = self.functions.iter().map(|f| Function { start: starts[f.start], ..*f }).collect();
        let program = Program { slots: program::encode(&insns), functions };
        facts.settle(&program);
        Some(Verified { program, facts, origin, steps: verified.steps })
    }

    /// The functions, as ranges of instructions.
    pub fn ranges(&self) -> Vec<std::ops::Range<usize>> {
        let ends = self.functions.iter().skip(1).map(|f| f.start).chain([self.nodes.len()]);
        self.functions.iter().zip(ends).map(|(f, end)| f.start..end).collect()
    }

    /// How many jumps go to each instruction.
    pub fn arrivals(&self) -> Vec<usize> {
        let mut arrivals = vec![0; self.nodes.len() + 1];
        for node in &self.nodes {
            if let (Some(_), Some(to)) = (node.insn.jump(), node.target) {
                arrivals[to] += 1;
            }
        }
        arrivals
    }

    /// Puts what `new` gives in the place of each instruction. Who jumps to one that is gone goes
    /// to what follows.
    pub fn replace(&mut self, mut new: impl FnMut(usize, &Node) -> Option<Vec<New>>) {
        let (mut starts, mut nodes) = (Vec::with_capacity(self.nodes.len() + 1), Vec::with_capacity(self.nodes.len()));
        for (i, node) in self.nodes.iter().enumerate() {
            starts.push(nodes.len());
            match new(i, node) {
                Some(list) => {
                    let first = nodes.len();
                    nodes.extend(list.into_iter().map(|n| (n.node, n.target.map(|t| first + t))));
                }
                None => nodes.push((*node, None)),
            }
        }
        starts.push(nodes.len());
        let place =
            |(node, local): (Node, Option<usize>)| Node { target: local.or(node.target.map(|to| starts[to])), ..node };
        self.nodes = nodes.into_iter().map(place).collect();
        for function in &mut self.functions {
            function.start = starts[function.start];
        }
    }

    /// Removes the instructions that are marked.
    pub fn remove(&mut self, gone: &[bool]) -> bool {
        let any = gone.contains(&true);
        if any {
            self.replace(|i, _| gone[i].then(Vec::new));
        }
        any
    }
}
