//! A target process that runs.
#![allow(unsafe_code, reason = "pidfd_open, poll, geteuid")]

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use sidestep_isa::Va;

use crate::access::{self, OpenError};
use crate::arch::{self, Gadgets};
use crate::memory::{Memory, MemoryError, Pod};
use crate::patience::Limit;
use crate::procfs::{self, Mapping, parse_maps};
use crate::room;
use crate::sharers::Sharers;
use crate::stopped::{StopError, Stopped, Thread, release_stuck};

/// A process that we may trace, opened: its pid cannot be reused under us and its memory can be
/// read. The process itself is not touched until [`Process::stop`]. Cheap to clone. Stays on the
/// thread that opened it, as ptrace demands.
#[derive(Clone, Debug)]
pub struct Process(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    pid: i32,
    pidfd: OwnedFd,
    memory: Memory,
    /// An address that is mapped for as long as the program is (in its executable).
    anchor: Va,
    start_time: u64,
    gadgets: Cell<Option<Gadgets>>,
    /// Code that is about to go: nothing that a thread may return through.
    leaving: RefCell<Vec<Range<u64>>>,
    /// Threads seized by a [`Process::stop`] that timed out; they cannot be let go before they
    /// stop.
    stuck: RefCell<Vec<i32>>,
    sharers: RefCell<Sharers>,
}

impl Process {
    /// Opens a running process and checks that it can be traced.
    pub fn open(pid: i32) -> Result<Process, OpenError> {
        let process = Process::look_at(pid)?;
        access::check_tracer(pid)?;
        Ok(process)
    }

