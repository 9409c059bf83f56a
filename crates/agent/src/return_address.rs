//! How a return address is told from other words: a call is in front of it.

use core::sync::atomic::Ordering;

use crate::memory::{Agent, Thread};
use crate::{safe_read, shadow};

/// Bytes of the longest call, and of the instructions in front of it that a jump of five bytes may
/// displace together with it.
const REACH: u64 = 16;
const JUMP: u8 = 0xe9;
const TRAP: u8 = 0xcc;

/// Is there a call in front of this address: `call rel32`, or `call r/m` (`ff /2`) of two to seven
/// bytes (Intel SDM volume 2, CALL)?
#[must_use]
pub fn is_behind_call(agent: Agent, at: u64) -> bool {
    safe_read::u64_at(agent, at.wrapping_sub(8)).is_some_and(|code| ends_with_call(code.to_le_bytes()))
}

/// Does the last instruction of these bytes call?
fn ends_with_call(code: [u8; 8]) -> bool {
    let indirect = |at: &usize| {
        let (modrm, len) = (code[at + 1], 8 - at);
        let sib = code.get(at + 2).copied().unwrap_or(0);
        code[*at] == 0xff && modrm >> 3 & 7 == 2 && len == 2 + operand_len(modrm, sib)
    };
    code[3] == 0xe8 || (1..7).any(|at| indirect(&at))
}

/// Bytes of an operand behind its ModRM byte (Intel SDM volume 2, table 2-2).
fn operand_len(modrm: u8, sib: u8) -> usize {
    let has_sib = modrm & 7 == 4;
    match (modrm >> 6, modrm & 7) {
        (0, 5) => 4,
        (0, 4) if sib & 7 == 5 => 5,
        (0, _) => usize::from(has_sib),
        (1, _) => 1 + usize::from(has_sib),
        (2, _) => 4 + usize::from(has_sib),
        _ => 0,
    }
}

/// May this word be the return address of a call frame? A thread remembers those that it has seen.
#[inline(always)]
#[must_use]
pub fn is_one(agent: Agent, thread: Thread, word: u64) -> bool {
    let known = thread.caller(word);
    // SAFETY: one of the thread's words. A handler that comes in between changes it as a whole.
    if unsafe { known.read_volatile() } == word {
        return true;
    }
    let is = look(agent, word);
    if is {
        // SAFETY: the same word of the thread, written as a whole.
        unsafe { known.write_volatile(word) };
    }
    is
}

/// The call may be displaced by a site, also of another session: then a jump or a trap is there.
#[cold]
#[inline(never)]
fn look(agent: Agent, word: u64) -> bool {
    let patched = |at: u64| {
        let code = safe_read::u64_at(agent, at);
        code.is_some_and(|code| code.to_le_bytes().iter().any(|byte| matches!(*byte, JUMP | TRAP)))
    };
    is_behind_call(agent, word)
        || (8..=REACH).step_by(8).any(|back| patched(word.wrapping_sub(back)))
        || shadow::is_watched(agent, word)
}

/// Have return addresses to stay as they are? The program has loaded a library that looks at them.
#[inline(always)]
#[must_use]
pub fn stays(agent: Agent) -> bool {
    agent.private().keeps_returns.load(Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests {
    use super::ends_with_call;

    #[test]
    fn calls_of_all_lengths() {
        let ends = |call: &[u8]| {
            let mut code = [0x90; 8];
            code[8 - call.len()..].copy_from_slice(call);
            ends_with_call(code)
        };
        let calls: [&[u8]; 10] = [
            &[0xe8, 1, 2, 3, 4],             // call X
            &[0xff, 0xd0],                   // call *%rax
            &[0xff, 0x10],                   // call *(%rax)
            &[0xff, 0x14, 0x24],             // call *(%rsp)
            &[0xff, 0x50, 8],                // call *8(%rax)
            &[0xff, 0x54, 0x24, 8],          // call *8(%rsp)
            &[0xff, 0x15, 1, 2, 3, 4],       // call *X(%rip)
            &[0xff, 0x90, 1, 2, 3, 4],       // call *X(%rax)
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4], // call *X(,%rax,8)
            &[0xff, 0x94, 0x24, 1, 2, 3, 4], // call *X(%rsp)
        ];
        calls.iter().for_each(|call| assert!(ends(call), "{call:x?}"));
        // Parts of calls, a jump, an addition.
        let others: [&[u8]; 5] =
            [&[0xe8, 1, 2, 3], &[0xff, 0xe0], &[0xff, 0x50], &[0xff, 0x15, 1, 2], &[0x48, 0x01, 0xc8]];
        others.iter().for_each(|other| assert!(!ends(other), "{other:x?}"));
    }
}
