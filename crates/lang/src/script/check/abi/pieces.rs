//! Values that are in several registers.

use super::super::super::ast::BinaryOp;
use super::super::super::checked::{Value, ValueKind};
use super::super::super::types::Type;
use super::super::expr::int;
use super::super::memory::{shift, value};

/// Which registers a part of a value is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    Integer,
    Float,
}

/// A part of a value, which has a register of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub class: Class,
    /// Its first bit in the value.
    pub bit: u64,
    pub bits: u64,
}

impl Piece {
    /// A whole register, for the `n`th eight bytes of a value.
    pub fn word(class: Class, n: u64) -> Piece {
        Piece { class, bit: 64 * n, bits: 64 }
    }
}

/// The words of a value of so many bytes, from the registers that `next` gives one after the other.
/// `None`: programs do not see one of them.
pub(super) fn joined(pieces: &[Piece], size: u64, mut next: impl FnMut(Class) -> Option<Value>) -> Option<Vec<Value>> {
    let found: Option<Vec<Value>> = pieces.iter().map(|piece| next(piece.class).filter(|_| piece.bits <= 64)).collect();
    Some(composed(size, pieces.iter().copied().zip(found?)))
}

/// The words of a value of so many bytes, from its pieces and the registers that these are in.
pub(super) fn composed(size: u64, pieces: impl IntoIterator<Item = (Piece, Value)>) -> Vec<Value> {
    let mut words = vec![None; size.div_ceil(8) as usize];
    for (piece, from) in pieces {
        let Some(word) = words.get_mut((piece.bit / 64) as usize) else { continue };
        let part = shifted(from, piece.bit % 64, piece.bits);
        *word = Some(match word.take() {
            Some(others) => binary(BinaryOp::Or, others, part),
            None => part,
        });
    }
    words.into_iter().map(|word| word.unwrap_or_else(|| int(0))).collect()
}

/// The lower bits of a register, at their place in a word. What is above a number in its register
/// is anything.
fn shifted(from: Value, bit: u64, bits: u64) -> Value {
    if bits >= 64 {
        return from;
    }
    shift(BinaryOp::Shl, true, binary(BinaryOp::And, from, int((1 << bits) - 1)), bit)
}

fn binary(op: BinaryOp, a: Value, b: Value) -> Value {
    value(Type::UINT, ValueKind::Binary(op, true, Box::new(a), Box::new(b)))
}
