//! A process whose threads all stand still.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sidestep_isa::{Len, Va};

use crate::arch::{Caller, FpState, MMAP, Regs};
use crate::call::{Batch, Call, CallError, Calls};
use crate::memory::{MemoryError, Pod};
use crate::news::{self, News};
use crate::patience::Limit;
use crate::process::Process;
use crate::procfs::Mapping;
use crate::ptrace::{self, Event};
use crate::room;
use crate::urgent::Urgent;

mod catch;
mod suspended;
pub(crate) use catch::{RETURN_TRIES, release_stuck};

/// System calls after which mappings are others.
const CHANGE_MAPS: [libc::c_long; 5] = [MMAP, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_brk];

/// Why a process could not be stopped, or the state of a thread could not be read or set. The
/// process runs on.
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
    /// Threads are there that could not be found.
    #[error(
        "process {pid} has {counted} threads, and only {stopped} of them could be stopped within {timeout:?}: \
         the others begin and end all the time; try again later"
    )]
    Unsettled {
        /// Process id.
        pid: i32,
        /// How many threads stood.
        stopped: usize,
        /// How many the kernel counts.
        counted: usize,
        /// How long we have tried.
        timeout: Duration,
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
    /// Its process: not the one that was stopped, if it only executes in the same memory
    /// (`CLONE_VM`).
    pub pid: i32,
    /// Thread id.
    pub tid: i32,
    /// Registers. To change them see [`Stopped::set_ip`].
    pub regs: Regs,
}

