//! Go functions: the stack check at their start, and where their calls can be remembered.
//!
//! A function that finds too little stack calls `runtime.morestack`, which copies the stack and
//! starts the function again from its first instruction. So a handler must run behind the check, or
//! it would run twice. The compiler marks the check as not preemptible
//! (cmd/internal/obj/x86/obj6.go, stacksplit: `StartUnsafePoint`), which is why it may be
//! displaced.

use sidestep_isa::Va;
use sidestep_isa::x86::Flow;

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
    if stack_check(code).is_some() {
        // Compiled code has its goroutine in `r14` all the time (cmd/compile/abi-internal.md). What
        // loads it is assembly, which may use the register for something else.
        let loads = code.starts_with(&LOAD_R14) || code.starts_with(&LOAD_RCX);
        return if loads { Err(NotPaired::Assembly) } else { Ok(GoCall::ByGoroutine) };
    }
    let stretch = index.stretch(entry).map(|(_, stretch)| stretch).filter(|stretch| stretch.start == entry);
    let insns = stretch.ok_or(NotPaired::NoEnd)?.insns().map(|va| index.code().insn_at(va));
    let calls = |flow| matches!(flow, Flow::Call(_) | Flow::CallIndirect);
    match insns.into_iter().all(|insn| insn.is_some_and(|insn| !calls(insn.flow()))) {
        true => Ok(GoCall::BySlot),
        false => Err(NotPaired::MovingStack),
    }
}

/// `mov %fs:-8,%r14`, and the same to `rcx`.
const LOAD_R14: [u8; 9] = [0x64, 0x4c, 0x8b, 0x34, 0x25, 0xf8, 0xff, 0xff, 0xff];
const LOAD_RCX: [u8; 9] = [0x64, 0x48, 0x8b, 0x0c, 0x25, 0xf8, 0xff, 0xff, 0xff];

/// Length in bytes and number of instructions of the stack check at the start of `code`, if there
/// is one:
///
/// ```text
/// [mov %fs:-8,%r14 or %rcx]                              assembly functions: g is in r14 otherwise
/// [lea -N(%rsp),%r12 | mov %rsp,%r12; sub $N,%r12; jb …]   large frames
/// cmp 0x10(g),%rsp or %r12                               stackguard0; 0x18 = stackguard1
/// jbe morestack
/// ```
pub(crate) fn stack_check(code: &[u8]) -> Option<(usize, usize)> {
    let mut at = Cursor { code, len: 0, insns: 0 };
    at.eat(&LOAD_R14, 0);
    let in_rcx = at.eat(&LOAD_RCX, 0);
    let small = at.eat(&[0x4c, 0x8d, 0x64, 0x24], 1) || at.eat(&[0x4c, 0x8d, 0xa4, 0x24], 4);
    let huge = !small && at.eat(&[0x49, 0x89, 0xe4], 0);
    if huge {
        let sub = at.eat(&[0x49, 0x81, 0xec], 4) || at.eat(&[0x49, 0x83, 0xec], 1);
        let borrow = at.eat(&[0x72], 1) || at.eat(&[0x0f, 0x82], 4);
        if !sub || !borrow {
            return None;
        }
    }
    let compare: [u8; 3] = match (small || huge, in_rcx) {
        (false, false) => [0x49, 0x3b, 0x66],
        (true, false) => [0x4d, 0x3b, 0x66],
        (false, true) => [0x48, 0x3b, 0x61],
        (true, true) => [0x4c, 0x3b, 0x61],
    };
    let guard = [0x10, 0x18].iter().any(|guard| at.eat(&[compare[0], compare[1], compare[2], *guard], 0));
    let branch = at.eat(&[0x76], 1) || at.eat(&[0x0f, 0x86], 4);
    (guard && branch).then_some((at.len, at.insns))
}

struct Cursor<'a> {
    code: &'a [u8],
    len: usize,
    insns: usize,
}

impl Cursor<'_> {
    /// Passes an instruction that is `opcode` and `operand` more bytes.
    fn eat(&mut self, opcode: &[u8], operand: usize) -> bool {
        let rest = &self.code[self.len..];
        let len = opcode.len() + operand;
        let here = rest.starts_with(opcode) && rest.len() >= len;
        if here {
            self.len += len;
            self.insns += 1;
        }
        here
    }
}
