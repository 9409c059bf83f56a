//! What Go's compiler and assembler write at the start of functions of arm64 ([`crate::go`];
//! cmd/internal/obj/arm64/obj7.go, `stacksplit`).

use super::class::Class;
use super::decode::{Insn, Sweep};
use super::{SP, WORD};
use crate::Va;

/// Instructions of the longest check.
const LONGEST: usize = 12;
/// The goroutine.
const GOROUTINE: u8 = 28;

/// See [`crate::go::stack_check`]:
///
/// ```text
/// ldr x16, [x28, #16]            stackguard0; #24 = stackguard1
/// [sub x17, sp, #N | subs x17, sp, N; b.lo …]   large frames, with N in x27 if it is no immediate
/// cmp sp or x17, x16
/// b.ls morestack
/// ```
pub(crate) fn stack_check(code: &[u8]) -> Option<(usize, usize)> {
    let insns: Vec<Insn> = Sweep::new(code, Va(0)).map_while(Result::ok).take(LONGEST).collect();
    let (guard, rest) = insns.split_first()?;
    // ldr Xt, [x28, #16 or #24]
    let loads = matches!(guard.word() & 0xffff_ffe0, 0xf940_0b80 | 0xf940_0f80) && guard.rn() == GOROUTINE;
    if !loads {
        return None;
    }
    for (i, insn) in rest.iter().enumerate() {
        let compares = matches!(insn.class(), Class::AddExtended | Class::AddShifted)
            && insn.bits(31, 29) == 0b111
            && insn.rd() == 31
            && insn.rm() == guard.rd();
        if compares {
            let branch = rest.get(i + 1)?;
            let count = i + 3;
            return (branch.condition() == Some(9)).then_some((count * WORD, count));
        }
        if !is_part(insn, guard.rd()) {
            return None;
        }
    }
    None
}

/// Whether an instruction computes where a large frame ends.
fn is_part(insn: &Insn, guard: u8) -> bool {
    let writes = insn.usage().writes & (1 << guard | 1 << SP | 1 << GOROUTINE);
    match insn.class() {
        Class::MoveWide | Class::AddImmediate | Class::AddExtended | Class::AddShifted => writes == 0,
        Class::LogicImmediate => insn.bits(30, 29) == 1 && writes == 0,
        // b.lo
        Class::BranchCondition => insn.condition() == Some(3),
        _ => false,
    }
}
