//! What is known at a point of a path: frames with registers and stacks, and what has to be given
//! back.

use super::value::{Kind, RegSet, Value, bit};

/// Bytes of stack of a frame, as in the kernel (`MAX_BPF_STACK`).
pub(crate) const STACK: usize = crate::program::MAX_STACK as usize;

/// A byte of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Byte {
    Uninit,
    /// Part of a number that nobody keeps.
    Unknown,
    Zero,
    /// Part of the slot's spilled value: the lowest bytes of a slot.
    Spilled,
}

/// 8 aligned bytes of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StackSlot {
    pub bytes: [Byte; 8],
    pub value: Value,
}

impl StackSlot {
    pub const UNINIT: StackSlot = StackSlot { bytes: [Byte::Uninit; 8], value: Value::UNINIT };

    /// Length of the spilled value; 0 if there is none.
    pub fn spilled(&self) -> usize {
        self.bytes.iter().take_while(|b| **b == Byte::Spilled).count()
    }

    /// The number that all of its bytes are.
    fn number(&self) -> Option<Value> {
        match self.bytes {
            [Byte::Zero, ..] if self.bytes == [Byte::Zero; 8] => Some(Value::constant(0)),
            _ if self.spilled() == 8 && self.value.is_number() => Some(self.value),
            _ => None,
        }
    }

    /// Gives the spilled value up, but keeps that its bytes are there.
    pub fn scatter(&mut self) {
        self.bytes.iter_mut().filter(|b| **b == Byte::Spilled).for_each(|b| *b = Byte::Unknown);
        self.value = Value::UNINIT;
    }
}

/// A call that has not returned.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Frame {
    pub regs: [Value; 11],
    /// From the top: slot 0 is at `r10 - 8`. Those that are not there are not initialised.
    pub stack: Vec<StackSlot>,
    /// First slot of its function.
    pub function: usize,
    /// The call.
    pub call: usize,
    /// Called by a helper, again and again: the references that there were.
    pub callback: Option<Vec<Reference>>,
}

impl Frame {
    pub fn new(index: usize, function: usize, call: usize) -> Frame {
        let mut regs = [Value::UNINIT; 11];
        regs[10] = Value::pointer(Kind::Stack { frame: index });
        Frame { regs, stack: Vec::new(), function, call, callback: None }
    }

    /// The slot with this index, made if need be.
    pub fn slot_mut(&mut self, index: usize) -> &mut StackSlot {
        if self.stack.len() <= index {
            self.stack.resize(index + 1, StackSlot::UNINIT);
        }
        &mut self.stack[index]
    }

    pub fn slot(&self, index: usize) -> StackSlot {
        self.stack.get(index).copied().unwrap_or(StackSlot::UNINIT)
    }
}

/// Something to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reference {
    pub id: u32,
    /// The call that took it.
    pub taken: usize,
}

/// All that is known at a point of a path.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct State {
    pub frames: Vec<Frame>,
    pub references: Vec<Reference>,
    /// Callbacks entered so far: rounds of a helper's loop are no infinite loop.
    pub rounds: u32,
}

/// What later instructions look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needs {
    /// Registers.
    pub regs: RegSet,
    /// Registers whose numbers matter: they decide branches, offsets or lengths.
    pub exact: RegSet,
    /// Slots of the stack, a bit each, per frame.
    pub slots: [u64; super::value::MAX_FRAMES],
}

impl Needs {
    pub const ALL: Needs = Needs { regs: RegSet::MAX, exact: RegSet::MAX, slots: [u64::MAX; 8] };
}

/// Which id of one state stands for which of another.
#[derive(Default)]
struct Ids(Vec<(u32, u32)>);

impl Ids {
    fn agree(&mut self, old: u32, new: u32) -> bool {
        match self.0.iter().find(|(o, n)| *o == old || *n == new) {
            Some(pair) => *pair == (old, new),
            None => {
                self.0.push((old, new));
                true
            }
        }
    }
}

impl State {
    pub fn frame(&self) -> &Frame {
        &self.frames[self.frames.len() - 1]
    }

    pub fn frame_mut(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    /// All registers and spilled values.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.frames.iter_mut().flat_map(|f| f.regs.iter_mut().chain(f.stack.iter_mut().map(|s| &mut s.value)))
    }

    /// Whether what is safe from `self` on is safe from `new` on, if no more than `needs` is looked
    /// at.
    pub fn covers(&self, new: &State, needs: &Needs) -> bool {
        let mut ids = Ids::default();
        self.same_place(new)
            && self.references.iter().zip(&new.references).all(|(o, n)| ids.agree(o.id, n.id))
            && self.frames.iter().zip(&new.frames).enumerate().all(|(index, (old, new))| {
                let regs = old.regs.iter().zip(&new.regs).enumerate().all(|(reg, (o, n))| {
                    let bit = bit(index, reg);
                    needs.regs & bit == 0 || value_covers(o, n, needs.exact & bit != 0, &mut ids)
                });
                regs && old
                    .stack
                    .iter()
                    .enumerate()
                    .all(|(at, slot)| needs.slots[index] >> at & 1 == 0 || slot_covers(slot, &new.slot(at), &mut ids))
            })
    }

