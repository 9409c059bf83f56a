//! Libraries that a process maps while it runs: probed before any of their code has run.

use std::mem::offset_of;

use sidestep_isa::Va;
use sidestep_sys::Process;
use sidestep_wire::Private;

use crate::api::TargetState;
use crate::error::SessionError;
use crate::patch::returns;
use crate::patch::share::Others;
use crate::patch::switch::{self, take_turn};
use crate::patch::toggle;
use crate::resolve::Match;
use crate::session::Session;
use crate::session::follow::forked_child;
use crate::session::installer::Installer;
use crate::session::spec::SessionSpec;
use crate::session::startup;
use crate::target::discovery;
use crate::target::hold::Hold;
use crate::target::remote::mappings;

impl Session {
    /// Looks for what requests mean in a process of the session that has mapped something, or in a
    /// forked child of one. `family`: gives all that have the session's memory.
    pub(crate) fn look_again(
        &mut self,
        pid: i32,
        mut family: impl FnMut() -> Vec<i32>,
        wanted: &SessionSpec,
    ) -> Result<(), SessionError> {
        // What the first process has executed has its pid, too.
        let is_first = self.pid() == pid && self.poll_own() == TargetState::Running;
        let forgotten = self.forget_unloaded(pid, is_first, &mut family);
        let index = self.others.iter().position(|other| other.pid() == pid);
        let installer = match index {
            _ if is_first => &self.installer,
            Some(index) => &self.others[index].installer,
            None => match self.inherited(pid) {
                Some(inherited) => inherited,
                None if self.installer.replaces
                    && !self.unwatched.iter().any(|(known, _)| *known == pid)
                    && forked_child::parent_of(pid).is_some() =>
                {
                    return self.give_up_returns(pid, "its parent is not known any more".to_owned());
                }
                None => return Ok(()),
            },
        };
        let process = Process::look_at(pid)?;
        // What has come may unwind replaced return addresses, or look at them.
        let replaces = installer.replaces && !self.unwatched.iter().any(|(known, _)| *known == pid);
        let mut matches = Vec::new();
        let mut is_wanted = false;
        if wanted.options.listens() {
            matches = new_matches(&process, installer, wanted);
            // Stacks may go through what has come.
            is_wanted = !matches.is_empty() || installer.walks_stacks() || installer.wants_symbols();
        }
        if !is_wanted && !replaces {
            return forgotten;
        }
        let result = if forgotten.is_err() {
            forgotten
        } else if !is_wanted && !is_first && index.is_none() {
            let inherited = installer.clone();
            self.protect_child(pid, inherited, wanted)
        } else {
            self.look_at_new(pid, is_first, family, matches, wanted)
        };
        match &result {
            // There is no telling which unwinders have no probe.
            Err(error) if replaces => self.give_up_returns(pid, error.to_string())?,
            _ => {}
        }
        result
    }

    fn look_at_new(
        &mut self,
        pid: i32,
        is_first: bool,
        mut family: impl FnMut() -> Vec<i32>,
        matches: Vec<(usize, Match)>,
        wanted: &SessionSpec,
    ) -> Result<(), SessionError> {
        self.adopt_children(pid, &family());
        if !is_first && !self.knows(pid) {
            self.adopt(pid)?;
        }
        if is_first {
            return self.probe_more(matches, wanted);
        }
        let Some(index) = self.others.iter().position(|other| other.pid() == pid) else { return Ok(()) };
        let mut other = self.others.swap_remove(index);
        let before = (other.installer.probes.len(), other.installer.refused.len());
        let result = other.probe_more(matches, wanted);
        if !self.unwatched.iter().any(|(known, _)| *known == pid) {
            self.unwatched.append(&mut other.unwatched);
        }
        self.take_probes(&other, before);
        self.keep_symbols(&mut other);
        self.others.push(other);
        result
    }

