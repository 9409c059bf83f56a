//! A session: one target, its probes, their results.

mod attach;
mod extend;
mod facts;
pub(crate) mod follow;
pub(crate) mod installer;
pub(crate) mod process_names;
mod protect;
pub(crate) mod protection;
pub(crate) mod reclaim;
mod registry;
pub(crate) mod remains;
mod shown;
pub(crate) mod spec;
pub(crate) mod startup;
mod switch;
pub(crate) mod users;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use sidestep_isa::Va;
use sidestep_sys::{Ending, Process, TscScale};

use crate::api::{Bundle, Entry, ExitStatus, Options, Probe, Record, Request, Stops, Target, TargetState};
use crate::error::SessionError;
use crate::resolve::names::Symbols;
use crate::resolve::objects::Objects;
use crate::results::Rings;
use crate::results::maps::Maps;
use crate::session::follow::Follow;
use crate::session::installer::{Installer, Numbers};
use crate::session::process_names::Told;
use crate::session::protection::Guard;
use crate::session::remains::remove;
use crate::session::shown::rows;
use crate::session::spec::SessionSpec;
use crate::target::regions::Regions;

/// How far a start has come, for a progress line.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Sites done.
    pub done: usize,
    /// Sites in all.
    pub total: usize,
}

/// A target with its probes installed. Dropping it detaches.
pub struct Session {
    pub(crate) process: Process,
    child: Option<sidestep_sys::Child>,
    pub(crate) installer: Installer,
    rings: Rings,
    state: TargetState,
    pub(crate) attached: bool,
    detached: Stops,
    /// Of the other processes, one each.
    pub(crate) others: Vec<Session>,
    /// Those of them that have ended and whose children run on: a child has what its parent had.
    pub(crate) ended: Vec<Session>,
    /// What makes processes that come later a part of it.
    follow: Option<Follow>,
    /// Objects that were read for probes that came later.
    pub(crate) objects: Option<Objects>,
    /// Processes that came later and could not be probed, and why.
    unfollowed: Vec<(i32, String)>,
    /// Processes whose return addresses are not replaced any more, and why.
    pub(crate) unwatched: Vec<(i32, String)>,
    /// Names of addresses, not taken yet.
    symbols: Symbols,
    /// What of the processes looked like remains of a session, and was none.
    pub(crate) remains: Vec<(i32, String)>,
    /// What looks at the cost of the probes.
    pub(crate) guard: Option<Guard>,
    /// The names of processes that programs know.
    pub(crate) told: Told,
}

