//! System calls in x86 code ([`crate::syscalls`]).
//!
//! Compilers and C libraries set the number a few instructions before the `syscall`, in a straight
//! line: `mov $14,%eax`, or from a register (`mov %r15d,%eax`, `mov %rdi,%rax` in `syscall(3)`).
//! Musl's `clone` has `xor %eax,%eax; mov $56,%al`, and Go, when it makes a child, takes the number
//! from the stack.
//!
//! 32-bit code calls the kernel by `int $0x80` or through the vDSO, whose address glibc keeps in
//! the thread's block (`call *%gs:0x10`; sysdeps/unix/sysv/linux/i386/sysdep.h). `syscall(3)` has
//! the number from the stack. For six arguments there is a function, whose callers set the number;
//! it loads the last arguments from where `edi` points (`__libc_do_syscall`; libc-do-syscall.S
//! beside it).

use super::decode;
use crate::{Isa, Va};

/// See [`crate::syscalls::calls`].
pub(crate) fn calls(isa: Isa) -> &'static [&'static [u8]] {
    match isa {
        // syscall
        Isa::X64 => &[&[0x0f, 0x05]],
        // int $0x80; call *%gs:0x10; sysenter
        _ => &[&[0xcd, 0x80], &[0x65, 0xff, 0x15, 0x10, 0, 0, 0], &[0x0f, 0x34]],
    }
}

/// See [`crate::syscalls::sets_number`].
pub(crate) fn sets_number(isa: Isa, bytes: &[u8]) -> Option<(usize, Option<u32>)> {
    let imm = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let to_rax = |modrm: u8| modrm & 0xc7 == 0xc0;
    let is_call = |bytes: &[u8]| crate::syscalls::is_call(isa, bytes);
    match *bytes {
        [0xb8, ..] => Some((5, Some(imm(1)?))),
        // xor %eax,%eax; mov $N,%al
        [0x31, 0xc0, 0xb0, number, ..] => Some((4, Some(number.into()))),
        // mov N(%edi),%ebp; mov N(%edi),%edi
        [0x8b, 0x6f, _, 0x8b, 0x7f, _, ref call @ ..] | [0x8b, 0x6f, _, 0x8b, 0x3f, ref call @ ..]
            if isa == Isa::X86 && is_call(call) =>
        {
            Some((3, None))
        }
        [0x8b, modrm, ..] if isa == Isa::X86 && modrm & 0x38 == 0 => {
            Some((decode::decode(isa, bytes, Va(0)).ok()?.len(), None))
        }
        // mov N(%rsp),%rax
        [0x48, 0x8b, 0x44, 0x24, _, ..] if isa == Isa::X64 => Some((5, None)),
        [0x48, 0xc7, 0xc0, ..] if isa == Isa::X64 => Some((7, Some(imm(3)?))),
        [0x44 | 0x48 | 0x4c, 0x89, modrm, ..] if isa == Isa::X64 && to_rax(modrm) => Some((3, None)),
        [0x89, modrm, ..] if to_rax(modrm) => Some((2, None)),
        _ => None,
    }
}
