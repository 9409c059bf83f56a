//! Code that stands for a jump through a register.
//!
//! Compilers that harden against speculation behind a `blr` call such code in its place:
//! `mov x16, Xn; br x16; dsb sy; isb` (GCC's `__call_indirect_x0`, LLVM's `__llvm_slsblr_thunk_x0`,
//! `-mharden-sls=blr`).

use super::class::Class;
use super::decode::Insn;
use crate::Va;

/// If a jump to `at` is one to the address in a register: which. `insn`: the instruction at an
/// address.
pub fn thunk(at: Va, insn: impl Fn(Va) -> Option<Insn>) -> Option<u8> {
    let mut first = insn(at)?;
    if first.is_target_mark() {
        first = insn(first.next())?;
    }
    let copy = first.copied();
    if copy.is_some() {
        first = insn(first.next())?;
    }
    if first.class() != Class::BranchRegister {
        return None;
    }
    match copy {
        Some((from, to)) if to == first.rn() => Some(from),
        Some(_) => None,
        None => Some(first.rn()),
    }
}
