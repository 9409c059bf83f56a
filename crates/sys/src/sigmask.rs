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
        ["SigBlk", "SigIgn"]
            .into_iter()
            .fold(0, |set, name| set | procfs::signal_set(&status, name).unwrap_or(u64::MAX))
    }
}

/// The signals that wait for a process and its first thread.
pub fn pending(pid: i32) -> u64 {
    let status = procfs::read_short(&format!("/proc/{pid}/status")).unwrap_or_default();
    ["SigPnd", "ShdPnd"].into_iter().fold(0, |set, name| set | procfs::signal_set(&status, name).unwrap_or(0))
}

impl Stopped {
    /// The signal masks of all threads. A thread that has been killed has none.
    pub fn masks(&mut self) -> Result<Vec<(i32, u64)>, CallError> {
        self.end_calls()?;
        Ok(self.threads().iter().filter_map(|t| Some((t.tid, ptrace::get_sigmask(t.tid).ok()?))).collect())
    }

    /// Gives threads other signal masks, of which the old ones are passed. Gives the old ones of
    /// those that have changed.
    pub fn change_masks(&mut self, new: impl Fn(i32, u64) -> u64) -> Result<Vec<(i32, u64)>, CallError> {
        let mut changed = self.masks()?;
        changed.retain(|(tid, old)| {
            let new = new(*tid, *old);
            new != *old && ptrace::set_sigmask(*tid, new).is_ok()
        });
        Ok(changed)
    }

    /// The signals that have a handler (`SigCgt` of `/proc/PID/status`); all, if that cannot be
    /// told.
    #[must_use]
    pub fn caught(&self) -> u64 {
        let status = self.process().status_text().unwrap_or_default();
        procfs::signal_set(&status, "SigCgt").unwrap_or(u64::MAX)
    }

    /// Threads for which a signal of this set was raised but not delivered yet: stopped between a
    /// fault and its handler (`SigPnd` of `/proc/PID/task/TID/status`, which does not count what
    /// was sent to the whole process).
    #[must_use]
    pub fn awaiting(&self, set: u64) -> Vec<i32> {
        let waits = |thread: &&Thread| {
            let path = format!("/proc/{}/task/{}/status", thread.pid, thread.tid);
            let status = procfs::read(Path::new(&path)).unwrap_or_default();
            procfs::signal_set(&String::from_utf8_lossy(&status), "SigPnd").is_some_and(|pending| pending & set != 0)
        };
        self.threads().iter().filter(waits).map(|t| t.tid).collect()
    }
}
