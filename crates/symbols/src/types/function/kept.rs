//! Which parameters of a function are passed at all, and where.
//!
//! LLVM leaves out what no caller varies or the function does not use, where it sees all callers,
//! and passes what is behind it in the registers that become free. The name stays the same (GCC's
//! gets an ending, `.constprop`), so only the places of parameters tell: one that was left out has
//! none, or is a constant. So has one that is only not used; that it has a register of its own is
//! seen by another one behind it, which is where it is if nothing was left out. Rust has no ABI,
//! but in what is optimized the places of all parameters that are used are known, also of those
//! that take two registers.

use std::collections::HashMap;

use gimli::{Expression, Operation, constants as c};
use sidestep_isa::{Isa, Va};

use super::super::read::{Entry, Slice};
use super::super::units::{Die, Reading, Unit};
use super::super::{Argument, Convention, DataType, FunctionParameter, Passed, Piece};
use crate::arch;

/// Where a parameter is at the function's entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Nowhere,
    /// Whole.
    Register(Argument),
    /// In parts, from the first byte on.
    Pieces(Vec<Piece>),
    /// At the address in a register.
    At(Argument),
    /// Elsewhere.
    Memory,
}

/// Says where parameters are that are not where the ABI has them; of each, whether that is known.
/// `is_changed`: the compiler says that the function does not take what the source says.
pub(super) fn kept(
    places: &[Place],
    parameters: &mut [FunctionParameter],
    result: &DataType,
    isa: Isa,
    convention: Convention,
    is_changed: bool,
) -> Vec<bool> {
    let registers = registers(parameters, result, isa);
    let is_own = convention == Convention::Compiler;
    // Of the same kind, and where it is if all before it are passed.
    let shows = |gone: usize, other: usize| match (registers[gone], registers[other]) {
        (Some(own), Some(register)) => {
            let is_float = |register| matches!(register, Argument::Float(_));
            is_float(own) == is_float(register) && places[other] == Place::Register(register)
        }
        _ => false,
    };
    let count = parameters.len().min(places.len());
    let is_gone = |at: &usize| places[*at] == Place::Nowhere && !(at + 1..count).any(|other| shows(*at, other));
    // Then the ABI says of no parameter where it is.
    let is_changed = is_changed || !is_own && contradicts(places, &registers[..count]);
    let known = if is_changed { 0 } else { (0..count).find(is_gone).unwrap_or(count) };
    let mut place = |(at, parameter): (usize, &mut FunctionParameter)| {
        let is_whole = !matches!(parameter.ty, DataType::Record { .. } | DataType::Array(..));
        match places.get(at) {
            Some(Place::Register(register)) if is_whole || is_own => {
                if !(is_whole && registers[at] == Some(*register)) {
                    parameter.passed = Passed::Pieces(vec![Piece { register: *register, bytes: 8 }]);
                }
                true
            }
            Some(Place::Pieces(pieces)) if is_own && !is_whole => {
                parameter.passed = Passed::Pieces(pieces.clone());
                true
            }
            Some(Place::At(register)) if is_own && !is_whole => {
                parameter.passed = Passed::At(*register);
                true
            }
            // The callers that LLVM sees do not pass what is not used, either.
            Some(Place::Nowhere) | None => false,
            Some(_) => at < known,
        }
    };
    parameters.iter_mut().enumerate().map(&mut place).collect()
}

/// Whether a parameter is not in the register that the ABI has for it, or another one is in that.
fn contradicts(places: &[Place], registers: &[Option<Argument>]) -> bool {
    let is_in = |place: &Place, register: Argument| match place {
        Place::Register(own) => *own == register,
        Place::Pieces(pieces) => pieces.iter().any(|piece| piece.register == register),
        // At -O0 an address is said to be where it is behind the first instructions.
        Place::At(_) | Place::Nowhere | Place::Memory => false,
    };
    registers.iter().enumerate().any(|(at, register)| {
        register.is_some_and(|register| match &places[at] {
            Place::Register(own) => *own != register,
            _ => places.iter().enumerate().any(|(other, place)| other != at && is_in(place, register)),
        })
    })
}

/// The register of each parameter, as far as numbers and addresses tell.
fn registers(parameters: &[FunctionParameter], result: &DataType, isa: Isa) -> Vec<Option<Argument>> {
    let of = &arch::of(isa).registers;
    let mut integers = (0..of.arguments.len() as u8).map(Argument::Integer);
    let mut floats = (0..of.floats.len() as u8).map(Argument::Float);
    // What is returned in memory has an address in the first register.
    let mut known = !matches!(result, DataType::Record { .. } | DataType::Array(..));
    let register = |parameter: &FunctionParameter| {
        known &= !matches!(parameter.ty, DataType::Record { .. } | DataType::Array(..));
        match parameter.ty {
            _ if !known => None,
            DataType::Float(_) => floats.next(),
            _ => integers.next(),
        }
    };
    parameters.iter().map(register).collect()
}

