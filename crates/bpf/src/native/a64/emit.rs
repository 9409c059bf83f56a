//! Operations in both widths, with operands that have no encoding of their own.

use sidestep_isa::Va;
use sidestep_isa::a64::emit::{
    self as word, Address, Asm, Cond as Condition, EncodeError, Encoded, Label, Reg as Machine, Size as Bytes,
};

use super::allocate::x;
use crate::insn::{AluOp, Cond, Size, Swap, Width};

/// Code being emitted.
pub struct Emit {
    pub asm: Asm,
    /// The registers that it has changed, one bit each.
    pub changed: u32,
}

fn bytes(size: Size) -> Bytes {
    match size {
        Size::B => Bytes::Byte,
        Size::H => Bytes::Half,
        Size::W => Bytes::Word,
        Size::Dw => Bytes::Double,
    }
}

/// An operation in a width.
fn sized(width: Width, word: Encoded) -> Encoded {
    match width {
        Width::W64 => word,
        Width::W32 => word::narrow(word),
    }
}

/// The condition of a comparison: which flags.
pub fn condition(cond: Cond) -> Condition {
    match cond {
        Cond::Eq => Condition::Eq,
        Cond::Ne | Cond::Set => Condition::Ne,
        Cond::Gt => Condition::Hi,
        Cond::Ge => Condition::Cs,
        Cond::Lt => Condition::Cc,
        Cond::Le => Condition::Ls,
        Cond::Sgt => Condition::Gt,
        Cond::Sge => Condition::Ge,
        Cond::Slt => Condition::Lt,
        Cond::Sle => Condition::Le,
    }
}

/// An immediate as a mask of one width, with equal halves for the lower one.
fn mask(width: Width, imm: i32) -> u64 {
    match width {
        Width::W64 => i64::from(imm) as u64,
        Width::W32 => u64::from(imm as u32) << 32 | u64::from(imm as u32),
    }
}

impl Emit {
    pub fn new() -> Emit {
        Emit { asm: Asm::new(Va(0)), changed: 0 }
    }

    pub fn changes(&mut self, machine: Machine) {
        if machine != Machine::SP {
            self.changed |= machine.bit();
        }
    }

    /// An instruction that changes a register.
    pub fn push(&mut self, to: Machine, word: Encoded) {
        self.changes(to);
        self.asm.push(word);
    }

    pub fn mov(&mut self, width: Width, to: Machine, from: Machine) {
        if to != from || width == Width::W32 {
            let word = if from == Machine::SP { word::mov(to, from) } else { word::orr(to, Machine::ZERO, from) };
            self.push(to, sized(width, word));
        }
    }

    /// Any constant, in as few instructions as possible.
    pub fn constant(&mut self, to: Machine, value: u64) {
        self.changes(to);
        let moves = word::mov_constant(to, value).map_or(0, |words| words.len());
        match word::orr_mask(to, Machine::ZERO, value) {
            Ok(word) if moves > 1 => self.asm.word(word),
            _ => self.asm.constant(to, value),
        }
    }

    /// An immediate in a register.
    pub fn immediate(&mut self, width: Width, to: Machine, imm: i32) {
        self.constant(to, if width == Width::W64 { i64::from(imm) as u64 } else { u64::from(imm as u32) });
    }

    /// `to = base + distance`
    pub fn sum(&mut self, to: Machine, base: Machine, distance: i64) {
        let (large, add): (i64, fn(Machine, Machine, i64) -> Encoded) =
            if distance < 0 { (-distance, word::sub_imm) } else { (distance, word::add_imm) };
        if large >= 1 << 24 {
            let by = if to == base { x(17) } else { to };
            self.constant(by, distance as u64);
            return self.push(to, word::add(to, base, by));
        }
        let mut from = base;
        for part in [large & !0xfff, large & 0xfff].into_iter().filter(|part| *part != 0) {
            self.push(to, add(to, from, part));
            from = to;
        }
        if from == base {
            self.mov(Width::W64, to, base);
        }
    }

    /// An access at an address, by way of `scratch` if the distance is too large.
    fn access(
        &mut self,
        scratch: Machine,
        (base, distance): (Machine, i64),
        word: impl Fn(Address) -> Encoded,
    ) -> Result<u32, EncodeError> {
        let near = word(Address::with(base, distance));
        near.or_else(|_| {
            self.sum(scratch, base, distance);
            word(Address::at(scratch))
        })
    }

    /// Loads, with zeros or the sign above. Changes no other register.
    pub fn load(&mut self, size: Size, signed: bool, to: Machine, place: (Machine, i64)) {
        let size = bytes(size);
        // The base may be `to`, which is the scratch register then.
        let signed = signed && size != Bytes::Double;
        let one = |address| if signed { word::ldrs(size, to, address) } else { word::ldr(size, to, address) };
        let word = self.access(to, place, one);
        self.push(to, word);
    }

    pub fn store(&mut self, size: Size, scratch: Machine, place: (Machine, i64), value: Machine) {
        let word = self.access(scratch, place, |address| word::str(bytes(size), value, address));
        self.asm.push(word);
    }

