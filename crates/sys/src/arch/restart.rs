//! An interrupted system call and its restart, as registers of x86 tell of them.

use sidestep_isa::Va;

use super::host::{CONTINUED, END_AT_STOPS, IO_PGETEVENTS, SYSCALL, number_from_code};
use super::regs::{CALL_LEN, Regs};
use crate::process::Process;

// include/linux/errno.h: what an interrupted system call leaves in rax for the kernel's own signal
// code.
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
pub(super) const ERESTART_RESTARTBLOCK: i64 = -516;

/// Calls that may be given a signal mask, in which argument (`io_uring_enter` also in a structure).
const WAITS_WITH_MASK: [(libc::c_long, usize); 4] =
    [(libc::SYS_epoll_pwait, 4), (libc::SYS_epoll_pwait2, 4), (libc::SYS_io_uring_enter, 4), (IO_PGETEVENTS, 5)];

impl Regs {
    /// The address of the instruction that the thread executes next. If it was stopped inside a
    /// system call that the kernel will restart, this is the instruction that makes the call,
    /// although the hardware register is already behind it.
    #[must_use]
    pub fn ip(&self) -> Va {
        if self.restarts() { self.raw_ip().offset(-CALL_LEN) } else { self.raw_ip() }
    }

    /// Makes the thread go on at `at`. If [`Regs::restarts`], there must be a system call, too.
    pub(crate) fn set_ip(&mut self, at: Va) {
        let at = if self.restarts() { at.offset(CALL_LEN) } else { at };
        self.set_raw_ip(at);
    }

    /// Was the thread stopped inside a system call that the kernel will restart when it goes on?
    #[must_use]
    pub fn restarts(&self) -> bool {
        self.syscall().is_some()
            && matches!(self.result(), ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND | ERESTART_RESTARTBLOCK)
    }

    /// May the thread wait in a system call with a signal mask of its own, which the kernel goes on
    /// with?
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.restarts()
    }

    /// Did the thread wait in a system call when it was stopped?
    #[must_use]
    pub fn waits(&self) -> bool {
        self.restarts() || self.syscall().is_some() && self.result() == -i64::from(libc::EINTR)
    }

    /// The same, but its system call has been interrupted for good.
    pub(crate) fn interrupted(&self) -> Regs {
        let mut regs = *self;
        regs.set_result(-i64::from(libc::EINTR) as u64);
        regs.end_syscall();
        regs
    }

    /// The registers with which the kernel makes a call again that a stop has ended with EINTR
    /// ([`super::host::END_AT_STOPS`]); `None`: it was another call, or has another result.
    ///
    /// With EINTR, nothing was transferred, and no event was taken. (A `connect` goes on
    /// connecting.) The kernel looks at the result when the thread goes on: if a handler of the
    /// program runs first, the call ends with EINTR after all (arch/x86/kernel/signal.c:
    /// `handle_signal`, `arch_do_signal_or_restart`). A timeout begins anew.
    ///
    /// A call that waits with a signal mask of its own ends: the guard in front of the next one
    /// changes the mask.
    pub(crate) fn made_again(&self) -> Option<Regs> {
        let ends = |number: &u64| {
            let number = *number as libc::c_long;
            let mask = WAITS_WITH_MASK.iter().find(|(call, _)| *call == number);
            END_AT_STOPS.contains(&number) && mask.is_none_or(|(_, mask)| self.arguments()[*mask] == 0)
        };
        (self.syscall().as_ref().is_some_and(ends) && self.result() == -i64::from(libc::EINTR)).then(|| {
            let mut regs = *self;
            regs.set_result(ERESTARTNOHAND as u64);
            regs
        })
    }

    /// Does no register tell whether a system call that is about to be made is one that the kernel
    /// restarts? One always does.
    pub(crate) fn hides_restart(&self, _: &Process) -> bool {
        false
    }

    /// See [`Regs::hides_restart`].
    pub(crate) fn set_call_number(&mut self, _: &Regs) {}

    /// Would the kernel make the interrupted system call of the thread again, and not another one,
    /// if the thread went on at `at`? Its result says no.
    pub(crate) fn restarts_at(&self, _at: Va) -> bool {
        false
    }

    /// Will the restart use state that the kernel keeps for this thread (`restart_syscall(2)`),
    /// which a signal return would throw away?
    pub(crate) fn restarts_from_block(&self) -> bool {
        self.restarts() && self.result() == ERESTART_RESTARTBLOCK
    }

    /// The registers with which user code goes on if the kernel's restart logic is not asked again,
    /// as after a signal return: the same as `arch_do_signal_or_restart` makes
    /// (arch/x86/kernel/signal.c), except that a call which would be continued from kernel state
    /// begins anew; its argument registers are still there.
    pub(crate) fn settled(&self, process: &Process) -> Regs {
        let mut regs = *self;
        if self.restarts() || self.is_restarting(process) {
            regs.set_raw_ip(self.ip());
            regs.set_result(self.number_from_code(process).unwrap_or(self.kept_number()));
        }
        regs.end_syscall();
        regs
    }

    /// Stopped again between the kernel's decision to continue a call (`restart_syscall` in rax,
    /// the instruction pointer back at the system call) and the call?
    fn is_restarting(&self, process: &Process) -> bool {
        self.syscall().is_some()
            && self.result() as libc::c_long == libc::SYS_restart_syscall
            && process.read_pod(self.ip()).is_ok_and(|code: [u8; 2]| code == SYSCALL)
    }

    /// A call that was interrupted twice has become a `restart_syscall`, and no register tells what
    /// it was. The code in front of the call does, in most programs (not in musl's: there the call
    /// returns EINTR if we die).
    fn number_from_code(&self, process: &Process) -> Option<u64> {
        if self.kept_number() != libc::SYS_restart_syscall as u64 {
            return None;
        }
        let nr = number_from_code(process, self.ip(), self.sp())?;
        CONTINUED.contains(&(nr as libc::c_long)).then_some(nr.into())
    }

    /// The call is not made now: the thread goes back to the instruction before it.
    pub(crate) fn before_syscall(&self) -> Regs {
        let mut regs = *self;
        regs.set_raw_ip(self.raw_ip().offset(-CALL_LEN));
        regs.set_result(self.kept_number());
        regs.end_syscall();
        regs
    }
}
