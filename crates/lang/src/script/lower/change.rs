//! What changes the program that is probed.

use sidestep_bpf::{Cond, Reg, Size, Width};

use super::super::checked::Value;
use super::super::types::Type;
use super::text::At;
use super::{Lower, helper};

impl Lower<'_, '_> {
    /// Lets the function that begins return.
    pub(super) fn override_result(&mut self, result: &Value) {
        self.int(result);
        self.out.mov(Reg::R1, Reg::R6);
        self.out.mov(Reg::R2, Reg::R0);
        self.out.call(helper::OVERRIDE_RETURN);
    }

    /// Writes so many bytes of a value to an address; whether that could be done into `r0`.
    pub(super) fn write_user(&mut self, to: &Value, value: &Value, len: usize) {
        let used = self.used;
        let address = self.stack(8);
        self.int(to);
        self.out.put(Reg::R10, address, Reg::R0);
        let (failed, end) = (self.out.label(), self.out.label());
        let from = match &value.ty {
            Type::Pointer(_) => {
                let at = At::Scratch(self.scratch(len));
                self.int(value);
                self.out.mov(Reg::R3, Reg::R0);
                self.address(Reg::R1, at);
                self.out.mov_imm(Reg::R2, len as i32);
                self.out.call(helper::READ_USER);
                self.out.branch_imm(Width::W64, Cond::Ne, Reg::R0, 0, failed);
                at
            }
            _ => self.written(value, len),
        };
        self.out.load(Size::Dw, Reg::R1, Reg::R10, address);
        self.address(Reg::R2, from);
        self.out.mov_imm(Reg::R3, len as i32);
        self.out.call(helper::WRITE_USER);
        self.out.branch_imm(Width::W64, Cond::Ne, Reg::R0, 0, failed);
        self.out.mov_imm(Reg::R0, 1);
        self.out.goto(end);
        self.out.bind(failed);
        self.out.mov_imm(Reg::R0, 0);
        self.out.bind(end);
        self.release(used);
    }

    /// Where so many bytes of a value lie.
    fn written(&mut self, value: &Value, len: usize) -> At {
        match &value.ty {
            Type::Text(_) | Type::Bytes(_) => self.padded(value, len),
            Type::Data { .. } => self.data(value),
            _ => {
                let at = self.stack(8);
                self.int(value);
                self.out.put(Reg::R10, at, Reg::R0);
                At::Stack(at)
            }
        }
    }
}
