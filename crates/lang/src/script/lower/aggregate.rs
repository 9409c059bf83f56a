//! `count()`, `sum(n)`, `hist(n)` and their like: each thread has its own values, which the
//! controller merges.

use sidestep_bpf::{AluOp, AtomicOp, Cond, Insn, Operand, Reg, Size, Width};

use super::super::checked::{Entry, Stat, Value};
use super::super::types::Content;
use super::{Lower, helper};
use crate::build::Label;

/// How often an extreme of all threads is tried to be set.
const TRIES: i32 = 64;

impl Lower<'_, '_> {
    pub(super) fn aggregate(&mut self, entry: &Entry, value: Option<&Value>) {
        let content = self.shared.checked.maps[entry.map].content.clone();
        let shared = self.shared.checked.maps[entry.map].shared;
        if let (Content::Tseries { .. }, Some(value)) = (&content, value) {
            return self.series(entry, value, None);
        }
        let used = self.used;
        let number = value.map(|value| {
            self.int(value);
            match content {
                Content::Hist { bits } => self.log2_bucket(bits),
                Content::Lhist { min, max, step } => self.linear_bucket(min, max, step),
                _ => {}
            }
            let at = self.stack(8);
            self.out.put(Reg::R10, at, Reg::R0);
            at
        });
        let missing = self.out.label();
        if self.is_array(entry.map) {
            let index = self.map_index(entry.map);
            self.out.map_value(Reg::R1, index, 0);
            if shared {
                self.out.put_imm(Reg::R1, content.stored() as i16, 1);
            }
        } else {
            let key = self.key(entry);
            let first = match (&content, shared) {
                (Content::Min { signed }, true) => self.first(if *signed { i64::MAX as u64 } else { u64::MAX }),
                (Content::Max { signed }, true) => self.first(if *signed { i64::MIN as u64 } else { 0 }),
                _ => 0,
            };
            self.lookup_or_insert(entry.map, key, first, missing);
            self.out.mov(Reg::R1, Reg::R0);
        }
        if let Some(at) = number {
            self.out.load(Size::Dw, Reg::R2, Reg::R10, at);
        }
        match content {
            Content::Count => self.count(0),
            Content::Sum { .. } | Content::Avg { .. } | Content::Stats { .. } => {
                self.add(0, Reg::R2);
                self.count(8);
            }
            Content::Min { signed } if shared => {
                self.shared_extreme(if signed { Cond::Slt } else { Cond::Lt }, missing)
            }
            Content::Max { signed } if shared => {
                self.shared_extreme(if signed { Cond::Sgt } else { Cond::Gt }, missing)
            }
            Content::Min { signed } => self.extreme(if signed { Cond::Slt } else { Cond::Lt }, missing),
            Content::Max { signed } => self.extreme(if signed { Cond::Sgt } else { Cond::Gt }, missing),
            Content::Hist { .. } | Content::Lhist { .. } => {
                let last = content.stored() as i32 - 8;
                self.out.alu_imm(AluOp::Lsh, Reg::R2, 3);
                // It never is beyond; that is for the verifier.
                self.out.branch_imm(Width::W64, Cond::Gt, Reg::R2, last, missing);
                self.out.alu(AluOp::Add, Reg::R1, Reg::R2);
                self.count(0);
            }
            Content::Value(_) | Content::Tseries { .. } => {}
        }
        self.out.bind(missing);
        self.release(used);
    }

    fn add(&mut self, off: i16, src: Reg) {
        let op = AtomicOp::Add { fetch: false };
        self.out.push(Insn::Atomic { width: Width::W64, op, base: Reg::R1, off, src });
    }

    fn count(&mut self, off: i16) {
        self.out.mov_imm(Reg::R3, 1);
        self.add(off, Reg::R3);
    }

    /// Which number a map's value is read as, if it is more than one.
    pub(super) fn usual(&self, map: usize) -> Option<Stat> {
        matches!(self.shared.checked.maps[map].content, Content::Avg { .. }).then_some(Stat::Average)
    }

    /// The number of a map's value at `r0`, or one of what is counted there, into `r0`.
    pub(super) fn number_at(&mut self, map: usize, stat: Option<Stat>) {
        match stat {
            None | Some(Stat::Total) => self.out.load(Size::Dw, Reg::R0, Reg::R0, 0),
            Some(Stat::Count) => self.out.load(Size::Dw, Reg::R0, Reg::R0, 8),
            Some(Stat::Average) => {
                let content = &self.shared.checked.maps[map].content;
                let signed = matches!(content, Content::Avg { signed: true } | Content::Stats { signed: true });
                let none = self.out.label();
                self.out.load(Size::Dw, Reg::R1, Reg::R0, 8);
                self.out.load(Size::Dw, Reg::R0, Reg::R0, 0);
                self.out.branch_imm(Width::W64, Cond::Eq, Reg::R1, 0, none);
                self.out.alu(if signed { AluOp::Sdiv } else { AluOp::Div }, Reg::R0, Reg::R1);
                self.out.bind(none);
            }
        }
    }

    /// What an extreme of all threads begins with: any number is better.
    fn first(&mut self, worst: u64) -> u32 {
        self.constant(&[worst.to_ne_bytes(), 1_u64.to_ne_bytes()].concat(), 16)
    }

