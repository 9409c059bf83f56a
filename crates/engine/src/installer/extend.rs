//! Requests and programs that come after the first ones.

use std::collections::HashSet;

use sidestep_isa::Va;
use sidestep_wire::JournalEntry;

use super::{Hook, Installer, place};
use crate::api::{Program, Request};
use crate::error::SessionError;
use crate::hold::Hold;

/// What planning changes, to go back to.
pub(crate) struct Checkpoint {
    hooked: HashSet<(&'static str, u64)>,
    requests: usize,
    programs: usize,
}

impl Installer {
    /// How many programs there are.
    pub fn programs(&self) -> usize {
        self.bundle.programs.len()
    }

    /// Before [`Installer::extend`].
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint { hooked: self.hooked.clone(), requests: self.requests.len(), programs: self.bundle.programs.len() }
    }

    /// Nothing of what came since is wanted.
    pub fn go_back(&mut self, to: Checkpoint) {
        self.hooked = to.hooked;
        self.requests.truncate(to.requests);
        self.bundle.programs.truncate(to.programs);
    }

    /// Appends requests, and programs that [`Installer::add_programs`] puts in.
    pub fn extend(&mut self, programs: &[Program], requests: &[Request]) {
        self.bundle.programs.extend_from_slice(programs);
        self.requests.extend_from_slice(requests);
    }

    /// Puts the code of programs that were appended into the target.
    pub fn add_programs(&mut self, hold: &mut Hold<'_>, programs: &[Program]) -> Result<(), SessionError> {
        match &mut self.regions {
            Some(regions) => regions.add_programs(hold, programs),
            None => Ok(()),
        }
    }

    /// The users' site that is where one of our own has to be.
    pub fn in_the_way(&self, hook: &Hook, entries: &[JournalEntry]) -> Option<Va> {
        let own = place(&hook.planned)?;
        let meets = |e: &&JournalEntry| {
            e.newest != 0 && e.own == 0 && e.site < own.end && e.site + u64::from(e.len) > own.start
        };
        entries.iter().find(meets).map(|entry| Va(entry.site))
    }

    /// As [`Installer::nothing`], of what was refused behind the first so many.
    pub fn nothing_since(&self, refused: usize) -> SessionError {
        match self.refused.get(refused) {
            Some(first) => SessionError::AllRefused {
                name: first.name.clone(),
                object: first.object.clone(),
                reason: first.reason.clone(),
                others: self.refused.len() - refused - 1,
            },
            None => SessionError::EndedEarly,
        }
    }

    /// Sites that nobody is responsible for any more.
    pub fn forget(&mut self, sites: &[u64]) {
        self.live.retain(|site| !sites.contains(site));
        self.surroundings.release(sites);
    }
}
