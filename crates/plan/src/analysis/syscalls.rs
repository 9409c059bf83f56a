//! Guards: a handler right before a system call, where all its registers are set.
//!
//! Compilers and C libraries set the number a few instructions before the `syscall`, in a straight
//! line: `mov $14,%eax`, or from a register (`mov %r15d,%eax`, `mov %rdi,%rax` in `syscall(3)`),
//! where only the handler can see which call it is. Musl's `clone` has
//! `xor %eax,%eax; mov $56,%al`, and Go, when it makes a child, takes the number from the stack.
//!
//! 32-bit code calls the kernel by `int $0x80` or through the vDSO, whose address glibc keeps in
//! the thread's block (`call *%gs:0x10`; sysdeps/unix/sysv/linux/i386/sysdep.h). `syscall(3)` has
//! the number from the stack. For six arguments there is a function, whose callers set the number;
//! it loads the last arguments from where `edi` points (`__libc_do_syscall`; libc-do-syscall.S
//! beside it).

use memchr::memmem;
use sidestep_isa::x86::emit::Reg;
use sidestep_isa::x86::{self, Flow, decode};
use sidestep_isa::{Isa, Va};

use crate::object::Bytes;

/// Most instructions between the number and the call.
const WINDOW: usize = 12;

/// What makes a system call.
fn calls(isa: Isa) -> &'static [&'static [u8]] {
    match isa {
        // int $0x80; call *%gs:0x10; sysenter
        Isa::X86 => &[&[0xcd, 0x80], &[0x65, 0xff, 0x15, 0x10, 0, 0, 0], &[0x0f, 0x34]],
        // syscall
        Isa::X64 => &[&[0x0f, 0x05]],
    }
}

pub(crate) fn is_call(isa: Isa, bytes: &[u8]) -> bool {
    calls(isa).iter().any(|call| bytes.starts_with(call))
}

/// Most bytes from the `mov` of the number to the call.
const REACH: usize = 7 + WINDOW * x86::decode::INSN_MAX;

/// Where a system call gets its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyscallSite {
    /// Link-time address of the `mov` to `eax`.
    pub mov: Va,
    /// Link-time address of the `syscall`.
    pub syscall: Va,
    /// The number, if it is in the `mov`.
    pub number: Option<u32>,
}

/// All places in the text of an object that make, or may make, one of these calls.
#[must_use]
pub fn find(isa: Isa, text: &[Bytes<'_>], numbers: &[u32]) -> Vec<SyscallSite> {
    let mut sites = Vec::new();
    for section in text {
        // Calls are rare: only what lies closely before one is looked at.
        let of_kind = |call: &&'static [u8]| memmem::find_iter(section.data, *call);
        let mut calls: Vec<usize> = calls(isa).iter().flat_map(of_kind).collect();
        calls.sort_unstable();
        let mut next = 0;
        for at in calls.into_iter().flat_map(|call| {
            let from = next.max(call.saturating_sub(REACH));
            next = call;
            from..call
        }) {
            let bytes = &section.data[at..];
            // That it is an instruction is seen by the plan: the byte before it may be a prefix, or
            // the end of another one.
            let Some((len, number)) = sets_number(isa, bytes) else { continue };
            if number.is_some_and(|n| !numbers.contains(&n)) {
                continue;
            }
            let mov = Va(section.va.0 + at as u64);
            if let Some(syscall) = call_behind(isa, &bytes[len..], Va(mov.0 + len as u64)) {
                sites.push(SyscallSite { mov, syscall, number });
            }
        }
    }
    sites
}

/// Length and number of a `mov` to `eax` or `rax`, or of the first that stands for it.
fn sets_number(isa: Isa, bytes: &[u8]) -> Option<(usize, Option<u32>)> {
    let imm = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let to_rax = |modrm: u8| modrm & 0xc7 == 0xc0;
    match *bytes {
        [0xb8, ..] => Some((5, Some(imm(1)?))),
        // xor %eax,%eax; mov $N,%al
        [0x31, 0xc0, 0xb0, number, ..] => Some((4, Some(number.into()))),
        // mov N(%edi),%ebp; mov N(%edi),%edi
        [0x8b, 0x6f, _, 0x8b, 0x7f, _, ref call @ ..] | [0x8b, 0x6f, _, 0x8b, 0x3f, ref call @ ..]
            if isa == Isa::X86 && is_call(isa, call) =>
        {
            Some((3, None))
        }
        [0x8b, modrm, ..] if isa == Isa::X86 && modrm & 0x38 == 0 => {
            Some((decode(isa, bytes, Va(0)).ok()?.len(), None))
        }
        // mov N(%rsp),%rax
        [0x48, 0x8b, 0x44, 0x24, _, ..] if isa == Isa::X64 => Some((5, None)),
        [0x48, 0xc7, 0xc0, ..] if isa == Isa::X64 => Some((7, Some(imm(3)?))),
        [0x44 | 0x48 | 0x4c, 0x89, modrm, ..] if isa == Isa::X64 && to_rax(modrm) => Some((3, None)),
        [0x89, modrm, ..] if to_rax(modrm) => Some((2, None)),
        _ => None,
    }
}

fn call_behind(isa: Isa, mut bytes: &[u8], mut at: Va) -> Option<Va> {
    for _ in 0..WINDOW {
        let insn = decode(isa, bytes, at).ok()?;
        match insn.flow() {
            Flow::Syscall | Flow::Interrupt | Flow::CallIndirect => return is_call(isa, bytes).then_some(at),
            Flow::Next if insn.usage().writes & Reg::Rax.bit() == 0 => {}
            _ => return None,
        }
        bytes = &bytes[insn.len()..];
        at = insn.next();
    }
    None
}
