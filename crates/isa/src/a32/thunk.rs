//! Code that stands for a jump through a register: `bx Rm`, also behind `mov Rm, Rn`.

use super::class::Class;
use super::decode::Insn;
use super::{LINK, PC};
use crate::Va;

/// If a jump to `at` is one to the address in a register: which. `insn`: the instruction at an
/// address.
pub fn thunk(at: Va, insn: impl Fn(Va) -> Option<Insn>) -> Option<u8> {
    let mut first = insn(at)?;
    let copy = first.copied();
    if copy.is_some() {
        first = insn(first.next())?;
    }
    let op = *first.plain()?;
    if op.class != Class::BranchRegister {
        return None;
    }
    let register = op.reads.trailing_zeros() as u8;
    match copy {
        Some((from, to)) if to == register => Some(from),
        Some(_) => None,
        None => Some(register).filter(|register| *register < LINK && *register != PC),
    }
}
