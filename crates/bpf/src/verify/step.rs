//! What each instruction does to what is known.

use super::arith;
use super::error::Problem;
use super::explore::{Next, Walk, function_target};
use super::scalar::{Scalar, assume, assume_not};
use super::value::{Kind, Value};
use crate::insn::{AluOp, Cond, Imm64, Insn, Operand, Reg, Size, Width};

/// How far pointers may point outside of anything, as in the kernel (`BPF_MAX_VAR_OFF`).
const MAX_OFFSET: i64 = 1 << 29;

impl Walk<'_> {
    /// Does the instruction at `pc`.
    pub fn step(&mut self, pc: usize, insn: Insn) -> Result<Next, Problem> {
        match insn {
            Insn::Alu { width, op: AluOp::Mov, dst, src } => self.mov(width, dst, src)?,
            Insn::Alu { width, op, dst, src } => self.alu(width, op, dst, src)?,
            Insn::Neg { width, dst } => self.change(dst, dst, |n| arith::neg(width, n))?,
            Insn::MovSx { width, dst, src, from } => self.change(dst, src, |n| {
                let extended = n.sign_extend(from.bits());
                if width == Width::W64 { extended } else { extended.low() }
            })?,
            Insn::Swap { order, size, dst } => self.change(dst, dst, |n| arith::swap(order, size, n))?,
            Insn::Load { size, signed, dst, base, off } => {
                let value = self.load(size, base, off)?;
                let value = if signed { extended(value, size) } else { value };
                self.write(dst, value)?;
            }
            Insn::Store { size, base, off, src } => self.store(size, base, off, src)?,
            Insn::Atomic { width, op, base, off, src } => self.atomic(width, op, base, off, src)?,
            Insn::LoadImm64 { dst, imm } => {
                let value = self.immediate(pc, &insn, imm)?;
                self.write(dst, value)?;
            }
            Insn::Goto { off, .. } => return Ok(Next::At(super::flow::Code::target(pc, off))),
            Insn::Branch { width, cond, dst, src, off } => {
                let target = super::flow::Code::target(pc, off.into());
                return self.branch(pc, target, width, cond, dst, src);
            }
            Insn::CallHelper(number) => return self.call_helper(pc, number),
            Insn::CallLocal(_) => {
                let target = function_target(pc, &insn).unwrap_or_default();
                self.enter(target, pc)?;
                return Ok(Next::At(target));
            }
            Insn::Exit => return self.exit(),
        }
        Ok(Next::At(pc + insn.slots()))
    }

    fn immediate(&mut self, pc: usize, insn: &Insn, imm: Imm64) -> Result<Value, Problem> {
        match imm {
            Imm64::Value(value) => Ok(Value::constant(value)),
            Imm64::Map(map) => Ok(Value::pointer(Kind::Map { map: self.map_index(map)? })),
            Imm64::MapValue { map, offset } => {
                let map = self.map_index(map)?;
                let shape = &self.rules.maps[map];
                if !shape.kind.is_array() {
                    return Err(Problem::NoMapValue(shape.name.clone()));
                }
                let start = Value::pointer(Kind::MapValue { map });
                let inside = u64::from(offset) % shape.stride();
                if inside >= shape.value_size.into() || u64::from(offset) / shape.stride() >= shape.max_entries.into() {
                    let (from, what) = (offset.into(), self.describe(&start));
                    let size =
                        shape.stride() * u64::from(shape.max_entries.saturating_sub(1)) + u64::from(shape.value_size);
                    return Err(Problem::OutOfBounds { what, from, to: from + 1, size });
                }
                Ok(Value { number: Scalar::constant(inside), ..start })
            }
            Imm64::Func(_) => {
                Ok(Value::pointer(Kind::Function { start: function_target(pc, insn).unwrap_or_default() }))
            }
            Imm64::MapFd(_) | Imm64::MapFdValue { .. } => Err(Problem::Descriptor),
            Imm64::BtfId { .. } => Err(Problem::KernelVariable),
            Imm64::Thread(_) => Err(Problem::Linked),
        }
    }

    /// The second operand.
    pub fn operand(&mut self, width: Width, operand: Operand) -> Result<Value, Problem> {
        match operand {
            Operand::Reg(reg) => self.read(reg),
            Operand::Imm(imm) if width == Width::W32 => Ok(Value::constant(imm as u32 as u64)),
            Operand::Imm(imm) => Ok(Value::constant(i64::from(imm) as u64)),
        }
    }

    fn mov(&mut self, width: Width, dst: Reg, src: Operand) -> Result<(), Problem> {
        let mut value = self.operand(width, src)?;
        if let Operand::Reg(reg) = src {
            if value.is_number() {
                value = self.named(reg, value);
            }
            if width == Width::W32 {
                value = self.number_of(reg, value)?;
                let id = if value.number.u.max <= u32::MAX.into() { value.id } else { 0 };
                value = Value { id, number: value.number.low(), ..value };
            }
        }
        self.write(dst, value)
    }

    /// The number in a register gets a name, so that what is learned of a copy is learned of it.
    pub fn named(&mut self, reg: Reg, mut value: Value) -> Value {
        if value.is_number() && value.id == 0 && value.number.as_constant().is_none() {
            value.id = self.fresh_id();
            let top = self.top();
            self.path.state.frames[top].regs[reg.index()].id = value.id;
        }
        value
    }

    fn number_of(&self, reg: Reg, value: Value) -> Result<Value, Problem> {
        if value.is_number() {
            return Ok(value);
        }
        Err(Problem::PointerOperation { reg, what: self.describe(&value) })
    }

    /// `dst = f(src)` on numbers.
    fn change(&mut self, dst: Reg, src: Reg, f: impl FnOnce(&Scalar) -> Scalar) -> Result<(), Problem> {
        let value = self.read(src)?;
        let value = self.number_of(src, value)?;
        self.write(dst, Value { id: 0, number: f(&value.number), ..value })
    }

    fn alu(&mut self, width: Width, op: AluOp, dst: Reg, src: Operand) -> Result<(), Problem> {
        if let Operand::Imm(imm) = src {
            let division = matches!(op, AluOp::Div | AluOp::Sdiv | AluOp::Mod | AluOp::Smod);
            if division && imm == 0 {
                return Err(Problem::DivisionByZero);
            }
            let shift = matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh);
            if shift && !(0..width.bits() as i32).contains(&imm) {
                return Err(Problem::Shift { count: imm, bits: width.bits() });
            }
        }
        let left = self.read(dst)?;
        let right = self.operand(width, src)?;
        if left.is_number() && right.is_number() {
            let number = arith::alu(width, op, &left.number, &right.number);
            let origin = left.origin | right.origin;
            return self.write(dst, Value { origin, ..Value::number(number) });
        }
        let src = if let Operand::Reg(reg) = src { reg } else { dst };
        let value = match (op, width) {
            (AluOp::Add, Width::W64) if right.is_number() => self.moved(op, dst, left, right)?,
            (AluOp::Add, Width::W64) if left.is_number() => self.moved(op, src, right, left)?,
            (AluOp::Add, Width::W64) => return Err(Problem::PointerSum),
            (AluOp::Sub, Width::W64) if right.is_number() => self.moved(op, dst, left, right)?,
            (AluOp::Sub, Width::W64) if left.is_number() => return Err(Problem::PointerNegated),
            (AluOp::Sub, Width::W64) => Value::UNKNOWN,
            _ => {
                let (reg, value) = if left.is_number() { (src, right) } else { (dst, left) };
                return Err(Problem::PointerOperation { reg, what: self.describe(&value) });
            }
        };
        self.write(dst, value)
    }

    /// A pointer plus or minus a number.
    fn moved(&mut self, op: AluOp, reg: Reg, pointer: Value, by: Value) -> Result<Value, Problem> {
        if pointer.nullable {
            return Err(Problem::MayBeNull { reg });
        }
        let what = self.describe(&pointer);
        if matches!(pointer.kind, Kind::Map { .. } | Kind::Function { .. }) {
            return Err(Problem::FixedPointer { reg, what });
        }
        self.exact(&by);
        let near = |n: &Scalar| n.s.min > -MAX_OFFSET && n.s.max < MAX_OFFSET;
        if !near(&by.number) {
            return Err(Problem::FarOffset { what, offset: by.number.to_string() });
        }
        let number = arith::alu(Width::W64, op, &pointer.number, &by.number);
        if !near(&number) {
            return Err(Problem::FarOffset { what, offset: number.to_string() });
        }
        Ok(Value { number, ..pointer })
    }

    fn branch(
        &mut self,
        pc: usize,
        target: usize,
        width: Width,
        cond: Cond,
        dst: Reg,
        src: Operand,
    ) -> Result<Next, Problem> {
        let left = self.read(dst)?;
        let right = self.operand(width, src)?;
        if left.is_number() && right.is_number() {
            let holds = assume(width, cond, &left.number, &right.number);
            let fails = assume_not(width, cond, &left.number, &right.number);
            let (Some(holds), Some(fails)) = (holds, fails) else {
                self.exact(&left);
                self.exact(&right);
                return Ok(Next::At(if holds.is_some() { target } else { pc + 1 }));
            };
            let origin = left.origin | right.origin;
            self.fork(target, |walk| {
                walk.learn(dst, src, &left, &right, holds, origin);
                Ok(())
            })?;
            self.learn(dst, src, &left, &right, fails, origin);
            return Ok(Next::At(pc + 1));
        }
        let compares_null = width == Width::W64 && right.is_zero() && matches!(cond, Cond::Eq | Cond::Ne);
        if !compares_null {
            self.fork(target, |_| Ok(()))?;
            return Ok(Next::At(pc + 1));
        }
        self.exact(&right);
        let null_jumps = cond == Cond::Eq;
        if !left.nullable {
            // Far before its memory a pointer could be null by accident.
            if left.number.s.min < -(super::state::STACK as i64) {
                self.fork(target, |_| Ok(()))?;
                return Ok(Next::At(pc + 1));
            }
            return Ok(Next::At(if null_jumps { pc + 1 } else { target }));
        }
        self.fork(target, |walk| {
            walk.decide_null(&left, null_jumps);
            Ok(())
        })?;
        self.decide_null(&left, !null_jumps);
        Ok(Next::At(pc + 1))
    }

    /// What a branch says about its operands, and all values that are the same.
    fn learn(&mut self, dst: Reg, src: Operand, left: &Value, right: &Value, now: (Scalar, Scalar), origin: u128) {
        let frame = self.path.state.frame_mut();
        let set = |value: &mut Value, number: Scalar| *value = Value { number, origin, ..*value };
        set(&mut frame.regs[dst.index()], now.0);
        if let Operand::Reg(reg) = src {
            set(&mut frame.regs[reg.index()], now.1);
        }
        for (id, number) in [(left.id, now.0), (right.id, now.1)] {
            if id == 0 {
                continue;
            }
            for value in self.path.state.values_mut().filter(|v| v.id == id && v.is_number()) {
                let number = value.number.intersect(&number).unwrap_or(number);
                *value = Value { number, origin: value.origin | origin, ..*value };
            }
        }
    }

    /// A nullable pointer, and all copies, are null or not.
    fn decide_null(&mut self, pointer: &Value, is_null: bool) {
        for value in self.path.state.values_mut().filter(|v| v.id == pointer.id && v.nullable) {
            *value = if is_null { Value::constant(0) } else { Value { nullable: false, id: 0, ..*value } };
        }
        if let (true, Kind::Record { reference, .. }) = (is_null, pointer.kind) {
            self.path.state.references.retain(|r| r.id != reference);
        }
    }

    fn exit(&mut self) -> Result<Next, Problem> {
        if self.top() == 0 {
            self.read(Reg::R0)?;
            return match self.path.state.references.first() {
                Some(reference) => Err(Problem::Leaked { taken: reference.taken }),
                None => Ok(Next::End),
            };
        }
        let is_callback = self.path.state.frame().callback.is_some();
        let mut result = self.path.state.frame().regs[0];
        if is_callback || result.is_initialised() {
            result = self.read(Reg::R0)?;
        }
        let top = self.top();
        if matches!(result.kind, Kind::Stack { frame } if frame == top) {
            return Err(Problem::StackEscapes);
        }
        if is_callback {
            self.exact(&result);
            if !result.is_number() || result.number.u.max > 1 {
                let found = self.describe(&result);
                return Err(Problem::CallbackResult(found));
            }
        }
        let Some(frame) = self.leave() else { return Ok(Next::End) };
        if let Some(references) = frame.callback {
            if references != self.path.state.references {
                return Err(Problem::CallbackReference);
            }
            // Once more, or not: as at the call.
            return Ok(Next::At(frame.call));
        }
        self.clobber();
        self.write(Reg::R0, result)?;
        Ok(Next::At(frame.call + 1))
    }

    /// What a value is, in words.
    pub fn describe(&self, value: &Value) -> String {
        let map = |map: usize| self.rules.maps.get(map).map_or("?", |m| m.name.as_str());
        let thing = match value.kind {
            Kind::Uninit | Kind::Clobbered | Kind::Released => "nothing".to_owned(),
            Kind::Number => match value.as_constant() {
                Some(value) => format!("the number {}", value as i64),
                None => format!("a number ({})", value.number),
            },
            Kind::Context => match value.number.as_constant() {
                Some(0) => "the context".to_owned(),
                _ => format!("the context moved by {}", value.number),
            },
            Kind::Stack { .. } => "the stack".to_owned(),
            Kind::Map { map: index } => format!("the map '{}'", map(index)),
            Kind::MapValue { map: index } => format!("a value of map '{}'", map(index)),
            Kind::Record { .. } => "a record of a ring".to_owned(),
            Kind::Function { .. } => "a function".to_owned(),
        };
        if value.nullable { format!("{thing} or null") } else { thing }
    }
}

/// A loaded number, sign-extended instead.
fn extended(value: Value, size: Size) -> Value {
    if !value.is_number() {
        return value;
    }
    Value { id: 0, number: value.number.sign_extend(size.bits()), ..value }
}
