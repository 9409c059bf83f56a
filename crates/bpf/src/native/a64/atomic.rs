//! Atomic operations: loops of an exclusive load and an exclusive store, as in the kernel's
//! `arch/arm64/include/asm/atomic_ll_sc.h`. Those that give the old value order all memory around
//! them where other threads see it.

use sidestep_isa::a64::emit::{
    self as word, Barrier, Cond as Condition, Reg as Machine, Size as Bytes, dmb, ldxr, stlxr, stxr,
};

use super::Step;
use super::allocate::SCRATCH;
use super::lower::Lower;
use crate::insn::{AtomicOp, Cond, Reg, Width};

impl Lower<'_> {
    /// `src` is not `r10`.
    pub fn atomic(&mut self, step: &Step, width: Width, op: AtomicOp, place: (Reg, i16), src: Reg) {
        let [at, old, new, status] = SCRATCH;
        let base = match self.memory(place.0, place.1) {
            (base, 0) if base != Machine::SP => base,
            (base, distance) => {
                self.emit.sum(at, base, distance);
                at
            }
        };
        let operand = self.of(src);
        let size = if width == Width::W64 { Bytes::Double } else { Bytes::Word };
        let ordered = op.result(src).is_some() && !step.local;
        let (again, done) = (self.emit.asm.label(), self.emit.asm.label());
        self.emit.asm.bind(again);
        self.emit.push(old, ldxr(size, old, base));
        let value = match op {
            AtomicOp::Add { .. } => Some(word::add(new, old, operand)),
            AtomicOp::Or { .. } => Some(word::orr(new, old, operand)),
            AtomicOp::And { .. } => Some(word::and(new, old, operand)),
            AtomicOp::Xor { .. } => Some(word::eor(new, old, operand)),
            AtomicOp::Xchg => None,
            AtomicOp::Cmpxchg => {
                let expected = self.of(Reg::R0);
                self.emit.compare(width, Cond::Eq, old, expected);
                self.emit.asm.b_cond(Condition::Ne, done);
                None
            }
        };
        let stored = match value {
            Some(word) => {
                self.emit.push(new, word);
                new
            }
            None => operand,
        };
        let store = if ordered { stlxr } else { stxr };
        self.emit.push(status, store(size, status, stored, base));
        self.emit.asm.cbnz(status, again);
        self.emit.asm.bind(done);
        if ordered {
            self.emit.asm.word(dmb(Barrier::All));
        }
        if let Some(result) = op.result(src) {
            let result = self.of(result);
            self.emit.push(result, word::orr(result, Machine::ZERO, old));
        }
    }
}
