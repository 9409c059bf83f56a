//! Which signals of ours a thread believes to be blocked. They are open all the same; the belief
//! decides what the program is told, and that a fault kills it where it would have without us.
//!
//! Where ends of signal handlers are not seen, the kernel's masks say it ([`Masks`]). Elsewhere it
//! is in the thread's state. The end of a handler gives back the mask from before. What a handler
//! blocked is told from what was blocked before by the stack pointer of the call: it lies below the
//! handler's signal frame. Where this is wrong (the call was deeper in a function that has
//! returned, then came a signal) a signal counts as open too early, which does no harm.

use core::sync::atomic::Ordering;

use sidestep_wire::Blocked;
use sidestep_wire::masks::{Masks, SEES_HANDLERS_END};

use crate::kernel;
use crate::memory::{Agent, Thread};
use crate::thread::ASKS;

/// A frame that is farther above than this belongs to another stack.
const STACK: u64 = 256 << 10;

/// The thread gets its state, whose `fs` base is not set yet: finds out what it has blocked, and
/// opens that.
pub fn prepare(agent: Agent, thread: Thread, fs_base: u64) {
    if thread.fs_base() != fs_base {
        forget(thread);
    }
    if agent.owner().address() != agent.address() {
        return; // the thread's state of the owner has that, for all who share its signals
    }
    for closed in &agent.private().signals.closed {
        if fs_base != 0 && closed.fs_base.load(Ordering::Acquire) == fs_base {
            let Blocked { now, after, sp } = closed.blocked;
            thread.set_blocked(now, after, sp);
            closed.fs_base.store(0, Ordering::Release);
        }
    }
    if agent.is_silent() {
        return; // no signal is ours
    }
    let mask = kernel::mask();
    let closed = mask & ours(agent);
    if closed != 0 && SEES_HANDLERS_END {
        kernel::unblock(closed);
        thread.set_blocked(thread.blocked().now | closed, closed, 0);
    } else if closed != 0 {
        let masks = masks(agent);
        kernel::set_mask(masks.kept(masks.told(mask)));
    }
}

/// The signals that are ours.
#[must_use]
pub fn ours(agent: Agent) -> u64 {
    agent.private().signals.ours.load(Ordering::Relaxed)
}

/// How the kernel's masks are to be read.
#[must_use]
pub fn masks(agent: Agent) -> Masks {
    Masks { ours: ours(agent), own: agent.private().signals.own.load(Ordering::Relaxed) }
}

/// The same, after the program has asked for this set.
#[must_use]
pub fn masks_with(agent: Agent, set: u64) -> Masks {
    let own = Masks::uses(set);
    if own != 0 {
        agent.private().signals.own.fetch_or(own, Ordering::Relaxed);
    }
    masks(agent)
}

/// In front of another program's start: the thread's mask becomes the one that the program believes
/// to have, which the other program inherits. Gives the mask from before, if that changes anything.
///
/// A handler of the program that comes now, and hits a trap, ends the program. Nothing can be done
/// about that: what is blocked here is blocked in the other program.
#[must_use]
pub fn give_back(agent: Agent) -> Option<u64> {
    if SEES_HANDLERS_END {
        return None;
    }
    let mask = kernel::mask();
    let told = masks(agent).told(mask);
    (told != mask).then(|| {
        kernel::set_mask(told);
        mask
    })
}

/// A new thread believes nothing: what its maker has blocked is open in it, too.
pub fn forget(thread: Thread) {
    thread.set_blocked(0, 0, 0);
}

/// What the state of the thread that runs says: not of one that has ended and had the same stack,
/// if the C library tells them apart.
fn belief(thread: Thread) -> Blocked {
    if thread.library_tid().is_some() || ASKS {
        thread.current_tid();
    }
    thread.blocked()
}

/// What the thread believes to be blocked, if that is in its state.
#[must_use]
pub fn noted(thread: Thread) -> u64 {
    if SEES_HANDLERS_END { belief(thread).now } else { 0 }
}

/// All signals that the thread believes to be blocked, if the kernel blocks these.
#[must_use]
pub fn told(agent: Agent, thread: Option<Thread>, mask: u64) -> u64 {
    let masks = masks(agent);
    masks.told(mask) | thread.map_or(0, noted) & masks.ours
}

/// From here on, with this stack pointer, the thread believes `new`. A signal handler that is
/// called with a frame above `sp` ends it.
pub fn change(thread: Thread, new: u64, sp: u64) {
    let Blocked { now, after, sp: since } = belief(thread);
    // Within a handler that has changed it already: what its end gives back stays.
    if now & !after != 0 && is_below(sp, since) {
        return thread.set_blocked(new, after, since);
    }
    thread.set_blocked(new, now, sp);
}

/// From here on the thread believes these to be blocked, too: until it opens them itself, or a
/// handler returns in which it is.
pub fn add(thread: Thread, signals: u64) {
    let Blocked { now, after, sp } = belief(thread);
    match now & !after {
        0 => thread.set_blocked(now | signals, now | signals, 0),
        _ => thread.set_blocked(now | signals, after, sp),
    }
}

/// A signal handler with this context returns.
pub fn returned(thread: Thread, context: u64) {
    let Blocked { now, after, sp: since } = belief(thread);
    if is_below(since, context) {
        thread.set_blocked(now & after, after, since);
    }
}

fn is_below(sp: u64, context: u64) -> bool {
    context.wrapping_sub(sp) < STACK
}
