//! Filters: which parts are decided when, and jumps for them.

use sidestep_bpf::{AluOp, Cond, Insn, Operand, Reg, Size, Width};

use super::fetch::{Source, source, take_bits};
use super::{Compiler, GET_SMP_PROCESSOR_ID};
use crate::build::Label;
use crate::uprobe_events::event::{Register, Type};
use crate::uprobe_events::filter::{Expr, Field, Op};
use crate::uprobe_events::pattern::Pattern;
use crate::uprobe_events::record::{COMM, COMM_LEN, FUNC, IP, PID, Place};

/// A function that matches a pattern, in a string with this much room.
pub(super) type Glob = (Label, Pattern, usize);

/// What a condition compares.
#[derive(Clone, Copy)]
struct Compare {
    size: Size,
    signed: bool,
    op: Op,
    value: u64,
    negated: bool,
}

impl Compiler<'_> {
    /// The expression without parts that are known already.
    pub(super) fn fold(&self, expr: &Expr) -> Expr {
        match expr {
            Expr::All(parts) => all(parts.iter().map(|part| self.fold(part))),
            Expr::Any(parts) => any(parts.iter().map(|part| self.fold(part))),
            Expr::Number { field, size, signed, op, value, negated } => match self.source(*field) {
                Some(Source::Value(constant)) => {
                    let constant = self.converted(*field, *size, *signed, constant);
                    Expr::constant(holds(*op, *size, *signed, constant, *value) != *negated)
                }
                _ => expr.clone(),
            },
            Expr::Text { field, pattern, negated } => match pattern.literal() {
                // There is no room for its bytes and a zero byte.
                Some((bytes, _)) if bytes.len() >= self.room(*field) => Expr::constant(*negated),
                Some((bytes, true)) if bytes.is_empty() => Expr::constant(!*negated),
                _ => expr.clone(),
            },
        }
    }

    /// What the registers alone can say about a folded expression: false only if it is.
    pub(super) fn early(&self, expr: &Expr) -> Expr {
        match expr {
            Expr::All(parts) => all(parts.iter().map(|part| self.early(part))),
            Expr::Any(parts) => any(parts.iter().map(|part| self.early(part))),
            Expr::Number { .. } if self.is_early(expr) => expr.clone(),
            Expr::Number { .. } | Expr::Text { .. } => Expr::TRUE,
        }
    }

    /// What is left to be said after [`Compiler::early`].
    pub(super) fn late(&self, expr: &Expr) -> Expr {
        match expr {
            Expr::All(parts) => all(parts.iter().map(|part| self.late(part))),
            expr if self.is_early(expr) => Expr::TRUE,
            expr => expr.clone(),
        }
    }

    fn is_early(&self, expr: &Expr) -> bool {
        match expr {
            Expr::All(parts) | Expr::Any(parts) => parts.iter().all(|part| self.is_early(part)),
            Expr::Number { field, .. } => matches!(self.source(*field), Some(Source::Context(_))),
            Expr::Text { .. } => false,
        }
    }

    /// Where a field is, if that is not memory.
    fn source(&self, field: Field) -> Option<Source> {
        match field {
            Field::Ip => Some(Source::Context(Register::pc())),
            Field::Arg(index) => {
                let arg = &self.event.args[index];
                let (source, derefs) = source(&arg.fetch, self.event.offset);
                let is_number = arg.ty != Type::String && derefs.is_empty() && !matches!(source, Source::File(_));
                is_number.then_some(source)
            }
            _ => None,
        }
    }

    /// The bits of a constant that count, as they are in a record.
    fn converted(&self, field: Field, size: Size, signed: bool, value: u64) -> u64 {
        let value = match self.ty(field) {
            Some(Type::Bits { width, shift, .. }) => value >> shift & u64::MAX >> (64 - width),
            _ => value,
        };
        extended(size, signed, value)
    }

    fn ty(&self, field: Field) -> Option<Type> {
        match field {
            Field::Arg(index) => Some(self.event.args[index].ty),
            _ => None,
        }
    }

    /// Jumps to `target` if the expression is `wanted`, by registers alone; the context is in `r1`.
    pub(super) fn branch_early(&mut self, expr: &Expr, wanted: bool, target: Label) {
        let each = |this: &mut Self, part: &Expr, wanted, target| this.branch_early(part, wanted, target);
        match expr {
            Expr::All(parts) => self.sequence(parts, false, wanted, target, each),
            Expr::Any(parts) => self.sequence(parts, true, wanted, target, each),
            Expr::Number { field, size, signed, op, value, negated } => {
                let compare = Compare { size: *size, signed: *signed, op: *op, value: *value, negated: *negated };
                if let Some(Source::Context(register)) = self.source(*field) {
                    self.load_register(register, self.ty(*field), compare);
                    self.compare(compare, wanted, target);
                }
            }
            // Has been replaced.
            Expr::Text { .. } => {}
        }
    }

    /// Parts of which each that is `decisive` decides.
    fn sequence(
        &mut self,
        parts: &[Expr],
        decisive: bool,
        wanted: bool,
        target: Label,
        mut each: impl FnMut(&mut Self, &Expr, bool, Label),
    ) {
        let Some((last, others)) = parts.split_last() else {
            if wanted != decisive {
                self.out.goto(target);
            }
            return;
        };
        if wanted == decisive {
            parts.iter().for_each(|part| each(self, part, wanted, target));
            return;
        }
        let over = self.out.label();
        others.iter().for_each(|part| each(self, part, decisive, over));
        each(self, last, wanted, target);
        self.out.bind(over);
    }

    /// A register's word into `r2`.
    fn load_register(&mut self, register: Register, ty: Option<Type>, compare: Compare) {
        let off = register.offset();
        match (ty, compare.size, compare.signed) {
            (Some(Type::Bits { width, shift, .. }), ..) => {
                self.out.load(Size::Dw, Reg::R2, Reg::R1, off);
                take_bits(&mut self.out, Reg::R2, width, shift);
            }
            (_, size @ (Size::B | Size::H), true) => {
                self.out.load(Size::Dw, Reg::R2, Reg::R1, off);
                self.out.push(Insn::MovSx { width: Width::W64, dst: Reg::R2, src: Reg::R2, from: size });
            }
            (_, size, _) => self.out.load(size, Reg::R2, Reg::R1, off),
        }
    }

    /// Goes on if the expression holds for the record, else to `discard`. Returns the functions
    /// that it calls.
    pub(super) fn branch_late(&mut self, expr: &Expr, discard: Label) -> Vec<Glob> {
        let mut globs = Vec::new();
        self.late_part(expr, false, discard, &mut globs);
        globs
    }

    fn late_part(&mut self, expr: &Expr, wanted: bool, target: Label, globs: &mut Vec<Glob>) {
        match expr {
            Expr::All(parts) | Expr::Any(parts) => {
                let decisive = matches!(expr, Expr::Any(_));
                let each = |this: &mut Self, part: &Expr, wanted, target| this.late_part(part, wanted, target, globs);
                self.sequence(parts, decisive, wanted, target, each);
            }
            Expr::Number { field, size, signed, op, value, negated } => {
                let compare = Compare { size: *size, signed: *signed, op: *op, value: *value, negated: *negated };
                self.load_field(*field, compare);
                self.compare(compare, wanted, target);
            }
            Expr::Text { field, pattern, negated } => {
                self.load_text(*field);
                self.text(pattern, self.room(*field), wanted != *negated, target, globs);
            }
        }
    }

    /// A number of the record into `r2`.
    fn load_field(&mut self, field: Field, compare: Compare) {
        let off = match field {
            Field::Arg(index) => match self.format.fields[index].place {
                Place::At(at) => at as i16,
                // Text is no number.
                Place::Comm | Place::Text(_) => COMM,
            },
            Field::Ip => IP,
            Field::Func => FUNC,
            Field::Pid => PID,
            Field::Comm => COMM,
            Field::Cpu => {
                self.out.call(GET_SMP_PROCESSOR_ID);
                self.out.mov(Reg::R2, Reg::R0);
                return;
            }
        };
        let size = compare.size;
        self.out.push(Insn::Load {
            size,
            signed: compare.signed && size != Size::Dw,
            dst: Reg::R2,
            base: Reg::R7,
            off,
        });
    }

    /// Jumps if what `r2` holds is in the relation, or if it is not.
    fn compare(&mut self, compare: Compare, wanted: bool, target: Label) {
        let Compare { size, signed, op, value, negated } = compare;
        let positive = wanted != negated;
        let (width, src) = match (size, i32::try_from(extended(size, signed, value) as i64)) {
            (Size::W, _) => (Width::W32, Operand::Imm(value as i32)),
            (_, Ok(imm)) => (Width::W64, Operand::Imm(imm)),
            (_, Err(_)) => {
                self.out.set(Reg::R3, value);
                (Width::W64, Operand::Reg(Reg::R3))
            }
        };
        if op == Op::And && !positive {
            let over = self.out.label();
            self.out.branch(width, Cond::Set, Reg::R2, src, over);
            self.out.goto(target);
            self.out.bind(over);
            return;
        }
        self.out.branch(width, condition(op, signed, positive), Reg::R2, src, target);
    }

    /// Where text is.
    fn text_place(&self, field: Field) -> &Place {
        match field {
            Field::Arg(index) => &self.format.fields[index].place,
            _ => &Place::Comm,
        }
    }

    /// Bytes that there are at text at least, with its zero byte.
    fn room(&self, field: Field) -> usize {
        if let Place::At(_) = self.text_place(field) { self.format.room } else { COMM_LEN }
    }

    /// The address of text into `r2`.
    fn load_text(&mut self, field: Field) {
        let at = if let Place::At(at) = self.text_place(field) { Some(*at as i16) } else { None };
        self.out.mov(Reg::R2, Reg::R7);
        let Some(at) = at else {
            self.out.alu_imm(AluOp::Add, Reg::R2, COMM.into());
            return;
        };
        self.out.load(Size::W, Reg::R1, Reg::R7, at);
        self.out.alu_imm(AluOp::And, Reg::R1, 0xffff);
        // It never is behind the last string's room; that is for the verifier.
        let last = (self.format.size - self.format.room) as i32;
        self.out.branch_imm(Width::W64, Cond::Gt, Reg::R1, last, self.discard);
        self.out.alu(AluOp::Add, Reg::R2, Reg::R1);
    }

    /// Jumps if the text at `r2` matches, or if it does not.
    fn text(&mut self, pattern: &Pattern, room: usize, wanted: bool, target: Label, globs: &mut Vec<Glob>) {
        let Some((mut bytes, open)) = pattern.literal() else {
            let known = globs.iter().find(|(_, p, r)| p == pattern && *r == room).map(|(label, ..)| *label);
            let label = known.unwrap_or_else(|| {
                let label = self.out.label();
                globs.push((label, pattern.clone(), room));
                label
            });
            self.out.mov(Reg::R1, Reg::R2);
            self.out.call_local(label);
            let cond = if wanted { Cond::Ne } else { Cond::Eq };
            self.out.branch_imm(Width::W64, cond, Reg::R0, 0, target);
            return;
        };
        if !open {
            bytes.push(0);
        }
        let over = self.out.label();
        let differs = if wanted { over } else { target };
        self.differs(&bytes, differs);
        if wanted {
            self.out.goto(target);
        }
        self.out.bind(over);
    }

    /// Jumps if the bytes at `r2` are not these.
    fn differs(&mut self, bytes: &[u8], target: Label) {
        let mut at = 0;
        while at < bytes.len() {
            let sizes = [Size::Dw, Size::W, Size::H, Size::B];
            let size = sizes.into_iter().find(|size| at + size.bytes() <= bytes.len()).unwrap_or(Size::B);
            let mut word = [0; 8];
            word[..size.bytes()].copy_from_slice(&bytes[at..at + size.bytes()]);
            let word = u64::from_le_bytes(word);
            self.out.load(size, Reg::R1, Reg::R2, at as i16);
            match size {
                Size::Dw => {
                    self.out.set(Reg::R3, word);
                    self.out.branch(Width::W64, Cond::Ne, Reg::R1, Operand::Reg(Reg::R3), target);
                }
                _ => self.out.branch_imm(Width::W32, Cond::Ne, Reg::R1, word as i32, target),
            }
            at += size.bytes();
        }
    }
}

