//! Files of x86-64 and x86-32.

pub(super) mod operand;

use gimli::Register;
use object::elf;
use sidestep_isa::{Isa, Len};

use super::operand::Syntax;
use super::{Arch, Registers};
use crate::reloc::Kind;
use crate::usdt;

/// x86-64 (AMD64 psABI).
pub(super) const ARCH_64: Arch = Arch {
    isa: Isa::X64,
    class: elf::ELFCLASS64,
    machine: elf::EM_X86_64,
    relocation: |kind| match kind {
        elf::R_X86_64_RELATIVE => Kind::Relative,
        elf::R_X86_64_IRELATIVE => Kind::Irelative,
        elf::R_X86_64_64 => Kind::Absolute,
        elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT => Kind::Import,
        _ => Kind::Other,
    },
    // `mov $15,%rax` or `%eax`, `syscall`: musl, Go.
    restorers: &[&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05], &[0xb8, 15, 0, 0, 0, 0x0f, 0x05]],
    sled: Some(sled),
    syntax: Syntax::X64,
    names_by_table: false,
    exceptions: None,
    entered_at: 8,
    vendor: gimli::Vendor::Default,
    registers: Registers {
        sp: Register(7),
        bp: Register(6),
        bx: Register(3),
        ip: Register(16),
        places: &[10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0],
        // rdi, rsi, rdx, rcx, r8, r9; xmm0 to xmm7.
        arguments: &[5, 4, 1, 2, 8, 9],
        floats: 17..25,
    },
};

/// x86-32 (i386 psABI).
pub(super) const ARCH_32: Arch = Arch {
    isa: Isa::X86,
    class: elf::ELFCLASS32,
    machine: elf::EM_386,
    relocation: |kind| match kind {
        elf::R_386_RELATIVE => Kind::Relative,
        elf::R_386_IRELATIVE => Kind::Irelative,
        elf::R_386_32 => Kind::Absolute,
        elf::R_386_JMP_SLOT | elf::R_386_GLOB_DAT => Kind::Import,
        _ => Kind::Other,
    },
    restorers: &[],
    sled: None,
    syntax: Syntax::X86,
    names_by_table: true,
    exceptions: None,
    entered_at: 4,
    vendor: gimli::Vendor::Default,
    registers: Registers {
        sp: Register(4),
        bp: Register(5),
        bx: Register(3),
        ip: Register(8),
        places: &[10, 11, 12, 5, 19, 4, 13, 14],
        arguments: &[],
        floats: 0..0,
    },
};

/// Bytes of a place by its kind: of the entry, an exit and a tail call of a function, and of an
/// entry whose arguments are recorded (compiler-rt/lib/xray/xray_x86_64.cpp). Of events only a jump
/// over them is changed.
fn sled(kind: u8) -> Len {
    Len(if kind <= 3 { 11 } else { 2 })
}

/// The stack pointer of x86-64, in `struct pt_regs`.
pub(crate) const SP: usdt::Register = usdt::Register { word: 19, size: 8, shift: 0 };
/// The frame pointer.
pub(crate) const FP: usdt::Register = usdt::Register { word: 4, size: 8, shift: 0 };
/// The program counter.
pub(crate) const PC: usdt::Register = usdt::Register { word: 16, size: 8, shift: 0 };
