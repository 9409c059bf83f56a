//! Where functions of Go find what is passed to them.
//!
//! Source: "Go internal ABI specification" (`cmd/compile/abi-internal.md`), "Function call argument
//! and result passing".

use super::super::ast::BinaryOp;
use super::super::checked::{Value, ValueKind};
use super::super::ctype::CType;
use super::super::diagnostic::Span;
use super::super::program::{Parameter, Signature};
use super::super::types::Type;
use super::abi::{Class, register};
use super::expr::int;
use super::memory::{Base, Place, number_type, plus, value};
use super::{Checker, Checking};

/// Registers for floating-point numbers; programs see the first of them only.
const FLOATS: usize = 15;

/// A number within an argument, which has a register of its own.
struct Piece {
    class: Class,
    /// Its first bit in the argument, and how many there are.
    bit: u64,
    bits: u64,
}

impl Checker<'_> {
    /// Where the first `count` parameters are; without registers, as before Go 1.17, all are on the
    /// stack.
    pub(super) fn go_places(
        &mut self,
        signature: &Signature,
        count: usize,
        registers: bool,
        span: Span,
    ) -> Checking<Vec<Place>> {
        let context = self.types.context();
        let (mut integers, mut floats) = (0, 0);
        // Behind the return address.
        let mut stack = 0;
        let mut places = Vec::new();
        for Parameter { name, ty, .. } in signature.parameters.iter().take(count) {
            let size = self.size(ty, span)?;
            let mut pieces = Vec::new();
            let flat = registers && self.flatten(ty, 0, &mut pieces, span)?;
            let of = |class| pieces.iter().filter(|piece: &&Piece| piece.class == class).count();
            if !flat || integers + of(Class::Integer) > context.go_arguments.len() || floats + of(Class::Float) > FLOATS
            {
                let align = self.align(ty, span)?.max(1);
                stack = u64::next_multiple_of(stack, align);
                let at = plus(register(context.stack_pointer), int(8 + stack));
                stack += size;
                places.push(Place::new(Base::Address(at), ty.clone()));
                continue;
            }
            let mut words = vec![None; size.div_ceil(8) as usize];
            for piece in pieces {
                let from = match piece.class {
                    Class::Integer => {
                        integers += 1;
                        register(context.go_arguments[integers - 1])
                    }
                    Class::Float => {
                        floats += 1;
                        if floats > context.floats.len() {
                            return self.error(span, format!("the argument {name} is in a register that is not seen"));
                        }
                        register(context.float(floats as u16 - 1))
                    }
                };
                if let Some(word) = words.get_mut((piece.bit / 64) as usize) {
                    let part = shifted(from, piece.bit % 64, piece.bits);
                    *word = Some(match word.take() {
                        Some(others) => binary(BinaryOp::Or, others, part),
                        None => part,
                    });
                }
            }
            let words = words.into_iter().map(|word| word.unwrap_or_else(|| int(0))).collect();
            places.push(Place::new(Base::Words(words), ty.clone()));
        }
        Ok(places)
    }

    /// The numbers that an argument consists of; `false`: it is on the stack.
    fn flatten(&mut self, ty: &CType, bit: u64, pieces: &mut Vec<Piece>, span: Span) -> Checking<bool> {
        match ty {
            CType::Array(_, 0) => return Ok(true),
            CType::Array(of, 1) => return self.flatten(of, bit, pieces, span),
            CType::Record(record) => {
                let record = record.clone();
                for field in self.layout(&record, span)?.fields {
                    if !self.flatten(&field.ty, bit + field.bit, pieces, span)? {
                        return Ok(false);
                    }
                }
                return Ok(true);
            }
            _ => {}
        }
        let class = match ty {
            CType::Float { bytes: ..=8 } => Class::Float,
            ty if number_type(ty).is_some() => Class::Integer,
            _ => return Ok(false),
        };
        let bits = 8 * self.size(ty, span)?;
        pieces.push(Piece { class, bit, bits });
        Ok(true)
    }
}

/// The lower bits of a register, at their place in a word. What is above a number in its register
/// is anything.
fn shifted(from: Value, bit: u64, bits: u64) -> Value {
    if bits >= 64 {
        return from;
    }
    let low = binary(BinaryOp::And, from, int((1 << bits) - 1));
    if bit == 0 { low } else { binary(BinaryOp::Shl, low, int(bit)) }
}

fn binary(op: BinaryOp, a: Value, b: Value) -> Value {
    value(Type::UINT, ValueKind::Binary(op, true, Box::new(a), Box::new(b)))
}
