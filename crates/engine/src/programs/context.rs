//! What programs read and change of the state at a hit.

use sidestep_bpf::verify::{Helper, Verified};
use sidestep_plan::thunk;
use sidestep_sys::arch::ISA;
use sidestep_wire::Regs;

use crate::api::Program;

/// Words of the context that are registers: not the cookie.
const REGISTERS: u64 = (1 << (size_of::<Regs>() / 8)) - 1;

/// Whether a program that runs at returns looks at the function's result, or may change it.
pub(crate) fn uses_result(program: &Program) -> bool {
    program.verified().is_none_or(|verified| context(verified).has_result(ISA))
}

/// The registers that a program may change.
pub(crate) fn changed_registers(verified: &Verified) -> thunk::Context {
    thunk::Context(verified.facts.context_written & REGISTERS)
}

/// What a program needs of the state at the entry of a function, where nothing is in the registers
/// that belong to what is between caller and callee.
pub(crate) fn context_at_entry(verified: &Verified) -> thunk::Context {
    let facts = &verified.facts;
    let words = facts.context | facts.context_written;
    match () {
        () if facts.context_is_data || verified.program.functions.len() > 1 => context(verified),
        () if context(verified) == thunk::Context(words) => thunk::Context(words),
        () => thunk::Context(words).union(thunk::Context::HELPERS_AT_ENTRY),
    }
}

/// A program whose context a helper looks at needs all of it but the flags, which no helper looks
/// at; so does one that passes its context to a function. One that reads it as it reads the
/// target's memory needs the flags, too.
pub(super) fn context(linked: &Verified) -> thunk::Context {
    let facts = &linked.facts;
    if facts.context_is_data {
        return thunk::Context::ALL;
    }
    let looked_at = linked.program.functions.len() > 1 || facts.calls(Helper::reads_registers);
    let all = if facts.context_escapes && looked_at { thunk::Context::HELPERS } else { thunk::Context::default() };
    // A word of which a part is written has to be there.
    all.union(thunk::Context(facts.context | facts.context_written))
}
