//! Arguments into the record.

use sidestep_bpf::{AluOp, Cond, Insn, Operand, Reg, Size, Width};

use super::{Compiler, GET_FUNC_IP, PROBE_READ_USER, PROBE_READ_USER_STR};
use crate::uprobe_events::event::{Arg, Base, Fetch, Register, Type, WORD};
use crate::uprobe_events::record::{EMPTY, HEADER};

/// Stack: what was read last.
const LAST: i16 = -8;
/// Stack: address of the first pointer of an array of strings.
const POINTERS: i16 = -16;
/// Stack: whether that address could not be read.
const FAILED: i16 = -24;

/// Where a base is.
pub(super) enum Source {
    /// A word of the context.
    Context(Register),
    /// A number.
    Value(u64),
    /// An address in the probed file, at this distance from the probe.
    File(i64),
}

/// A fetch as a word and the offsets at which memory is read.
pub(super) fn source(fetch: &Fetch, probe: u64) -> (Source, Vec<i64>) {
    let mut derefs = Vec::with_capacity(fetch.derefs.len() + 1);
    let source = match fetch.base {
        Base::Register(register) => Source::Context(register),
        Base::StackPointer => Source::Context(Register::stack_pointer()),
        Base::Stack(n) => {
            derefs.push(WORD.bytes() as i64 * i64::from(n));
            Source::Context(Register::stack_pointer())
        }
        Base::ReturnValue => Source::Context(Register::result()),
        Base::Argument(n) => match Register::arguments().nth(n as usize) {
            Some(register) => Source::Context(register),
            None => {
                // The first word of the stack is the return address.
                let behind = i64::from(n) - Register::arguments().len() as i64 + 1;
                derefs.push(WORD.bytes() as i64 * behind);
                Source::Context(Register::stack_pointer())
            }
        },
        Base::Immediate(value) => Source::Value(value),
        Base::FileOffset(offset) => Source::File(offset.wrapping_sub(probe as i64)),
        // Is not fetched.
        Base::Comm | Base::Text(_) => Source::Value(0),
    };
    derefs.extend_from_slice(&fetch.derefs);
    (source, derefs)
}