/// A process whose threads all stand still, until [`Stopped::resume`] or drop. Nothing that the
/// program can observe has changed then but the time. Calls that the kernel ends with EINTR at
/// every stop (`epoll_wait` and its like: signal(7)) are made again; on Arm they end. If the
/// controller dies the threads go on, too.
#[derive(Debug)]
pub struct Stopped {
    process: Process,
    threads: Vec<Thread>,
    /// Threads that are going to stop: they were told to, or were born to one that was.
    coming: VecDeque<i32>,
    /// Threads of other processes, and these.
    strangers: HashMap<i32, i32>,
    /// What threads are seized with.
    options: i32,
    /// A thread that has not come back from what a dead controller let it do.
    returning: Option<i32>,
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
        // With filters suspended a remote call cannot hit one; if we may not do that, calls look
        // for a free thread.
        let shadow_stack = process.shadow_stack().ok();
        let mut calls = Calls::default();
        (calls.seccomp_suspended, calls.shadow_stack) = (true, shadow_stack);
        let mut stopped = Stopped::new(process, Vec::new(), timeout, calls);
        stopped.keeps_maps = true;
        stopped.urgent = Some((Urgent::new(), News::new()));
        stopped.catch_threads()?;
        Ok(stopped)
    }

    /// Takes over a process whose only thread is traced and in an [`Event::Stop`].
    pub(crate) fn adopt(process: Process, regs: Regs) -> Stopped {
        let threads = vec![Thread { pid: process.pid(), tid: process.pid(), regs }];
        Stopped::new(process, threads, Duration::from_secs(2), Calls::default())
    }

    fn new(process: Process, threads: Vec<Thread>, timeout: Duration, calls: Calls) -> Stopped {
        let (since, maps) = (Instant::now(), RefCell::new(None));
        Stopped {
            process,
            threads,
            coming: VecDeque::new(),
            strangers: HashMap::new(),
            options: ptrace::OPTIONS,
            returning: None,
            timeout,
            calls,
            since,
            let_go_at: since,
            maps,
            keeps_maps: false,
            urgent: None,
        }
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// All threads with the registers with which they will go on, also those of other processes
    /// that execute in the same memory.
    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// A thread whose system calls the kernel gives back to the program (Syscall User Dispatch).
    #[must_use]
    pub fn dispatching(&self) -> Option<i32> {
        self.threads.iter().map(|thread| thread.tid).find(|tid| ptrace::has_dispatch(*tid))
    }

    /// A thread that was let execute something by a controller which has died since, and had no CPU
    /// to come back from it: it may need what that controller has mapped.
    #[must_use]
    pub fn returning(&self) -> Option<i32> {
        self.returning
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

    /// Is there room on a stack for what a remote call needs? Not if a thread is at the end of the
    /// only stack that could be used.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let (Some(thread), Ok(maps)) = (self.threads.first(), self.maps()) else { return true };
        let Ok(state) = FpState::get(thread.tid) else { return true };
        let all: Vec<Regs> = self.threads.iter().map(|thread| thread.regs).collect();
        room::for_frame(&self.process, &maps, &all, state.frame_len()).is_some()
    }

    /// Makes a thread go on at another address. If its registers say [`Regs::restarts`], it stands
    /// at a `syscall` instruction, and there must be one at `at`, too.
    pub fn set_ip(&mut self, tid: i32, at: Va) -> Result<(), StopError> {
        self.change(tid, |regs| regs.set_ip(at))
    }

    /// Makes a thread whose registers say [`Regs::is_behind_call`] go on at `at`, as if it had made
    /// the call right before that.
    pub fn set_behind_call(&mut self, tid: i32, at: Va) -> Result<(), StopError> {
        self.change(tid, |regs| regs.set_behind_call(at))
    }

    /// Makes a thread go on at `at`, with the registers that a caller had.
    pub fn go_back(&mut self, tid: i32, caller: &Caller, at: Va) -> Result<(), StopError> {
        self.change(tid, |regs| regs.go_back(caller, at))
    }

    /// Replaces values in the registers from which system calls take their arguments, of a thread
    /// that is in a call or not: those for which `other` gives another one.
    pub fn replace_arguments(&mut self, tid: i32, other: impl Fn(u64) -> Option<u64>) -> Result<(), StopError> {
        let thread = self.threads.iter().find(|thread| thread.tid == tid);
        let before = thread.ok_or(StopError::NoThread { pid: self.process.pid(), tid })?.regs.arguments();
        let after = before.map(|value| other(value).unwrap_or(value));
        if after == before { Ok(()) } else { self.change(tid, |regs| regs.set_arguments(after)) }
    }

    fn change(&mut self, tid: i32, change: impl FnOnce(&mut Regs)) -> Result<(), StopError> {
        let pid = self.process.pid();
        if self.calls.thread() == Some(tid) {
            // Its registers are ours at the moment.
            self.end_calls().map_err(|_| StopError::NoThread { pid, tid })?;
        }
        let thread = self.threads.iter_mut().find(|t| t.tid == tid).ok_or(StopError::NoThread { pid, tid })?;
        let mut regs = thread.regs;
        change(&mut regs);
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

    /// The processes that execute in the same memory and are not the one that was stopped,
    /// ascending.
    #[must_use]
    pub fn others(&self) -> Vec<i32> {
        let own = self.process.pid();
        let others: BTreeSet<i32> = self.threads.iter().map(|t| t.pid).filter(|pid| *pid != own).collect();
        others.into_iter().collect()
    }

    /// Lets a thread of this process make remote calls from now on: the one that was stopped, or
    /// one of [`Stopped::others`].
    pub fn make_calls_in(&mut self, pid: i32) -> Result<(), CallError> {
        self.end_calls()?;
        self.calls.maker = Some(pid);
        Ok(())
    }

    /// Lets the target execute a system call and returns its result, or its error as
    /// [`CallError::Errno`]. Whatever happens, the thread that is used for it ends up as it was.
    /// Several calls in a row are cheaper than one each time.
    pub fn call(&mut self, nr: libc::c_long, args: [u64; 6]) -> Result<u64, CallError> {
        let maps = self.maps_for_calls()?;
        if CHANGE_MAPS.contains(&nr) {
            *self.maps.borrow_mut() = None;
        }
        self.calls.call(&self.process, &maps, &mut self.threads, nr as u64, args)
    }

    /// [`Stopped::call`] by a certain thread, for what each thread has of its own. Costs some 0.1
    /// ms, as the thread is put back to where it was at once.
    pub fn call_in(&mut self, tid: i32, nr: libc::c_long, args: [u64; 6]) -> Result<u64, CallError> {
        self.end_calls()?;
        self.calls.only = Some(tid);
        let result = self.call(nr, args);
        self.calls.only = None;
        self.end_calls().and(result)
    }

    /// The same as [`Stopped::call`] for several calls, of which none depends on what another one
    /// gives; the results are in their order. All are made, whether one fails or not: the error is
    /// that of the first which has.
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

    /// From now on frames of remote calls lie in this range of readable and writable memory of the
    /// target instead of on a stack. The range must outlive this `Stopped`.
    pub fn use_scratch(&mut self, at: Va, len: Len) -> Result<(), CallError> {
        self.end_calls()?;
        self.calls.use_scratch(at, len);
        Ok(())
    }

    /// Puts the thread that made remote calls back to where it was.
    pub(crate) fn end_calls(&mut self) -> Result<(), CallError> {
        self.calls.end(&self.process)
    }

    /// Lets all threads go on. A process that was suspended by SIGSTOP stays suspended. An error
    /// says that the process died, or that a thread could not be put back by us and does it by
    /// itself.
    pub fn resume(self) -> Result<(), CallError> {
        self.resume_timed().1
    }

    /// The same, with the time for which any thread stood: from when the first was asked to stop
    /// until the last was let go.
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

/// Lets a stopped thread go. If it was killed instead it is waited for and taken away, as a traced
/// zombie would keep its whole process from ending. `false`: it neither stands nor dies.
fn release(tid: i32) -> bool {
    const DYING: Duration = Duration::from_secs(1);
    if ptrace::detach(tid, 0).is_ok() {
        return true;
    }
    let limit = Limit::after(DYING);
    loop {
        match wait_until(tid, limit, || {}) {
            Ok(Some(Event::Exited(_))) | Err(_) => return true,
            Ok(None) => return false,
            // A last stop on its way out.
            Ok(Some(_)) => {
                if ptrace::detach(tid, 0).is_ok() || limit.is_over() {
                    return true;
                }
            }
        }
    }
}

/// Waits up to a limit; `None` = nothing came. `meanwhile` is called now and then once it takes
/// long.
///
/// There is no wait with a timeout, and a handler for a timer would be the program's, not ours: so
/// look, wait for news, and look again, in the end at growing distances.
pub(crate) fn wait_until(tid: i32, limit: Limit, mut meanwhile: impl FnMut()) -> io::Result<Option<Event>> {
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
        if limit.is_over() {
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
