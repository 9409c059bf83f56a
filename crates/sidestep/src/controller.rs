//! The one that does what a session orders: it owns the engine's session, on a thread or in a
//! process of its own.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use sidestep_engine as engine;
use sidestep_engine::{Action, Bundle, Code, Options, Program, Request, SiteState, TargetState};

use crate::codec::{receive, send};
use crate::order::{Answer, Does, Fault, Function, Listed, Order, Refused, State, Wanted};

/// What to probe.
#[derive(Debug)]
pub enum Target {
    /// A process that runs.
    Pid(i32),
    /// A command that starts with the first registration.
    Command(Vec<OsString>),
}

/// Its state.
pub struct Controller {
    target: Option<Target>,
    bundle: Bundle,
    options: Options,
    session: Option<engine::Session>,
    /// The number of the next registration.
    next: u32,
    /// Of each registration the number of its request.
    registered: BTreeMap<u32, usize>,
    /// Those that were taken out, by the number of the request.
    leaving: HashMap<usize, u32>,
    /// Those of them whose handlers nobody is in any more.
    left: Vec<u32>,
}

impl Controller {
    pub fn new(target: Target, bundle: Bundle, options: Options) -> Controller {
        let options = Options { extensible: true, ..options };
        Controller {
            target: Some(target),
            bundle,
            options,
            session: None,
            next: 0,
            registered: BTreeMap::new(),
            leaving: HashMap::new(),
            left: Vec::new(),
        }
    }

    /// Does what comes through a socket until its other end is closed, and detaches.
    pub fn serve(mut self, socket: &UnixStream) {
        loop {
            self.await_order(socket);
            let Ok(order) = receive::<Order>(socket) else { break };
            let answer = self.obey(order);
            if send(&answer, socket).is_err() {
                break;
            }
        }
    }

