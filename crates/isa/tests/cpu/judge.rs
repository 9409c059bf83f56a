//! Compares what an original and its copy left.

use sidestep_isa::x86::relocate::push_of_call;
use sidestep_isa::{Flow, Insn};

use super::state::gprs;
use super::{FROM, Outcome, STACK, TO};

/// Set in what a fault saves, to be the one that is not repeated (SDM volume 3, section 19.3.1.1).
const RF: u64 = 1 << 16;

/// The end of a copy's run as the program is to see it.
pub fn seen_from_original(insn: &Insn, copy_len: usize, mut end: Outcome) -> Outcome {
    if end.regs.rip == TO + push_of_call(insn.isa()) as u64 && insn.flow() == Flow::CallIndirect {
        // The load of the target faulted behind the push.
        (end.regs.rip, end.regs.rsp) = (FROM, end.regs.rsp + insn.isa().word());
    }
    let map = |at: u64| match at.wrapping_sub(TO) {
        0 => FROM,
        offset if offset == copy_len as u64 => insn.next().0,
        _ => at,
    };
    end.regs.rip = map(end.regs.rip);
    end.signal.2 = map(end.signal.2);
    end
}

/// The first thing that is not the same after an instruction and its copy, seen from the original.
pub fn difference(insn: &Insn, copy: &[u8], a: &Outcome, b: &Outcome) -> Option<String> {
    if a.signal != b.signal || a.regs.rip != b.regs.rip {
        return Some(format!("{:x?} at {:#x}, but {:x?} at {:#x}", a.signal, a.regs.rip, b.signal, b.regs.rip));
    }
    if a.signal.0 == 0 {
        return None; // neither ended
    }
    if gprs(&a.regs) != gprs(&b.regs) {
        return Some(format!("registers {:x?}, but {:x?}", a.regs, b.regs));
    }
    if (a.regs.eflags ^ b.regs.eflags) & !RF != 0 {
        return Some(format!("flags {:#x}, but {:#x}", a.regs.eflags, b.regs.eflags));
    }
    let segments = |o: &Outcome| {
        let r = o.regs;
        [r.cs, r.ss, r.ds, r.es, r.fs, r.gs, r.fs_base, r.gs_base]
    };
    if segments(a) != segments(b) {
        return Some(format!("segments {:x?}, but {:x?}", segments(a), segments(b)));
    }
    let first = |a: &[u8], b: &[u8]| a.iter().zip(b).position(|(a, b)| a != b);
    if let Some(at) = first(&a.data, &b.data) {
        return Some(format!("data + {at:#x}"));
    }
    let mut stack = a.stack.clone();
    let word = insn.isa().word() as usize;
    let below = (a.regs.rsp.wrapping_sub(STACK) as usize).wrapping_sub(word);
    // Calls whose target cannot be loaded have pushed already, calls through the stack pointer use
    // one word more.
    let scratch = insn.flow() == Flow::CallIndirect && (a.regs.rip == FROM || is_parked(copy));
    if scratch && below < stack.len() - word {
        stack[below..below + word].copy_from_slice(&b.stack[below..below + word]);
    }
    if let Some(at) = first(&stack, &b.stack) {
        return Some(format!("stack + {at:#x}, with rsp {:#x}", a.regs.rsp));
    }
    // Not the address of the last x87 instruction, nor which components were in use.
    let hidden = |at: usize| (8..16).contains(&at) || (512..520).contains(&at);
    let vectors = a.xstate.iter().zip(&b.xstate).enumerate().find(|(at, (a, b))| !hidden(*at) && a != b);
    vectors.map(|(at, _)| format!("vectors + {at:#x}"))
}

/// Whether a call takes its target by way of the word below: `pop -16(%rsp)`, `pop -8(%esp)`.
fn is_parked(copy: &[u8]) -> bool {
    copy.windows(4).any(|bytes| matches!(bytes, [0x8f, 0x44, 0x24, 0xf0 | 0xf8]))
}
