//! A process whose threads all stand still.

mod suspended;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sidestep_isa::{Len, Va};

use crate::arch::{MMAP, Regs, on_frame};
use crate::call::{Batch, Call, CallError, Calls};
use crate::memory::{MemoryError, Pod};
use crate::news::{self, News};
use crate::process::Process;
use crate::procfs::{self, Mapping};
use crate::ptrace::{self, Event};
use crate::urgent::Urgent;

/// Time for a thread to return through a frame, and how often it is given.
const RETURN_TIME: Duration = Duration::from_micros(100);
pub(crate) const RETURN_TRIES: u32 = 50;

/// System calls after which mappings are others.
const CHANGE_MAPS: [libc::c_long; 5] = [MMAP, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_brk];

/// Why a process could not be stopped, or the state of a thread could not be read or set. The process runs on.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The process ended.
    #[error("process {pid} has exited; nothing is left to do")]
    Exited {
        /// Process id.
        pid: i32,
    },
    /// A thread hangs in the kernel.
    #[error(
        "thread {tid} ({comm}) of process {pid} has not stopped within {timeout:?} (state {state}, {meaning}); try again later"
    )]
    Timeout {
        /// Process id.
        pid: i32,
        /// The thread.
        tid: i32,
        /// Its name.
        comm: String,
        /// Its state letter, as ps shows it.
        state: char,
        /// The letter in words.
        meaning: &'static str,
        /// How long we have waited.
        timeout: Duration,
    },
    /// Someone else traces the process, or a security module forbids it.
    #[error("not permitted to trace thread {tid} of process {pid}: {source}; end any debugger of it, or run as root")]
    Denied {
        /// Process id.
        pid: i32,
        /// The thread.
        tid: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no such stopped thread.
    #[error("process {pid} has no stopped thread {tid}; it may have been killed, so attach again")]
    NoThread {
        /// Process id.
        pid: i32,
        /// The thread.
        tid: i32,
    },
    /// Anything else.
    #[error("cannot {what} thread {tid} of process {pid}: {source}; attach again")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Process id.
        pid: i32,
        /// The thread.
        tid: i32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A stopped thread with the registers it had in user code.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Thread id.
    pub tid: i32,
    /// Registers. To change them see [`Stopped::set_ip`].
    pub regs: Regs,
}

/// A process whose threads all stand still, until [`Stopped::resume`] or drop. Nothing that the program can observe has
/// changed then but the time (and that `epoll_wait` and its like return EINTR, as at every stop and continue:
/// signal(7)). If the controller dies the threads go on, too.
#[derive(Debug)]
pub struct Stopped {
    process: Process,
    threads: Vec<Thread>,
    timeout: Duration,
    calls: Calls,
    /// When the first thread was asked to stop.
    since: Instant,
    /// When the last one was let go.
    let_go_at: Instant,
    /// The mappings as last read; not kept of a process that is let run in between.
    maps: RefCell<Option<Rc<Vec<Mapping>>>>,
    keeps_maps: bool,
    /// As long as it stands because of us.
    urgent: Option<(Urgent, News)>,
}

impl Stopped {
    /// Stops all threads of a running process.
    pub(crate) fn stop(process: Process, timeout: Duration) -> Result<Stopped, StopError> {
        // With filters suspended a remote call cannot hit one; if we may not do that, calls look for a free thread.
        let shadow_stack = process.shadow_stack().ok();
        let mut calls = Calls::default();
        (calls.seccomp_suspended, calls.shadow_stack) = (true, shadow_stack);
        let mut stopped = Stopped::new(process, Vec::new(), timeout, calls);
        stopped.keeps_maps = true;
        stopped.urgent = Some((Urgent::new(), News::new()));
        stopped.catch_threads()?;
        Ok(stopped)
    }

    /// Begins to stop one thread, while the others run; `None`: it has ended. As a process that somebody else has stopped is waited
    /// for, so is a thread.
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

    /// Has the thread that was told to stop done so? If it has ended, it is none of [`Stopped::threads`]. Never blocks.
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

    fn failed(&self, what: &'static str, tid: i32, source: io::Error) -> StopError {
        StopError::Io { what, pid: self.process.pid(), tid, source }
    }

    /// Takes over a process whose only thread is traced and in an [`Event::Stop`].
    pub(crate) fn adopt(process: Process, regs: Regs) -> Stopped {
        let threads = vec![Thread { tid: process.pid(), regs }];
        Stopped::new(process, threads, Duration::from_secs(2), Calls::default())
    }

    fn new(process: Process, threads: Vec<Thread>, timeout: Duration, calls: Calls) -> Stopped {
        let (since, maps) = (Instant::now(), RefCell::new(None));
        Stopped { process, threads, timeout, calls, since, let_go_at: since, maps, keeps_maps: false, urgent: None }
    }

