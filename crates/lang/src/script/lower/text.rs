//! Texts: they lie in memory, end with a NUL, and are padded with zeros where they are compared or
//! looked up as a whole.

use sidestep_bpf::{AluOp, Cond, Imm64, Insn, Operand, Reg, Size, Swap, Width};

use super::super::checked::{Builtin, Value, ValueKind};
use super::super::types::{COMM, NAME, Type, text_room};
use super::{CONSTANTS, Lower, NAMES, PROCESSES, Place, SCRATCH, Site, helper};
use crate::build::Label;

/// A place in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    /// Below `r10`.
    Stack(i16),
    /// In the thread's memory.
    Scratch(u32),
    /// In an array.
    Value(u32, u32),
}

impl At {
    pub(super) fn plus(self, offset: usize) -> At {
        match self {
            At::Stack(at) => At::Stack(at + offset as i16),
            At::Scratch(at) => At::Scratch(at + offset as u32),
            At::Value(map, at) => At::Value(map, at + offset as u32),
        }
    }
}

impl Lower<'_, '_> {
    /// The address of a place.
    pub(super) fn address(&mut self, dst: Reg, at: At) {
        match at {
            At::Stack(at) => {
                self.out.mov(dst, Reg::R10);
                self.out.alu_imm(AluOp::Add, dst, at.into());
            }
            At::Scratch(at) => self.out.map_value(dst, SCRATCH, at),
            At::Value(map, at) => self.out.map_value(dst, map, at),
        }
    }

    /// A word into a place; `r1` is lost.
    pub(super) fn store(&mut self, at: At, src: Reg) {
        match at {
            At::Stack(at) => self.out.put(Reg::R10, at, src),
            at => {
                self.address(Reg::R1, at);
                self.out.put(Reg::R1, 0, src);
            }
        }
    }

    /// Zeros.
    pub(super) fn clear(&mut self, at: At, len: usize) {
        self.address(Reg::R1, at);
        for word in 0..len / 8 {
            self.out.put_imm(Reg::R1, 8 * word as i16, 0);
        }
    }

    /// Copies a text into a place with room for `len` bytes of it; what is behind it is zeros.
    pub(super) fn copy_text(&mut self, to: At, from: At, ty: &Type, len: usize) {
        let own = own_length(ty, len);
        self.clear(to, text_room(len));
        self.read_text(to, own, |lower| lower.address(Reg::R3, from));
        self.mark_cut(to, own, len);
    }

