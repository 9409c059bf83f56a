//! A session: one target, its probes, their results.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sidestep_isa::Va;
use sidestep_sys::{Process, TscScale};

use crate::api::{
    AttachStats, Bundle, Counts, Entry, ExitStatus, Explained, Missing, Options, Pattern, Probe, Record, Refused,
    Request, Stops, Target, TargetState,
};
use crate::error::SessionError;
use crate::hold::Hold;
use crate::installer::Installer;
use crate::maps::Maps;
use crate::names::Symbols;
use crate::objects::Objects;
use crate::planning::{Wish, plan_all};
use crate::remote::{mappings, used};
use crate::results::Stuck;
use crate::status::{self, Installed};
use crate::surroundings::{self, Surroundings};
use crate::switch::{Switch, Switched, take_turn};
use crate::{detach, resolve, startup, toggle, traces};

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
    stuck: Stuck,
    state: TargetState,
    pub(crate) attached: bool,
    detached: Stops,
}

impl Session {
    /// Resolves, plans, attaches or spawns, installs. On an error nothing is left changed in the target. Fails if no
    /// site could be probed at all; single refusals are in [`Session::refused`]. A spawned command runs when this returns.
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
        match target {
            Target::Pid(pid) => Session::attach(pid, bundle, requests, options, progress),
            Target::Command(argv) => {
                let (process, child, installer) = startup::run(&argv, bundle, requests, options, progress)?;
                Ok(Session::new(process, Some(child), installer))
            }
        }
    }

    fn new(process: Process, child: Option<sidestep_sys::Child>, installer: Installer) -> Session {
        let (stuck, detached) = (Stuck::default(), Stops::default());
        Session { process, child, installer, stuck, state: TargetState::Running, attached: true, detached }
    }

    fn attach(
        pid: i32,
        bundle: &Bundle,
        requests: &[Request],
        options: &Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Session, SessionError> {
        let begin = Instant::now();
        let process = Process::open(pid)?;
        clean_up(&process)?;
        let mut objects = Objects::new(options);
        let mut installer = Installer::new(bundle, requests, options);
        let (mut matches, mut missing) = (Vec::new(), Vec::new());
        for (i, request) in requests.iter().enumerate() {
            match resolve::in_process(&request.pattern, &process, &mut objects) {
                Ok(found) => matches.extend(found.into_iter().map(|m| (i, m))),
                Err(error) if options.missing == Missing::Noted => missing.push((i, error)),
                Err(error) => return Err(error),
            }
        }
        let total = matches.len();
        progress(Progress { done: 0, total });
        let mut done = 0;
        let wishes = installer.wishes();
        installer.surroundings.look(&used(&mappings(&process)?));
        let planned = plan_all(matches, &wishes, &mut installer.surroundings, &mut || {
            done += 1;
            progress(Progress { done, total });
        })?;
        let planned = installer.accept(planned);
        let (planned, hooks) = installer.complete(planned, &process, &mut objects)?;
        if planned.is_empty() {
            return Err(installer.none_of(missing));
        }
        missing.into_iter().for_each(|(request, error)| installer.miss(request, &error));
        installer.size_for(planned.len() + hooks.len())?;
        let clock = clock();
        installer.stats.planning = begin.elapsed();

        installer.look_at_symbols(&process);
        let mut hold = Hold::running(&process);
        let installed = take_turn(&process).and_then(|_turn| installer.install(&mut hold, planned, hooks, clock));
        installer.stats.stops.append(hold.stops());
        let nothing = installer.probes.is_empty().then(|| installer.nothing());
        let failed = installed.err().or(nothing);
        if let Some(e) = failed {
            let _ = remove(&process);
            return Err(e);
        }
        progress(Progress { done: total, total });
        Ok(Session::new(process, None, installer))
    }

    /// Process id of the target.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// All installed probes; `Probe::id` is the index.
    pub fn probes(&self) -> &[Probe] {
        &self.installer.probes
    }

    /// Matches that were refused.
    pub fn refused(&self) -> &[Refused] {
        &self.installer.refused
    }

    /// Current counts, per probe. Works while the target runs, after its end, and after the detach.
    pub fn counts(&self) -> Vec<Counts> {
        let Some(regions) = self.installer.regions() else { return Vec::new() };
        let count = |number: &u32| Counts { hits: regions.cell(*number), missed: regions.missed(*number) };
        self.installer.numbers.iter().map(count).collect()
    }

    /// Names of the target's addresses, once, if [`Options::symbols`] asked for them.
    pub fn take_symbols(&mut self) -> Option<Symbols> {
        self.installer.symbols.take()
    }

    /// The maps, to run programs of the controller on. None: nothing was installed.
    pub fn maps(&self) -> Option<Maps<'_>> {
        self.installer.regions().map(|regions| regions.maps())
    }

    /// The entries of a map, as they are now; of arrays, those in use are all. Consistent entry by entry.
    pub fn entries(&self, map: usize) -> Vec<Entry> {
        self.installer.regions().map_or_else(Vec::new, |regions| regions.maps().entries(map))
    }

    /// The words of one value of an array with a value per thread, summed over all threads.
    pub fn sums(&self, map: usize, index: u64) -> Vec<u64> {
        self.installer.regions().map_or_else(Vec::new, |regions| regions.maps().sums(map, index))
    }

    /// Entries or records that did not fit into a map.
    pub fn dropped(&self, map: usize) -> u64 {
        self.installer.regions().map_or(0, |regions| regions.maps().dropped(map))
    }

    /// Returns that were never seen (longjmp, end of a thread): the number of entries without a latency.
    pub fn returns_dropped(&self) -> u64 {
        self.installer.regions().map_or(0, |r| r.returns_dropped())
    }

    /// Lines of `trace_printk` that did not fit into a ring.
    pub fn lines_dropped(&self) -> u64 {
        self.installer.regions().map_or(0, |regions| regions.lines_dropped())
    }

    /// Takes the records written since the last call, in order of time. Never blocks.
    pub fn records(&mut self) -> Vec<Record> {
        let Some(regions) = self.installer.regions() else { return Vec::new() };
        let mut records = regions.drain(&mut self.stuck);
        records.sort_by_key(|record| record.time_ns);
        records
    }

    /// Enables probes, given by their ids, that were disabled: here, or by somebody else. See [`Switched`].
    ///
    /// # Errors
    /// The target cannot be stopped, or the session is over.
    pub fn enable(&mut self, ids: &[usize]) -> Result<Switched, SessionError> {
        self.switch(ids, Switch::On)
    }

    /// Disables probes, given by their ids: their sites get their original code. Where others are, too, these stay if the session is
    /// [`Options::extensible`]; if not, the site stays as it is. What was counted stays.
    ///
    /// # Errors
    /// As [`Session::enable`].
    pub fn disable(&mut self, ids: &[usize]) -> Result<Switched, SessionError> {
        self.switch(ids, Switch::Off)
    }

    /// Makes probes, given by their ids, jumps where that is possible, or traps.
    ///
    /// # Errors
    /// As [`Session::enable`].
    pub fn optimize(&mut self, ids: &[usize], on: bool) -> Result<Switched, SessionError> {
        self.switch(ids, if on { Switch::Jump } else { Switch::Trap })
    }

    /// What is in the target of each probe, by id; `None`: nothing. Whoever has put it there, or switched it.
    ///
    /// # Errors
    /// The target cannot be looked at, or the session is over.
    pub fn installed(&self, options: &Options) -> Result<Vec<Option<Installed>>, SessionError> {
        let found = status::status(self.pid(), options)?.probes;
        let of = |number: &u32| found.iter().find(|installed| installed.number == *number).cloned();
        Ok(self.installer.numbers.iter().map(of).collect())
    }

    fn switch(&mut self, ids: &[usize], to: Switch) -> Result<Switched, SessionError> {
        if !self.attached {
            return Err(SessionError::NotProbed { pid: self.pid() });
        }
        let numbers = ids.iter().filter_map(|id| self.installer.numbers.get(*id).copied()).collect();
        toggle::by_number(&self.process, &numbers, to)
    }

    /// Is the target still there? Never blocks.
    pub fn poll(&mut self) -> TargetState {
        if matches!(self.state, TargetState::Running | TargetState::Executed) {
            if let Some(child) = &mut self.child {
                if let Ok(Some(status)) = child.try_wait() {
                    self.state = TargetState::Exited(Some(exit_status(status)));
                }
            } else if !self.process.is_alive() {
                self.state = TargetState::Exited(None);
            }
        }
        if self.state == TargetState::Running && self.process.is_replaced() && self.process.is_alive() {
            self.state = TargetState::Executed;
        }
        self.state
    }

    /// Removes every trace from the target. Idempotent; fine when the target is gone.
    pub fn detach(&mut self) -> Result<(), SessionError> {
        if !self.attached {
            return Ok(());
        }
        self.attached = false;
        match self.poll() {
            TargetState::Running => match remove(&self.process) {
                Ok(stops) => {
                    self.detached = stops;
                    Ok(())
                }
                // It may end while we are at it.
                Err(_) if self.poll() != TargetState::Running || !self.process.is_alive() => Ok(()),
                Err(error) => Err(error),
            },
            TargetState::Exited(_) | TargetState::Executed => Ok(()),
        }
    }

    /// Waits for the end of a spawned command (after a detach, for example); `Exited(None)` at once for an attached one.
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

    /// Why a fault of a displaced instruction shows its handler, or a core file, an address of ours instead of its own;
    /// `None`: it does not.
    pub fn hides_originals(&self) -> Option<String> {
        self.installer.hides_originals()
    }

    /// Objects through which stacks go by frame pointers alone, although they describe their frames, and why.
    pub fn without_frames(&self) -> &[(PathBuf, String)] {
        self.installer.without_frames()
    }

    /// Figures about the attach.
    pub fn stats(&self) -> AttachStats {
        self.installer.stats.clone()
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

/// Removes what an earlier controller left, unless it is still at work.
fn clean_up(process: &Process) -> Result<(), SessionError> {
    let maps = mappings(process)?;
    match traces::find(process, &maps)? {
        Some(found) if !found.is_child(process) && found.controller_alive() => {
            Err(SessionError::Busy { pid: process.pid(), controller: found.controller_pid })
        }
        Some(_) => detach::remove(process, &maps).map(drop),
        None => detach::close_descriptors(process),
    }
}

fn remove(process: &Process) -> Result<Stops, SessionError> {
    detach::remove(process, &mappings(process)?)
}

/// A calibrated clock, if time stamps can be taken without a system call.
pub(crate) fn clock() -> Option<TscScale> {
    sidestep_sys::tsc_usable().then(|| TscScale::calibrate(Duration::from_millis(10)))
}

/// One function that `list` shows.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Object path.
    pub object: PathBuf,
    /// Raw symbol name.
    pub name: String,
    /// Demangled name, where it differs.
    pub demangled: Option<String>,
    /// Link-time address.
    pub va: Va,
    /// Size in bytes, 0 = unknown.
    pub size: u64,
    /// A USDT probe: its name is `PROVIDER:NAME`.
    pub is_usdt: bool,
}

