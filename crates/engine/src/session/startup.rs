//! Starting a command with its probes: each library gets them when the dynamic loader has mapped
//! it, before any of its code has run.

use std::ffi::OsString;
use std::time::Instant;

use sidestep_sys::{Child, Process, Spawned, StartupEvent, spawn};

use crate::api::Missing;
use crate::error::SessionError;
use crate::resolve;
use crate::resolve::objects::Objects;
use crate::session::Progress;
use crate::session::attach::check_limit;
use crate::session::follow::Follow;
use crate::session::installer::Installer;
use crate::session::spec::SessionSpec;
use crate::target::hold::Hold;

/// Spawns, installs, lets go.
pub(crate) fn run(
    argv: &[OsString],
    wanted: SessionSpec,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Process, Child, Installer, Option<Follow>), SessionError> {
    let mut spawned = spawn(argv, std::env::vars_os())?;
    let pid = spawned.process().pid();
    let result = follow(&mut spawned, &wanted, progress).and_then(|begun| {
        let installer = judge(begun, &wanted)?;
        // Before it may ask for anything.
        let follow = Follow::start(wanted, &installer, &[pid])?;
        Ok((installer, follow))
    });
    match result {
        Ok((installer, follow)) => {
            let (process, child) = spawned.into_process();
            Ok((process, child, installer, follow))
        }
        Err(e) => {
            // The command was never wanted without its probes.
            spawned.kill();
            Err(e)
        }
    }
}

/// A program that was followed to its entry point, or to its end.
pub(crate) struct Begun {
    pub installer: Installer,
    /// Requests that mean nothing in it so far.
    pub missing: OfRequests<SessionError>,
}

/// Is it what was wanted?
fn judge(begun: Begun, wanted: &SessionSpec) -> Result<Installer, SessionError> {
    let Begun { mut installer, mut missing } = begun;
    installer.forgive(&mut missing);
    let noted = wanted.options.missing.is_noted();
    // What is there but has no such function is a mistake, and will be one later.
    let may_come = |error: &SessionError| error.may_come() && wanted.options.follow;
    let waits = !missing.is_empty() && missing.iter().all(|(_, error)| may_come(error));
    let allowed = wanted.options.missing == Missing::Allowed && !missing.is_empty();
    if installer.probes.is_empty() && !((waits || allowed) && installer.regions().is_some()) {
        return Err(installer.none_of(missing));
    }
    if wanted.options.missing == Missing::Error && !missing.is_empty() && !waits {
        return Err(missing.swap_remove(0).1);
    }
    for (request, error) in missing {
        let comes = waits || noted && may_come(&error);
        if comes { installer.wait_for(request, &error) } else { installer.miss(request, &error) }
    }
    Ok(installer)
}

/// Installs while a new program starts.
pub(crate) fn follow(
    spawned: &mut Spawned,
    wanted: &SessionSpec,
    progress: &mut dyn FnMut(Progress),
) -> Result<Begun, SessionError> {
    let mut objects = wanted.objects.borrow_mut();
    let mut installer = wanted.installer();
    installer.size_for_spawn()?;
    loop {
        let event = spawned.next_mapping_change()?;
        match event {
            StartupEvent::Mapped | StartupEvent::Entry => {}
            // What was installed went with the old program.
            StartupEvent::Executed => {
                installer = wanted.installer();
                continue;
            }
            StartupEvent::Exited(_) => return Ok(Begun { installer, missing: Vec::new() }),
        }
        let last = event == StartupEvent::Entry;
        let begin = Instant::now();
        let process = spawned.process().clone();
        let (matches, missing) = find(&process, &installer, &mut objects, last);
        let matches = installer.only_new(matches);
        check_limit(&matches, installer.probes.len(), &wanted.options)?;
        let (mut done, total) = (installer.probes.len(), installer.probes.len() + matches.len());
        let (planned, mut hooks) = installer.plan(matches, &process, &mut objects, &mut || {
            done += 1;
            progress(Progress { done, total });
        })?;
        if last {
            hooks.extend(installer.plan_loader(&process, &mut objects)?);
        }
        installer.stats.planning += begin.elapsed();
        installer.look_at_symbols(&process);
        installer.install(&mut Hold::Stopped(spawned.stopped()), planned, hooks, wanted.clock)?;
        if last {
            installer.begin_program(spawned.stopped())?;
            return Ok(Begun { installer, missing });
        }
    }
}

/// With the index of the request that it belongs to.
pub(crate) type OfRequests<T> = Vec<(usize, T)>;

/// What the requests mean among the objects that are there so far, and the requests that mean
/// nothing. Indirect functions that are not resolved yet wait for a later event, unless this is the
/// last.
pub(crate) fn find(
    process: &Process,
    installer: &Installer,
    objects: &mut Objects,
    last: bool,
) -> (OfRequests<resolve::Match>, OfRequests<SessionError>) {
    let mut all = Vec::new();
    let mut missing = Vec::new();
    for (i, request) in installer.requests().iter().enumerate() {
        match resolve::in_process(&request.pattern, process, objects) {
            Ok(found) => all.extend(found.into_iter().filter(|m| last || m.va.is_ok()).map(|m| (i, m))),
            Err(e) => missing.push((i, e)),
        }
    }
    (all, missing)
}