    /// Makes the byte that tells that a text was cut the same in all of them, as they may be keys;
    /// where there is room for more, it would be a part of the text, and goes.
    fn mark_cut(&mut self, to: At, own: usize, len: usize) {
        let end = self.out.label();
        let at = to.plus(own);
        self.address(Reg::R1, at);
        self.out.load(Size::B, Reg::R2, Reg::R1, 0);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R2, 0, end);
        self.out.mov_imm(Reg::R2, (own == len).into());
        self.out.push(Insn::Store { size: Size::B, base: Reg::R1, off: 0, src: Operand::Reg(Reg::R2) });
        self.out.bind(end);
    }

    /// Reads a text of our own, of at most `len` bytes, and one more, which tells that it was cut.
    /// `r3` is where it is.
    fn read_text(&mut self, to: At, len: usize, from: impl FnOnce(&mut Self)) {
        from(self);
        self.address(Reg::R1, to);
        self.out.mov_imm(Reg::R2, len as i32 + 2);
        self.out.call(helper::READ_KERNEL_STR);
    }

    /// A text into a place with room for `len` bytes of it; what is behind it is zeros.
    pub(super) fn text_to(&mut self, to: At, value: &Value, len: usize) {
        let own = own_length(&value.ty, len);
        match &value.kind {
            ValueKind::ReadText(address, most) => {
                let used = self.used;
                self.int(address);
                let at = self.stack(8);
                self.out.put(Reg::R10, at, Reg::R0);
                let most = most.as_ref().map(|most| {
                    self.int(most);
                    let at = self.stack(8);
                    self.out.put(Reg::R10, at, Reg::R0);
                    at
                });
                self.clear(to, text_room(len));
                self.address(Reg::R1, to);
                self.out.mov_imm(Reg::R2, own as i32 + 2);
                if let Some(most) = most {
                    // What the script has asked for, with the NUL, is not cut.
                    let (longer, some) = (self.out.label(), self.out.label());
                    self.out.load(Size::Dw, Reg::R3, Reg::R10, most);
                    self.out.branch_imm(Width::W64, Cond::Gt, Reg::R3, own as i32 + 1, longer);
                    self.out.mov(Reg::R2, Reg::R3);
                    self.out.branch_imm(Width::W64, Cond::Ne, Reg::R2, 0, some);
                    self.out.mov_imm(Reg::R2, 1);
                    self.out.bind(some);
                    self.out.bind(longer);
                }
                self.out.load(Size::Dw, Reg::R3, Reg::R10, at);
                self.out.call(helper::READ_USER_STR);
                self.failed_read(address);
                self.mark_cut(to, own, len);
                self.release(used);
            }
            ValueKind::Part(of, offset) => {
                let from = self.data(of).plus(*offset);
                self.clear(to, text_room(len));
                self.address(Reg::R1, to);
                self.address(Reg::R3, from);
                self.out.mov_imm(Reg::R2, own as i32 + 1);
                self.out.call(helper::READ_KERNEL_STR);
            }
            ValueKind::Builtin(Builtin::Comm) => {
                self.clear(to, text_room(len));
                self.address(Reg::R1, to);
                self.out.mov_imm(Reg::R2, (len + 1).min(16) as i32);
                self.out.call(helper::COMM);
            }
            ValueKind::Builtin(Builtin::LeaderComm) => {
                let from = self.leader_name();
                self.copy_text(to, from, &value.ty, len);
            }
            ValueKind::Builtin(Builtin::ParentComm) => {
                let from = self.process_name(|lower| lower.builtin(Builtin::Ppid));
                self.copy_text(to, from, &value.ty, len);
            }
            ValueKind::CommOf(pid) => {
                let from = self.process_name(|lower| lower.int(pid));
                self.copy_text(to, from, &value.ty, len);
            }
            ValueKind::CountedText(address, length) => {
                let from = self.counted_text(address, length, own);
                self.copy_text(to, from, &value.ty, len);
            }
            ValueKind::Concat(a, b) => {
                let from = self.concat(a, b);
                self.copy_text(to, from, &value.ty, len);
            }
            ValueKind::Ternary(cond, then, otherwise) => {
                let (not, end) = (self.out.label(), self.out.label());
                self.branch(cond, false, not);
                self.text_to(to, then, len);
                self.out.goto(end);
                self.out.bind(not);
                self.text_to(to, otherwise, len);
                self.out.bind(end);
            }
            _ => {
                let from = self.text(value);
                self.copy_text(to, from, &value.ty, len);
            }
        }
    }

    /// Where a text lies, after it was put there if it was not anywhere.
    pub(super) fn text(&mut self, value: &Value) -> At {
        let Type::Text(len) = value.ty else { return At::Value(CONSTANTS, 0) };
        match &value.kind {
            ValueKind::Text(bytes) => At::Value(CONSTANTS, self.constant(bytes, text_room(len))),
            ValueKind::Var(var) => match self.vars[*var].0 {
                Place::Scratch(at) => At::Scratch(at),
                Place::Stack(at) => At::Stack(at),
            },
            ValueKind::Item(of, index) => self.item(of, *index),
            ValueKind::Own(index) => self.own_place(*index, &value.ty),
            ValueKind::After(ops, of) => {
                self.ops(ops);
                self.text(of)
            }
            ValueKind::Builtin(Builtin::Func) => self.func_text(),
            ValueKind::Builtin(Builtin::ProbeType) => self.probe_type(),
            ValueKind::Builtin(Builtin::ProbeText) => self.probe_text(),
            ValueKind::Read(entry) if self.is_array(entry.map) => {
                self.unless_set(entry);
                At::Value(self.map_index(entry.map), 0)
            }
            ValueKind::Read(entry) => {
                let to = At::Scratch(self.scratch(text_room(len)));
                let used = self.used;
                let key = self.key(entry);
                self.clear(to, text_room(len));
                self.lookup(entry.map, key);
                let missing = self.out.label();
                self.unless_there(entry, missing);
                self.read_text(to, len, |lower| lower.out.mov(Reg::R3, Reg::R0));
                self.out.bind(missing);
                self.release(used);
                to
            }
            _ => {
                let to = At::Scratch(self.scratch(text_room(len)));
                self.text_to(to, value, len);
                to
            }
        }
    }

    /// Goes to `differs` unless two texts, buffers or tuples are the same, in their first bytes if
    /// `first` says how many.
    pub(super) fn compare(&mut self, a: &Value, b: &Value, first: Option<usize>, differs: Label) {
        if let Type::Tuple(_) | Type::Bytes(_) | Type::List(_) = a.ty {
            return self.compare_kept(a, b, differs);
        }
        let (Type::Text(a_len), Type::Text(b_len)) = (&a.ty, &b.ty) else { return };
        let (a_len, b_len) = (*a_len, *b_len);
        let (value, constant) = match (&a.kind, &b.kind) {
            (_, ValueKind::Text(bytes)) => (a, Some(bytes)),
            (ValueKind::Text(bytes), _) => (b, Some(bytes)),
            _ => (a, None),
        };
        if let Some(bytes) = constant {
            let at = self.text(value);
            let room = if std::ptr::eq(value, a) { a_len } else { b_len };
            let mut bytes = bytes.clone();
            bytes.push(0);
            bytes.truncate(first.unwrap_or(usize::MAX));
            // Where there is no room for the NUL, something else tells that the text was cut.
            if bytes.len() == room + 1 && bytes.last() == Some(&0) {
                bytes.pop();
            }
            if bytes.len() > room {
                self.out.goto(differs);
                return;
            }
            self.address(Reg::R2, at);
            for (offset, size) in chunks(bytes.len()) {
                let part = &bytes[offset..offset + size.bytes()];
                let wanted = part.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
                self.out.load(size, Reg::R1, Reg::R2, offset as i16);
                match i32::try_from(wanted as i64) {
                    Ok(wanted) => self.out.branch_imm(Width::W64, Cond::Ne, Reg::R1, wanted, differs),
                    Err(_) => {
                        self.out.push(Insn::LoadImm64 { dst: Reg::R3, imm: Imm64::Value(wanted) });
                        self.out.branch(Width::W64, Cond::Ne, Reg::R1, Operand::Reg(Reg::R3), differs);
                    }
                }
            }
            return;
        }
        // Both with zeros behind them, and with the same room.
        let len = a_len.max(b_len);
        let place = |lower: &mut Self, value: &Value| {
            let to = At::Scratch(lower.scratch(text_room(len)));
            lower.text_to(to, value, len);
            to
        };
        let (x, y) = (place(self, a), place(self, b));
        self.address(Reg::R2, x);
        self.address(Reg::R3, y);
        for (offset, size) in chunks(len.min(first.unwrap_or(usize::MAX))) {
            self.out.load(size, Reg::R1, Reg::R2, offset as i16);
            self.out.load(size, Reg::R0, Reg::R3, offset as i16);
            self.out.branch(Width::W64, Cond::Ne, Reg::R0, Operand::Reg(Reg::R1), differs);
        }
    }

    /// The name of the function that was hit.
    fn func_text(&mut self) -> At {
        self.shared.uses_names = true;
        let used = self.used;
        let to = At::Scratch(self.scratch(text_room(NAME)));
        let key = At::Stack(self.stack(8));
        let missing = self.out.label();
        self.clear(to, text_room(NAME));
        self.function();
        self.store(key, Reg::R0);
        self.lookup_in(NAMES, key);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, missing);
        self.copy_words(to, text_room(NAME), |lower, dst| lower.out.mov(dst, Reg::R0));
        self.out.bind(missing);
        self.release(used);
        to
    }

    /// A text and another one behind it.
    fn concat(&mut self, a: &Value, b: &Value) -> At {
        let (Type::Text(first), Type::Text(second)) = (&a.ty, &b.ty) else { return At::Value(CONSTANTS, 0) };
        let (first, second) = (*first, *second);
        let (x, y) = (self.text(a), self.text(b));
        let to = At::Scratch(self.scratch(text_room(first + second)));
        self.clear(to, text_room(first + second));
        self.read_text(to, first, |lower| lower.address(Reg::R3, x));
        self.length_read(first);
        // What told that the first one was cut is no part of it.
        self.address(Reg::R1, to);
        self.out.alu(AluOp::Add, Reg::R1, Reg::R0);
        self.out.mov_imm(Reg::R2, second as i32 + 2);
        self.address(Reg::R3, y);
        self.out.call(helper::READ_KERNEL_STR);
        to
    }

    /// The name of the process whose number `pid` puts into `r0`; "" if no one has told it.
    fn process_name(&mut self, pid: impl FnOnce(&mut Self)) -> At {
        self.shared.uses_processes = true;
        let name = At::Scratch(self.scratch(text_room(COMM)));
        self.clear(name, text_room(COMM));
        pid(self);
        let used = self.used;
        let missing = self.out.label();
        let key = At::Stack(self.stack(8));
        self.store(key, Reg::R0);
        self.lookup_in(PROCESSES, key);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, missing);
        self.copy_words(name, text_room(COMM), |lower, dst| lower.out.mov(dst, Reg::R0));
        if let Site::Controller(_) = self.site {
            let end = self.out.label();
            self.out.goto(end);
            self.out.bind(missing);
            let At::Stack(key) = key else { return name };
            self.address(Reg::R1, name);
            self.out.mov_imm(Reg::R2, COMM as i32 + 1);
            self.out.load(Size::Dw, Reg::R3, Reg::R10, key);
            self.out.call(helper::PROCESS_COMM);
            self.out.bind(end);
        } else {
            self.out.bind(missing);
        }
        self.release(used);
        name
    }

    /// The name of this process. The first thread asks the kernel for its own: the process may be
    /// new, or have changed its name a moment ago.
    fn leader_name(&mut self) -> At {
        let name = self.process_name(|lower| lower.builtin(Builtin::Pid));
        let used = self.used;
        let other = self.out.label();
        let own = self.stack(8);
        self.builtin(Builtin::Pid);
        self.out.put(Reg::R10, own, Reg::R0);
        self.builtin(Builtin::Tid);
        self.out.load(Size::Dw, Reg::R1, Reg::R10, own);
        self.out.branch(Width::W64, Cond::Ne, Reg::R0, Operand::Reg(Reg::R1), other);
        self.clear(name, text_room(COMM));
        self.address(Reg::R1, name);
        self.out.mov_imm(Reg::R2, COMM as i32 + 1);
        self.out.call(helper::COMM);
        self.out.bind(other);
        self.release(used);
        name
    }

    /// What a helper says of two texts into `r0`.
    pub(super) fn of_texts(&mut self, helper: u32, text: &Value, part: &Value) {
        let (text_at, part_at) = (self.text(text), self.text(part));
        let len = |value: &Value| if let Type::Text(len) = value.ty { len.max(1) as i32 } else { 1 };
        self.address(Reg::R1, text_at);
        self.out.mov_imm(Reg::R2, len(text));
        self.address(Reg::R3, part_at);
        self.out.mov_imm(Reg::R4, len(part));
        self.out.call(helper);
    }

    /// A copy of a text or buffer of so many bytes at least: zeros are behind it.
    pub(super) fn padded(&mut self, value: &Value, len: usize) -> At {
        if let Type::Text(own) = value.ty {
            let to = At::Scratch(self.scratch(text_room(own.max(len))));
            self.text_to(to, value, own.max(len));
            return to;
        }
        // Their length is before them.
        let room = value.ty.stored().max(8 + len.next_multiple_of(8));
        let to = At::Scratch(self.scratch(room));
        self.clear(to, room);
        self.set_wide(to, &value.ty, value);
        to.plus(8)
    }

    /// Which of two texts or buffers is the greater one by so many bytes: -1, 0 or 1 into `r0`.
    pub(super) fn order(&mut self, a: &Value, b: &Value, len: usize) {
        let (x, y) = (self.padded(a, len), self.padded(b, len));
        let (differs, less, end) = (self.out.label(), self.out.label(), self.out.label());
        self.address(Reg::R2, x);
        self.address(Reg::R3, y);
        for (offset, size) in chunks(len) {
            self.out.load(size, Reg::R1, Reg::R2, offset as i16);
            self.out.load(size, Reg::R0, Reg::R3, offset as i16);
            if size != Size::B {
                // The first byte decides.
                self.out.push(Insn::Swap { dst: Reg::R1, order: Swap::Always, size });
                self.out.push(Insn::Swap { dst: Reg::R0, order: Swap::Always, size });
            }
            self.out.branch(Width::W64, Cond::Ne, Reg::R0, Operand::Reg(Reg::R1), differs);
        }
        self.out.mov_imm(Reg::R0, 0);
        self.out.goto(end);
        self.out.bind(differs);
        self.out.branch(Width::W64, Cond::Lt, Reg::R1, Operand::Reg(Reg::R0), less);
        self.out.mov_imm(Reg::R0, 1);
        self.out.goto(end);
        self.out.bind(less);
        self.out.mov_imm(Reg::R0, -1);
        self.out.bind(end);
    }

    /// The length of a text into `r0`.
    pub(super) fn text_length(&mut self, value: &Value) {
        let Type::Text(len) = value.ty else { return };
        let at = self.text(value);
        let to = At::Scratch(self.scratch(text_room(len)));
        self.read_text(to, len, |lower| lower.address(Reg::R3, at));
        self.length_read(len);
    }

    /// The length of a text of at most `len` bytes into `r0`, which has what reading it has given.
    fn length_read(&mut self, len: usize) {
        self.out.alu_imm(AluOp::Sub, Reg::R0, 1);
        let fine = self.out.label();
        self.out.branch_imm(Width::W64, Cond::Sge, Reg::R0, 0, fine);
        self.out.mov_imm(Reg::R0, 0);
        self.out.bind(fine);
        let whole = self.out.label();
        self.out.branch_imm(Width::W64, Cond::Le, Reg::R0, len as i32, whole);
        self.out.mov_imm(Reg::R0, len as i32);
        self.out.bind(whole);
    }
}

/// Bytes of a text that a place with room for `len` takes.
fn own_length(ty: &Type, len: usize) -> usize {
    match ty {
        Type::Text(own) => len.min(*own),
        _ => len,
    }
}

/// Loads that together read so many bytes.
fn chunks(len: usize) -> Vec<(usize, Size)> {
    let mut chunks = Vec::new();
    let mut at = 0;
    for size in [Size::Dw, Size::W, Size::H, Size::B] {
        while at + size.bytes() <= len {
            chunks.push((at, size));
            at += size.bytes();
        }
    }
    chunks
}
