//! Which machine register stands for which register of the program, and the frame.

use sidestep_isa::RegisterSet;
use sidestep_isa::x86::emit::Reg as Machine;

use super::emit::Mem;
use super::fold::{Place, Step};
use super::intrinsic;
use super::{CompileError, Env, Shape};
use crate::insn::{AluOp, AtomicOp, Imm64, Insn, Operand, Reg};
use crate::pass::live;

/// Saved by the callee in the System V ABI.
pub const CALLEE_SAVED: [Machine; 6] =
    [Machine::Rbx, Machine::Rbp, Machine::R12, Machine::R13, Machine::R14, Machine::R15];
/// All others but `rsp`.
pub const CALLER_SAVED: [Machine; 9] = [
    Machine::R9,
    Machine::R10,
    Machine::R11,
    Machine::R8,
    Machine::Rsi,
    Machine::Rdi,
    Machine::Rcx,
    Machine::Rdx,
    Machine::Rax,
];
const ARGUMENTS: [Machine; 5] = [Machine::Rdi, Machine::Rsi, Machine::Rdx, Machine::Rcx, Machine::R8];
/// Instructions that have no choice use these, so they cannot hold what is in between.
const IMPLICIT: RegisterSet = 1 << Machine::Rax as u8 | 1 << Machine::Rcx as u8 | 1 << Machine::Rdx as u8;
/// The System V ABI leaves this much below `rsp` alone.
const RED_ZONE: i32 = 128;

/// What a function uses.
#[derive(Default)]
pub struct Usage {
    registers: RegisterSet,
    /// It calls helpers.
    pub helpers: bool,
    /// It calls anything.
    pub calls: bool,
    /// It needs the table, but for calls.
    pub table: bool,
    /// It needs the address of the thread's memory.
    pub cells: bool,
    /// Machine registers that are as at the site, and must stay so.
    pub reserved: RegisterSet,
    /// How many registers in between its instructions need.
    scratch: usize,
    /// It compares and exchanges, which takes `rax` for `r0`.
    pub exchanges: bool,
    /// `r10` is more than the base of a memory operand.
    frame_escapes: bool,
    /// Lowest offset from `r10` in memory operands.
    lowest: i32,
}

impl Usage {
    pub fn of(steps: &[Step], shape: Shape, env: &Env) -> Usage {
        let mut usage = Usage::default();
        for step in steps.iter().filter(|step| !step.dead) {
            usage.add(step, shape, env);
        }
        if let (Some(cells), true) = (shape.site().and_then(|s| s.cells), usage.cells) {
            usage.reserved |= cells.bit();
        }
        usage
    }

    /// Checks that nothing is left that only a function can have.
    pub fn check_inline(&self, steps: &[Step]) -> Result<(), CompileError> {
        let at = steps.first().map_or(0, |s| s.at);
        let context = steps.first().map_or(0, |s| s.live & !live::writes(&s.insn) | s.reads_alone());
        let rax = self.exchanges && self.reserved & Machine::Rax.bit() != 0;
        if self.calls || rax || context & live::bit(Reg::R1) != 0 {
            return Err(CompileError::Inline { at });
        }
        Ok(())
    }

    /// Whether a register of the program occurs.
    pub fn uses(&self, reg: Reg) -> bool {
        self.registers & 1 << reg.number() != 0
    }

    fn reg(&mut self, reg: Reg) {
        self.registers |= 1 << reg.number();
    }

    fn value(&mut self, operand: Operand) {
        if let Operand::Reg(reg) = operand {
            self.reg(reg);
            if reg == Reg::R10 {
                self.frame_escapes = true;
                self.scratch = self.scratch.max(1);
            }
        }
    }

    fn memory(&mut self, base: Reg, off: i16) {
        self.reg(base);
        if base == Reg::R10 {
            self.lowest = self.lowest.min(off.into());
        }
    }

