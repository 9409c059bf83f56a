//! Encodings of the instructions that programs become, by form rather than by name.
//!
//! Intel SDM, volume 2, chapter 2 (prefixes, ModRM, SIB) and the opcode map of appendix A.

use sidestep_isa::x86::emit::Reg;

use crate::insn::{AluOp, Cond, Size, Width};

/// A memory operand: `[base + disp]`.
#[derive(Clone, Copy)]
pub struct Mem {
    pub base: Reg,
    pub disp: i32,
}

/// Conditions as in opcodes (appendix B.1.4.7).
pub const JE: u8 = 4;
pub const JNE: u8 = 5;

/// The condition that holds after `cmp dst, src`, or `test` for [`Cond::Set`].
pub fn condition(cond: Cond) -> u8 {
    match cond {
        Cond::Lt => 2,
        Cond::Ge => 3,
        Cond::Eq => JE,
        Cond::Ne | Cond::Set => JNE,
        Cond::Le => 6,
        Cond::Gt => 7,
        Cond::Slt => 12,
        Cond::Sge => 13,
        Cond::Sle => 14,
        Cond::Sgt => 15,
    }
}

/// Code, without knowledge of what it means.
#[derive(Default)]
pub struct Emit {
    pub bytes: Vec<u8>,
}

fn wide(width: Width) -> bool {
    width == Width::W64
}

impl Emit {
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn imm32(&mut self, value: i32) {
        self.raw(&value.to_le_bytes());
    }

    /// REX, if it says anything or a byte register needs it.
    fn rex(&mut self, w: bool, reg: u8, rm: u8, byte: bool) {
        let rex = 0x40 | u8::from(w) << 3 | (reg >> 3) << 2 | rm >> 3;
        if rex != 0x40 || byte {
            self.bytes.push(rex);
        }
    }

    /// `op reg, rm` of two registers; `reg` may be an opcode extension.
    pub fn registers(&mut self, w: bool, opcode: &[u8], reg: u8, rm: Reg) {
        self.rex(w, reg, rm as u8, false);
        self.raw(opcode);
        self.bytes.push(0xc0 | (reg & 7) << 3 | rm as u8 & 7);
    }

    /// `op reg, [mem]`; `byte` if `reg` is a byte register.
    pub fn memory(&mut self, w: bool, opcode: &[u8], reg: u8, mem: Mem, byte: bool) {
        self.rex(w, reg, mem.base as u8, byte && reg >= 4);
        self.raw(opcode);
        let (reg, base) = ((reg & 7) << 3, mem.base as u8 & 7);
        // No displacement at all is not encodable for rbp and r13.
        let (mode, short) = match i8::try_from(mem.disp) {
            Ok(0) if base != 5 => (0x00, None),
            Ok(disp) => (0x40, Some(disp)),
            Err(_) => (0x80, None),
        };
        self.bytes.push(mode | reg | base);
        if base == 4 {
            self.bytes.push(0x24);
        }
        match short {
            Some(disp) => self.bytes.push(disp as u8),
            None if mode == 0x80 => self.imm32(mem.disp),
            None => {}
        }
    }

    pub fn mov(&mut self, width: Width, dst: Reg, src: Reg) {
        self.registers(wide(width), &[0x89], src as u8, dst);
    }

    /// The shortest that loads this value; changes flags for 0.
    pub fn mov_imm(&mut self, dst: Reg, value: u64) {
        if value == 0 {
            self.registers(false, &[0x31], dst as u8, dst);
        } else if let Ok(low) = u32::try_from(value) {
            self.rex(false, 0, dst as u8, false);
            self.bytes.push(0xb8 | dst as u8 & 7);
            self.raw(&low.to_le_bytes());
        } else if let Ok(low) = i32::try_from(value as i64) {
            self.registers(true, &[0xc7], 0, dst);
            self.imm32(low);
        } else {
            self.movabs(dst, value);
        }
    }

    /// `movabs dst, imm64`: the immediate is the last 8 bytes.
    pub fn movabs(&mut self, dst: Reg, value: u64) {
        self.rex(true, 0, dst as u8, false);
        self.bytes.push(0xb8 | dst as u8 & 7);
        self.raw(&value.to_le_bytes());
    }

    pub fn lea(&mut self, dst: Reg, mem: Mem) {
        self.memory(true, &[0x8d], dst as u8, mem, false);
    }