    /// Whether both are the same but for the names of ids.
    pub fn equals(&self, new: &State) -> bool {
        self.rounds == new.rounds
            && self.same_place(new)
            && self.frames.iter().zip(&new.frames).all(|(old, new)| {
                let regs = old.regs.iter().zip(&new.regs).all(|(o, n)| o.same(n));
                let slots = old.stack.len().max(new.stack.len());
                regs && (0..slots).all(|at| {
                    let (o, n) = (old.slot(at), new.slot(at));
                    o.bytes == n.bytes && o.value.same(&n.value)
                })
            })
    }

    /// The same calls and as many references.
    fn same_place(&self, new: &State) -> bool {
        self.frames.len() == new.frames.len()
            && self.references.len() == new.references.len()
            && self.frames.iter().zip(&new.frames).all(|(old, new)| {
                (old.function, old.call, old.callback.is_some()) == (new.function, new.call, new.callback.is_some())
            })
    }

    /// Gives up numbers that differ from those of `old`, an earlier round of the same callback, and
    /// were not needed exactly so far: so that rounds come to an end.
    pub fn widen(&mut self, old: &State, exact: RegSet) {
        let frames = self.frames.iter_mut().zip(&old.frames).enumerate();
        for (index, (new, old)) in frames {
            for (reg, (n, o)) in new.regs.iter_mut().zip(&old.regs).enumerate() {
                if exact & bit(index, reg) == 0 {
                    widen_value(n, o);
                }
            }
            for (n, o) in new.stack.iter_mut().zip(&old.stack) {
                if n.bytes == o.bytes {
                    widen_value(&mut n.value, &o.value);
                } else if !n.value.is_pointer() {
                    n.scatter();
                    n.bytes.iter_mut().filter(|b| **b == Byte::Zero).for_each(|b| *b = Byte::Unknown);
                }
            }
        }
    }

    /// Gives up what tells numbers from those of `old`, as far as they are needed there: what is
    /// safe from the result on is safe from both.
    pub fn join(&mut self, old: &State, needs: &Needs) {
        let frames = self.frames.iter_mut().zip(&old.frames).enumerate();
        for (index, (new, old)) in frames {
            for (reg, (n, o)) in new.regs.iter_mut().zip(&old.regs).enumerate() {
                if needs.exact & bit(index, reg) != 0 {
                    join_value(n, o);
                }
            }
            for (at, (n, o)) in new.stack.iter_mut().zip(&old.stack).enumerate() {
                if needs.slots[index] >> at & 1 == 1 {
                    join_slot(n, o);
                }
            }
        }
    }
}

fn join_value(new: &mut Value, old: &Value) {
    if !new.is_number() || !old.is_number() || new.same(old) && old.id == 0 {
        return;
    }
    let number = match old.number.contains(&new.number) {
        true => old.number,
        // A second time, nothing is left that may differ a third time.
        false if old.as_constant().is_none() => super::scalar::Scalar::UNKNOWN,
        false => old.number.union(&new.number),
    };
    *new = Value { id: 0, number, ..*new };
}

fn join_slot(new: &mut StackSlot, old: &StackSlot) {
    if let (Some(mut number), Some(other)) = (new.number(), old.number()) {
        join_value(&mut number, &other);
        *new = StackSlot { bytes: [Byte::Spilled; 8], value: number };
    } else if new.bytes != old.bytes && !new.value.is_pointer() && !old.value.is_pointer() {
        new.scatter();
        new.bytes.iter_mut().filter(|b| **b == Byte::Zero).for_each(|b| *b = Byte::Unknown);
    }
}

fn widen_value(new: &mut Value, old: &Value) {
    if new.is_number() && old.is_number() && !new.same(old) {
        *new = Value { origin: new.origin, ..Value::UNKNOWN };
    }
}

fn value_covers(old: &Value, new: &Value, exact: bool, ids: &mut Ids) -> bool {
    match (old.kind, new.kind) {
        (Kind::Uninit | Kind::Clobbered | Kind::Released, _) => true,
        (Kind::Number, Kind::Number) => {
            !exact || old.number.contains(&new.number) && (old.id == 0 || ids.agree(old.id, new.id))
        }
        (Kind::Record { size: a, reference: old_ref }, Kind::Record { size: b, reference: new_ref }) => {
            a == b && ids.agree(old_ref, new_ref) && pointer_covers(old, new, ids)
        }
        (a, b) => a == b && pointer_covers(old, new, ids),
    }
}

fn pointer_covers(old: &Value, new: &Value, ids: &mut Ids) -> bool {
    old.nullable == new.nullable
        && (!old.nullable || old.id == 0 || ids.agree(old.id, new.id))
        && old.number.contains(&new.number)
}

fn slot_covers(old: &StackSlot, new: &StackSlot, ids: &mut Ids) -> bool {
    let bytes = old.bytes.iter().zip(&new.bytes).all(|(o, n)| match (o, n) {
        (Byte::Uninit, _) => true,
        (Byte::Unknown, Byte::Unknown | Byte::Zero) => true,
        (Byte::Unknown, Byte::Spilled) => !new.value.is_pointer(),
        (Byte::Zero, Byte::Spilled) => new.value.is_zero(),
        (o, n) => o == n,
    });
    let spilled = old.spilled();
    bytes && (spilled == 0 || spilled == new.spilled() && value_covers(&old.value, &new.value, true, ids))
}
