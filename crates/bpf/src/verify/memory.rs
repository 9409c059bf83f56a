//! Loads and stores: which memory, within its bounds, and what the stack holds.

use super::arith;
use super::error::Problem;
use super::explore::Walk;
use super::facts::Memory;
use super::scalar::Scalar;
use super::state::{Byte, STACK};
use super::value::{Kind, Value};
use crate::insn::{AluOp, AtomicOp, Operand, Reg, Size, Width};

/// What is done to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Read,
    Write,
}

/// Bytes of the stack of a frame, from its `r10`: at least `from`, at most to `to`.
#[derive(Clone, Copy, Debug)]
pub(super) struct StackRange {
    pub frame: usize,
    pub from: i64,
    pub to: i64,
    /// The offset is known.
    pub is_fixed: bool,
}

/// What an address points to, after the bounds were checked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Stack(StackRange),
    /// Memory of which nobody knows the content.
    Other,
}

/// The slot of a byte, and its place there.
fn slot_of(offset: i64) -> (usize, usize) {
    ((-offset - 1) as usize / 8, offset.rem_euclid(8) as usize)
}

/// What a load of unknown memory gives.
fn anything(size: Size) -> Value {
    Value::number(Scalar::UNKNOWN.truncate(size.bits()))
}

/// The offset of an access from what the pointer points to.
fn offset(pointer: &Value, off: i16) -> Scalar {
    arith::alu(Width::W64, AluOp::Add, &pointer.number, &Scalar::constant(i64::from(off) as u64))
}

fn is_aligned(offset: &Scalar, size: Size) -> bool {
    offset.bits.max() & (size.bytes() as u64 - 1) == 0
}