    /// Stops the threads that are not yet, until no pass over the list finds a new one: a thread that stands cannot
    /// make another.
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

    /// Waits for the stop of a seized thread and notes its registers. A signal that was just about to be delivered
    /// is, and the thread then stops at the first instruction of the handler.
    fn await_stop(&mut self, tid: i32, deadline: Instant) -> Result<(), StopError> {
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
    fn on_event(&mut self, tid: i32, event: Event, leftover: &mut u32) -> Result<bool, StopError> {
        let resumed = match event {
            Event::Stop => match ptrace::get_regs(tid) {
                // A controller has died, and the thread is on its way back: let it go on until it is there.
                Ok(regs) if *leftover > 0 && on_frame(&self.process, &regs) => {
                    *leftover -= 1;
                    // It may wait for that controller.
                    let given_up = if regs.restarts() { ptrace::set_regs(tid, &regs.interrupted()) } else { Ok(()) };
                    given_up.and_then(|()| ptrace::cont(tid, 0)).and_then(|()| {
                        std::thread::sleep(RETURN_TIME);
                        ptrace::interrupt(tid)
                    })
                }
                Ok(regs) => {
                    self.threads.push(Thread { tid, regs });
                    return Ok(true);
                }
                Err(e) => Err(e),
            },
            Event::Exited(_) => return Ok(true),
            // Any stop may have been what the interrupt asked for (ptrace(2)): that for a timer's signal is, if the interrupt
            // comes while the kernel sets the timer again. So it is asked for once more, before the thread goes on.
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

    /// Forgets threads that were killed while they stood, and takes their zombies away: an `execve` in another
    /// thread waits for that.
    fn reap_killed(&mut self) {
        self.threads.retain(|t| !matches!(ptrace::wait(t.tid, true), Ok(Some(Event::Exited(_))) | Err(_)));
    }

    fn release_stuck(&self) {
        // Those that have stopped by now can go; the others stay seized until the process is dropped.
        self.process.stuck().borrow_mut().retain(|tid| match ptrace::wait(*tid, true) {
            Ok(None) => true,
            Ok(Some(Event::Signal(signal))) => ptrace::detach(*tid, signal).is_err(),
            Ok(Some(_)) => ptrace::detach(*tid, 0).is_err(),
            Err(_) => false,
        });
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// All threads with the registers with which they will go on.
    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// When it began to stop.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The mappings, ascending. They are read once, as nobody but ourselves changes them now.
    pub fn maps(&self) -> io::Result<Rc<Vec<Mapping>>> {
        if let Some(known) = &*self.maps.borrow() {
            return Ok(known.clone());
        }
        let maps = Rc::new(self.process.maps()?);
        if self.keeps_maps {
            *self.maps.borrow_mut() = Some(maps.clone());
        }
        Ok(maps)
    }

    /// Makes a thread go on at another address. If its registers say [`Regs::restarts`], it stands at a `syscall`
    /// instruction, and there must be one at `at`, too.
    pub fn set_ip(&mut self, tid: i32, at: Va) -> Result<(), StopError> {
        let pid = self.process.pid();
        if self.calls.thread() == Some(tid) {
            // Its registers are ours at the moment.
            self.end_calls().map_err(|_| StopError::NoThread { pid, tid })?;
        }
        let thread = self.threads.iter_mut().find(|t| t.tid == tid).ok_or(StopError::NoThread { pid, tid })?;
        let mut regs = thread.regs;
        regs.set_ip(at);
        ptrace::set_regs(tid, &regs).map_err(|source| match source.raw_os_error() {
            Some(libc::ESRCH) => StopError::NoThread { pid, tid },
            _ => StopError::Io { what: "set the registers of", pid, tid, source },
        })?;
        thread.regs = regs;
        Ok(())
    }

    /// Fills `buf` from run-time address `at`.
    pub fn read(&self, at: Va, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.process.read(at, buf)
    }

    /// Reads one value of plain data.
    pub fn read_pod<T: Pod>(&self, at: Va) -> Result<T, MemoryError> {
        self.process.read_pod(at)
    }

    /// Writes data or text and reads it back; see [`Process::write`].
    pub fn write(&self, at: Va, bytes: &[u8]) -> Result<(), MemoryError> {
        self.process.write(at, bytes)
    }

    /// Lets the target execute a system call and returns its result, or its error as [`CallError::Errno`]. Whatever
    /// happens, the thread that is used for it ends up as it was. Several calls in a row are cheaper than one each
    /// time.
    pub fn call(&mut self, nr: libc::c_long, args: [u64; 6]) -> Result<u64, CallError> {
        let maps = self.maps_for_calls()?;
        if CHANGE_MAPS.contains(&nr) {
            *self.maps.borrow_mut() = None;
        }
        self.calls.call(&self.process, &maps, &mut self.threads, nr as u64, args)
    }

    /// The same for several calls, of which none depends on what another one gives; the results are in their order. All are made,
    /// whether one fails or not: the error is that of the first which has.
    pub fn batch(&mut self, at: &Batch, calls: &[Call]) -> Result<Vec<u64>, CallError> {
        let maps = self.maps_for_calls()?;
        *self.maps.borrow_mut() = None;
        self.calls.batch(&self.process, &maps, &mut self.threads, at, calls)
    }

    /// Needed to begin with, if it has to be looked for what calls need.
    fn maps_for_calls(&self) -> Result<Rc<Vec<Mapping>>, CallError> {
        if self.calls.has_all(&self.process) {
            return Ok(Rc::default());
        }
        self.maps().map_err(|_| CallError::Exited { pid: self.process.pid() })
    }

    /// From now on frames of remote calls lie in this range of readable and writable memory of the target instead of
    /// on a stack. The range must outlive this `Stopped`.
    pub fn use_scratch(&mut self, at: Va, len: Len) -> Result<(), CallError> {
        self.end_calls()?;
        self.calls.use_scratch(at, len);
        Ok(())
    }

    /// Puts the thread that made remote calls back to where it was.
    pub(crate) fn end_calls(&mut self) -> Result<(), CallError> {
        self.calls.end(&self.process)
    }

    /// Lets all threads go on. A process that was suspended by SIGSTOP stays suspended. An error says that the process
    /// died, or that a thread could not be put back by us and does it by itself.
    pub fn resume(self) -> Result<(), CallError> {
        self.resume_timed().1
    }

    /// The same, with the time for which any thread stood: from when the first was asked to stop until the last was let go.
    pub fn resume_timed(mut self) -> (Duration, Result<(), CallError>) {
        let ended = self.let_go();
        (self.stood(), ended)
    }

    /// For how long any thread stood, after [`Stopped::let_go`].
    pub(crate) fn stood(&self) -> Duration {
        self.let_go_at.saturating_duration_since(self.since)
    }

    pub(crate) fn let_go(&mut self) -> Result<(), CallError> {
        let ended = self.end_calls();
        // The first last: whoever else wants to stop the process begins with it.
        for thread in self.threads.drain(..).rev() {
            if !release(thread.tid) {
                self.process.stuck().borrow_mut().push(thread.tid);
            }
        }
        self.let_go_at = Instant::now();
        // Now we may have to wait for those that run again.
        self.urgent = None;
        ended
    }

    /// Lets all threads but the main one go on.
    pub(crate) fn release_others(&mut self) {
        let main = self.process.pid();
        self.threads.retain(|t| {
            if t.tid != main {
                release(t.tid);
            }
            t.tid == main
        });
    }

    /// The registers of the only thread have been changed by running it.
    pub(crate) fn set_main_regs(&mut self, regs: Regs) {
        let main = self.process.pid();
        if let Some(thread) = self.threads.iter_mut().find(|t| t.tid == main) {
            thread.regs = regs;
        }
    }

    /// Forgets all threads without letting them go on: the main one has ended.
    pub(crate) fn forget_threads(&mut self) {
        self.calls = Calls::default();
        self.threads.clear();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.let_go();
    }
}

/// Lets a stopped thread go. If it was killed instead it is waited for and taken away, as a traced zombie would keep
/// its whole process from ending. `false`: it neither stands nor dies.
fn release(tid: i32) -> bool {
    const DYING: Duration = Duration::from_secs(1);
    if ptrace::detach(tid, 0).is_ok() {
        return true;
    }
    let deadline = Instant::now() + DYING;
    loop {
        match wait_until(tid, deadline, || {}) {
            Ok(Some(Event::Exited(_))) | Err(_) => return true,
            Ok(None) => return false,
            // A last stop on its way out.
            Ok(Some(_)) => {
                if ptrace::detach(tid, 0).is_ok() || Instant::now() >= deadline {
                    return true;
                }
            }
        }
    }
}

/// Waits until `deadline`; `None` = nothing came. `meanwhile` is called now and then once it takes long.
///
/// There is no wait with a timeout, and a handler for a timer would be the program's, not ours: so look, wait for news, and
/// look again, in the end at growing distances.
pub(crate) fn wait_until(tid: i32, deadline: Instant, mut meanwhile: impl FnMut()) -> io::Result<Option<Event>> {
    const YIELDS: u32 = 50;
    const LONGEST: Duration = Duration::from_micros(250);
    let mut pause = Duration::from_micros(20);
    for round in 0u32.. {
        if let Some(event) = ptrace::wait(tid, true)? {
            return Ok(Some(event));
        }
        if round < YIELDS {
            news::wait();
            continue;
        }
        if Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST);
        if pause == LONGEST {
            meanwhile();
        }
    }
    Ok(None)
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
