//! Attaching to a process that runs: all that can be decided before anything is changed, and then
//! the change.

use std::collections::HashSet;
use std::time::Instant;

use sidestep_sys::{Process, TscScale};

use crate::api::{Bundle, Missing, Options, Request};
use crate::error::SessionError;
use crate::patch::switch::{self, take_turn};
use crate::planning::Planned;
use crate::resolve;
use crate::session::installer::{Hook, Installer};
use crate::session::remains::{clean_up, remove};
use crate::session::spec::SessionSpec;
use crate::session::{Progress, Session, users};
use crate::target::hold::Hold;

impl Session {
    /// Attaches to all of these processes. If another session comes meanwhile to a site that this
    /// one needs for itself, the plans are made anew: fewer techniques are left.
    pub(crate) fn attach(
        pids: &[i32],
        bundle: &Bundle,
        requests: &[Request],
        options: &Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Session, SessionError> {
        /// Sessions that may come one after the other, each while the next plans are made.
        const PLANS: usize = 5;
        if !options.share_across_users {
            users::are_the_same(pids)?;
        }
        let several = pids.len() > 1 || options.follow;
        let mut once = || Session::attach_once(pids, SessionSpec::new(bundle, requests, options, several), progress);
        for _ in 1..PLANS {
            match once() {
                Err(SessionError::Overtaken { .. }) => {}
                result => return result,
            }
        }
        once()
    }

    /// Attaches to all of these processes. Each is looked at before the first is changed.
    fn attach_once(
        pids: &[i32],
        wanted: SessionSpec,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Session, SessionError> {
        let mut ready = Vec::new();
        for pid in pids {
            ready.push(Attach::prepare(*pid, &wanted, pids.len() > 1, progress)?);
        }
        note_missing(&mut ready, &wanted.options)?;
        let mut session: Option<Session> = None;
        for attach in ready {
            let one = attach.install(wanted.clock)?;
            match &mut session {
                None => session = Some(one),
                Some(session) => session.join(one),
            }
        }
        let mut session = session.ok_or(SessionError::NoTarget)?;
        session.listen(wanted)?;
        let total = session.probes().len();
        progress(Progress { done: total, total });
        Ok(session)
    }
}

/// Whether so many attach points are allowed, beside those that are there. As bpftrace counts them:
/// a static probe is one, wherever it is.
pub(crate) fn check_limit(
    matches: &[(usize, resolve::Match)],
    there: usize,
    options: &Options,
) -> Result<(), SessionError> {
    let Some(most) = options.most_probes else { return Ok(()) };
    let mut known = HashSet::new();
    let is_new = |(request, m): &&(usize, resolve::Match)| {
        m.usdt.is_none() || known.insert((*request, m.object.path().to_owned(), m.name.clone()))
    };
    match there + matches.iter().filter(is_new).count() {
        found if found > most => Err(SessionError::TooManyProbes { found, most }),
        _ => Ok(()),
    }
}

/// A process that is about to be probed, and how.
pub(crate) struct Attach {
    process: Process,
    installer: Installer,
    planned: Vec<Planned>,
    hooks: Vec<Hook>,
    /// Requests that mean nothing in this process.
    missing: Vec<(usize, SessionError)>,
    /// They may mean something later.
    waits: bool,
    /// What looked like remains of a session, and stays.
    remains: Option<String>,
}

impl Attach {
    /// Resolves and plans. What an earlier controller has left there is removed; nothing else is
    /// changed. `others`: there are more processes, which may have what this one has not.
    pub fn prepare(
        pid: i32,
        wanted: &SessionSpec,
        others: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Attach, SessionError> {
        let begin = Instant::now();
        let process = switch::open(pid)?;
        let remains = clean_up(&process)?;
        let mut installer = wanted.installer();
        let mut objects = wanted.objects.borrow_mut();
        let (mut matches, mut missing) = (Vec::new(), Vec::new());
        for (i, request) in installer.requests().iter().enumerate() {
            match resolve::in_process(&request.pattern, &process, &mut objects) {
                Ok(found) => matches.extend(found.into_iter().map(|m| (i, m))),
                Err(error) => missing.push((i, error)),
            }
        }
        installer.forgive(&mut missing);
        let is_mistake = |error: &SessionError| !(wanted.options.listens() && error.may_come());
        if !wanted.options.missing.is_noted() && !others {
            if let Some(at) = missing.iter().position(|(_, error)| is_mistake(error)) {
                return Err(missing.swap_remove(at).1);
            }
        }
        let total = matches.len();
        check_limit(&matches, 0, &wanted.options)?;
        progress(Progress { done: 0, total });
        let mut done = 0;
        let (planned, mut hooks) = installer.plan(matches, &process, &mut objects, &mut || {
            done += 1;
            progress(Progress { done, total });
        })?;
        hooks.extend(installer.plan_loader(&process, &mut objects)?);
        objects.analyses.borrow_mut().forget();
        // What is there but has no such function is a mistake, and will be one later.
        let allowed = wanted.options.missing == Missing::Allowed;
        let waits = wanted.options.listens() && (allowed || missing.iter().all(|(_, error)| error.may_come()));
        if planned.is_empty() && !(waits && !missing.is_empty() && !hooks.is_empty()) {
            let source = installer.none_of(missing);
            return Err(if others { SessionError::InProcess { pid, source: Box::new(source) } } else { source });
        }
        installer.size_for(planned.len() + hooks.len())?;
        installer.stats.planning = begin.elapsed();
        Ok(Attach { process, installer, planned, hooks, missing, waits, remains })
    }

    /// Puts the probes in. On an error nothing is left changed in the process.
    pub fn install(self, clock: Option<TscScale>) -> Result<Session, SessionError> {
        let Attach { process, mut installer, planned, hooks, waits, remains, .. } = self;
        installer.look_at_symbols(&process);
        let mut hold = Hold::running(&process);
        let installed = take_turn(&process).and_then(|_turn| installer.install(&mut hold, planned, hooks, clock));
        installer.stats.stops.append(hold.stops());
        let nothing = (installer.probes.is_empty() && !waits).then(|| installer.nothing());
        let failed = installed.err().or(nothing);
        if let Some(e) = failed {
            let _ = remove(&process);
            return Err(e);
        }
        let mut session = Session::new(process, None, installer);
        session.remains.extend(remains.map(|remains| (session.pid(), remains)));
        Ok(session)
    }
}

/// Notes requests that mean nothing in any of the processes, or gives the first of them as the
/// error that it is.
pub(crate) fn note_missing(ready: &mut [Attach], options: &Options) -> Result<(), SessionError> {
    let Some((first, others)) = ready.split_first_mut() else { return Ok(()) };
    let mut missing = std::mem::take(&mut first.missing);
    missing.retain(|(request, _)| others.iter().all(|other| other.missing.iter().any(|(i, _)| i == request)));
    first.installer.forgive(&mut missing);
    for (request, error) in missing {
        if options.missing.is_noted() && !(options.follow && error.may_come()) {
            first.installer.miss(request, &error);
        } else if first.waits {
            first.installer.wait_for(request, &error);
        } else {
            return Err(error);
        }
    }
    Ok(())
}
