//! What Go's compiler and assembler write at the start of functions.

use crate::{Isa, a64, x86};

/// Length in bytes and number of instructions of the stack check at the start of `code`, if there
/// is one.
///
/// A function that finds too little stack calls `runtime.morestack`, which copies the stack and
/// starts the function again from its first instruction. The compiler marks the check as not
/// preemptible (`stacksplit` of cmd/internal/obj: `StartUnsafePoint`).
#[must_use]
pub fn stack_check(isa: Isa, code: &[u8]) -> Option<(usize, usize)> {
    match isa {
        Isa::X64 => x86::go::stack_check(code),
        Isa::X86 | Isa::A32 | Isa::T32 => None,
        Isa::A64 => a64::go::stack_check(code),
        #[cfg(feature = "toy")]
        Isa::Toy => None,
    }
}

/// Whether the code of a function begins by loading its goroutine: assembly does that. Compiled
/// code has the goroutine in a register all the time (cmd/compile/abi-internal.md), and on A64
/// assembly has it there, too.
#[must_use]
pub fn loads_goroutine(isa: Isa, code: &[u8]) -> bool {
    isa == Isa::X64 && x86::go::loads_goroutine(code)
}
