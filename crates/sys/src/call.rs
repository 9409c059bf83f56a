//! Remote system calls: a stopped thread of the target executes them for us.
//!
//! 1. A signal frame with the thread's whole state is written to unused stack ([`Frame`]), then its
//!    registers are set to `syscall; ret` with the frame as return address. From here on the thread
//!    would restore itself if we died.
//! 2. All signals are blocked, so that no handler runs in between; the frame holds the mask to be
//!    restored.
//! 3. The thread runs from one system-call stop to the next, for as many calls as are wanted.
//! 4. If it was in a system call, it is brought to a stop of the signal kind, where the kernel
//!    still decides about the restart of an interrupted one. It gets mask and registers back as
//!    they were. So `nanosleep` and its like continue where they were; a return through the frame,
//!    which only happens without us, would begin them anew.

mod batch;
mod wait;

use std::io;
use std::time::Duration;

use sidestep_isa::{Len, Va};

use crate::arch::{self, FpState, Frame, GADGET_CODE, Gadgets, Regs, Word, is_frame, rseq_abort};
use crate::memory::MemoryError;
use crate::process::Process;
use crate::procfs::Mapping;
use crate::ptrace::{self, Event};
use crate::room;
use crate::stopped::Thread;

pub use batch::{ADD, Batch, Call};
use wait::Waiting;

/// Why a remote system call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The call was made and returned an error.
    #[error("system call {nr} in process {pid} failed: {}; check the limits of that process", io::Error::from_raw_os_error(*.errno))]
    Errno {
        /// Process id.
        pid: i32,
        /// System call number.
        nr: u64,
        /// Its error.
        errno: i32,
    },
    /// A limit on address space was met.
    #[error(
        "process {pid} may map no {} KiB more; raise its limit (ulimit -v, prlimit --as) or the machine's (vm.max_map_count)",
        .len.0 / 1024
    )]
    NoMemory {
        /// Process id.
        pid: i32,
        /// How much was asked for.
        len: Len,
    },
    /// The process ended.
    #[error("process {pid} has exited; nothing is left to do")]
    Exited {
        /// Process id.
        pid: i32,
    },
    /// A seccomp filter is in force.
    #[error(
        "process {pid} runs under a seccomp filter that may kill it for our system calls; run as root, outside containers"
    )]
    Seccomp {
        /// Process id.
        pid: i32,
    },
    /// A user shadow stack forbids the return that protects the target from our death.
    #[error(
        "process {pid} runs with a shadow stack, which is not supported yet; start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"
    )]
    ShadowStack {
        /// Process id.
        pid: i32,
    },
    /// There is no unused stack for a signal frame.
    #[error("no room of {len:?} bytes on any stack of process {pid} at the moment; try again")]
    NoRoom {
        /// Process id.
        pid: i32,
        /// How much was looked for.
        len: Len,
    },
    /// The range given as scratch is too small.
    #[error("the scratch range at {at} is too small: it has {len:?} bytes and needs {needed:?}; give a larger one")]
    Scratch {
        /// Start of the range.
        at: Va,
        /// Its length.
        len: Len,
        /// Bytes needed.
        needed: Len,
    },
    /// No `syscall` instruction could be found or put anywhere.
    #[error("process {pid} has neither a syscall instruction nor padding for one; it cannot be probed")]
    NoGadgets {
        /// Process id.
        pid: i32,
    },
    /// The call did not return.
    #[error("system call {nr} in process {pid} has not returned within {waited:?}; is its control group frozen?")]
    Timeout {
        /// Process id.
        pid: i32,
        /// System call number.
        nr: u64,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The thread executes code of its own where it was told to make a call.
    #[error(
        "thread {tid} of process {pid} has used {used:?} of CPU time and has not made system call {nr}; \
         does the process change code of Sidestep?"
    )]
    Busy {
        /// Process id.
        pid: i32,
        /// The thread.
        tid: i32,
        /// System call number.
        nr: u64,
        /// The CPU time that it has used in user code.
        used: Duration,
    },
    /// The thread got somewhere else than to its system call.
    #[error("thread {tid} of process {pid} did not execute system call {nr} ({saw}); attach again")]
    Astray {
        /// Process id.
        pid: i32,
        /// The thread.
        tid: i32,
        /// System call number.
        nr: u64,
        /// What was seen instead.
        saw: String,
    },
    /// The memory of the target could not be read or written.
    #[error(transparent)]
    Memory(#[from] MemoryError),
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

/// The remote calls of one [`crate::Stopped`].
#[derive(Debug, Default)]
pub(crate) struct Calls {
    active: Option<Active>,
    scratch: Option<(Va, Len)>,
    /// Seccomp filters are suspended for all threads: a call cannot hit one.
    pub(crate) seccomp_suspended: bool,
    /// The process whose threads make the calls, if it is not the one that was stopped.
    pub(crate) maker: Option<i32>,
    /// The thread that makes the calls, if it has to be a certain one.
    pub(crate) only: Option<i32>,
    /// Is there a user shadow stack? As looked up before the threads stood.
    pub(crate) shadow_stack: Option<bool>,
}

/// A thread that stands with a frame to return to.
#[derive(Debug)]
struct Active {
    pid: i32,
    tid: i32,
    /// The process of this thread, if it is another one that executes in the same memory.
    owner: i32,
    /// The registers it had in user code.
    regs: Regs,
    mask: u64,
    frame: Va,
    /// What lay where the frame is; nothing, if that place is ours.
    old: Vec<u8>,
    gadgets: Gadgets,
    /// Where our own gadgets had to be put.
    own_gadgets: Option<Va>,
    /// It may have executed code since its registers were saved.
    ran: bool,
    /// All its signals are blocked.
    is_deaf: bool,
    stands: Stands,
}

/// How a thread stands that makes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// In the kernel's signal code, which decides by its registers whether a system call restarts.
    Signal,
    /// At the end of a system call.
    Call,
    /// It may run.
    Not,
}