    /// Registers that the instruction reads in the place of its own.
    fn folded(&mut self, step: &Step) {
        for machine in [step.left, step.right].into_iter().flatten() {
            self.reserved |= machine.bit();
        }
        match step.place {
            Some(Place::Register(machine, _)) => self.reserved |= machine.bit(),
            Some(Place::Cells(_)) => self.cells = true,
            Some(Place::Ip(_) | Place::Sp) | None => {}
        }
    }

    fn add(&mut self, step: &Step, shape: Shape, env: &Env) {
        self.folded(step);
        let (memory_is_folded, source_is_folded) = (step.place.is_some(), step.right.is_some());
        match step.insn {
            Insn::Alu { op, dst, src, .. } => {
                self.reg(dst);
                if !source_is_folded && !memory_is_folded {
                    self.value(src);
                }
                let scratch = match (op, src) {
                    (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Reg(_)) => 1,
                    (AluOp::Div | AluOp::Sdiv | AluOp::Mod | AluOp::Smod, _) => 2,
                    _ => 0,
                };
                self.scratch = self.scratch.max(scratch);
            }
            Insn::Neg { dst, .. } | Insn::Swap { dst, .. } => self.reg(dst),
            Insn::LoadImm64 { dst, imm } => {
                self.reg(dst);
                // Who is given the function calls it with the table that this function has.
                self.calls |= matches!(imm, Imm64::Func(_));
                if let Imm64::Thread(_) = imm {
                    self.cells = true;
                    self.table |= shape == Shape::Function;
                }
            }
            Insn::MovSx { dst, src, .. } => {
                self.reg(dst);
                self.value(Operand::Reg(src));
            }
            Insn::Load { dst, base, off, .. } => {
                self.reg(dst);
                if !memory_is_folded {
                    self.memory(base, off);
                }
            }
            Insn::Store { base, off, src, .. } => {
                if !memory_is_folded {
                    self.memory(base, off);
                }
                if !source_is_folded {
                    self.value(src);
                }
            }
            Insn::Atomic { op, base, off, src, .. } => {
                if !memory_is_folded {
                    self.memory(base, off);
                }
                if !source_is_folded && step.imm.is_none() {
                    self.reg(src);
                }
                match op {
                    AtomicOp::Cmpxchg => {
                        self.reg(Reg::R0);
                        self.exchanges = true;
                    }
                    _ if super::atomic::is_loop(op) => self.scratch = 2,
                    _ => {}
                }
            }
            Insn::Goto { .. } => {}
            Insn::Branch { dst, src, .. } => {
                if step.left.is_none() {
                    self.value(Operand::Reg(dst));
                }
                if !source_is_folded {
                    self.value(src);
                }
            }
            Insn::CallHelper(number) if intrinsic::find(env, number).is_some() => {
                self.reg(Reg::R0);
                if number == crate::verify::HIST_BUCKET && !source_is_folded {
                    self.reg(Reg::R1);
                }
                self.table |= env.clock.is_some_and(|c| c.stamp.is_some()) && shape == Shape::Function;
                self.scratch = 2;
            }
            Insn::CallHelper(_) | Insn::CallLocal(_) => {
                self.calls = true;
                self.helpers |= matches!(step.insn, Insn::CallHelper(_));
                self.reg(Reg::R0);
            }
            Insn::Exit if shape.result() => self.reg(Reg::R0),
            Insn::Exit => {}
        }
    }
}

/// Machine registers of a function.
pub struct Registers {
    map: [Machine; Reg::COUNT],
    /// For what is in between; only as many as [`Usage`] asked for.
    pub scratch: [Machine; 2],
    /// Registers that stand for one of the program or must stay as they are, one bit each.
    pub taken: RegisterSet,
    /// Those that must stay as they are.
    pub reserved: RegisterSet,
}