    /// Takes the number in `r2` if it is smaller or larger than what is there. Whoever is faster
    /// has found a better one, so it is not tried for ever.
    fn shared_extreme(&mut self, better: Cond, end: Label) {
        let (again, take) = (self.out.label(), self.out.label());
        self.out.mov_imm(Reg::R4, TRIES);
        self.out.bind(again);
        self.out.load(Size::Dw, Reg::R3, Reg::R1, 0);
        self.out.branch(Width::W64, better, Reg::R2, Operand::Reg(Reg::R3), take);
        self.out.goto(end);
        self.out.bind(take);
        self.out.mov(Reg::R0, Reg::R3);
        self.out.push(Insn::Atomic { width: Width::W64, op: AtomicOp::Cmpxchg, base: Reg::R1, off: 0, src: Reg::R2 });
        self.out.branch(Width::W64, Cond::Eq, Reg::R0, Operand::Reg(Reg::R3), end);
        self.out.alu_imm(AluOp::Sub, Reg::R4, 1);
        self.out.branch_imm(Width::W64, Cond::Ne, Reg::R4, 0, again);
    }

    /// Takes the number in `r2` if there is none yet, or if it is smaller or larger than what is
    /// there.
    fn extreme(&mut self, better: Cond, end: Label) {
        let take = self.out.label();
        self.out.load(Size::Dw, Reg::R3, Reg::R1, 8);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R3, 0, take);
        self.out.load(Size::Dw, Reg::R3, Reg::R1, 0);
        self.out.branch(Width::W64, better, Reg::R2, Operand::Reg(Reg::R3), take);
        self.out.goto(end);
        self.out.bind(take);
        self.out.put(Reg::R1, 0, Reg::R2);
        self.out.put_imm(Reg::R1, 8, 1);
    }

    /// The bucket of `hist(r0, bits)`: 0 for what is negative; n + 1 below 2^bits; above that by
    /// the highest bit l, minus bits, and the `bits` bits behind it.
    fn log2_bucket(&mut self, bits: u32) {
        let (negative, small, end) = (self.out.label(), self.out.label(), self.out.label());
        self.out.branch_imm(Width::W64, Cond::Slt, Reg::R0, 0, negative);
        self.out.branch_imm(Width::W64, Cond::Lt, Reg::R0, 1 << bits, small);
        self.out.mov(Reg::R7, Reg::R0);
        self.highest_bit();
        // r0 = l - bits
        self.out.alu_imm(AluOp::Sub, Reg::R0, bits as i32);
        if bits > 0 {
            self.out.alu(AluOp::Rsh, Reg::R7, Reg::R0);
            self.out.alu_imm(AluOp::And, Reg::R7, (1 << bits) - 1);
        }
        self.out.alu_imm(AluOp::Add, Reg::R0, 1);
        self.out.alu_imm(AluOp::Lsh, Reg::R0, bits as i32);
        if bits > 0 {
            self.out.alu(AluOp::Add, Reg::R0, Reg::R7);
        }
        self.out.bind(small);
        self.out.alu_imm(AluOp::Add, Reg::R0, 1);
        self.out.goto(end);
        self.out.bind(negative);
        self.out.mov_imm(Reg::R0, 0);
        self.out.bind(end);
    }

    /// The number of the highest bit of `r0`, which has one. Buckets of `hist_bucket` are 16 a
    /// power of two, and single numbers below 16.
    fn highest_bit(&mut self) {
        let (small, end) = (self.out.label(), self.out.label());
        self.out.mov(Reg::R1, Reg::R0);
        self.out.call(helper::BUCKET);
        self.out.branch_imm(Width::W64, Cond::Lt, Reg::R0, 16, small);
        self.out.alu_imm(AluOp::Rsh, Reg::R0, 4);
        self.out.alu_imm(AluOp::Add, Reg::R0, 3);
        self.out.goto(end);
        self.out.bind(small);
        // A digit for each number: 15 is 3, …, 1 is 0.
        self.out.mov(Reg::R1, Reg::R0);
        self.out.alu_imm(AluOp::Lsh, Reg::R1, 2);
        self.out.set(Reg::R0, 0x3333_3333_2222_1100);
        self.out.alu(AluOp::Rsh, Reg::R0, Reg::R1);
        self.out.alu_imm(AluOp::And, Reg::R0, 15);
        self.out.bind(end);
    }

    /// The bucket of `lhist(r0, min, max, step)`.
    fn linear_bucket(&mut self, min: i64, max: i64, step: i64) {
        let (below, above, end) = (self.out.label(), self.out.label(), self.out.label());
        self.out.set(Reg::R1, min as u64);
        self.out.branch(Width::W64, Cond::Slt, Reg::R0, Operand::Reg(Reg::R1), below);
        self.out.set(Reg::R1, max as u64);
        self.out.branch(Width::W64, Cond::Sge, Reg::R0, Operand::Reg(Reg::R1), above);
        self.out.alu_value(AluOp::Sub, Reg::R0, min as u64, Reg::R1);
        self.out.alu_value(AluOp::Div, Reg::R0, step as u64, Reg::R1);
        self.out.alu_imm(AluOp::Add, Reg::R0, 1);
        self.out.goto(end);
        self.out.bind(below);
        self.out.mov_imm(Reg::R0, 0);
        self.out.goto(end);
        self.out.bind(above);
        self.out.mov_imm(Reg::R0, super::super::types::lhist_buckets(min, max, step) as i32 - 1);
        self.out.bind(end);
    }
}
