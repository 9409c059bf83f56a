//! How a return address is told from other words: a call is in front of it.

use core::sync::atomic::Ordering;

use crate::arch::call;
use crate::memory::{Agent, Thread};
use crate::{safe_read, shadow};

/// Bytes of the longest call, and of the instructions in front of it that a site may displace
/// together with it.
const REACH: u64 = 16;

/// Is there a call in front of this address?
#[must_use]
pub fn is_behind_call(agent: Agent, at: u64) -> bool {
    safe_read::u64_at(agent, at.wrapping_sub(8)).is_some_and(|code| call::ends(code.to_le_bytes()))
}

/// May this word be the return address of a call frame? A thread remembers those that it has seen.
#[inline(always)]
#[must_use]
pub fn is_plausible(agent: Agent, thread: Thread, word: u64) -> bool {
    if thread.has_caller(word) {
        return true;
    }
    let is = look(agent, word);
    if is {
        thread.set_caller(word);
    }
    is
}

/// The call may be displaced by a site, also of another session: then a jump or a trap is there.
#[cold]
#[inline(never)]
fn look(agent: Agent, word: u64) -> bool {
    let patched = |at: u64| safe_read::u64_at(agent, at).is_some_and(|code| call::is_patched(code.to_le_bytes()));
    is_behind_call(agent, word)
        || (8..=REACH).step_by(8).any(|back| patched(word.wrapping_sub(back)))
        || shadow::is_watched(agent, word)
}

/// From now on, return addresses stay as they are in this process.
pub fn keep(agent: Agent) {
    agent.private().keeps_returns.store(1, Ordering::Relaxed);
}

/// Have return addresses to stay as they are? The program has loaded a library that looks at them.
#[inline(always)]
#[must_use]
pub fn stays(agent: Agent) -> bool {
    agent.private().keeps_returns.load(Ordering::Relaxed) != 0
}