impl Walk<'_> {
    pub fn load(&mut self, size: Size, base: Reg, off: i16) -> Result<Value, Problem> {
        let pointer = self.read(base)?;
        let place = self.locate(base, &pointer, off.into(), size.bytes() as u64, Access::Read)?;
        self.check_aligned(&pointer, off, size, false)?;
        self.touches(&pointer, off, size);
        match place {
            Place::Stack(range) if range.is_fixed => self.load_stack(range, size),
            Place::Stack(range) => {
                self.check_written(range)?;
                Ok(anything(size))
            }
            Place::Other => Ok(anything(size)),
        }
    }

    pub fn store(&mut self, size: Size, base: Reg, off: i16, src: Operand) -> Result<(), Problem> {
        let pointer = self.read(base)?;
        let mut value = self.operand(Width::W64, src)?;
        let place = self.locate(base, &pointer, off.into(), size.bytes() as u64, Access::Write)?;
        self.check_aligned(&pointer, off, size, false)?;
        self.touches(&pointer, off, size);
        match place {
            Place::Stack(range) => {
                if let Operand::Reg(reg) = src {
                    value = self.named(reg, value);
                }
                self.store_stack(range, size, value)
            }
            Place::Other => {
                self.facts.context_escapes |= value.kind == Kind::Context;
                self.facts.context_is_data |= value.kind == Kind::Context;
                Ok(())
            }
        }
    }

    fn touches(&mut self, pointer: &Value, off: i16, size: Size) {
        self.facts.touches(self.path.pc, Memory::of(pointer.kind, self.rules));
        if !is_aligned(&offset(pointer, off), size) {
            self.facts.unaligned.insert(self.path.pc);
        }
    }

    pub fn atomic(&mut self, width: Width, op: AtomicOp, base: Reg, off: i16, src: Reg) -> Result<(), Problem> {
        let pointer = self.read(base)?;
        let value = self.read(src)?;
        if !value.is_number() {
            return Err(Problem::AtomicPointer(src));
        }
        if op == AtomicOp::Cmpxchg && !self.read(Reg::R0)?.is_number() {
            return Err(Problem::AtomicPointer(Reg::R0));
        }
        if pointer.kind == Kind::Context {
            return Err(Problem::Atomic { what: self.describe(&pointer) });
        }
        let size = width.size();
        let place = self.locate(base, &pointer, off.into(), size.bytes() as u64, Access::Write)?;
        self.check_aligned(&pointer, off, size, true)?;
        self.touches(&pointer, off, size);
        if let Place::Stack(range) = place {
            self.check_written(range)?;
            self.store_stack(range, size, anything(size))?;
        }
        match op {
            AtomicOp::Cmpxchg => self.write(Reg::R0, anything(size)),
            AtomicOp::Xchg
            | AtomicOp::Add { fetch: true }
            | AtomicOp::Or { fetch: true }
            | AtomicOp::And { fetch: true }
            | AtomicOp::Xor { fetch: true } => self.write(src, anything(size)),
            _ => Ok(()),
        }
    }

    /// Checks that `size` bytes at `off` from a pointer in `reg` may be accessed.
    pub fn locate(&mut self, reg: Reg, pointer: &Value, off: i64, size: u64, access: Access) -> Result<Place, Problem> {
        if pointer.nullable {
            return Err(Problem::MayBeNull { reg });
        }
        let what = self.describe(pointer);
        let offsets = pointer.number.s;
        let (from, to) = (offsets.min.saturating_add(off), offsets.max.saturating_add(off).saturating_add(size as i64));
        let bounds = |length: u64| {
            if from >= 0 && to <= length as i64 {
                return Ok(());
            }
            Err(Problem::OutOfBounds { what: what.clone(), from, to, size: length })
        };
        let place = match pointer.kind {
            Kind::Number => return Err(Problem::NumberAsPointer { reg }),
            Kind::Map { .. } => {
                let hint = "look entries up with map_lookup_elem";
                return Err(Problem::NoAccess { what, hint });
            }
            Kind::Function { .. } | Kind::Uninit | Kind::Clobbered | Kind::Released => {
                return Err(Problem::NoAccess { what, hint: "functions can only be called" });
            }
            Kind::Context => {
                if pointer.number.as_constant() != Some(0) {
                    return Err(Problem::ChangedContext);
                }
                bounds(self.rules.context_size.into())?;
                let writable = &self.rules.context_writable;
                if access == Access::Write && (from < writable.start.into() || to > writable.end.into()) {
                    return Err(Problem::ReadOnly { what });
                }
                Place::Other
            }
            Kind::MapValue { map } => {
                let shape = &self.rules.maps[map];
                if access == Access::Write && shape.readonly {
                    return Err(Problem::ReadOnly { what });
                }
                bounds(shape.value_size.into())?;
                Place::Other
            }
            Kind::Record { size, .. } => {
                bounds(size)?;
                Place::Other
            }
            Kind::Stack { frame } => {
                if from < -(STACK as i64) || to > 0 {
                    return Err(Problem::OutOfStack { from, to });
                }
                let index = self.function_index(self.path.state.frames[frame].function);
                self.stacks[index] = self.stacks[index].max(-from as usize);
                Place::Stack(StackRange { frame, from, to, is_fixed: offsets.min == offsets.max })
            }
        };
        Ok(place)
    }

    /// Checks that an access is aligned: always on the stack and in the context, and by atomic
    /// operations.
    fn check_aligned(&self, pointer: &Value, off: i16, size: Size, atomic: bool) -> Result<(), Problem> {
        if !atomic && !self.rules.strict_alignment && !matches!(pointer.kind, Kind::Stack { .. } | Kind::Context) {
            return Ok(());
        }
        let address = offset(pointer, off);
        if is_aligned(&address, size) {
            return Ok(());
        }
        Err(Problem::Misaligned { what: self.describe(pointer), offset: address.s.min, size: size.bytes() })
    }

    /// Notes that the bytes are read, and checks that they were written and are no part of a
    /// pointer.
    pub fn check_written(&mut self, range: StackRange) -> Result<(), Problem> {
        for offset in range.from..range.to {
            let (slot, byte) = slot_of(offset);
            let content = self.path.state.frames[range.frame].slot(slot);
            match content.bytes[byte] {
                Byte::Uninit => return Err(Problem::UninitStack { offset }),
                Byte::Spilled if content.value.is_pointer() => return Err(Problem::PartialPointer { offset }),
                _ => self.read_slot(range.frame, slot),
            }
        }
        Ok(())
    }

    fn load_stack(&mut self, range: StackRange, size: Size) -> Result<Value, Problem> {
        let (index, byte) = slot_of(range.from);
        let slot = self.path.state.frames[range.frame].slot(index);
        let spilled = slot.spilled();
        if byte == 0 && spilled >= size.bytes() {
            self.read_slot(range.frame, index);
            if slot.value.is_pointer() && size != Size::Dw {
                return Err(Problem::PartialPointer { offset: range.from });
            }
            if spilled == size.bytes() {
                return Ok(slot.value);
            }
            let number = slot.value.number.truncate(size.bits());
            return Ok(Value { id: 0, number, ..slot.value });
        }
        self.check_written(range)?;
        let zero = slot.bytes[byte..byte + size.bytes()].iter().all(|b| *b == Byte::Zero);
        Ok(if zero { Value::constant(0) } else { anything(size) })
    }

    fn store_stack(&mut self, range: StackRange, size: Size, value: Value) -> Result<(), Problem> {
        if matches!(value.kind, Kind::Stack { frame } if frame > range.frame) {
            return Err(Problem::StackEscapes);
        }
        if value.is_pointer() && (size != Size::Dw || !range.is_fixed) {
            return Err(Problem::PartialPointer { offset: range.from });
        }
        if !range.is_fixed {
            return self.overwrite(range);
        }
        let (index, byte) = slot_of(range.from);
        let (frame, bytes) = (range.frame, byte..byte + size.bytes());
        if value.is_zero() {
            // The byte no longer tells where its 0 comes from.
            self.exact(&value);
        }
        let slot = self.path.state.frames[frame].slot_mut(index);
        if slot.bytes[bytes.clone()].contains(&Byte::Spilled) {
            slot.scatter();
        }
        if value.is_zero() {
            slot.bytes[bytes].fill(Byte::Zero);
        } else if byte == 0 {
            let number = if value.is_number() { value.number.truncate(size.bits()) } else { value.number };
            let id = if number == value.number { value.id } else { 0 };
            slot.scatter();
            slot.value = Value { id, number, ..value };
            slot.bytes[bytes].fill(Byte::Spilled);
        } else {
            slot.bytes[bytes].fill(Byte::Unknown);
        }
        if size == Size::Dw {
            self.wrote_slot(frame, index);
        }
        Ok(())
    }

    /// Something is written somewhere in the range, all of which must have been written before.
    pub fn overwrite(&mut self, range: StackRange) -> Result<(), Problem> {
        self.check_written(range)?;
        self.fill(range);
        Ok(())
    }

    /// All bytes of the range become unknown.
    pub fn fill(&mut self, range: StackRange) {
        for offset in range.from..range.to {
            let (index, byte) = slot_of(offset);
            let slot = self.path.state.frames[range.frame].slot_mut(index);
            if slot.bytes[byte] == Byte::Spilled {
                slot.scatter();
            }
            slot.bytes[byte] = Byte::Unknown;
            let whole = range.is_fixed && byte == 0 && offset + 8 <= range.to;
            if whole {
                self.wrote_slot(range.frame, index);
            }
        }
    }
}
