//! Signal masks of stopped threads.

use crate::call::CallError;
use crate::ptrace;
use crate::stopped::Stopped;

impl Stopped {
    /// Unblocks a signal in all threads; gives those that had it blocked.
    pub fn unblock(&mut self, signal: i32) -> Result<Vec<i32>, CallError> {
        self.end_calls()?;
        let bit = 1 << (signal - 1);
        let mut were_blocked = Vec::new();
        for thread in self.threads() {
            // A thread that has been killed has no mask any more.
            let Ok(mask) = ptrace::get_sigmask(thread.tid) else { continue };
            if mask & bit != 0 && ptrace::set_sigmask(thread.tid, mask & !bit).is_ok() {
                were_blocked.push(thread.tid);
            }
        }
        Ok(were_blocked)
    }

    /// Blocks a signal in one thread.
    pub fn block(&mut self, tid: i32, signal: i32) -> Result<(), CallError> {
        self.end_calls()?;
        if let Ok(mask) = ptrace::get_sigmask(tid) {
            // As above: it may have been killed.
            let _ = ptrace::set_sigmask(tid, mask | 1 << (signal - 1));
        }
        Ok(())
    }
}
