//! Following a process that is about to execute another program, from the outside: traced until it
//! has.

#![allow(unsafe_code, reason = "getxattr")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use crate::ExitStatus;
use crate::access::OpenError;
use crate::patience::Limit;
use crate::process::Process;
use crate::procfs;
use crate::ptrace::{self, Event};
use crate::spawn::{Child, Spawned, stop_after_exec};
use crate::startup::Startup;
use crate::stopped::{Stopped, wait_until};

/// A thread that waits for us to let it execute a program. If this is dropped, it is not traced any
/// more.
#[derive(Debug)]
pub struct Executing {
    pid: i32,
    tid: i32,
    /// It stands still, as we have been told, and waits for us.
    stopped: bool,
    done: bool,
}

/// What has become of it.
#[derive(Debug)]
pub enum Executed {
    /// It stands before the first instruction of the new program.
    Program(Box<Spawned>),
    /// The process has ended.
    Ended,
}

impl Executing {
    /// Starts tracing a thread of a process, which goes on. Neither may be traced.
    ///
    /// # Errors
    /// What the kernel says: it is gone, is traced, or is none of ours to trace; or it is no thread
    /// of this process.
    pub fn begin(pid: i32, tid: i32) -> io::Result<Executing> {
        let of_another = || io::Error::from_raw_os_error(libc::ESRCH);
        if !procfs::is_thread(pid, tid) {
            return Err(of_another());
        }
        ptrace::seize(tid, ptrace::OPTIONS)?;
        let executing = Executing { pid, tid, stopped: false, done: false };
        // The id may have gone to another thread before it was ours to trace; from then on it
        // stays.
        if procfs::is_thread(pid, tid) { Ok(executing) } else { Err(of_another()) }
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The thread.
    #[must_use]
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Has it come to that? Never blocks for long.
    ///
    /// # Errors
    /// The new program cannot be traced. It runs.
    pub fn poll(&mut self) -> Result<Option<Executed>, OpenError> {
        let io = |source| OpenError::Io { pid: self.pid, source };
        loop {
            // A thread that executes a program becomes the first of its process.
            let event = match ptrace::wait(self.tid, true) {
                Err(_) if self.tid != self.pid => ptrace::wait(self.pid, true),
                event => event,
            };
            self.stopped = matches!(event, Ok(Some(_)));
            match event {
                Ok(None) => return Ok(None),
                Ok(Some(Event::Exec)) => {
                    // On an error it is let go as it is, and goes on unprobed.
                    self.tid = self.pid;
                    return match stop_after_exec(self.pid).map_err(io)? {
                        Err(_) => {
                            self.done = true;
                            Ok(Some(Executed::Ended))
                        }
                        Ok(regs) => {
                            let process = Process::open(self.pid)?;
                            self.done = true;
                            let stopped = Stopped::adopt(process.clone(), regs);
                            let (child, startup) = (Child::of(self.pid), Startup::default());
                            Ok(Some(Executed::Program(Box::new(Spawned { process, stopped, child, startup }))))
                        }
                    };
                }
                Ok(Some(Event::Exited(ExitStatus::Code(_) | ExitStatus::Signal(_)))) | Err(_) => {
                    self.done = true;
                    return Ok(Some(Executed::Ended));
                }
                Ok(Some(Event::Signal(signal))) => ptrace::cont(self.tid, signal).map_err(io)?,
                Ok(Some(_)) => ptrace::cont(self.tid, 0).map_err(io)?,
            }
            self.stopped = false;
        }
    }
}

impl Drop for Executing {
    fn drop(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(1);
        // In the stop that we were told of, it may be let go at once.
        if self.done || self.stopped && ptrace::detach(self.tid, 0).is_ok() || ptrace::interrupt(self.tid).is_err() {
            return;
        }
        let limit = Limit::after(PATIENCE);
        while let Ok(Some(event)) = wait_until(self.tid, limit, || {}) {
            let gone = match event {
                Event::Exited(_) => return,
                Event::Signal(signal) => ptrace::detach(self.tid, signal),
                _ => ptrace::detach(self.tid, 0),
            };
            if gone.is_ok() {
                return;
            }
        }
    }
}

/// Do programs keep their privileges while we trace them: have we `CAP_SYS_PTRACE`?
#[must_use]
pub fn may_trace_privileged() -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = procfs::status_field(&status, "CapEff").and_then(|set| u64::from_str_radix(&set, 16).ok());
    set.is_some_and(|set| set >> CAP_SYS_PTRACE & 1 != 0)
}

/// Has a file capabilities, for whoever executes it?
#[must_use]
pub fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: two strings; without room for a value, only its length is asked for.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), ptr::null_mut(), 0) > 0 }
}
