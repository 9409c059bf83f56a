//! Faults of displaced instructions: which may have one, and which places in a detour one can come from.

use sidestep_isa::x86::relocate::PUSH_OF_CALL;
use sidestep_isa::x86::{self, Flow, Insn};
use sidestep_wire::CopyPair;

use crate::detour::Detour;
use crate::plan::{DisplacedInsn, Plan};

impl Plan {
    /// May a displaced instruction raise an exception in a program that works as meant? Not in the stack check of a Go
    /// function, which reads the runtime's own memory.
    #[must_use]
    pub fn may_fault(&self) -> bool {
        self.displaced.iter().skip(self.before_handler).filter_map(decoded).any(|insn| insn.may_fault())
    }

    /// Is a displaced instruction there for the exception that it raises?
    #[must_use]
    pub fn stops_on_purpose(&self) -> bool {
        self.displaced.iter().filter_map(decoded).any(|insn| insn.is_trap() || insn.flow() == Flow::Stop)
    }
}

fn decoded(insn: &DisplacedInsn) -> Option<Insn> {
    x86::decode(&insn.bytes[..usize::from(insn.len)], insn.va).ok()
}

/// The places in a plan's detour with an original address of their own: the copies, behind the push of a call's, and behind
/// a trap's.
#[must_use]
pub fn places(plan: &Plan, detour: &Detour) -> Vec<CopyPair> {
    let mut all = Vec::new();
    for (insn, (original, copy)) in plan.displaced.iter().zip(&detour.copies) {
        all.push(CopyPair { original: *original, copy: *copy });
        let Some(decoded) = decoded(insn) else { continue };
        if decoded.flow() == Flow::CallIndirect {
            all.push(CopyPair { original: original | CopyPair::PUSHED, copy: copy + PUSH_OF_CALL as u16 });
        }
        if decoded.is_trap() {
            let len = u16::from(insn.len);
            all.push(CopyPair { original: (original + len) | CopyPair::TRAPPED, copy: copy + len });
        }
    }
    // What does not fit is not looked up.
    all.retain(|pair| pair.original & CopyPair::OFFSET < CopyPair::OFFSET);
    all
}
