//! What files say about an instruction set: its number in ELF headers, its relocations, the numbers
//! of its registers in DWARF, its code that nothing describes. The names here are the face of all
//! instruction sets; each has a file.

mod arm;
pub(crate) mod operand;
mod x86;

use std::ops::Range;

use gimli::Register;
use object::elf::ELFCLASS64;
use sidestep_isa::{Isa, Len, Va};

use self::operand::Syntax;
pub(crate) use self::x86::{FP, PC, SP};
use crate::reloc::Kind;

/// An instruction set, as its files describe it.
pub(crate) struct Arch {
    pub isa: Isa,
    /// Class and machine of its ELF headers.
    class: u8,
    machine: u16,
    /// What a relocation of this number does.
    pub relocation: fn(u32) -> Kind,
    /// Code to which signal handlers return, where libraries do not describe it: all of its
    /// instructions, which end with a system call.
    pub restorers: &'static [&'static [u8]],
    /// Bytes of a place that XRay changes, by its kind; none: XRay is not there.
    pub sled: Option<fn(u8) -> Len>,
    /// How assemblers write the operands of static probes.
    pub syntax: Syntax,
    /// Position-independent code names everything by its distance from `_GLOBAL_OFFSET_TABLE_`.
    pub names_by_table: bool,
    /// The type of the section that says where exceptions land, beside `.eh_frame`. Types from
    /// `SHT_LOPROC` on mean something else with each instruction set.
    pub exceptions: Option<u32>,
    /// How far below the canonical frame address a call leaves the stack pointer, in bytes. 0: the
    /// return address is in a register, and not on the stack.
    pub entered_at: i64,
    /// Which extensions of DWARF its unwind information has.
    pub vendor: gimli::Vendor,
    /// Its registers in DWARF.
    pub registers: Registers,
}

/// Registers by their numbers in DWARF.
pub(crate) struct Registers {
    pub sp: Register,
    pub bp: Register,
    /// Another one that unwind information restores frames by; where calls leave the return address
    /// in a register, that one.
    pub bx: Register,
    /// The one that has the return address, as unwind information sees it.
    pub ip: Register,
    /// Places of registers in `struct pt_regs`, by their DWARF numbers.
    pub places: &'static [u8],
    /// Those that functions take numbers and addresses in, first argument first.
    pub arguments: &'static [u16],
    /// The same of floating-point numbers.
    pub floats: Range<u16>,
}

const ALL: [&Arch; 5] = [&x86::ARCH_64, &x86::ARCH_32, &arm::ARCH_A64, &arm::ARCH_T32, &arm::ARCH_A32];

/// Of an instruction set.
pub(crate) fn of(isa: Isa) -> &'static Arch {
    ALL.into_iter().find(|arch| arch.isa == isa).expect("files of each instruction set are described")
}

/// The first byte of code that an address means: on arm32, bit 0 says that it is T32 (ELF for the
/// Arm Architecture, 5.5.3).
pub(crate) fn code(isa: Isa, va: Va) -> Va {
    if isa == Isa::T32 || isa == Isa::A32 { Va(va.0 & !1) } else { va }
}

/// Whether an address of a function means code of another instruction set than most of its file.
pub(crate) fn is_foreign(isa: Isa, function: Va) -> bool {
    match isa {
        Isa::T32 => function.0 & 1 == 0,
        Isa::A32 => function.0 & 1 == 1,
        _ => false,
    }
}

/// Whether files of this class and machine may have either of two instruction sets.
pub(crate) fn has_two(isa: Isa) -> bool {
    isa == Isa::T32
}

/// The instruction set of a file that may have two, by the addresses of its functions.
pub(crate) fn most(isa: Isa, functions: impl Iterator<Item = Va>) -> Isa {
    let (mut here, mut there) = (0_usize, 0_usize);
    functions.for_each(|va| if is_foreign(isa, va) { there += 1 } else { here += 1 });
    if there > here { Isa::A32 } else { isa }
}

/// Whether a symbol says what is code and what is data (ELF for the Arm Architecture, 5.5.5).
pub(crate) fn is_mapping(isa: Isa, name: &[u8]) -> bool {
    let arm = isa == Isa::T32 || isa == Isa::A32;
    arm && matches!(name, [b'$', b'a' | b't' | b'd', rest @ ..] if rest.first().is_none_or(|byte| *byte == b'.'))
}

/// The instruction set of the files with this class and machine.
pub(crate) fn isa_of(class: u8, machine: u16) -> Option<Isa> {
    ALL.iter().find(|arch| (arch.class, arch.machine) == (class, machine)).map(|arch| arch.isa)
}

/// Whether files of an instruction set have the class with addresses of 64 bits.
pub(crate) fn is_64(isa: Isa) -> bool {
    of(isa).class == ELFCLASS64
}
