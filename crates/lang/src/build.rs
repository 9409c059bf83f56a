//! Instructions with labels.

use sidestep_bpf::{AluOp, Cond, DecodeError, Imm64, Insn, Operand, Program, Reg, Size, Width};

/// Why instructions are no program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BuildError {
    /// A jump goes too far.
    TooLong,
    /// Something is no instruction.
    Decode(DecodeError),
}

impl From<DecodeError> for BuildError {
    fn from(error: DecodeError) -> BuildError {
        BuildError::Decode(error)
    }
}

/// A place in the program, bound later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Label(usize);

/// A program as far as it is written.
#[derive(Default)]
pub(crate) struct Builder {
    /// With where they jump to.
    insns: Vec<(Insn, Option<Label>)>,
    /// Slots so far.
    slots: usize,
    /// Slot of each label.
    labels: Vec<Option<usize>>,
    /// Nothing leads here: what is written is left out, for the verifier refuses it.
    dead: bool,
}

impl Builder {
    pub fn new() -> Builder {
        Builder::default()
    }

    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label is here.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.slots);
        self.dead &= !self.is_used(label);
    }

    /// Whether something jumps there.
    pub fn is_used(&self, label: Label) -> bool {
        self.insns.iter().any(|(_, to)| *to == Some(label))
    }

    pub fn push(&mut self, insn: Insn) {
        self.add(insn, None);
    }

    fn push_to(&mut self, insn: Insn, label: Label) {
        self.add(insn, Some(label));
    }

    fn add(&mut self, insn: Insn, label: Option<Label>) {
        if !self.dead {
            self.slots += insn.slots();
            self.insns.push((insn, label));
        }
        self.dead |= matches!(insn, Insn::Goto { .. } | Insn::Exit);
    }

    pub fn mov(&mut self, dst: Reg, src: Reg) {
        self.alu(AluOp::Mov, dst, src);
    }

    pub fn mov_imm(&mut self, dst: Reg, imm: i32) {
        self.alu_imm(AluOp::Mov, dst, imm);
    }

    /// `dst = value`, in as few slots as it takes.
    pub fn set(&mut self, dst: Reg, value: u64) {
        match i32::try_from(value as i64) {
            Ok(imm) => self.mov_imm(dst, imm),
            Err(_) => self.push(Insn::LoadImm64 { dst, imm: Imm64::Value(value) }),
        }
    }

    pub fn alu(&mut self, op: AluOp, dst: Reg, src: Reg) {
        self.push(Insn::Alu { width: Width::W64, op, dst, src: Operand::Reg(src) });
    }

    pub fn alu_imm(&mut self, op: AluOp, dst: Reg, imm: i32) {
        self.push(Insn::Alu { width: Width::W64, op, dst, src: Operand::Imm(imm) });
    }

    /// `dst op= value`; `temp` is lost if the value is no immediate.
    pub fn alu_value(&mut self, op: AluOp, dst: Reg, value: u64, temp: Reg) {
        match i32::try_from(value as i64) {
            Ok(imm) => self.alu_imm(op, dst, imm),
            Err(_) => {
                self.set(temp, value);
                self.alu(op, dst, temp);
            }
        }
    }

    /// All ones in `reg` if it is negative, else 0.
    pub fn sign(&mut self, reg: Reg) {
        self.alu_imm(AluOp::Arsh, reg, 63);
    }

    pub fn invert(&mut self, reg: Reg) {
        self.alu_imm(AluOp::Xor, reg, -1);
    }

    pub fn load(&mut self, size: Size, dst: Reg, base: Reg, off: i16) {
        self.push(Insn::Load { size, signed: false, dst, base, off });
    }

    /// Into the record.
    pub fn store(&mut self, size: Size, off: i16, src: Reg) {
        self.push(Insn::Store { size, base: Reg::R7, off, src: Operand::Reg(src) });
    }

    /// Into the record.
    pub fn store_imm(&mut self, size: Size, off: i16, imm: i32) {
        self.push(Insn::Store { size, base: Reg::R7, off, src: Operand::Imm(imm) });
    }

    /// `dst = ` the address of a byte of an array.
    pub fn map_value(&mut self, dst: Reg, map: u32, offset: u32) {
        self.push(Insn::LoadImm64 { dst, imm: Imm64::MapValue { map, offset } });
    }

    /// `dst = ` the map.
    pub fn map(&mut self, dst: Reg, map: u32) {
        self.push(Insn::LoadImm64 { dst, imm: Imm64::Map(map) });
    }

    /// At a base.
    pub fn put(&mut self, base: Reg, off: i16, src: Reg) {
        self.push(Insn::Store { size: Size::Dw, base, off, src: Operand::Reg(src) });
    }

    /// At a base.
    pub fn put_imm(&mut self, base: Reg, off: i16, imm: i32) {
        self.push(Insn::Store { size: Size::Dw, base, off, src: Operand::Imm(imm) });
    }

    pub fn call(&mut self, helper: u32) {
        self.push(Insn::CallHelper(helper));
    }

    /// `dst = ` the function at a label.
    pub fn function(&mut self, dst: Reg, label: Label) {
        self.push_to(Insn::LoadImm64 { dst, imm: Imm64::Func(0) }, label);
    }

    /// Calls the function at a label.
    pub fn call_local(&mut self, label: Label) {
        self.push_to(Insn::CallLocal(0), label);
    }

    pub fn goto(&mut self, label: Label) {
        self.push_to(Insn::Goto { off: 0, long: false }, label);
    }

    pub fn branch(&mut self, width: Width, cond: Cond, dst: Reg, src: Operand, label: Label) {
        self.push_to(Insn::Branch { width, cond, dst, src, off: 0 }, label);
    }

    pub fn branch_imm(&mut self, width: Width, cond: Cond, dst: Reg, imm: i32, label: Label) {
        self.branch(width, cond, dst, Operand::Imm(imm), label);
    }

    /// The program, with all jumps in place.
    pub fn finish(self) -> Result<Program, BuildError> {
        let mut insns = Vec::with_capacity(self.insns.len());
        let mut slot = 0;
        for (mut insn, label) in self.insns {
            slot += insn.slots();
            if let Some(label) = label {
                let target = self.labels[label.0].ok_or(BuildError::TooLong)?;
                let distance = target as i64 - slot as i64;
                let near = i16::try_from(distance);
                match &mut insn {
                    Insn::Branch { off, .. } => *off = near.map_err(|_| BuildError::TooLong)?,
                    Insn::Goto { off, long } => (*off, *long) = (distance as i32, near.is_err()),
                    Insn::CallLocal(off) => *off = distance as i32,
                    // From the end of its first slot.
                    Insn::LoadImm64 { imm: Imm64::Func(off), .. } => *off = distance as i32 + 1,
                    _ => {}
                }
            }
            insns.push(insn);
        }
        Ok(Program::from_insns(&insns)?)
    }
}
