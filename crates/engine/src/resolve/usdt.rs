//! The arguments of USDT sites: put into programs that were made here, and as those that include
//! libbpf's `usdt.bpf.h` find them.

use sidestep_bpf::Size;
use sidestep_bpf::pass::arguments::{self, Address, Source};
use sidestep_isa::Va;
use sidestep_plan::thunk::RED_ZONE;
use sidestep_symbols::usdt::{Argument, ArgumentKind, Memory, Place, Probe, Register, SpecError, SpecLayout};
use sidestep_symbols::{Cfa, Object};
use sidestep_wire::{Hit, UnwindRule};

use crate::programs;

/// `xmm` registers in the context.
const VECTORS: u8 = ((Hit::CONTEXT - Hit::FLOATS) / 8) as u8;

/// Where a site of an object has the arguments with these numbers. One that it does not have is
/// left out. `bias`: what to add to link-time addresses.
///
/// # Errors
/// It is not known where one of them is, or programs cannot have it.
pub(crate) fn arguments(
    object: &Object,
    probe: &Probe,
    asked: &[u64],
    bias: i64,
) -> Result<programs::Arguments, SpecError> {
    let all = probe.arguments.as_ref().map_err(|error| SpecError::Unknown(error.clone()))?;
    let there = asked.iter().filter_map(|number| {
        let at = usize::try_from(*number).ok()?;
        Some((*number, at, all.get(at)?))
    });
    there.map(|(number, at, argument)| Ok((number, place(object, probe, at, argument, bias)?))).collect()
}

/// Is one of the arguments with these numbers in memory that may not be there?
pub(crate) fn are_in_memory(object: &Object, probe: &Probe, asked: &[u64]) -> bool {
    let arguments = probe.arguments.iter().flatten().zip(0..).filter(|(_, number)| asked.contains(number));
    arguments.into_iter().any(|(argument, _)| match &argument.place {
        Place::Memory(memory) => !is_mapped(object, probe, memory, argument.size.into()),
        _ => false,
    })
}

/// Is an argument in memory that is mapped whenever the site is executed: in the frame of the
/// function, as the unwind information describes it, in its red zone, or in the object itself?
fn is_mapped(object: &Object, probe: &Probe, memory: &Memory, size: i64) -> bool {
    if memory.index.is_some() {
        return false;
    }
    match (&memory.symbol, memory.base) {
        (None, Some(base @ (Register::SP | Register::FP))) => {
            let cfa = object.frame_rule(probe.va).map(|rule| rule.cfa);
            in_frame(cfa, base, memory.displacement, size)
        }
        (symbol, base) if base.is_none_or(|base| base == Register::PC) => {
            let start = match symbol {
                Some(symbol) => symbol.va.map(|va| va.offset(memory.displacement)),
                None => base.map(|_| probe.va.offset(memory.displacement)),
            };
            let holds = |start: Va| {
                let (start, end) = (start.0, start.0.saturating_add_signed(size));
                object.segments().iter().any(|s| s.read && s.va.0 <= start && end <= s.va.0 + s.size.0)
            };
            start.is_some_and(holds)
        }
        _ => false,
    }
}

/// Are `size` bytes at a distance from a register in the frame of a function of 64-bit code, or in
/// its red zone? The detour needs stack below that, so that is there. `cfa` is what the unwind
/// information says at the site.
///
/// The frame ends with the return address, right below the canonical frame address. A frame
/// pointer is nowhere below the stack pointer, so what is in the red zone when it is counted from
/// there is in the red zone or in the frame.
fn in_frame(cfa: Option<Cfa>, base: Register, displacement: i64, size: i64) -> bool {
    let end = match (base, cfa) {
        (Register::SP, Some(Cfa::Register { base: UnwindRule::SP, offset })) => i64::from(offset),
        (Register::FP, Some(Cfa::Register { base: UnwindRule::BP, offset })) => i64::from(offset),
        // Wherever the frame ends, it is not below its stack pointer.
        (Register::SP, _) => 0,
        _ => return false,
    };
    (-i64::from(RED_ZONE)..=end - size).contains(&displacement)
}

fn place(
    object: &Object,
    probe: &Probe,
    number: usize,
    argument: &Argument,
    bias: i64,
) -> Result<arguments::Argument, SpecError> {
    let size = match argument.size {
        1 => Size::B,
        2 => Size::H,
        4 => Size::W,
        8 => Size::Dw,
        size => return Err(SpecError::Size { argument: number, size }),
    };
    let source = match &argument.place {
        Place::Constant(value) => Source::Constant(*value as u64),
        Place::Register(register) => Source::Context(register.offset()),
        Place::Vector(register) if *register < VECTORS => {
            Source::Context(Hit::FLOATS as u16 + 8 * u16::from(*register))
        }
        Place::Vector(register) => return Err(SpecError::Vector { argument: number, number: *register }),
        Place::Memory(memory) => {
            let is_mapped = is_mapped(object, probe, memory, argument.size.into());
            let source = if is_mapped { Source::Mapped } else { Source::Memory };
            source(address(probe, number, memory, bias)?)
        }
    };
    Ok(arguments::Argument { size, signed: argument.kind == ArgumentKind::Signed, source })
}

