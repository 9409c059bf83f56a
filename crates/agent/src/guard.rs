//! Keeps SIGTRAP deliverable while there are trap probes: the kernel kills a process whose `int3` finds the signal
//! blocked, or its handler replaced (`force_sig_info_to_task` in kernel/signal.c).
//!
//! The engine probes the target's own system calls that change masks or actions, between `mov $NUMBER,%eax` and
//! `syscall`. What the program asked for is done here, with SIGTRAP left open and its answers made as if it were not; the
//! system call that follows then becomes one that returns 0 and does nothing.

use sidestep_wire::{Frame, SigAction};

use crate::arch::{self, nr};
use crate::memory::{Agent, Thread};
use crate::safe_read;
use crate::thread::is_borrower;

const SIGTRAP: u64 = 5;
const TRAP_BIT: u64 = 1 << (SIGTRAP - 1);
const SIG_UNBLOCK: u64 = 1;
const SIG_SETMASK: u64 = 2;
const SET_LEN: u64 = 8;

/// A system call is about to be made by the target.
pub fn system_call(agent: Agent, thread: Thread, frame: &mut Frame) {
    match frame.rax {
        nr::RT_SIGPROCMASK if frame.r10 == SET_LEN => mask(agent, thread, frame),
        nr::RT_SIGACTION if frame.r10 == SET_LEN => action(agent, frame),
        // These wait with another mask, which a handler that runs meanwhile keeps. The call itself is the target's:
        // no thread may wait in here.
        nr::RT_SIGSUSPEND => frame.rdi = opened(thread, frame.rdi),
        nr::PPOLL => frame.r10 = opened(thread, frame.r10),
        nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 => frame.r8 = opened(thread, frame.r8),
        _ => {}
    }
}

/// The call is done: what follows must return 0 and change nothing.
fn done(frame: &mut Frame) {
    frame.rax = nr::SCHED_YIELD;
}

fn mask(agent: Agent, thread: Thread, frame: &mut Frame) {
    let (how, set, old) = (frame.rdi, frame.rsi, frame.rdx);
    let mut wanted = 0;
    if set != 0 {
        match safe_read::word(set, safe_read::here()) {
            Some(mask) => wanted = mask,
            None => return, // the kernel says what is wrong with it
        }
    }
    let open = wanted & !TRAP_BIT;
    let was_blocked = thread.sigtrap_blocked();
    if (set == 0 || wanted & TRAP_BIT == 0 && how != SIG_SETMASK) && was_blocked == 0 {
        return;
    }
    let from = if set == 0 { 0 } else { core::ptr::addr_of!(open) as u64 };
    // SAFETY: a set of our own, and the program's pointer for the answer, which the kernel checks.
    let result = unsafe { arch::syscall(nr::RT_SIGPROCMASK, [how, from, old, SET_LEN, 0, 0]) };
    if result != 0 {
        return; // made once more by the program, it fails the same way
    }
    if old != 0 && was_blocked != 0 {
        // SAFETY: the kernel has just written there.
        unsafe { *(old as *mut u64) |= TRAP_BIT };
    }
    if set != 0 && !is_borrower(agent) {
        let named = wanted & TRAP_BIT != 0;
        match how {
            SIG_SETMASK => thread.set_sigtrap_blocked(u32::from(named)),
            SIG_UNBLOCK if named => thread.set_sigtrap_blocked(0),
            _ if named => thread.set_sigtrap_blocked(1),
            _ => {}
        }
    }
    done(frame);
}

fn action(agent: Agent, frame: &mut Frame) {
    let (signal, new, old) = (frame.rdi, frame.rsi, frame.rdx);
    if new == 0 {
        if signal == SIGTRAP {
            own_action(agent, frame, None, old);
        }
        return;
    }
    // The kernel says what is wrong with an action that cannot be read.
    let Some(mut wanted) = read_action(new) else { return };
    if signal == SIGTRAP {
        return own_action(agent, frame, Some(wanted), old);
    }
    if wanted.mask & TRAP_BIT == 0 {
        return;
    }
    wanted.mask &= !TRAP_BIT;
    let from = core::ptr::addr_of!(wanted) as u64;
    // SAFETY: an action of our own, and the program's pointer for the answer, which the kernel checks.
    if unsafe { arch::syscall(nr::RT_SIGACTION, [signal, from, old, SET_LEN, 0, 0]) } == 0 {
        done(frame);
    }
}

/// Field by field: zeros to begin with would come from an xmm register.
fn read_action(at: u64) -> Option<SigAction> {
    let word = |index: u64| safe_read::word(at.wrapping_add(8 * index), safe_read::here());
    Some(SigAction { handler: word(0)?, flags: word(1)?, restorer: word(2)?, mask: word(3)? })
}

/// The program's own SIGTRAP action: remembered for traps that are not ours.
fn own_action(agent: Agent, frame: &mut Frame, new: Option<SigAction>, old: u64) {
    if old != 0 {
        // Asked of the kernel first, which checks the pointer; then the truth.
        // SAFETY: the program's pointer, which the kernel checks.
        if unsafe { arch::syscall(nr::RT_SIGACTION, [SIGTRAP, 0, old, SET_LEN, 0, 0]) } != 0 {
            return;
        }
        let current = agent.old_sigtrap();
        // SAFETY: the kernel has just written an action there.
        unsafe { (old as *mut SigAction).write_unaligned(current) };
    }
    // `posix_spawn` gives its child the default actions before the program begins: not the parent's business.
    if let (Some(new), false) = (new, is_borrower(agent)) {
        agent.set_old_sigtrap(new);
    }
    done(frame);
}

/// A copy of a signal set without SIGTRAP that lives until the call that follows is over; the set itself where that
/// makes no difference.
fn opened(thread: Thread, set: u64) -> u64 {
    if set == 0 {
        return set;
    }
    match safe_read::word(set, safe_read::here()) {
        Some(mask) if mask & TRAP_BIT != 0 => thread.keep_mask(mask & !TRAP_BIT),
        _ => set,
    }
}
