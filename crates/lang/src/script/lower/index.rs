//! Indices that are checked, characters of texts, and addresses of variables.

use sidestep_bpf::{AluOp, Cond, Operand, Reg, Size, Width};

use super::super::checked::{Value, ValueKind};
use super::super::types::{Type, text_room};
use super::text::At;
use super::{Lower, Place};

impl Lower<'_, '_> {
    /// An index into `r0`; the controller does something if it is not below `length`.
    pub(super) fn within(&mut self, index: &Value, length: &Value, warning: usize) {
        let used = self.used;
        let inside = self.out.label();
        let (len, at) = (self.stack(8), self.stack(8));
        self.int(length);
        self.out.put(Reg::R10, len, Reg::R0);
        self.int(index);
        self.out.put(Reg::R10, at, Reg::R0);
        self.out.load(Size::Dw, Reg::R1, Reg::R10, len);
        self.out.branch(Width::W64, Cond::Lt, Reg::R0, Operand::Reg(Reg::R1), inside);
        self.act(warning, &[]);
        self.out.bind(inside);
        self.out.load(Size::Dw, Reg::R0, Reg::R10, at);
        self.release(used);
    }

    /// A character of a text into `r0`; 0 behind its end.
    pub(super) fn char_of(&mut self, text: &Value, index: &Value) {
        let Type::Text(len) = text.ty else { return };
        let used = self.used;
        let (at, missing, end) = (self.stack(8), self.out.label(), self.out.label());
        self.int(index);
        self.out.put(Reg::R10, at, Reg::R0);
        // What is read at any index must not be on the stack.
        let from = match self.text(text) {
            At::Stack(on_stack) => {
                let to = At::Scratch(self.scratch(text_room(len)));
                self.copy_text(to, At::Stack(on_stack), &text.ty, len);
                to
            }
            from => from,
        };
        self.address(Reg::R1, from);
        self.out.load(Size::Dw, Reg::R2, Reg::R10, at);
        self.out.branch_imm(Width::W64, Cond::Ge, Reg::R2, len as i32, missing);
        self.out.alu(AluOp::Add, Reg::R1, Reg::R2);
        self.out.load(Size::B, Reg::R0, Reg::R1, 0);
        self.resize(&Type::Int { bytes: 1, signed: true });
        self.out.goto(end);
        self.out.bind(missing);
        self.out.mov_imm(Reg::R0, 0);
        self.out.bind(end);
        self.release(used);
    }

    /// Where a variable lies, as a number in `r0`.
    pub(super) fn address_of(&mut self, of: &Value) {
        let ValueKind::Var(var) = of.kind else { return };
        let at = match self.vars[var].0 {
            Place::Scratch(at) => At::Scratch(at),
            Place::Stack(at) => At::Stack(at),
        };
        self.address(Reg::R0, at);
        // What comes out of memory that is not the stack is a number to the verifier: the script
        // may calculate with it.
        let number = At::Scratch(self.scratch(8));
        self.store(number, Reg::R0);
        self.address(Reg::R1, number);
        self.out.load(Size::Dw, Reg::R0, Reg::R1, 0);
    }
}
