//! Returns that a signal has interrupted before the first instruction of the trampoline.
//!
//! Where there is no red zone, the kernel may put the end of the signal's frame over the slot of
//! the return address, which lies below the stack pointer then. The entry is alive all the same.
//! What says so is the frame: the registers in it are those of a thread that is about to execute
//! the trampoline, with the stack pointer just above the slot.
//!
//! Frames are below the interrupted stack pointer, or at the top of the alternate stack; the FP
//! state comes first (`arch/x86/kernel/fpu/signal.c`: `fpu__alloc_mathframe`), and ends with a word
//! of its own if it is a long one.

use core::ops::RangeInclusive;

use sidestep_wire::private::{MAX_DROPPED, TRAMPOLINE_MARK};

use crate::arch;
use crate::memory::Agent;
use crate::{kernel, safe_read};

/// Words that are looked at together, and how many of them the next look sees again: from the stack
/// pointer among the registers of a frame to its copy behind them (`struct sigcontext_32`).
const LOOK: usize = 128;
const AGAIN: usize = 11;
/// From the stack pointer to the instruction pointer, and to the copy, in words.
const IP: usize = 7;
const COPY: usize = AGAIN - 1;
/// At the end of an FP state that is longer than FXSAVE's.
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// Looks at a frame with a short FP state, and with the longest, AMX's of 11 KB.
const SHORT: u64 = 2;
const LONG: u64 = 28;
/// `SS_ONSTACK`
const ON_STACK: u32 = 1;

/// Is this slot that of a return which a signal handler of this thread has interrupted?
#[cold]
#[inline(never)]
pub fn is_interrupted(agent: Agent, slot: u64) -> bool {
    if arch::HAS_RED_ZONE {
        return false;
    }
    let behind = slot + arch::WORD..=slot + arch::WORD + MAX_DROPPED;
    is_below(agent, *behind.end(), &behind) || alternate_stack().is_some_and(|top| is_below(agent, top, &behind))
}

/// Is there a frame below `top` whose thread is about to execute the trampoline, with such a stack
/// pointer?
fn is_below(agent: Agent, top: u64, behind: &RangeInclusive<u64>) -> bool {
    let trampoline = agent.private().trampoline as u32;
    // Before and behind its mark.
    let begins = [trampoline, trampoline.wrapping_add(TRAMPOLINE_MARK.len() as u32)];
    let is_one =
        |frame: &[u32]| begins.contains(&frame[IP]) && frame[0] == frame[COPY] && behind.contains(&u64::from(frame[0]));
    let step = ((LOOK - AGAIN) * size_of::<u32>()) as u64;
    let (mut words, mut looks) = ([0u32; LOOK], SHORT);
    let mut look = 0;
    while look < looks {
        look += 1;
        let Some(at) = top.checked_sub(look * step + (AGAIN * size_of::<u32>()) as u64) else { return false };
        let len = size_of_val(&words) as u64;
        // SAFETY: `words` has room for `len` bytes.
        if unsafe { safe_read::copy(agent, at, words.as_mut_ptr().cast(), len) } != len {
            return false;
        }
        if words.windows(AGAIN).any(is_one) {
            return true;
        }
        if look == 1 && words.contains(&FP_XSTATE_MAGIC2) {
            looks = LONG;
        }
    }
    false
}

/// The end of the alternate stack, if a handler runs on it.
fn alternate_stack() -> Option<u64> {
    let (start, flags, size) = kernel::alternate_stack()?;
    (flags & ON_STACK != 0).then(|| start + size)
}
