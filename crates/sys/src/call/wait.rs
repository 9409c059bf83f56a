//! How long a thread is waited for that makes a system call for us.

use std::time::Duration;

use super::{Active, CallError};
use crate::patience::{LEAST, Limit};
use crate::procfs;
use crate::ptrace::Event;
use crate::stopped::wait_until;

/// Longest time that a remote call may take. Ours are done in microseconds.
const TIMEOUT: Duration = Duration::from_secs(10);
/// CPU time in user code after which a thread counts as busy with something else: a call needs a
/// few instructions there.
const BUSY: Duration = Duration::from_millis(200);

/// A wait for one thread.
pub(super) struct Waiting {
    limit: Limit,
    /// The CPU time of the thread in user code, when it was first asked for.
    used_before: Option<Duration>,
}

impl Waiting {
    /// A wait that begins now.
    pub(super) fn begin() -> Waiting {
        Waiting { limit: Limit::after(TIMEOUT), used_before: None }
    }
}

impl Active {
    /// Waits for a stop of the thread.
    pub(super) fn wait(&self, nr: u64, waiting: &mut Waiting) -> Result<Event, CallError> {
        const LOOK: Duration = Duration::from_millis(20);
        loop {
            let event = wait_until(self.tid, Limit::after(LOOK), || {});
            match self.check("wait for", event)? {
                Some(Event::Exited(_)) => return Err(CallError::Exited { pid: self.pid }),
                Some(event) => return Ok(event),
                None => self.go_on_waiting(nr, waiting)?,
            }
        }
    }

    /// An error says why the thread is not waited for any more.
    pub(super) fn go_on_waiting(&self, nr: u64, waiting: &mut Waiting) -> Result<(), CallError> {
        let (pid, tid) = (self.pid, self.tid);
        // The end of a first thread is reported only when all other threads have ended, and these
        // stand, or wait for us to take their zombies away.
        if procfs::has_ended(self.owner, tid) {
            return Err(CallError::Exited { pid });
        }
        let waited = waiting.limit.waited();
        if waiting.limit.is_over() {
            return Err(CallError::Timeout { pid, nr, waited });
        }
        if waited < LEAST {
            return Ok(());
        }
        let Some(used) = procfs::user_time(self.owner, tid) else { return Ok(()) };
        let used = used.saturating_sub(*waiting.used_before.get_or_insert(used));
        if used < BUSY { Ok(()) } else { Err(CallError::Busy { pid, tid, nr, used }) }
    }
}
