//! The jump at a site, and which instructions may replace each other under running threads.
//!
//! A site is one aligned word, so a jump is one `b`. It reaches ±128 MiB.
//!
//! Threads that run an instruction while another one is written in its place run one of the two if
//! both are of a short list: `b`, `bl`, `brk`, `hvc`, `isb`, `nop`, `smc`, `svc` (section B2.2.5,
//! "Concurrent modification and execution of instructions"). `b.cond` and `bc.cond` are not on it.
//! With any other instruction on either side the result is not defined: then no thread may be at
//! the word while it is written, so all threads have to be stopped. A breakpoint that is written
//! first does not help, since the same rule holds for the write of the breakpoint.
//!
//! After a write, the data cache is cleaned, the instruction cache is invalidated, and each thread
//! has to synchronise its context before it is sure to run the new word (section B2.7.4.2).
//!
//! Where pages are guarded, an indirect branch may lead to `brk`, but not to `b` (section C6.2,
//! "BTI"): a jump goes behind a landing pad.

use super::WORD;
use super::class::{Class, classify};
use super::emit::{b, brk};
use crate::Va;
use crate::patch::OutOfReach;

/// The number of the breakpoint at sites. The kernel has 4 to 6 for its own probes, and others for
/// itself (arch/arm64/include/asm/brk-imm.h); debuggers write 0, compilers 1 and 1000.
pub const NUMBER: u16 = 0x51de;

/// The breakpoint that is written at sites.
pub const BREAKPOINT: [u8; WORD] = brk(NUMBER).to_le_bytes();

/// The jump that is written at a site.
///
/// # Errors
/// It is farther than ±128 MiB.
pub fn jump(site: Va, to: Va) -> Result<[u8; WORD], OutOfReach> {
    b(site, to).map(u32::to_le_bytes).map_err(|_| OutOfReach { from: site, to })
}

/// Where the jump at the start of some bytes leads, if it is one of [`jump`].
#[must_use]
pub fn jump_target(bytes: &[u8], at: Va) -> Option<Va> {
    let insn = super::decode(bytes, at).ok()?;
    insn.branch_target().filter(|_| insn.class() == Class::Branch)
}

/// See [`crate::patch::is_one_write`].
#[must_use]
pub fn is_one_write(old: &[u8], new: &[u8]) -> bool {
    let word = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_le_bytes);
    match (word(old), word(new)) {
        (Some(old), Some(new)) => old == new || is_replaceable(old) && is_replaceable(new),
        _ => false,
    }
}

/// `b`, `bl`, `brk`, `hvc`, `isb`, `nop`, `smc`, `svc`.
#[must_use]
pub fn is_replaceable(word: u32) -> bool {
    match classify(word) {
        Some(Class::Branch | Class::BranchLink | Class::Breakpoint) => true,
        Some(Class::SupervisorCall | Class::InstructionBarrier) => true,
        // Not dcps1 to dcps3.
        Some(Class::HigherCall) => word & 0x00e0_0000 == 0,
        Some(Class::Hint) => word == super::emit::nop(),
        _ => false,
    }
}
