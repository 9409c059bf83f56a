//! Signals of stopped threads: masks and handlers.

use crate::call::CallError;
use crate::process::Process;
use crate::procfs;
use crate::ptrace;
use crate::stopped::Stopped;

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
}
