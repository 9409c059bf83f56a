//! Atomic operations.

use sidestep_isa::x86::emit::Reg as Machine;

use super::emit::{JNE, Mem};
use super::fold::Step;
use super::lower::Lower;
use crate::insn::{AluOp, AtomicOp, Reg, Width};

/// Whether x86 has no instruction that does it and gives the old value.
pub fn is_loop(op: AtomicOp) -> bool {
    matches!(op, AtomicOp::Or { fetch: true } | AtomicOp::And { fetch: true } | AtomicOp::Xor { fetch: true })
}

/// The operation, if it gives nothing back.
fn arithmetic(op: AtomicOp) -> Option<AluOp> {
    match op {
        AtomicOp::Add { fetch: false } => Some(AluOp::Add),
        AtomicOp::Or { fetch: false } => Some(AluOp::Or),
        AtomicOp::And { fetch: false } => Some(AluOp::And),
        AtomicOp::Xor { fetch: false } => Some(AluOp::Xor),
        _ => None,
    }
}

impl Lower<'_> {
    /// `src` is not `r10`. Without `lock` where no other thread touches the memory: one instruction
    /// is whole for signals.
    pub fn atomic(&mut self, step: &Step, width: Width, op: AtomicOp, mem: Mem, src: Reg) {
        let lock = !step.local;
        if let (Some(imm), Some(op)) = (step.imm, arithmetic(op)) {
            return self.emit.memory_imm(lock, width, op, mem, imm);
        }
        let src = step.right.unwrap_or_else(|| self.of(src));
        let opcode: &[u8] = match op {
            AtomicOp::Add { fetch: false } => &[0x01],
            AtomicOp::Or { fetch: false } => &[0x09],
            AtomicOp::And { fetch: false } => &[0x21],
            AtomicOp::Xor { fetch: false } => &[0x31],
            AtomicOp::Add { fetch: true } => {
                self.changes(src);
                &[0x0f, 0xc1]
            }
            AtomicOp::Xchg => {
                self.changes(src);
                // Locked without the prefix.
                return self.emit.memory(width == Width::W64, &[0x87], src as u8, mem, false);
            }
            AtomicOp::Cmpxchg => {
                self.changes(Machine::Rax);
                self.emit.atomic(lock, width, &[0x0f, 0xb1], mem, src);
                // If they were equal, the upper half is still there.
                return self.truncate(width, Machine::Rax);
            }
            AtomicOp::Or { .. } => return self.fetch(lock, width, AluOp::Or, mem, src),
            AtomicOp::And { .. } => return self.fetch(lock, width, AluOp::And, mem, src),
            AtomicOp::Xor { .. } => return self.fetch(lock, width, AluOp::Xor, mem, src),
        };
        self.emit.atomic(lock, width, opcode, mem, src);
    }

    /// A loop around `cmpxchg`, which wants the old value in `rax`.
    fn fetch(&mut self, lock: bool, width: Width, op: AluOp, mut mem: Mem, src: Machine) {
        let (ax, new, kept) = (Machine::Rax, self.scratch(0), self.scratch(1));
        let keep = self.taken(ax);
        let mut operand = src;
        for reg in [ax, new, src] {
            self.changes(reg);
        }
        if keep {
            self.changes(kept);
            self.emit.mov(Width::W64, kept, ax);
            for reg in [&mut mem.base, &mut operand] {
                if *reg == ax {
                    *reg = kept;
                }
            }
        }
        self.emit.load(width.size(), false, ax, mem);
        let again = self.emit.bytes.len();
        self.emit.mov(width, new, ax);
        self.emit.alu(width, op, new, operand);
        self.emit.atomic(lock, width, &[0x0f, 0xb1], mem, new);
        let back = again as isize - (self.emit.bytes.len() as isize + 2);
        self.emit.raw(&[0x70 | JNE, back as i8 as u8]);
        if src != ax {
            self.emit.mov(width, src, ax);
            if keep {
                self.emit.mov(Width::W64, ax, kept);
            }
        }
    }
}
