//! The arguments of a probe as eBPF programs that include libbpf's `usdt.bpf.h` find them:
//! `struct __bpf_usdt_spec`, a value of their map `__bpf_usdt_specs`.

use super::{Argument, ArgumentError, ArgumentKind, Memory, Place, Probe, Register, Symbol};

/// The array in the structure has so many places (`BPF_USDT_MAX_ARG_CNT`).
const PLACES: usize = 12;

/// Which `struct __bpf_usdt_spec` a program was compiled with.
///
/// libbpf 1.7 put an index register into `struct __bpf_usdt_arg_spec`. A comment there says that
/// the other fields stay where they were, but to the compilers they do not: a bit field of a `u16`
/// may not cross its end, so the structure grew from 16 to 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecLayout {
    /// Before libbpf 1.7: no arguments with an index register.
    Plain,
    /// Since libbpf 1.7.
    Indexed,
}

impl SpecLayout {
    /// The layout whose structure has so many bytes: the value size of the program's map
    /// `__bpf_usdt_specs`.
    #[must_use]
    pub fn of_size(bytes: usize) -> Option<SpecLayout> {
        [SpecLayout::Plain, SpecLayout::Indexed].into_iter().find(|layout| layout.size() == bytes)
    }

    /// Size of the structure in bytes.
    #[must_use]
    pub fn size(self) -> usize {
        // The cookie, and the count with what aligns it.
        PLACES * self.stride() + 16
    }

    /// Size of `struct __bpf_usdt_arg_spec`.
    fn stride(self) -> usize {
        match self {
            SpecLayout::Plain => 16,
            SpecLayout::Indexed => 24,
        }
    }
}

/// Why a probe's arguments cannot be given to programs of libbpf. `argument` is the number of the
/// argument, from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// It is not known where they are.
    #[error("{0}")]
    Unknown(ArgumentError),
    /// There is no place for so many.
    #[error("{count} arguments: programs that use libbpf's usdt.bpf.h can have at most {PLACES}")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// Values have 1, 2, 4 or 8 bytes.
    #[error("argument {argument} has {size} bytes: eBPF programs can have arguments of 1, 2, 4 or 8")]
    Size {
        /// The number of the argument, counted from 0.
        argument: usize,
        /// Its size.
        size: u32,
    },
    /// eBPF has no floating-point numbers.
    #[error("argument {argument} is a floating-point number, which eBPF does not have")]
    Float {
        /// The number of the argument, counted from 0.
        argument: usize,
    },
    /// Programs see the first vector registers only.
    #[error("argument {argument} is in xmm{number}: programs see xmm0 to xmm7")]
    Vector {
        /// The number of the argument, counted from 0.
        argument: usize,
        /// The register.
        number: u8,
    },
    /// The address of the symbol is needed.
    #[error("argument {argument} is at `{name}`, and the object has no symbol of that name, or several")]
    Symbol {
        /// The number of the argument, counted from 0.
        argument: usize,
        /// The symbol.
        name: String,
    },
    /// Only `usdt.bpf.h` of libbpf 1.7 has index registers.
    #[error("argument {argument} has an index register: compile the program with libbpf 1.7 or later")]
    Index {
        /// The number of the argument, counted from 0.
        argument: usize,
    },
    /// The structure has no form for this address.
    #[error("argument {argument} is at an address that libbpf's usdt.bpf.h cannot express")]
    Address {
        /// The number of the argument, counted from 0.
        argument: usize,
    },
}

/// `struct __bpf_usdt_arg_spec`, except for what follows from the argument's type.
#[derive(Clone, Copy)]
struct Source {
    value: i64,
    arg_type: u8,
    register: u16,
    index: u16,
    shift: u8,
}

/// Values of `enum __bpf_usdt_arg_type`.
const CONST: u8 = 0;
const REG: u8 = 1;
const REG_DEREF: u8 = 2;
const SIB: u8 = 3;