impl Calls {
    /// The thread whose registers are changed at the moment.
    pub(crate) fn thread(&self) -> Option<i32> {
        self.active.as_ref().map(|a| a.tid)
    }

    /// Are calls under way, or is it known where there is what they need?
    pub(crate) fn has_all(&self, process: &Process) -> bool {
        self.active.is_some() || self.scratch.is_some() && room::has_gadgets(process)
    }

    pub(crate) fn use_scratch(&mut self, at: Va, len: Len) {
        self.scratch = Some((at, len));
    }

    pub(crate) fn call(
        &mut self,
        process: &Process,
        maps: &[Mapping],
        threads: &mut [Thread],
        nr: u64,
        args: [u64; 6],
    ) -> Result<u64, CallError> {
        let active = self.active(process, maps, threads)?;
        result(process.pid(), nr, active.call(nr, args)? as Word)
    }

    /// Several calls by code in the target.
    pub(crate) fn batch(
        &mut self,
        process: &Process,
        maps: &[Mapping],
        threads: &mut [Thread],
        at: &Batch,
        calls: &[Call],
    ) -> Result<Vec<u64>, CallError> {
        let results = self.active(process, maps, threads)?.batch(process, at, calls)?;
        calls.iter().zip(results).map(|((nr, _), word)| result(process.pid(), *nr as u64, word)).collect()
    }

    fn active(
        &mut self,
        process: &Process,
        maps: &[Mapping],
        threads: &mut [Thread],
    ) -> Result<&mut Active, CallError> {
        match self.active.take() {
            Some(active) => Ok(self.active.insert(active)),
            None => {
                let active = self.begin(process, maps, threads)?;
                let active = self.active.insert(active);
                if active.regs.hides_restart(process) {
                    active.find_restart()?;
                }
                Ok(active)
            }
        }
    }

    fn begin(&self, process: &Process, maps: &[Mapping], threads: &mut [Thread]) -> Result<Active, CallError> {
        let pid = process.pid();
        if self.shadow_stack.unwrap_or_else(|| process.shadow_stack().unwrap_or(false)) {
            return Err(CallError::ShadowStack { pid });
        }
        let all: Vec<Regs> = threads.iter().map(|t| t.regs).collect();
        let maker = self.maker.unwrap_or(pid);
        let thread =
            choose(process, maker, self.only, threads, self.seccomp_suspended).ok_or(CallError::Seccomp { pid })?;
        let (tid, owner) = (thread.tid, thread.pid);
        let io = |what| move |source| io_error(what, pid, tid, source);

        abort_sequence(process, thread)?;
        let fp = FpState::get(tid).map_err(io("read the FP state of"))?;
        let mask = ptrace::get_sigmask(tid).map_err(io("read the signal mask of"))?;
        let len = fp.frame_len();
        let frame = match self.scratch {
            // At its high end: a signal handler could still find room below.
            Some((at, have)) => {
                let frame = Va(at.0.saturating_add(have.0).saturating_sub(len as u64) & !63);
                let needed = Len(len as u64 + 64);
                if frame < at {
                    return Err(CallError::Scratch { at, len: have, needed });
                }
                frame
            }
            None => {
                let len_error = CallError::NoRoom { pid, len: Len(len as u64) };
                room::for_frame(process, maps, &all, len).ok_or(len_error)?
            }
        };
        let regs = thread.regs;
        let found = room::gadgets(process, maps).filter(|found| !regs.restarts_at(found.syscall_ret));
        let (gadgets, own_gadgets) = match found {
            Some(found) => (found, None),
            None => {
                let at = room::for_gadgets(process, maps).ok_or(CallError::NoGadgets { pid })?;
                process.write(at, &GADGET_CODE)?;
                (Gadgets::of_code_at(at), Some(at))
            }
        };
        let mut old = vec![0; if self.scratch.is_some() { 0 } else { len }];
        process.read(frame, &mut old)?;
        if is_frame(process, frame) {
            old.fill(0);
        }
        let bytes = Frame::new(frame, &regs.settled(process), &fp, mask, gadgets).0;
        let active = Active {
            pid,
            tid,
            owner,
            regs,
            mask,
            frame,
            old,
            gadgets,
            own_gadgets,
            ran: false,
            is_deaf: false,
            stands: Stands::Signal,
        };
        if let Err(e) = process.write(frame, &bytes) {
            active.clean(process)?;
            return Err(e.into());
        }
        Ok(active)
    }

