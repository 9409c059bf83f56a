//! Guards: a handler right before a system call, where all its registers are set.
//!
//! Which instructions make a call and set its number is what
//! [`sidestep_isa::syscalls`] knows. Where the number comes from a register, only the handler can
//! see which call it is.

use memchr::memmem;
use sidestep_isa::syscalls::{calls, is_call, number_register, sets_number};
use sidestep_isa::{Flow, INSN_MAX, Isa, Va, decode};

use crate::object::Bytes;

/// Most instructions between the number and the call.
const WINDOW: usize = 12;

/// Most bytes from the `mov` of the number to the call.
const REACH: usize = 7 + WINDOW * INSN_MAX;

/// Where a system call gets its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyscallSite {
    /// Link-time address of the instruction that sets the number.
    pub mov: Va,
    /// Link-time address of the call.
    pub syscall: Va,
    /// The number, if it is in that instruction.
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

fn call_behind(isa: Isa, mut bytes: &[u8], mut at: Va) -> Option<Va> {
    for _ in 0..WINDOW {
        let insn = decode(isa, bytes, at).ok()?;
        match insn.flow() {
            Flow::Syscall | Flow::Interrupt | Flow::CallIndirect => return is_call(isa, bytes).then_some(at),
            Flow::Next if insn.usage().writes & number_register(isa) == 0 => {}
            _ => return None,
        }
        bytes = &bytes[insn.len()..];
        at = insn.next();
    }
    None
}
