//! Signals that the agent needs deliverable: SIGTRAP for trap probes, SIGSEGV and SIGBUS for reads
//! of memory that may not be there, and these with SIGILL and SIGFPE for faults of displaced
//! instructions, which have to show the original address. While a signal is *ours*, our handler is
//! installed and no thread blocks it; what the program wants is kept here.

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::header::SigAction;

/// SIGILL.
pub const SIGILL: i32 = 4;
/// SIGTRAP.
pub const SIGTRAP: i32 = 5;
/// SIGBUS.
pub const SIGBUS: i32 = 7;
/// SIGFPE.
pub const SIGFPE: i32 = 8;
/// SIGSEGV.
pub const SIGSEGV: i32 = 11;
/// The signals that can be ours, in the order of the arrays of [`Signals`].
pub const SIGNALS: [i32; 5] = [SIGTRAP, SIGBUS, SIGSEGV, SIGILL, SIGFPE];

/// Room for threads in [`Signals::closed`].
pub const CLOSED_MAX: usize = 128;
/// Most sessions that share the signals of another one.
pub const SHARERS_MAX: usize = 32;

/// The word that a thread has on its stack at `at`, a multiple of 4, while it may look into the
/// memory of sessions that share signals. The same word at another address is no mark.
#[must_use]
pub const fn looking_mark(at: u64) -> u64 {
    u64::from_le_bytes(*b"looking!") ^ at
}

/// A signal as a set: bit n - 1, as the kernel has it.
#[must_use]
pub const fn set_of(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// What our handler writes into the frame of a signal that it has dealt with by itself, before it
/// returns. On a stack that nobody has written to since, the frame stays, but no thread will return
/// through it.
///
/// The word is one that the kernel writes in each new frame, of every handler, and never reads: the
/// number of an exception, which is small, or `uc_link`, which is 0 (`setup_rt_frame` in the
/// kernel's `arch/*/kernel/signal*.c`). So no frame of another signal at the same place has it.
pub const DEALT_WITH: u32 = 0x5344_4544;

/// `SA_SIGINFO` and its like (`include/uapi/asm-generic/signal-defs.h`,
/// `arch/x86/include/uapi/asm/signal.h`).
#[allow(missing_docs)] // the kernel's names
pub mod flags {
    pub const SIGINFO: u64 = 4;
    pub const UNSUPPORTED: u64 = 0x400;
    pub const RESTORER: u64 = 0x0400_0000;
    pub const ONSTACK: u64 = 0x0800_0000;
    pub const RESTART: u64 = 0x1000_0000;
    pub const NODEFER: u64 = 0x4000_0000;
    pub const RESETHAND: u64 = 0x8000_0000;
}

/// The flags of our action in place of `old`.
///
/// Not deferred, since the program's handler may hit probes, too. A handler of the program runs on
/// our signal frame, so the frame must lie on the stack that it asked for, and the system calls
/// that it wants restarted must be. Without a handler: on the alternate stack, as threads may have
/// no room on the stack that they are on, unless threads share one ([`Signals::shared_stack`]). And
/// no call may end early.
#[must_use]
pub const fn flags_for(old: &SigAction, shared_stack: bool) -> u64 {
    const AS_THE_PROGRAM_SAYS: u64 = flags::ONSTACK | flags::RESTART;
    let alone = if shared_stack { flags::RESTART } else { AS_THE_PROGRAM_SAYS };
    let as_said = if old.handler > 1 { old.flags & AS_THE_PROGRAM_SAYS } else { alone };
    flags::SIGINFO | flags::RESTORER | flags::NODEFER | as_said
}

/// Part of the private region.
///
/// One session of a process owns the signals: its handler is the kernel's, and all of this is kept
/// in its region. The others are its sharers ([`crate::Private::owner`]).
#[repr(C, align(8))]
pub struct Signals {
    /// Set of the signals that are ours. Changes only while all threads are stopped, and only
    /// grows. 0 in a sharer.
    pub ours: AtomicU64,
    /// Those of them that the handler is installed for and that no thread blocks. A controller may
    /// be killed before all of `ours` are.
    pub in_force: AtomicU64,
    /// As in [`Masks`](crate::masks::Masks). It grows.
    pub own: AtomicU64,
    /// 1: a bad address may be read directly, since our handler of SIGSEGV and SIGBUS is certain to
    /// get the fault.
    pub readable: AtomicU32,
    /// 1: threads share an alternate signal stack. Programs do that with a stack for the handler of
    /// a fault that ends them. Two handlers of ours would overwrite each other there.
    pub shared_stack: AtomicU32,
    /// 1: the session has ended. Its handler and its guards stay for the sharers.
    pub retained: AtomicU32,
    /// 1: the program is getting its signals back, so no session may share them any more.
    pub ending: AtomicU32,
    /// Run-time address of the handler that is installed for signals of ours.
    pub handler: u64,
    /// Its restorer.
    pub restorer: u64,
    /// How many of `sharers` are in use, or were.
    pub sharers_len: AtomicU64,
    /// Run-time addresses of the private regions of the sharers; 0 = none, or none any more.
    /// Changes only while all threads are stopped.
    pub sharers: [AtomicU64; SHARERS_MAX],
    /// What to do with a signal that is not for us: the action that the program believes to be
    /// installed.
    pub old: [SigAction; SIGNALS.len()],
    /// For each of [`SIGNALS`], the set of signals whose actions block it, as the program believes.
    pub blocking: [AtomicU64; SIGNALS.len()],
    /// Threads that had signals of ours blocked when they became ours, until their state takes it
    /// over.
    pub closed: [ClosedThread; CLOSED_MAX],
}

/// A thread that had signals of ours blocked at the attach.
#[repr(C, align(8))]
pub struct ClosedThread {
    /// Its `fs` base. Written last; the thread that takes the entry over makes it 0 = unused.
    pub fs_base: AtomicU64,
    /// As in [`Blocked`].
    pub blocked: Blocked,
}

/// What a thread believes about signals of ours, where its mask does not say it ([`crate::masks`]).
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The set it believes to be blocked. They are open.
    pub now: u64,
    /// What is left of it when the handler returns in which `now` came to be.
    pub after: u64,
    /// Stack pointer where `now` came to be.
    pub sp: u64,
}
