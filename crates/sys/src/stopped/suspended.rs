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
/// The time of a thread that gets a signal begins anew, so often at most.
const BEGINS: u32 = 4;

impl Process {
    /// Is it stopped by a signal? Not if a tracer holds it.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        let tids = self.threads().unwrap_or_default();
        tids.into_iter().any(|tid| procfs::thread_state(self.pid(), tid) == Some('T'))
    }
}

impl Stopped {
    /// Lets a thread go on for `time`, also in a process that is suspended, which it stays
    /// (ptrace(2), "Group-stop"). The time begins when the thread has got a CPU, which may take
    /// long on a busy machine; it may get none. A thread that ends meanwhile is none of
    /// [`Stopped::threads`] any more.
    pub fn nudge(&mut self, tid: i32, time: Duration) -> Result<(), StopError> {
        let pid = self.process.pid();
        self.end_calls().map_err(|_| StopError::NoThread { pid, tid })?;
        let place = self.threads.iter().position(|t| t.tid == tid).ok_or(StopError::NoThread { pid, tid })?;
        let slices = self.time_slices(tid);
        ptrace::cont(tid, 0).map_err(|source| self.failed("resume", tid, source))?;
        self.threads.remove(place);
        *self.maps.borrow_mut() = None;
        let stopped = self.run_for(tid, time, slices);
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

    /// Stops a thread again that goes on, when it has had `time` since it got a CPU. `slices`: how
    /// often it had had one when it stood.
    fn run_for(&mut self, tid: i32, time: Duration, mut slices: Option<u64>) -> Result<(), StopError> {
        let waits_for_cpu = Limit::after(self.timeout);
        // Whether the thread has a CPU is asked soon, and its time begins then.
        let first = if slices.is_none() { time } else { time.min(LOOK_TIME) };
        let mut until = Instant::now() + first;
        let (mut has_cpu, mut has_waited, mut begins) = (slices.is_none(), false, 0);
        loop {
            match until.saturating_duration_since(Instant::now()) {
                Duration::ZERO if has_cpu || waits_for_cpu.is_over() => break,
                Duration::ZERO => {
                    has_cpu = self.time_slices(tid) != slices;
                    if has_cpu {
                        until = Instant::now() + time;
                    } else {
                        has_waited = true;
                        std::thread::sleep(LOOK_TIME);
                    }
                }
                // The thread may have waited for the CPU that we are on.
                left if left < RETURN_TIME && !has_waited => std::hint::spin_loop(),
                left => std::thread::sleep(left.min(RETURN_TIME)),
            }
            let event = match ptrace::wait(tid, true) {
                // The thread has executed another program, as the first thread now.
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
                event => event.map_err(|source| self.failed("wait for", tid, source))?,
            };
            match event {
                None => {}
                // The stop behind a signal, or that of a suspended process: the thread has had none
                // of its time yet.
                Some(Event::Stop) => {
                    slices = self.time_slices(tid);
                    if begins < BEGINS {
                        (begins, has_cpu, until) = (begins + 1, slices.is_none(), Instant::now() + first);
                    }
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
