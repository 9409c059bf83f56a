//! Calls of helpers: their arguments, and what they leave.

use super::error::Problem;
use super::explore::{Next, Walk};
use super::helpers::{Arg, Helper, Returns};
use super::memory::{Access, Place};
use super::scalar::Scalar;
use super::value::{Kind, Value};
use crate::insn::Reg;

/// Longest memory of an argument, as in the kernel (`BPF_MAX_VAR_SIZ`).
const MAX_LENGTH: u64 = 1 << 29;

/// Errors are at least this, as in the kernel (`MAX_ERRNO`).
const MAX_ERRNO: i64 = 4095;

impl Helper {
    /// Whether it calls functions of the program.
    pub(crate) fn calls_back(&self) -> bool {
        self.args.contains(&Arg::Callback)
    }
}

/// What the arguments of a call have shown.
#[derive(Default)]
struct Call {
    map: Option<usize>,
    /// Largest length of the memory that is written.
    written: u64,
    record: u64,
    release: Option<u32>,
    callback: Option<(usize, Value)>,
}

impl Walk<'_> {
    pub fn call_helper(&mut self, pc: usize, number: u32) -> Result<Next, Problem> {
        let helper = Helper::by_number(number).ok_or(Problem::NoHelper(number))?;
        if helper.is_unsafe && !self.rules.allow_unsafe {
            return Err(Problem::NotAllowed(helper.name));
        }
        let mut call = Call::default();
        for (index, arg) in helper.args.iter().enumerate() {
            let reg = Reg::new(index as u8 + 1).ok_or(Problem::NoHelper(number))?;
            let value = match self.read(reg) {
                Err(_) if *arg == Arg::Optional => continue,
                value => value?,
            };
            self.facts.context_escapes |= value.kind == Kind::Context;
            self.facts.context_is_data |= value.kind == Kind::Context && matches!(arg, Arg::Any | Arg::Optional);
            self.argument(helper, *arg, reg, value, &mut call)?;
        }
        if helper.returns == Returns::MapValue {
            self.facts.looks_up(pc, call.map);
        }
        if let Some((function, context)) = call.callback {
            let index = Value::UNKNOWN;
            self.fork(function, |walk| walk.enter_callback(function, pc, [index, context]))?;
        }
        self.clobber();
        if let Some(reference) = call.release {
            self.release(reference);
        }
        let result = self.result(pc, helper, &call);
        self.write(Reg::R0, result)?;
        Ok(Next::At(pc + 1))
    }

    fn result(&mut self, pc: usize, helper: &Helper, call: &Call) -> Value {
        match helper.returns {
            Returns::Number => Value::UNKNOWN,
            Returns::Nothing => Value::CLOBBERED,
            Returns::Small => Value::number(Scalar::unsigned(0, i32::MAX as u64)),
            Returns::UpTo(most) => Value::number(Scalar::unsigned(0, most)),
            Returns::Written => Value::number(Scalar::signed(-MAX_ERRNO, call.written as i64)),
            Returns::MapValue => {
                let kind = call.map.map_or(Kind::Number, |map| Kind::MapValue { map });
                Value { nullable: true, id: self.fresh_id(), ..Value::pointer(kind) }
            }
            Returns::Record => {
                let reference = self.take_reference(pc);
                let kind = Kind::Record { size: call.record, reference };
                Value { nullable: true, id: self.fresh_id(), ..Value::pointer(kind) }
            }
        }
    }

    /// A record is given back: nobody may use it any more.
    fn release(&mut self, reference: u32) {
        self.path.state.references.retain(|r| r.id != reference);
        let gone = |v: &Value| matches!(v.kind, Kind::Record { reference: r, .. } if r == reference);
        for frame in &mut self.path.state.frames {
            frame.regs.iter_mut().filter(|v| gone(v)).for_each(|v| *v = Value::RELEASED);
            for slot in frame.stack.iter_mut().filter(|s| gone(&s.value)) {
                slot.scatter();
            }
        }
    }

    fn argument(&mut self, helper: &Helper, arg: Arg, reg: Reg, value: Value, call: &mut Call) -> Result<(), Problem> {
        let found = |walk: &Self| Problem::Argument { reg, expected: arg.expected(), found: walk.describe(&value) };
        match arg {
            Arg::Any | Arg::Optional => Ok(()),
            Arg::Context => {
                let is_context = value.kind == Kind::Context && value.number.as_constant() == Some(0);
                if is_context { Ok(()) } else { Err(found(self)) }
            }
            Arg::Map(kinds) => {
                let Kind::Map { map } = value.kind else { return Err(found(self)) };
                let shape = &self.rules.maps[map];
                if helper.changes_map() && shape.readonly {
                    return Err(Problem::ReadOnly { what: self.describe(&value) });
                }
                if !kinds.contains(&shape.kind) {
                    let (helper, map, kind) = (helper.name, shape.name.clone(), shape.kind);
                    return Err(Problem::WrongMap { helper, map, kind });
                }
                call.map = Some(map);
                Ok(())
            }
            Arg::Key | Arg::Value => {
                let shape = call.map.map(|map| &self.rules.maps[map]);
                let size = shape.map_or(0, |s| if arg == Arg::Key { s.key_size } else { s.value_size });
                self.memory(arg, reg, value, size.into(), Access::Read, true)
            }
            // Checked with the length.
            Arg::Read | Arg::Write => Ok(()),
            Arg::Length | Arg::LengthOrZero => self.length(helper, arg, reg, value, call),
            Arg::WriteU64 => self.memory(arg, reg, value, 8, Access::Write, true),
            Arg::RecordLength => {
                self.exact(&value);
                let length = value.as_constant().filter(|n| *n <= MAX_LENGTH).ok_or_else(|| found(self))?;
                call.record = length;
                Ok(())
            }
            Arg::Record => {
                let Kind::Record { reference, .. } = value.kind else { return Err(found(self)) };
                if value.nullable {
                    return Err(Problem::MayBeNull { reg });
                }
                if value.number.as_constant() != Some(0) {
                    return Err(Problem::MovedRecord { reg });
                }
                call.release = Some(reference);
                Ok(())
            }
            Arg::Callback => {
                let Kind::Function { start } = value.kind else { return Err(found(self)) };
                call.callback = Some((start, Value::UNINIT));
                Ok(())
            }
            Arg::CallbackContext => {
                let fits = value.is_zero() || matches!(value.kind, Kind::Stack { .. });
                if !fits {
                    return Err(found(self));
                }
                self.exact(&value);
                if let Some(callback) = &mut call.callback {
                    callback.1 = value;
                }
                Ok(())
            }
            Arg::Text => {
                let Kind::MapValue { map } = value.kind else { return Err(found(self)) };
                let shape = &self.rules.maps[map];
                let offset = value.number.as_constant().map(|n| n as usize);
                let text = offset.and_then(|at| shape.initial.get(at..)).unwrap_or_default();
                // Only the first entry has a content that is known.
                let known = shape.readonly && shape.max_entries == 1;
                if known && !value.nullable && text.contains(&0) { Ok(()) } else { Err(Problem::NoText(reg)) }
            }
        }
    }

    /// A length, with the memory of the argument before.
    fn length(&mut self, helper: &Helper, arg: Arg, reg: Reg, value: Value, call: &mut Call) -> Result<(), Problem> {
        if !value.is_number() {
            let found = self.describe(&value);
            return Err(Problem::Argument { reg, expected: arg.expected(), found });
        }
        self.exact(&value);
        let least = u64::from(arg == Arg::Length);
        let lengths = value.number;
        if lengths.s.min < least as i64 || lengths.u.max > MAX_LENGTH {
            let found = lengths.to_string();
            return Err(Problem::Length { reg, found, min: least, max: MAX_LENGTH });
        }
        let index = reg.index() - 2;
        let before = helper.args.get(index).copied().unwrap_or(Arg::Read);
        let Some(pointer_reg) = Reg::new(reg.number() - 1) else { return Ok(()) };
        let pointer = self.read(pointer_reg)?;
        let access = if before == Arg::Write { Access::Write } else { Access::Read };
        if access == Access::Write {
            call.written = lengths.u.max;
        }
        self.memory(before, pointer_reg, pointer, lengths.u.max, access, lengths.as_constant().is_some())
    }

    /// Memory that a helper reads or writes; `is_fixed`: all of it, not up to `size` only.
    fn memory(
        &mut self,
        arg: Arg,
        reg: Reg,
        pointer: Value,
        size: u64,
        access: Access,
        is_fixed: bool,
    ) -> Result<(), Problem> {
        if !matches!(pointer.kind, Kind::Stack { .. } | Kind::MapValue { .. } | Kind::Record { .. }) {
            let found = self.describe(&pointer);
            return Err(Problem::Argument { reg, expected: arg.expected(), found });
        }
        match self.locate(reg, &pointer, 0, size, access)? {
            Place::Stack(range) if access == Access::Read => self.check_written(range),
            Place::Stack(range) if is_fixed && range.is_fixed => {
                self.fill(range);
                Ok(())
            }
            Place::Stack(range) => self.overwrite(range),
            Place::Other => {
                self.facts.helper_writes |= access == Access::Write && matches!(pointer.kind, Kind::MapValue { .. });
                Ok(())
            }
        }
    }
}
