//! Helpers that are a few instructions instead of a call.

use sidestep_isa::a64::emit::{self as word, system};

use super::allocate::SCRATCH;
use super::lower::Lower;
use crate::insn::{AluOp, Reg, Size, Width};
use crate::native::Clock;
use crate::native::intrinsic::Intrinsic;

impl Lower<'_> {
    pub fn intrinsic(&mut self, intrinsic: Intrinsic) {
        match intrinsic {
            Intrinsic::Constant(value) => {
                let to = self.of(Reg::R0);
                self.emit.constant(to, value);
            }
            Intrinsic::Bucket => self.bucket(),
            Intrinsic::Clock(clock) => self.clock(clock),
        }
    }

    /// `Histogram::bucket` of `sidestep-wire`: 16 buckets an octave. With the highest bit of
    /// `value | 16` at `4 + o`, that is `16 * o + (value >> o)`.
    fn bucket(&mut self) {
        let (value, to, octave) = (self.of(Reg::R1), self.of(Reg::R0), SCRATCH[0]);
        self.emit.push(octave, word::orr_mask(octave, value, 16));
        self.emit.push(octave, word::clz(octave, octave));
        // 59 - n, for n of 0 to 59.
        self.emit.constant(SCRATCH[1], 59);
        self.emit.push(octave, word::sub(octave, SCRATCH[1], octave));
        self.emit.push(to, word::lsr(to, value, octave));
        self.emit.push(to, word::narrow(word::add_shifted(to, to, octave, 4)));
    }

    /// Nanoseconds of the monotonic clock from the counter of time.
    fn clock(&mut self, clock: Clock) {
        let ([factor, high, ..], to) = (SCRATCH, self.of(Reg::R0));
        self.emit.push(to, word::mrs(to, system::CNTVCT_EL0));
        self.emit.constant(factor, clock.mult);
        if clock.shift != 0 {
            self.emit.push(high, word::umulh(high, to, factor));
        }
        self.emit.push(to, word::mul(to, to, factor));
        match clock.shift {
            0 => {}
            shift @ 1..64 => self.emit.push(to, word::extr(to, high, to, shift.into())),
            shift => {
                self.emit.mov(Width::W64, to, high);
                self.emit.alu_imm(Width::W64, AluOp::Rsh, to, (i32::from(shift) - 64).min(63), [factor, high]);
            }
        }
        self.emit.constant(factor, clock.base);
        self.emit.push(to, word::add(to, to, factor));
        if let Some(stamp) = clock.stamp {
            let table = self.table();
            self.emit.store(Size::Dw, factor, (table, stamp.into()), to);
        }
    }
}
