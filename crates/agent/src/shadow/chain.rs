//! Frames that several sessions watch: the stack slot, or the entry of one session, has the
//! trampoline of another one. That one's agent knows how to go on, and is called; its address is in
//! front of its trampoline.

use sidestep_wire::private::{TRAMPOLINE_HEAD, TRAMPOLINE_MARK};
use sidestep_wire::{Private, ShadowEntry};

use super::{Stack, live};
use crate::memory::{Agent, Entry, Thread};
use crate::{arch, safe_read};

/// `agent_real`.
type Real = unsafe extern "C" fn(*const Private, u64, u64, u64) -> u64;

/// Is this word in the place of a return address a trampoline: ours, or that of another session,
/// which then knows ours, or the real address?
pub fn is_watched(agent: Agent, word: u64) -> bool {
    word == agent.private().trampoline || is_foreign(agent, word)
}

/// Is it the trampoline of another session?
#[cold]
#[inline(never)]
pub fn is_foreign(agent: Agent, word: u64) -> bool {
    let [a, b, c, d, e, f, g, h] = TRAMPOLINE_MARK;
    let is = |at: u64, mark: u32| safe_read::word(agent, at).is_some_and(|word| word as u32 == mark);
    word != agent.private().trampoline
        && is(word, u32::from_le_bytes([a, b, c, d]))
        && is(word.wrapping_add(4), u32::from_le_bytes([e, f, g, h]))
}

/// The real address behind another session's trampoline, which has come before a time stamp.
/// `None`: it is no such trampoline, or that session does not know.
#[cold]
#[inline(never)]
pub fn past_foreign(agent: Agent, word: u64, slot: u64, before: u64, unwinds: bool) -> Option<u64> {
    if !is_foreign(agent, word) {
        return None;
    }
    let head = word.wrapping_sub(TRAMPOLINE_HEAD);
    // SAFETY: the word begins with the mark of a trampoline, and each trampoline has these two
    // words in front of it.
    let (private, real) = unsafe { (arch::read_word(head), arch::read_word(head.wrapping_add(8))) };
    // SAFETY: the other session put the address of its function there; it stays for as long as a
    // thread has it in its registers.
    let real: Real = unsafe { core::mem::transmute(real as *const ()) };
    // SAFETY: the function gets the private region of its own session, whose address lies in front
    // of that session's trampoline.
    let real = unsafe { real(private as *const Private, slot, before, u64::from(unwinds)) };
    (real != 0).then_some(real)
}

/// The same of our trampoline.
pub fn real_before(agent: Agent, slot: u64, before: u64, unwinds: bool) -> Option<u64> {
    let newest = |thread: Thread| newest_before(agent, thread, slot, before);
    let threads = (0..agent.threads()).filter_map(|i| agent.thread(i));
    let (at, entry) = threads.filter_map(newest).max_by_key(|(_, entry)| entry.time)?;
    if unwinds {
        at.set_probe(entry.probe | ShadowEntry::RESTORED);
    }
    if is_foreign(agent, entry.ret) {
        return past_foreign(agent, entry.ret, slot, entry.time, unwinds);
    }
    Some(entry.ret)
}

/// The newest entry of a slot that is older than `before`, and says more than that there is another
/// one.
fn newest_before(agent: Agent, thread: Thread, slot: u64, before: u64) -> Option<(Entry, ShadowEntry)> {
    let trampoline = agent.private().trampoline;
    let stack = Stack::of(thread);
    let entries = (0..stack.len(thread)).rev().filter_map(|index| live(stack, index));
    entries.into_iter().find(|(_, entry)| entry.slot == slot && entry.time < before && entry.ret != trampoline)
}
