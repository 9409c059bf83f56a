//! Where functions of 32-bit programs get their parameters. By the ABI all are on the stack; but
//! functions that nobody calls from outside their file get them as the compiler likes, in registers
//! mostly, and only their locations say so.

use std::collections::HashMap;

use gimli::{AttributeValue, Expression, LocationListEntry, Operation, UnitOffset, constants as c};
use sidestep_isa::Va;

use super::Passed;
use super::read::{Entry, Slice};
use super::units::{Die, Reading, Unit};
use crate::arch;

/// The stack pointer of x86-32, by its DWARF number (System V ABI, i386, table 2.14).
const ESP: u16 = 4;
/// The last general register.
const LAST: u16 = 7;
/// A function has made its frame after so many bytes.
const PROLOGUE: u64 = 48;
/// Entries of a list of locations that are looked at.
const ENTRIES: usize = 1024;

/// Where a parameter is when the function is entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Location {
    Register(u16),
    /// Above the return address; `None`: only the rest of the function knows how far.
    Stack(Option<u64>),
    Unknown,
}

/// How a function is called: what its locations say together.
pub(super) struct Entered {
    /// By the places of the parameters' entries: their own, and those that they are copies of.
    locations: HashMap<Die, Location>,
    /// Everybody may call it.
    is_external: bool,
}

impl Entered {
    /// A parameter by the place of its entry.
    pub(super) fn parameter(&self, place: Die) -> Passed {
        let known = self.locations.get(&place).copied().unwrap_or(Location::Unknown);
        let is_own = self.locations.values().any(|location| matches!(location, Location::Register(_)));
        match known {
            _ if self.is_external && !is_own => Passed::Abi,
            Location::Register(number) => Passed::Register(number),
            Location::Stack(Some(offset)) => Passed::Stack(offset),
            Location::Stack(None) if !is_own => Passed::Abi,
            Location::Stack(None) | Location::Unknown => Passed::Unknown,
        }
    }
}

impl<'d> Reading<'d> {
    /// How the function at `va`, which this entry describes, is called; `None`: by the ABI, which
    /// has arguments in registers.
    pub(super) fn entered(
        &self,
        unit: &Unit<'d>,
        at: UnitOffset,
        va: Va,
        is_external: bool,
    ) -> gimli::Result<Option<Entered>> {
        if !arch::of(self.isa()).registers.arguments.is_empty() {
            return Ok(None);
        }
        let by_frame = match unit.entry(at)?.attr_value(c::DW_AT_frame_base)? {
            Some(AttributeValue::Exprloc(base)) => {
                matches!(single(base, unit)?, Some(Operation::CallFrameCFA))
            }
            _ => false,
        };
        let mut locations = HashMap::new();
        self.children(unit, at, |child| {
            if child.tag() != c::DW_TAG_formal_parameter {
                return Ok(());
            }
            let location = self.location(unit, child, va, by_frame)?;
            let origin = self.reference(unit, child, c::DW_AT_abstract_origin)?;
            locations.extend(origin.into_iter().chain([unit.die(child.offset())]).map(|at| (at, location)));
            Ok(())
        })?;
        Ok(Some(Entered { locations, is_external }))
    }

    /// `by_frame`: what is counted from the frame is counted from behind the return address.
    fn location(&self, unit: &Unit<'d>, entry: &Entry<'_, 'd>, va: Va, by_frame: bool) -> gimli::Result<Location> {
        let operation = match self.at_entry(unit, entry, va)? {
            Some(expression) => single(expression, unit)?,
            None => None,
        };
        Ok(match operation {
            Some(Operation::Register { register }) if register.0 <= LAST => Location::Register(register.0),
            Some(Operation::FrameOffset { offset }) => Location::Stack(u64::try_from(offset).ok().filter(|_| by_frame)),
            Some(Operation::RegisterOffset { register, offset, .. }) if register.0 == ESP => {
                Location::Stack(u64::try_from(offset - 4).ok())
            }
            _ => Location::Unknown,
        })
    }

    /// The location of a parameter at the function's first instruction.
    pub(super) fn at_entry(
        &self,
        unit: &Unit<'d>,
        parameter: &Entry<'_, 'd>,
        va: Va,
    ) -> gimli::Result<Option<Expression<Slice<'d>>>> {
        if let Some(AttributeValue::Exprloc(expression)) = parameter.attr_value(c::DW_AT_location)? {
            return Ok(Some(expression));
        }
        let list = self.locations(unit, parameter)?;
        let found = list.into_iter().find(|entry| entry.range.begin <= va.0 && va.0 < entry.range.end);
        Ok(found.map(|entry| entry.data))
    }

    /// Whether a parameter that has no location at the first instruction has one when the function
    /// has made its frame: then it was passed.
    pub(super) fn is_soon(&self, unit: &Unit<'d>, parameter: &Entry<'_, 'd>, va: Va) -> gimli::Result<bool> {
        let first = self.locations(unit, parameter)?.into_iter().min_by_key(|entry| entry.range.begin);
        let Some(first) = first.filter(|first| first.range.begin.wrapping_sub(va.0) < PROLOGUE) else {
            return Ok(false);
        };
        let operation = first.data.operations(unit.encoding()).next()?;
        Ok(matches!(
            operation,
            Some(Operation::Register { .. } | Operation::RegisterOffset { .. } | Operation::FrameOffset { .. })
        ))
    }

    /// The locations that a parameter gets behind the first instruction, until the function has
    /// made its frame.
    pub(super) fn soon(
        &self,
        unit: &Unit<'d>,
        parameter: &Entry<'_, 'd>,
        va: Va,
    ) -> gimli::Result<Vec<Expression<Slice<'d>>>> {
        let list = self.locations(unit, parameter)?.into_iter();
        let is_soon =
            |entry: &LocationListEntry<Slice<'d>>| (1..PROLOGUE).contains(&entry.range.begin.wrapping_sub(va.0));
        Ok(list.filter(is_soon).map(|entry| entry.data).collect())
    }

    /// The list of a parameter's locations; empty if it has none.
    fn locations(
        &self,
        unit: &Unit<'d>,
        parameter: &Entry<'_, 'd>,
    ) -> gimli::Result<Vec<LocationListEntry<Slice<'d>>>> {
        let list = match parameter.attr_value(c::DW_AT_location)? {
            Some(AttributeValue::Exprloc(_)) | None => None,
            Some(list) => unit.dwarf().attr_locations(unit, list)?,
        };
        let mut found = Vec::new();
        let Some(mut list) = list else { return Ok(found) };
        while let Some(entry) = list.next()? {
            if found.len() == ENTRIES {
                break;
            }
            found.push(entry);
        }
        Ok(found)
    }
}

/// The operation of an expression that has only one.
fn single<'d>(expression: Expression<Slice<'d>>, unit: &Unit<'d>) -> gimli::Result<Option<Operation<Slice<'d>>>> {
    let mut operations = expression.operations(unit.encoding());
    let first = operations.next()?;
    Ok(if operations.next()?.is_none() { first } else { None })
}
