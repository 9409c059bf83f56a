//! `tseries`: of each thread and key, as many intervals as are kept, in a ring. What is there of an
//! interval that is over for long is overwritten by the one that has its place now.

use sidestep_bpf::{AluOp, AtomicOp, Cond, Insn, Operand, Reg, Size, Width};

use super::super::checked::{Entry, Value};
use super::super::types::{Content, INTERVAL, Merge};
use super::{Lower, helper};

/// Where in an interval its value is, and what tells how many there were, or when the last one
/// came.
const VALUE: i16 = 8;
const STAMP: i16 = 16;

impl Lower<'_, '_> {
    /// The value of a moment: of now, unless `clock` says when.
    pub(super) fn series(&mut self, entry: &Entry, value: &Value, clock: Option<&Value>) {
        let content = self.shared.checked.maps[entry.map].content.clone();
        let Content::Tseries { interval, intervals, merge, signed } = content else { return };
        let used = self.used;
        let (number, now, missing) = (self.stack(8), self.stack(8), self.out.label());
        self.int(value);
        self.out.put(Reg::R10, number, Reg::R0);
        match clock {
            Some(clock) => self.int(clock),
            None => {
                self.out.call(helper::NSECS);
                let since = self.shared.clock.since_1970;
                self.out.alu_value(AluOp::Add, Reg::R0, since, Reg::R1);
            }
        }
        self.out.put(Reg::R10, now, Reg::R0);
        let key = self.key(entry);
        self.lookup_or_insert(entry.map, key, 0, missing);
        self.out.mov(Reg::R1, Reg::R0);
        // Which interval, and where it is in the ring.
        self.out.load(Size::Dw, Reg::R3, Reg::R10, now);
        self.out.mov(Reg::R4, Reg::R3);
        self.out.alu_value(AluOp::Div, Reg::R4, interval, Reg::R5);
        self.out.mov(Reg::R2, Reg::R4);
        self.out.alu_imm(AluOp::Mod, Reg::R2, intervals as i32);
        self.out.alu_imm(AluOp::Mul, Reg::R2, INTERVAL as i32);
        // It never is beyond; that is for the verifier.
        let last = content.stored() - INTERVAL;
        self.out.branch_imm(Width::W64, Cond::Gt, Reg::R2, last as i32, missing);
        self.out.alu(AluOp::Add, Reg::R1, Reg::R2);
        // The number behind it: 0 stands for no interval.
        self.out.alu_imm(AluOp::Add, Reg::R4, 1);
        self.out.load(Size::Dw, Reg::R2, Reg::R10, number);
        let (same, end) = (self.out.label(), self.out.label());
        self.out.load(Size::Dw, Reg::R0, Reg::R1, 0);
        self.out.branch(Width::W64, Cond::Eq, Reg::R0, Operand::Reg(Reg::R4), same);
        // Whoever reads meanwhile sees no interval.
        self.out.put_imm(Reg::R1, 0, 0);
        self.out.put(Reg::R1, VALUE, Reg::R2);
        match merge {
            Merge::Last => self.out.put(Reg::R1, STAMP, Reg::R3),
            _ => self.out.put_imm(Reg::R1, STAMP, 1),
        }
        self.out.put(Reg::R1, 0, Reg::R4);
        self.out.goto(end);
        self.out.bind(same);
        match merge {
            Merge::Last => {
                self.out.put(Reg::R1, VALUE, Reg::R2);
                self.out.put(Reg::R1, STAMP, Reg::R3);
            }
            Merge::Avg | Merge::Sum => {
                let op = AtomicOp::Add { fetch: false };
                self.out.push(Insn::Atomic { width: Width::W64, op, base: Reg::R1, off: VALUE, src: Reg::R2 });
                self.out.mov_imm(Reg::R3, 1);
                self.out.push(Insn::Atomic { width: Width::W64, op, base: Reg::R1, off: STAMP, src: Reg::R3 });
            }
            Merge::Min | Merge::Max => {
                let worse = match (merge, signed) {
                    (Merge::Min, true) => Cond::Sge,
                    (Merge::Min, false) => Cond::Ge,
                    (_, true) => Cond::Sle,
                    (_, false) => Cond::Le,
                };
                self.out.load(Size::Dw, Reg::R0, Reg::R1, VALUE);
                self.out.branch(Width::W64, worse, Reg::R2, Operand::Reg(Reg::R0), end);
                self.out.put(Reg::R1, VALUE, Reg::R2);
            }
        }
        self.out.bind(end);
        self.out.bind(missing);
        self.release(used);
    }
}