/// All parts; true ones left out.
fn all(parts: impl Iterator<Item = Expr>) -> Expr {
    let mut kept = Vec::new();
    for part in parts.filter(|part| *part != Expr::TRUE) {
        if part == Expr::FALSE {
            return Expr::FALSE;
        }
        kept.push(part);
    }
    if kept.len() == 1 { kept.remove(0) } else { Expr::All(kept) }
}

/// One of the parts; false ones left out.
fn any(parts: impl Iterator<Item = Expr>) -> Expr {
    let mut kept = Vec::new();
    for part in parts.filter(|part| *part != Expr::FALSE) {
        if part == Expr::TRUE {
            return Expr::TRUE;
        }
        kept.push(part);
    }
    if kept.len() == 1 { kept.remove(0) } else { Expr::Any(kept) }
}

/// A number of this size as a word.
fn extended(size: Size, signed: bool, value: u64) -> u64 {
    let value = sidestep_bpf::alu::truncate(size, value);
    if signed && size != Size::Dw { sidestep_bpf::alu::sign_extend(Width::W64, size, value) } else { value }
}

fn condition(op: Op, signed: bool, positive: bool) -> Cond {
    let op = match (op, positive) {
        (op, true) => op,
        (Op::Eq, false) => Op::Ne,
        (Op::Ne, false) => Op::Eq,
        (Op::Lt, false) => Op::Ge,
        (Op::Le, false) => Op::Gt,
        (Op::Gt, false) => Op::Le,
        (Op::Ge, false) => Op::Lt,
        (Op::And, false) => Op::And,
    };
    match (op, signed) {
        (Op::Eq, _) => Cond::Eq,
        (Op::Ne, _) => Cond::Ne,
        (Op::And, _) => Cond::Set,
        (Op::Lt, false) => Cond::Lt,
        (Op::Le, false) => Cond::Le,
        (Op::Gt, false) => Cond::Gt,
        (Op::Ge, false) => Cond::Ge,
        (Op::Lt, true) => Cond::Slt,
        (Op::Le, true) => Cond::Sle,
        (Op::Gt, true) => Cond::Sgt,
        (Op::Ge, true) => Cond::Sge,
    }
}

/// Whether a number is in this relation to a constant.
fn holds(op: Op, size: Size, signed: bool, number: u64, value: u64) -> bool {
    sidestep_bpf::alu::holds(Width::W64, condition(op, signed, true), number, extended(size, signed, value))
}