    /// The same while something else may trace the process: it can be read all the same, and
    /// stopped when that has let go.
    pub fn look_at(pid: i32) -> Result<Process, OpenError> {
        if pid <= 0 {
            return Err(OpenError::NoProcess { pid });
        }
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                Some(libc::ESRCH) => OpenError::NoProcess { pid },
                // Linux < 6.9: EINVAL, later ENOENT, for the id of a thread; access::open_memory
                // says it well.
                Some(libc::EINVAL | libc::ENOENT) => match access::open_memory(pid, euid()) {
                    Err(e) => e,
                    Ok(_) => OpenError::Io { pid, source },
                },
                _ => OpenError::Io { pid, source },
            });
        }
        // SAFETY: the kernel has just given us this descriptor.
        let pidfd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let memory = access::open_memory(pid, euid())?;
        let stat = procfs::read_short(&format!("/proc/{pid}/stat")).map_err(|source| OpenError::Io { pid, source })?;
        let start_time = procfs::stat_field(&stat, 22).and_then(|f| f.parse().ok()).unwrap_or(0);
        let maps = fs::read(format!("/proc/{pid}/maps")).map_err(|source| OpenError::Io { pid, source })?;
        let anchor = parse_maps(&maps).first().map_or(Va(0), |m| m.start);
        let process = Process(Rc::new(Inner {
            pid,
            pidfd,
            memory,
            anchor,
            start_time,
            gadgets: Cell::new(None),
            leaving: RefCell::default(),
            stuck: RefCell::new(Vec::new()),
            sharers: RefCell::default(),
        }));
        if process.is_alive() { Ok(process) } else { Err(OpenError::NoProcess { pid }) }
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.0.pid
    }

    /// Is the process still there (not exited, even if not yet waited for)? Never blocks.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let mut p = libc::pollfd { fd: self.0.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd. A pidfd becomes readable when the process ends (pidfd_open(2));
        // an error (EINTR) says nothing.
        unsafe { libc::poll(&mut p, 1, 0) <= 0 }
    }

    /// Has the process exited or replaced its program by `execve` since it was opened? All
    /// addresses are void then.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        !self.0.memory.is_there(self.0.anchor)
    }

    /// Fills `buf` from run-time address `at`, or fails as a whole. Works while the target runs.
    pub fn read(&self, at: Va, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.0.memory.read(at, buf)
    }

    /// Reads one value of plain data.
    pub fn read_pod<T: Pod>(&self, at: Va) -> Result<T, MemoryError> {
        self.0.memory.read_pod(at)
    }

    /// Reads a word of the target: as long as its addresses are.
    pub fn read_word(&self, at: Va) -> Result<u64, MemoryError> {
        Ok(arch::word(self.read_pod(at)?))
    }

    /// Writes a word of the target.
    pub fn write_word(&self, at: Va, value: u64) -> Result<(), MemoryError> {
        self.write(at, &(value as arch::Word).to_ne_bytes())
    }

    /// The bytes at several places of a process that stands still (address and length); `None`:
    /// they cannot be read.
    #[must_use]
    pub fn read_many(&self, places: &[(Va, usize)]) -> Vec<Option<Vec<u8>>> {
        self.0.memory.read_many(places)
    }

    /// Writes several places of a process that stands still, in this order, and reads them back.
    pub fn write_many(&self, places: &[(Va, &[u8])]) -> Result<(), MemoryError> {
        self.0.memory.write_many(places)
    }

    /// Writes several places, in this order, each with its own outcome, and then reads them back.
    /// The target may be running.
    pub fn write_each(&self, places: &[(Va, &[u8])]) -> Vec<Result<(), MemoryError>> {
        self.0.memory.write_each(places)
    }

    /// Writes `bytes` at `at`, whatever the protection of the page, and reads them back. The target
    /// may be running: what other threads see in between is the caller's business.
    pub fn write(&self, at: Va, bytes: &[u8]) -> Result<(), MemoryError> {
        self.0.memory.write(at, bytes)
    }

    /// The text of `/proc/PID/maps`.
    pub fn maps_text(&self) -> io::Result<Vec<u8>> {
        procfs::read(&self.path("maps"))
    }

    /// The mappings, ascending.
    pub fn maps(&self) -> io::Result<Vec<Mapping>> {
        Ok(parse_maps(&self.maps_text()?))
    }

    /// Bytes of memory that the mappings take which begin at addresses that `of` chooses (`Rss` in
    /// `/proc/PID/smaps`).
    pub fn resident(&self, of: impl Fn(Va) -> bool) -> io::Result<u64> {
        let text = procfs::read(&self.path("smaps"))?;
        Ok(procfs::resident(&String::from_utf8_lossy(&text), of))
    }

    /// The ids of all threads, ascending; those of a process that makes and ends threads meanwhile
    /// may not be complete.
    pub fn threads(&self) -> io::Result<Vec<i32>> {
        procfs::threads(self.pid())
    }

    /// Path of the executable as the target sees it (in its own mount namespace).
    pub fn exe(&self) -> io::Result<PathBuf> {
        fs::read_link(self.path("exe"))
    }

    /// `/proc/PID/root`: prefix this to a path that the target sees.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.path("root")
    }

    /// The descriptors whose link in `/proc/PID/fd` begins with `prefix`.
    #[must_use]
    pub fn descriptors(&self, prefix: &str) -> Vec<i32> {
        let entries = fs::read_dir(self.path("fd")).into_iter().flatten().flatten();
        let named =
            entries.filter(|e| fs::read_link(e.path()).is_ok_and(|to| to.to_string_lossy().starts_with(prefix)));
        named.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
    }

    /// Name of the process.
    pub fn comm(&self) -> io::Result<String> {
        procfs::comm(self.pid())
    }

    /// Real user id.
    pub fn uid(&self) -> io::Result<u32> {
        let uids = self.status("Uid")?;
        Ok(uids.split_ascii_whitespace().next().and_then(|u| u.parse().ok()).unwrap_or(0))
    }

    /// When the process began, in clock ticks since boot (field 22 of `/proc/PID/stat`): with the
    /// pid it names a process for ever.
    #[must_use]
    pub fn start_time(&self) -> u64 {
        self.0.start_time
    }

    /// Its id in its own pid namespace (`NSpid` of `/proc/PID/status`).
    #[must_use]
    pub fn own_id(&self) -> i32 {
        procfs::namespace_ids(self.pid()).last().copied().unwrap_or(self.pid())
    }

    /// Seccomp mode of the main thread: 0 none, 1 strict, 2 filter.
    pub fn seccomp(&self) -> io::Result<u32> {
        Ok(self.status("Seccomp")?.parse().unwrap_or(0))
    }

    /// The same of another thread.
    pub(crate) fn thread_seccomp(&self, thread: &Thread) -> io::Result<u32> {
        let status = procfs::read_short(&format!("/proc/{}/task/{}/status", thread.pid, thread.tid))?;
        Ok(procfs::status_field(&status, "Seccomp").and_then(|m| m.parse().ok()).unwrap_or(0))
    }

    /// Does the main thread run with a user shadow stack (`x86_Thread_features` of
    /// `/proc/PID/status`, Linux 6.6)?
    pub fn shadow_stack(&self) -> io::Result<bool> {
        Ok(self.status("x86_Thread_features")?.split_ascii_whitespace().any(|f| f == "shstk"))
    }

    /// Stops all threads, waiting up to 2 seconds for each of them.
    pub fn stop(&self) -> Result<Stopped, StopError> {
        self.stop_within(Duration::from_secs(2))
    }

    /// Stops all threads, and those of other processes that execute in the same memory; if one has
    /// not stopped after `timeout` (it hangs in the kernel), the others are let go. A process that
    /// somebody else has stopped in the same way is waited for, also up to `timeout`: a thread has
    /// one tracer at a time, so whoever stops a process has it for himself.
    pub fn stop_within(&self, timeout: Duration) -> Result<Stopped, StopError> {
        const LONGEST: Duration = Duration::from_millis(2);
        self.find_gadgets();
        self.look_for_sharers();
        let limit = Limit::after(timeout);
        let mut pause = Duration::from_micros(100);
        loop {
            match Stopped::stop(self.clone(), timeout) {
                // Not asked for the tracer: it may have let go since. That we may trace at all is
                // known ([`Process::open`]).
                Err(StopError::Denied { .. }) if !limit.is_over() => {}
                result => return result,
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
    }

    fn status(&self, key: &str) -> io::Result<String> {
        Ok(procfs::status_field(&self.status_text()?, key).unwrap_or_default())
    }

    /// The text of `/proc/PID/status`.
    pub(crate) fn status_text(&self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&procfs::read(&self.path("status"))?).into_owned())
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid().to_string()).join(name)
    }

    /// Where the target's code has the instructions for remote calls, as found last time.
    pub(crate) fn gadgets(&self) -> &Cell<Option<Gadgets>> {
        &self.0.gadgets
    }

    /// The target has [`arch::GADGET_CODE`] at `at`, which nobody writes over: remote calls use it
    /// from now on.
    pub fn use_gadgets(&self, at: Va) {
        self.0.gadgets.set(Some(Gadgets::of_code_at(at)));
    }

    /// This code is going to be unmapped: remote calls use nothing of it from now on. The thread
    /// that makes them would still return through it, if we died then.
    pub fn leave(&self, code: &[Range<u64>]) {
        self.0.leaving.borrow_mut().extend_from_slice(code);
        self.0.gadgets.set(None);
    }

    /// Is some of this going to be unmapped?
    pub(crate) fn is_leaving(&self, m: &Mapping) -> bool {
        self.0.leaving.borrow().iter().any(|range| range.start < m.end.0 && m.start.0 < range.end)
    }

    /// Looks for them while the target runs: it takes longer than a stop should.
    fn find_gadgets(&self) {
        if !room::has_gadgets(self) {
            if let Ok(maps) = self.maps() {
                room::gadgets(self, &maps);
            }
        }
    }

    pub(crate) fn sharers_state(&self) -> &RefCell<Sharers> {
        &self.0.sharers
    }

    pub(crate) fn stuck(&self) -> &RefCell<Vec<i32>> {
        &self.0.stuck
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Threads that hung when we wanted to stop them may have stopped since.
        release_stuck(&self.stuck);
    }
}

/// Our effective user id.
fn euid() -> u32 {
    // SAFETY: has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}
