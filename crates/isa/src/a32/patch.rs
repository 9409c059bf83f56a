//! The jump at a site, and which instructions may replace each other under running threads.
//!
//! A32 has `b`, which reaches ±32 MiB. T32 has `b.w`, which reaches ±16 MiB. `ldr pc, =target`
//! reaches everything with 8 to 10 bytes; no site has it yet.
//!
//! Threads that run an instruction while another one is written in its place run one of the two if
//! both are of a short list (section A3.5.4, "Concurrent modification and execution of
//! instructions"): `b`, `bl`, `nop`, `bkpt`, `svc`, `hvc` and `smc` of A32, and `b`, `nop`, `bkpt`
//! and `svc` of T32 in 16 bits. What the section says of one half of a `bl` of T32 is not used.
//! With any other instruction on either side the result is not defined: then no thread may be at
//! the bytes while they are written, so all threads have to be stopped.
//!
//! After a write, the data cache is cleaned, the instruction cache is invalidated, and each thread
//! has to synchronise its context before it is sure to run the new instruction (section A3.5.4).

use super::class::Class;
use super::decode::decode;
use super::emit::b;
use crate::patch::OutOfReach;
use crate::{Isa, Va};

/// The breakpoint of A32: `udf #16`, for which the kernel sends SIGTRAP
/// (arch/arm/kernel/ptrace.c). `bkpt` belongs to debuggers in hardware.
pub const BREAKPOINT_A32: [u8; 4] = 0xe7f0_01f0_u32.to_le_bytes();
/// The breakpoint of T32: `udf #1`. It has 16 bits, so it fits everywhere.
pub const BREAKPOINT_T32: [u8; 2] = 0xde01_u16.to_le_bytes();

/// The jump that is written at a site.
///
/// # Errors
/// It is too far.
pub fn jump(isa: Isa, site: Va, to: Va) -> Result<[u8; 4], OutOfReach> {
    let thumb = isa == Isa::T32;
    let word = b(thumb, site, to).ok_or(OutOfReach { from: site, to })?;
    Ok(if thumb { word.rotate_left(16) } else { word }.to_le_bytes())
}

/// Where the jump at the start of some bytes leads, if it is one of [`jump`].
#[must_use]
pub fn jump_target(isa: Isa, bytes: &[u8], at: Va) -> Option<Va> {
    let insn = decode(isa, bytes, at).ok()?;
    let op = insn.plain()?;
    op.target(at).filter(|_| op.class == Class::Branch && op.len == 4)
}

/// See [`crate::patch::is_one_write`].
#[must_use]
pub fn is_one_write(isa: Isa, old: &[u8], new: &[u8]) -> bool {
    old.len() == new.len() && (old == new || is_replaceable(isa, old) && is_replaceable(isa, new))
}

/// Whether all of some bytes are an instruction of the list.
fn is_replaceable(isa: Isa, bytes: &[u8]) -> bool {
    let Ok(insn) = decode(isa, bytes, Va(0)) else { return false };
    let Some(op) = insn.single() else { return false };
    let listed = match op.class {
        Class::Branch | Class::Breakpoint | Class::SupervisorCall => true,
        Class::BranchLink => isa == Isa::A32,
        Class::Hint => op.hint() == 0,
        _ => false,
    };
    listed && insn.len() == bytes.len() && (isa == Isa::A32 || bytes.len() == 2)
}