impl Probe {
    /// The bytes of `struct __bpf_usdt_spec` for this probe of an x86 program. The `rip` of the
    /// context must be [`Probe::va`] at run time, as it is at every probe: arguments at symbols are
    /// found relative to it, so that the bytes are good wherever the object is loaded.
    pub fn spec_bytes(&self, layout: SpecLayout, cookie: u64) -> Result<Vec<u8>, SpecError> {
        let arguments = self.arguments.as_ref().map_err(|error| SpecError::Unknown(error.clone()))?;
        if arguments.len() > PLACES {
            return Err(SpecError::TooMany { count: arguments.len() });
        }
        let mut bytes = Vec::with_capacity(layout.size());
        for (number, argument) in arguments.iter().enumerate() {
            self.write(number, argument, layout, &mut bytes)?;
        }
        bytes.resize(PLACES * layout.stride(), 0);
        bytes.extend(cookie.to_le_bytes());
        bytes.extend((arguments.len() as u64).to_le_bytes());
        Ok(bytes)
    }

    fn write(&self, number: usize, arg: &Argument, layout: SpecLayout, out: &mut Vec<u8>) -> Result<(), SpecError> {
        let unused = match arg.size {
            1 | 2 | 4 | 8 => 64 - 8 * arg.size as u8,
            size => return Err(SpecError::Size { argument: number, size }),
        };
        let is_signed = match arg.kind {
            ArgumentKind::Unsigned => 0,
            ArgumentKind::Signed => 1,
            ArgumentKind::Float => return Err(SpecError::Float { argument: number }),
        };
        let none = Source { value: 0, arg_type: CONST, register: 0, index: 0, shift: 0 };
        let source = match &arg.place {
            Place::Constant(value) => Source { value: *value, ..none },
            Place::Register(register) => Source { arg_type: REG, register: register.offset(), ..none },
            Place::Vector(_) => return Err(SpecError::Float { argument: number }),
            Place::Memory(memory) => self.memory(number, memory)?,
        };
        out.extend(source.value.to_le_bytes());
        match layout {
            SpecLayout::Plain if source.arg_type == SIB => return Err(SpecError::Index { argument: number }),
            SpecLayout::Plain => out.extend(u32::from(source.arg_type).to_le_bytes()),
            SpecLayout::Indexed => {
                out.extend([source.arg_type, 0]);
                out.extend((source.index | u16::from(source.shift) << 12).to_le_bytes());
                out.extend([0, 0]);
            }
        }
        out.extend(source.register.to_le_bytes());
        out.extend([is_signed, unused]);
        out.resize(out.len().next_multiple_of(8), 0);
        Ok(())
    }

    fn memory(&self, number: usize, memory: &Memory) -> Result<Source, SpecError> {
        let unfit = || SpecError::Address { argument: number };
        let symbol = match &memory.symbol {
            None => None,
            Some(Symbol { va: Some(va), origin, .. }) => Some((*va, *origin)),
            Some(Symbol { name, .. }) => {
                return Err(SpecError::Symbol { argument: number, name: name.to_string() });
            }
        };
        let ip = Register::PC;
        let (base, value) = match (symbol, memory.base) {
            (None, base) => (base, memory.displacement),
            (Some((va, _)), None) => (Some(ip), va.since(self.va).wrapping_add(memory.displacement)),
            (Some((va, _)), Some(base)) if base == ip => {
                (Some(ip), va.since(self.va).wrapping_add(memory.displacement))
            }
            // A symbol as a number is an address only in programs that are not moved; in others no
            // compiler writes this.
            (Some((va, origin)), base) => (base, va.since(origin).wrapping_add(memory.displacement)),
        };
        let (base, index) = match (base, memory.index) {
            (Some(base), index) => (base, index),
            (None, Some((index, 0))) => (index, None),
            (None, _) => return Err(unfit()),
        };
        let is_whole = |register: Register| register == ip || u64::from(register.size) == self.isa.word();
        if !is_whole(base) || index.is_some_and(|(register, shift)| !is_whole(register) || shift > 3) {
            return Err(unfit());
        }
        Ok(match index {
            None => Source { value, arg_type: REG_DEREF, register: base.offset(), index: 0, shift: 0 },
            Some((index, shift)) => {
                Source { value, arg_type: SIB, register: base.offset(), index: index.offset(), shift }
            }
        })
    }
}
