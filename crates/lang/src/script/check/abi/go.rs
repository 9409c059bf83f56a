//! Where functions of Go find what is passed to them.
//!
//! Source: "Go internal ABI specification" (`cmd/compile/abi-internal.md`), "Function call argument
//! and result passing".

use super::super::super::ctype::CType;
use super::super::super::diagnostic::Span;
use super::super::super::program::{Parameter, Signature};
use super::super::expr::int;
use super::super::memory::{Base, Place, number_type, plus};
use super::super::{Checker, Checking};
use super::pieces::{Class, Piece, joined};
use super::register;

/// Registers for floating-point numbers; programs see the first of them only.
const FLOATS: usize = 15;

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
        self.go_sequence(signature.parameters.iter().take(count), registers, 8, span)
    }

    /// Where the first result is, when the function has returned. Results have the same registers
    /// as arguments. On the stack they are behind the arguments.
    pub(super) fn go_result(&mut self, signature: &Signature, registers: bool, span: Span) -> Checking<Place> {
        let result = Parameter::new("retval".to_owned(), signature.result.clone());
        match self.go_sequence([&result], registers, 0, span)?.pop() {
            // Behind the arguments, as many as there are.
            Some(Place { base: Base::Address(_), .. }) => {
                let message = format!("the result of type '{}' is on the stack, and not seen", result.ty.name());
                self.error_with(span, message, "reg(\"ax\") and so on are the registers as they are")
            }
            Some(place) => Ok(place),
            None => self.unknown(),
        }
    }

    /// Where values are that are passed one after the other. Those without a register are on the
    /// stack, `before` bytes above the stack pointer.
    fn go_sequence<'p>(
        &mut self,
        parameters: impl IntoIterator<Item = &'p Parameter>,
        registers: bool,
        before: u64,
        span: Span,
    ) -> Checking<Vec<Place>> {
        let context = self.types.context();
        let (mut integers, mut floats) = (0, 0);
        let mut stack = 0;
        let mut places = Vec::new();
        for Parameter { name, ty, .. } in parameters {
            let size = self.size(ty, span)?;
            let mut pieces = Vec::new();
            let flat = registers && self.flatten(ty, 0, &mut pieces, span)?;
            let of = |class| pieces.iter().filter(|piece: &&Piece| piece.class == class).count();
            if !flat || integers + of(Class::Integer) > context.go_arguments.len() || floats + of(Class::Float) > FLOATS
            {
                let align = self.align(ty, span)?.max(1);
                stack = u64::next_multiple_of(stack, align);
                let at = plus(register(context.stack_pointer), int(before + stack));
                stack += size;
                places.push(Place::new(Base::Address(at), ty.clone()));
                continue;
            }
            let words = joined(&pieces, size, |class| match class {
                Class::Integer => {
                    integers += 1;
                    Some(register(context.go_arguments[integers - 1]))
                }
                Class::Float => {
                    floats += 1;
                    (floats <= context.floats.len()).then(|| register(context.float(floats as u16 - 1)))
                }
            });
            match words {
                Some(words) => places.push(Place::new(Base::Words(words), ty.clone())),
                None => return self.error(span, format!("the argument {name} is in a register that is not seen")),
            }
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
