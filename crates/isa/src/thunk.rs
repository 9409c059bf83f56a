//! Code that stands for a jump through a register: thunks, and returns to what was just pushed.

use crate::insn::Insn;
#[cfg(feature = "toy")]
use crate::toy;
use crate::{Isa, Va, a32, a64, x86};

/// Whether a jump to `at` is one to the address in a register. Compilers make such code in place of
/// indirect jumps. `insn`: the instruction at an address.
pub fn is_thunk(isa: Isa, at: Va, insn: impl Fn(Va) -> Option<Insn>) -> bool {
    match isa {
        Isa::X86 | Isa::X64 => x86::thunk::thunk(at, |va| insn(va).and_then(Insn::x86)).is_some(),
        Isa::A64 => a64::thunk::thunk(at, |va| insn(va).and_then(Insn::a64)).is_some(),
        Isa::A32 | Isa::T32 => a32::thunk::thunk(at, |va| insn(va).and_then(Insn::a32)).is_some(),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::is_thunk(at, insn),
    }
}

/// Whether two instructions, one behind the other, jump to the address in a register by a return.
#[must_use]
pub fn is_jump_by_return(before: &Insn, insn: &Insn) -> bool {
    match (before, insn) {
        (Insn::X86(before), Insn::X86(insn)) => x86::thunk::handed_to(before, insn).is_some(),
        _ => false,
    }
}