    /// `lea dst, [base + index + disp]`; the index is not `rsp`.
    pub fn lea_sum(&mut self, dst: Reg, base: Reg, index: Reg, disp: i32) {
        let high = |reg: Reg| reg as u8 >> 3;
        let short = i8::try_from(disp).ok();
        let mode = if short.is_some() { 0x44 } else { 0x84 };
        self.raw(&[0x48 | high(dst) << 2 | high(index) << 1 | high(base), 0x8d, mode | (dst as u8 & 7) << 3]);
        self.bytes.push((index as u8 & 7) << 3 | base as u8 & 7);
        match short {
            Some(disp) => self.bytes.push(disp as u8),
            None => self.imm32(disp),
        }
    }

    /// Zero- or sign-extending load.
    pub fn load(&mut self, size: Size, signed: bool, dst: Reg, mem: Mem) {
        let opcode: &[u8] = match (size, signed) {
            (Size::B, false) => &[0x0f, 0xb6],
            (Size::H, false) => &[0x0f, 0xb7],
            (Size::W, false) | (Size::Dw, _) => &[0x8b],
            (Size::B, true) => &[0x0f, 0xbe],
            (Size::H, true) => &[0x0f, 0xbf],
            (Size::W, true) => &[0x63],
        };
        self.memory(signed || size == Size::Dw, opcode, dst as u8, mem, false);
    }

    pub fn store(&mut self, size: Size, mem: Mem, src: Reg) {
        if size == Size::H {
            self.bytes.push(0x66);
        }
        let opcode = if size == Size::B { 0x88 } else { 0x89 };
        self.memory(size == Size::Dw, &[opcode], src as u8, mem, size == Size::B);
    }

    pub fn store_imm(&mut self, size: Size, mem: Mem, value: i32) {
        if size == Size::H {
            self.bytes.push(0x66);
        }
        let opcode = if size == Size::B { 0xc6 } else { 0xc7 };
        self.memory(size == Size::Dw, &[opcode], 0, mem, false);
        let value = value.to_le_bytes();
        self.raw(&value[..size.bytes().min(4)]);
    }

    /// `op dst, src` for add, sub, or, and, xor; `test` and `cmp` with the same shape have names of
    /// their own.
    pub fn alu(&mut self, width: Width, op: AluOp, dst: Reg, src: Reg) {
        if op == AluOp::Mul {
            self.registers(wide(width), &[0x0f, 0xaf], dst as u8, src);
        } else {
            self.registers(wide(width), &[group1(op) << 3 | 1], src as u8, dst);
        }
    }

    pub fn alu_imm(&mut self, width: Width, op: AluOp, dst: Reg, imm: i32) {
        let short = i8::try_from(imm);
        if op == AluOp::Mul {
            self.registers(wide(width), &[if short.is_ok() { 0x6b } else { 0x69 }], dst as u8, dst);
            return self.imm8_or_32(imm);
        }
        self.group1_imm(width, group1(op), dst, imm);
    }

    pub fn cmp(&mut self, width: Width, a: Reg, b: Reg) {
        self.registers(wide(width), &[0x39], b as u8, a);
    }

    pub fn cmp_imm(&mut self, width: Width, a: Reg, imm: i32) {
        self.group1_imm(width, 7, a, imm);
    }

    pub fn test(&mut self, width: Width, a: Reg, b: Reg) {
        self.registers(wide(width), &[0x85], b as u8, a);
    }

    pub fn test_imm(&mut self, width: Width, a: Reg, imm: i32) {
        // A positive mask has no bit in the upper half.
        self.registers(wide(width) && imm < 0, &[0xf7], 0, a);
        self.imm32(imm);
    }

    fn group1_imm(&mut self, width: Width, extension: u8, reg: Reg, imm: i32) {
        let opcode = if i8::try_from(imm).is_ok() { 0x83 } else { 0x81 };
        self.registers(wide(width), &[opcode], extension, reg);
        self.imm8_or_32(imm);
    }

    fn imm8_or_32(&mut self, imm: i32) {
        match i8::try_from(imm) {
            Ok(short) => self.bytes.push(short as u8),
            Err(_) => self.imm32(imm),
        }
    }

    pub fn neg(&mut self, width: Width, reg: Reg) {
        self.registers(wide(width), &[0xf7], 3, reg);
    }

    /// `dx:ax / reg`; the caller fills `dx`.
    pub fn div(&mut self, width: Width, signed: bool, reg: Reg) {
        self.registers(wide(width), &[0xf7], if signed { 7 } else { 6 }, reg);
    }

    /// `cdq`, `cqo`: the sign of `ax` to `dx`.
    pub fn sign_to_dx(&mut self, width: Width) {
        self.rex(wide(width), 0, 0, false);
        self.bytes.push(0x99);
    }

