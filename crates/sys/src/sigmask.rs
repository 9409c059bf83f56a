//! Signals of stopped threads: masks, and what waits for delivery.

use std::path::Path;

use crate::call::CallError;
use crate::process::Process;
use crate::procfs;
use crate::ptrace;
use crate::stopped::{Stopped, Thread};

impl Process {
    /// The signals that its main thread blocks or ignores (`SigBlk` and `SigIgn` of
    /// `/proc/PID/status`); all, if that cannot be told.
    #[must_use]
    pub fn closed(&self) -> u64 {
        let status = self.status_text().unwrap_or_default();
        ["SigBlk", "SigIgn"].into_iter().fold(0, |set, name| set | signal_set(&status, name).unwrap_or(u64::MAX))
    }
}

impl Stopped {
    /// Unblocks a set of signals in all threads; gives those that had any blocked, with which.
    pub fn unblock(&mut self, set: u64) -> Result<Vec<(i32, u64)>, CallError> {
        self.end_calls()?;
        let mut were_blocked = Vec::new();
        for thread in self.threads() {
            // A thread that has been killed has no mask any more.
            let Ok(mask) = ptrace::get_sigmask(thread.tid) else { continue };
            if mask & set != 0 && ptrace::set_sigmask(thread.tid, mask & !set).is_ok() {
                were_blocked.push((thread.tid, mask & set));
            }
        }
        Ok(were_blocked)
    }

    /// Blocks a set of signals in one thread. Gives what was blocked before.
    pub fn block(&mut self, tid: i32, set: u64) -> Result<u64, CallError> {
        self.change_mask(tid, set, 0)
    }

    /// Blocks a set of signals in one thread, and opens another one. Gives what was blocked before.
    pub fn change_mask(&mut self, tid: i32, closed: u64, opened: u64) -> Result<u64, CallError> {
        let mask = self.mask(tid)?;
        let new = (mask | closed) & !opened;
        if new != mask {
            // It may have been killed.
            let _ = ptrace::set_sigmask(tid, new);
        }
        Ok(mask)
    }

    /// What one thread has blocked; nothing, if it has been killed.
    pub fn mask(&mut self, tid: i32) -> Result<u64, CallError> {
        self.end_calls()?;
        Ok(ptrace::get_sigmask(tid).unwrap_or(0))
    }

    /// The signals that have a handler (`SigCgt` of `/proc/PID/status`); all, if that cannot be
    /// told.
    #[must_use]
    pub fn caught(&self) -> u64 {
        let status = self.process().status_text().unwrap_or_default();
        signal_set(&status, "SigCgt").unwrap_or(u64::MAX)
    }

    /// Threads for which a signal of this set was raised but not delivered yet: stopped between a
    /// fault and its handler (`SigPnd` of `/proc/PID/task/TID/status`, which does not count what
    /// was sent to the whole process).
    #[must_use]
    pub fn awaiting(&self, set: u64) -> Vec<i32> {
        let waits = |thread: &&Thread| {
            let path = format!("/proc/{}/task/{}/status", thread.pid, thread.tid);
            let status = procfs::read(Path::new(&path)).unwrap_or_default();
            signal_set(&String::from_utf8_lossy(&status), "SigPnd").is_some_and(|pending| pending & set != 0)
        };
        self.threads().iter().filter(waits).map(|t| t.tid).collect()
    }
}

fn signal_set(status: &str, name: &str) -> Option<u64> {
    u64::from_str_radix(&procfs::status_field(status, name)?, 16).ok()
}
