//! Memory of the target whose length is known.

use sidestep_bpf::{AluOp, Cond, Insn, Operand, Reg, Size, Width};

use super::super::checked::Value;
use super::super::types::{Type, text_room};
use super::text::At;
use super::{Lower, helper};

impl Lower<'_, '_> {
    /// Reads bytes of the target, all or none, at most `room`. `r0` is how many. Before they are
    /// read, the first `cleared` bytes of the place become zeros.
    fn read_span(&mut self, to: At, offset: usize, address: &Value, length: &Value, room: usize, cleared: usize) {
        let used = self.used;
        let (at, len) = (self.stack(8), self.stack(8));
        self.int(address);
        self.out.put(Reg::R10, at, Reg::R0);
        self.int(length);
        let (fits, failed, end) = (self.out.label(), self.out.label(), self.out.label());
        self.out.branch_imm(Width::W64, Cond::Le, Reg::R0, room as i32, fits);
        self.out.mov_imm(Reg::R0, room as i32);
        self.out.bind(fits);
        self.out.put(Reg::R10, len, Reg::R0);
        self.clear(to, cleared);
        self.address(Reg::R1, to.plus(offset));
        self.out.load(Size::Dw, Reg::R2, Reg::R10, len);
        self.out.load(Size::Dw, Reg::R3, Reg::R10, at);
        self.out.call(helper::READ_USER);
        self.failed_read(address);
        self.out.branch_imm(Width::W64, Cond::Ne, Reg::R0, 0, failed);
        self.out.load(Size::Dw, Reg::R0, Reg::R10, len);
        self.out.goto(end);
        self.out.bind(failed);
        self.out.mov_imm(Reg::R0, 0);
        self.out.bind(end);
        self.release(used);
    }

    /// Bytes into a place with room for so many, behind their length.
    pub(super) fn read_bytes(&mut self, to: At, address: &Value, length: &Value, room: usize) {
        self.read_span(to, 8, address, length, room, Type::Bytes(room).stored());
        self.store(to, Reg::R0);
    }

    /// A text of at most `len` bytes that its length ends, and a byte more, which tells that it was
    /// cut.
    pub(super) fn counted_text(&mut self, address: &Value, length: &Value, len: usize) -> At {
        let to = At::Scratch(self.scratch(text_room(len)));
        self.read_span(to, 0, address, length, len + 1, 0);
        self.address(Reg::R1, to);
        self.out.alu(AluOp::Add, Reg::R1, Reg::R0);
        self.out.mov_imm(Reg::R2, 0);
        self.out.push(Insn::Store { size: Size::B, base: Reg::R1, off: 0, src: Operand::Reg(Reg::R2) });
        to
    }
}