    /// A forked child that is no process of its own for the session has mapped something: where
    /// that needs probes of ours, return addresses stay as they are instead.
    fn protect_child(&mut self, pid: i32, mut inherited: Installer, wanted: &SessionSpec) -> Result<(), SessionError> {
        let process = switch::open(pid)?;
        if let Some(regions) = inherited.regions_mut() {
            // The parent may have ended.
            regions.head.process = process.clone();
        }
        let (_, hooks) = inherited.plan(Vec::new(), &process, &mut wanted.objects.borrow_mut(), &mut || {})?;
        let unwinder = hooks.iter().find(|hook| hook.is_unwinder());
        let unwinder = unwinder.map(|hook| format!("{} unwinds", hook.planned.matched.object.path().display()));
        inherited.unwatched.or(unwinder).map_or(Ok(()), |reason| self.give_up_returns(pid, reason))
    }

    /// From now on return addresses stay as they are in a process.
    fn give_up_returns(&mut self, pid: i32, reason: String) -> Result<(), SessionError> {
        let process = switch::open(pid)?;
        let _turn = take_turn(&process)?;
        keep_returns(&mut Hold::running(&process))?;
        let others = self.others.iter_mut().filter(|other| other.pid() == pid).map(|other| &mut other.installer);
        let own = (self.process.pid() == pid).then_some(&mut self.installer);
        others.chain(own).for_each(|installer| installer.unwatched = Some(reason.clone()));
        self.unwatched.push((pid, reason));
        Ok(())
    }

    fn probe_more(&mut self, matches: Vec<(usize, Match)>, wanted: &SessionSpec) -> Result<(), SessionError> {
        let process: Process = self.process.clone();
        let mut objects = wanted.objects.borrow_mut();
        let installer = &mut self.installer;
        let (planned, hooks) = match matches.is_empty() && !installer.replaces {
            true => (Vec::new(), Vec::new()),
            false => installer.plan(matches, &process, &mut objects, &mut || {})?,
        };
        installer.look_at_symbols(&process);
        let _turn = take_turn(&process)?;
        let mut hold = Hold::running(&process);
        let result = installer.install(&mut hold, planned, hooks, wanted.clock);
        installer.stats.stops.append(hold.stops());
        let disabled = disable_again(&process, installer);
        if !self.unwatched.iter().any(|(known, _)| *known == process.pid()) {
            self.unwatched.extend(installer.unwatched.clone().map(|reason| (process.pid(), reason)));
        }
        result.and(disabled)
    }
}

/// Probes that were disabled when their libraries went are disabled again, before any code of the
/// libraries has run.
fn disable_again(process: &Process, installer: &mut Installer) -> Result<(), SessionError> {
    let disabled = installer.to_disable();
    let Some(regions) = installer.regions().filter(|_| !disabled.is_empty()) else { return Ok(()) };
    toggle::withdraw(process, regions.head.at, &disabled)?;
    installer.forget_disabled(&disabled);
    Ok(())
}

/// Lets return addresses be what they are, from now on and in the frames that are there. The thread
/// that has mapped the library waits meanwhile, so no code of that has run.
pub(crate) fn keep_returns(hold: &mut Hold<'_>) -> Result<(), SessionError> {
    let process = hold.process();
    for found in discovery::all(&process, &mappings(&process)?).iter().filter(|found| found.is_mine()) {
        let others = Others::of(&process, &mappings(&process)?, Some(found.shared_va))?;
        let flag = Va(found.private_va.0 + offset_of!(Private, keeps_returns) as u64);
        hold.stopped("return addresses", |stopped| {
            stopped.write(flag, &1u64.to_ne_bytes())?;
            returns::restore(stopped, found, others.sessions())
        })?;
    }
    Ok(())
}

fn new_matches(process: &Process, installer: &Installer, wanted: &SessionSpec) -> Vec<(usize, Match)> {
    let (matches, _) = startup::find(process, installer, &mut wanted.objects.borrow_mut(), false);
    installer.only_new(matches)
}
