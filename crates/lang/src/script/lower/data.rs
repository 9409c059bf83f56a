//! Data of C: copied as a whole, and read in parts.

use sidestep_bpf::{AluOp, Cond, Reg, Size, Width};

use super::super::checked::{Value, ValueKind};
use super::super::ctype::CType;
use super::super::types::Type;
use super::text::At;
use super::{Lower, Place, helper};

impl Lower<'_, '_> {
    /// Where data lies in our own memory, after it was put there if it was not anywhere.
    pub(super) fn data(&mut self, value: &Value) -> At {
        match &value.kind {
            ValueKind::Var(var) => match self.vars[*var].0 {
                Place::Scratch(at) => At::Scratch(at),
                Place::Stack(at) => At::Stack(at),
            },
            ValueKind::Part(of, offset) => self.data(of).plus(*offset),
            ValueKind::Read(entry) if self.is_array(entry.map) => {
                self.unless_set(entry);
                At::Value(self.map_index(entry.map), 0)
            }
            ValueKind::Item(of, index) => self.item(of, *index),
            ValueKind::Own(index) => self.own_place(*index, &value.ty),
            ValueKind::After(ops, of) => {
                self.ops(ops);
                self.data(of)
            }
            _ => {
                // A text in it is read with a byte behind it.
                let to = At::Scratch(self.scratch(value.ty.stored() + 8));
                self.data_to(to, value);
                to
            }
        }
    }

    /// Data into a place; what is behind it up to a whole word is zeros.
    pub(super) fn data_to(&mut self, to: At, value: &Value) {
        let Type::Data { size, .. } = value.ty else { return };
        if let ValueKind::Words(words) = &value.kind {
            for (index, word) in words.iter().enumerate().take(value.ty.stored() / 8) {
                self.int(word);
                // Of registers, what is behind the data is anything.
                if size < 8 * (index + 1) && size > 8 * index {
                    self.resize(&Type::Int { bytes: (size - 8 * index) as u8, signed: false });
                }
                self.store(to.plus(8 * index), Reg::R0);
            }
            return;
        }
        if let ValueKind::Meant(of, meaning) = &value.kind {
            self.data_to(to, of);
            return self.clear_meaningless(to, meaning);
        }
        if let ValueKind::Ternary(cond, then, otherwise) = &value.kind {
            let (not, end) = (self.out.label(), self.out.label());
            self.branch(cond, false, not);
            self.data_to(to, then);
            self.out.goto(end);
            self.out.bind(not);
            self.data_to(to, otherwise);
            self.out.bind(end);
            return;
        }
        if let ValueKind::Element(array, index) = &value.kind {
            return self.element_to(to, array, index, size);
        }
        let used = self.used;
        let key = match &value.kind {
            ValueKind::Read(entry) if !self.is_array(entry.map) => Some((entry, self.key(entry))),
            _ => None,
        };
        let address = self.stack(8);
        let from = match &value.kind {
            ValueKind::Load(of) => {
                self.int(of);
                self.out.put(Reg::R10, address, Reg::R0);
                None
            }
            _ if key.is_some() => None,
            _ => Some(self.data(value)),
        };
        self.clear(to, value.ty.stored());
        let missing = self.out.label();
        let reader = match (from, key) {
            (Some(from), _) => {
                self.address(Reg::R3, from);
                helper::READ_KERNEL
            }
            (None, Some((entry, key))) => {
                self.lookup(entry.map, key);
                self.unless_there(entry, missing);
                self.out.mov(Reg::R3, Reg::R0);
                helper::READ_KERNEL
            }
            (None, None) => {
                self.out.load(Size::Dw, Reg::R3, Reg::R10, address);
                helper::READ_USER
            }
        };
        self.address(Reg::R1, to);
        self.out.mov_imm(Reg::R2, size as i32);
        self.out.call(reader);
        match &value.kind {
            ValueKind::Load(of) if self.shared.checked.config.count_reads => self.failed_read(of),
            _ => {}
        }
        self.out.bind(missing);
        self.release(used);
    }

    /// An element of so many bytes of an array of ours into a place; zeros if it has no such one.
    fn element_to(&mut self, to: At, array: &Value, index: &Value, size: usize) {
        let Type::Data { ty: CType::Array(_, length), size: whole } = &array.ty else { return };
        let used = self.used;
        let (at, missing) = (self.stack(8), self.out.label());
        self.int(index);
        self.out.put(Reg::R10, at, Reg::R0);
        let from = match self.data(array) {
            // What is read at any index must not be on the stack.
            on_stack @ At::Stack(_) => {
                let copy = At::Scratch(self.scratch(array.ty.stored()));
                self.copy_data(copy, on_stack, *whole);
                copy
            }
            from => from,
        };
        self.clear(to, size.next_multiple_of(8));
        self.out.load(Size::Dw, Reg::R2, Reg::R10, at);
        self.out.branch_imm(Width::W64, Cond::Ge, Reg::R2, *length as i32, missing);
        self.out.alu_imm(AluOp::Mul, Reg::R2, size as i32);
        self.address(Reg::R3, from);
        self.out.alu(AluOp::Add, Reg::R3, Reg::R2);
        self.address(Reg::R1, to);
        self.out.mov_imm(Reg::R2, size as i32);
        self.out.call(helper::READ_KERNEL);
        self.out.bind(missing);
        self.release(used);
    }

    /// So many bytes of our own memory.
    fn copy_data(&mut self, to: At, from: At, size: usize) {
        self.address(Reg::R3, from);
        self.address(Reg::R1, to);
        self.out.mov_imm(Reg::R2, size as i32);
        self.out.call(helper::READ_KERNEL);
    }

    /// A number in data into `r0`.
    pub(super) fn part(&mut self, of: &Value, offset: usize, ty: &Type) {
        let Type::Int { bytes, .. } = ty else { return };
        let from = self.data(of).plus(offset);
        let used = self.used;
        let at = self.stack(8);
        self.out.put_imm(Reg::R10, at, 0);
        self.address(Reg::R3, from);
        self.out.mov(Reg::R1, Reg::R10);
        self.out.alu_imm(AluOp::Add, Reg::R1, at.into());
        self.out.mov_imm(Reg::R2, i32::from(*bytes));
        self.out.call(helper::READ_KERNEL);
        self.out.load(Size::Dw, Reg::R0, Reg::R10, at);
        self.release(used);
        self.resize(ty);
    }
}
