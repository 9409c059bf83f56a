//! What can be said without values: jumps hit instructions of their own function, everything is
//! reached, functions end, and calls are not too deep.

use std::collections::BTreeSet;

use super::Problem;
use super::value::MAX_FRAMES;
use crate::insn::{Imm64, Insn};
use crate::program::Program;

/// A program by its slots.
#[derive(Debug)]
pub(crate) struct Code {
    /// `None` in the second slot of a long immediate.
    pub insns: Vec<Option<Insn>>,
    /// First slots of the functions, rising.
    pub starts: Vec<usize>,
    /// Slots where paths meet.
    pub joins: Vec<bool>,
}

type Located = (usize, Problem);

impl Code {
    /// # Errors
    /// The slot, and what is wrong with it.
    pub fn new(program: &Program) -> Result<Code, Located> {
        let len = program.slots.len();
        if len == 0 {
            return Err((0, Problem::Empty));
        }
        if len > super::MAX_SLOTS {
            return Err((0, Problem::TooLong(len)));
        }
        let mut insns = vec![None; len];
        for insn in program.iter() {
            let (pc, insn) = insn.map_err(|e| (e.at, Problem::Decode(e)))?;
            insns[pc] = Some(insn);
        }
        let mut code = Code { insns, starts: Vec::new(), joins: vec![false; len] };
        code.find_targets()?;
        code.reach()?;
        Ok(code)
    }

    /// The instruction at a slot that is known to be the start of one.
    pub fn insn(&self, pc: usize) -> Option<Insn> {
        self.insns.get(pc).copied().flatten()
    }

    /// First slot of the function that a slot is in.
    pub fn function_of(&self, pc: usize) -> usize {
        let after = self.starts.partition_point(|start| *start <= pc);
        self.starts[after.saturating_sub(1)]
    }

    /// The slot `off` after the end of the one-slot instruction at `pc`.
    pub fn target(pc: usize, off: i32) -> usize {
        (pc as i64 + 1 + i64::from(off)) as usize
    }

    fn located(&self) -> impl Iterator<Item = (usize, Insn)> + '_ {
        self.insns.iter().enumerate().filter_map(|(pc, insn)| insn.map(|insn| (pc, insn)))
    }

    fn find_targets(&mut self) -> Result<(), Located> {
        let mut starts = BTreeSet::from([0]);
        let mut joins = vec![false; self.insns.len()];
        let mut jumps = Vec::new();
        for (pc, insn) in self.located() {
            let off = match insn {
                Insn::CallLocal(off) | Insn::LoadImm64 { imm: Imm64::Func(off), .. } => off,
                _ => match insn.jump() {
                    Some(off) => off,
                    None => continue,
                },
            };
            let to = pc as i64 + 1 + i64::from(off);
            let target = usize::try_from(to).ok().filter(|t| self.insn(*t).is_some());
            let target = target.ok_or((pc, Problem::Target(to)))?;
            if insn.jump().is_some() {
                joins[target] = true;
                jumps.push((pc, target));
            } else {
                starts.insert(target);
            }
        }
        self.starts = starts.into_iter().collect();
        self.joins = joins;
        match jumps.into_iter().find(|&(pc, target)| self.function_of(pc) != self.function_of(target)) {
            Some((pc, target)) => Err((pc, Problem::JumpsOut(target))),
            None => Ok(()),
        }
    }

    /// Every instruction of a function is reached from its start, and none runs into what follows
    /// the function.
    fn reach(&self) -> Result<(), Located> {
        let mut reached = vec![false; self.insns.len()];
        let mut open = self.starts.clone();
        while let Some(pc) = open.pop() {
            let Some(insn) = self.insn(pc) else { continue };
            if std::mem::replace(&mut reached[pc], true) {
                continue;
            }
            if insn.falls_through() {
                let next = pc + insn.slots();
                if self.insn(next).is_none() || self.function_of(next) != self.function_of(pc) {
                    return Err((pc, Problem::FallsOff));
                }
                open.push(next);
            }
            if let Some(off) = insn.jump() {
                open.push(Self::target(pc, off));
            }
        }
        match self.located().find(|(pc, _)| !reached[*pc]) {
            Some((pc, _)) => Err((pc, Problem::Unreachable)),
            None => Ok(()),
        }
    }

    /// Functions that each function calls or hands to helpers, with the slot that does.
    fn calls(&self) -> Vec<Vec<(usize, usize)>> {
        let mut calls = vec![Vec::new(); self.starts.len()];
        let index = |start: usize| self.starts.partition_point(|s| *s < start);
        for (pc, insn) in self.located() {
            if let Insn::CallLocal(off) | Insn::LoadImm64 { imm: Imm64::Func(off), .. } = insn {
                calls[index(self.function_of(pc))].push((pc, index(Self::target(pc, off))));
            }
        }
        calls
    }

    /// Functions from the inside out: each after those that it calls.
    ///
    /// # Errors
    /// If there is a circle.
    fn bottom_up(&self, calls: &[Vec<(usize, usize)>]) -> Result<Vec<usize>, Located> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; calls.len()];
        let mut order = Vec::new();
        for root in 0..calls.len() {
            let mut path = vec![(root, 0)];
            while let Some((function, next)) = path.pop() {
                if marks[function] == Mark::Done {
                    continue;
                }
                marks[function] = Mark::Open;
                let Some(&(pc, callee)) = calls[function].get(next) else {
                    marks[function] = Mark::Done;
                    order.push(function);
                    continue;
                };
                if marks[callee] == Mark::Open {
                    return Err((pc, Problem::Recursion(self.starts[callee])));
                }
                path.push((function, next + 1));
                path.push((callee, 0));
            }
        }
        Ok(order)
    }

    /// Checks how deep calls are nested.
    ///
    /// # Errors
    /// If too deep, or if a function calls itself.
    pub fn check_depth(&self) -> Result<(), Located> {
        let calls = self.calls();
        let mut height = vec![1; calls.len()];
        for function in self.bottom_up(&calls)? {
            for &(pc, callee) in &calls[function] {
                height[function] = height[function].max(1 + height[callee]);
                if height[function] > MAX_FRAMES {
                    return Err((pc, Problem::TooDeep));
                }
            }
        }
        Ok(())
    }

    /// Checks that the stacks of nested calls fit together; `stacks` has the bytes of each
    /// function. Each is rounded up to 32 bytes, as in the kernel (`check_max_stack_depth`).
    ///
    /// # Errors
    /// If they do not.
    pub fn check_stacks(&self, stacks: &[usize]) -> Result<(), Located> {
        let calls = self.calls();
        let round = |bytes: usize| bytes.max(1).div_ceil(32) * 32;
        let mut deep: Vec<usize> = stacks.iter().map(|bytes| round(*bytes)).collect();
        for function in self.bottom_up(&calls)? {
            for &(pc, callee) in &calls[function] {
                deep[function] = deep[function].max(round(stacks[function]) + deep[callee]);
                if deep[function] > super::state::STACK {
                    return Err((pc, Problem::StackDepth(deep[function])));
                }
            }
        }
        Ok(())
    }
}
