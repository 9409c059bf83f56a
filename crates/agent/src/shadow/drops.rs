//! Functions that take their arguments off the stack (`ret $4`): behind the return, the stack
//! pointer does not say where the return address was.
//!
//! The newest entry that fits is the right one. One that was left behind by a `longjmp` does not
//! fit: its arguments were all below the slots of the frames that are still there.

use sidestep_wire::ShadowEntry;
use sidestep_wire::private::MAX_DROPPED;

use super::{Stack, live};
use crate::arch;
use crate::memory::{Agent, Thread};

/// The slot that held the return address of a function which has returned, with the stack pointer
/// `behind` now.
#[inline(never)]
pub fn returned_from(agent: Agent, thread: Option<Thread>, behind: u64) -> u64 {
    let highest = behind.wrapping_sub(arch::WORD);
    let exactly = |slot: u64, drops: u64| slot.wrapping_add(drops) == highest;
    let own = thread.and_then(|thread| newest(agent, thread, exactly));
    let other = || (0..agent.threads()).filter_map(|i| newest(agent, agent.thread(i)?, exactly)).max_by_key(|e| e.time);
    // A function that goes on in others through pointers has no return that says what it drops.
    let near = || newest(agent, thread?, |slot, _| highest.wrapping_sub(slot) <= MAX_DROPPED);
    own.or_else(other).or_else(near).map_or(highest, |entry| entry.slot)
}

/// The newest entry for which `fits` holds, given its slot and how many bytes its function drops.
fn newest(agent: Agent, thread: Thread, fits: impl Fn(u64, u64) -> bool) -> Option<ShadowEntry> {
    let drops = |entry: &ShadowEntry| agent.probe(entry.probe as u32).map_or(0, |desc| desc.drops);
    let stack = Stack::of(thread);
    let mut entries = (0..stack.len(thread)).rev().filter_map(|index| live(stack, index));
    entries.find_map(|(_, entry)| fits(entry.slot, drops(&entry)).then_some(entry))
}