    /// Puts the thread back to where it was. Its registers are as before the first call, except for
    /// what [`crate::Stopped::set_ip`] makes of them afterwards.
    pub(crate) fn end(&mut self, process: &Process) -> Result<(), CallError> {
        let Some(active) = self.active.take() else {
            return Ok(());
        };
        // If this fails the frame must stay: the thread will need it.
        active.restore()?;
        active.clean(process)
    }
}

impl Active {
    fn call(&mut self, nr: u64, args: [u64; 6]) -> Result<i64, CallError> {
        self.stand(nr)?;
        let regs = self.regs.for_call(self.gadgets, self.frame, nr, args);
        self.check("set the registers of", ptrace::set_regs(self.tid, &regs))?;
        self.block_signals()?;
        self.stands = Stands::Not;
        self.to_syscall_stop(nr)?;
        let entry = self.regs_now()?;
        if entry.syscall() != Some(nr) {
            let saw = format!("{:?} at {:#x}", entry.syscall(), entry.raw_ip().0);
            return Err(CallError::Astray { pid: self.pid, tid: self.tid, nr, saw });
        }
        self.to_syscall_stop(nr)?;
        self.stands = Stands::Call;
        Ok(self.regs_now()?.result())
    }

    /// The thread goes to the system call that it is about to make, which shows how the kernel
    /// would have gone on with it, and does not make it. If we die before it is there, which takes
    /// some microseconds, its signals stay blocked.
    fn find_restart(&mut self) -> Result<(), CallError> {
        self.block_signals()?;
        self.stands = Stands::Not;
        self.to_syscall_stop(0)?;
        // From here to the next stop, the end of the call, the kernel delivers no signals.
        self.check("set the signal mask of", ptrace::set_sigmask(self.tid, self.mask))?;
        self.is_deaf = false;
        let entry = self.regs_now()?;
        self.regs.set_call_number(&entry);
        self.check("set the registers of", ptrace::set_regs(self.tid, &entry.before_syscall()))?;
        self.to_syscall_stop(0)?;
        self.stands = Stands::Call;
        Ok(())
    }

    /// Before it executes anything for us.
    fn block_signals(&mut self) -> Result<(), CallError> {
        self.ran = true;
        if !self.is_deaf {
            self.is_deaf = true;
            self.check("set the signal mask of", ptrace::set_sigmask(self.tid, u64::MAX))?;
        }
        Ok(())
    }

    fn regs_now(&self) -> Result<Regs, CallError> {
        self.check("read the registers of", ptrace::get_regs(self.tid))
    }

    fn to_syscall_stop(&self, nr: u64) -> Result<(), CallError> {
        let mut signal = 0;
        let mut waiting = Waiting::begin();
        loop {
            self.check("resume", ptrace::cont_to_syscall(self.tid, signal))?;
            match self.wait(nr, &mut waiting)? {
                Event::Syscall => return Ok(()),
                // Only SIGSTOP cannot be blocked; the thread goes on working for us in the stopped
                // process.
                Event::Signal(libc::SIGSTOP) => signal = libc::SIGSTOP,
                Event::Signal(other) => {
                    let saw = format!("signal {other}");
                    return Err(CallError::Astray { pid: self.pid, tid: self.tid, nr, saw });
                }
                Event::Stop | Event::Exec | Event::Clone | Event::Other | Event::Exited(_) => signal = 0,
            }
        }
    }

