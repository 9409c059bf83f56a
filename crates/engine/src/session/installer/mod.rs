//! What a session has installed, and the way there: numbers, cells and descriptors for each probe.

mod arguments;
mod extend;
mod hooks;
mod jobs;
mod numbers;
mod outcome;
mod refusals;
mod silence;
mod sites;
mod sizes;
mod unwinders;
mod work;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use sidestep_isa::Va;
use sidestep_sys::{Process, Stopped};

use crate::api::{Action, AttachStats, Bundle, Options, Probe, Refused, Request};
use crate::error::SessionError;
use crate::patch::share::Others;
use crate::planning::placement::{There, needs};
use crate::planning::surroundings::Surroundings;
use crate::planning::{Planned, Returns, Wish, plan_all};
use crate::programs::uses_result;
use crate::resolve::Match;
use crate::resolve::names::Images;
use crate::resolve::objects::Objects;
use crate::session::follow::dlopen::keep_returns;
use crate::session::process_names::tell_names;
use crate::session::reclaim::Additions;
use crate::session::registry::Registry;
use crate::target::hold::Hold;
use crate::target::regions::Regions;
use crate::target::remote::{mappings, used};
use crate::target::seccomp::Extra;
use crate::target::unwinding;
pub(crate) use hooks::Hook;
pub(crate) use numbers::Numbers;
use sites::limit;

/// What is installed.
#[derive(Clone)]
pub(crate) struct Installer {
    pub(crate) bundle: Bundle,
    requests: Vec<Request>,
    options: Options,
    regions: Option<Regions>,
    /// What it has in common with the other processes of the session.
    registry: Rc<RefCell<Registry>>,
    pub probes: Vec<Probe>,
    /// Of each probe: its numbers.
    pub numbers: Vec<Numbers>,
    pub refused: Vec<Refused>,
    /// Patterns that mean nothing yet, and why.
    pub awaited: Vec<(String, String)>,
    /// Objects of which a pattern meant functions, while most of their functions have no names.
    pub nameless: BTreeSet<PathBuf>,
    pub stats: AttachStats,
    pub surroundings: Surroundings,
    /// Names of the target's addresses, if they are wanted, since they were taken.
    pub images: Option<Images>,
    /// What addresses mean here: [`crate::results::address_spaces`].
    pub meaning: u32,
    /// Numbers that are in use in this process.
    used: HashSet<u32>,
    /// Numbers of probes whose libraries were unloaded.
    unloaded: HashSet<u32>,
    /// Those of them that were disabled then.
    to_disable: HashSet<u32>,
    /// Sites that were dealt with: a later look at the same process finds them again.
    done: HashSet<(usize, PathBuf, Va)>,
    /// Run-time ranges that the detours of sites of our own stand for.
    own: Vec<Range<u64>>,
    /// Run-time addresses of all sites that a journal entry is responsible for.
    live: BTreeSet<u64>,
    /// Run-time addresses of libraries that are not unloaded.
    permanent: BTreeSet<u64>,
    /// Objects that were searched for sites of our own: purpose, run-time address.
    hooked: HashSet<(&'static str, u64)>,
    /// A system call that could block signals and cannot be guarded.
    unguarded: Option<(PathBuf, Va)>,
    /// Guards that are not worth a refused probe, as long as there are no traps.
    held: Vec<Hook>,
    /// A guard could not be installed.
    unsafe_reads: bool,
    /// Signals that displaced instructions may raise.
    faults: u64,
    /// SIGTRAP is wanted even if no site needs it, to write sites while the threads run.
    takes_traps: bool,
    /// Programs were given arguments of static probes that are in memory.
    reads_arguments: bool,
    /// What other sessions have in the process.
    others: Others,
    /// The agent makes no system call: see [`silence`].
    silent: bool,
    /// Probes replace return addresses.
    pub replaces: bool,
    /// Why return addresses are not replaced any more: what has been loaded. Those that were are
    /// put back when what was planned is installed.
    pub unwatched: Option<String>,
    /// There are probes that would do harm if the program saw where such a one really is.
    must_show: bool,
    /// What came later, and may go before the session does.
    pub additions: Additions,
    /// Numbers that were given since somebody has asked.
    new_numbers: Vec<u32>,
    /// Indices of requests and of programs that are nobody's.
    free: (Vec<usize>, Vec<usize>),
    /// Numbers of sites whose probes could not be put in as a whole.
    pub incomplete: HashSet<u32>,
}

impl Installer {
    pub fn new(
        bundle: &Bundle,
        requests: &[Request],
        options: &Options,
        registry: &Rc<RefCell<Registry>>,
    ) -> Installer {
        Installer {
            bundle: bundle.clone(),
            requests: requests.to_vec(),
            options: options.clone(),
            regions: None,
            registry: registry.clone(),
            probes: Vec::new(),
            numbers: Vec::new(),
            refused: Vec::new(),
            awaited: Vec::new(),
            nameless: BTreeSet::new(),
            stats: AttachStats::default(),
            surroundings: Surroundings::default(),
            images: None,
            meaning: 0,
            used: HashSet::new(),
            unloaded: HashSet::new(),
            to_disable: HashSet::new(),
            done: HashSet::new(),
            own: Vec::new(),
            live: BTreeSet::new(),
            permanent: BTreeSet::new(),
            hooked: HashSet::new(),
            unguarded: None,
            held: Vec::new(),
            unsafe_reads: false,
            faults: 0,
            takes_traps: false,
            reads_arguments: false,
            others: Others::default(),
            silent: false,
            replaces: false,
            unwatched: None,
            must_show: false,
            additions: Additions::default(),
            new_numbers: Vec::new(),
            free: (Vec::new(), Vec::new()),
            incomplete: HashSet::new(),
        }
    }

