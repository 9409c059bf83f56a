//! Go functions: the stack check at their start, and where their calls can be remembered.
//!
//! A function that finds too little stack calls `runtime.morestack`, which copies the stack and
//! starts the function again from its first instruction. So a handler must run behind the check, or
//! it would run twice. The compiler marks the check as not preemptible
//! (cmd/internal/obj/x86/obj6.go, stacksplit: `StartUnsafePoint`), which is why it may be
//! displaced.

use sidestep_isa::Flow;
use sidestep_isa::Va;
use sidestep_isa::go::{loads_goroutine, stack_check};

use crate::analysis::index::Index;
use crate::reason::NotPaired;

/// How a call of a Go function is known until it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoCall {
    /// By the place of its return address: it calls nothing, so its stack stays.
    BySlot,
    /// By its goroutine, which is in `r14` at the entry and at each exit, and the distance of the
    /// return address from the end of the stack.
    ByGoroutine,
}

/// How a call of the Go function that starts at `entry` is known until it ends.
///
/// # Errors
/// Nothing tells the calls apart for certain.
pub fn go_call(index: &Index<'_>, entry: Va) -> Result<GoCall, NotPaired> {
    let code = index.code().text_from(entry).unwrap_or_default();
    if stack_check(index.code().isa, code).is_some() {
        // Compiled code has its goroutine in `r14` all the time (cmd/compile/abi-internal.md). What
        // loads it is assembly, which may use the register for something else.
        return if loads_goroutine(index.code().isa, code) {
            Err(NotPaired::Assembly)
        } else {
            Ok(GoCall::ByGoroutine)
        };
    }
    let stretch = index.stretch(entry).map(|(_, stretch)| stretch).filter(|stretch| stretch.start == entry);
    let insns = stretch.ok_or(NotPaired::NoEnd)?.insns().map(|va| index.code().insn_at(va));
    let calls = |flow| matches!(flow, Flow::Call(_) | Flow::CallIndirect);
    match insns.into_iter().all(|insn| insn.is_some_and(|insn| !calls(insn.flow()))) {
        true => Ok(GoCall::BySlot),
        false => Err(NotPaired::MovingStack),
    }
}
