//! Between [`Slot`]s and [`Insn`]s.
//!
//! The numbers are those of the kernel's `include/uapi/linux/bpf.h` and `bpf_common.h`.

use core::fmt;

use crate::insn::{AluOp, AtomicOp, Cond, Imm64, Insn, Operand, Reg, Size, Slot, Swap, Width};

/// Instruction classes: the lower three bits.
mod class {
    pub const LD: u8 = 0;
    pub const LDX: u8 = 1;
    pub const ST: u8 = 2;
    pub const STX: u8 = 3;
    pub const ALU: u8 = 4;
    pub const JMP: u8 = 5;
    pub const JMP32: u8 = 6;
    pub const ALU64: u8 = 7;
}

/// `dst = imm ll`
const LD_IMM64: u8 = 0x18;
/// The second operand is a register.
const X: u8 = 0x08;
// Modes of loads and stores: the upper three bits.
const MODE_MEM: u8 = 0x60;
const MODE_MEMSX: u8 = 0x80;
const MODE_ATOMIC: u8 = 0xc0;
// The upper four bits of arithmetic.
const ALU_NEG: u8 = 0x80;
const ALU_MOV: u8 = 0xb0;
const ALU_END: u8 = 0xd0;
// The upper four bits of jumps.
const JMP_JA: u8 = 0x00;
const JMP_CALL: u8 = 0x80;
const JMP_EXIT: u8 = 0x90;
const JMP_COND: u8 = 0xe0;
/// In the immediate of atomics: give the old value.
const FETCH: i32 = 1;

/// Why an instruction is none of version 4 of the set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeError {
    /// The slot, counted from the start of what was decoded.
    pub at: usize,
    /// Its operation.
    pub opcode: u8,
    /// What is wrong.
    pub problem: DecodeProblem,
}

/// What is wrong with an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeProblem {
    /// The operation does not exist.
    Opcode,
    /// `dst` or `src` is above 10.
    Register(u8),
    /// A field that must be zero, or have one of a few values, does not: `dst`, `src`, `off` or
    /// `imm`.
    Field(&'static str, i64),
    /// The code ends in the middle of an instruction of two slots, or before it starts.
    Truncated,
    /// An instruction of the kernel that has no meaning here; what to do instead.
    Unsupported(&'static str),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "insn {}: opcode {:#04x}: {}", self.at, self.opcode, self.problem)
    }
}

