//! Instruction by instruction.

use sidestep_isa::RegisterSet;
use sidestep_isa::a64::emit::{
    self as word, Address, Encoded, Label, Reg as Machine, Size as Bytes, blr, ldp, ldr, mov, ret, stp, str,
};

use super::allocate::{RESULT, SCRATCH, x};
use super::emit::{Emit, condition};
use super::{CompileError, Function, Source, Step};
use crate::insn::{AluOp, Cond, Imm64, Insn, Operand, Reg, Size, Width};
use crate::native::{MAX_HELPERS, functions, intrinsic};

/// Jumps of fewer slots reach, with up to 16 words a slot: conditional ones ±1 MiB.
const NEAR: usize = 16_000;

/// Code of a whole program.
pub struct Lowered {
    pub bytes: Vec<u8>,
    pub clobbers: RegisterSet,
    pub map: Vec<(usize, usize)>,
}

pub fn lower(source: &Source) -> Result<Lowered, CompileError> {
    let mut emit = Emit::new();
    let slots: Vec<Label> = source.starts.iter().map(|_| emit.asm.label()).collect();
    let entries: Vec<Label> = source.functions.iter().map(|_| emit.asm.label()).collect();
    let (mut map, mut clobbers) = (Vec::new(), 0);
    for (function, entry) in source.functions.iter().zip(&entries) {
        emit.asm.bind(*entry);
        let end = emit.asm.label();
        let mut lower = Lower { emit, source, function, slots: &slots, entries: &entries, end };
        lower.prologue();
        for (i, step) in function.steps.iter().enumerate() {
            lower.emit.asm.bind(slots[step.at]);
            map.push((lower.emit.asm.len(), step.at));
            lower.insn(step, i + 1 == function.steps.len())?;
        }
        lower.emit.asm.bind(end);
        lower.epilogue();
        emit = lower.emit;
        let saved = function.frame.saved.iter().fold(0, |all, machine| all | machine.bit());
        clobbers |= std::mem::take(&mut emit.changed) & !saved;
    }
    // Jumps that are farther have a form of their own, and 1,000,000 slots are within those of `b`.
    let bytes = emit.asm.finish().expect("the code of programs has an encoding");
    Ok(Lowered { bytes, clobbers, map })
}

/// A function that is being compiled.
pub struct Lower<'a> {
    pub emit: Emit,
    source: &'a Source<'a>,
    function: &'a Function,
    slots: &'a [Label],
    entries: &'a [Label],
    /// Where it restores and returns.
    end: Label,
}

