//! Processes that somebody has stopped by a signal (SIGSTOP, Ctrl-Z): their threads go nowhere
//! until SIGCONT, unless a tracer lets them.

use std::time::{Duration, Instant};

use super::catch::RETURN_TIME;
use super::{StopError, Stopped};
use crate::patience::Limit;
use crate::process::Process;
use crate::procfs;
use crate::ptrace::{self, Event};

/// How often to look whether a thread has had a CPU yet.
const LOOK_TIME: Duration = Duration::from_micros(10);

impl Process {
    /// Is it stopped by a signal? Not if a tracer holds it.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        let tids = self.threads().unwrap_or_default();
        tids.into_iter().any(|tid| procfs::thread_state(self.pid(), tid) == Some('T'))
    }
}

impl Stopped {
    /// Lets a thread go on for some time, also in a process that is suspended, which it stays
    /// (ptrace(2), "Group-stop"). On a busy machine it takes longer until the thread has a CPU, and
    /// it may get none. A thread that ends meanwhile is none of [`Stopped::threads`] any more.
    pub fn nudge(&mut self, tid: i32, time: Duration) -> Result<(), StopError> {
        let pid = self.process.pid();
        self.end_calls().map_err(|_| StopError::NoThread { pid, tid })?;
        let place = self.threads.iter().position(|t| t.tid == tid).ok_or(StopError::NoThread { pid, tid })?;
        let mut slices = self.time_slices(tid);
        ptrace::cont(tid, 0).map_err(|source| self.failed("resume", tid, source))?;
        self.threads.remove(place);
        *self.maps.borrow_mut() = None;
        let stopped = self.run_until(tid, Instant::now() + time, &mut slices);
        if stopped.is_err() {
            self.process.stuck().borrow_mut().push(tid);
        }
        stopped?;
        // Threads that it has made.
        self.await_coming()?;
        // Where it was: who wants to stop the process begins with the first.
        if let Some(back) = self.threads.iter().position(|t| t.tid == tid) {
            self.threads[place..=back].rotate_right(1);
        }
        Ok(())
    }

    /// As [`procfs::time_slices`].
    fn time_slices(&self, tid: i32) -> Option<u64> {
        procfs::time_slices(self.process_of(tid), tid)
    }

    /// Stops a thread again that goes on, at a time; later, if it has had no CPU by then: it needs
    /// one to stop, too, so that makes no pause longer. `slices`: how often it had had one when it
    /// stood.
    fn run_until(&mut self, tid: i32, deadline: Instant, slices: &mut Option<u64>) -> Result<(), StopError> {
        loop {
            let now = Instant::now();
            match deadline.saturating_duration_since(now) {
                Duration::ZERO if slices.is_none() || self.time_slices(tid) != *slices => break,
                Duration::ZERO if now > deadline + self.timeout => break,
                Duration::ZERO => std::thread::sleep(LOOK_TIME),
                left if left < RETURN_TIME => std::hint::spin_loop(),
                _ => std::thread::sleep(RETURN_TIME),
            }
            match ptrace::wait(tid, true).map_err(|source| self.failed("wait for", tid, source))? {
                None => {}
                // In a suspended process the stop that was asked for comes behind the one that was
                // found.
                Some(Event::Stop) => {
                    *slices = self.time_slices(tid);
                    ptrace::cont(tid, 0).map_err(|source| self.failed("resume", tid, source))?;
                }
                Some(event) if self.on_event(tid, event, &mut 0)? => return Ok(()),
                Some(_) => {}
            }
        }
        ptrace::interrupt(tid).map_err(|source| self.failed("interrupt", tid, source))?;
        self.await_stop(tid, Limit::after(self.timeout))
    }
}