    /// Looks at what the target has mapped now, if names of its addresses are wanted, or stacks.
    pub fn look_at_symbols(&mut self, process: &Process) {
        if let Some(images) = &mut self.images {
            // What was there before is known. If it is gone, so is the process.
            let _ = images.look();
        } else if self.options.symbols || self.walks_stacks() {
            let objects = self.registry.borrow_mut().objects(&self.options);
            self.images = Images::new(process.pid(), &objects).ok();
        }
    }

    /// Whether names of the target's addresses are wanted, and whether there may be other processes
    /// than this one.
    fn means_something(&self) -> bool {
        self.options.symbols && self.registry.borrow().several
    }

    /// Looks what addresses mean now, and tells the agent.
    fn find_meaning(&mut self, process: &Process) -> Result<(), SessionError> {
        let Some(regions) = self.regions.as_ref().filter(|_| self.means_something()) else { return Ok(()) };
        let mapped = Objects::mapped(process)?;
        self.meaning = self.registry.borrow_mut().meanings.number(Some(self.meaning), &mapped);
        regions.set_space(process, self.meaning)
    }

    /// Objects whose frames are not known, and why.
    pub fn without_frames(&self) -> &[(PathBuf, String)] {
        self.regions.as_ref().map_or(&[], |regions| &regions.unwinding.left_out)
    }

    pub fn walks_stacks(&self) -> bool {
        !self.options.frame_pointers && unwinding::are_wanted(&self.bundle.programs)
    }

    pub fn regions(&self) -> Option<&Regions> {
        self.regions.as_ref()
    }

    /// Where the shared region is in the target.
    pub fn shared(&self, process: &Process) -> Result<Va, SessionError> {
        let regions = self.regions.as_ref().ok_or(SessionError::NotProbed { pid: process.pid() })?;
        Ok(regions.head.at)
    }

    /// Looks at what other sessions have in the process now.
    fn look_at_others(&mut self, process: &Process) -> Result<(), SessionError> {
        let own = self.regions.as_ref().map(|regions| regions.head.at);
        self.others = Others::of(process, &mappings(process)?, own)?;
        Ok(())
    }

    pub fn regions_mut(&mut self) -> Option<&mut Regions> {
        self.regions.as_mut()
    }

    /// The program is about to begin: see [`Regions::promote_thread_pointer`].
    pub fn begin_program(&mut self, stopped: &mut Stopped) -> Result<(), SessionError> {
        match &mut self.regions {
            Some(regions) => regions.promote_thread_pointer(stopped),
            None => Ok(()),
        }
    }

    /// Are names of addresses wanted?
    pub fn wants_symbols(&self) -> bool {
        self.options.symbols
    }

    /// Is there anything for which processes ask their controller?
    pub fn listens(&self) -> bool {
        self.options.listens() || self.replaces
    }

    /// May more probes come, in other processes or libraries?
    pub fn awaits_more(&self) -> bool {
        self.options.listens()
    }

    /// Are children of the process probed, too?
    pub fn follows(&self) -> bool {
        self.options.follow
    }

    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    fn wishes(&self) -> Vec<Wish> {
        let (trap_only, more) = (self.options.no_optimize, self.options.extensible);
        let returns_of = |action: &Action| {
            let program = action.exit.and_then(|i| self.bundle.programs.get(i))?;
            Some(Returns { result: uses_result(program), entry: action.entry.is_some() || limit(action) != 0 })
        };
        let wish = |r: &Request| Wish {
            returns: returns_of(&r.action),
            post: r.action.post,
            trap_only,
            more,
            leaves: false,
            // Where more may come, the next instruction is for whoever asks for it.
            needs: needs(&r.action, &self.bundle.programs).filter(|_| !more),
        };
        self.requests.iter().map(wish).collect()
    }

