//! Which signals of ours a thread believes to be blocked. They are open all the same; the belief
//! decides what the program is told, and that a fault kills it where it would have without us.
//!
//! The end of a signal handler gives back the mask from before. What a handler blocked is told from
//! what was blocked before by the stack pointer of the call: it lies below the handler's signal
//! frame. Where this is wrong (the call was deeper in a function that has returned, then came a
//! signal) a signal counts as open too early, which does no harm.

use core::ptr::{addr_of, addr_of_mut};
use core::sync::atomic::Ordering;

use crate::arch::{self, nr};
use crate::memory::{Agent, Thread};
use crate::thread;

const SIG_BLOCK: u64 = 0;
const SIG_UNBLOCK: u64 = 1;
const SET_LEN: u64 = 8;
/// A frame that is farther above than this belongs to another stack.
const STACK: u64 = 256 << 10;

/// The thread gets its state, whose `fs` base is not set yet: finds out what it has blocked, and
/// opens that.
pub fn prepare(agent: Agent, thread: Thread, fs_base: u64) {
    if thread.fs_base() != fs_base {
        set(thread, 0, 0, 0);
    }
    let owner = agent.owner();
    if owner.address() != agent.address() {
        // The owner does that, for all who share its signals.
        let _ = thread::slot(owner, fs_base);
        return;
    }
    for closed in &agent.private().signals.closed {
        if fs_base != 0 && closed.fs_base.load(Ordering::Acquire) == fs_base {
            set(thread, closed.blocked.now, closed.blocked.after, closed.blocked.sp);
            closed.fs_base.store(0, Ordering::Release);
        }
    }
    if agent.is_silent() {
        return; // no signal is ours
    }
    let ours = ours(agent);
    let mut mask = 0u64;
    let at = addr_of_mut!(mask);
    // SAFETY: sets of our own.
    unsafe {
        arch::syscall(nr::RT_SIGPROCMASK, [SIG_BLOCK, 0, at as u64, SET_LEN, 0, 0]);
        let closed = at.read_volatile() & ours;
        if closed != 0 {
            at.write_volatile(closed);
            arch::syscall(nr::RT_SIGPROCMASK, [SIG_UNBLOCK, at as u64, 0, SET_LEN, 0, 0]);
            set(thread, now(thread) | closed, closed, 0);
        }
    }
}

/// The signals that are ours.
#[must_use]
pub fn ours(agent: Agent) -> u64 {
    agent.private().signals.ours.load(Ordering::Relaxed)
}

/// What the thread believes to be blocked.
#[must_use]
pub fn now(thread: Thread) -> u64 {
    // SAFETY: a field of the thread's state.
    unsafe { addr_of!((*thread.blocked()).now).read_volatile() }
}

/// From here on, with this stack pointer, the thread believes `new`. A signal handler that is
/// called with a frame above `sp` ends it.
pub fn change(thread: Thread, new: u64, sp: u64) {
    let (now, after, since) = get(thread);
    // Within a handler that has changed it already: what its end gives back stays.
    if now & !after != 0 && is_below(sp, since) {
        return set(thread, new, after, since);
    }
    set(thread, new, now, sp);
}

/// A signal handler with this context returns.
pub fn returned(thread: Thread, context: u64) {
    let (now, after, since) = get(thread);
    if is_below(since, context) {
        set(thread, now & after, after, since);
    }
}

fn is_below(sp: u64, context: u64) -> bool {
    context.wrapping_sub(sp) < STACK
}

fn get(thread: Thread) -> (u64, u64, u64) {
    // SAFETY: fields of the thread's state.
    unsafe {
        let at = thread.blocked();
        (addr_of!((*at).now).read_volatile(), addr_of!((*at).after).read_volatile(), addr_of!((*at).sp).read_volatile())
    }
}

fn set(thread: Thread, now: u64, after: u64, sp: u64) {
    // SAFETY: fields of the thread's state.
    unsafe {
        let at = thread.blocked();
        addr_of_mut!((*at).after).write_volatile(after);
        addr_of_mut!((*at).sp).write_volatile(sp);
        addr_of_mut!((*at).now).write_volatile(now);
    }
}
