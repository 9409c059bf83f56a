//! Starting a command with its probes: each library gets them when the dynamic loader has mapped it, before any of
//! its code has run.

use std::ffi::OsString;
use std::time::Instant;

use sidestep_sys::{Child, Process, Spawned, StartupEvent, spawn};

use crate::api::{Bundle, Missing, Options, Request};
use crate::book::Book;
use crate::error::SessionError;
use crate::hold::Hold;
use crate::installer::Installer;
use crate::objects::Objects;
use crate::planning::plan_all;
use crate::remote::{mappings, used};
use crate::resolve;
use crate::session::{Progress, clock};

/// Spawns, installs, lets go.
pub(crate) fn run(
    argv: &[OsString],
    bundle: &Bundle,
    requests: &[Request],
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Process, Child, Installer), SessionError> {
    let clock = clock();
    let mut spawned = spawn(argv, std::env::vars_os())?;
    let result = follow(&mut spawned, bundle, requests, options, clock, progress);
    match result {
        Ok(installer) => {
            let (process, child) = spawned.into_process();
            Ok((process, child, installer))
        }
        Err(e) => {
            // The command was never wanted without its probes.
            spawned.kill();
            Err(e)
        }
    }
}

fn follow(
    spawned: &mut Spawned,
    bundle: &Bundle,
    requests: &[Request],
    options: &Options,
    clock: Option<sidestep_sys::TscScale>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Installer, SessionError> {
    let mut objects = Objects::new(options);
    let book = Book::new(true);
    let mut installer = Installer::new(bundle, requests, options, &book);
    installer.size_for_spawn()?;
    loop {
        let event = spawned.next_mapping_change()?;
        match event {
            StartupEvent::Mapped | StartupEvent::Entry => {}
            // What was installed went with the old program.
            StartupEvent::Executed => {
                installer = Installer::new(bundle, requests, options, &book);
                installer.size_for_spawn()?;
                continue;
            }
            StartupEvent::Exited(_) => {
                return if installer.probes.is_empty() { Err(installer.nothing()) } else { Ok(installer) };
            }
        }
        let last = event == StartupEvent::Entry;
        let begin = Instant::now();
        let process = spawned.process().clone();
        let (matches, mut missing) = find(&process, &installer, &mut objects, last);
        let matches = installer.only_new(matches);
        let (mut done, total) = (installer.probes.len(), installer.probes.len() + matches.len());
        let wishes = installer.wishes();
        installer.surroundings.look(&used(&mappings(&process)?));
        let planned = plan_all(matches, &wishes, &mut installer.surroundings, &mut || {
            done += 1;
            progress(Progress { done, total });
        })?;
        let planned = installer.accept(planned);
        let (planned, hooks) = installer.complete(planned, &process, &mut objects)?;
        installer.stats.planning += begin.elapsed();
        installer.install(&mut Hold::Stopped(spawned.stopped()), planned, hooks, clock)?;
        if last {
            installer.begin_program(spawned.stopped())?;
            installer.look_at_symbols(&process);
            if installer.probes.is_empty() {
                return Err(installer.none_of(missing));
            }
            if options.missing == Missing::Error && !missing.is_empty() {
                return Err(missing.swap_remove(0).1);
            }
            missing.into_iter().for_each(|(request, error)| installer.miss(request, &error));
            return Ok(installer);
        }
    }
}

/// With the index of the request that it belongs to.
type OfRequests<T> = Vec<(usize, T)>;

/// What the requests mean among the objects that are there so far, and the requests that mean nothing. Indirect
/// functions that are not resolved yet wait for a later event, unless this is the last.
fn find(
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