impl Registers {
    /// `None` if there are not enough, for what must stay as it is at a site.
    fn new(usage: &Usage, shape: Shape) -> Option<Registers> {
        // What does not occur is never asked for.
        let mut registers = Registers {
            map: [Machine::Rsp; Reg::COUNT],
            scratch: [Machine::R11, Machine::R10],
            taken: 0,
            reserved: usage.reserved,
        };
        if shape == Shape::Function || usage.exchanges {
            registers.give(usage, Reg::R0, Machine::Rax);
        }
        if shape == Shape::Function {
            for (reg, machine) in Reg::all().skip(1).zip(ARGUMENTS) {
                registers.give(usage, reg, machine);
            }
        }
        let prefer = shape.site().map_or(0, |site| site.dead);
        let mut order: Vec<Machine> = CALLER_SAVED.into_iter().chain(CALLEE_SAVED).collect();
        // Stable: among equals, those that need no save come first.
        order.sort_by_key(|reg| prefer & reg.bit() == 0);
        let mut busy = registers.taken | usage.reserved;
        if usage.table {
            busy |= Machine::R9.bit();
        }
        for scratch in 0..usage.scratch {
            let free = |reg: &&Machine| (busy | IMPLICIT) & reg.bit() == 0;
            let reg = *order.iter().find(free)?;
            registers.scratch[scratch] = reg;
            busy |= reg.bit();
        }
        for reg in Reg::all().filter(|&reg| reg != Reg::R10 && usage.uses(reg)) {
            if registers.map[reg.index()] != Machine::Rsp {
                continue;
            }
            let survives = |machine: &Machine| !usage.calls || CALLEE_SAVED.contains(machine);
            let free = |machine: &&Machine| busy & machine.bit() == 0 && survives(machine);
            let machine = *order.iter().find(free)?;
            registers.give(usage, reg, machine);
            busy |= machine.bit();
        }
        registers.taken |= usage.reserved;
        Some(registers)
    }

    fn give(&mut self, usage: &Usage, reg: Reg, machine: Machine) {
        if usage.uses(reg) {
            self.map[reg.index()] = machine;
            self.taken |= machine.bit();
        }
    }

    /// The machine register of one that occurs; not for `r10`, which has none.
    pub fn of(&self, reg: Reg) -> Machine {
        self.map[reg.index()]
    }
}

/// What a function has on the stack.
pub struct Frame {
    pub registers: Registers,
    /// Pushed at the entry, in this order.
    pub saved: Vec<Machine>,
    /// Then subtracted from `rsp`.
    pub reserved: i32,
    /// `r10` is `rsp` plus this.
    pub pointer: i32,
    /// Where the table is kept during calls.
    pub table: Option<Mem>,
    /// Used below `rsp`.
    below: i32,
}

impl Frame {
    /// `None` if there are not enough registers.
    pub fn new(usage: &Usage, stack: u16, shape: Shape) -> Option<Frame> {
        let registers = Registers::new(usage, shape)?;
        let mut saved: Vec<Machine> = CALLEE_SAVED.to_vec();
        let scratch = &registers.scratch[..usage.scratch];
        saved.retain(|reg| shape == Shape::Function && (registers.taken & reg.bit() != 0 || scratch.contains(reg)));
        let used = if usage.frame_escapes { i32::from(stack).max(-usage.lowest) } else { -usage.lowest };
        let program = (used + 7) & !7;
        if !usage.calls && program <= RED_ZONE {
            return Some(Frame { registers, saved, reserved: 0, pointer: 0, table: None, below: program });
        }
        let table = usage.calls.then_some(Mem { base: Machine::Rsp, disp: 0 });
        let pointer = program + if table.is_some() { 8 } else { 0 };
        // The return address and the pushes, or nothing in a detour.
        let above = if shape == Shape::Function { 8 + 8 * saved.len() as i32 } else { 0 };
        let reserved = ((pointer + above + 15) & !15) - above;
        Some(Frame { registers, saved, reserved, pointer, table, below: 0 })
    }

    /// Bytes below the `rsp` that the function is entered with.
    pub fn stack(&self) -> usize {
        8 * self.saved.len() + (self.reserved + self.below) as usize
    }
}
