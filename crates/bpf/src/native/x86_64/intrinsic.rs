//! Helpers that are a few instructions instead of a call.

use sidestep_isa::x86::emit::Reg as Machine;

use super::Clock;
use super::emit::Mem;
use super::fold::Step;
use super::lower::Lower;
use crate::insn::{AluOp, Reg, Size, Width};
use crate::pass::live;

pub use crate::native::intrinsic::{Intrinsic, find};

impl Lower<'_> {
    pub fn intrinsic(&mut self, step: &Step, intrinsic: Intrinsic) {
        if step.live & live::bit(Reg::R0) == 0 && !matches!(intrinsic, Intrinsic::Clock(Clock { stamp: Some(_), .. })) {
            return;
        }
        let dst = self.of(Reg::R0);
        self.changes(dst);
        self.flags = true;
        match intrinsic {
            Intrinsic::Constant(value) => self.emit.mov_imm(dst, value),
            Intrinsic::Bucket => self.bucket(step, dst),
            Intrinsic::Clock(clock) => self.clock(step, dst, clock),
        }
    }

    /// Whether a register that is changed must be kept: it holds something that is needed later.
    fn needed(&self, step: &Step, machine: Machine) -> bool {
        self.is_reserved(machine)
            || Reg::all().any(|reg| {
                reg != Reg::R0 && reg != Reg::R10 && step.live & live::bit(reg) != 0 && self.stands_for(machine, reg)
            })
    }

    fn keep(&mut self, step: &Step, machine: Machine, dst: Machine, scratch: usize) -> Option<(Machine, Machine)> {
        let kept = self.scratch(scratch);
        // Cheaper than a save in the detour.
        let dead = self.source.shape.site().map_or(0, |site| site.dead);
        let spare = dead & machine.bit() == 0 && dead & kept.bit() != 0;
        if machine == dst || !self.needed(step, machine) && !spare {
            self.changes(machine);
            return None;
        }
        self.changes(kept);
        self.emit.mov(Width::W64, kept, machine);
        Some((machine, kept))
    }

    /// `Histogram::bucket` of `sidestep-wire`: 16 buckets an octave. With the highest bit of
    /// `value | 16` at `4 + o`, that is `16 * o + (value >> o)`.
    fn bucket(&mut self, step: &Step, dst: Machine) {
        let (value, count) = (self.scratch(0), Machine::Rcx);
        let from = step.right.unwrap_or_else(|| self.of(Reg::R1));
        self.changes(value);
        self.emit.mov(Width::W64, value, from);
        let kept = self.keep(step, count, dst, 1);
        self.emit.mov(Width::W64, count, value);
        self.emit.alu_imm(Width::W64, AluOp::Or, count, 16);
        // bsr
        self.emit.registers(true, &[0x0f, 0xbd], count as u8, count);
        self.emit.alu_imm(Width::W32, AluOp::Sub, count, 4);
        self.emit.shift(Width::W64, AluOp::Rsh, value);
        self.emit.shift_imm(Width::W32, AluOp::Lsh, count, 4);
        self.emit.alu(Width::W32, AluOp::Add, value, count);
        if let Some((machine, kept)) = kept {
            self.emit.mov(Width::W64, machine, kept);
        }
        self.emit.mov(Width::W32, dst, value);
    }

    /// Nanoseconds of the monotonic clock from the time stamp counter.
    fn clock(&mut self, step: &Step, dst: Machine, clock: Clock) {
        let (ax, dx) = (Machine::Rax, Machine::Rdx);
        let kept = [self.keep(step, ax, dst, 0), self.keep(step, dx, dst, 1)];
        // rdtsc
        self.emit.raw(&[0x0f, 0x31]);
        self.emit.shift_imm(Width::W64, AluOp::Lsh, dx, 32);
        self.emit.alu(Width::W64, AluOp::Or, ax, dx);
        self.emit.mov_imm(dx, clock.mult);
        // mul rdx
        self.emit.registers(true, &[0xf7], 4, dx);
        match clock.shift {
            0 => {}
            shift @ 1..64 => {
                // shrd rax, rdx, shift
                self.emit.registers(true, &[0x0f, 0xac], dx as u8, ax);
                self.emit.raw(&[shift]);
            }
            shift => {
                self.emit.mov(Width::W64, ax, dx);
                self.emit.shift_imm(Width::W64, AluOp::Rsh, ax, (shift - 64).min(63));
            }
        }
        self.emit.mov_imm(dx, clock.base);
        self.emit.alu(Width::W64, AluOp::Add, ax, dx);
        if let (Some(stamp), true) = (clock.stamp, self.stamps()) {
            let table = match self.table_slot() {
                Some(slot) => {
                    self.emit.load(Size::Dw, false, dx, slot);
                    dx
                }
                None => Machine::R9,
            };
            self.emit.store(Size::Dw, Mem { base: table, disp: stamp }, ax);
        }
        if dst != ax {
            self.emit.mov(Width::W64, dst, ax);
        }
        for (machine, kept) in kept.into_iter().flatten() {
            self.emit.mov(Width::W64, machine, kept);
        }
    }
}
