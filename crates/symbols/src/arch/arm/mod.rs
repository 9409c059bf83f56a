//! Files of arm64 and arm32.

pub(super) mod operand;

use gimli::Register;
use object::elf;
use sidestep_isa::{Isa, Len};

use super::operand::Syntax;
use super::{Arch, Registers};
use crate::reloc::Kind;

/// arm64 (ELF for the Arm 64-bit Architecture, DWARF for the Arm 64-bit Architecture).
pub(super) const ARCH_A64: Arch = Arch {
    isa: Isa::A64,
    class: elf::ELFCLASS64,
    machine: elf::EM_AARCH64,
    relocation: |kind| match kind {
        elf::R_AARCH64_RELATIVE => Kind::Relative,
        elf::R_AARCH64_IRELATIVE => Kind::Irelative,
        elf::R_AARCH64_ABS64 => Kind::Absolute,
        elf::R_AARCH64_JUMP_SLOT | elf::R_AARCH64_GLOB_DAT => Kind::Import,
        _ => Kind::Other,
    },
    // `mov x8,#139`, `svc #0`.
    restorers: &[&[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]],
    sled: Some(sled),
    syntax: Syntax::A64,
    names_by_table: false,
    exceptions: None,
    entered_at: 0,
    vendor: gimli::Vendor::AArch64,
    registers: Registers {
        sp: Register(31),
        bp: Register(29),
        bx: Register(30),
        ip: Register(30),
        // As in `struct user_pt_regs`.
        places: &[
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
            29, 30, 31,
        ],
        arguments: &[0, 1, 2, 3, 4, 5, 6, 7],
        floats: 64..72,
    },
};

/// arm32 whose functions are T32 (ELF for the Arm Architecture, DWARF for the Arm Architecture):
/// what Debian's armhf is compiled to.
pub(super) const ARCH_T32: Arch = Arch {
    isa: Isa::T32,
    class: elf::ELFCLASS32,
    machine: elf::EM_ARM,
    relocation: |kind| match kind {
        elf::R_ARM_RELATIVE => Kind::Relative,
        elf::R_ARM_IRELATIVE => Kind::Irelative,
        elf::R_ARM_ABS32 => Kind::Absolute,
        elf::R_ARM_JUMP_SLOT | elf::R_ARM_GLOB_DAT => Kind::Import,
        _ => Kind::Other,
    },
    // `mov r7, #173`, `svc #0`.
    restorers: &[&[0xad, 0x27, 0x00, 0xdf]],
    sled: Some(sled),
    syntax: Syntax::A32,
    names_by_table: false,
    exceptions: Some(elf::SHT_ARM_EXIDX),
    entered_at: 0,
    vendor: gimli::Vendor::Default,
    registers: Registers {
        sp: Register(13),
        bp: Register(7),
        bx: Register(14),
        ip: Register(14),
        // As in `struct pt_regs`.
        places: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
        arguments: &[0, 1, 2, 3],
        // Whether floating-point numbers are in registers is up to the variant of the ABI.
        floats: 0..0,
    },
};

/// arm32 whose functions are A32.
pub(super) const ARCH_A32: Arch = Arch {
    isa: Isa::A32,
    restorers: &[&[0xad, 0x70, 0xa0, 0xe3, 0x00, 0x00, 0x00, 0xef]],
    registers: Registers { bp: Register(11), ..ARCH_T32.registers },
    ..ARCH_T32
};

/// Bytes of a place of any kind: a branch and seven nops (compiler-rt/lib/xray/xray_AArch64.cpp).
fn sled(_kind: u8) -> Len {
    Len(32)
}
