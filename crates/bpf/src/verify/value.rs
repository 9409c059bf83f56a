//! What a register or a spilled register holds.

use super::scalar::Scalar;

/// Registers at a checkpoint, a bit each: see [`bit`].
pub(crate) type RegSet = u128;

/// Frames of calls at most, as in the kernel (`MAX_CALL_FRAMES`).
pub(crate) const MAX_FRAMES: usize = 8;

/// Registers of a frame: `r10` is fixed, but its bit keeps the arithmetic simple.
pub(crate) const FRAME_BITS: usize = 11;

/// The bit of a register of a frame.
pub(crate) fn bit(frame: usize, reg: usize) -> RegSet {
    1 << (frame * FRAME_BITS + reg)
}

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Nothing was written.
    Uninit,
    /// A call has overwritten it.
    Clobbered,
    /// It pointed to a record that was given back.
    Released,
    /// A number.
    Number,
    /// The registers of the target, as `r1` has it at the entry.
    Context,
    /// The stack of the frame with this index; offset 0 is its `r10`.
    Stack { frame: usize },
    /// The map itself, as helpers take it.
    Map { map: usize },
    /// Inside a value of the map.
    MapValue { map: usize },
    /// Inside a reserved record of a ring; `reference` must be submitted or discarded.
    Record { size: u64, reference: u32 },
    /// The function that starts at this slot.
    Function { start: usize },
}

/// Content of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Value {
    pub kind: Kind,
    /// Or null.
    pub nullable: bool,
    /// The number, or the offset of the pointer.
    pub number: Scalar,
    /// Values with the same id that is not 0 are the same: what a branch tells about one holds for
    /// all.
    pub id: u32,
    /// Registers at the last checkpoint that this number was computed from.
    pub origin: RegSet,
}

impl Value {
    pub const UNINIT: Value = Value::of(Kind::Uninit, Scalar::UNKNOWN);
    pub const CLOBBERED: Value = Value::of(Kind::Clobbered, Scalar::UNKNOWN);
    pub const UNKNOWN: Value = Value::number(Scalar::UNKNOWN);

    pub const RELEASED: Value = Value::of(Kind::Released, Scalar::UNKNOWN);

    const fn of(kind: Kind, number: Scalar) -> Value {
        Value { kind, nullable: false, number, id: 0, origin: 0 }
    }

    pub const fn number(number: Scalar) -> Value {
        Value::of(Kind::Number, number)
    }

    pub fn constant(value: u64) -> Value {
        Value::number(Scalar::constant(value))
    }

    /// A pointer to the start of something.
    pub fn pointer(kind: Kind) -> Value {
        Value::of(kind, Scalar::constant(0))
    }

    pub fn is_number(&self) -> bool {
        self.kind == Kind::Number
    }

    pub fn is_initialised(&self) -> bool {
        !matches!(self.kind, Kind::Uninit | Kind::Clobbered | Kind::Released)
    }

    pub fn is_pointer(&self) -> bool {
        self.is_initialised() && !self.is_number()
    }

    /// The only number it can be.
    pub fn as_constant(&self) -> Option<u64> {
        if self.is_number() { self.number.as_constant() } else { None }
    }

    pub fn is_zero(&self) -> bool {
        self.as_constant() == Some(0)
    }

    /// The same but for what it was computed from and which values it is known to equal.
    pub fn same(&self, other: &Value) -> bool {
        let comparable = |v: &Value| Value { id: 0, origin: 0, ..*v };
        comparable(self) == comparable(other)
    }
}