impl fmt::Display for DecodeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DecodeProblem::Opcode => write!(f, "no instruction of eBPF version 4; compile with -mcpu=v4 or lower"),
            DecodeProblem::Register(n) => write!(f, "there is no register r{n}; use r0 to r10"),
            DecodeProblem::Field(name, value) => write!(f, "the field {name} must not be {value} here"),
            DecodeProblem::Truncated => write!(f, "the code ends in the middle of an instruction; complete it"),
            DecodeProblem::Unsupported(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for DecodeError {}

impl Slot {
    const fn new(opcode: u8, dst: u8, src: u8, off: i16, imm: i32) -> Slot {
        Slot { opcode, regs: src << 4 | dst, off, imm }
    }

    fn dst_reg(self) -> Result<Reg, DecodeProblem> {
        Reg::new(self.dst()).ok_or(DecodeProblem::Register(self.dst()))
    }

    fn src_reg(self) -> Result<Reg, DecodeProblem> {
        Reg::new(self.src()).ok_or(DecodeProblem::Register(self.src()))
    }

    fn no_dst(self) -> Result<(), DecodeProblem> {
        zero("dst", self.dst().into())
    }

    fn no_src(self) -> Result<(), DecodeProblem> {
        zero("src", self.src().into())
    }

    fn no_off(self) -> Result<(), DecodeProblem> {
        zero("off", self.off.into())
    }

    fn no_imm(self) -> Result<(), DecodeProblem> {
        zero("imm", self.imm.into())
    }

    /// The second operand of arithmetic and branches, by the bit in the operation.
    fn operand(self) -> Result<Operand, DecodeProblem> {
        if self.opcode & X == 0 {
            self.no_src()?;
            Ok(Operand::Imm(self.imm))
        } else {
            self.no_imm()?;
            Ok(Operand::Reg(self.src_reg()?))
        }
    }

    fn size(self) -> Size {
        match self.opcode & 0x18 {
            0x00 => Size::W,
            0x08 => Size::H,
            0x10 => Size::B,
            _ => Size::Dw,
        }
    }
}

fn zero(name: &'static str, value: i64) -> Result<(), DecodeProblem> {
    if value == 0 { Ok(()) } else { Err(DecodeProblem::Field(name, value)) }
}

impl Insn {
    /// The instruction at the start of `code`.
    ///
    /// # Errors
    /// If it is none; [`DecodeError::at`] is 0.
    #[inline]
    pub fn decode(code: &[Slot]) -> Result<Insn, DecodeError> {
        let Some(&slot) = code.first() else {
            return Err(DecodeError { at: 0, opcode: 0, problem: DecodeProblem::Truncated });
        };
        let insn = match slot.opcode & 7 {
            class::LD => load_imm64(slot, code.get(1)),
            class::LDX => load(slot),
            class::ST | class::STX => store(slot),
            class::ALU => alu(slot, Width::W32),
            class::ALU64 => alu(slot, Width::W64),
            class::JMP => jump(slot, Width::W64),
            _ => jump(slot, Width::W32),
        };
        insn.map_err(|problem| DecodeError { at: 0, opcode: slot.opcode, problem })
    }

    /// Its encoding: the second slot is there if [`Insn::slots`] is 2.
    ///
    /// What no instruction can mean (a sign-extending move of 8 bytes, a short jump that is too
    /// far) is encoded as something that [`Insn::decode`] refuses or reads differently; the
    /// assembler makes none of that.
    #[must_use]
    pub fn encode(&self) -> (Slot, Option<Slot>) {
        let one = |slot| (slot, None);
        match *self {
            Insn::Alu { width, op, dst, src } => {
                let (code, off) = alu_code(op);
                let (x, src, imm) = operand_fields(src);
                one(Slot::new(alu_class(width) | code | x, dst.number(), src, off, imm))
            }
            Insn::Neg { width, dst } => one(Slot::new(alu_class(width) | ALU_NEG, dst.number(), 0, 0, 0)),
            Insn::MovSx { width, dst, src, from } => {
                let opcode = alu_class(width) | ALU_MOV | X;
                one(Slot::new(opcode, dst.number(), src.number(), from.bits() as i16, 0))
            }
            Insn::Swap { order, size, dst } => {
                let opcode = match order {
                    Swap::Le => class::ALU | ALU_END,
                    Swap::Be => class::ALU | ALU_END | X,
                    Swap::Always => class::ALU64 | ALU_END,
                };
                one(Slot::new(opcode, dst.number(), 0, 0, size.bits() as i32))
            }
            Insn::Load { size, signed, dst, base, off } => {
                let mode = if signed { MODE_MEMSX } else { MODE_MEM };
                one(Slot::new(class::LDX | mode | size_code(size), dst.number(), base.number(), off, 0))
            }
            Insn::Store { size, base, off, src } => {
                let (x, src, imm) = operand_fields(src);
                let class = if x == 0 { class::ST } else { class::STX };
                one(Slot::new(class | MODE_MEM | size_code(size), base.number(), src, off, imm))
            }
            Insn::Atomic { width, op, base, off, src } => {
                let opcode = class::STX | MODE_ATOMIC | size_code(width.size());
                one(Slot::new(opcode, base.number(), src.number(), off, atomic_code(op)))
            }
            Insn::LoadImm64 { dst, imm } => {
                let (kind, low, high) = match imm {
                    Imm64::Value(v) => (0, v as u32, (v >> 32) as u32),
                    Imm64::MapFd(fd) => (1, fd, 0),
                    Imm64::MapFdValue { map, offset } => (2, map, offset),
                    Imm64::BtfId { id, module } => (3, id, module),
                    Imm64::Func(off) => (4, off as u32, 0),
                    Imm64::Map(index) => (5, index, 0),
                    Imm64::MapValue { map, offset } => (6, map, offset),
                    Imm64::Thread(offset) => (15, offset, 0),
                };
                let second = Slot { imm: high as i32, ..Slot::default() };
                (Slot::new(LD_IMM64, dst.number(), kind, 0, low as i32), Some(second))
            }
            Insn::Goto { off, long: false } => one(Slot::new(class::JMP | JMP_JA, 0, 0, off as i16, 0)),
            Insn::Goto { off, long: true } => one(Slot::new(class::JMP32 | JMP_JA, 0, 0, 0, off)),
            Insn::Branch { width, cond, dst, src, off } => {
                let class = if width == Width::W64 { class::JMP } else { class::JMP32 };
                let (x, src, imm) = operand_fields(src);
                one(Slot::new(class | cond_code(cond) | x, dst.number(), src, off, imm))
            }
            Insn::CallHelper(number) => one(Slot::new(class::JMP | JMP_CALL, 0, 0, 0, number as i32)),
            Insn::CallLocal(off) => one(Slot::new(class::JMP | JMP_CALL, 0, 1, 0, off)),
            Insn::Exit => one(Slot::new(class::JMP | JMP_EXIT, 0, 0, 0, 0)),
        }
    }
}

fn alu_class(width: Width) -> u8 {
    if width == Width::W64 { class::ALU64 } else { class::ALU }
}

fn operand_fields(src: Operand) -> (u8, u8, i32) {
    match src {
        Operand::Reg(reg) => (X, reg.number(), 0),
        Operand::Imm(imm) => (0, 0, imm),
    }
}

fn size_code(size: Size) -> u8 {
    match size {
        Size::W => 0x00,
        Size::H => 0x08,
        Size::B => 0x10,
        Size::Dw => 0x18,
    }
}

/// The operation, and what is in `off`.
fn alu_code(op: AluOp) -> (u8, i16) {
    match op {
        AluOp::Add => (0x00, 0),
        AluOp::Sub => (0x10, 0),
        AluOp::Mul => (0x20, 0),
        AluOp::Div => (0x30, 0),
        AluOp::Sdiv => (0x30, 1),
        AluOp::Or => (0x40, 0),
        AluOp::And => (0x50, 0),
        AluOp::Lsh => (0x60, 0),
        AluOp::Rsh => (0x70, 0),
        AluOp::Mod => (0x90, 0),
        AluOp::Smod => (0x90, 1),
        AluOp::Xor => (0xa0, 0),
        AluOp::Mov => (ALU_MOV, 0),
        AluOp::Arsh => (0xc0, 0),
    }
}

fn cond_code(cond: Cond) -> u8 {
    match cond {
        Cond::Eq => 0x10,
        Cond::Gt => 0x20,
        Cond::Ge => 0x30,
        Cond::Set => 0x40,
        Cond::Ne => 0x50,
        Cond::Sgt => 0x60,
        Cond::Sge => 0x70,
        Cond::Lt => 0xa0,
        Cond::Le => 0xb0,
        Cond::Slt => 0xc0,
        Cond::Sle => 0xd0,
    }
}

fn atomic_code(op: AtomicOp) -> i32 {
    match op {
        AtomicOp::Add { fetch } => i32::from(fetch),
        AtomicOp::Or { fetch } => 0x40 | i32::from(fetch),
        AtomicOp::And { fetch } => 0x50 | i32::from(fetch),
        AtomicOp::Xor { fetch } => 0xa0 | i32::from(fetch),
        AtomicOp::Xchg => 0xe0 | FETCH,
        AtomicOp::Cmpxchg => 0xf0 | FETCH,
    }
}

fn load_imm64(slot: Slot, second: Option<&Slot>) -> Result<Insn, DecodeProblem> {
    match slot.opcode & 0xe0 {
        0x20 | 0x40 => {
            return Err(DecodeProblem::Unsupported("packet loads (BPF_ABS, BPF_IND) have no meaning in a probe"));
        }
        _ if slot.opcode != LD_IMM64 => return Err(DecodeProblem::Opcode),
        _ => {}
    }
    let second = *second.ok_or(DecodeProblem::Truncated)?;
    slot.no_off()?;
    if (second.opcode, second.regs, second.off) != (0, 0, 0) {
        return Err(DecodeProblem::Unsupported("the second slot must be empty but for its imm"));
    }
    let dst = slot.dst_reg()?;
    let (low, high) = (slot.imm as u32, second.imm as u32);
    let imm = match slot.src() {
        0 => Imm64::Value(u64::from(high) << 32 | u64::from(low)),
        2 => Imm64::MapFdValue { map: low, offset: high },
        3 => Imm64::BtfId { id: low, module: high },
        6 => Imm64::MapValue { map: low, offset: high },
        kind => {
            second.no_imm()?;
            match kind {
                1 => Imm64::MapFd(low),
                4 => Imm64::Func(slot.imm),
                5 => Imm64::Map(low),
                15 => Imm64::Thread(low),
                _ => return Err(DecodeProblem::Field("src", kind.into())),
            }
        }
    };
    Ok(Insn::LoadImm64 { dst, imm })
}

fn load(slot: Slot) -> Result<Insn, DecodeProblem> {
    let size = slot.size();
    let signed = match slot.opcode & 0xe0 {
        MODE_MEM => false,
        MODE_MEMSX if size != Size::Dw => true,
        _ => return Err(DecodeProblem::Opcode),
    };
    slot.no_imm()?;
    Ok(Insn::Load { size, signed, dst: slot.dst_reg()?, base: slot.src_reg()?, off: slot.off })
}

fn store(slot: Slot) -> Result<Insn, DecodeProblem> {
    let (size, base, off) = (slot.size(), slot.dst_reg(), slot.off);
    match (slot.opcode & 7, slot.opcode & 0xe0) {
        (class::ST, MODE_MEM) => {
            slot.no_src()?;
            Ok(Insn::Store { size, base: base?, off, src: Operand::Imm(slot.imm) })
        }
        (class::STX, MODE_MEM) => {
            slot.no_imm()?;
            Ok(Insn::Store { size, base: base?, off, src: Operand::Reg(slot.src_reg()?) })
        }
        (class::STX, MODE_ATOMIC) => {
            let width = match size {
                Size::W => Width::W32,
                Size::Dw => Width::W64,
                Size::B | Size::H => return Err(DecodeProblem::Opcode),
            };
            let fetch = slot.imm & FETCH != 0;
            let op = match slot.imm & !FETCH {
                0x00 => AtomicOp::Add { fetch },
                0x40 => AtomicOp::Or { fetch },
                0x50 => AtomicOp::And { fetch },
                0xa0 => AtomicOp::Xor { fetch },
                0xe0 if fetch => AtomicOp::Xchg,
                0xf0 if fetch => AtomicOp::Cmpxchg,
                0x100 | 0x110 => {
                    return Err(DecodeProblem::Unsupported(
                        "load_acquire and store_release are newer than eBPF version 4; compile with -mcpu=v4",
                    ));
                }
                _ => return Err(DecodeProblem::Field("imm", slot.imm.into())),
            };
            Ok(Insn::Atomic { width, op, base: base?, off, src: slot.src_reg()? })
        }
        _ => Err(DecodeProblem::Opcode),
    }
}

fn alu(slot: Slot, width: Width) -> Result<Insn, DecodeProblem> {
    let dst = slot.dst_reg();
    let op = match (slot.opcode & 0xf0, slot.off) {
        (ALU_NEG, _) if slot.opcode & X != 0 => return Err(DecodeProblem::Opcode),
        (ALU_NEG, _) => {
            slot.no_src()?;
            slot.no_off()?;
            slot.no_imm()?;
            return Ok(Insn::Neg { width, dst: dst? });
        }
        (ALU_END, _) => return swap(slot, width),
        (ALU_MOV, off) if off != 0 && slot.opcode & X != 0 => {
            slot.no_imm()?;
            let from = match (off, width) {
                (8, _) => Size::B,
                (16, _) => Size::H,
                (32, Width::W64) => Size::W,
                _ => return Err(DecodeProblem::Field("off", off.into())),
            };
            return Ok(Insn::MovSx { width, dst: dst?, src: slot.src_reg()?, from });
        }
        (0x30, 1) => AluOp::Sdiv,
        (0x90, 1) => AluOp::Smod,
        (code, off) => {
            let op = match code {
                0x00 => AluOp::Add,
                0x10 => AluOp::Sub,
                0x20 => AluOp::Mul,
                0x30 => AluOp::Div,
                0x40 => AluOp::Or,
                0x50 => AluOp::And,
                0x60 => AluOp::Lsh,
                0x70 => AluOp::Rsh,
                0x90 => AluOp::Mod,
                0xa0 => AluOp::Xor,
                ALU_MOV => AluOp::Mov,
                0xc0 => AluOp::Arsh,
                _ => return Err(DecodeProblem::Opcode),
            };
            zero("off", off.into())?;
            op
        }
    };
    Ok(Insn::Alu { width, op, dst: dst?, src: slot.operand()? })
}

fn swap(slot: Slot, width: Width) -> Result<Insn, DecodeProblem> {
    let order = match (width, slot.opcode & X != 0) {
        (Width::W32, false) => Swap::Le,
        (Width::W32, true) => Swap::Be,
        (Width::W64, false) => Swap::Always,
        (Width::W64, true) => return Err(DecodeProblem::Opcode),
    };
    slot.no_src()?;
    slot.no_off()?;
    let size = match slot.imm {
        16 => Size::H,
        32 => Size::W,
        64 => Size::Dw,
        other => return Err(DecodeProblem::Field("imm", other.into())),
    };
    Ok(Insn::Swap { order, size, dst: slot.dst_reg()? })
}

fn jump(slot: Slot, width: Width) -> Result<Insn, DecodeProblem> {
    let cond = match (slot.opcode & 0xf0, slot.opcode & X != 0, width) {
        (JMP_JA, false, _) => {
            slot.no_dst()?;
            slot.no_src()?;
            if width == Width::W64 {
                slot.no_imm()?;
                return Ok(Insn::Goto { off: slot.off.into(), long: false });
            }
            slot.no_off()?;
            return Ok(Insn::Goto { off: slot.imm, long: true });
        }
        (JMP_CALL, false, Width::W64) => return call(slot),
        (JMP_CALL, true, Width::W64) => {
            return Err(DecodeProblem::Unsupported("calls through a register do not exist in eBPF; call directly"));
        }
        (JMP_EXIT, false, Width::W64) => {
            slot.no_dst()?;
            slot.no_src()?;
            slot.no_off()?;
            slot.no_imm()?;
            return Ok(Insn::Exit);
        }
        (JMP_COND, false, Width::W64) => {
            return Err(DecodeProblem::Unsupported("may_goto is not supported; bound the loop by a counter"));
        }
        (0x10, ..) => Cond::Eq,
        (0x20, ..) => Cond::Gt,
        (0x30, ..) => Cond::Ge,
        (0x40, ..) => Cond::Set,
        (0x50, ..) => Cond::Ne,
        (0x60, ..) => Cond::Sgt,
        (0x70, ..) => Cond::Sge,
        (0xa0, ..) => Cond::Lt,
        (0xb0, ..) => Cond::Le,
        (0xc0, ..) => Cond::Slt,
        (0xd0, ..) => Cond::Sle,
        _ => return Err(DecodeProblem::Opcode),
    };
    Ok(Insn::Branch { width, cond, dst: slot.dst_reg()?, src: slot.operand()?, off: slot.off })
}

fn call(slot: Slot) -> Result<Insn, DecodeProblem> {
    slot.no_dst()?;
    match slot.src() {
        0 => {
            slot.no_off()?;
            Ok(Insn::CallHelper(slot.imm as u32))
        }
        1 => {
            slot.no_off()?;
            Ok(Insn::CallLocal(slot.imm))
        }
        2 => Err(DecodeProblem::Unsupported("kernel functions cannot be called outside the kernel; use a helper")),
        other => Err(DecodeProblem::Field("src", other.into())),
    }
}
