//! Numbers: into `r0`.

use sidestep_bpf::{AluOp, Cond, Insn, Operand, Reg, Size, Width};
use sidestep_isa::Context;

use super::super::ast::{BinaryOp, Step};
use super::super::checked::{Builtin, Checked, Value, ValueKind};
use super::super::types::Type;
use super::{Lower, Place, SCRATCH, Site, helper};
use crate::build::Label;

impl Lower<'_, '_> {
    pub(super) fn int(&mut self, value: &Value) {
        if self.leaf(Reg::R0, value) {
            return;
        }
        match &value.kind {
            ValueKind::Int(_)
            | ValueKind::Var(_)
            | ValueKind::Text(_)
            | ValueKind::Element(..)
            | ValueKind::Words(_)
            | ValueKind::Meant(..)
            | ValueKind::ReadText(..)
            | ValueKind::CountedText(..)
            | ValueKind::ReadBytes(..)
            | ValueKind::Concat(..)
            | ValueKind::BytesOf(_)
            | ValueKind::CommOf(_)
            | ValueKind::Tuple(_) => {}
            ValueKind::Item(of, index) => self.item_number(of, *index),
            ValueKind::Own(index) => self.own_number(*index),
            ValueKind::After(ops, of) => {
                self.ops(ops);
                self.int(of);
            }
            ValueKind::Read(entry) => self.read_map(entry, self.usual(entry.map)),
            ValueKind::Stat(entry, stat) => self.read_map(entry, Some(*stat)),
            ValueKind::Has(entry) => self.has(entry),
            ValueKind::Builtin(builtin) => self.builtin(*builtin),
            ValueKind::Not(_) | ValueKind::Same(..) => self.truth(value),
            ValueKind::Binary(op, ..) if op.is_comparison() => self.truth(value),
            ValueKind::Binary(BinaryOp::LogicalAnd | BinaryOp::LogicalOr, ..) => self.truth(value),
            ValueKind::Invert(of) => {
                self.int(of);
                self.out.invert(Reg::R0);
            }
            ValueKind::Negate(of) => {
                self.int(of);
                self.out.push(Insn::Neg { width: Width::W64, dst: Reg::R0 });
            }
            ValueKind::Binary(op, unsigned, a, b) => {
                let operand = self.pair(a, b);
                self.calculate(*op, *unsigned, operand);
            }
            ValueKind::Divide(op, unsigned, a, b, warning) => self.divide(*op, *unsigned, a, b, *warning),
            ValueKind::Within(index, length, warning) => self.within(index, length, *warning),
            ValueKind::CharOf(text, index) => self.char_of(text, index),
            ValueKind::AddressOf(of) => self.address_of(of),
            ValueKind::Ternary(cond, then, otherwise) => {
                let (not, end) = (self.out.label(), self.out.label());
                self.branch(cond, false, not);
                self.int(then);
                self.out.goto(end);
                self.out.bind(not);
                self.int(otherwise);
                self.out.bind(end);
            }
            ValueKind::Resize(of) => {
                self.int(of);
                self.resize(&value.ty);
            }
            ValueKind::Swap(of) => {
                self.int(of);
                if let Type::Int { bytes: bytes @ (2 | 4 | 8), .. } = value.ty {
                    let size = match bytes {
                        2 => Size::H,
                        4 => Size::W,
                        _ => Size::Dw,
                    };
                    self.out.push(Insn::Swap { dst: Reg::R0, order: sidestep_bpf::Swap::Always, size });
                }
            }
            ValueKind::Load(address) => self.load(address, &value.ty),
            ValueKind::Part(of, offset) => self.part(of, *offset, &value.ty),
            ValueKind::StepVar(step, var) => self.step_var(*step, *var),
            ValueKind::StepMap(step, entry, by) => {
                let one = if step.up { *by } else { by.wrapping_neg() };
                self.add_map(entry, &Value { ty: Type::INT, kind: ValueKind::Int(one) }, true);
                if !step.post {
                    self.out.alu_imm(AluOp::Add, Reg::R0, one as i32);
                }
            }
            ValueKind::Order(a, b, len) => self.order(a, b, *len),
            ValueKind::Write(to, value, len) => self.write_user(to, value, *len),
            ValueKind::Length(text) => self.text_length(text),
            ValueKind::MapLength(map) => {
                let index = self.map_index(*map);
                self.out.map(Reg::R1, index);
                self.out.mov_imm(Reg::R2, 0);
                self.out.call(helper::MAP_LEN);
            }
            ValueKind::StackLength(stack, of) => {
                self.int(of);
                let index = self.map_index(self.shared.checked.maps.len() + stack);
                self.out.mov(Reg::R2, Reg::R0);
                self.out.map(Reg::R1, index);
                self.out.call(helper::MAP_LEN);
            }
            ValueKind::Find(text, part) => self.of_texts(helper::TEXT_FIND, text, part),
            ValueKind::Matches(text, pattern) => self.of_texts(helper::TEXT_MATCHES, text, pattern),
            ValueKind::Shown(of) | ValueKind::Noted(of, _) => self.int(of),
        }
        if self.is_kept_apart(value) {
            self.out.mov(Reg::R1, Reg::R0);
            self.out.call(helper::SYMBOL);
        }
    }