impl Session {
    /// Resolves, plans, attaches or spawns, installs. On an error nothing is left changed in the
    /// target. Fails if no site could be probed at all; single refusals are in
    /// [`Session::refused`]. A spawned command runs when this returns.
    pub fn start(
        target: Target,
        bundle: &Bundle,
        requests: &[Request],
        options: &Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Session, SessionError> {
        if !sidestep_sys::arch::thread_pointer_readable() {
            return Err(SessionError::NoFsgsbase);
        }
        let guard = Guard::new(bundle, requests, options)?;
        let mut session = Session::start_alone(target, bundle, requests, options, progress)?;
        if let Some(mut guard) = guard {
            guard.begin(&mut session);
            session.guard = Some(guard);
        }
        Ok(session)
    }

    /// The same without anybody who looks at what the probes cost.
    fn start_alone(
        target: Target,
        bundle: &Bundle,
        requests: &[Request],
        options: &Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Session, SessionError> {
        match target {
            Target::Pid(pid) => Session::attach(&[pid], bundle, requests, options, progress),
            Target::Pids(mut pids) => {
                pids.sort_unstable();
                pids.dedup();
                Session::attach(&pids, bundle, requests, options, progress)
            }
            Target::Command(argv) => {
                let wanted = SessionSpec::new(bundle, requests, options, true);
                let (process, child, installer, follow) = startup::run(&argv, wanted, progress)?;
                let mut session = Session::new(process, Some(child), installer);
                session.follow = follow;
                Ok(session)
            }
        }
    }

    pub(crate) fn new(process: Process, child: Option<sidestep_sys::Child>, installer: Installer) -> Session {
        let unwatched = installer.unwatched.clone().map(|reason| (process.pid(), reason)).into_iter().collect();
        let (rings, state, detached) = (Rings::default(), TargetState::Running, Stops::default());
        Session {
            process,
            child,
            installer,
            rings,
            state,
            attached: true,
            detached,
            others: Vec::new(),
            ended: Vec::new(),
            follow: None,
            objects: None,
            unfollowed: Vec::new(),
            unwatched,
            symbols: Symbols::default(),
            remains: Vec::new(),
            guard: None,
            told: Told::default(),
        }
    }

    /// Processes in which something looked like what a session has left, and was not removed, each
    /// with a clause for the user.
    pub fn remains(&self) -> &[(i32, String)] {
        &self.remains
    }

    /// Makes another process with the same programs and maps a part of this session.
    pub(crate) fn join(&mut self, mut other: Session) {
        self.take_probes(&other, (0, 0));
        let installer = &mut self.installer;
        installer.stats.planning += other.installer.stats.planning;
        installer.stats.stops.append(other.installer.stats.stops.clone());
        installer.stats.code_bytes += other.installer.stats.code_bytes;
        installer.replaces |= other.installer.replaces;
        self.keep_symbols(&mut other);
        self.unwatched.append(&mut other.unwatched);
        self.remains.append(&mut other.remains);
        self.others.push(other);
    }

    /// Keeps the names of another process.
    pub(crate) fn keep_symbols(&mut self, other: &mut Session) {
        self.symbols.append(other.take_symbols());
    }

    /// Adds the probes of another process that are new, and what was refused there, behind the
    /// first so many.
    pub(crate) fn take_probes(&mut self, other: &Session, from: (usize, usize)) {
        let installer = &mut self.installer;
        let mut rows = rows(&installer.numbers);
        let new = other.installer.probes.iter().zip(&other.installer.numbers).skip(from.0);
        for (probe, numbers) in new {
            let id = numbers.all().find_map(|number| rows.get(&number).copied()).unwrap_or(installer.probes.len());
            rows.extend(numbers.all().map(|number| (number, id)));
            match installer.numbers.get_mut(id) {
                Some(known) => known.merge(numbers),
                None => {
                    installer.probes.push(Probe { id, ..probe.clone() });
                    installer.numbers.push(numbers.clone());
                }
            }
        }
        for refused in &other.installer.refused[from.1..] {
            if !installer.refused.iter().any(|known| known.name == refused.name && known.object == refused.object) {
                installer.refused.push(refused.clone());
            }
        }
    }

    /// Does it answer what processes ask?
    pub(crate) fn listens(&self) -> bool {
        self.follow.is_some()
    }

    /// Answers what processes ask from now on, if there may be anything.
    pub(crate) fn listen(&mut self, wanted: SessionSpec) -> Result<(), SessionError> {
        let pids: Vec<i32> = self.pids().collect();
        self.follow = Follow::start(wanted, &self.installer, &pids)?;
        Ok(())
    }

    /// Keeps what went wrong with a process that came later.
    pub(crate) fn note(&mut self, pid: i32, error: &SessionError) {
        self.unfollowed.push((pid, error.to_string()));
    }

    /// A process that has not waited for what it had asked for.
    pub(crate) fn note_late(&mut self, pid: i32) {
        let reason = "it went on before its new libraries were probed, since that took too long";
        self.unfollowed.push((pid, reason.to_owned()));
    }

    /// A process that executes a program with privileges of its own.
    pub(crate) fn leave_alone(&mut self, pid: i32) {
        let reason = "its program has privileges (setuid, capabilities) that it would lose: run as root";
        self.unfollowed.push((pid, reason.to_owned()));
    }

    /// A process whose new program runs as another user.
    pub(crate) fn leave_user(&mut self, pid: i32) {
        let reason = "its new program runs as another user, or with other rights, and would share memory with the \
                      session's processes; --share-across-users allows that";
        self.unfollowed.push((pid, reason.to_owned()));
    }

    /// A process that has the session's memory, and none of its processes for a parent.
    pub(crate) fn leave_stranger(&mut self, pid: i32) {
        let reason = "it has the session's memory, but is no child of its processes, and none of them could trace it";
        self.unfollowed.push((pid, reason.to_owned()));
    }

    /// Processes whose new programs could not be probed, each with a clause for the user.
    pub fn unfollowed(&self) -> &[(i32, String)] {
        &self.unfollowed
    }

    /// Processes in which return addresses are not replaced any more, each with the reason: a
    /// clause for the user. Return probes that are not at the exits of their functions see
    /// nothing there from then on.
    pub fn unwatched(&self) -> &[(i32, String)] {
        &self.unwatched
    }

    /// The processes that it probes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        [self.pid()].into_iter().chain(self.others.iter().map(Session::pid))
    }

    /// The regions of the processes that it probes.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Regions> {
        [self].into_iter().chain(&self.others).filter_map(|session| session.installer.regions())
    }

