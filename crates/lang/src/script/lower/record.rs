//! Records: what the controller is asked to do, with values.
//!
//! A record is words: the number of the action, then a word for each value. Of texts and bytes that
//! is their length, or a negative error; they themselves follow in order, unaligned.

use sidestep_bpf::{AluOp, Cond, Reg, Size, Width};

use super::super::checked::{Value, ValueKind};
use super::super::types::Type;
use super::text::At;
use super::{Lower, RING_MAP, helper};
use crate::build::Label;

/// Texts that `join` prints at most, as in bpftrace.
pub const JOINED: usize = 16;

/// A value that is ready to be written.
enum Ready {
    /// A word on the stack.
    Word(i16),
    /// A text at the address in a word on the stack, in the target; of so many bytes at most.
    User(i16, usize),
    /// A text in our own memory.
    Own(At, usize),
    /// Bytes in the target: words with address and length.
    Bytes(i16, i16, usize),
    /// Bytes in our own memory, behind their length.
    OwnBytes(At, usize),
    /// A tuple or data, as it is kept: so many bytes.
    Kept(At, usize),
}

impl Ready {
    /// Bytes behind the words.
    fn room(&self) -> usize {
        match self {
            Ready::Word(_) => 0,
            Ready::User(_, len) | Ready::Own(_, len) => len + 2,
            Ready::Bytes(.., len) | Ready::OwnBytes(_, len) | Ready::Kept(_, len) => *len,
        }
    }
}

