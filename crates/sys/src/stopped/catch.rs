//! How threads come to stand still: asked one by one, waited for until none is left that runs.

use std::io;
use std::time::{Duration, Instant};

use super::{StopError, Stopped, Thread, wait_until};
use crate::arch::{Regs, Word, is_frame};
use crate::call::Calls;
use crate::process::Process;
use crate::procfs;
use crate::ptrace::{self, Event};

/// Time for a thread to return through a frame, and how often it is given.
pub(super) const RETURN_TIME: Duration = Duration::from_micros(100);
pub(crate) const RETURN_TRIES: u32 = 50;

impl Stopped {
    /// Begins to stop one thread, while the others run; `None`: it has ended. As a process that
    /// somebody else has stopped is waited for, so is a thread.
    pub(crate) fn begin_thread(process: Process, tid: i32) -> Result<Option<Stopped>, StopError> {
        let timeout = Duration::from_secs(2);
        let deadline = Instant::now() + timeout;
        let mut calls = Calls::default();
        calls.seccomp_suspended = true;
        let mut stopped = Stopped::new(process, Vec::new(), timeout, calls);
        stopped.keeps_maps = true;
        loop {
            match stopped.seize(tid) {
                Ok(true) => return Ok(Some(stopped)),
                Ok(false) => return Ok(None),
                Err(StopError::Denied { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_micros(500));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Has the thread that was told to stop done so? If it has ended, it is none of
    /// [`Stopped::threads`]. Never blocks.
    pub(crate) fn has_stopped(&mut self, tid: i32, leftover: &mut u32) -> Result<bool, StopError> {
        let asked = Instant::now();
        let event = ptrace::wait(tid, true).map_err(|source| self.failed("wait for", tid, source))?;
        let done = match event {
            Some(event) => self.on_event(tid, event, leftover)?,
            None => {
                self.since = asked;
                false
            }
        };
        Ok(done)
    }

    /// Lets a thread go that has not stopped, as soon as it does.
    pub(crate) fn give_up(&self, tid: i32) {
        self.process.stuck().borrow_mut().push(tid);
        self.release_stuck();
    }

    /// Why a thread has not stopped.
    pub(crate) fn timed_out(&self, tid: i32) -> StopError {
        let (pid, timeout) = (self.process.pid(), self.timeout);
        let state = procfs::thread_state(pid, tid).unwrap_or('?');
        let comm = procfs::comm(tid).unwrap_or_default();
        StopError::Timeout { pid, tid, comm, state, meaning: state_meaning(state), timeout }
    }

    pub(super) fn failed(&self, what: &'static str, tid: i32, source: io::Error) -> StopError {
        StopError::Io { what, pid: self.process.pid(), tid, source }
    }

    /// Stops the threads that are not yet, until no pass over the list finds a new one: a thread
    /// that stands cannot make another.
    pub(crate) fn catch_threads(&mut self) -> Result<(), StopError> {
        let pid = self.process.pid();
        if self.threads.is_empty() {
            self.since = Instant::now();
        }
        loop {
            let tids = self.process.threads().map_err(|_| StopError::Exited { pid })?;
            let mut new = Vec::new();
            let mut denied = Ok(());
            for tid in tids {
                if self.threads.iter().any(|t| t.tid == tid) {
                    continue;
                }
                match self.seize(tid) {
                    Ok(true) => new.push(tid),
                    Ok(false) => {}
                    // Those that were seized have to stop before they can be let go.
                    Err(error) => {
                        denied = Err(error);
                        break;
                    }
                }
            }
            if !self.process.is_alive() {
                return Err(StopError::Exited { pid });
            }
            let deadline = Instant::now() + self.timeout;
            for (i, tid) in new.iter().enumerate() {
                if let Err(e) = self.await_stop(*tid, deadline) {
                    self.process.stuck().borrow_mut().extend(new.iter().skip(i));
                    self.release_stuck();
                    return Err(e);
                }
            }
            denied?;
            if new.is_empty() {
                break;
            }
        }
        if self.threads.is_empty() { Err(StopError::Exited { pid }) } else { Ok(()) }
    }

    /// Starts the stop of a thread. `false`: it is gone or going.
    fn seize(&mut self, tid: i32) -> Result<bool, StopError> {
        let pid = self.process.pid();
        let was_stuck = {
            let mut stuck = self.process.stuck().borrow_mut();
            let before = stuck.len();
            stuck.retain(|t| *t != tid);
            stuck.len() != before
        };
        let seized = if was_stuck { Ok(()) } else { self.seize_with_options(tid) };
        match seized.and_then(|()| ptrace::interrupt(tid)) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            // EPERM, too, for a thread that is exiting.
            Err(_) if matches!(procfs::thread_state(pid, tid), None | Some('Z' | 'X')) => Ok(false),
            Err(source) => Err(StopError::Denied { pid, tid, source }),
        }
    }

    fn seize_with_options(&mut self, tid: i32) -> io::Result<()> {
        if self.calls.seccomp_suspended {
            let result = ptrace::seize(tid, ptrace::OPTIONS | ptrace::SUSPEND_SECCOMP);
            // Without the privilege, or without support in the kernel.
            if !matches!(&result, Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL))) {
                return result;
            }
            ptrace::seize(tid, ptrace::OPTIONS)?;
            self.calls.seccomp_suspended = false;
            return Ok(());
        }
        ptrace::seize(tid, ptrace::OPTIONS)
    }

    /// Waits for the stop of a seized thread and notes its registers. A signal that was just about
    /// to be delivered is, and the thread then stops at the first instruction of the handler.
    pub(super) fn await_stop(&mut self, tid: i32, deadline: Instant) -> Result<(), StopError> {
        let mut leftover = RETURN_TRIES;
        loop {
            let event = wait_until(tid, deadline, || self.reap_killed());
            let event = event.map_err(|source| self.failed("wait for", tid, source))?;
            let Some(event) = event else { return Err(self.timed_out(tid)) };
            if self.on_event(tid, event, &mut leftover)? {
                return Ok(());
            }
        }
    }

    /// Deals with what a thread has met that was told to stop. Is it done?
    pub(super) fn on_event(&mut self, tid: i32, event: Event, leftover: &mut u32) -> Result<bool, StopError> {
        let resumed = match event {
            Event::Stop => match ptrace::get_regs(tid).map(|regs| (regs, is_on_frame(&self.process, &regs))) {
                // A controller has died, and the thread is on its way back: let it go on until it
                // is there.
                Ok((regs, true)) if *leftover > 0 => {
                    *leftover -= 1;
                    // It may wait for that controller.
                    let given_up = if regs.restarts() { ptrace::set_regs(tid, &regs.interrupted()) } else { Ok(()) };
                    given_up.and_then(|()| ptrace::cont(tid, 0)).and_then(|()| {
                        std::thread::sleep(RETURN_TIME);
                        ptrace::interrupt(tid)
                    })
                }
                Ok((regs, returns)) => {
                    self.threads.push(Thread { tid, regs });
                    if returns {
                        self.returning = Some(tid);
                    }
                    return Ok(true);
                }
                Err(e) => Err(e),
            },
            Event::Exited(_) => return Ok(true),
            // Any stop may have been what the interrupt asked for (ptrace(2)): that for a timer's
            // signal is, if the interrupt comes while the kernel sets the timer again. So it is
            // asked for once more, before the thread goes on.
            Event::Signal(signal) => ptrace::interrupt(tid).and_then(|()| ptrace::cont(tid, signal)),
            Event::Syscall | Event::Exec | Event::Other => ptrace::interrupt(tid).and_then(|()| ptrace::cont(tid, 0)),
        };
        match resumed {
            Ok(()) => Ok(false),
            // Killed in the meantime: the next wait says so.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(e) => Err(self.failed("stop", tid, e)),
        }
    }

    /// Forgets threads that were killed while they stood, and takes their zombies away: an `execve`
    /// in another thread waits for that.
    fn reap_killed(&mut self) {
        self.threads.retain(|t| !matches!(ptrace::wait(t.tid, true), Ok(Some(Event::Exited(_))) | Err(_)));
    }

    fn release_stuck(&self) {
        // Those that have stopped by now can go; the others stay seized until the process is
        // dropped.
        self.process.stuck().borrow_mut().retain(|tid| match ptrace::wait(*tid, true) {
            Ok(None) => true,
            Ok(Some(Event::Signal(signal))) => ptrace::detach(*tid, signal).is_err(),
            Ok(Some(_)) => ptrace::detach(*tid, 0).is_err(),
            Err(_) => false,
        });
    }
}

fn state_meaning(state: char) -> &'static str {
    match state {
        'D' => "waiting in the kernel for a device, a network file system or a vfork child",
        'R' => "running; the machine may be overloaded",
        'T' | 't' => "stopped by a tracer or signal",
        'S' | 'I' => "sleeping; its control group may be frozen",
        _ => "unknown",
    }
}

/// Is a thread with these registers about to return through a frame of ours? Its `ret` pops the
/// first word.
fn is_on_frame(process: &Process, regs: &Regs) -> bool {
    [0, size_of::<Word>() as i64].iter().any(|popped| is_frame(process, regs.sp().offset(-popped)))
}
