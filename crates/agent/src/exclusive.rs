//! Programs that a signal handler must not enter again while it interrupts them
//! ([`ProbeDesc::EXCLUSIVE`]).
//!
//! `ThreadState::busy` is the address of the [`sidestep_wire::Hit`] whose program runs. The rule,
//! which generated code follows, too:
//!
//! 1. `Hit::probe` is written.
//! 2. If `busy` is 0, it becomes the address of the hit, and the program runs.
//! 3. Else `agent_busy` decides. It says yes, and has set `busy`, if the hit that `busy` points to
//!    is certainly gone: a handler has left it by `siglongjmp`. Otherwise the hit counts as missed.
//! 4. After the program, `busy` becomes 0 (if it is this hit: generated code knows that it is).
//!
//! Between the look at `busy` and its setting a handler may run a program of its own: that one is
//! over before the interrupted code goes on, or the interrupted code never does.
//!
//! A hit is gone if its `probe` word cannot be read or is no exclusive probe's, or if it lies below
//! the new hit on the same stack: the new frame would have to lie below the interrupted one. Two
//! addresses are taken to be on the same stack unless the thread is on its alternate signal stack
//! now and was not then. What cannot be told apart is a frame that was left on another stack, above
//! this one, and whose memory nobody uses again: there hits are missed.

use sidestep_wire::{Hit, ProbeDesc};

use crate::hit::Place;
use crate::memory::{Agent, Thread};
use crate::{kernel, safe_read};

/// `stack_t::ss_flags`: the thread runs on the alternate stack.
const SS_ONSTACK: u32 = 1;

/// May the program of this hit run? If so, it does from now on.
#[inline(always)]
#[must_use]
pub fn enter(agent: Agent, thread: Thread, hit: Place) -> bool {
    if thread.busy() == 0 {
        thread.set_busy(hit.address());
        return true;
    }
    replace(agent, thread, hit.address())
}

/// The program of a hit is over, exclusive or not.
#[inline(always)]
pub fn leave(thread: Thread, hit: Place) {
    if thread.busy() == hit.address() {
        thread.set_busy(0);
    }
}

/// Step 3.
#[cold]
#[inline(never)]
#[must_use]
pub fn replace(agent: Agent, thread: Thread, hit: u64) -> bool {
    let busy = thread.busy();
    let gone = busy == 0 || !is_held(agent, busy) || (hit >= busy && is_same_stack(busy));
    if gone {
        thread.set_busy(hit);
    }
    gone
}

/// Does the word of a hit still name an exclusive probe?
fn is_held(agent: Agent, busy: u64) -> bool {
    let Some(word) = safe_read::u64_at(agent, busy) else { return false };
    if word & !Hit::RETURNED > u64::from(u32::MAX) {
        return false;
    }
    agent.probe(word as u32).is_some_and(|desc| desc.flags & ProbeDesc::EXCLUSIVE != 0)
}

/// Is `busy` on the stack that the thread is on? The kernel knows of the alternate one.
fn is_same_stack(busy: u64) -> bool {
    kernel::alternate_stack()
        .is_some_and(|(start, flags, size)| flags & SS_ONSTACK == 0 || busy.wrapping_sub(start) < size)
}