    /// An address that goes with what it means in its process.
    fn is_kept_apart(&self, value: &Value) -> bool {
        let made = matches!(value.kind, ValueKind::Shown(_) | ValueKind::Builtin(Builtin::Caller));
        made && value.ty == Type::Symbol && self.shared.checked.several
    }

    fn is_leaf(&self, value: &Value) -> bool {
        match &value.kind {
            ValueKind::Int(_) | ValueKind::Var(_) => true,
            ValueKind::Builtin(Builtin::Arg(n)) => self.argument_register(*n).is_some(),
            ValueKind::Builtin(Builtin::Retval | Builtin::Register(_)) => true,
            ValueKind::Shown(of) => !self.is_kept_apart(value) && self.is_leaf(of),
            _ => false,
        }
    }

    /// Where the registers are.
    pub(super) fn context(&self) -> &'static Context {
        self.shared.context()
    }

    /// A word of the context into `dst`.
    pub(super) fn register(&mut self, dst: Reg, at: u16) {
        self.out.load(Size::Dw, dst, Reg::R6, at as i16);
    }

    /// The register of a function's argument; `None`: it is on the stack.
    fn argument_register(&self, n: u32) -> Option<i16> {
        match self.site {
            Site::Usdt(_) => None,
            _ => self.context().arguments.get(n as usize).map(|at| *at as i16),
        }
    }

    /// What is there without calling anything, into any register.
    fn leaf(&mut self, dst: Reg, value: &Value) -> bool {
        match &value.kind {
            ValueKind::Int(n) => self.out.set(dst, *n),
            ValueKind::Var(var) => match self.vars[*var].0 {
                Place::Stack(at) => self.out.load(Size::Dw, dst, Reg::R10, at),
                Place::Scratch(at) => {
                    self.out.map_value(dst, SCRATCH, at);
                    self.out.load(Size::Dw, dst, dst, 0);
                }
            },
            ValueKind::Builtin(Builtin::Arg(n)) => {
                let Some(at) = self.argument_register(*n) else { return false };
                self.out.load(Size::Dw, dst, Reg::R6, at);
            }
            ValueKind::Builtin(Builtin::Retval) => self.register(dst, self.context().result),
            ValueKind::Builtin(Builtin::Register(at)) => self.register(dst, *at),
            ValueKind::Shown(of) => return !self.is_kept_apart(value) && self.leaf(dst, of),
            _ => return false,
        }
        true
    }

    /// The first into `r0`, the second where the result says: a constant, or `r1`.
    fn pair(&mut self, a: &Value, b: &Value) -> Operand {
        if let ValueKind::Int(n) = b.kind {
            if let Ok(imm) = i32::try_from(n as i64) {
                self.int(a);
                return Operand::Imm(imm);
            }
        }
        self.int(a);
        if self.is_leaf(b) {
            self.leaf(Reg::R1, b);
            return Operand::Reg(Reg::R1);
        }
        let used = self.used;
        let at = self.stack(8);
        self.out.put(Reg::R10, at, Reg::R0);
        self.int(b);
        self.out.mov(Reg::R1, Reg::R0);
        self.out.load(Size::Dw, Reg::R0, Reg::R10, at);
        self.release(used);
        Operand::Reg(Reg::R1)
    }

    /// `r0 op= operand`
    fn calculate(&mut self, op: BinaryOp, unsigned: bool, operand: Operand) {
        let op = match op {
            BinaryOp::Add => AluOp::Add,
            BinaryOp::Sub => AluOp::Sub,
            BinaryOp::Mul => AluOp::Mul,
            BinaryOp::Div if unsigned => AluOp::Div,
            BinaryOp::Div => AluOp::Sdiv,
            BinaryOp::Mod if unsigned => AluOp::Mod,
            BinaryOp::Mod => AluOp::Smod,
            BinaryOp::And => AluOp::And,
            BinaryOp::Or => AluOp::Or,
            BinaryOp::Xor => AluOp::Xor,
            BinaryOp::Shl => AluOp::Lsh,
            BinaryOp::Shr if unsigned => AluOp::Rsh,
            BinaryOp::Shr => AluOp::Arsh,
            _ => return,
        };
        let operand = match (op, operand) {
            (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Imm(n)) => Operand::Imm(n & 63),
            (_, operand) => operand,
        };
        self.out.push(Insn::Alu { width: Width::W64, op, dst: Reg::R0, src: operand });
    }

    /// A division by zero gives 1, and a warning.
    fn divide(&mut self, op: BinaryOp, unsigned: bool, a: &Value, b: &Value, warning: usize) {
        let operand = self.pair(a, b);
        if let Operand::Imm(n) = operand {
            self.out.mov_imm(Reg::R1, n);
        }
        let (zero, end) = (self.out.label(), self.out.label());
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R1, 0, zero);
        self.calculate(op, unsigned, Operand::Reg(Reg::R1));
        self.out.goto(end);
        self.out.bind(zero);
        self.act(warning, &[]);
        self.out.mov_imm(Reg::R0, 1);
        self.out.bind(end);
    }

    /// 1 or 0.
    fn truth(&mut self, value: &Value) {
        let (no, end) = (self.out.label(), self.out.label());
        self.branch(value, false, no);
        self.out.mov_imm(Reg::R0, 1);
        self.out.goto(end);
        self.out.bind(no);
        self.out.mov_imm(Reg::R0, 0);
        self.out.bind(end);
    }

    /// Goes to `target` if the value's truth is `wanted`.
    pub(super) fn branch(&mut self, value: &Value, wanted: bool, target: Label) {
        match &value.kind {
            ValueKind::Int(n) => {
                if (*n != 0) == wanted {
                    self.out.goto(target);
                }
            }
            ValueKind::Not(of) => self.branch(of, !wanted, target),
            ValueKind::Binary(op @ (BinaryOp::LogicalAnd | BinaryOp::LogicalOr), _, a, b) => {
                // Whether the first alone may decide for `wanted`.
                if (*op == BinaryOp::LogicalOr) == wanted {
                    self.branch(a, wanted, target);
                    self.branch(b, wanted, target);
                } else {
                    let other = self.out.label();
                    self.branch(a, !wanted, other);
                    self.branch(b, wanted, target);
                    self.out.bind(other);
                }
            }
            ValueKind::Binary(op, unsigned, a, b) if op.is_comparison() => {
                let operand = self.pair(a, b);
                let cond = condition(*op, *unsigned, wanted);
                self.out.branch(Width::W64, cond, Reg::R0, operand, target);
            }
            ValueKind::Same(a, b, first) => {
                if wanted {
                    let differs = self.out.label();
                    self.compare(a, b, *first, differs);
                    self.out.goto(target);
                    self.out.bind(differs);
                } else {
                    self.compare(a, b, *first, target);
                }
            }
            _ => {
                self.int(value);
                let cond = if wanted { Cond::Ne } else { Cond::Eq };
                self.out.branch_imm(Width::W64, cond, Reg::R0, 0, target);
            }
        }
    }

    pub(super) fn resize(&mut self, ty: &Type) {
        self.resize_in(Reg::R0, ty);
    }

    fn resize_in(&mut self, reg: Reg, ty: &Type) {
        let Type::Int { bytes, signed } = ty else { return };
        let unused = 64 - 8 * i32::from(*bytes);
        if unused > 0 {
            self.out.alu_imm(AluOp::Lsh, reg, unused);
            self.out.alu_imm(if *signed { AluOp::Arsh } else { AluOp::Rsh }, reg, unused);
        }
    }

    /// The number at an address of the target; 0 if there is nothing.
    fn load(&mut self, address: &Value, ty: &Type) {
        let Type::Int { bytes, .. } = ty else { return };
        self.int(address);
        self.out.mov(Reg::R3, Reg::R0);
        self.read_user(i32::from(*bytes), Some(address));
        self.resize(ty);
    }

    /// So many bytes at `r3` into `r0`. `address` is the expression that was computed, if there is
    /// one.
    pub(super) fn read_user(&mut self, bytes: i32, address: Option<&Value>) {
        let used = self.used;
        let at = self.stack(8);
        self.out.put_imm(Reg::R10, at, 0);
        self.out.mov(Reg::R1, Reg::R10);
        self.out.alu_imm(AluOp::Add, Reg::R1, at.into());
        self.out.mov_imm(Reg::R2, bytes);
        self.out.call(helper::READ_USER);
        match address {
            _ if !self.shared.checked.config.count_reads => {}
            Some(address) => self.failed_read(address),
            None => self.count_fault(),
        }
        self.out.load(Size::Dw, Reg::R0, Reg::R10, at);
        self.release(used);
    }

    fn step_var(&mut self, step: Step, var: usize) {
        // A pointer goes on by what it leads to.
        let size = match &self.vars[var].1 {
            Type::Pointer(to) => {
                let Checked { layouts, word, .. } = self.shared.checked;
                to.size(*word, &mut |record| layouts.get(&record.key())).unwrap_or(1) as i32
            }
            _ => 1,
        };
        let one = if step.up { size } else { -size };
        let (base, at) = match self.vars[var].0 {
            Place::Stack(at) => (Reg::R10, at),
            Place::Scratch(at) => {
                self.out.map_value(Reg::R2, SCRATCH, at);
                (Reg::R2, 0)
            }
        };
        self.out.load(Size::Dw, Reg::R0, base, at);
        self.out.mov(Reg::R1, Reg::R0);
        self.out.alu_imm(AluOp::Add, Reg::R1, one);
        // Of a variable that was declared with a type.
        let ty = self.vars[var].1.clone();
        self.resize_in(Reg::R1, &ty);
        self.out.put(base, at, Reg::R1);
        if !step.post {
            self.out.mov(Reg::R0, Reg::R1);
        }
    }

    /// The number of the function's name, from what the engine tells of the probe.
    pub(super) fn function(&mut self) {
        self.out.mov(Reg::R1, Reg::R6);
        self.out.call(helper::COOKIE);
        self.out.alu_imm(AluOp::Rsh, Reg::R0, 32);
    }

    pub(super) fn low_half(&mut self) {
        self.out.alu_imm(AluOp::Lsh, Reg::R0, 32);
        self.out.alu_imm(AluOp::Rsh, Reg::R0, 32);
    }
}

fn condition(op: BinaryOp, unsigned: bool, wanted: bool) -> Cond {
    use BinaryOp::{Eq, Ge, Gt, Le, Lt, Ne};
    let op = match (op, wanted) {
        (op, true) => op,
        (Eq, _) => Ne,
        (Ne, _) => Eq,
        (Lt, _) => Ge,
        (Le, _) => Gt,
        (Gt, _) => Le,
        (_, _) => Lt,
    };
    match (op, unsigned) {
        (Eq, _) => Cond::Eq,
        (Lt, true) => Cond::Lt,
        (Lt, false) => Cond::Slt,
        (Le, true) => Cond::Le,
        (Le, false) => Cond::Sle,
        (Gt, true) => Cond::Gt,
        (Gt, false) => Cond::Sgt,
        (Ge, true) => Cond::Ge,
        (Ge, false) => Cond::Sge,
        _ => Cond::Ne,
    }
}