fn address(probe: &Probe, number: usize, memory: &Memory, bias: i64) -> Result<Address, SpecError> {
    let is_ip = memory.base == Some(Register::PC);
    let mut displacement = memory.displacement as u64;
    match &memory.symbol {
        None if is_ip => displacement = displacement.wrapping_add(probe.va.offset(bias).0),
        None => {}
        Some(symbol) => {
            let name = || SpecError::Symbol { argument: number, name: symbol.name.to_string() };
            let va = symbol.va.ok_or_else(name)?;
            // Beside a register it is a distance, or an address in a program that is not moved.
            let moved = if memory.base.is_none() || is_ip { va.offset(bias) } else { va };
            displacement = displacement.wrapping_add(moved.since(symbol.origin) as u64);
        }
    }
    let word = |register: Register| match u64::from(register.size) == probe.isa.word() {
        true => Ok(register.offset()),
        false => Err(SpecError::Address { argument: number }),
    };
    Ok(Address {
        base: memory.base.filter(|_| !is_ip).map(word).transpose()?,
        index: memory.index.map(|(register, shift)| Ok((word(register)?, shift))).transpose()?,
        displacement,
        short: probe.isa.bits() == 32,
    })
}

/// What goes into a program's map `__bpf_usdt_specs`: a `struct __bpf_usdt_spec` for each way in
/// which sites have their arguments. Its key is what the program has to get as cookie.
#[derive(Clone, Debug)]
pub struct Arguments {
    value_size: u32,
    max_entries: u32,
    specs: Vec<Vec<u8>>,
}

impl Arguments {
    /// For a map of this shape.
    #[must_use]
    pub fn new(value_size: u32, max_entries: u32) -> Arguments {
        Arguments { value_size, max_entries, specs: Vec::new() }
    }

    /// The key of a site's arguments.
    ///
    /// # Errors
    /// A clause for the user: they cannot be expressed, or there are too many.
    pub fn key(&mut self, probe: &Probe) -> Result<u32, String> {
        let size = self.value_size;
        let layout = SpecLayout::of_size(size as usize).ok_or_else(|| {
            format!("its map of arguments has values of {size} bytes, which no libbpf that is known has")
        })?;
        let bytes = probe.spec_bytes(layout, 0).map_err(|error| error.to_string())?;
        if let Some(known) = self.specs.iter().position(|spec| *spec == bytes) {
            return Ok(known as u32);
        }
        let key = self.specs.len() as u32;
        if key >= self.max_entries {
            return Err(format!(
                "there are more than {key} kinds of arguments: define BPF_USDT_MAX_SPEC_CNT before including usdt.bpf.h"
            ));
        }
        self.specs.push(bytes);
        Ok(key)
    }

    /// The values, by key.
    #[must_use]
    pub fn specs(&self) -> &[Vec<u8>] {
        &self.specs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_in_the_red_zone_was_read_as_memory_that_may_not_be_there() {
        let by = |base, offset| Some(Cfa::Register { base, offset });
        let (sp, bp) = (by(UnwindRule::SP, 24), by(UnwindRule::BP, 16));
        let cases = [
            // The frame of 24 bytes, the red zone, and both ends of them.
            (sp, Register::SP, -128, true),
            (sp, Register::SP, -129, false),
            (sp, Register::SP, -8, true),
            (sp, Register::SP, 16, true),
            (sp, Register::SP, 17, false),
            // The stack pointer is below the frame pointer, by an unknown distance.
            (bp, Register::FP, -20, true),
            (bp, Register::FP, -128, true),
            (bp, Register::FP, -129, false),
            (bp, Register::FP, 8, true),
            (bp, Register::FP, 9, false),
            (bp, Register::SP, -8, true),
            (bp, Register::SP, 0, false),
            // A register that holds anything.
            (sp, Register::FP, -8, false),
            (None, Register::FP, -8, false),
            (None, Register::SP, -16, true),
            (None, Register::SP, -4, false),
        ];
        for (cfa, base, displacement, expected) in cases {
            assert_eq!(in_frame(cfa, base, displacement, 8), expected, "{cfa:?}, {base:?}, {displacement}");
        }
    }
}
