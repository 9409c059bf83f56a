//! How threads come to stand still: asked one by one, waited for until none is left that runs.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use super::{StopError, Stopped, Thread, release, wait_until};
use crate::arch::{Regs, Word, is_frame};
use crate::call::Calls;
use crate::patience::Limit;
use crate::process::Process;
use crate::procfs;
use crate::ptrace::{self, Event};
use crate::sharers;

/// Time for a thread to return through a frame, and how often it is given.
pub(super) const RETURN_TIME: Duration = Duration::from_micros(100);
pub(crate) const RETURN_TRIES: u32 = 50;

impl Stopped {
    /// Begins to stop one thread of a process, while the others run; `None`: it has ended. As a
    /// process that somebody else has stopped is waited for, so is a thread.
    pub(crate) fn begin_thread(process: Process, pid: i32, tid: i32) -> Result<Option<Stopped>, StopError> {
        let timeout = Duration::from_secs(2);
        let limit = Limit::after(timeout);
        let mut calls = Calls::default();
        calls.seccomp_suspended = true;
        let mut stopped = Stopped::new(process, Vec::new(), timeout, calls);
        stopped.keeps_maps = true;
        if pid != stopped.process.pid() {
            stopped.strangers.insert(tid, pid);
        }
        loop {
            match stopped.seize(pid, tid) {
                Ok(true) => return Ok(Some(stopped)),
                Ok(false) => return Ok(None),
                Err(StopError::Denied { .. }) if !limit.is_over() => {
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
        release_stuck(self.process.stuck());
    }

    /// Why a thread has not stopped.
    pub(crate) fn timed_out(&self, tid: i32, timeout: Duration) -> StopError {
        let pid = self.process_of(tid);
        let state = procfs::thread_state(pid, tid).unwrap_or('?');
        let comm = procfs::comm(tid).unwrap_or_default();
        StopError::Timeout { pid, tid, comm, state, meaning: state_meaning(state), timeout }
    }

    pub(super) fn failed(&self, what: &'static str, tid: i32, source: io::Error) -> StopError {
        StopError::Io { what, pid: self.process.pid(), tid, source }
    }

    /// Stops all threads that are not stopped yet, and those of other processes that execute in the
    /// same memory. When all of the known ones stand, only unknown ones can make others: so it is
    /// asked for these until there are none.
    pub(crate) fn catch_threads(&mut self) -> Result<(), StopError> {
        let pid = self.process.pid();
        self.options |= ptrace::TRACE_NEW;
        if self.threads.is_empty() {
            self.since = Instant::now();
        }
        self.catch_process(pid)?;
        let mut caught = HashSet::new();
        loop {
            let mut new = self.process.sharers();
            new.retain(|other| caught.insert(*other));
            if new.is_empty() {
                return Ok(());
            }
            for other in new {
                match self.catch_process(other) {
                    // It has ended, or executed another program.
                    Err(StopError::Exited { .. }) => {}
                    result => result?,
                }
            }
        }
    }

    /// Stops the threads of a process, until as many stand as the kernel counts: a thread that
    /// stands cannot make another, but a pass over the list may miss one that runs
    /// ([`procfs::threads`]). Those that a thread makes which was told to stop begin with a stop,
    /// so a program cannot make threads faster than they are found.
    fn catch_process(&mut self, pid: i32) -> Result<(), StopError> {
        let mut limit = Limit::after(self.timeout);
        loop {
            let before = self.threads.len();
            let pass = self.call_threads(pid)?;
            if !self.process.is_alive() {
                self.process.stuck().borrow_mut().extend(self.coming.drain(..));
                return Err(StopError::Exited { pid });
            }
            self.await_coming()?;
            pass.denied?;
            let counted = procfs::thread_count(pid).map_err(|_| StopError::Exited { pid })?;
            let stopped = self.threads.iter().filter(|thread| thread.pid == pid).count();
            // Nobody else can have been counted if these were, and they have not gone since.
            let are_there = pass.left.iter().all(|tid| procfs::thread_state(pid, *tid).is_some());
            if are_there && counted == stopped + pass.left.len() {
                return if stopped == 0 { Err(StopError::Exited { pid }) } else { Ok(()) };
            }
            // Some are about to end, or have not been found.
            if self.threads.len() > before {
                limit = Limit::after(self.timeout);
            } else if limit.is_over() {
                return Err(StopError::Unsettled { pid, stopped, counted, timeout: limit.waited() });
            } else {
                self.reap_killed();
                std::thread::sleep(RETURN_TIME);
            }
        }
    }

    /// Tells all threads in the list to stop that have not been told.
    fn call_threads(&mut self, pid: i32) -> Result<Pass, StopError> {
        let tids = procfs::threads(pid).map_err(|_| StopError::Exited { pid })?;
        let known: HashSet<i32> = self.threads.iter().map(|t| t.tid).chain(self.coming.iter().copied()).collect();
        // Before the first one stands.
        let (workers, new): (Vec<i32>, Vec<i32>) =
            tids.into_iter().filter(|tid| !known.contains(tid)).partition(|tid| procfs::is_worker(pid, *tid));
        let mut pass = Pass { left: workers, denied: Ok(()) };
        for tid in new {
            match self.seize(pid, tid) {
                Ok(true) => self.expect(pid, tid),
                Ok(false) => pass.left.extend(procfs::is_zombie(pid, tid).then_some(tid)),
                // Those that were seized have to stop before they can be let go.
                Err(error) => {
                    pass.denied = Err(error);
                    break;
                }
            }
        }
        Ok(pass)
    }

    /// Waits for all that are going to stop, and for those that they make before they do.
    pub(super) fn await_coming(&mut self) -> Result<(), StopError> {
        let limit = Limit::after(self.timeout);
        while let Some(tid) = self.coming.pop_front() {
            if let Err(error) = self.await_stop(tid, limit) {
                let mut stuck = self.process.stuck().borrow_mut();
                stuck.push(tid);
                stuck.extend(self.coming.drain(..));
                drop(stuck);
                release_stuck(self.process.stuck());
                return Err(error);
            }
        }
        self.release_strangers();
        Ok(())
    }

    /// Lets threads go that are of other processes and do not execute in this memory: such a
    /// process was made by a thread that was about to stop, or has executed a program meanwhile.
    pub(crate) fn release_strangers(&mut self) {
        let own = self.process.pid();
        if self.threads.iter().all(|thread| thread.pid == own) {
            return;
        }
        let here = self.process.live_thread();
        let shares = |tid: i32| here.is_some_and(|here| sharers::share(here, tid));
        self.threads.retain(|thread| thread.pid == own || shares(thread.tid) || !release(thread.tid));
    }

    /// A thread that was told to stop has made another one, which is going to stop, too.
    fn note_new(&mut self, maker: i32) -> io::Result<()> {
        let tid = ptrace::new_thread(maker)?;
        if self.threads.iter().any(|thread| thread.tid == tid) || self.coming.contains(&tid) {
            return Ok(());
        }
        let pid = procfs::process_of(tid).unwrap_or(self.process.pid());
        self.expect(pid, tid);
        Ok(())
    }

    /// A thread of this process is going to stop.
    fn expect(&mut self, pid: i32, tid: i32) {
        if pid != self.process.pid() {
            self.strangers.insert(tid, pid);
        }
        self.coming.push_back(tid);
    }

    /// The process of a thread that was told to stop.
    pub(super) fn process_of(&self, tid: i32) -> i32 {
        self.strangers.get(&tid).copied().unwrap_or(self.process.pid())
    }

    /// Starts the stop of a thread. `false`: it is gone or going.
    fn seize(&mut self, pid: i32, tid: i32) -> Result<bool, StopError> {
        let was_stuck = {
            let mut stuck = self.process.stuck().borrow_mut();
            let before = stuck.len();
            stuck.retain(|t| *t != tid);
            stuck.len() != before
        };
        let seized = if was_stuck { Ok(()) } else { self.seize_with_options(tid) };
        match seized.and_then(|()| ptrace::interrupt(tid)) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                if was_stuck {
                    self.process.stuck().borrow_mut().push(tid);
                }
                Ok(false)
            }
            // EPERM, too, for a thread that is exiting.
            Err(_) if procfs::has_ended(pid, tid) => Ok(false),
            // Born to one that we trace: it is going to stop.
            Err(_) if procfs::tracer(tid) == ptrace::own_id() => Ok(true),
            Err(source) => Err(StopError::Denied { pid, tid, source }),
        }
    }

    fn seize_with_options(&mut self, tid: i32) -> io::Result<()> {
        if self.calls.seccomp_suspended {
            let result = ptrace::seize(tid, self.options | ptrace::SUSPEND_SECCOMP);
            // Without the privilege, or without support in the kernel.
            if !matches!(&result, Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL))) {
                return result;
            }
            ptrace::seize(tid, self.options)?;
            self.calls.seccomp_suspended = false;
            return Ok(());
        }
        ptrace::seize(tid, self.options)
    }

    /// Waits for the stop of a seized thread and notes its registers. A signal that was just about
    /// to be delivered is, and the thread then stops at the first instruction of the handler. A
    /// signal that an instruction has raised always is: no thread stands between the two.
    pub(super) fn await_stop(&mut self, tid: i32, limit: Limit) -> Result<(), StopError> {
        const LOOK: Duration = Duration::from_millis(20);
        let mut leftover = RETURN_TRIES;
        loop {
            let event = match wait_until(tid, Limit::after(LOOK), || self.reap_killed()) {
                Ok(event) => event,
                // It has ended, and that was seen before.
                Err(e) if e.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
                Err(source) => return Err(self.failed("wait for", tid, source)),
            };
            let Some(event) = event else {
                // The end of the first thread is told when all others have ended, too.
                if procfs::is_zombie(self.process_of(tid), tid) {
                    self.process.stuck().borrow_mut().push(tid);
                    return Ok(());
                }
                if !limit.is_over() {
                    continue;
                }
                return Err(self.timed_out(tid, limit.waited()));
            };
            if self.on_event(tid, event, &mut leftover)? {
                return Ok(());
            }
        }
    }

    /// Deals with what a thread has met that was told to stop. Is it done?
    pub(super) fn on_event(&mut self, tid: i32, event: Event, leftover: &mut u32) -> Result<bool, StopError> {
        let resumed = match event {
            // Its handler has to find the registers of the instruction, so the thread goes on until
            // it is in there.
            Event::Stop if ptrace::has_raised(tid).unwrap_or(false) => ptrace::cont(tid, 0),
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
                    let regs =
                        make_again(tid, regs).map_err(|source| self.failed("set the registers of", tid, source))?;
                    self.threads.push(Thread { pid: self.process_of(tid), tid, regs });
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
            Event::Clone => {
                self.note_new(tid).and_then(|()| ptrace::interrupt(tid)).and_then(|()| ptrace::cont(tid, 0))
            }
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
}

/// Has a call made again that the stop has ended, when the thread goes on.
fn make_again(tid: i32, regs: Regs) -> io::Result<Regs> {
    match regs.made_again() {
        Some(again) => match ptrace::set_regs(tid, &again) {
            // Killed in the meantime.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(regs),
            result => result.map(|()| again),
        },
        None => Ok(regs),
    }
}

/// What a pass over the list of threads has found, besides those that were told to stop.
struct Pass {
    /// Workers of the kernel, and those that have ended and count for as long as nobody has waited
    /// for them.
    left: Vec<i32>,
    /// Why one could not be told.
    denied: Result<(), StopError>,
}

/// Lets those go that have stopped by now; the others stay seized until the process is dropped.
pub(crate) fn release_stuck(stuck: &RefCell<Vec<i32>>) {
    let (mut todo, mut left) = (stuck.take(), Vec::new());
    while let Some(tid) = todo.pop() {
        let goes = match ptrace::wait(tid, true) {
            Ok(None) => false,
            Ok(Some(Event::Signal(signal))) => ptrace::detach(tid, signal).is_ok(),
            Ok(Some(event)) => {
                // What it has made stops, too, and waits for us.
                todo.extend(ptrace::new_thread(tid).ok().filter(|_| event == Event::Clone));
                // What cannot be read or set has died.
                let _ = ptrace::get_regs(tid).and_then(|regs| make_again(tid, regs));
                ptrace::detach(tid, 0).is_ok()
            }
            Err(_) => true,
        };
        if !goes {
            left.push(tid);
        }
    }
    stuck.replace(left);
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
