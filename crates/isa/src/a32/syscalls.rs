//! System calls in code ([`crate::syscalls`]).
//!
//! The number is in r7 (Linux, syscall(2), "Architecture calling conventions").

use super::class::Class;
use super::decode;
use crate::insn::RegisterSet;
use crate::{Isa, Va};

/// `svc #0`
pub(crate) fn calls(isa: Isa) -> &'static [&'static [u8]] {
    match isa {
        Isa::T32 => &[&[0x00, 0xdf]],
        _ => &[&[0x00, 0x00, 0x00, 0xef]],
    }
}

/// r7.
pub(crate) const NUMBER: RegisterSet = 1 << 7;

/// See [`crate::syscalls::sets_number`].
pub(crate) fn sets_number(isa: Isa, bytes: &[u8]) -> Option<(usize, Option<u32>)> {
    let insn = decode(isa, bytes, Va(0)).ok()?;
    if insn.usage().kills != NUMBER {
        return None;
    }
    let op = insn.plain()?;
    match op.class {
        Class::Constant => Some((insn.len(), op.offset().and_then(|number| u32::try_from(number).ok()))),
        Class::Load | Class::Compute => Some((insn.len(), None)),
        _ => None,
    }
}
