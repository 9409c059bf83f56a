//! What lies in memory, as it is kept in maps and variables: texts, bytes behind their length, and
//! tuples of anything.

use sidestep_bpf::{Cond, Operand, Reg, Size, Width};

use super::super::checked::{Value, ValueKind};
use super::super::types::Type;
use super::text::At;
use super::{Lower, Place, helper};
use crate::build::Label;

/// Up to this length words are copied one by one.
const SHORT: usize = 64;

/// Where a part of a tuple begins.
fn offset(of: &Type, index: usize) -> usize {
    match of {
        Type::Tuple(types) => types.iter().take(index).map(Type::stored).sum(),
        _ => 0,
    }
}

impl Lower<'_, '_> {
    /// Where a part of a tuple lies.
    pub(super) fn item(&mut self, of: &Value, index: usize) -> At {
        self.place(of).plus(offset(&of.ty, index))
    }

    /// A part that is a number into `r0`.
    pub(super) fn item_number(&mut self, of: &Value, index: usize) {
        let at = self.item(of, index);
        self.address(Reg::R1, at);
        self.out.load(Size::Dw, Reg::R0, Reg::R1, 0);
    }

    /// Where something wide lies, after it was put there if it was not anywhere.
    pub(super) fn place(&mut self, value: &Value) -> At {
        match (&value.ty, &value.kind) {
            (Type::Text(_), _) => self.text(value),
            (Type::Data { .. }, _) => self.data(value),
            (_, ValueKind::Var(var)) => match self.vars[*var].0 {
                Place::Scratch(at) => At::Scratch(at),
                Place::Stack(at) => At::Stack(at),
            },
            (_, ValueKind::Item(of, index)) => self.item(of, *index),
            (_, ValueKind::Read(entry)) if self.is_array(entry.map) => {
                self.unless_set(entry);
                At::Value(self.map_index(entry.map), 0)
            }
            (ty, ValueKind::Read(entry)) => {
                let len = ty.stored();
                let to = At::Scratch(self.scratch(len));
                let used = self.used;
                let key = self.key(entry);
                self.clear(to, len);
                self.lookup(entry.map, key);
                let missing = self.out.label();
                self.unless_there(entry, missing);
                self.copy_words(to, len, |lower, dst| lower.out.mov(dst, Reg::R0));
                self.out.bind(missing);
                self.release(used);
                to
            }
            (ty, ValueKind::Own(index)) => self.own_place(*index, ty),
            (_, ValueKind::After(ops, of)) => {
                self.ops(ops);
                self.place(of)
            }
            (ty, _) => {
                let to = At::Scratch(self.scratch(ty.stored()));
                self.write(to, value, ty);
                to
            }
        }
    }

    /// A value into a place for such a type.
    pub(super) fn write(&mut self, to: At, value: &Value, ty: &Type) {
        match (ty, &value.kind) {
            (Type::Text(room), _) => self.text_to(to, value, *room),
            (Type::Data { .. }, _) => self.data_to(to, value),
            (Type::Tuple(types), ValueKind::Tuple(_)) if types.is_empty() => self.clear(to, ty.stored()),
            (Type::Tuple(types), ValueKind::Tuple(items)) => {
                for (index, (item, part)) in items.iter().zip(&**types).enumerate() {
                    self.write(to.plus(offset(ty, index)), item, part);
                }
            }
            (Type::Bytes(room), ValueKind::BytesOf(text)) => {
                let (Type::Bytes(len), Type::Text(most)) = (&value.ty, &text.ty) else { return };
                let (len, has) = (*len, *(len.min(most)));
                let from = self.text(text);
                self.clear(to, Type::Bytes(*room).stored());
                if has > 0 {
                    self.address(Reg::R3, from);
                    self.address(Reg::R1, to.plus(8));
                    self.out.mov_imm(Reg::R2, has as i32);
                    self.out.call(helper::READ_KERNEL);
                }
                self.out.mov_imm(Reg::R0, len as i32);
                self.store(to, Reg::R0);
            }
            (Type::Bytes(room), ValueKind::ReadBytes(address, length)) => self.read_bytes(to, address, length, *room),
            (Type::List(list), ValueKind::ReadBytes(address, length)) => {
                self.read_bytes(to, address, length, list.room());
            }
            (ty, ValueKind::Ternary(cond, then, otherwise)) if ty.is_wide() => {
                let (not, end) = (self.out.label(), self.out.label());
                self.branch(cond, false, not);
                self.write(to, then, ty);
                self.out.goto(end);
                self.out.bind(not);
                self.write(to, otherwise, ty);
                self.out.bind(end);
            }
            (ty, _) if ty.is_wide() => {
                let from = self.place(value);
                self.copy(to, ty, from, &value.ty);
            }
            _ => {
                self.int(value);
                self.store(to, Reg::R0);
            }
        }
    }

    /// The same, if the value may be made of what is in that place.
    pub(super) fn set_wide(&mut self, to: At, ty: &Type, value: &Value) {
        if let Type::Data { .. } = ty {
            return self.data_to(to, value);
        }
        let from = self.place(value);
        self.copy(to, ty, from, &value.ty);
    }

    /// Copies what is kept as `own` into a place for `ty`, which has at least as much room.
    pub(super) fn copy(&mut self, to: At, ty: &Type, from: At, own: &Type) {
        match (ty, own) {
            (Type::Text(room), Type::Text(_)) => self.copy_text(to, from, own, *room),
            _ if ty.stored() == own.stored() => {
                self.copy_words(to, ty.stored(), |lower, dst| lower.address(dst, from));
            }
            (Type::Tuple(types), Type::Tuple(own_types)) => {
                for (index, (part, own_part)) in types.iter().zip(&**own_types).enumerate() {
                    let (to, from) = (to.plus(offset(ty, index)), from.plus(offset(own, index)));
                    self.copy(to, part, from, own_part);
                }
            }
            _ => {
                self.clear(to, ty.stored());
                self.copy_words(to, own.stored().min(ty.stored()), |lower, dst| lower.address(dst, from));
            }
        }
    }

    /// Copies so many bytes. `from` puts into a register where they are.
    pub(super) fn copy_words(&mut self, to: At, len: usize, from: impl FnOnce(&mut Self, Reg)) {
        from(self, Reg::R3);
        self.address(Reg::R1, to);
        if len > SHORT {
            self.out.mov_imm(Reg::R2, len as i32);
            self.out.call(helper::READ_KERNEL);
            return;
        }
        for word in (0..len as i16).step_by(8) {
            self.out.load(Size::Dw, Reg::R2, Reg::R3, word);
            self.out.put(Reg::R1, word, Reg::R2);
        }
    }

    /// Goes to `differs` unless two tuples or buffers are the same. What is behind the end of a
    /// shorter one is zero.
    pub(super) fn compare_kept(&mut self, a: &Value, b: &Value, differs: Label) {
        let mut ty = a.ty.clone();
        ty.widen(&b.ty);
        let place = |lower: &mut Self, value: &Value| {
            let to = At::Scratch(lower.scratch(ty.stored()));
            lower.write(to, value, &ty);
            to
        };
        let (x, y) = (place(self, a), place(self, b));
        self.address(Reg::R2, x);
        self.address(Reg::R3, y);
        for word in (0..ty.stored() as i16).step_by(8) {
            self.out.load(Size::Dw, Reg::R1, Reg::R2, word);
            self.out.load(Size::Dw, Reg::R0, Reg::R3, word);
            self.out.branch(Width::W64, Cond::Ne, Reg::R0, Operand::Reg(Reg::R1), differs);
        }
    }
}