    /// Waits for an order. Meanwhile the target may ask something: a thread of it waits for the
    /// answer.
    #[allow(unsafe_code, reason = "poll has no safe interface in std")]
    fn await_order(&mut self, socket: &UnixStream) {
        while let Some(session) = &mut self.session {
            let Some(wakes) = session.wakes() else { return };
            let fds = [socket.as_raw_fd(), wakes.as_raw_fd()];
            let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            // SAFETY: `polls` are two pollfds of descriptors that are open.
            let ready = unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) };
            if ready > 0 && polls[0].revents != 0 {
                return;
            }
            session.poll();
        }
    }

    /// Does what is ordered.
    pub fn obey(&mut self, order: Order) -> Result<Answer, Fault> {
        match order {
            Order::Register(wanted) => self.register(&wanted),
            Order::Enable(id) => self.switch(id, engine::Session::enable),
            Order::Disable(id) => self.switch(id, engine::Session::disable),
            Order::Optimize(id, true) => self.switch(id, |session, ids| session.optimize(ids, true)),
            Order::Optimize(id, false) => self.switch(id, |session, ids| session.optimize(ids, false)),
            Order::Unregister(id) => {
                let done = self.switch(id, engine::Session::remove)?;
                let request = self.registered.remove(&id);
                self.leaving.extend(request.map(|request| (request, id)));
                Ok(done)
            }
            Order::List => Ok(Answer::Probes(self.list())),
            Order::Refused => Ok(Answer::Refused(self.refused())),
            Order::Entries(map) => {
                let entries = self.session.as_ref().map(|session| session.entries(map as usize));
                Ok(Answer::Entries(entries.unwrap_or_default()))
            }
            Order::Records => {
                Ok(Answer::Records(self.session.as_mut().map(engine::Session::records).unwrap_or_default()))
            }
            Order::Wait => {
                let state = self.session.as_mut().map(engine::Session::wait);
                let status = if let Some(TargetState::Exited(status)) = state { status } else { None };
                Ok(Answer::Ended(status.into()))
            }
            Order::Detach => {
                if let Some(session) = &mut self.session {
                    session.detach()?;
                }
                Ok(Answer::Done)
            }
        }
    }

    fn register(&mut self, wanted: &[Wanted]) -> Result<Answer, Fault> {
        let first = self.next;
        if wanted.is_empty() {
            return Ok(Answer::Registered(first, Vec::new()));
        }
        self.reclaim()?;
        let mut programs = Vec::new();
        let mut requests = Vec::new();
        // Each has two functions at most.
        let most = 2 * wanted.len();
        let indices = match &self.session {
            Some(session) => session.next_programs(most),
            None => (self.bundle.programs.len()..).take(most).collect(),
        };
        for one in wanted {
            let pattern = one.place.pattern().map_err(Fault::Engine)?;
            let action = action(&one.does, &indices, &mut programs);
            requests.push(Request::new(pattern, action));
        }
        let numbers = match (&mut self.session, self.target.take()) {
            (Some(session), _) => session.add(&programs, &requests, &self.options)?,
            (None, Some(target)) => {
                let again = if let Target::Pid(pid) = target { Some(Target::Pid(pid)) } else { None };
                let target = match target {
                    Target::Pid(pid) => engine::Target::Pid(pid),
                    Target::Command(argv) => engine::Target::Command(argv),
                };
                let mut bundle = self.bundle.clone();
                bundle.programs.extend_from_slice(&programs);
                match engine::Session::start(target, &bundle, &requests, &self.options, &mut |_| {}) {
                    Ok(session) => self.session = Some(session),
                    Err(error) => {
                        self.target = again;
                        return Err(error.into());
                    }
                }
                (0..wanted.len()).collect()
            }
            (None, None) => return Err(Fault::Engine("the command of this session did not start".to_owned())),
        };
        self.registered.extend((first..).zip(numbers));
        self.next += wanted.len() as u32;
        Ok(Answer::Registered(first, std::mem::take(&mut self.left)))
    }

    /// Takes back what registrations that were taken out have left.
    fn reclaim(&mut self) -> Result<(), Fault> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let freed = session.reclaim()?;
        self.left.extend(freed.iter().filter_map(|request| self.leaving.remove(request)));
        Ok(())
    }

    fn switch(
        &mut self,
        id: u32,
        how: fn(&mut engine::Session, &[usize]) -> Result<engine::Switched, engine::SessionError>,
    ) -> Result<Answer, Fault> {
        let request = self.registered.get(&id).copied().ok_or(Fault::NoRegistration(id))?;
        let session = self.session.as_mut().ok_or(Fault::NoRegistration(id))?;
        let of_it = session.probes().iter().filter(|probe| probe.request == request);
        let ids: Vec<usize> = of_it.map(|probe| probe.id).collect();
        match how(session, &ids)?.refused.first() {
            Some((va, reason)) => Err(Fault::Engine(format!("the probe at {va} stays as it is: {reason}"))),
            None => Ok(Answer::Done),
        }
    }

    fn list(&mut self) -> Vec<Listed> {
        let Some(session) = &self.session else { return Vec::new() };
        // What is there, whoever has put it there or switched it off.
        let installed = session.installed(&self.options).unwrap_or_default();
        let counts = session.counts();
        let by_request: HashMap<usize, u32> = self.registered.iter().map(|(id, request)| (*request, *id)).collect();
        let listed = |probe: &engine::Probe| {
            let counts = counts.get(probe.id).copied().unwrap_or_default();
            let installed = installed.get(probe.id).and_then(Option::as_ref);
            Some(Listed {
                registration: *by_request.get(&probe.request)?,
                name: probe.name.clone(),
                object: probe.object.clone(),
                address: probe.va.0,
                technique: probe.technique.to_string(),
                optimized: installed.is_some_and(|installed| installed.optimized),
                state: match installed.map(|installed| installed.state) {
                    Some(SiteState::Enabled) => State::Enabled,
                    Some(SiteState::Disabled) => State::Disabled,
                    Some(SiteState::Gone) | None => State::Gone,
                },
                hits: counts.hits,
                missed: counts.missed,
            })
        };
        session.probes().iter().filter_map(listed).collect()
    }

    fn refused(&self) -> Vec<Refused> {
        let one =
            |r: &engine::Refused| Refused { name: r.name.clone(), object: r.object.clone(), reason: r.reason.clone() };
        self.session.iter().flat_map(|session| session.refused()).map(one).collect()
    }
}

/// The action, for programs of the bundle and those that come at these indices.
fn action(does: &Does, indices: &[usize], programs: &mut Vec<Program>) -> Action {
    let mut add = |code| {
        programs.push(Program { name: "a function".to_owned(), code });
        indices[programs.len() - 1]
    };
    let index = |program: Option<u32>| program.map(|program| program as usize);
    let (entry, exit) = match does {
        Does::Programs(entry, exit) => (index(*entry), index(*exit)),
        Does::Functions(enter, leave) => {
            let redirects = leave.is_none();
            (enter.map(|f| add(native(f, redirects))), leave.map(|f| add(native(f, false))))
        }
        Does::Replace(function, original) => {
            (Some(add(Code::Replace { function: *function, original: *original })), None)
        }
    };
    Action { entry, exit, ..Action::default() }
}

fn native(function: Function, redirects: bool) -> Code {
    let Function { address, data, general_only } = function;
    Code::Native { function: address, data, general_only, redirects }
}