    /// Is a process of this id a part of the session?
    pub(crate) fn knows(&self, pid: i32) -> bool {
        self.pid() == pid || self.others.iter().any(|other| other.pid() == pid)
    }

    /// Is one of the processes there that it knows?
    pub(crate) fn is_running(&mut self) -> bool {
        self.poll_own() == TargetState::Running || !self.others.is_empty()
    }

    /// Ids of the processes that it probes, but for children that were forked from them and
    /// have changed nothing since.
    pub fn processes(&self) -> Vec<i32> {
        self.pids().collect()
    }

    /// Process id of the target.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Process id of the one that a record is from: of several processes, as it sees itself.
    pub fn pid_of(&self, record: &Record) -> i32 {
        if self.others.is_empty() && !self.installer.follows() { self.pid() } else { record.pid as i32 }
    }

    /// The maps, to run programs of the controller on. None: nothing was installed.
    pub fn maps(&self) -> Option<Maps<'_>> {
        self.installer.regions().map(|regions| regions.maps())
    }

    /// The entries of a map, as they are now; of arrays, those in use are all. Consistent entry by
    /// entry.
    pub fn entries(&self, map: usize) -> Vec<Entry> {
        self.installer.regions().map_or_else(Vec::new, |regions| regions.maps().entries(map))
    }

    /// The words of one value of an array; where it has a value per thread, the sums over all
    /// threads.
    pub fn sums(&self, map: usize, index: u64) -> Vec<u64> {
        self.installer.regions().map_or_else(Vec::new, |regions| regions.maps().sums(map, index))
    }

    /// Entries or records that did not fit into a map.
    pub fn dropped(&self, map: usize) -> u64 {
        self.installer.regions().map_or(0, |regions| regions.maps().dropped(map))
    }

    /// As [`Counts::unfinished`](crate::Counts::unfinished), of functions that have gone: the
    /// library was unloaded.
    pub fn returns_dropped(&self) -> u64 {
        self.installer.regions().map_or(0, |regions| regions.returns_dropped())
    }

    /// Lines of `trace_printk` that did not fit into a ring.
    pub fn lines_dropped(&self) -> u64 {
        self.installer.regions().map_or(0, |regions| regions.lines_dropped())
    }

    /// Takes the records written since the last call, in order of time. Never blocks.
    pub fn records(&mut self) -> Vec<Record> {
        let Some(regions) = self.installer.regions() else { return Vec::new() };
        let mut records = regions.drain(&mut self.rings);
        records.sort_by_key(|record| record.time_ns);
        records
    }

    fn shared(&self) -> Result<Va, SessionError> {
        self.installer.shared(&self.process)
    }

    /// Is the target still there? Of several processes, is one? Never blocks.
    pub fn poll(&mut self) -> TargetState {
        let state = self.poll_all();
        if state == TargetState::Running {
            self.look_at_costs();
            self.refresh_names();
        }
        state
    }

    fn poll_all(&mut self) -> TargetState {
        let more = match self.follow.take() {
            Some(mut follow) => {
                let more = follow.serve(self);
                self.follow = Some(follow);
                more
            }
            None => false,
        };
        let running = self.others.iter_mut().fold(more, |running, other| {
            let is = other.poll_all() == TargetState::Running;
            running | is
        });
        if self.poll_own() == TargetState::Running || !running { self.state } else { TargetState::Running }
    }

    /// The same of its first process.
    pub(crate) fn poll_own(&mut self) -> TargetState {
        if matches!(self.state, TargetState::Running | TargetState::Executed) {
            if let Some(child) = &mut self.child {
                if let Ok(Some(status)) = child.try_wait() {
                    self.state = TargetState::Exited(Some(exit_status(status)));
                }
            } else if !self.process.is_alive() {
                self.state = TargetState::Exited(None);
            }
        }
        // One that is ending has nothing mapped any more, before it says so.
        let has_memory = || self.process.maps().is_ok_and(|maps| !maps.is_empty());
        if self.state == TargetState::Running && self.process.is_replaced() && has_memory() {
            self.state = TargetState::Executed;
        }
        self.state
    }

    /// Removes every trace from the target, or from all of its processes. Idempotent; fine when
    /// they are gone.
    pub fn detach(&mut self) -> Result<(), SessionError> {
        let _ending = Ending::begin();
        let mut follow = self.follow.take();
        if let Some(follow) = &mut follow {
            follow.stop_listening();
        }
        let mut result = self.detach_own();
        for other in &mut self.others {
            result = result.and(other.detach());
        }
        if let Some(mut follow) = follow {
            result = result.and(follow.detach_children());
            // Nobody may have looked for them before.
            for pid in follow.take_refused() {
                self.leave_stranger(pid);
            }
        }
        result
    }

    fn detach_own(&mut self) -> Result<(), SessionError> {
        if !self.attached {
            return Ok(());
        }
        self.attached = false;
        match self.poll_own() {
            TargetState::Running => match remove(&self.process) {
                Ok(stops) => {
                    self.detached = stops;
                    Ok(())
                }
                // The process may end meanwhile. Its memory goes first, while it counts as alive.
                Err(_) if self.poll_own() != TargetState::Running || self.process.is_replaced() => Ok(()),
                Err(error) => Err(error),
            },
            TargetState::Exited(_) | TargetState::Executed => Ok(()),
        }
    }

    /// Readable when a process wants something of the session: then [`Session::poll`] is due.
    pub fn wakes(&self) -> Option<BorrowedFd<'_>> {
        self.follow.as_ref().map(Follow::wakes)
    }

    /// Waits for the end of a spawned command (after a detach, for example); `Exited(None)` at once
    /// for an attached one.
    pub fn wait(&mut self) -> TargetState {
        match &mut self.child {
            None => TargetState::Exited(None),
            Some(child) => match child.wait() {
                Ok(status) => {
                    self.state = TargetState::Exited(Some(exit_status(status)));
                    self.state
                }
                Err(_) => self.state,
            },
        }
    }

    /// How the target stood still while it was detached from.
    pub fn detach_stops(&self) -> &Stops {
        &self.detached
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}

fn exit_status(status: sidestep_sys::ExitStatus) -> ExitStatus {
    match status {
        sidestep_sys::ExitStatus::Code(code) => ExitStatus::Code(code),
        sidestep_sys::ExitStatus::Signal(signal) => ExitStatus::Signal(signal),
    }
}

/// A calibrated clock, if time stamps can be taken without a system call.
pub(crate) fn clock() -> Option<TscScale> {
    sidestep_sys::tsc_usable().then(|| TscScale::calibrate(Duration::from_millis(10)))
}