impl Lower<'_, '_> {
    pub(super) fn act(&mut self, action: usize, args: &[Value]) {
        let used = self.used;
        let ready: Vec<Ready> = args.iter().map(|arg| self.ready(arg)).collect();
        let head = 8 * (1 + ready.len());
        let room: usize = ready.iter().map(Ready::room).sum();
        let (full, discard, end) = (self.out.label(), self.out.label(), self.out.label());
        self.out.map(Reg::R1, RING_MAP);
        self.out.mov_imm(Reg::R2, (head + room).next_multiple_of(8) as i32);
        self.out.mov_imm(Reg::R3, 0);
        self.out.call(helper::RESERVE);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, full);
        self.out.mov(Reg::R7, Reg::R0);
        self.out.put_imm(Reg::R7, 0, action as i32);
        self.out.mov_imm(Reg::R8, head as i32);
        for (index, value) in ready.iter().enumerate() {
            let slot = 8 * (1 + index) as i16;
            match *value {
                Ready::Word(at) => {
                    self.out.load(Size::Dw, Reg::R1, Reg::R10, at);
                    self.out.put(Reg::R7, slot, Reg::R1);
                }
                Ready::User(at, len) => {
                    self.out.load(Size::Dw, Reg::R3, Reg::R10, at);
                    self.append_text(slot, len, helper::READ_USER_STR, discard);
                }
                Ready::Own(at, len) => {
                    self.address(Reg::R3, at);
                    self.append_text(slot, len, helper::READ_KERNEL_STR, discard);
                }
                Ready::Bytes(at, length, len) => {
                    self.out.load(Size::Dw, Reg::R9, Reg::R10, length);
                    self.append_bytes(slot, len, helper::READ_USER, |lower| {
                        lower.out.load(Size::Dw, Reg::R3, Reg::R10, at);
                    });
                }
                Ready::OwnBytes(at, len) => {
                    self.address(Reg::R3, at);
                    self.out.load(Size::Dw, Reg::R9, Reg::R3, 0);
                    self.append_bytes(slot, len, helper::READ_KERNEL, |lower| lower.address(Reg::R3, at.plus(8)));
                }
                Ready::Kept(at, len) => {
                    self.out.mov_imm(Reg::R9, len as i32);
                    self.append_bytes(slot, len, helper::READ_KERNEL, |lower| lower.address(Reg::R3, at));
                }
            }
        }
        self.out.mov(Reg::R1, Reg::R7);
        if room == 0 {
            self.out.mov_imm(Reg::R2, 0);
            self.out.call(helper::SUBMIT);
        } else {
            self.out.mov(Reg::R2, Reg::R8);
            self.out.mov_imm(Reg::R3, 0);
            self.out.call(helper::SUBMIT_PART);
        }
        self.out.goto(end);
        if self.out.is_used(discard) {
            self.out.bind(discard);
            self.out.mov(Reg::R1, Reg::R7);
            self.out.mov_imm(Reg::R2, 0);
            self.out.call(helper::DISCARD);
        }
        self.out.bind(full);
        self.out.bind(end);
        self.release(used);
    }

    /// `join(array)`: a word for each text, which is 0 behind the last.
    pub(super) fn join(&mut self, action: usize, array: &Value) {
        let used = self.used;
        self.int(array);
        let at = self.stack(8);
        let word = self.stack(8);
        self.out.put(Reg::R10, at, Reg::R0);
        let len = self.shared.checked.config.max_strlen;
        let pointer = i32::from(self.shared.checked.word);
        let head = 8 * (1 + JOINED);
        let (full, discard, done, end) = (self.out.label(), self.out.label(), self.out.label(), self.out.label());
        self.out.map(Reg::R1, RING_MAP);
        self.out.mov_imm(Reg::R2, (head + JOINED * (len + 2)).next_multiple_of(8) as i32);
        self.out.mov_imm(Reg::R3, 0);
        self.out.call(helper::RESERVE);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, full);
        self.out.mov(Reg::R7, Reg::R0);
        self.out.put_imm(Reg::R7, 0, action as i32);
        for index in 1..=JOINED {
            self.out.put_imm(Reg::R7, 8 * index as i16, 0);
        }
        self.out.mov_imm(Reg::R8, head as i32);
        for index in 0..JOINED {
            self.out.put_imm(Reg::R10, word, 0);
            self.address(Reg::R1, At::Stack(word));
            self.out.mov_imm(Reg::R2, pointer);
            self.out.load(Size::Dw, Reg::R3, Reg::R10, at);
            self.out.alu_imm(AluOp::Add, Reg::R3, pointer * index as i32);
            self.out.call(helper::READ_USER);
            self.out.load(Size::Dw, Reg::R3, Reg::R10, word);
            self.out.branch_imm(Width::W64, Cond::Eq, Reg::R3, 0, done);
            self.append_text(8 * (1 + index) as i16, len, helper::READ_USER_STR, discard);
        }
        self.out.bind(done);
        self.out.mov(Reg::R1, Reg::R7);
        self.out.mov(Reg::R2, Reg::R8);
        self.out.mov_imm(Reg::R3, 0);
        self.out.call(helper::SUBMIT_PART);
        self.out.goto(end);
        self.out.bind(discard);
        self.out.mov(Reg::R1, Reg::R7);
        self.out.mov_imm(Reg::R2, 0);
        self.out.call(helper::DISCARD);
        self.out.bind(full);
        self.out.bind(end);
        self.release(used);
    }

    fn ready(&mut self, value: &Value) -> Ready {
        let word = |lower: &mut Self, value: &Value| {
            lower.int(value);
            let at = lower.stack(8);
            lower.out.put(Reg::R10, at, Reg::R0);
            at
        };
        match (&value.ty, &value.kind) {
            (Type::Text(len), ValueKind::ReadText(address, None)) if !is_noted(address) => {
                Ready::User(word(self, address), *len)
            }
            (Type::Text(len), _) => Ready::Own(self.text(value), *len),
            (Type::Bytes(len), ValueKind::ReadBytes(address, length)) if !is_noted(address) => {
                let address = word(self, address);
                let length = word(self, length);
                Ready::Bytes(address, length, *len)
            }
            (Type::Bytes(len), _) => Ready::OwnBytes(self.place(value), *len),
            (Type::List(list), ValueKind::ReadBytes(address, length)) if !is_noted(address) => {
                let address = word(self, address);
                let length = word(self, length);
                Ready::Bytes(address, length, list.room())
            }
            (Type::List(list), _) => Ready::OwnBytes(self.place(value), list.room()),
            (Type::Tuple(_), _) => Ready::Kept(self.place(value), value.ty.stored()),
            (Type::Data { size, .. }, ValueKind::Load(address)) if !is_noted(address) => {
                let address = word(self, address);
                let length = word(self, &Value { ty: Type::INT, kind: ValueKind::Int(*size as u64) });
                Ready::Bytes(address, length, *size)
            }
            (Type::Data { size, .. }, _) => Ready::Kept(self.data(value), *size),
            _ => Ready::Word(word(self, value)),
        }
    }

    /// The text at `r3`.
    fn append_text(&mut self, slot: i16, len: usize, reader: u32, discard: Label) {
        self.out.mov(Reg::R1, Reg::R7);
        self.out.alu(AluOp::Add, Reg::R1, Reg::R8);
        self.out.mov_imm(Reg::R2, len as i32 + 2);
        self.out.call(reader);
        if reader == helper::READ_USER_STR {
            self.count_fault();
        }
        let out = &mut self.out;
        out.put(Reg::R7, slot, Reg::R0);
        // Its length, 0 if something failed.
        out.mov(Reg::R1, Reg::R0);
        out.sign(Reg::R1);
        out.invert(Reg::R1);
        out.alu(AluOp::And, Reg::R0, Reg::R1);
        // It never is longer; that is for the verifier.
        out.branch_imm(Width::W64, Cond::Gt, Reg::R0, len as i32 + 2, discard);
        out.alu(AluOp::Add, Reg::R8, Reg::R0);
    }

    /// As many bytes as `r9` says, all or none. `from` puts into `r3` where they are.
    fn append_bytes(&mut self, slot: i16, most: usize, reader: u32, from: impl FnOnce(&mut Self)) {
        let fits = self.out.label();
        let failed = self.out.label();
        self.out.branch_imm(Width::W64, Cond::Le, Reg::R9, most as i32, fits);
        self.out.mov_imm(Reg::R9, most as i32);
        self.out.bind(fits);
        self.out.mov(Reg::R1, Reg::R7);
        self.out.alu(AluOp::Add, Reg::R1, Reg::R8);
        self.out.mov(Reg::R2, Reg::R9);
        from(self);
        self.out.call(reader);
        if reader == helper::READ_USER {
            self.count_fault();
        }
        self.out.put(Reg::R7, slot, Reg::R0);
        self.out.branch_imm(Width::W64, Cond::Ne, Reg::R0, 0, failed);
        self.out.put(Reg::R7, slot, Reg::R9);
        self.out.alu(AluOp::Add, Reg::R8, Reg::R9);
        self.out.bind(failed);
    }
}

/// Whether it is said if nothing can be read there, which no program does while it writes a record.
fn is_noted(address: &Value) -> bool {
    matches!(address.kind, ValueKind::Noted(..))
}
