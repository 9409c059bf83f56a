//! Targets under a seccomp filter: the agent's own system calls must not be what kills them.

use sidestep_sys::{Process, Stopped, Verdict, arch};

use crate::error::SessionError;

/// Name, number and arguments of a system call.
type NamedCall = (&'static str, libc::c_long, [u64; 6]);

/// What brings a thread back that has made a call for a controller which was killed meanwhile: no
/// session can do without.
const RETURN: NamedCall = ("rt_sigreturn", libc::SYS_rt_sigreturn, [0; 6]);

/// The system calls of the agent, with the arguments that filters look at.
const CALLS: [NamedCall; 10] = [
    ("gettid", libc::SYS_gettid, [0; 6]),
    ("getpid", libc::SYS_getpid, [0; 6]),
    ("prctl(PR_GET_NAME)", libc::SYS_prctl, [libc::PR_GET_NAME as u64, 0, 0, 0, 0, 0]),
    ("process_vm_readv", libc::SYS_process_vm_readv, [0, 0, 1, 0, 1, 0]),
    ("tgkill", libc::SYS_tgkill, [0; 6]),
    ("mmap", arch::MMAP, [0, 4096, 3, 0x22, u64::MAX, 0]),
    ("clock_gettime", arch::CLOCK_GETTIME, [libc::CLOCK_MONOTONIC as u64, 0, 0, 0, 0, 0]),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask, [0, 0, 0, 8, 0, 0]),
    ("rt_sigaction", libc::SYS_rt_sigaction, [libc::SIGTRAP as u64, 0, 0, 8, 0, 0]),
    ("sched_yield", libc::SYS_sched_yield, [0; 6]),
];

/// What it waits for an answer of the controller with, if there may be any.
const WAIT: NamedCall = ("futex", arch::FUTEX, [0; 6]);

/// What programs send signals to their process with.
const SIGNAL: NamedCall = ("kill", libc::SYS_kill, [0; 6]);

/// What programs write to memory of their process with.
const WRITE: NamedCall = ("process_vm_writev", libc::SYS_process_vm_writev, [0, 0, 1, 0, 1, 0]);

/// What not every session does.
#[derive(Clone, Copy, Default)]
pub(crate) struct Extra {
    /// The agent makes no system call at all ([`sidestep_wire::Private::silent`]).
    pub silent: bool,
    /// The agent may wait for the controller.
    pub waits: bool,
    /// A program may send signals.
    pub signals: bool,
    /// A program may write to memory of the target.
    pub writes: bool,
}

/// Is there any filter? A thread under one cannot leave it.
pub(crate) fn has_filter(process: &Process) -> bool {
    !process.seccomp().is_ok_and(|mode| mode == 0)
}

/// Refuses a target whose filters would punish one of them.
pub(crate) fn check(stopped: &Stopped, extra: Extra) -> Result<(), SessionError> {
    let process = stopped.process();
    let harmful = |(_, number, args): &&NamedCall| stopped.seccomp_verdict(*number, *args) == Verdict::Harmful;
    let others = [(extra.waits, &WAIT), (extra.signals, &SIGNAL), (extra.writes, &WRITE)];
    let others = others.into_iter().filter_map(|(wanted, call)| wanted.then_some(call));
    let made = CALLS.iter().filter(|_| !extra.silent);
    match std::iter::once(&RETURN).chain(made).chain(others).find(harmful) {
        Some((call, ..)) => Err(SessionError::Seccomp { pid: process.pid(), call }),
        None => Ok(()),
    }
}