impl Lower<'_> {
    /// The machine register of a register other than `r10`.
    pub fn of(&self, reg: Reg) -> Machine {
        self.function.frame.of(reg)
    }

    /// Where the table is.
    pub fn table(&self) -> Machine {
        self.function.frame.table
    }

    /// A memory operand: a register, and how far from it.
    pub fn memory(&self, base: Reg, off: i16) -> (Machine, i64) {
        let end = if base == Reg::R10 { self.function.frame.program } else { 0 };
        (self.of(base), end + i64::from(off))
    }

    /// A register with this value to read from: `r10` is put into a scratch register.
    fn read(&mut self, reg: Reg) -> Machine {
        if reg != Reg::R10 {
            return self.of(reg);
        }
        self.emit.sum(SCRATCH[0], Machine::SP, self.function.frame.program);
        SCRATCH[0]
    }

    /// Pairs of saved registers with their places, in one instruction each.
    fn saved(&mut self, pair: fn(Machine, Machine, Address) -> Encoded, one: fn(Bytes, Machine, Address) -> Encoded) {
        for (i, registers) in self.function.frame.saved.chunks(2).enumerate() {
            let address = Address::with(Machine::SP, 16 + 16 * i as i64);
            self.emit.asm.push(match *registers {
                [first, second] => pair(first, second, address),
                [first, ..] => one(Bytes::Double, first, address),
                [] => continue,
            });
        }
    }

    fn prologue(&mut self) {
        let frame = &self.function.frame;
        if frame.links {
            let below = Address::before(Machine::SP, -frame.links_len());
            self.emit.asm.push(stp(Machine::FP, Machine::LINK, below));
            self.emit.asm.push(mov(Machine::FP, Machine::SP));
            self.saved(stp, str);
            self.emit.asm.push(mov(frame.table, x(5)));
        }
        if frame.program != 0 {
            self.emit.sum(Machine::SP, Machine::SP, -frame.program);
        }
    }

    fn epilogue(&mut self) {
        let frame = &self.function.frame;
        let result = self.of(Reg::R0);
        self.emit.mov(Width::W64, RESULT, result);
        if frame.program != 0 {
            self.emit.sum(Machine::SP, Machine::SP, frame.program);
        }
        if frame.links {
            self.saved(ldp, ldr);
            let above = Address::after(Machine::SP, frame.links_len());
            self.emit.asm.push(ldp(Machine::FP, Machine::LINK, above));
        }
        self.emit.asm.push(ret(Machine::LINK));
    }

    fn insn(&mut self, step: &Step, last: bool) -> Result<(), CompileError> {
        let (at, insn) = (step.at, &step.insn);
        match *insn {
            _ if functions::writes_frame_pointer(insn) => return Err(CompileError::FramePointer { at }),
            Insn::Alu { width, op, dst, src } => self.alu(at, width, op, dst, src)?,
            Insn::Neg { width, dst } => self.emit.neg(width, self.function.frame.of(dst)),
            Insn::MovSx { width, dst, src, from } => {
                let (src, dst) = (self.read(src), self.of(dst));
                self.emit.extend(width, from, dst, src);
            }
            Insn::Swap { order, size, dst } => self.emit.swap(order, size, self.function.frame.of(dst)),
            Insn::Load { size, signed, dst, base, off } => {
                let (place, dst) = (self.memory(base, off), self.of(dst));
                self.emit.load(size, signed, dst, place);
            }
            Insn::Store { size, base, off, src } => {
                let value = match src {
                    Operand::Imm(0) => Machine::ZERO,
                    Operand::Imm(imm) => {
                        self.emit.immediate(if size == Size::Dw { Width::W64 } else { Width::W32 }, SCRATCH[0], imm);
                        SCRATCH[0]
                    }
                    Operand::Reg(reg) => self.read(reg),
                };
                let place = self.memory(base, off);
                self.emit.store(size, SCRATCH[1], place, value);
            }
            Insn::Atomic { width, op, base, off, src } => self.atomic(step, width, op, (base, off), src),
            Insn::LoadImm64 { dst, imm: Imm64::Value(value) } => {
                let dst = self.of(dst);
                self.emit.constant(dst, value);
            }
            Insn::LoadImm64 { dst, imm: Imm64::Func(_) } => {
                let callee = self.entries[functions::callee(&self.source.functions, at, insn)?];
                let (dst, far) = (self.of(dst), self.source.starts.len() > NEAR);
                self.emit.address_of(dst, far, callee, SCRATCH[0]);
            }
            Insn::LoadImm64 { dst, imm: Imm64::Thread(offset) } => {
                let (dst, table) = (self.of(dst), self.table());
                self.emit.load(Size::Dw, false, dst, (table, self.source.env.cells.into()));
                self.emit.sum(dst, dst, offset.into());
            }
            Insn::LoadImm64 { imm, .. } => return Err(CompileError::Unlinked { at, imm }),
            // A jump to what follows is no code.
            Insn::Goto { off: 0, .. } => {}
            Insn::Goto { .. } => {
                let to = self.target(at, insn)?;
                self.emit.asm.b(to);
            }
            Insn::Branch { width, cond, dst, src, off } => self.branch(step, width, cond, dst, src, off)?,
            Insn::CallHelper(number) => {
                if let Some(intrinsic) = intrinsic::find(self.source.env, number) {
                    self.intrinsic(intrinsic);
                    return Ok(());
                }
                if number >= MAX_HELPERS {
                    return Err(CompileError::Helper { at, number });
                }
                let helper = Address::with(self.table(), 8 * i64::from(number));
                self.emit.push(SCRATCH[0], ldr(Bytes::Double, SCRATCH[0], helper));
                self.call(blr(SCRATCH[0]));
            }
            Insn::CallLocal(_) => {
                let callee = self.entries[functions::callee(&self.source.functions, at, insn)?];
                self.pass_table();
                self.emit.asm.to_label(callee, word::bl);
                self.take_result();
            }
            Insn::Exit if last => {}
            Insn::Exit => self.emit.asm.b(self.end),
        }
        Ok(())
    }

    fn target(&self, at: usize, insn: &Insn) -> Result<Label, CompileError> {
        Ok(self.slots[functions::jump(self.function, &self.source.starts, at, insn)?])
    }

    /// A call, with the table in its place. `x0` to `x18` and `x30` are changed by it.
    fn call(&mut self, call: Encoded) {
        self.pass_table();
        self.emit.asm.push(call);
        self.take_result();
    }

    fn pass_table(&mut self) {
        let table = self.table();
        self.emit.push(x(5), mov(x(5), table));
    }

    fn take_result(&mut self) {
        (0..19).for_each(|number| self.emit.changes(x(number)));
        let result = self.of(Reg::R0);
        self.emit.push(result, mov(result, RESULT));
    }

    fn alu(&mut self, at: usize, width: Width, op: AluOp, dst: Reg, src: Operand) -> Result<(), CompileError> {
        let to = self.of(dst);
        let [first, second, ..] = SCRATCH;
        match src {
            Operand::Reg(Reg::R10) => match op {
                AluOp::Mov => {
                    self.emit.sum(to, Machine::SP, self.function.frame.program);
                    if width == Width::W32 {
                        self.emit.mov(width, to, to);
                    }
                }
                AluOp::Add | AluOp::Sub => {
                    let from = self.read(Reg::R10);
                    self.emit.alu(width, op, to, from, second);
                }
                _ => return Err(CompileError::FramePointer { at }),
            },
            Operand::Reg(src) => {
                let from = self.of(src);
                self.emit.alu(width, op, to, from, first);
            }
            Operand::Imm(imm) => self.emit.alu_imm(width, op, to, imm, [first, second]),
        }
        Ok(())
    }

    fn branch(
        &mut self,
        step: &Step,
        width: Width,
        cond: Cond,
        dst: Reg,
        src: Operand,
        off: i16,
    ) -> Result<(), CompileError> {
        let to = self.target(step.at, &step.insn)?;
        let far = usize::from(off.unsigned_abs()) > NEAR;
        let a = self.read(dst);
        match (src, cond) {
            (Operand::Imm(0), Cond::Eq | Cond::Ne) if !far => {
                self.emit.branch_zero(width, cond == Cond::Eq, a, to);
                return Ok(());
            }
            (Operand::Imm(imm), _) => self.emit.compare_imm(width, cond, a, imm, SCRATCH[1]),
            (Operand::Reg(reg), _) => {
                let b = self.read(reg);
                self.emit.compare(width, cond, a, b);
            }
        }
        self.emit.branch(condition(cond), far, to);
        Ok(())
    }
}
