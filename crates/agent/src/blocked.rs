//! Which signals of ours a thread believes to be blocked. They are open all the same; the belief
//! decides what the program is told, and that a fault kills it where it would have without us.
//!
//! The end of a signal handler gives back the mask from before. What a handler blocked is told from
//! what was blocked before by the stack pointer of the call: it lies below the handler's signal
//! frame. Where this is wrong (the call was deeper in a function that has returned, then came a
//! signal) a signal counts as open too early, which does no harm.
//!
//! Where ends of handlers are not seen, a signal that nobody uses is blocked besides, as a mark:
//! the kernel opens it with the rest of the mask ([`Blocked::mark`]).

use core::sync::atomic::Ordering;

use sidestep_wire::Blocked;
use sidestep_wire::arch::HANDLER_MARKS;

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
    for closed in &agent.private().signals.closed {
        if fs_base != 0 && closed.fs_base.load(Ordering::Acquire) == fs_base {
            let Blocked { now, after, sp, mark, hidden } = closed.blocked;
            thread.set_blocked(now, after, sp, (mark, hidden));
            closed.fs_base.store(0, Ordering::Release);
        }
    }
    if agent.is_silent() {
        return; // no signal is ours
    }
    let closed = kernel::mask() & ours(agent);
    if closed != 0 {
        kernel::unblock(closed);
        let now = thread.blocked().now | closed;
        thread.set_blocked(now, closed, 0, (0, 0));
    }
}

/// The signals that are ours.
#[must_use]
pub fn ours(agent: Agent) -> u64 {
    agent.private().signals.ours.load(Ordering::Relaxed)
}

/// A new thread believes nothing: what its maker has blocked is open in it, too.
pub fn forget(thread: Thread) {
    thread.set_blocked(0, 0, 0, (0, 0));
}

/// What the thread believes. `mask`: what it has blocked.
#[must_use]
pub fn belief(thread: Thread, mask: impl FnOnce() -> u64) -> Blocked {
    let old = raw(thread);
    // The first condition leaves out code for x86, where zeros would come from an xmm register.
    if HANDLER_MARKS.is_empty() || old.mark == 0 { old } else { old.with_mask(mask()) }
}

/// Of the thread that runs, not of one that has ended and had the same stack, if the C library
/// tells them apart.
fn raw(thread: Thread) -> Blocked {
    if thread.library_tid().is_some() || ASKS {
        thread.current_tid();
    }
    thread.blocked()
}

/// What the thread believes to be blocked. `mask`: what it has blocked.
#[must_use]
pub fn now(thread: Thread, mask: impl FnOnce() -> u64) -> u64 {
    belief(thread, mask).now
}

/// The same, for a thread that is about to change its mask. What has ended is over for good.
#[must_use]
pub fn settle(thread: Thread, mask: impl FnOnce() -> u64) -> Blocked {
    let old = raw(thread);
    if HANDLER_MARKS.is_empty() || old.mark == 0 {
        return old;
    }
    let new = old.with_mask(mask());
    thread.set_blocked(new.now, new.after, new.sp, (new.mark, new.hidden));
    new
}

/// Of those signals of which one may be a mark, one that is not in this mask; 0: there is none, or
/// marks are not needed.
#[must_use]
pub fn free_mark(mask: u64) -> u64 {
    HANDLER_MARKS.into_iter().find(|mark| mark & mask == 0).unwrap_or(0)
}

/// From here on, with this stack pointer, the thread believes `new` and no more `old`. A signal
/// handler that is called with a frame above `sp` ends it.
pub fn change(thread: Thread, old: &Blocked, new: u64, sp: u64) {
    change_marked(thread, old, new, sp, (old.mark, old.hidden));
}

/// The same, with a mark and what is hidden.
pub fn change_marked(thread: Thread, old: &Blocked, new: u64, sp: u64, (mark, hidden): (u64, u64)) {
    // Within a handler that has changed it already: what its end gives back stays.
    let (after, sp) = if is_within(old, sp) { (old.after, old.sp) } else { (old.now, sp) };
    thread.set_blocked(new, after, sp, (mark, hidden));
}

/// Is this the stack pointer of a handler that has changed what is believed, or of what it calls?
fn is_within(old: &Blocked, sp: u64) -> bool {
    old.now & !old.after != 0 && is_below(sp, old.sp)
}

/// The program has changed its mask, and believes `new` from here on. `before` and `now` are what
/// the kernel blocks, `asked` is what the program believes of signals that may be marks: they
/// become that, but for the mark.
pub fn mark(thread: Thread, old: &Blocked, new: u64, sp: u64, (before, now): (u64, u64), asked: u64) {
    let all = HANDLER_MARKS.into_iter().fold(0, |all, mark| all | mark);
    let keeps = old.mark != 0 && (new & !old.now == 0 || is_within(old, sp));
    let mark = match new {
        0 => 0,
        _ if keeps => old.mark,
        // If all are blocked already, it is mostly since the handler's action blocks them.
        _ => HANDLER_MARKS.into_iter().find(|mark| mark & before == 0).or(HANDLER_MARKS.first().copied()).unwrap_or(0),
    };
    let wanted = asked | mark;
    if wanted & !now != 0 {
        kernel::block(wanted & !now);
    }
    let hidden = if new == 0 { 0 } else { (mark | old.hidden) & !asked };
    change_marked(thread, old, new, sp, (mark, hidden));
    if now & all & !wanted != 0 {
        kernel::unblock(now & all & !wanted);
    }
}

/// From here on the thread believes these to be blocked, too: until it opens them itself, or a
/// handler returns in which it is.
pub fn add(thread: Thread, signals: u64) {
    let Blocked { now, after, sp, mark, hidden } = raw(thread);
    match now & !after {
        0 => thread.set_blocked(now | signals, now | signals, 0, (0, 0)),
        _ => thread.set_blocked(now | signals, after, sp, (mark, hidden)),
    }
}

/// A signal handler with this context returns.
pub fn returned(thread: Thread, context: u64) {
    let Blocked { now, after, sp: since, mark, hidden } = raw(thread);
    if is_below(since, context) {
        thread.set_blocked(now & after, after, since, (0, hidden & !mark));
    }
}

fn is_below(sp: u64, context: u64) -> bool {
    context.wrapping_sub(sp) < STACK
}
