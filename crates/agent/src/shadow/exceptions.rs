//! Unwinders must find real return addresses, and frames that outlive them the trampoline's again.

use sidestep_wire::ShadowEntry;

use super::{Stack, drop_entry, live, past_foreign, trim};
use crate::memory::{Agent, Thread};
use crate::{arch, safe_read};

/// Puts the real return addresses back for an unwinder.
#[cold]
#[inline(never)]
pub fn unwind(agent: Agent, thread: Thread) {
    let trampoline = agent.private().trampoline;
    let stack = Stack::of(thread);
    // Newest first: of a chain, the one with the real address comes last.
    for index in (0..stack.len(thread)).rev() {
        let Some((at, entry)) = live(stack, index) else { continue };
        if safe_read::word(agent, entry.slot) != Some(trampoline) {
            continue;
        }
        at.set_probe(entry.probe | ShadowEntry::RESTORED);
        if entry.ret != trampoline {
            let real = past_foreign(agent, entry.ret, entry.slot, entry.time, true).unwrap_or(entry.ret);
            // SAFETY: the slot of a live frame: it holds the trampoline's address.
            unsafe { arch::write_word(entry.slot, real) }
        }
    }
}

/// An exception was caught by the frame above `stack_pointer`: frames below are gone, the others
/// get the trampoline again. Dropping an entry whose real address is in place is always safe.
#[cold]
#[inline(never)]
pub fn caught(agent: Agent, thread: Thread, stack_pointer: u64) {
    let trampoline = agent.private().trampoline;
    let stack = Stack::of(thread);
    // Oldest first: of a chain, the one with the real address puts the trampoline back for all.
    for index in 0..stack.len(thread) {
        let Some((at, entry)) = live(stack, index) else { continue };
        if entry.probe & ShadowEntry::RESTORED == 0 {
            continue;
        }
        let mut word = safe_read::word(agent, entry.slot);
        if entry.slot > stack_pointer && entry.ret != trampoline && word == Some(entry.ret) {
            // SAFETY: the slot of a live frame above the catcher: it holds the return address.
            unsafe { arch::write_word(entry.slot, trampoline) };
            word = Some(trampoline);
        }
        if word == Some(trampoline) {
            at.set_probe(entry.probe & !ShadowEntry::RESTORED);
        } else {
            drop_entry(agent, at, &entry);
        }
    }
    trim(thread);
}