    fn restore(&self) -> Result<(), CallError> {
        if !self.ran {
            return Ok(());
        }
        // Where nothing is to be restarted, it can go on from the end of a call as well.
        if self.stands == Stands::Not || self.stands == Stands::Call && self.regs.syscall().is_some() {
            self.interrupt(self.regs.result() as u64)?;
        }
        // In this order: with the old registers and all signals blocked, our death would leave the
        // thread deaf.
        self.check("set the signal mask of", ptrace::set_sigmask(self.tid, self.mask))?;
        self.check("set the registers of", ptrace::set_regs(self.tid, &self.regs))
    }

    /// After a call that failed, it may run.
    fn stand(&mut self, nr: u64) -> Result<(), CallError> {
        if self.stands == Stands::Not {
            self.interrupt(nr)?;
            self.stands = Stands::Signal;
        }
        Ok(())
    }

    /// Brings it to a stop of the signal kind, however it stands, or if it runs, too.
    fn interrupt(&self, nr: u64) -> Result<(), CallError> {
        let mut waiting = Waiting::begin();
        self.check("interrupt", ptrace::interrupt(self.tid))?;
        loop {
            let signal = match self.wait(nr, &mut waiting)? {
                Event::Stop => return Ok(()),
                Event::Signal(libc::SIGSTOP) => libc::SIGSTOP,
                _ => 0,
            };
            self.check("resume", ptrace::cont(self.tid, signal))?;
        }
    }

    /// Removes what was written to the target for the calls.
    fn clean(&self, process: &Process) -> Result<(), CallError> {
        if let Some(at) = self.own_gadgets {
            process.write(at, &[0; GADGET_CODE.len()])?;
        }
        if self.old.is_empty() { Ok(()) } else { Ok(process.write(self.frame, &self.old)?) }
    }

    fn check<T>(&self, what: &'static str, result: io::Result<T>) -> Result<T, CallError> {
        result.map_err(|source| io_error(what, self.pid, self.tid, source))
    }
}

/// What the kernel gave.
fn result(pid: i32, nr: u64, word: Word) -> Result<u64, CallError> {
    /// `MAX_ERRNO`
    const LAST: Word = 4095;
    match word.wrapping_neg() {
        errno @ 1..=LAST => Err(CallError::Errno { pid, nr, errno: errno as i32 }),
        _ => Ok(arch::word(word)),
    }
}

/// A tracee that cannot be found any more, though it stood a moment ago, has been killed.
fn io_error(what: &'static str, pid: i32, tid: i32, source: io::Error) -> CallError {
    match source.raw_os_error() {
        Some(libc::ESRCH | libc::ECHILD) => CallError::Exited { pid },
        _ => CallError::Io { what, pid, tid, source },
    }
}

/// The thread that makes the calls. Best is one that stands in a system call which restarts from
/// its registers alone (or has just returned): who sleeps gets a CPU before others that have used
/// theirs up. Then one in user code, and last one whose call the kernel would continue, which
/// begins anew if we die.
fn choose<'t>(
    process: &Process,
    maker: i32,
    only: Option<i32>,
    threads: &'t mut [Thread],
    seccomp_suspended: bool,
) -> Option<&'t mut Thread> {
    // What shares nothing but the memory has other descriptors, signals and limits.
    let may = |t: &&mut Thread| t.pid == maker && only.is_none_or(|tid| t.tid == tid);
    let mut order: Vec<&mut Thread> = threads.iter_mut().filter(may).collect();
    order.sort_by_key(|t| match t.regs.syscall().map(|nr| nr as libc::c_long) {
        Some(libc::SYS_restart_syscall) => 3,
        _ if t.regs.restarts_from_block() => 2,
        Some(_) => 0,
        None => 1,
    });
    order.into_iter().find(|t| seccomp_suspended || process.thread_seccomp(t).is_ok_and(|mode| mode == 0))
}

/// Ends a restartable sequence in the way the kernel would.
fn abort_sequence(process: &Process, thread: &mut Thread) -> Result<(), CallError> {
    let (pid, tid) = (process.pid(), thread.tid);
    if thread.regs.syscall().is_some() {
        return Ok(());
    }
    let Some(area) = ptrace::rseq_area(tid) else {
        return Ok(());
    };
    if let Some((abort, word)) = rseq_abort(process, Va(area), thread.regs.ip())? {
        let mut regs = thread.regs;
        regs.set_ip(abort);
        ptrace::set_regs(tid, &regs).map_err(|e| io_error("set the registers of", pid, tid, e))?;
        thread.regs = regs;
        process.write(word, &[0; 8])?;
    }
    Ok(())
}
