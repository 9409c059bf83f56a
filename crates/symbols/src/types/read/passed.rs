//! Which parameters of a function are passed at all.
//!
//! LLVM leaves out what no caller varies or the function does not use, where it sees all callers, and passes what is behind it
//! in the registers that become free. The name stays the same (GCC's gets an ending, `.constprop`), so only the places of
//! parameters tell: one that was left out has none, or is a constant.

use std::collections::HashSet;

use gimli::{Operation, UnitSectionOffset, constants as c};
use sidestep_isa::Va;

use super::{Entry, Reading, Slice, Unit};

impl<'d> Reading<'_, 'd> {
    /// How many of the first `count` parameters are passed to the function whose code is described at `own`, and whose
    /// parameters at `described`.
    pub(super) fn passed(
        &self,
        unit: &Unit<'d>,
        va: Va,
        own: usize,
        described: usize,
        count: usize,
    ) -> gimli::Result<usize> {
        if !self.is_llvm(unit)? {
            return Ok(count);
        }
        let mut there = HashSet::new();
        let (own_unit, at) = self.around(own)?;
        self.children(&own_unit, at, |child| {
            if child.tag() == c::DW_TAG_formal_parameter && self.is_passed(&own_unit, child, va)? {
                let origin = self.reference(&own_unit, child, c::DW_AT_abstract_origin)?;
                there.extend(origin.or_else(|| place(&own_unit, child)));
            }
            Ok(())
        })?;
        let (unit, at) = self.around(described)?;
        let mut all = Vec::new();
        self.children(&unit, at, |child| {
            if child.tag() == c::DW_TAG_formal_parameter {
                all.push(place(&unit, child).is_some_and(|place| there.contains(&place)));
            }
            Ok(())
        })?;
        Ok(all.iter().take_while(|passed| **passed).count().min(count))
    }

    /// By the name of the compiler of a unit.
    fn is_llvm(&self, unit: &Unit<'d>) -> gimli::Result<bool> {
        let mut cursor = unit.entries();
        let Some((_, root)) = cursor.next_dfs()? else { return Ok(false) };
        let producer = self.text(unit, root, c::DW_AT_producer)?.unwrap_or_default();
        Ok(["clang", "rustc", "LLVM"].iter().any(|name| producer.contains(name)))
    }

    /// Whether a parameter is in a register or in memory at the function's entry.
    fn is_passed(&self, unit: &Unit<'d>, parameter: &Entry<'_, 'd>, va: Va) -> gimli::Result<bool> {
        let Some(value) = parameter.attr_value(c::DW_AT_location)? else { return Ok(false) };
        if let Some(expression) = value.exprloc_value() {
            return is_place(expression, unit);
        }
        let Some(mut places) = self.dwarf.attr_locations(unit, value)? else { return Ok(false) };
        while let Some(place) = places.next()? {
            if place.range.begin <= va.0 && va.0 < place.range.end {
                return is_place(place.data, unit);
            }
        }
        Ok(false)
    }
}

/// Where an entry is in `.debug_info`.
fn place(unit: &Unit<'_>, entry: &Entry<'_, '_>) -> Option<usize> {
    match unit.header.offset() {
        UnitSectionOffset::DebugInfoOffset(at) => Some(at.0 + entry.offset().0),
        UnitSectionOffset::DebugTypesOffset(_) => None,
    }
}

/// Whether an expression is no constant.
fn is_place(expression: gimli::Expression<Slice<'_>>, unit: &Unit<'_>) -> gimli::Result<bool> {
    let mut operations = expression.operations(unit.encoding());
    Ok(match operations.next()? {
        Some(Operation::Register { .. } | Operation::RegisterOffset { .. } | Operation::FrameOffset { .. }) => true,
        // A part of it is.
        Some(Operation::Piece { .. }) => true,
        _ => false,
    })
}