fn matches(pattern: &Pattern, pid: Option<i32>, options: &Options) -> Result<Vec<resolve::Match>, SessionError> {
    let mut objects = Objects::new(options);
    match pid {
        Some(pid) => resolve::in_process(pattern, &Process::open(pid)?, &mut objects),
        None => resolve::in_files(pattern, &mut objects),
    }
}

/// All functions that a pattern matches: in the mappings of `pid`, or in files (a short library name is looked up
/// like the dynamic loader does). Sorted by object, then name.
pub fn list(pattern: &Pattern, pid: Option<i32>, options: &Options) -> Result<Vec<Listed>, SessionError> {
    let mut all = Vec::new();
    for m in matches(pattern, pid, options)? {
        let listed = |raw: &str, name: &str| Listed {
            object: m.object.path().to_owned(),
            name: if raw.is_empty() { name.to_owned() } else { raw.to_owned() },
            demangled: (!raw.is_empty() && raw != name).then(|| name.to_owned()),
            va: m.va.unwrap_or(m.symbol_va),
            size: m.size,
            is_usdt: m.usdt.is_some(),
        };
        all.push(listed(&m.raw, &m.name));
        all.extend(m.aliases.iter().map(|(raw, name)| listed(raw, name)));
    }
    all.sort_by(|a, b| (&a.object, &a.name, a.va).cmp(&(&b.object, &b.name, b.va)));
    Ok(all)
}

/// What would be written where, and why, for every match of a pattern. Touches no process.
pub fn explain(pattern: &Pattern, pid: Option<i32>, options: &Options) -> Result<Vec<Explained>, SessionError> {
    let found: Vec<_> = matches(pattern, pid, options)?.into_iter().map(|m| (0, m)).collect();
    let wish = Wish { returns: false, post: false, trap_only: options.no_optimize, more: false };
    let mut surroundings = Surroundings::default();
    surroundings.look(&match pid {
        Some(pid) => used(&mappings(&Process::open(pid)?)?),
        None => found.iter().flat_map(|(_, m)| surroundings::assumed(m.image(), m.bias() == 0)).collect(),
    });
    Ok(plan_all(found, &[wish], &mut surroundings, &mut || {})?
        .into_iter()
        .map(|p| Explained {
            name: p.matched.name.clone(),
            object: p.matched.object.path().to_owned(),
            plan: p.plan.map_err(|reason| sidestep_plan::Refusal { asked: p.matched.symbol_va, reason }),
        })
        .collect())
}
