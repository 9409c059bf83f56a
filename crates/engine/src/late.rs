//! Libraries that a process maps while it runs: probed before any of their code has run.

use sidestep_sys::Process;

use crate::api::TargetState;
use crate::error::SessionError;
use crate::hold::Hold;
use crate::session::Session;
use crate::startup;
use crate::switch::take_turn;
use crate::wanted::Wanted;

impl Session {
    /// Looks for what requests mean in a process of the session that has mapped something: nothing, if it is none of those that
    /// were attached to or taken up.
    pub(crate) fn look_again(&mut self, pid: i32, wanted: &Wanted) -> Result<(), SessionError> {
        // What the first process has executed has its pid, too.
        let Some(index) = self.others.iter().position(|other| other.pid() == pid) else {
            let is_first = self.pid() == pid && self.poll_own() == TargetState::Running;
            return if is_first { self.probe_more(wanted) } else { Ok(()) };
        };
        let mut other = self.others.swap_remove(index);
        let before = (other.installer.probes.len(), other.installer.refused.len());
        let result = other.probe_more(wanted);
        self.take_probes(&other, before);
        self.keep_symbols(&mut other);
        self.others.push(other);
        result
    }

    fn probe_more(&mut self, wanted: &Wanted) -> Result<(), SessionError> {
        let process: Process = self.process.clone();
        let mut objects = wanted.objects.borrow_mut();
        let installer = &mut self.installer;
        let (matches, _) = startup::find(&process, installer, &mut objects, false);
        let matches = installer.only_new(matches);
        let (planned, hooks) = match matches.is_empty() {
            // Stacks may go through it.
            true if installer.walks_stacks() || installer.wants_symbols() => (Vec::new(), Vec::new()),
            true => return Ok(()),
            false => installer.plan(matches, &process, &mut objects, &mut || {})?,
        };
        installer.look_at_symbols(&process);
        let _turn = take_turn(&process)?;
        let mut hold = Hold::running(&process);
        let result = installer.install(&mut hold, planned, hooks, wanted.clock);
        installer.stats.stops.append(hold.stops());
        result
    }
}
