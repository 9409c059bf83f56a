//! Walks all paths of a program, sparing those that are covered by a checkpoint.

use super::error::Problem;
use super::facts::Facts;
use super::flow::Code;
use super::state::{Frame, Needs, Reference, State};
use super::trail::{Trail, Written};
use super::value::{Kind, Value, bit};
use super::{Located, Rules};
use crate::insn::{Imm64, Insn, Reg};

/// Branches not yet taken at most, as in the kernel (`BPF_COMPLEXITY_LIMIT_JMP_SEQ`).
const MAX_OPEN: usize = 8192;

/// Instructions between checkpoints at least, so that short loops are not all checkpoints.
const SPACING: usize = 8;

/// A path as far as it was walked.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub state: State,
    pub pc: usize,
    /// The last checkpoint.
    since: Option<usize>,
    /// Since then.
    written: Written,
    steps: usize,
    forked: bool,
}

/// What follows an instruction.
#[derive(Debug)]
pub(super) enum Next {
    /// The instruction at this slot.
    At(usize),
    /// Nothing: the program ends.
    End,
}

/// A walk in progress.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    pub code: &'a Code,
    pub rules: &'a Rules<'a>,
    pub path: Path,
    open: Vec<Path>,
    trail: Trail,
    /// Checkpoints at each slot.
    at: Vec<Vec<usize>>,
    /// Calls of helpers that call back.
    callers: Vec<bool>,
    ids: u32,
    /// Paths that come to the same slot go on together: less is known there, and there are fewer.
    joins: bool,
    /// Instructions looked at.
    pub steps: usize,
    /// Bytes of stack that each function uses.
    pub stacks: Vec<usize>,
    pub facts: Facts,
}

