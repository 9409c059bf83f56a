//! Instruction by instruction.

use sidestep_isa::RegisterSet;
use sidestep_isa::x86::emit::Reg as Machine;

use super::allocate::{CALLEE_SAVED, CALLER_SAVED};
use super::emit::{self, Emit, Mem};
use super::fold::{Place, Step};
use super::{CompileError, Function, MAX_HELPERS, Shape, Source};
use super::{functions, intrinsic};
use crate::insn::{AluOp, Cond, Imm64, Insn, Operand, Reg, Size, Swap, Width};

/// Which jumps are short, by slot.
pub struct Branches {
    short: Vec<bool>,
}

impl Branches {
    pub fn all_long(slots: usize) -> Branches {
        Branches { short: vec![false; slots] }
    }
}

/// Where a distance goes that is filled in at the end.
#[derive(Clone, Copy)]
enum Target {
    /// The code of an instruction.
    Slot(usize),
    /// The first byte of a function.
    Entry(usize),
    /// Where a function ends: restores and returns, or falls through.
    End(usize),
}

/// A distance, counted from its own end.
struct Fixup {
    /// The jump, for those that may become short.
    slot: Option<usize>,
    /// Offset of the distance: the last bytes of its instruction.
    at: usize,
    short: bool,
    target: Target,
}

/// Code of a whole program.
pub struct Lowered {
    pub bytes: Vec<u8>,
    pub clobbers: RegisterSet,
    pub flags: bool,
    pub map: Vec<(usize, usize)>,
    /// Distances of jumps out of a filter.
    pub go: Vec<usize>,
    fixups: Vec<Fixup>,
    places: Places,
}

/// Offsets in the code.
struct Places {
    slots: Vec<usize>,
    entries: Vec<usize>,
    ends: Vec<usize>,
}

impl Places {
    fn of(&self, target: Target) -> usize {
        match target {
            Target::Slot(slot) => self.slots[slot],
            Target::Entry(function) => self.entries[function],
            Target::End(function) => self.ends[function],
        }
    }
}

impl Lowered {
    /// Marks the long jumps that would fit in a byte. Says whether there are any.
    pub fn shorten(&self, source: &Source, branches: &mut Branches) -> bool {
        debug_assert!(source.starts.len() == branches.short.len());
        let mut found = false;
        for fixup in self.fixups.iter().filter(|f| !f.short) {
            let distance = self.places.of(fixup.target) as isize - (fixup.at as isize + 4);
            if let (Some(slot), Ok(_)) = (fixup.slot, i8::try_from(distance)) {
                branches.short[slot] = true;
                found = true;
            }
        }
        found
    }
}

/// Compiles with these jumps short.
pub fn lower(source: &Source, branches: &Branches) -> Result<Lowered, CompileError> {
    let mut emit = Emit::default();
    let (mut clobbers, mut flags, mut map, mut fixups, mut go) = (0, false, Vec::new(), Vec::new(), Vec::new());
    let mut places = Places { slots: vec![0; source.starts.len()], entries: Vec::new(), ends: Vec::new() };
    for (index, function) in source.functions.iter().enumerate() {
        let mut lower = Lower { emit, source, function, index, branches, changed: 0, flags: false, fixups, go };
        places.entries.push(lower.emit.bytes.len());
        lower.prologue();
        let last = function.steps.iter().rposition(|step| !step.dead).unwrap_or(0);
        let mut skip = false;
        for (i, step) in function.steps.iter().enumerate() {
            places.slots[step.at] = lower.emit.bytes.len();
            map.push((lower.emit.bytes.len(), step.at));
            if step.dead || std::mem::take(&mut skip) {
                continue;
            }
            skip = lower.branch_over(step, &function.steps[i + 1..])?;
            if !skip {
                lower.insn(step, i >= last)?;
            }
        }
        places.ends.push(lower.emit.bytes.len());
        lower.epilogue();
        clobbers |= lower.changed;
        flags |= lower.flags;
        (emit, fixups, go) = (lower.emit, lower.fixups, lower.go);
    }
    let mut bytes = emit.bytes;
    for fixup in &fixups {
        let len = if fixup.short { 1 } else { 4 };
        let distance = places.of(fixup.target) as i64 - (fixup.at + len) as i64;
        bytes[fixup.at..fixup.at + len].copy_from_slice(&distance.to_le_bytes()[..len]);
    }
    Ok(Lowered { bytes, clobbers, flags, map, go, fixups, places })
}

