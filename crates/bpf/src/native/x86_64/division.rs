//! Division and shifts by a register: x86 does them in `rax`, `rdx` and `rcx` only.

use sidestep_isa::x86::emit::Reg as Machine;

use super::emit::JNE;
use super::fold::Step;
use super::lower::Lower;
use crate::insn::{AluOp, Operand, Width};

impl Lower<'_> {
    /// `dst op= src` for shifts. Count modulo width: as the CPU does it.
    pub fn shift(&mut self, step: &Step, width: Width, op: AluOp, dst: Machine, src: Operand) {
        self.changes(dst);
        let src = match src {
            Operand::Imm(imm) => {
                return match imm as u32 & (width.bits() - 1) {
                    0 => self.truncate(width, dst),
                    by => self.emit.shift_imm(width, op, dst, by as u8),
                };
            }
            Operand::Reg(src) => step.right.unwrap_or_else(|| self.of(src)),
        };
        let (count, scratch) = (Machine::Rcx, self.scratch(0));
        if src == count {
            return self.emit.shift(width, op, dst);
        }
        self.changes(count);
        if dst == count {
            self.changes(scratch);
            self.emit.mov(Width::W64, scratch, dst);
            self.emit.mov(Width::W32, count, src);
            self.emit.shift(width, op, scratch);
            self.emit.mov(Width::W64, dst, scratch);
        } else if self.taken(count) {
            self.changes(scratch);
            self.emit.mov(Width::W64, scratch, count);
            self.emit.mov(Width::W32, count, src);
            self.emit.shift(width, op, dst);
            self.emit.mov(Width::W64, count, scratch);
        } else {
            self.emit.mov(Width::W32, count, src);
            self.emit.shift(width, op, dst);
        }
    }

    /// `dst op= src` for divisions and remainders.
    pub fn divide(&mut self, step: &Step, width: Width, op: AluOp, dst: Machine, src: Operand) {
        self.changes(dst);
        match src {
            Operand::Imm(imm) => self.divide_by_imm(width, op, dst, imm),
            Operand::Reg(src) => {
                let src = step.right.unwrap_or_else(|| self.of(src));
                let quotient = matches!(op, AluOp::Div | AluOp::Sdiv);
                self.emit.test(width, src, src);
                let not_zero = self.emit.skip_if(JNE);
                if quotient {
                    self.emit.mov_imm(dst, 0)
                } else {
                    self.truncate(width, dst)
                }
                let mut ends = vec![self.emit.skip()];
                self.emit.land(not_zero);
                if matches!(op, AluOp::Sdiv | AluOp::Smod) {
                    // The CPU traps on MIN / -1.
                    self.emit.cmp_imm(width, src, -1);
                    let not_minus_one = self.emit.skip_if(JNE);
                    if quotient {
                        self.emit.neg(width, dst)
                    } else {
                        self.emit.mov_imm(dst, 0)
                    }
                    ends.push(self.emit.skip());
                    self.emit.land(not_minus_one);
                }
                self.divide_nonzero(width, op, dst, Divisor::Reg(src));
                for end in ends {
                    self.emit.land(end);
                }
            }
        }
    }

    fn divide_by_imm(&mut self, width: Width, op: AluOp, dst: Machine, imm: i32) {
        let value = if width == Width::W64 { i64::from(imm) as u64 } else { u64::from(imm as u32) };
        match (op, imm) {
            (AluOp::Div | AluOp::Sdiv, 0) | (AluOp::Smod, 1 | -1) => self.emit.mov_imm(dst, 0),
            (AluOp::Mod | AluOp::Smod, 0) | (AluOp::Sdiv, 1) => self.truncate(width, dst),
            (AluOp::Sdiv, -1) => self.emit.neg(width, dst),
            (AluOp::Div, _) if value.is_power_of_two() => match value.trailing_zeros() as u8 {
                0 => self.truncate(width, dst),
                by => self.emit.shift_imm(width, AluOp::Rsh, dst, by),
            },
            (AluOp::Mod, _) if value.is_power_of_two() => {
                self.emit.alu_imm(width, AluOp::And, dst, imm.wrapping_sub(1));
            }
            _ => self.divide_nonzero(width, op, dst, Divisor::Value(value)),
        }
    }

    /// The division itself. What `rax` and `rdx` stand for is kept in scratch registers meanwhile.
    fn divide_nonzero(&mut self, width: Width, op: AluOp, dst: Machine, divisor: Divisor) {
        let (ax, dx) = (Machine::Rax, Machine::Rdx);
        let (kept_ax, kept_dx) = (self.scratch(0), self.scratch(1));
        let signed = matches!(op, AluOp::Sdiv | AluOp::Smod);
        let keep_ax = self.taken(ax) && (dst != ax || divisor.is(ax));
        let keep_dx = self.taken(dx) && (dst != dx || divisor.is(dx));
        for (machine, kept, keep) in [(ax, kept_ax, keep_ax), (dx, kept_dx, keep_dx)] {
            self.changes(machine);
            if keep {
                self.changes(kept);
                self.emit.mov(Width::W64, kept, machine);
            }
        }
        if dst != ax {
            self.emit.mov(Width::W64, ax, dst);
        }
        let by = match divisor {
            Divisor::Reg(reg) if reg == ax => kept_ax,
            Divisor::Reg(reg) if reg == dx => kept_dx,
            Divisor::Reg(reg) => reg,
            // The dividend's place is free now; if that is rax or rdx, nothing was kept of it.
            Divisor::Value(value) => {
                let place = if dst == ax {
                    kept_ax
                } else if dst == dx {
                    kept_dx
                } else {
                    dst
                };
                self.changes(place);
                self.emit.mov_imm(place, value);
                place
            }
        };
        if signed {
            self.emit.sign_to_dx(width)
        } else {
            self.emit.mov_imm(dx, 0)
        }
        self.emit.div(width, signed, by);
        let result = if matches!(op, AluOp::Div | AluOp::Sdiv) { ax } else { dx };
        if result != dst {
            self.emit.mov(width, dst, result);
        }
        if keep_ax && dst != ax {
            self.emit.mov(Width::W64, ax, kept_ax);
        }
        if keep_dx && dst != dx {
            self.emit.mov(Width::W64, dx, kept_dx);
        }
    }

    /// Zero-extends what an operation of 32 bits leaves as it is.
    pub fn truncate(&mut self, width: Width, dst: Machine) {
        if width == Width::W32 {
            self.emit.mov(Width::W32, dst, dst);
        }
    }
}

#[derive(Clone, Copy)]
enum Divisor {
    Reg(Machine),
    Value(u64),
}

impl Divisor {
    fn is(self, machine: Machine) -> bool {
        matches!(self, Divisor::Reg(reg) if reg == machine)
    }
}
