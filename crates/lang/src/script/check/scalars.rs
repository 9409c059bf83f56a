//! Where Rust passes arguments, whose ABI is the compiler's own: what consists of one or two
//! scalars is passed as these, what has more than 16 bytes by address. All else depends on the
//! version of the compiler; then only its debug information tells, if the code is optimized.
//!
//! Source: `rustc_ty_utils::abi::fn_abi_adjust_for_abi`, of Rust 1.70 to 1.90.

use sidestep_isa::Context;

use super::super::ast::BinaryOp;
use super::super::checked::{Builtin, Value, ValueKind};
use super::super::ctype::CType;
use super::super::diagnostic::Span;
use super::super::program::Argument;
use super::super::types::Type;
use super::abi::{Class, register};
use super::memory::{Base, bits, number_type, plus, shift, value};
use super::{Checker, Checking, expr};

/// Bytes of what is passed by address, and not by its parts.
const LARGE: u64 = 16;

/// A part that has a register of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scalar {
    class: Class,
    /// Where it is in what is passed.
    bit: u64,
    bytes: u64,
}

/// How something is passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum By {
    Scalars(Vec<Scalar>),
    Address,
    /// Only the compiler knows.
    Unknown,
}

/// Registers and stack that are taken.
pub(super) struct Taken {
    pub(super) integers: usize,
    pub(super) floats: usize,
    /// From the stack pointer on.
    pub(super) stack: u64,
}

impl Taken {
    /// A register that is known to be taken; those before it are, too.
    pub(super) fn take(&mut self, argument: Argument) {
        match argument {
            Argument::Integer(at) => self.integers = self.integers.max(usize::from(at) + 1),
            Argument::Float(at) => self.floats = self.floats.max(usize::from(at) + 1),
        }
    }
}

impl Checker<'_> {
    /// How something is passed.
    pub(super) fn scalars(&mut self, ty: &CType, span: Span) -> Checking<By> {
        let size = self.size(ty, span)?;
        let mut found = Vec::new();
        let are_scalars = self.collect(ty, 0, &mut found, span)?;
        found.sort_by_key(|scalar| scalar.bit);
        let are_scalars = are_scalars && found.windows(2).all(|pair| pair[0].bit + 8 * pair[0].bytes <= pair[1].bit);
        Ok(match found.len() {
            0..=2 if are_scalars => By::Scalars(found),
            _ if size > LARGE => By::Address,
            _ => By::Unknown,
        })
    }

    /// Adds the scalars in something; `false`: there are too many, or it is none.
    fn collect(&mut self, ty: &CType, bit: u64, found: &mut Vec<Scalar>, span: Span) -> Checking<bool> {
        let size = self.size(ty, span)?;
        if size == 0 {
            return Ok(true);
        }
        let class = match ty {
            CType::Float { bytes: 0..=8 } => Class::Float,
            _ if number_type(ty).is_some() => Class::Integer,
            CType::Record(record) if !record.name.starts_with("union ") => {
                let fields = self.layout(&record.clone(), span)?.fields;
                // It has a size, but nothing is known of its parts.
                let Some(first) = fields.first() else { return Ok(false) };
                let has_variants = first.name == "discriminant";
                for field in fields {
                    // A variant without fields has the size of all.
                    if let (true, CType::Record(variant)) = (has_variants, &field.ty) {
                        if self.layout(&variant.clone(), span)?.fields.is_empty() {
                            continue;
                        }
                    }
                    if field.width.is_some() || !self.collect(&field.ty, bit + field.bit, found, span)? {
                        return Ok(false);
                    }
                }
                return Ok(true);
            }
            _ => return Ok(false),
        };
        // Variants of an enumeration share a scalar, if all have the same.
        let scalar = Scalar { class, bit, bytes: size };
        if !found.contains(&scalar) {
            found.push(scalar);
        }
        Ok(found.len() <= 2)
    }

    /// Where the next argument is.
    pub(super) fn next_scalars(&mut self, by: By, size: u64, taken: &mut Taken) -> Option<Base> {
        match by {
            By::Scalars(scalars) => {
                let part = |scalar: Scalar| (scalar.bit, scalar.bytes, self.next_scalar(scalar.class, taken));
                let parts = scalars.into_iter().map(part).collect();
                Some(Base::Words(composed(size, parts)))
            }
            By::Address => Some(Base::Address(self.next_scalar(Class::Integer, taken))),
            By::Unknown => None,
        }
    }

    fn next_scalar(&self, class: Class, taken: &mut Taken) -> Value {
        let context = self.types.context();
        let (count, all) = match class {
            Class::Integer => (&mut taken.integers, context.arguments.len()),
            Class::Float => (&mut taken.floats, context.floats.len()),
        };
        if *count < all {
            *count += 1;
            let at = *count as u8 - 1;
            return self.argument_register(match class {
                Class::Integer => Argument::Integer(at),
                Class::Float => Argument::Float(at),
            });
        }
        let at = plus(register(context.stack_pointer), expr::int(taken.stack));
        taken.stack += 8;
        value(Type::UINT, ValueKind::Load(Box::new(at)))
    }

    /// What is in a register for arguments.
    pub(super) fn argument_register(&self, argument: Argument) -> Value {
        match argument {
            Argument::Integer(at) => value(Type::INT, ValueKind::Builtin(Builtin::Arg(at.into()))),
            Argument::Float(at) => register(self.types.context().float(at.into())),
        }
    }

    /// What lies in registers, as its debug information says.
    pub(super) fn pieces(&self, pieces: &[(Argument, u8)], size: u64) -> Base {
        let mut bit = 0;
        let mut parts = Vec::new();
        for (argument, bytes) in pieces {
            parts.push((bit, u64::from(*bytes), self.argument_register(*argument)));
            bit += 8 * u64::from(*bytes);
        }
        Base::Words(composed(size.max(bit / 8), parts))
    }
}

/// Parts, each with its first bit and its bytes, as they would lie in memory.
pub(super) fn composed(size: u64, parts: Vec<(u64, u64, Value)>) -> Vec<Value> {
    let mut words: Vec<Option<Value>> = vec![None; size.div_ceil(8) as usize];
    for (bit, bytes, part) in parts {
        let Some(word) = words.get_mut((bit / 64) as usize) else { continue };
        let part = match (bytes, bit % 64) {
            (8.., _) => part,
            (_, from) => shift(BinaryOp::Shl, true, bits(part, 0, 8 * bytes, false), from),
        };
        *word = Some(match word.take() {
            Some(known) => plus(known, part),
            None => part,
        });
    }
    words.into_iter().map(|word| word.unwrap_or_else(|| expr::int(0))).collect()
}

/// The parts of a result of these scalars.
pub(super) fn results(scalars: &[Scalar], context: &Context) -> Vec<(u64, u64, Value)> {
    let (mut integers, mut floats) = (0, 0);
    let part = |scalar: &Scalar| {
        let word = match scalar.class {
            Class::Integer => {
                integers += 1;
                match integers {
                    1 => value(Type::INT, ValueKind::Builtin(Builtin::Retval)),
                    _ => register(context.second_result),
                }
            }
            Class::Float => {
                floats += 1;
                register(context.float(floats - 1))
            }
        };
        (scalar.bit, scalar.bytes, word)
    };
    scalars.iter().map(part).collect()
}