impl<'d> Reading<'d> {
    /// Where the parameters are of a function whose code is described at `own`, and whose
    /// parameters at `described`.
    pub(super) fn places(&self, va: Va, own: Die, described: Die) -> gimli::Result<Vec<Place>> {
        let mut there = HashMap::new();
        let (unit, at) = self.around(own)?;
        self.children(&unit, at, |child| {
            if Self::is_parameter(child)? {
                let origin = self.reference(&unit, child, c::DW_AT_abstract_origin)?;
                let place = match self.at_entry(&unit, child, va)? {
                    Some(expression) => place(expression, &unit, self.isa())?,
                    None if self.is_soon(&unit, child, va)? => Place::Memory,
                    None => Place::Nowhere,
                };
                there.insert(origin.unwrap_or_else(|| unit.die(child.offset())), place);
            }
            Ok(())
        })?;
        let (unit, at) = self.around(described)?;
        let mut places = Vec::new();
        self.children(&unit, at, |child| {
            if Self::is_parameter(child)? {
                places.push(there.remove(&unit.die(child.offset())).unwrap_or(Place::Nowhere));
            }
            Ok(())
        })?;
        Ok(places)
    }

    /// Results of Go are parameters of DWARF, too.
    pub(super) fn is_parameter(entry: &Entry<'_, 'd>) -> gimli::Result<bool> {
        Ok(entry.tag() == c::DW_TAG_formal_parameter && !Self::flag(entry, c::DW_AT_variable_parameter)?)
    }

    /// By the name of the compiler of a unit.
    pub(super) fn is_llvm(&self, unit: &Unit<'d>) -> gimli::Result<bool> {
        let mut cursor = unit.entries();
        let Some((_, root)) = cursor.next_dfs()? else { return Ok(false) };
        let producer = self.text(unit, root, c::DW_AT_producer)?.unwrap_or_default();
        Ok(["clang", "rustc", "LLVM"].iter().any(|name| producer.contains(name)))
    }
}

/// Pieces of a parameter at most.
const PIECES: usize = 16;

/// Constants are nowhere.
fn place(expression: Expression<Slice<'_>>, unit: &Unit<'_>, isa: Isa) -> gimli::Result<Place> {
    let of = &arch::of(isa).registers;
    let argument = |register: u16| {
        let integer = of.arguments.iter().position(|known| *known == register).map(|at| Argument::Integer(at as u8));
        let float = of.floats.clone().position(|known| known == register).map(|at| Argument::Float(at as u8));
        integer.or(float)
    };
    let mut operations = expression.operations(unit.encoding());
    let Some(first) = operations.next()? else { return Ok(Place::Nowhere) };
    let second = operations.next()?;
    Ok(match (first, second) {
        (Operation::Register { register }, None) => argument(register.0).map_or(Place::Memory, Place::Register),
        // What it was at the entry, which is where this is asked.
        (Operation::EntryValue { expression }, Some(Operation::StackValue)) => {
            match Expression(expression).operations(unit.encoding()).next()? {
                Some(Operation::Register { register }) => argument(register.0).map_or(Place::Nowhere, Place::Register),
                _ => Place::Nowhere,
            }
        }
        (Operation::RegisterOffset { register, offset: 0, .. }, None) => {
            argument(register.0).map_or(Place::Memory, Place::At)
        }
        (Operation::Register { register }, Some(Operation::Piece { size_in_bits, bit_offset: None })) => {
            let mut pieces = Vec::new();
            let mut piece = Some((register, size_in_bits));
            while let Some((register, bits)) = piece {
                match argument(register.0) {
                    Some(register) if matches!(bits, 8 | 16 | 32 | 64) && pieces.len() < PIECES => {
                        pieces.push(Piece { register, bytes: (bits / 8) as u8 });
                    }
                    _ => return Ok(Place::Memory),
                }
                piece = match (operations.next()?, operations.next()?) {
                    (None, _) => None,
                    (
                        Some(Operation::Register { register }),
                        Some(Operation::Piece { size_in_bits, bit_offset: None }),
                    ) => Some((register, size_in_bits)),
                    // The rest is padding, or not there.
                    _ => return Ok(Place::Memory),
                };
            }
            Place::Pieces(pieces)
        }
        (Operation::RegisterOffset { .. } | Operation::FrameOffset { .. } | Operation::Piece { .. }, _) => {
            Place::Memory
        }
        _ => Place::Nowhere,
    })
}
