//! Processes whose seccomp filter would kill them for a system call of the agent. Hits that are
//! only counted need none: such a process gets jumps that count, and nothing else.

use sidestep_plan::Plan;
use sidestep_sys::Process;

use super::Installer;
use super::sites::returns;
use crate::api::Pause;
use crate::error::SessionError;
use crate::planning::Planned;
use crate::planning::faults;
use crate::target::seccomp::{self, Extra};

impl Installer {
    /// Finds out whether the agent must make no system call. Where it has to, the process is
    /// refused by [`seccomp::check`].
    pub(super) fn look_at_filters(&mut self, process: &Process) -> Result<(), SessionError> {
        // A process that we have started, and that has not begun yet, is traced. What it inherits
        // lets us live, too.
        let known = self.regions.is_some() || !self.only_counts() || !seccomp::has_filter(process);
        if known || Process::open(process.pid()).is_err() {
            return Ok(());
        }
        let stopped = process.stop()?;
        self.silent = seccomp::check(&stopped, Extra::default()).is_err();
        let (time, resumed) = stopped.resume_timed();
        self.stats.stops.pauses.push(Pause { time, purpose: "seccomp filters" });
        Ok(resumed?)
    }

    /// Is nothing asked for but counts of hits?
    fn only_counts(&self) -> bool {
        let counts = self.requests.iter().all(|r| r.action.entry.is_none() && !returns(&r.action) && !r.action.post);
        counts && !self.options.follow && !self.options.extensible && !self.options.listens()
    }

    /// Refuses what cannot do without a system call.
    pub(super) fn refuse_calls(&mut self, planned: Vec<Planned>) -> Vec<Planned> {
        let filter = "the seccomp filter of the process would kill it for a system call of the signal's handler";
        let traps = |p: &Planned| p.inside || p.plan.as_ref().is_ok_and(Plan::has_traps);
        let planned = self.without(planned, &format!("it needs a trap, and {filter}"), |_, p| traps(p));
        self.without(planned, &format!("it may fault, and {filter}"), |_, p| faults::must_show(p))
    }
}