impl Compiler<'_> {
    /// Puts an argument into the record, at `at`.
    pub(super) fn field(&mut self, index: usize, arg: &Arg, at: usize) {
        let (source, derefs) = source(&arg.fetch, self.event.offset);
        let count = arg.count.unwrap_or(1) as usize;
        match (arg.ty, arg.count) {
            (Type::String, None) => {
                self.address(&source, &derefs);
                self.string(at);
            }
            (Type::String, Some(_)) => {
                self.address(&source, &derefs);
                self.strings(at, count);
            }
            (ty, _) if derefs.is_empty() => {
                self.word(&source);
                self.out.store(ty.size(), at as i16, Reg::R3);
                self.bits(ty, at, 1);
            }
            (ty, _) => {
                self.address(&source, &derefs);
                self.numbers(index, ty, at, count);
            }
        }
    }

    /// The base into `r3`.
    fn word(&mut self, source: &Source) {
        match source {
            Source::Context(register) => self.out.load(Size::Dw, Reg::R3, Reg::R6, register.offset()),
            Source::Value(value) => self.out.set(Reg::R3, *value),
            Source::File(distance) => {
                self.out.mov(Reg::R1, Reg::R6);
                self.out.call(GET_FUNC_IP);
                self.out.mov(Reg::R3, Reg::R0);
                self.add(*distance);
            }
        }
    }

    /// `r3 += offset`
    fn add(&mut self, offset: i64) {
        if offset != 0 {
            self.out.alu_value(AluOp::Add, Reg::R3, offset as u64, Reg::R2);
        }
    }

    /// The address that the last deref reads at into `r3`, and whether that failed into `r9`.
    fn address(&mut self, source: &Source, derefs: &[i64]) {
        self.word(source);
        self.out.mov_imm(Reg::R9, 0);
        let Some((last, derefs)) = derefs.split_last() else { return };
        for offset in derefs {
            self.add(*offset);
            self.read_word();
        }
        self.add(*last);
    }

    /// `r3` becomes the word at `r3`.
    fn read_word(&mut self) {
        self.out.mov(Reg::R1, Reg::R10);
        self.out.alu_imm(AluOp::Add, Reg::R1, LAST.into());
        self.out.mov_imm(Reg::R2, WORD.bytes() as i32);
        self.out.call(PROBE_READ_USER);
        self.out.alu(AluOp::Or, Reg::R9, Reg::R0);
        self.out.load(WORD, Reg::R3, Reg::R10, LAST);
    }

    /// Numbers at `r3`.
    fn numbers(&mut self, index: usize, ty: Type, at: usize, count: usize) {
        let out = &mut self.out;
        out.mov(Reg::R1, Reg::R7);
        out.alu_imm(AluOp::Add, Reg::R1, at as i32);
        out.mov_imm(Reg::R2, (ty.size().bytes() * count) as i32);
        out.call(PROBE_READ_USER);
        out.alu(AluOp::Or, Reg::R9, Reg::R0);
        out.sign(Reg::R9);
        let faults = (HEADER + index / 8) as i16;
        out.mov(Reg::R1, Reg::R9);
        out.alu_imm(AluOp::And, Reg::R1, 1 << (index % 8));
        out.load(Size::B, Reg::R2, Reg::R7, faults);
        out.alu(AluOp::Or, Reg::R2, Reg::R1);
        out.store(Size::B, faults, Reg::R2);
        // What could not be read is 0 to filters. They look at arrays only if these are as long as
        // a number.
        let sizes = [Size::B, Size::H, Size::W, Size::Dw];
        if let Some(size) = sizes.into_iter().find(|size| size.bytes() == ty.size().bytes() * count) {
            out.invert(Reg::R9);
            out.load(size, Reg::R1, Reg::R7, at as i16);
            out.alu(AluOp::And, Reg::R1, Reg::R9);
            out.store(size, at as i16, Reg::R1);
        }
        self.bits(ty, at, count);
    }

    /// Takes the bits out of numbers of the record.
    fn bits(&mut self, ty: Type, at: usize, count: usize) {
        let Type::Bits { width, shift, size } = ty else { return };
        for n in 0..count {
            let at = (at + n * size.bytes()) as i16;
            self.out.load(size, Reg::R1, Reg::R7, at);
            take_bits(&mut self.out, Reg::R1, width, shift);
            self.out.store(size, at, Reg::R1);
        }
    }

    /// A string at `r3`; its word goes to `at`.
    fn string(&mut self, at: usize) {
        let room = self.format.room as i32;
        let discard = self.discard;
        let out = &mut self.out;
        out.mov(Reg::R1, Reg::R7);
        out.alu(AluOp::Add, Reg::R1, Reg::R8);
        out.mov_imm(Reg::R2, room);
        out.call(PROBE_READ_USER_STR);
        // Its length, 0 if something failed.
        out.alu(AluOp::Or, Reg::R9, Reg::R0);
        out.sign(Reg::R9);
        out.invert(Reg::R9);
        out.alu(AluOp::And, Reg::R0, Reg::R9);
        // It never is longer; that is for the verifier.
        out.branch_imm(Width::W64, Cond::Gt, Reg::R0, room, discard);
        // Where it is: in the header if it failed.
        out.mov(Reg::R1, Reg::R8);
        out.alu_imm(AluOp::Sub, Reg::R1, EMPTY);
        out.alu(AluOp::And, Reg::R1, Reg::R9);
        out.alu_imm(AluOp::Add, Reg::R1, EMPTY);
        out.alu(AluOp::Add, Reg::R8, Reg::R0);
        out.alu_imm(AluOp::Lsh, Reg::R0, 16);
        out.alu(AluOp::Or, Reg::R0, Reg::R1);
        out.store(Size::W, at as i16, Reg::R0);
    }

    /// Strings that the words at `r3` point to.
    fn strings(&mut self, at: usize, count: usize) {
        for (off, src) in [(POINTERS, Reg::R3), (FAILED, Reg::R9)] {
            self.out.push(Insn::Store { size: Size::Dw, base: Reg::R10, off, src: Operand::Reg(src) });
        }
        for n in 0..count {
            self.out.load(Size::Dw, Reg::R3, Reg::R10, POINTERS);
            self.out.load(Size::Dw, Reg::R9, Reg::R10, FAILED);
            self.add((WORD.bytes() * n) as i64);
            self.read_word();
            self.string(at + 4 * n);
        }
    }
}

/// `reg` becomes `width` of its bits, from `shift` on.
pub(super) fn take_bits(out: &mut super::Builder, reg: Reg, width: u8, shift: u8) {
    if shift != 0 {
        out.alu_imm(AluOp::Rsh, reg, shift.into());
    }
    if width < 31 {
        out.alu_imm(AluOp::And, reg, (1 << width) - 1);
    } else if width < 64 {
        out.alu_imm(AluOp::Lsh, reg, 64 - i32::from(width));
        out.alu_imm(AluOp::Rsh, reg, 64 - i32::from(width));
    }
}
