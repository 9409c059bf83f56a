//! A session that changes while it goes on: probes that come later, and probes that go for good.

use std::collections::HashSet;

use crate::api::{Options, Program, Request, TargetState};
use crate::error::SessionError;
use crate::hold::Hold;
use crate::installer::site;
use crate::native;
use crate::objects::Objects;
use crate::promote;
use crate::resolve;
use crate::session::{Session, clock};
use crate::singly;
use crate::switch::{Switched, take_turn};
use crate::traces;

impl Session {
    /// How many programs there are: the index of the next one.
    pub fn programs(&self) -> usize {
        self.installer.programs()
    }

    /// Puts further programs and probes in; those that are there stay as they are, and no hit of theirs is lost. Programs are
    /// appended to the bundle's, and actions refer to all of them by index; they use the maps that are there. A site that has a
    /// probe already is refused. The session has to be [`Options::extensible`], or that of a command.
    ///
    /// Gives the number of the first of these requests ([`crate::Probe::request`]).
    ///
    /// # Errors
    /// As [`Session::start`], also if nothing of this could be probed: then nothing has changed.
    pub fn add(
        &mut self,
        programs: &[Program],
        requests: &[Request],
        options: &Options,
    ) -> Result<usize, SessionError> {
        let pid = self.pid();
        if !self.attached || self.poll() != TargetState::Running {
            return Err(SessionError::NotProbed { pid });
        }
        let process = self.process.clone();
        let mut objects = Objects::new(options);
        let installer = &mut self.installer;
        let first = installer.requests().len();
        let mut matches = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            let found = resolve::in_process(&request.pattern, &process, &mut objects)?;
            matches.extend(found.into_iter().map(|m| (first + i, m)));
        }
        let before = (installer.probes.len(), installer.refused.len());
        let checkpoint = installer.checkpoint();
        installer.extend(programs, requests);
        let (planned, hooks) = installer.plan(matches, &process, &mut objects, &mut || {})?;
        if let Some(at) = hooks.iter().find_map(|hook| installer.in_the_way(hook)) {
            installer.go_back(checkpoint);
            return Err(SessionError::InTheWay { at });
        }
        if planned.is_empty() {
            installer.go_back(checkpoint);
            return Err(installer.nothing_since(before.1));
        }
        let mut hold = Hold::running(&process);
        let begun = take_turn(&process).and_then(|turn| installer.add_programs(&mut hold, programs).map(|()| turn));
        let _turn = match begun {
            Ok(turn) => turn,
            Err(error) => {
                installer.go_back(checkpoint);
                return Err(error);
            }
        };
        let found = traces::session(&process, installer.shared(&process)?)?;
        let new = planned.iter().chain(hooks.iter().map(|hook| &hook.planned)).filter_map(site).collect();
        promote::make_way(&process, &found, &new)?;
        installer.look_at_symbols(&process);
        installer.install(&mut hold, planned, hooks, clock())?;
        // What was refused is in nobody's way.
        let found = traces::session(&process, installer.shared(&process)?)?;
        promote::settle(&process, &found, &found.traps(&process)?, &mut Switched::default())?;
        installer.stats.stops.append(hold.stops());
        if installer.probes.len() == before.0 {
            return Err(installer.nothing_since(before.1));
        }
        Ok(first)
    }

    /// Takes probes out for good, given by their ids: their sites get their original code, nobody enables them any more, and
    /// the sites can be probed again. What they counted can still be read. Their detours stay until the session ends: a thread may
    /// be in there, and in a handler. Others that are at a site stay, if the probes of a site can be switched one by one.
    ///
    /// # Errors
    /// As [`Session::disable`].
    pub fn remove(&mut self, ids: &[usize]) -> Result<Switched, SessionError> {
        let switched = self.disable(ids)?;
        let refused = |va: u64| switched.refused.iter().any(|(at, _)| at.0 == va);
        let numbers: HashSet<u32> = ids.iter().filter_map(|id| self.installer.numbers.get(*id).copied()).collect();
        let named = |number: &u32| numbers.contains(number);
        let _turn = take_turn(&self.process)?;
        let found = traces::session(&self.process, self.installer.shared(&self.process)?)?;
        let mut sites = Vec::new();
        for site in found.sites(&self.process)?.iter().filter(|site| !refused(site.entry.site)) {
            if !site.users().any(|(number, _)| named(number)) {
                continue;
            }
            if site.users().all(|(number, _)| named(number)) {
                sites.push(site.entry.site);
            } else {
                singly::retire(&self.process, &found, site, &numbers)?;
            }
        }
        let stopped = self.process.stop()?;
        let result = native::retire(&stopped, &found, &sites);
        stopped.resume()?;
        result?;
        self.installer.forget(&sites);
        Ok(switched)
    }
}
