//! Which parameters of a function are passed at all.
//!
//! LLVM leaves out what no caller varies or the function does not use, where it sees all callers,
//! and passes what is behind it in the registers that become free. The name stays the same (GCC's
//! gets an ending, `.constprop`), so only the places of parameters tell: one that was left out has
//! none, or is a constant. So has one that is only not used; that it has a register of its own is
//! seen by another one behind it, which is where it is if nothing was left out.

use std::collections::HashMap;

use gimli::{Expression, Operation, constants as c};
use sidestep_isa::Va;

use super::super::read::{Entry, Reading, Slice, Unit};
use super::super::{DataType, FunctionParameter};

/// DWARF's numbers of rdi, rsi, rdx, rcx, r8, r9, and of xmm0.
const INTEGERS: [u16; 6] = [5, 4, 1, 2, 8, 9];
const FLOAT: u16 = 17;
const FLOATS: u16 = 8;

/// Where a parameter is at the function's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Nowhere,
    Register(u16),
    Memory,
}

/// Of each parameter, whether it is where the ABI has it.
pub(super) fn kept(places: &[Place], parameters: &[FunctionParameter], result: &DataType) -> Vec<bool> {
    let registers = registers(parameters, result);
    let is_float = |register: &u16| *register >= FLOAT;
    // Of the same kind, and where it is if all before it are passed.
    let shows = |gone: usize, other: usize| match (registers[gone], registers[other]) {
        (Some(own), Some(register)) => {
            is_float(&own) == is_float(&register) && places[other] == Place::Register(register)
        }
        _ => false,
    };
    let count = parameters.len().min(places.len());
    let is_gone = |at: &usize| places[*at] == Place::Nowhere && !(at + 1..count).any(|other| shows(*at, other));
    let known = (0..count).find(is_gone).unwrap_or(count);
    // The callers that LLVM sees do not pass what is not used, either.
    (0..parameters.len()).map(|at| at < known && places[at] != Place::Nowhere).collect()
}

/// The register of each parameter, as far as numbers and addresses tell.
fn registers(parameters: &[FunctionParameter], result: &DataType) -> Vec<Option<u16>> {
    let mut integers = INTEGERS.into_iter();
    let mut floats = FLOAT..FLOAT + FLOATS;
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

impl<'d> Reading<'_, 'd> {
    /// Where the parameters are of a function whose code is described at `own`, and whose
    /// parameters at `described`.
    pub(super) fn places(&self, va: Va, own: usize, described: usize) -> gimli::Result<Vec<Place>> {
        let mut there = HashMap::new();
        let (unit, at) = self.around(own)?;
        self.children(&unit, at, |child| {
            if Self::is_parameter(child)? {
                let origin = self.reference(&unit, child, c::DW_AT_abstract_origin)?;
                let place = match self.at_entry(&unit, child, va)? {
                    Some(expression) => place(expression, &unit)?,
                    None => Place::Nowhere,
                };
                there.insert(origin.unwrap_or_else(|| Self::place(&unit, child.offset())), place);
            }
            Ok(())
        })?;
        let (unit, at) = self.around(described)?;
        let mut places = Vec::new();
        self.children(&unit, at, |child| {
            if Self::is_parameter(child)? {
                let place = there.get(&Self::place(&unit, child.offset()));
                places.push(place.copied().unwrap_or(Place::Nowhere));
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

/// Constants are nowhere; of what is in pieces, the first one may be.
fn place(expression: Expression<Slice<'_>>, unit: &Unit<'_>) -> gimli::Result<Place> {
    Ok(match expression.operations(unit.encoding()).next()? {
        Some(Operation::Register { register }) => Place::Register(register.0),
        Some(Operation::RegisterOffset { .. } | Operation::FrameOffset { .. } | Operation::Piece { .. }) => {
            Place::Memory
        }
        _ => Place::Nowhere,
    })
}
