//! Calls that make children which run the program's code for a while: `vfork`, `clone` and
//! `clone3`, before they are made.
//!
//! A child that is made on its parent's memory (`CLONE_VM`) and is no thread of it is not the
//! probed process, but has the same lookup entry: [`thread::lend`]. With children that are followed
//! nothing is to be done: they count, as a part of the parent's cells.
//!
//! A child that is made without signal handlers (`CLONE_CLEAR_SIGHAND`, as glibc 2.38 does in
//! `posix_spawn`) would have lost ours, too, and a trap would kill it. So the flag is taken away,
//! and what it does is done by the child right before its first system call that has to do with
//! signals, which has a guard. Until then no handler can run, if all signals that have one are
//! blocked when the call is made; where they are not, the flag stays.

use core::mem::MaybeUninit;

use sidestep_wire::private::CLONE_ARGS;
use sidestep_wire::signals::{SIGNALS, set_of};
use sidestep_wire::{Regs, SigAction};

use crate::arch::{self, argument, nr};
use crate::guard::{self, NEVER_BLOCKED, NSIG};
use crate::kernel::{SET_LEN, process_id};
use crate::memory::{Agent, Thread};
use crate::signal::{SIG_DFL, SIG_IGN};
use crate::thread::{self, is_borrower};
use crate::{blocked, kernel, safe_read, signal};

// include/uapi/linux/sched.h
const CLONE_VM: u64 = 0x100;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x1_0000;
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
/// Size of the first `struct clone_args`.
const CLONE_ARGS_FIRST: u64 = 64;

/// One of these calls is about to be made.
pub fn call(agent: Agent, thread: Thread, frame: &mut Regs) {
    let (at, len) = (*argument(frame, 0), *argument(frame, 1));
    let flags = match frame.call_number() {
        nr::VFORK => CLONE_VM | CLONE_VFORK,
        nr::CLONE => at,
        _ => match safe_read::u64_at(agent, at) {
            Some(flags) => flags,
            None => return, // the kernel says what is wrong with it
        },
    };
    if flags & (CLONE_VM | CLONE_THREAD) == CLONE_VM {
        for (session, thread) in guard::states(agent, thread).filter(|(session, _)| session.private().follow == 0) {
            thread::lend(session, thread, frame.sp());
        }
    }
    if frame.call_number() == nr::CLONE3 && flags & (CLONE_CLEAR_SIGHAND | CLONE_SIGHAND) == CLONE_CLEAR_SIGHAND {
        // A child that runs beside its parent could not be told from it in time.
        let waits = flags & (CLONE_VM | CLONE_VFORK) != CLONE_VM;
        if waits && is_quiet(agent, thread) && copy_args(agent, thread, at, len) {
            // SAFETY: the first word of the copy.
            unsafe { thread.clone_args().write_volatile(flags & !CLONE_CLEAR_SIGHAND) };
            thread.set_clearing(process_id().into());
            *argument(frame, 0) = thread.clone_args() as u64;
        }
    }
}

/// Can no handler of the program run as things are: is every signal that has one blocked?
fn is_quiet(agent: Agent, thread: Thread) -> bool {
    let ours = blocked::ours(agent);
    let closed = blocked::told(agent, Some(thread), kernel::mask()) | NEVER_BLOCKED;
    (1..=NSIG).filter(|number| closed & bit(*number) == 0).all(|number| {
        let own = signal::index(number as i32).filter(|_| ours & bit(number) != 0);
        own.map_or_else(|| handler(number), |index| signal::old_action(agent, index).handler) <= SIG_IGN
    })
}

fn bit(number: u64) -> u64 {
    1 << (number - 1)
}

/// `struct clone_args`, into the thread's state.
fn copy_args(agent: Agent, thread: Thread, at: u64, len: u64) -> bool {
    let room = (CLONE_ARGS * size_of::<u64>()) as u64;
    if !(CLONE_ARGS_FIRST..=room).contains(&len) {
        return false;
    }
    // SAFETY: there is that much room.
    unsafe { safe_read::copy(agent, at, thread.clone_args().cast(), len) == len }
}

/// A system call is about to be made that has to do with signals, after one that makes a child
/// without handlers: is this the child, and has it its parent's still?
#[cold]
pub fn clear(agent: Agent, thread: Thread) {
    let (parent, pid) = (thread.clearing() as u32, process_id());
    if pid == parent {
        return thread.set_clearing(0);
    }
    if thread.clearing() >> 32 == pid.into() {
        return;
    }
    let ours = blocked::ours(agent);
    // As `flush_signal_handlers` in kernel/signal.c: what is ignored stays so.
    for number in (1..=NSIG).filter(|number| (ours | NEVER_BLOCKED) & bit(*number) == 0 && handler(*number) > SIG_IGN) {
        static DEFAULT: [u64; 4] = [SIG_DFL, 0, 0, 0];
        // SAFETY: an action, which is zeros.
        unsafe { arch::syscall(nr::RT_SIGACTION, [number, DEFAULT.as_ptr() as u64, 0, SET_LEN, 0, 0]) };
    }
    if is_borrower(agent) {
        return thread.set_clearing(u64::from(pid) << 32 | u64::from(parent));
    }
    // What the program believes about ours is the child's own.
    for (index, _) in SIGNALS.iter().enumerate().filter(|(_, signal)| ours & set_of(**signal) != 0) {
        if signal::old_action(agent, index).handler != SIG_IGN {
            signal::set_old_action(agent, index, &SigAction { handler: SIG_DFL, flags: 0, restorer: 0, mask: 0 });
        }
    }
    thread.set_clearing(0);
}

/// As the kernel has it.
fn handler(number: u64) -> u64 {
    let mut action = MaybeUninit::<arch::KernelAction>::uninit();
    let at = action.as_mut_ptr() as u64;
    // SAFETY: an action of our own, which the call fills; its handler is its first word.
    match unsafe { arch::syscall(nr::RT_SIGACTION, [number, 0, at, SET_LEN, 0, 0]) } {
        // SAFETY: it is filled.
        0 => unsafe { arch::read_word(at) },
        _ => SIG_DFL,
    }
}

/// Is this a child on its parent's memory that was made without handlers?
#[must_use]
pub fn is_cleared(thread: Thread) -> bool {
    thread.clearing() != 0 && thread.clearing() as u32 != process_id()
}