    /// Shift by `cl`.
    pub fn shift(&mut self, width: Width, op: AluOp, reg: Reg) {
        self.registers(wide(width), &[0xd3], group2(op), reg);
    }

    /// Shift by a number below the width.
    pub fn shift_imm(&mut self, width: Width, op: AluOp, reg: Reg, by: u8) {
        self.registers(wide(width), &[0xc1], group2(op), reg);
        self.bytes.push(by);
    }

    /// Extends the lower bytes of a register; zero-extends to all of it if not `signed`, else to
    /// `width`.
    pub fn extend(&mut self, width: Width, signed: bool, from: Size, dst: Reg, src: Reg) {
        let opcode: &[u8] = match (from, signed) {
            (Size::B, false) => &[0x0f, 0xb6],
            (Size::B, true) => &[0x0f, 0xbe],
            (Size::H, false) => &[0x0f, 0xb7],
            (Size::H, true) => &[0x0f, 0xbf],
            (_, true) => &[0x63],
            (_, false) => return self.mov(Width::W32, dst, src),
        };
        // Byte operands 4 to 7 mean spl to dil only with a REX.
        self.rex(signed && wide(width), dst as u8, src as u8, from == Size::B && src as u8 >= 4);
        self.raw(opcode);
        self.bytes.push(0xc0 | (dst as u8 & 7) << 3 | src as u8 & 7);
    }

    /// Reverses the lower bytes, zero-extends.
    pub fn reverse(&mut self, size: Size, reg: Reg) {
        if size == Size::H {
            self.bytes.push(0x66);
            self.registers(false, &[0xc1], 0, reg);
            self.bytes.push(8);
            return self.extend(Width::W32, false, Size::H, reg, reg);
        }
        self.rex(size == Size::Dw, 0, reg as u8, false);
        self.raw(&[0x0f, 0xc8 | reg as u8 & 7]);
    }

    /// `op [mem], imm`, with `lock` before it if asked for.
    pub fn memory_imm(&mut self, lock: bool, width: Width, op: AluOp, mem: Mem, imm: i32) {
        if lock {
            self.bytes.push(0xf0);
        }
        let opcode = if i8::try_from(imm).is_ok() { 0x83 } else { 0x81 };
        self.memory(wide(width), &[opcode], group1(op), mem, false);
        self.imm8_or_32(imm);
    }

    /// `op [mem], reg`, with `lock` before it if asked for.
    pub fn atomic(&mut self, lock: bool, width: Width, opcode: &[u8], mem: Mem, reg: Reg) {
        if lock {
            self.bytes.push(0xf0);
        }
        self.memory(wide(width), opcode, reg as u8, mem, false);
    }

    pub fn push(&mut self, reg: Reg) {
        self.rex(false, 0, reg as u8, false);
        self.bytes.push(0x50 | reg as u8 & 7);
    }

    pub fn pop(&mut self, reg: Reg) {
        self.rex(false, 0, reg as u8, false);
        self.bytes.push(0x58 | reg as u8 & 7);
    }

    /// `call [mem]`
    pub fn call_memory(&mut self, mem: Mem) {
        self.memory(false, &[0xff], 2, mem, false);
    }

    pub fn ret(&mut self) {
        self.bytes.push(0xc3);
    }

    /// `jcc` over a few bytes that come now; [`Emit::land`] fills in how many.
    pub fn skip_if(&mut self, condition: u8) -> usize {
        self.raw(&[0x70 | condition, 0]);
        self.bytes.len()
    }

    /// `jmp` over a few bytes that come now.
    pub fn skip(&mut self) -> usize {
        self.raw(&[0xeb, 0]);
        self.bytes.len()
    }

    /// Where a short forward jump goes: here.
    pub fn land(&mut self, from: usize) {
        let distance = self.bytes.len() - from;
        debug_assert!(distance < 128);
        self.bytes[from - 1] = distance as u8;
    }
}

fn group1(op: AluOp) -> u8 {
    match op {
        AluOp::Add => 0,
        AluOp::Or => 1,
        AluOp::And => 4,
        AluOp::Sub => 5,
        AluOp::Xor => 6,
        other => unreachable!("{other:?} has an encoding of its own"),
    }
}

fn group2(op: AluOp) -> u8 {
    match op {
        AluOp::Lsh => 4,
        AluOp::Rsh => 5,
        AluOp::Arsh => 7,
        other => unreachable!("{other:?} is no shift"),
    }
}