impl<'a> Walk<'a> {
    pub fn new(code: &'a Code, rules: &'a Rules<'a>, joins: bool) -> Walk<'a> {
        let mut entry = Frame::new(0, 0, 0);
        entry.regs[1] = Value::pointer(Kind::Context);
        let state = State { frames: vec![entry], references: Vec::new(), rounds: 0 };
        let path = Path { state, pc: 0, since: None, written: Written::default(), steps: 0, forked: false };
        let calls_back = |insn: &Option<Insn>| matches!(insn, Some(Insn::CallHelper(n)) if super::Helper::by_number(*n).is_some_and(|h| h.calls_back()));
        Walk {
            code,
            rules,
            path,
            open: Vec::new(),
            trail: Trail::default(),
            at: vec![Vec::new(); code.insns.len()],
            callers: code.insns.iter().map(calls_back).collect(),
            ids: 0,
            joins,
            steps: 0,
            stacks: vec![0; code.starts.len()],
            facts: Facts::default(),
        }
    }

    /// Walks all paths.
    ///
    /// # Errors
    /// The first instruction that is not safe on some path.
    pub fn run(&mut self) -> Result<(), Located> {
        loop {
            let pc = self.path.pc;
            let located = |problem| (pc, problem);
            let ended = !self.arrive().map_err(located)? || {
                self.steps += 1;
                if self.steps > self.rules.max_steps {
                    return Err((pc, Problem::TooComplex(self.rules.max_steps)));
                }
                self.path.steps += 1;
                let insn = self.code.insn(pc).ok_or((pc, Problem::Target(pc as i64)))?;
                match self.step(pc, insn).map_err(located)? {
                    Next::At(pc) => {
                        self.path.pc = pc;
                        false
                    }
                    Next::End => true,
                }
            };
            if ended {
                if let Some(at) = self.path.since {
                    self.trail.close(at);
                }
                match self.open.pop() {
                    Some(path) => self.path = path,
                    None => return Ok(()),
                }
            }
        }
    }

    /// Compares with the checkpoints here, and makes one if it may be of use. Returns whether to go
    /// on.
    fn arrive(&mut self) -> Result<bool, Problem> {
        let pc = self.path.pc;
        let calls_back = self.callers[pc];
        if !calls_back && !self.code.joins[pc] {
            return Ok(true);
        }
        let mut spared = false;
        let (mut round, mut other) = (None, None);
        let mut listed = std::mem::take(&mut self.at[pc]);
        let mut index = 0;
        while index < listed.len() {
            let at = listed[index];
            let Some(old) = self.trail.state(at) else {
                listed.remove(index);
                continue;
            };
            if self.trail.is_done(at) {
                let needs = self.trail.needs(at);
                if old.covers(&self.path.state, &needs) {
                    self.trail.hit(at);
                    self.need(&needs);
                    spared = true;
                    break;
                }
                other = Some(at);
            } else if calls_back && old.rounds < self.path.state.rounds {
                // The helper ends its loop itself: rounds that bring nothing new need not be walked
                // again.
                if old.covers(&self.path.state, &Needs::ALL) {
                    self.trail.need_all(self.path.since, at);
                    self.need(&Needs::ALL);
                    spared = true;
                    break;
                }
                round = Some(at);
            } else if old.equals(&self.path.state) {
                return Err(Problem::InfiniteLoop);
            }
            if self.trail.miss(at, calls_back) {
                index += 1;
            } else {
                listed.remove(index);
            }
        }
        self.at[pc] = listed;
        if spared {
            return Ok(false);
        }
        if let Some(at) = round {
            let exact = self.trail.needs(at).exact;
            if let Some(old) = self.trail.state(at) {
                self.path.state.widen(old, exact);
            }
        }
        if let Some(at) = other.filter(|_| self.joins) {
            let needs = self.trail.needs(at);
            if let Some(old) = self.trail.state(at) {
                self.path.state.join(old, &needs);
            }
        }
        // Long loops without forks need few checkpoints; their number stays about the root of that
        // of the steps.
        let depth = self.path.since.map_or(0, |at| self.trail.depth(at));
        let due = other.is_some() && self.joins
            || self.path.steps >= SPACING + depth / 8
            || self.path.forked && self.path.steps >= SPACING / 2;
        if calls_back || due || self.path.since.is_none() {
            self.checkpoint(pc)?;
        }
        Ok(true)
    }

    fn checkpoint(&mut self, pc: usize) -> Result<(), Problem> {
        let path = &mut self.path;
        let at = self.trail.add(path.state.clone(), path.since, path.written).ok_or(Problem::TooManyPaths)?;
        self.at[pc].push(at);
        (path.since, path.written, path.steps, path.forked) = (Some(at), Written::default(), 0, false);
        for (index, frame) in path.state.frames.iter_mut().enumerate() {
            for (reg, value) in frame.regs.iter_mut().enumerate() {
                value.origin = if value.is_number() { bit(index, reg) } else { 0 };
            }
            frame.stack.iter_mut().for_each(|slot| slot.value.origin = 0);
        }
        Ok(())
    }

    /// Notes that what the path has is needed, as far as `needs` says.
    fn need(&mut self, needs: &Needs) {
        let Path { state, since, written, .. } = &self.path;
        for (index, frame) in state.frames.iter().enumerate() {
            for (reg, value) in frame.regs.iter().enumerate() {
                let bit = bit(index, reg);
                if needs.regs & bit != 0 && value.is_initialised() {
                    self.trail.read_reg(*since, written, index, reg);
                }
                if needs.exact & bit != 0 {
                    self.trail.exact(*since, value.origin);
                }
            }
            for (slot, content) in frame.stack.iter().enumerate() {
                if needs.slots[index] >> slot & 1 == 1 {
                    self.trail.exact(*since, content.value.origin);
                    self.trail.read_slot(*since, written, index, slot);
                }
            }
        }
    }

    /// A name for values that are the same.
    pub fn fresh_id(&mut self) -> u32 {
        self.ids += 1;
        self.ids
    }

    /// Index of the current frame.
    pub fn top(&self) -> usize {
        self.path.state.frames.len() - 1
    }

    /// Content of a register of the current frame that has been written.
    pub fn read(&mut self, reg: Reg) -> Result<Value, Problem> {
        let top = self.top();
        let value = self.path.state.frames[top].regs[reg.index()];
        match value.kind {
            Kind::Uninit => return Err(Problem::Uninit(reg)),
            Kind::Clobbered => return Err(Problem::Clobbered(reg)),
            Kind::Released => return Err(Problem::Released(reg)),
            _ => {}
        }
        self.trail.read_reg(self.path.since, &self.path.written, top, reg.index());
        Ok(value)
    }

    /// Sets a register of the current frame.
    pub fn write(&mut self, reg: Reg, value: Value) -> Result<(), Problem> {
        if reg == Reg::R10 {
            return Err(Problem::FramePointer);
        }
        let top = self.top();
        self.set(top, reg.index(), value);
        Ok(())
    }

    fn set(&mut self, frame: usize, reg: usize, value: Value) {
        self.path.state.frames[frame].regs[reg] = value;
        self.path.written.regs |= bit(frame, reg);
    }

    /// What calls do not preserve.
    pub fn clobber(&mut self) {
        let top = self.top();
        (0..=5).for_each(|reg| self.set(top, reg, Value::CLOBBERED));
    }

    /// The number of this value decides a branch, an offset or a length.
    pub fn exact(&mut self, value: &Value) {
        self.trail.exact(self.path.since, value.origin);
    }

    /// A slot of the stack is read.
    pub fn read_slot(&mut self, frame: usize, slot: usize) {
        self.trail.read_slot(self.path.since, &self.path.written, frame, slot);
    }

    /// All bytes of a slot of the stack are written.
    pub fn wrote_slot(&mut self, frame: usize, slot: usize) {
        self.path.written.slots[frame] |= 1 << slot;
    }

    /// Notes that the current path goes on at `pc`, too, with a state that `change` makes of the
    /// current one.
    pub fn fork(
        &mut self,
        pc: usize,
        change: impl FnOnce(&mut Walk<'a>) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        if self.open.len() >= MAX_OPEN {
            return Err(Problem::TooManyPaths);
        }
        self.path.forked = true;
        let stays = self.path.clone();
        self.path.pc = pc;
        change(self)?;
        let other = std::mem::replace(&mut self.path, stays);
        if let Some(at) = other.since {
            self.trail.open(at);
        }
        self.open.push(other);
        Ok(())
    }

    /// Enters a function: a frame with the arguments of the current one.
    pub fn enter(&mut self, function: usize, call: usize) -> Result<(), Problem> {
        let index = self.path.state.frames.len();
        if index == super::value::MAX_FRAMES {
            return Err(Problem::TooDeep);
        }
        let mut frame = Frame::new(index, function, call);
        frame.regs[1..=5].copy_from_slice(&self.path.state.frame().regs[1..=5]);
        self.facts.context_escapes |= frame.regs[1..=5].iter().any(|v| v.kind == Kind::Context);
        self.path.state.frames.push(frame);
        let written = &mut self.path.written;
        written.slots[index] = u64::MAX;
        for reg in 0..=10 {
            // An argument is read where the callee reads it, not by the call.
            let passed = (1..=5).contains(&reg) && written.regs & bit(index - 1, reg) == 0;
            let bit = bit(index, reg);
            written.regs = if passed { written.regs & !bit } else { written.regs | bit };
        }
        Ok(())
    }

    /// Enters a callback with these first arguments.
    pub fn enter_callback(&mut self, function: usize, call: usize, args: [Value; 2]) -> Result<(), Problem> {
        self.enter(function, call)?;
        let top = self.top();
        for reg in 1..=5 {
            self.set(top, reg, args.get(reg - 1).copied().unwrap_or(Value::UNINIT));
        }
        self.path.state.rounds += 1;
        let references = self.path.state.references.clone();
        self.path.state.frame_mut().callback = Some(references);
        Ok(())
    }

    /// Leaves the current frame, and returns it.
    pub fn leave(&mut self) -> Option<Frame> {
        self.path.state.frames.pop()
    }

    /// Takes something that has to be given back.
    pub fn take_reference(&mut self, taken: usize) -> u32 {
        let id = self.fresh_id();
        self.path.state.references.push(Reference { id, taken });
        id
    }

    /// The function that a slot is in, as an index.
    pub fn function_index(&self, start: usize) -> usize {
        self.code.starts.partition_point(|s| *s < start)
    }

    /// Whether `imm` is an index of a map.
    pub fn map_index(&self, imm: u32) -> Result<usize, Problem> {
        let index = imm as usize;
        if index < self.rules.maps.len() { Ok(index) } else { Err(Problem::NoMap(imm)) }
    }
}

/// The address of a function of the program.
pub(super) fn function_target(pc: usize, insn: &Insn) -> Option<usize> {
    match *insn {
        Insn::CallLocal(off) | Insn::LoadImm64 { imm: Imm64::Func(off), .. } => Some(Code::target(pc, off)),
        _ => None,
    }
}
