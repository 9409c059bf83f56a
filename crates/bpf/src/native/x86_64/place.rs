//! Memory that is at a fixed place: the thread's own, and words of the context that are no memory
//! at a site.

use sidestep_isa::x86::emit::Reg as Machine;

use super::emit::Mem;
use super::fold::{Place, Step};
use super::lower::Lower;
use super::{CompileError, Shape};
use crate::insn::{AluOp, Operand, Reg, Size, Width};

impl Lower<'_> {
    /// The memory operand of an instruction.
    pub fn operand(&self, step: &Step, base: Reg, off: i16) -> Result<Mem, CompileError> {
        match step.place {
            Some(Place::Cells(disp)) => Ok(Mem { base: self.cells(step.at)?, disp }),
            _ => Ok(self.memory(base, off)),
        }
    }

    /// The register with the address of the thread's memory at a site.
    pub fn cells(&self, at: usize) -> Result<Machine, CompileError> {
        self.source.shape.site().and_then(|site| site.cells).ok_or(CompileError::Inline { at })
    }

    /// `dst = thread(offset) ll`
    pub fn thread(&mut self, at: usize, dst: Reg, offset: u32) -> Result<(), CompileError> {
        let disp = i32::try_from(offset).map_err(|_| CompileError::Cells { at })?;
        let dst = self.writes(dst);
        let base = if self.source.shape == Shape::Function {
            let table = match self.table_slot() {
                Some(slot) => {
                    self.emit.load(Size::Dw, false, dst, slot);
                    dst
                }
                None => Machine::R9,
            };
            self.emit.load(Size::Dw, false, dst, Mem { base: table, disp: self.source.env.cells });
            dst
        } else {
            self.cells(at)?
        };
        match disp {
            0 if base == dst => {}
            0 => self.emit.mov(Width::W64, dst, base),
            disp => self.emit.lea(dst, Mem { base, disp }),
        }
        Ok(())
    }

    /// A store to the word that the program keeps.
    pub fn keep_word(&mut self, step: &Step, src: Operand) {
        let Some(Place::Register(word, _)) = step.place else { return };
        self.changes(word);
        match src {
            Operand::Imm(value) => {
                self.flags |= value == 0;
                self.emit.mov_imm(word, i64::from(value) as u64);
            }
            Operand::Reg(reg) => {
                let value = self.right(step, reg);
                self.emit.mov(Width::W64, word, value);
            }
        }
    }

    /// A word of the context that is no memory at a site.
    pub fn load_word(&mut self, place: Place, size: Size, signed: bool, dst: Machine) {
        let source = match place {
            Place::Register(reg, 0) => reg,
            Place::Register(reg, byte) => {
                self.flags = true;
                self.emit.mov(Width::W64, dst, reg);
                self.emit.shift_imm(Width::W64, AluOp::Rsh, dst, 8 * byte);
                dst
            }
            Place::Ip(ip) => {
                self.flags = true;
                self.emit.mov_imm(dst, ip);
                dst
            }
            Place::Sp | Place::Cells(_) => {
                let sp = self.source.shape.site().map_or(0, |site| site.sp);
                self.emit.lea(dst, Mem { base: Machine::Rsp, disp: sp + self.function.frame.reserved });
                dst
            }
        };
        match size {
            Size::Dw if source == dst => {}
            Size::Dw => self.emit.mov(Width::W64, dst, source),
            _ => self.emit.extend(if signed { Width::W64 } else { Width::W32 }, signed, size, dst, source),
        }
    }
}