    /// Leaves out matches that were dealt with.
    pub fn only_new(&self, matches: Vec<(usize, Match)>) -> Vec<(usize, Match)> {
        let new = |(request, m): &(usize, Match)| {
            let va = m.va.unwrap_or(m.symbol_va);
            !self.done.contains(&(*request, m.object.path().to_owned(), va))
        };
        matches.into_iter().filter(new).collect()
    }

    /// Plans what requests mean in a process as it is mapped now, and the sites of our own that
    /// this needs. `planned_one` is called for each match.
    pub fn plan(
        &mut self,
        matches: Vec<(usize, Match)>,
        process: &Process,
        objects: &mut Objects,
        planned_one: &mut dyn FnMut(),
    ) -> Result<(Vec<Planned>, Vec<Hook>), SessionError> {
        let wishes = self.wishes();
        self.look_at_filters(process)?;
        self.look_at_others(process)?;
        self.surroundings.look(&used(&mappings(process)?));
        self.note_nameless(&matches);
        let analyses = &objects.analyses;
        let any_returns = wishes.iter().any(|wish| wish.returns.is_some());
        let keeps_returns =
            any_returns && (self.unwatched.is_some() || unwinders::looks_at_returns(process)?.is_some());
        let there = Some(There { process, others: Some(&self.others), keeps_returns, may_trap: !self.silent });
        let all = &mut self.surroundings;
        let planned = plan_all(matches, &wishes, all, &mut analyses.borrow_mut(), there, planned_one)?;
        let planned = self.accept(planned);
        self.reads_arguments |= self.have_arguments_in_memory(&planned);
        self.complete(planned, process, objects)
    }

    /// Sorts out what was refused.
    fn accept(&mut self, planned: Vec<Planned>) -> Vec<Planned> {
        let (accepted, refused): (Vec<_>, Vec<_>) = planned.into_iter().partition(|p| p.plan.is_ok());
        for p in refused {
            if let Err(reason) = p.plan {
                self.refuse(&p.matched, reason.to_string());
            }
            self.done.insert((p.request, p.matched.object.path().to_owned(), p.matched.symbol_va));
        }
        accepted
    }

    /// Installs planned sites and hooks. The regions are mapped first, if they are not there yet.
    pub fn install(
        &mut self,
        hold: &mut Hold<'_>,
        planned: Vec<Planned>,
        hooks: Vec<Hook>,
        clock: Option<sidestep_sys::TscScale>,
    ) -> Result<(), SessionError> {
        if planned.is_empty() && hooks.is_empty() {
            self.find_meaning(&hold.process())?;
            self.unwind(hold, true)?;
            return self.keep_returns(hold);
        }
        let (layout, common) = (self.registry.borrow().layout.clone(), self.registry.borrow().common.clone());
        let mut regions = match (self.regions.take(), layout) {
            (Some(regions), _) => regions,
            (None, Some((layout, maps))) => {
                let (programs, options) = (&self.bundle.programs, &self.options);
                let calls = Extra { silent: self.silent, waits: self.listens(), ..Extra::default() };
                let memory = (layout, maps);
                let regions = Regions::map(hold, memory, programs, options, calls, clock, common.as_ref())?;
                if common.is_none() {
                    for (map, entry) in &self.bundle.entries {
                        regions.maps().insert(*map, entry);
                    }
                    self.registry.borrow_mut().common = Some(regions.common.clone());
                }
                if let Some(map) = self.bundle.pid {
                    regions.set_value(map, 0, &u64::from(hold.process().pid().unsigned_abs()).to_ne_bytes());
                }
                tell_names(self.bundle.processes, hold.process().pid(), &regions);
                regions
            }
            (None, None) => return Err(SessionError::TooMany { what: "probes" }),
        };
        regions.detours.walked = self.walks_stacks();
        self.regions = Some(regions);
        self.find_meaning(&hold.process())?;
        self.unwind(hold, false)?;
        let Some(mut regions) = self.regions.take() else { return Ok(()) };
        let result = self.install_in(&mut regions, hold, planned, hooks);
        self.regions = Some(regions);
        result?;
        self.keep_returns(hold)
    }

    /// Puts return addresses back if something looks at them now.
    fn keep_returns(&self, hold: &mut Hold<'_>) -> Result<(), SessionError> {
        if self.unwatched.is_some() && self.regions.is_some() { keep_returns(hold) } else { Ok(()) }
    }

    /// Prepares the tables for stacks through what is mapped now.
    fn unwind(&mut self, hold: &mut Hold<'_>, show: bool) -> Result<(), SessionError> {
        let wanted = self.walks_stacks();
        match (&mut self.regions, &self.images) {
            (Some(regions), Some(images)) if wanted => {
                regions.add_unwinding(hold, images)?;
                if show { regions.show_unwinding(hold) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }
}
