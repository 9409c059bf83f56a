//! Which machine register stands for which register of the program, and the frame.

use sidestep_isa::a64::emit::Reg as Machine;

use super::Step;
use crate::insn::{Imm64, Insn, Operand, Reg};
use crate::native::Env;
use crate::native::intrinsic;

/// Bytes of a slot of the frame; two make the stack pointer a multiple of 16.
const WORD: i64 = 8;

/// A register that exists.
pub const fn x(number: u8) -> Machine {
    match Machine::x(number) {
        Some(machine) => machine,
        None => Machine::ZERO,
    }
}

/// What is in between, and never more than one instruction of the program. `x16` and `x17` belong
/// to nobody; `x18` may be the platform's.
pub const SCRATCH: [Machine; 4] = [x(16), x(17), x(14), x(15)];

/// Where results of functions are, and their first argument.
pub const RESULT: Machine = x(0);

/// What a function uses.
#[derive(Default)]
pub struct Usage {
    registers: u16,
    /// It calls helpers.
    pub helpers: bool,
    /// It calls anything.
    pub calls: bool,
    /// It needs the address of the thread's memory.
    pub cells: bool,
    /// `r10` is more than the base of a memory operand.
    frame_escapes: bool,
    /// Lowest offset from `r10` in memory operands.
    lowest: i64,
}

impl Usage {
    pub fn of(steps: &[Step], env: &Env) -> Usage {
        let mut usage = Usage::default();
        steps.iter().for_each(|step| usage.add(&step.insn, env));
        usage
    }

    fn uses(&self, reg: Reg) -> bool {
        self.registers & 1 << reg.number() != 0
    }

    fn reg(&mut self, reg: Reg) {
        self.registers |= 1 << reg.number();
    }

    fn value(&mut self, operand: Operand) {
        if let Operand::Reg(reg) = operand {
            self.reg(reg);
            self.frame_escapes |= reg == Reg::R10;
        }
    }

    fn memory(&mut self, base: Reg, off: i16) {
        self.reg(base);
        if base == Reg::R10 {
            self.lowest = self.lowest.min(off.into());
        }
    }

    fn add(&mut self, insn: &Insn, env: &Env) {
        match *insn {
            Insn::Alu { dst, src, .. } => {
                self.reg(dst);
                self.value(src);
            }
            Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => self.reg(dst),
            Insn::LoadImm64 { dst, imm } => {
                self.reg(dst);
                self.cells |= matches!(imm, Imm64::Thread(_));
            }
            Insn::MovSx { dst, src, .. } => {
                self.reg(dst);
                self.value(Operand::Reg(src));
            }
            Insn::Load { dst, base, off, .. } => {
                self.reg(dst);
                self.memory(base, off);
            }
            Insn::Store { base, off, src, .. } => {
                self.memory(base, off);
                self.value(src);
            }
            Insn::Atomic { base, off, src, .. } => {
                self.memory(base, off);
                self.reg(src);
            }
            Insn::Branch { dst, src, .. } => {
                self.value(Operand::Reg(dst));
                self.value(src);
            }
            Insn::CallHelper(number) => {
                let called = intrinsic::find(env, number).is_none();
                self.calls |= called;
                self.helpers |= called;
            }
            Insn::CallLocal(_) => self.calls = true,
            Insn::Goto { .. } | Insn::Exit => {}
        }
    }
}

/// The machine registers of a function, and what it has on the stack.
pub struct Frame {
    map: [Machine; Reg::COUNT],
    /// Where the table is.
    pub table: Machine,
    /// Stored behind `x29` and `x30`, in this order; none in a function that calls nothing.
    pub saved: Vec<Machine>,
    /// It has `x29` and `x30` on the stack.
    pub links: bool,
    /// Bytes for the stack of the program: `r10` is `sp` plus this.
    pub program: i64,
}

impl Frame {
    pub fn new(usage: &Usage, stack: u16) -> Frame {
        let kept = if usage.calls { [x(19), x(20), x(21), x(22)] } else { [x(8), x(9), x(10), x(11)] };
        let map = [x(7), x(0), x(1), x(2), x(3), x(4), kept[0], kept[1], kept[2], kept[3], Machine::SP];
        let table = if usage.calls { x(23) } else { x(5) };
        let mut saved = Vec::new();
        if usage.calls {
            saved.extend(Reg::all().skip(6).take(4).filter(|reg| usage.uses(*reg)).map(|reg| map[reg.index()]));
            saved.push(table);
        }
        let used = if usage.frame_escapes { i64::from(stack).max(-usage.lowest) } else { -usage.lowest };
        Frame { map, table, saved, links: usage.calls, program: (used + 15) & !15 }
    }

    /// The machine register of one other than `r10`.
    pub fn of(&self, reg: Reg) -> Machine {
        self.map[reg.index()]
    }

    /// Bytes for the saved registers.
    pub fn links_len(&self) -> i64 {
        if self.links { (WORD * (2 + self.saved.len() as i64) + 15) & !15 } else { 0 }
    }

    /// Bytes below the `sp` that the function is entered with.
    pub fn stack(&self) -> usize {
        (self.links_len() + self.program) as usize
    }
}
