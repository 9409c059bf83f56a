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

use gimli::{AttributeValue, Expression, Operation, UnitOffset, constants as c};
use sidestep_isa::{Isa, Va};

use super::super::read::{Entry, Slice};
use super::super::units::{Die, Reading, Unit};
use super::super::{Argument, Convention, DataType, FunctionParameter, Part, Passed, Piece};
use crate::arch;

/// Where a parameter is at the function's entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Nowhere,
    /// Whole.
    Register(Argument),
    /// So many lower bits are those of a register; those above them are calculated.
    Low(Argument, u64),
    /// In parts, ascending. There may be gaps between them and behind the last one.
    Parts(Vec<Part>),
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
    let places: Vec<Place> = places.iter().zip(&*parameters).map(|(place, of)| whole(place, &of.ty)).collect();
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
    let is_changed = is_changed || !is_own && contradicts(&places, &registers[..count]);
    let known = if is_changed { 0 } else { (0..count).find(is_gone).unwrap_or(count) };
    let mut place = |(at, parameter): (usize, &mut FunctionParameter)| {
        let is_whole = !matches!(parameter.ty, DataType::Record { .. } | DataType::Array(..) | DataType::Wide);
        match places.get(at) {
            Some(Place::Register(register)) if is_whole || is_own => {
                if !(is_whole && registers[at] == Some(*register)) {
                    parameter.passed = Passed::Pieces(vec![Piece { register: *register, bytes: 8 }]);
                }
                true
            }
            Some(Place::Parts(parts)) if !is_whole => {
                parameter.parts.clone_from(parts);
                match pieces(parts).filter(|_| is_own) {
                    Some(pieces) => parameter.passed = Passed::Pieces(pieces),
                    None => return at < known,
                }
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

/// A place whose lower bits are all that a value has; a number of which fewer are known is
/// calculated.
fn whole(place: &Place, ty: &DataType) -> Place {
    let Place::Low(register, known) = place else { return place.clone() };
    let bits = match ty {
        // Only the lowest bit counts.
        DataType::Bool => 1,
        DataType::Char => 8,
        DataType::Number { bytes, .. } | DataType::Float(bytes) => 8 * u64::from(*bytes),
        DataType::Enum(of) => 8 * u64::from(of.bytes),
        _ => 64,
    };
    if *known >= bits { Place::Register(*register) } else { Place::Nowhere }
}

/// Whether a parameter is not in the register that the ABI has for it, or another one is in that.
fn contradicts(places: &[Place], registers: &[Option<Argument>]) -> bool {
    let is_in = |place: &Place, register: Argument| match place {
        Place::Register(own) => *own == register,
        Place::Parts(parts) => parts.iter().any(|part| part.register == Some(register)),
        // At -O0 an address is said to be where it is behind the first instructions.
        Place::At(_) | Place::Low(..) | Place::Nowhere | Place::Memory => false,
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
    let mut known = !matches!(result, DataType::Record { .. } | DataType::Array(..) | DataType::Wide);
    let register = |parameter: &FunctionParameter| {
        known &= !matches!(parameter.ty, DataType::Record { .. } | DataType::Array(..) | DataType::Wide);
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
                    Some(expression) => match place(expression, &unit, self.isa())? {
                        Place::Parts(parts) => self.with_later(parts, &unit, child, va)?,
                        place => place,
                    },
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

    /// Parts of a parameter, with those that get a register of their own in the first instructions:
    /// they were passed in a register with others.
    fn with_later(
        &self,
        mut parts: Vec<Part>,
        unit: &Unit<'d>,
        parameter: &Entry<'_, 'd>,
        va: Va,
    ) -> gimli::Result<Place> {
        for expression in self.soon(unit, parameter, va)? {
            match place(expression, unit, self.isa())? {
                Place::Parts(later) => {
                    let is_new = |part: &Part| parts.iter().all(|known| known.bytes.start != part.bytes.start);
                    let new: Vec<Part> =
                        later.into_iter().filter(is_new).take(PARTS - parts.len().min(PARTS)).collect();
                    parts.extend(new.into_iter().map(|part| Part { register: None, ..part }));
                }
                Place::Nowhere => {}
                _ => return Ok(Place::Memory),
            }
        }
        parts.sort_unstable_by_key(|part| part.bytes.start);
        Ok(Place::Parts(parts))
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

/// Parts of a parameter at most.
const PARTS: usize = 16;

/// The registers of a value that is in registers from its first byte on, without a gap.
fn pieces(parts: &[Part]) -> Option<Vec<Piece>> {
    let mut end = 0;
    let piece = |part: &Part| {
        let is_next = std::mem::replace(&mut end, part.bytes.end) == part.bytes.start;
        let bytes = part.bytes.end - part.bytes.start;
        let register = part.register.filter(|_| is_next && matches!(bytes, 1 | 2 | 4 | 8))?;
        Some(Piece { register, bytes: bytes as u8 })
    };
    parts.iter().map(piece).collect()
}

/// Where an expression says that a value is. Constants are nowhere.
fn place(expression: Expression<Slice<'_>>, unit: &Unit<'_>, isa: Isa) -> gimli::Result<Place> {
    let (mut operations, mut since) = (expression.operations(unit.encoding()), Vec::new());
    let (mut parts, mut at, mut has_parts) = (Vec::new(), 0_u64, false);
    while let Some(operation) = operations.next()? {
        let Operation::Piece { size_in_bits, bit_offset } = operation else {
            since.push(operation);
            continue;
        };
        has_parts = true;
        let (operations, first) = (std::mem::take(&mut since), at);
        let Some(end) = at.checked_add(size_in_bits) else { return Ok(Place::Memory) };
        at = end;
        let register = match simple(&operations, unit, isa)? {
            _ if first % 8 != 0 || end % 8 != 0 || bit_offset.unwrap_or(0) != 0 || parts.len() == PARTS => continue,
            // What it is calculated from was passed.
            Place::Nowhere if operations.iter().any(is_from_register) => None,
            Place::Nowhere => continue,
            Place::Register(register) => Some(register),
            Place::Low(register, bits) => Some(register).filter(|_| bits >= size_in_bits),
            Place::At(_) | Place::Memory | Place::Parts(_) => None,
        };
        parts.push(Part { bytes: first / 8..end / 8, register });
    }
    Ok(match has_parts {
        true if parts.is_empty() => Place::Nowhere,
        true => Place::Parts(parts),
        false => simple(&since, unit, isa)?,
    })
}

fn is_from_register(operation: &Operation<Slice<'_>>) -> bool {
    matches!(operation, Operation::RegisterOffset { .. } | Operation::EntryValue { .. })
}

/// The same of an expression without pieces.
fn simple(operations: &[Operation<Slice<'_>>], unit: &Unit<'_>, isa: Isa) -> gimli::Result<Place> {
    let of = &arch::of(isa).registers;
    let argument = |register: u16| {
        let integer = of.arguments.iter().position(|known| *known == register).map(|at| Argument::Integer(at as u8));
        let float = of.floats.clone().position(|known| known == register).map(|at| Argument::Float(at as u8));
        integer.or(float)
    };
    // A number that is cut off or extended: its own bits are those of the register.
    let low = |register: u16, rest| -> gimli::Result<Place> {
        Ok(match (argument(register), lower_bits(rest, &|of| converted(of, unit))?) {
            (Some(register), Some(u64::MAX)) => Place::Register(register),
            (Some(register), Some(bits)) => Place::Low(register, bits),
            _ => Place::Nowhere,
        })
    };
    Ok(match operations {
        [Operation::Register { register }] => argument(register.0).map_or(Place::Memory, Place::Register),
        // What it was at the entry, which is where this is asked.
        [Operation::EntryValue { expression }, rest @ ..] => {
            match Expression(*expression).operations(unit.encoding()).next()? {
                Some(Operation::Register { register }) => low(register.0, rest)?,
                _ => Place::Nowhere,
            }
        }
        [Operation::RegisterOffset { register, offset: 0, .. }] => {
            argument(register.0).map_or(Place::Memory, Place::At)
        }
        [Operation::RegisterOffset { register, offset: 0, .. }, rest @ ..]
            if rest.last() == Some(&Operation::StackValue) =>
        {
            low(register.0, rest)?
        }
        [.., Operation::StackValue] => Place::Nowhere,
        [Operation::RegisterOffset { .. } | Operation::FrameOffset { .. }, ..] => Place::Memory,
        _ => Place::Nowhere,
    })
}

/// How many of the lower bits of a value operations leave as they are: `u64::MAX` if that is all
/// of them. `None`: it is another value. LLVM extends signs with `DW_OP_convert`, and before DWARF
/// 5 with a product: it has all bits above the sign.
fn lower_bits(
    operations: &[Operation<Slice<'_>>],
    converted: &dyn Fn(UnitOffset) -> gimli::Result<Option<u64>>,
) -> gimli::Result<Option<u64>> {
    let (bits, rest) = match operations {
        [Operation::StackValue] => return Ok(Some(u64::MAX)),
        [Operation::Convert { base_type }, rest @ ..] => match converted(*base_type)? {
            Some(bits) => (bits, rest),
            None => return Ok(None),
        },
        [Operation::UnsignedConstant { value: mask }, Operation::And, rest @ ..]
            if *mask != 0 && mask & mask.wrapping_add(1) == 0 =>
        {
            (mask.trailing_ones().into(), rest)
        }
        [
            Operation::Pick { index: 0 },
            Operation::UnsignedConstant { value: sign },
            Operation::Shr,
            Operation::UnsignedConstant { value: 0 },
            Operation::Not,
            Operation::Mul,
            Operation::UnsignedConstant { value: bits },
            Operation::Shl,
            Operation::Or,
            rest @ ..,
        ] if sign.checked_add(1) == Some(*bits) => (*bits, rest),
        _ => return Ok(None),
    };
    Ok(lower_bits(rest, converted)?.map(|others| others.min(bits)))
}

/// The bits of the type that a number is converted to; `None`: that is no whole number.
fn converted(base_type: UnitOffset, unit: &Unit<'_>) -> gimli::Result<Option<u64>> {
    // The type of addresses.
    if base_type.0 == 0 {
        return Ok(Some(u64::MAX));
    }
    let entry = unit.entry(base_type)?;
    let encoding = match entry.attr_value(c::DW_AT_encoding)? {
        Some(AttributeValue::Encoding(encoding)) => encoding,
        _ => return Ok(None),
    };
    let is_whole = matches!(
        encoding,
        c::DW_ATE_signed
            | c::DW_ATE_unsigned
            | c::DW_ATE_signed_char
            | c::DW_ATE_unsigned_char
            | c::DW_ATE_boolean
            | c::DW_ATE_address
    );
    let number = |attribute| Ok::<_, gimli::Error>(entry.attr(attribute)?.and_then(|value| value.udata_value()));
    let bits = match (number(c::DW_AT_bit_size)?, number(c::DW_AT_byte_size)?) {
        (Some(bits), _) => bits,
        // LLVM has one for single bits.
        (None, bytes) => bytes.unwrap_or(0).saturating_mul(8).max(1),
    };
    Ok(is_whole.then_some(bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Operation::{And, Convert, Mul, Not, Or, Pick, Shl, Shr, StackValue, UnsignedConstant};

    #[test]
    fn a_value_with_fewer_bits_was_the_argument() {
        let bits = |operations: &[Operation<Slice<'static>>]| {
            // The number of a type is that of its bits; 4 is a float.
            let converted = |of: UnitOffset| Ok((of.0 != 4).then_some(of.0 as u64));
            lower_bits(operations, &converted).unwrap()
        };
        let number = |value| UnsignedConstant { value };
        let convert = |bits| Convert { base_type: UnitOffset(bits) };
        assert_eq!(bits(&[StackValue]), Some(u64::MAX));
        assert_eq!(bits(&[number(0xff), And, StackValue]), Some(8));
        assert_eq!(bits(&[number(0x7f), And, StackValue]), Some(7));
        assert_eq!(bits(&[number(0xfe), And, StackValue]), None);
        assert_eq!(bits(&[number(0xffff), And, number(0xff), And, StackValue]), Some(8));
        assert_eq!(bits(&[convert(8), convert(32), StackValue]), Some(8));
        assert_eq!(bits(&[convert(4), StackValue]), None);
        assert_eq!(bits(&[number(0xff), And]), None);
        let pick = Pick { index: 0 };
        let signed = |sign| [pick, number(sign), Shr, number(0), Not, Mul, number(16), Shl, Or, StackValue];
        assert_eq!(bits(&signed(15)), Some(16));
        assert_eq!(bits(&signed(14)), None);

        let low = |bits| Place::Low(Argument::Integer(1), bits);
        let register = Place::Register(Argument::Integer(1));
        let int = |bytes| DataType::Number { bytes, signed: true };
        assert_eq!(whole(&low(8), &int(1)), register);
        assert_eq!(whole(&low(8), &int(4)), Place::Nowhere);
        assert_eq!(whole(&low(32), &int(4)), register);
        assert_eq!((whole(&low(1), &DataType::Bool), whole(&low(7), &DataType::Char)), (register, Place::Nowhere));
    }
}
