//! System calls in A64 code ([`crate::syscalls`]).
//!
//! The number is in x8 (Linux, syscall(2), "Architecture calling conventions"). Compilers and C
//! libraries set it in a straight line: `mov x8, #172`, `mov w8, #172`, or from a register
//! (`mov w8, w0` in `syscall(3)`). Go's assembly may load it from the stack.

use super::class::Class;
use super::{WORD, decode};
use crate::Va;
use crate::insn::RegisterSet;

/// `svc #0`
pub(crate) const CALLS: &[&[u8]] = &[&[0x01, 0x00, 0x00, 0xd4]];

/// x8.
pub(crate) const NUMBER: RegisterSet = 1 << 8;

/// See [`crate::syscalls::sets_number`].
pub(crate) fn sets_number(bytes: &[u8]) -> Option<(usize, Option<u32>)> {
    let insn = decode(bytes, Va(0)).ok()?;
    if insn.usage().kills != NUMBER {
        return None;
    }
    match insn.class() {
        // movz without a shift.
        Class::MoveWide if insn.bits(30, 29) == 2 && insn.bits(22, 21) == 0 => Some((WORD, Some(insn.bits(20, 5)))),
        // A register, also one that is extended; memory.
        Class::Logic | Class::Bitfield | Class::Single | Class::LoadLiteral => Some((WORD, None)),
        _ => None,
    }
}