    /// `to = to op from`, but for moves.
    pub fn alu(&mut self, width: Width, op: AluOp, to: Machine, from: Machine, scratch: Machine) {
        let word = match op {
            AluOp::Add => word::add(to, to, from),
            AluOp::Sub => word::sub(to, to, from),
            AluOp::Mul => word::mul(to, to, from),
            AluOp::Div => word::udiv(to, to, from),
            AluOp::Sdiv => word::sdiv(to, to, from),
            AluOp::Or => word::orr(to, to, from),
            AluOp::And => word::and(to, to, from),
            AluOp::Lsh => word::lsl(to, to, from),
            AluOp::Rsh => word::lsr(to, to, from),
            AluOp::Arsh => word::asr(to, to, from),
            AluOp::Xor => word::eor(to, to, from),
            AluOp::Mov => return self.mov(width, to, from),
            AluOp::Mod | AluOp::Smod => {
                // A division by zero gives 0, so the remainder is what was divided.
                let divided = if op == AluOp::Mod { word::udiv } else { word::sdiv };
                self.push(scratch, sized(width, divided(scratch, to, from)));
                word::msub(to, scratch, from, to)
            }
        };
        self.push(to, sized(width, word));
    }

    /// `to = to op imm`, but for moves.
    pub fn alu_imm(&mut self, width: Width, op: AluOp, to: Machine, imm: i32, scratch: [Machine; 2]) {
        let (value, ones) = (i64::from(imm), mask(width, imm));
        let by = imm as u32 & (width.bits() - 1);
        let rest = width.bits() - by;
        let word = match op {
            AluOp::Add if value < 0 => word::sub_imm(to, to, -value),
            AluOp::Add => word::add_imm(to, to, value),
            AluOp::Sub if value < 0 => word::add_imm(to, to, -value),
            AluOp::Sub => word::sub_imm(to, to, value),
            AluOp::Or => word::orr_mask(to, to, ones),
            AluOp::And => word::and_mask(to, to, ones),
            AluOp::Xor => word::eor_mask(to, to, ones),
            AluOp::Lsh => return self.push(to, word::ubfiz(to, to, by, rest)),
            AluOp::Rsh => return self.push(to, word::ubfx(to, to, by, rest)),
            AluOp::Arsh => return self.push(to, sized(width, word::sbfx(to, to, by, rest))),
            AluOp::Mov => return self.immediate(width, to, imm),
            _ => Err(EncodeError::Operand { name: "imm", value }),
        };
        if let Ok(word) = sized(width, word) {
            return self.push(to, Ok(word));
        }
        self.immediate(width, scratch[0], imm);
        self.alu(width, op, to, scratch[0], scratch[1]);
    }

    pub fn neg(&mut self, width: Width, to: Machine) {
        self.push(to, sized(width, word::neg(to, to)));
    }

    /// The lower bytes with their sign, in a width, with zeros above.
    pub fn extend(&mut self, width: Width, size: Size, to: Machine, from: Machine) {
        self.push(to, sized(width, word::sbfx(to, from, 0, size.bits())));
    }

    pub fn swap(&mut self, order: Swap, size: Size, to: Machine) {
        match (order, size) {
            (Swap::Le, Size::Dw) => {}
            (Swap::Le, _) | (_, Size::B) => self.push(to, word::ubfx(to, to, 0, size.bits())),
            (_, Size::H) => {
                self.push(to, word::narrow(word::rev16(to, to)));
                self.push(to, word::ubfx(to, to, 0, 16));
            }
            (_, Size::W) => self.push(to, word::narrow(word::rev32(to, to))),
            (_, Size::Dw) => self.push(to, word::rev(to, to)),
        }
    }

    pub fn compare(&mut self, width: Width, cond: Cond, a: Machine, b: Machine) {
        let word = if cond == Cond::Set { word::tst(a, b) } else { word::cmp(a, b) };
        self.asm.push(sized(width, word));
    }

    pub fn compare_imm(&mut self, width: Width, cond: Cond, a: Machine, imm: i32, scratch: Machine) {
        let value = i64::from(imm);
        let word = match cond {
            Cond::Set => word::tst_mask(a, mask(width, imm)),
            // With a carry as of the comparison, for all but 0.
            _ if value < 0 => word::cmn_imm(a, -value),
            _ => word::cmp_imm(a, value),
        };
        if let Ok(word) = sized(width, word) {
            return self.asm.word(word);
        }
        self.immediate(width, scratch, imm);
        self.compare(width, cond, a, scratch);
    }

    /// Jumps if a condition holds; `far`: perhaps more than 1 MiB.
    pub fn branch(&mut self, condition: Condition, far: bool, to: Label) {
        if !far {
            return self.asm.b_cond(condition, to);
        }
        let here = self.asm.here();
        // The opposite one, over the next word.
        let one = word::b_cond(condition, here, here);
        let opposite = one.map(|one| word::invert(one, 2).unwrap_or(one));
        self.asm.push(opposite);
        self.asm.b(to);
    }

    /// Jumps if a register is 0, or if not.
    pub fn branch_zero(&mut self, width: Width, zero: bool, register: Machine, to: Label) {
        self.asm.to_label(to, move |from, to| {
            let word = if zero { word::cbz(register, from, to) } else { word::cbnz(register, from, to) };
            sized(width, word)
        });
    }

    /// The address of a label; `far`: perhaps more than 1 MiB away.
    pub fn address_of(&mut self, to: Machine, far: bool, label: Label, scratch: Machine) {
        if !far {
            self.changes(to);
            return self.asm.adr(to, label);
        }
        let here = self.asm.here();
        self.push(to, word::adr(to, here, here));
        self.changes(scratch);
        self.asm.to_label(label, move |_, to| word::movz(scratch, to.since(here) as u16, 0));
        for quarter in 1..4 {
            self.asm
                .to_label(label, move |_, to| word::movk(scratch, (to.since(here) >> (16 * quarter)) as u16, quarter));
        }
        self.push(to, word::add(to, to, scratch));
    }
}
