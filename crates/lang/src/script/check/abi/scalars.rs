//! Where Rust passes arguments, whose ABI is the compiler's own: what consists of one or two
//! scalars is passed as these, what has more than 16 bytes by address. All else depends on the
//! version of the compiler; then only its debug information tells, if the code is optimized.
//!
//! Source: `rustc_ty_utils::abi::fn_abi_adjust_for_abi`, of Rust 1.70 to 1.90.

use sidestep_isa::Context;

use super::super::super::checked::{Builtin, Value, ValueKind};
use super::super::super::ctype::CType;
use super::super::super::diagnostic::Span;
use super::super::super::program::Argument;
use super::super::super::types::Type;
use super::super::memory::{Base, number_type, plus, value};
use super::super::{Checker, Checking, expr};
use super::pieces::{Class, Piece, composed};
use super::register;

/// Bytes of what is passed by address, and not by its parts.
const LARGE: u64 = 16;

/// How something is passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum By {
    Scalars(Vec<Piece>),
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
        let are_scalars = are_scalars && found.windows(2).all(|pair| pair[0].bit + pair[0].bits <= pair[1].bit);
        Ok(match found.len() {
            0..=2 if are_scalars => By::Scalars(found),
            _ if size > LARGE => By::Address,
            _ => By::Unknown,
        })
    }

    /// Adds the scalars in something; `false`: there are too many, or it is none.
    fn collect(&mut self, ty: &CType, bit: u64, found: &mut Vec<Piece>, span: Span) -> Checking<bool> {
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
        let scalar = Piece { class, bit, bits: 8 * size };
        if !found.contains(&scalar) {
            found.push(scalar);
        }
        Ok(found.len() <= 2)
    }

    /// Where the next argument is.
    pub(super) fn next_scalars(&mut self, by: By, size: u64, taken: &mut Taken) -> Option<Base> {
        match by {
            By::Scalars(scalars) => {
                let parts: Vec<_> =
                    scalars.into_iter().map(|scalar| (scalar, self.next_scalar(scalar.class, taken))).collect();
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
    pub(super) fn in_registers(&self, parts: &[(Argument, u8)], size: u64) -> Base {
        let mut bit = 0;
        let mut pieces = Vec::new();
        for (argument, bytes) in parts {
            let class = match argument {
                Argument::Integer(_) => Class::Integer,
                Argument::Float(_) => Class::Float,
            };
            let bits = 8 * u64::from(*bytes);
            pieces.push((Piece { class, bit, bits }, self.argument_register(*argument)));
            bit += bits;
        }
        Base::Words(composed(size.max(bit / 8), pieces))
    }
}

/// The parts of a result of these scalars.
pub(super) fn results(scalars: &[Piece], context: &Context) -> Vec<(Piece, Value)> {
    let (mut integers, mut floats) = (0, 0);
    let part = |scalar: &Piece| {
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
        (*scalar, word)
    };
    scalars.iter().map(part).collect()
}