/// A function that is being compiled.
pub struct Lower<'a> {
    pub emit: Emit,
    pub source: &'a Source<'a>,
    pub function: &'a Function,
    index: usize,
    branches: &'a Branches,
    changed: RegisterSet,
    pub flags: bool,
    fixups: Vec<Fixup>,
    go: Vec<usize>,
}

impl Lower<'_> {
    /// The machine register of a register other than `r10`.
    pub fn of(&self, reg: Reg) -> Machine {
        self.function.frame.registers.of(reg)
    }

    pub fn scratch(&self, index: usize) -> Machine {
        self.function.frame.registers.scratch[index]
    }

    /// Whether a machine register stands for one of the program.
    pub fn taken(&self, machine: Machine) -> bool {
        self.function.frame.registers.taken & machine.bit() != 0
    }

    /// Notes that a machine register changes.
    pub fn changes(&mut self, machine: Machine) {
        if !self.function.frame.saved.contains(&machine) {
            self.changed |= machine.bit();
        }
    }

    /// Whether a machine register must stay as it is.
    pub fn is_reserved(&self, machine: Machine) -> bool {
        self.function.frame.registers.reserved & machine.bit() != 0
    }

    /// Whether a machine register stands for this one, which may not occur.
    pub fn stands_for(&self, machine: Machine, reg: Reg) -> bool {
        self.function.usage.uses(reg) && self.of(reg) == machine
    }

    /// Whether times that are taken go to the thread's state.
    pub fn stamps(&self) -> bool {
        self.source.shape == Shape::Function
    }

    /// Where the table is, if it is not in `r9`.
    pub fn table_slot(&self) -> Option<Mem> {
        self.function.frame.table
    }

    pub fn memory(&self, base: Reg, off: i16) -> Mem {
        if base == Reg::R10 {
            return Mem { base: Machine::Rsp, disp: self.function.frame.pointer + i32::from(off) };
        }
        Mem { base: self.of(base), disp: off.into() }
    }

    /// A register with this value to read from: `r10` is put into a scratch register.
    fn read(&mut self, reg: Reg) -> Machine {
        if reg != Reg::R10 {
            return self.of(reg);
        }
        let scratch = self.scratch(0);
        self.changes(scratch);
        self.emit.lea(scratch, self.memory(Reg::R10, 0));
        scratch
    }

    fn prologue(&mut self) {
        let frame = &self.function.frame;
        for &reg in &frame.saved {
            self.emit.push(reg);
        }
        if frame.reserved != 0 {
            self.flags = true;
            self.emit.alu_imm(Width::W64, AluOp::Sub, Machine::Rsp, frame.reserved);
        }
        if let Some(table) = frame.table {
            self.emit.store(Size::Dw, table, Machine::R9);
        }
    }

    fn epilogue(&mut self) {
        let frame = &self.function.frame;
        if frame.reserved != 0 {
            self.emit.alu_imm(Width::W64, AluOp::Add, Machine::Rsp, frame.reserved);
        }
        for &reg in frame.saved.iter().rev() {
            self.emit.pop(reg);
        }
        if self.source.shape == Shape::Function {
            self.emit.ret();
        }
    }

    fn fixup(&mut self, slot: Option<usize>, short: bool, target: Target) {
        self.fixups.push(Fixup { slot, at: self.emit.bytes.len(), short, target });
        self.emit.raw(if short { &[0] } else { &[0; 4] });
    }

    /// `jmp`, or `jcc` with a condition.
    fn jump(&mut self, at: usize, condition: Option<u8>, target: Target) {
        let short = self.branches.short[at];
        match (condition, short) {
            (None, true) => self.emit.raw(&[0xeb]),
            (None, false) => self.emit.raw(&[0xe9]),
            (Some(cond), true) => self.emit.raw(&[0x70 | cond]),
            (Some(cond), false) => self.emit.raw(&[0x0f, 0x80 | cond]),
        }
        self.fixup(Some(at), short, target);
    }

    /// Loads the table into `r9` for a call.
    fn table(&mut self) -> Machine {
        if let Some(table) = self.function.frame.table {
            self.emit.load(Size::Dw, false, Machine::R9, table);
        }
        for reg in CALLER_SAVED {
            self.changes(reg);
        }
        self.flags = true;
        Machine::R9
    }

    /// A branch over a jump: the opposite branch. Says whether it was one, with which the jump is
    /// done, too.
    fn branch_over(&mut self, step: &Step, next: &[Step]) -> Result<bool, CompileError> {
        let (Insn::Branch { width, cond, dst, src, .. }, [jump, after, ..]) = (step.insn, next) else {
            return Ok(false);
        };
        let Insn::Goto { off, .. } = jump.insn else { return Ok(false) };
        let over = functions::jump(self.function, &self.source.starts, step.at, &step.insn)? == after.at;
        if !over || !jump.alone || jump.dead || step.go || off == 0 {
            return Ok(false);
        }
        self.compare(step, width, cond, dst, src);
        // The lowest bit of a condition is its opposite.
        self.branch(jump, Some(emit::condition(cond) ^ 1))?;
        Ok(true)
    }

    /// The jump of an instruction, in the code or out of it.
    fn branch(&mut self, step: &Step, condition: Option<u8>) -> Result<(), CompileError> {
        if step.go {
            self.leave(condition);
            return Ok(());
        }
        let target = Target::Slot(functions::jump(self.function, &self.source.starts, step.at, &step.insn)?);
        self.jump(step.at, condition, target);
        Ok(())
    }

    /// A jump out of a filter.
    fn leave(&mut self, condition: Option<u8>) {
        match condition {
            None => self.emit.raw(&[0xe9]),
            Some(cond) => self.emit.raw(&[0x0f, 0x80 | cond]),
        }
        self.go.push(self.emit.bytes.len());
        self.emit.raw(&[0; 4]);
    }

    fn insn(&mut self, step: &Step, last: bool) -> Result<(), CompileError> {
        let (at, insn) = (step.at, &step.insn);
        match *insn {
            _ if functions::writes_frame_pointer(insn) => return Err(CompileError::FramePointer { at }),
            Insn::Alu { width, op, dst, src } => self.alu(step, width, op, dst, src)?,
            Insn::Neg { width, dst } => {
                let dst = self.writes(dst);
                self.flags = true;
                self.emit.neg(width, dst);
            }
            Insn::MovSx { width, dst, src, from } => {
                let src = self.read(src);
                let dst = self.writes(dst);
                self.emit.extend(width, true, from, dst, src);
            }
            Insn::Swap { order, size, dst } => {
                let dst = self.writes(dst);
                match (order, size) {
                    (Swap::Le, Size::Dw) => {}
                    (Swap::Le, _) => self.emit.extend(Width::W32, false, size, dst, dst),
                    (Swap::Be | Swap::Always, _) => {
                        self.flags = true;
                        self.emit.reverse(size, dst);
                    }
                }
            }
            Insn::Load { size, signed, dst, base, off } => {
                let dst = self.writes(dst);
                match step.place {
                    None | Some(Place::Cells(_)) => {
                        let mem = self.operand(step, base, off)?;
                        self.emit.load(size, signed, dst, mem);
                    }
                    Some(place) => self.load_word(place, size, signed, dst),
                }
            }
            Insn::Store { src, .. } if matches!(step.place, Some(Place::Register(..))) => self.keep_word(step, src),
            Insn::Store { size, base, off, src } => {
                let mem = self.operand(step, base, off)?;
                match src {
                    Operand::Imm(imm) => self.emit.store_imm(size, mem, imm),
                    Operand::Reg(reg) => {
                        let src = self.right(step, reg);
                        self.emit.store(size, mem, src);
                    }
                }
            }
            Insn::Atomic { width, op, base, off, src } => {
                self.flags = true;
                let mem = self.operand(step, base, off)?;
                self.atomic(step, width, op, mem, src);
            }
            Insn::LoadImm64 { dst, imm: Imm64::Value(value) } => {
                let dst = self.writes(dst);
                self.flags |= value == 0;
                self.emit.mov_imm(dst, value);
            }
            Insn::LoadImm64 { dst, imm: Imm64::Func(_) } => {
                let callee = self.callee(at, insn)?;
                let dst = self.writes(dst) as u8;
                // `lea dst, [rip + …]`
                self.emit.raw(&[0x48 | dst >> 3 << 2, 0x8d, 0x05 | (dst & 7) << 3]);
                self.fixup(None, false, Target::Entry(callee));
            }
            Insn::LoadImm64 { dst, imm: Imm64::Thread(offset) } => self.thread(at, dst, offset)?,
            Insn::LoadImm64 { imm, .. } => return Err(CompileError::Unlinked { at, imm }),
            // A jump to what follows is no code.
            Insn::Goto { off: 0, .. } => {}
            Insn::Goto { .. } => self.branch(step, None)?,
            Insn::Branch { width, cond, dst, src, .. } => {
                self.compare(step, width, cond, dst, src);
                self.branch(step, Some(emit::condition(cond)))?;
            }
            Insn::CallHelper(number) => {
                if let Some(intrinsic) = intrinsic::find(self.source.env, number) {
                    self.intrinsic(step, intrinsic);
                    return Ok(());
                }
                if number >= MAX_HELPERS {
                    return Err(CompileError::Helper { at, number });
                }
                let table = self.table();
                self.emit.call_memory(Mem { base: table, disp: 8 * number as i32 });
            }
            Insn::CallLocal(_) => {
                let callee = self.callee(at, insn)?;
                self.table();
                self.emit.raw(&[0xe8]);
                self.fixup(None, false, Target::Entry(callee));
            }
            Insn::Exit if step.go => self.leave(None),
            Insn::Exit if last => {}
            Insn::Exit => self.jump(at, None, Target::End(self.index)),
        }
        Ok(())
    }

    fn callee(&self, at: usize, insn: &Insn) -> Result<usize, CompileError> {
        if self.source.shape != Shape::Function {
            return Err(CompileError::Inline { at });
        }
        functions::callee(&self.source.functions, at, insn)
    }

    /// The machine register of one that is written now.
    pub fn writes(&mut self, reg: Reg) -> Machine {
        let machine = self.of(reg);
        self.changes(machine);
        machine
    }

    /// The second operand, to read from.
    pub fn right(&mut self, step: &Step, reg: Reg) -> Machine {
        match step.right {
            Some(machine) => machine,
            None => self.read(reg),
        }
    }

    fn alu(&mut self, step: &Step, width: Width, op: AluOp, dst: Reg, src: Operand) -> Result<(), CompileError> {
        let pointer = src == Operand::Reg(Reg::R10);
        if pointer && !matches!(op, AluOp::Mov | AluOp::Add | AluOp::Sub) {
            return Err(CompileError::FramePointer { at: step.at });
        }
        let dst = self.writes(dst);
        match (op, src) {
            (AluOp::Mov, Operand::Reg(Reg::R10)) => {
                self.emit.lea(dst, self.memory(Reg::R10, 0));
                self.truncate(width, dst);
            }
            (AluOp::Mov, Operand::Reg(src)) => {
                let src = self.right(step, src);
                if src != dst || width == Width::W32 {
                    self.emit.mov(width, dst, src);
                }
            }
            (AluOp::Mov, Operand::Imm(imm)) => {
                self.flags |= imm == 0;
                let value = if width == Width::W64 { i64::from(imm) as u64 } else { u64::from(imm as u32) };
                self.emit.mov_imm(dst, value);
            }
            (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, _) => {
                self.flags = true;
                self.shift(step, width, op, dst, src);
            }
            (AluOp::Div | AluOp::Sdiv | AluOp::Mod | AluOp::Smod, _) => {
                self.flags = true;
                self.divide(step, width, op, dst, src);
            }
            (_, Operand::Reg(_)) if step.place.is_some() => {
                let disp = if let Some(Place::Cells(disp)) = step.place { disp } else { 0 };
                let base = self.cells(step.at)?;
                self.emit.lea_sum(dst, base, dst, disp);
            }
            (_, Operand::Reg(src)) => {
                self.flags = true;
                let src = self.right(step, src);
                self.emit.alu(width, op, dst, src);
            }
            (_, Operand::Imm(imm)) => {
                self.flags = true;
                self.emit.alu_imm(width, op, dst, imm);
            }
        }
        Ok(())
    }

    fn compare(&mut self, step: &Step, width: Width, cond: Cond, dst: Reg, src: Operand) {
        self.flags = true;
        let a = match step.left {
            Some(machine) => machine,
            None => self.read(dst),
        };
        match (src, cond) {
            (Operand::Reg(src), Cond::Set) => {
                let b = self.right(step, src);
                self.emit.test(width, a, b);
            }
            (Operand::Reg(src), _) => {
                let b = self.right(step, src);
                self.emit.cmp(width, a, b);
            }
            (Operand::Imm(imm), Cond::Set) => self.emit.test_imm(width, a, imm),
            (Operand::Imm(0), _) => self.emit.test(width, a, a),
            (Operand::Imm(imm), _) => self.emit.cmp_imm(width, a, imm),
        }
    }
}

const _: () = assert!(CALLEE_SAVED.len() + CALLER_SAVED.len() == 15, "all but rsp");
