//! What files say about an instruction set: its number in ELF headers, its relocations, the numbers
//! of its registers in DWARF, its code that nothing describes. The names here are the face of all
//! instruction sets; each has a file.

mod arm;
pub(crate) mod operand;
mod x86;

use std::ops::Range;

use gimli::Register;
use object::elf::ELFCLASS64;
use sidestep_isa::{Isa, Len};

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

const ALL: [&Arch; 3] = [&x86::ARCH_64, &x86::ARCH_32, &arm::ARCH_A64];

/// Of an instruction set.
pub(crate) fn of(isa: Isa) -> &'static Arch {
    ALL.into_iter().find(|arch| arch.isa == isa).expect("files of each instruction set are described")
}

/// The instruction set of the files with this class and machine.
pub(crate) fn isa_of(class: u8, machine: u16) -> Option<Isa> {
    ALL.iter().find(|arch| (arch.class, arch.machine) == (class, machine)).map(|arch| arch.isa)
}

/// Whether files of an instruction set have the class with addresses of 64 bits.
pub(crate) fn is_64(isa: Isa) -> bool {
    of(isa).class == ELFCLASS64
}
