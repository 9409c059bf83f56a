//! Faults of displaced instructions: which may have one, and which places in a detour one can come
//! from.

use sidestep_isa::x86::relocate::push_of_call;
use sidestep_isa::{Flow, Insn};
use sidestep_wire::CopyPair;

use crate::codegen::x86::detour::Detour;
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
        if decoded.flow() == Flow::CallIndirect {
            all.push(CopyPair { original: original | CopyPair::PUSHED, copy: copy + push_of_call(plan.isa) as u16 });
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

/// The pushes and calls of handlers at which no register has changed yet but the stack pointer.
/// Where one finds no room, the handler can be left out: those at the start of the detour, and
/// behind the copies, where the way to a thunk begins.
fn saves(detour: &Detour) -> Vec<CopyPair> {
    let mut all = Vec::new();
    let (Some((_, first)), Some(last)) = (detour.copies.first(), detour.copies.iter().map(|(_, to)| *to).max()) else {
        return all;
    };
    if !detour.leads {
        return all;
    }
    let (bytes, word) = (&detour.bytes, detour.isa.word() as u16);
    let mut note = |at: usize, depth: u16| all.push(CopyPair { original: depth | CopyPair::SAVES, copy: at as u16 });
    let (mut at, mut depth) = (0, 0);
    if let Some((len, room)) = steps_down(&bytes[..usize::from(*first)]) {
        (at, depth) = (len, room);
    }
    let below = depth;
    while let Some((len, is_number)) = push(&bytes[at..usize::from(*first)]) {
        note(at, depth);
        (at, depth) = (at + len, depth + word);
        if is_number && bytes.get(at) == Some(&CALL) {
            note(at, depth);
            break;
        }
    }
    for at in usize::from(last)..bytes.len() {
        if let Some((len, true)) = push(&bytes[at..]).filter(|(len, _)| bytes.get(at + len) == Some(&CALL)) {
            note(at, below);
            note(at + len, below + word);
        }
    }
    all
}

const CALL: u8 = 0xe8;

/// Length of a `push` of a register, or of a number, and which it is.
fn push(code: &[u8]) -> Option<(usize, bool)> {
    match *code {
        [0x50..=0x57, ..] => Some((1, false)),
        [0x41, 0x50..=0x57, ..] => Some((2, false)),
        [0x6a, _, ..] => Some((2, true)),
        [0x68, _, _, _, _, ..] => Some((5, true)),
        _ => None,
    }
}

/// Length of the step over the red zone, and its size: `lea -128(%rsp),%rsp`.
fn steps_down(code: &[u8]) -> Option<(usize, u16)> {
    match *code {
        [0x48, 0x8d, 0x64, 0x24, by, ..] if by >= 0x80 => Some((5, u16::from((by as i8).unsigned_abs()))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sidestep_isa::{Isa, Len, Va};

    use super::*;
    use crate::analysis::index::Index;
    use crate::codegen::handler::Handler;
    use crate::codegen::x86::detour::build;
    use crate::codegen::x86::thunk::{Env, thunks};
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
