//! A session: the probes of one process, from this side.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::{Mutex, PoisonError};
use std::thread;

use sidestep_engine::{Bundle, Entry, Options, Record};

use crate::codec::{receive, send};
use crate::context::Handler;
use crate::controller::{Controller, Target};
use crate::error::Error;
use crate::order::{Answer, Ended, Fault, Listed, Order, Refused};
use crate::own;
use crate::probe::Probe;

/// The number of a registration: what [`Session::register`] was called for, at all places that it
/// means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Registration(pub u32);

/// A session that is to be started.
pub struct Builder {
    target: Option<Target>,
    bundle: Bundle,
    options: Options,
    probes: Vec<Probe>,
}

impl Builder {
    fn new(target: Option<Target>) -> Builder {
        Builder { target, bundle: Bundle::default(), options: Options::default(), probes: Vec::new() }
    }

    /// Programs and maps: probes name programs by their index, and [`Session::entries`] maps.
    #[must_use]
    pub fn bundle(mut self, bundle: Bundle) -> Builder {
        self.bundle = bundle;
        self
    }

    /// Options of the engine.
    #[must_use]
    pub fn options(mut self, options: Options) -> Builder {
        self.options = options;
        self
    }

    /// A probe that is there from the start. The registrations of these are numbered from 0.
    #[must_use]
    pub fn probe(mut self, probe: Probe) -> Builder {
        self.probes.push(probe);
        self
    }

    /// Starts the session. A process is not touched until something is registered; a command runs
    /// when this returns.
    ///
    /// # Errors
    /// There is no controller, or the probes cannot be registered.
    pub fn start(self) -> Result<Session, Error> {
        let Builder { target, bundle, options, probes } = self;
        let is_own = target.is_none();
        let failed = |source| Error::Own { what: "start a controller", source };
        let pid = process::id() as i32;
        let serve = move |socket: &UnixStream| {
            Controller::new(target.unwrap_or(Target::Pid(pid)), bundle, options).serve(socket);
        };
        let (socket, controller) = match is_own {
            true => (own::start(serve).map_err(failed)?, None),
            false => {
                let (ours, theirs) = UnixStream::pair().map_err(failed)?;
                // What traces a process is a thread.
                let thread = thread::Builder::new().name("sidestep".to_owned()).stack_size(own::STACK);
                let thread = thread.spawn(move || serve(&theirs)).map_err(failed)?;
                (ours, Some(thread))
            }
        };
        let link = Link { socket: Some(socket), handlers: BTreeMap::new(), failed: Vec::new(), controller };
        let session = Session { owner: process::id(), is_own, link: Mutex::new(link) };
        session.register_all(probes)?;
        Ok(session)
    }
}

/// The probes of one process. All functions may be called from any thread, one does its work at a
/// time; not from a handler. Dropping it takes all probes out.
pub struct Session {
    /// Process id of whoever made it.
    owner: u32,
    is_own: bool,
    link: Mutex<Link>,
}

struct Link {
    /// `None`: the session is over.
    socket: Option<UnixStream>,
    /// What probes have the addresses of, by registration.
    handlers: BTreeMap<u32, Vec<Handler>>,
    /// Of those that could not be registered: a part of it may have been there for a moment, and a
    /// thread be in its handler.
    failed: Vec<Handler>,
    /// The thread that controls another process.
    controller: Option<thread::JoinHandle<()>>,
}

impl Session {
    /// Of this process itself, by a controller in a process of its own.
    #[must_use]
    pub fn own() -> Builder {
        Builder::new(None)
    }

    /// Of a process that runs.
    #[must_use]
    pub fn attach(pid: i32) -> Builder {
        Builder::new(Some(Target::Pid(pid)))
    }

    /// Of a command that is started for it, found in `PATH`: [`Builder::probe`] says what is there
    /// before its first instruction.
    #[must_use]
    pub fn command<A: Into<OsString>>(argv: impl IntoIterator<Item = A>) -> Builder {
        Builder::new(Some(Target::Command(argv.into_iter().map(Into::into).collect())))
    }

    /// Puts a probe in, at all places that it means.
    ///
    /// # Errors
    /// It means nothing, nothing of it can be probed, or what it means is probed already. Then
    /// nothing has changed.
    pub fn register(&self, probe: Probe) -> Result<Registration, Error> {
        let all = self.register_all([probe])?;
        all.first().copied().ok_or(Error::ControllerGone)
    }

    /// Puts several in at once: faster, and they may be at the same place, where they run in this
    /// order, and are switched one by one.
    ///
    /// # Errors
    /// As for [`Session::register`].
    pub fn register_all(&self, probes: impl IntoIterator<Item = Probe>) -> Result<Vec<Registration>, Error> {
        let probes: Vec<Probe> = probes.into_iter().collect();
        if probes.is_empty() {
            return Ok(Vec::new());
        }
        if !self.is_own && probes.iter().any(Probe::is_native) {
            return Err(Error::NotOwn);
        }
        let wanted = probes.iter().map(Probe::wanted).collect();
        let mut link = self.link()?;
        let count = probes.len() as u32;
        let answer = link.order(&Order::Register(wanted));
        let handlers = probes.into_iter().map(|probe| probe.handlers);
        match answer {
            Ok(Answer::Registered(first, left)) => {
                let gone: Vec<Vec<Handler>> = left.iter().filter_map(|id| link.handlers.remove(id)).collect();
                link.handlers.extend((first..).zip(handlers).filter(|(_, handlers)| !handlers.is_empty()));
                // Whoever is told that one is dropped may use the session.
                drop(link);
                drop(gone);
                Ok((first..first + count).map(Registration).collect())
            }
            other => {
                link.failed.extend(handlers.flatten());
                other.and(Err(Error::ControllerGone))
            }
        }
    }

