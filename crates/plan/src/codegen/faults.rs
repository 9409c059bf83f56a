//! Faults of displaced instructions: which may have one, and which places in a detour one can come
//! from.

use sidestep_isa::{Flow, Insn, Isa};
use sidestep_wire::CopyPair;

use crate::codegen::detour::Detour;
use crate::codegen::{a32, a64, x86};
use crate::policy::plan::Plan;

impl Plan {
    /// May a displaced instruction raise an exception in a program that works as meant? Not in the
    /// stack check of a Go function, which reads the runtime's own memory.
    #[must_use]
    pub fn may_fault(&self) -> bool {
        self.insns().skip(self.before_handler).any(|insn| insn.may_fault())
    }

    fn insns(&self) -> impl Iterator<Item = Insn> {
        self.displaced.iter().filter_map(|insn| insn.decoded(self.isa).ok())
    }

    /// Is a displaced instruction there for the exception that it raises?
    #[must_use]
    pub fn stops_on_purpose(&self) -> bool {
        self.insns().any(|insn| insn.is_trap() || insn.flow() == Flow::Stop)
    }
}

/// The places in a plan's detour with an original address of their own: the copies, behind the push
/// of a call's, and behind a trap's.
#[must_use]
pub fn places(plan: &Plan, detour: &Detour) -> Vec<CopyPair> {
    let mut all = Vec::new();
    for (insn, (original, copy)) in plan.displaced.iter().zip(&detour.copies) {
        all.push(CopyPair { original: *original, copy: *copy });
        let Ok(decoded) = insn.decoded(plan.isa) else { continue };
        if let (Flow::CallIndirect, Some(len)) = (decoded.flow(), push_of_call(plan.isa)) {
            all.push(CopyPair { original: original | CopyPair::PUSHED, copy: copy + len });
        }
        if decoded.is_trap() {
            let len = u16::from(insn.len);
            all.push(CopyPair { original: (original + len) | CopyPair::TRAPPED, copy: copy + len });
        }
    }
    if let (Some(word), Some((closed, _))) = (detour.gate, detour.copies.last()) {
        all.push(CopyPair { original: closed | CopyPair::GATE, copy: word });
    }
    all.append(&mut saves(detour));
    // What does not fit is not looked up.
    all.retain(|pair| pair.original & CopyPair::OFFSET < CopyPair::OFFSET);
    all
}

/// Bytes of the push in the copy of an indirect call, behind which the call itself may fault; none
/// where a call pushes nothing.
fn push_of_call(isa: Isa) -> Option<u16> {
    match isa {
        Isa::X86 | Isa::X64 => Some(sidestep_isa::x86::relocate::push_of_call(isa) as u16),
        Isa::A64 | Isa::A32 | Isa::T32 => None,
        #[cfg(feature = "toy")]
        Isa::Toy => None,
    }
}

/// The places where handlers save registers, at which no register has changed yet but the stack
/// pointer. Where one finds no room, the handler can be left out.
fn saves(detour: &Detour) -> Vec<CopyPair> {
    match detour.isa {
        Isa::X86 | Isa::X64 => x86::faults::saves(detour),
        Isa::A64 => a64::faults::saves(detour),
        Isa::A32 | Isa::T32 => a32::faults::saves(detour),
        #[cfg(feature = "toy")]
        Isa::Toy => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use sidestep_isa::{Isa, Len, Va};

    use super::*;
    use crate::analysis::index::Index;
    use crate::codegen::detour::build;
    use crate::codegen::handler::Handler;
    use crate::codegen::thunk::{Env, thunks};
    use crate::object::{Bytes, Extent, ObjectCode};
    use crate::policy::strategy::plan;

    /// The plan for a function at 0x1000, and its places; offsets of copies from the first.
    fn planned(text: &[u8]) -> (Plan, Vec<(u16, u16)>) {
        let index = Index::new(ObjectCode {
            text: vec![Bytes { name: ".text", va: Va(0x1000), data: text }],
            extents: vec![Extent { start: Va(0x1000), len: Len(text.len() as u64) }],
            ..ObjectCode::new(Isa::X64)
        });
        let plan = plan(&index, Va(0x1000), false).unwrap();
        let env = Env { hash_shift: 32, bucket_count: 1, ..Env::default() };
        let thunks = thunks(Va(0x3000), &env, Va(0x9000), &[], &[], None).1;
        let detour = build(&plan, &[Handler::Agent { probe: 1 }], Va(0x2000), 0, &thunks, &env).unwrap();
        let first = detour.copies[0].1;
        let (saves, places): (Vec<CopyPair>, Vec<CopyPair>) =
            places(&plan, &detour).into_iter().partition(|pair| pair.original & CopyPair::SAVES != 0);
        // push $1; call
        let saves: Vec<(u16, u16)> = saves.iter().map(|pair| (pair.original & CopyPair::OFFSET, pair.copy)).collect();
        assert_eq!(saves, [(0, 0), (8, 5)]);
        let places = places.into_iter().map(|pair| (pair.original, pair.copy - first)).collect();
        (plan, places)
    }

    #[test]
    fn a_call_faults_behind_its_push() {
        // sub $8,%rsp; call *(%rdi); add $8,%rsp; ret
        let (plan, places) = planned(&[0x48, 0x83, 0xec, 8, 0xff, 0x17, 0x48, 0x83, 0xc4, 8, 0xc3]);
        assert!(plan.may_fault() && !plan.stops_on_purpose());
        assert_eq!(places, [(0, 0), (4, 4), (4 | CopyPair::PUSHED, 10)]);
    }

    #[test]
    fn a_trap_is_reported_behind_it() {
        // push %rbx; int3; pop %rbx; mov %rdi,%rax; ret
        let (plan, places) = planned(&[0x53, 0xcc, 0x5b, 0x48, 0x89, 0xf8, 0xc3]);
        assert!(plan.may_fault() && plan.stops_on_purpose());
        assert_eq!(places, [(0, 0), (1, 1), (2 | CopyPair::TRAPPED, 2), (2, 2), (3, 3)]);
    }

    #[test]
    fn what_only_uses_the_stack_does_not_fault() {
        // push %rbx; sub $16,%rsp; mov %rdi,8(%rsp); ret
        let (plan, _) = planned(&[0x53, 0x48, 0x83, 0xec, 16, 0x48, 0x89, 0x7c, 0x24, 8, 0xc3]);
        assert!(!plan.may_fault() && !plan.stops_on_purpose());
    }
}
