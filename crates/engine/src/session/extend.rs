//! A session that changes while it goes on: probes that come later, and probes that go for good.

use std::collections::HashSet;

use sidestep_sys::Process;

use crate::api::{Bundle, Options, Program, Request, TargetState};
use crate::error::SessionError;
use crate::patch::per_probe;
use crate::patch::promote;
use crate::patch::retire::retire;
use crate::patch::switch::{Switched, take_turn};
use crate::resolve;
use crate::resolve::objects::Objects;
use crate::session::installer::Numbers;
use crate::session::spec::SessionSpec;
use crate::session::{Installer, Session, clock};
use crate::target::discovery;
use crate::target::hold::Hold;

impl Session {
    /// The indices that the next so many programs will have.
    pub fn next_programs(&self, count: usize) -> Vec<usize> {
        self.installer.next_programs(count)
    }

    /// Puts further programs and probes in; those that are there stay as they are, and no hit of
    /// theirs is lost. Programs get the indices that [`Session::next_programs`] says, and actions
    /// refer to all by index; they use the maps that are there. A site that has a probe already is
    /// refused. The session has to be [`Options::extensible`], or that of a command.
    ///
    /// Gives the number of each of these requests ([`crate::Probe::request`]).
    ///
    /// # Errors
    /// As [`Session::start`], also if nothing of this could be probed: then nothing has changed.
    pub fn add(
        &mut self,
        programs: &[Program],
        requests: &[Request],
        options: &Options,
    ) -> Result<Vec<usize>, SessionError> {
        let pid = self.pid();
        if !self.attached || self.poll() != TargetState::Running {
            return Err(SessionError::NotProbed { pid });
        }
        let process = self.process.clone();
        // Objects that were read for other probes are known.
        let mut objects = self.objects.take().unwrap_or_else(|| Objects::new(options));
        let result = self.add_in(&process, &mut objects, programs, requests);
        self.objects = Some(objects);
        if self.installer.listens() && !self.listens() {
            self.listen(SessionSpec::new(&Bundle::default(), &[], options, false))?;
        }
        result
    }

    fn add_in(
        &mut self,
        process: &Process,
        objects: &mut Objects,
        programs: &[Program],
        requests: &[Request],
    ) -> Result<Vec<usize>, SessionError> {
        let installer = &mut self.installer;
        let mut found = Vec::new();
        for request in requests {
            found.push(resolve::in_process(&request.pattern, process, objects)?);
        }
        let before = (installer.probes.len(), installer.refused.len());
        let checkpoint = installer.checkpoint();
        installer.begin_addition();
        let slots = installer.extend(programs, requests);
        let indices = slots.requests.clone();
        let matches =
            indices.iter().zip(found).flat_map(|(index, found)| found.into_iter().map(|m| (*index, m))).collect();
        let plan = |installer: &mut Installer| {
            let (planned, mut hooks) = installer.plan(matches, process, objects, &mut || {})?;
            hooks.extend(installer.plan_loader(process, objects)?);
            let entries = discovery::session(process, installer.shared(process)?)?.entries(process)?;
            Ok::<_, SessionError>((planned, hooks, entries))
        };
        let (planned, mut hooks, entries) = match plan(installer) {
            Ok(all) => all,
            Err(error) => {
                installer.go_back(checkpoint);
                return Err(error);
            }
        };
        hooks.retain(|hook| hook.lends.is_none() || installer.in_the_way(hook, &entries).is_none());
        if let Some(at) = hooks.iter().find_map(|hook| installer.in_the_way(hook, &entries)) {
            installer.go_back(checkpoint);
            return Err(SessionError::InTheWay { at });
        }
        if planned.is_empty() {
            installer.go_back(checkpoint);
            return Err(installer.nothing_since(before.1));
        }
        let mut hold = Hold::running(process);
        let begun = take_turn(process).and_then(|turn| {
            let regions = installer.regions_mut();
            regions.map_or(Ok(()), |regions| regions.add_programs(&mut hold, programs, &slots.programs))?;
            Ok(turn)
        });
        let _turn = match begun {
            Ok(turn) => turn,
            Err(error) => {
                installer.go_back(checkpoint);
                return Err(error);
            }
        };
        installer.look_at_symbols(process);
        let has_own = !hooks.is_empty();
        // What is there has its clock.
        let clock = if installer.regions().is_some() { None } else { clock() };
        match installer.install(&mut hold, planned, hooks, clock) {
            // Nothing has been put in.
            Err(error @ (SessionError::Overtaken { .. } | SessionError::Beside { .. })) => {
                installer.go_back(checkpoint);
                return Err(error);
            }
            result => result?,
        }
        installer.end_addition(slots, before.0, has_own);
        // What was refused or could not be put in is in nobody's way.
        let found = discovery::session(process, installer.shared(process)?)?;
        promote::settle(process, &found, &found.traps(process)?, &mut Switched::default())?;
        installer.stats.stops.append(hold.stops());
        if installer.probes.len() == before.0 {
            return Err(installer.nothing_since(before.1));
        }
        Ok(indices)
    }

    /// Takes probes out for good, given by their ids: their sites get their original code, nobody
    /// enables them any more, and the sites can be probed again. What they counted can still be
    /// read. Their detours stay until [`Session::reclaim`] finds that nobody is in there, or in a
    /// handler, or until the session ends. Others that are at a site stay, if the probes of a site
    /// can be switched one by one.
    ///
    /// # Errors
    /// As [`Session::disable`].
    pub fn remove(&mut self, ids: &[usize]) -> Result<Switched, SessionError> {
        let switched = self.disable(ids)?;
        let refused = |va: u64| switched.refused.iter().any(|(at, _)| at.0 == va);
        let numbers: HashSet<u32> =
            ids.iter().filter_map(|id| self.installer.numbers.get(*id)).flat_map(Numbers::all).collect();
        let named = |number: &u32| numbers.contains(number);
        let mut gone = HashSet::new();
        let _turn = take_turn(&self.process)?;
        let found = discovery::session(&self.process, self.installer.shared(&self.process)?)?;
        let (mut sites, mut whole) = (Vec::new(), Vec::new());
        for site in found.sites(&self.process)?.into_iter().filter(|site| !refused(site.entry.site)) {
            if !site.users().any(|(number, _)| named(number)) {
                continue;
            }
            gone.extend(site.users().map(|(number, _)| *number).filter(named));
            if site.users().all(|(number, _)| named(number)) {
                sites.push(site.entry.site);
                whole.push(site);
            } else {
                per_probe::retire(&self.process, &found, &site, &numbers)?;
            }
        }
        match retire(&self.process, &found, &sites)? {
            Some(detours) => self.installer.forget(&sites, &detours),
            // Their probes are nobody's any more, and the sites stay this session's.
            None => whole.iter().try_for_each(|site| per_probe::retire(&self.process, &found, site, &numbers))?,
        }
        self.installer.additions.remove(&gone);
        Ok(switched)
    }
}