    /// Puts the probes of a registration back that were disabled.
    ///
    /// # Errors
    /// There is no such registration, or the target cannot be stopped.
    pub fn enable(&self, registration: Registration) -> Result<(), Error> {
        self.order(&Order::Enable(registration.0)).map(drop)
    }

    /// Gives the probed places their original code until they are enabled again. Where other
    /// registrations are, too, these go on.
    ///
    /// # Errors
    /// As for [`Session::enable`].
    pub fn disable(&self, registration: Registration) -> Result<(), Error> {
        self.order(&Order::Disable(registration.0)).map(drop)
    }

    /// Makes the probed places jumps where that is possible, or traps, with all registrations that
    /// are there; nothing else changes but how long a hit takes. This is about the future of what
    /// is disabled.
    ///
    /// # Errors
    /// As for [`Session::enable`]; also if traps are wanted where the session takes none: see
    /// [`Options::live`].
    pub fn optimize(&self, registration: Registration, on: bool) -> Result<(), Error> {
        self.order(&Order::Optimize(registration.0, on)).map(drop)
    }

    /// Takes the probes of a registration out. Its places can be registered again, if no other
    /// registration is there. A thread that was in the handler goes on there: what handlers use has
    /// to stay until the session is over. Closures stay by themselves, as long as a thread may be
    /// in one. They go, and so does the memory of the registration, some KiB, when others are
    /// registered later and nobody is in there; not while a forked child has the session's memory.
    ///
    /// # Errors
    /// As for [`Session::disable`].
    pub fn unregister(&self, registration: Registration) -> Result<(), Error> {
        self.order(&Order::Unregister(registration.0)).map(drop)
    }

    /// All probes, with their state and counts. In the order of registration, and for one place by
    /// its address.
    ///
    /// # Errors
    /// The controller is gone.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        match self.order(&Order::List)? {
            Answer::Probes(probes) => Ok(probes),
            _ => Err(Error::ControllerGone),
        }
    }

    /// Hits and missed hits of a registration, all its places together.
    ///
    /// # Errors
    /// The controller is gone.
    pub fn counts(&self, registration: Registration) -> Result<(u64, u64), Error> {
        let list = self.list()?;
        let of_it = list.iter().filter(|probe| probe.registration == registration.0);
        Ok(of_it.fold((0, 0), |(hits, missed), probe| (hits + probe.hits, missed + probe.missed)))
    }

    /// Places that were meant and could not be probed, beside others that could.
    ///
    /// # Errors
    /// The controller is gone.
    pub fn refused(&self) -> Result<Vec<Refused>, Error> {
        match self.order(&Order::Refused)? {
            Answer::Refused(refused) => Ok(refused),
            _ => Err(Error::ControllerGone),
        }
    }

    /// The entries of a map of the bundle.
    ///
    /// # Errors
    /// The controller is gone.
    pub fn entries(&self, map: usize) -> Result<Vec<Entry>, Error> {
        match self.order(&Order::Entries(u32::try_from(map).unwrap_or(u32::MAX)))? {
            Answer::Entries(entries) => Ok(entries),
            _ => Err(Error::ControllerGone),
        }
    }

    /// What programs wrote to rings since the last call, in order of time.
    ///
    /// # Errors
    /// The controller is gone.
    pub fn records(&self) -> Result<Vec<Record>, Error> {
        match self.order(&Order::Records)? {
            Answer::Records(records) => Ok(records),
            _ => Err(Error::ControllerGone),
        }
    }

    /// Waits until the command of the session has ended; anything else that is asked of the session
    /// waits, too.
    ///
    /// # Errors
    /// The controller is gone.
    pub fn wait(&self) -> Result<Ended, Error> {
        match self.order(&Order::Wait)? {
            Answer::Ended(ended) => Ok(ended),
            _ => Err(Error::ControllerGone),
        }
    }

    /// Takes all probes out: afterwards all code is what it was, no thread is in a handler, and
    /// none of the session's memory is left. Dropping the session does the same, and keeps errors
    /// to itself.
    ///
    /// # Errors
    /// A thread does not leave a handler: then its code and the closures stay.
    pub fn detach(self) -> Result<(), Error> {
        self.end()
    }

    fn end(&self) -> Result<(), Error> {
        let mut link = self.link()?;
        if link.socket.is_none() {
            return Ok(());
        }
        let result = link.order(&Order::Detach);
        link.socket = None;
        if let Some(thread) = link.controller.take() {
            // It has seen the end of its socket; a panic has been told.
            let _ = thread.join();
        }
        let (handlers, failed) = (std::mem::take(&mut link.handlers), std::mem::take(&mut link.failed));
        if result.is_err() {
            // Somebody may still be in there.
            handlers.into_values().flatten().chain(failed).for_each(std::mem::forget);
        }
        result.map(drop)
    }

    fn order(&self, order: &Order) -> Result<Answer, Error> {
        self.link()?.order(order)
    }

    fn link(&self) -> Result<std::sync::MutexGuard<'_, Link>, Error> {
        // The socket is shared with the parent.
        if process::id() != self.owner {
            return Err(Error::Forked);
        }
        Ok(self.link.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Link {
    fn order(&mut self, order: &Order) -> Result<Answer, Error> {
        let socket = self.socket.as_ref().ok_or(Error::ControllerGone)?;
        let answer = send(order, socket).and_then(|()| receive::<Result<Answer, Fault>>(socket));
        match answer.map_err(|_| Error::ControllerGone)? {
            Ok(answer) => Ok(answer),
            Err(Fault::NoRegistration(id)) => Err(Error::NoRegistration { id }),
            Err(Fault::Engine(message)) => Err(Error::Engine { message }),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Twice is fine: the second time there is no socket.
        let _ = self.end();
    }
}
