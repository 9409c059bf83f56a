//! Changing what is at the sites that a process carries: the original code, a trap to the detour,
//! or the patch. Mostly while its threads run ([`super::live`]). Sites of sessions that take no
//! traps, of libraries that may be unloaded meanwhile, and of USDT probes with a semaphore are
//! changed while all threads stand ([`super::stopped`]).
//!
//! A controller that is killed leaves each site in a state that runs, and that the journal can tell
//! from what is not ours: it says that a site is disabled, or not to be a jump, before anything
//! else than the patch is there, and that it is not any more after the patch is back. One process
//! at a time changes things ([`Process::turn`]).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use sidestep_isa::Va;
use sidestep_isa::patch::is_one_write;
use sidestep_sys::{Limit, OpenError, Process};
use sidestep_wire::JournalEntry;

use crate::error::SessionError;
use crate::memory::raw::bytes_of;
use crate::patch::order::{Kind, Order, Rank};
use crate::patch::pages::{Stretch, pages};
use crate::patch::promote::{self, Neighbours, is_blocked};
use crate::patch::share::{self, Others};
use crate::patch::thread_state::Ground;
use crate::patch::{live, per_probe, stopped};
use crate::target::discovery::{self, Found, Site, Text, isa_of, text_of, trap_of, trapped};
use crate::target::remote::mappings;

/// How long somebody else may be at work on the process. A switch takes some hundredths of a
/// second. But where the machine is overloaded or its disk stands still, each thread that has to
/// stop, and each page of the tool, may take a second.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same at the end of a session, whose probes would stay: an attach to a large program may take
/// longer.
const LAST_PATIENCE: Duration = Duration::from_secs(60);

/// What became of probes that were to be switched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switched {
    /// Probes that were switched.
    pub probes: usize,
    /// The sites that they are at.
    pub sites: usize,
    /// Of these, those for which all threads had to stand still.
    pub stopped: usize,
    /// Probes that were as wanted already.
    pub unchanged: usize,
    /// Probes that were to be jumps, and stay traps: no jump is possible there, or they were made
    /// with `no_optimize`.
    pub traps: usize,
    /// Sites that stayed as they were, each with a clause that says why.
    pub refused: Vec<(Va, &'static str)>,
    /// Sites that became jumps, since those that had blocked them went.
    pub promoted: usize,
    /// The longest time that any thread stood still.
    pub longest: Duration,
}

impl Switched {
    /// Adds what became of others.
    pub(crate) fn add(&mut self, other: Switched) {
        self.probes += other.probes;
        self.sites += other.sites;
        self.stopped += other.stopped;
        self.unchanged += other.unchanged;
        self.traps += other.traps;
        self.refused.extend(other.refused);
        self.promoted += other.promoted;
        self.longest = self.longest.max(other.longest);
    }
}

/// To which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    /// Enabled: a jump, or a trap.
    On,
    /// Disabled: the original code.
    Off,
    /// A jump, once it is enabled.
    Jump,
    /// A trap, once it is enabled.
    Trap,
}

/// What is at a site that cannot be told from somebody else's.
pub(crate) const FOREIGN: &str = "its object was unloaded, or somebody else has changed its code";

/// What is at a site whose first byte a uprobe of the kernel was put on.
const DISTURBED: &str = "somebody else has, or had, a breakpoint on its first byte";

/// A site to change.
pub(crate) struct Work {
    pub index: usize,
    /// Probes that are there.
    probes: usize,
    pub entry: JournalEntry,
    /// What is to be there; `None`: as it is, only the journal changes.
    pub goal: Option<Vec<u8>>,
    /// Offsets of the bytes that are traps while it changes, the first one first.
    pub traps: Vec<usize>,
    /// Offsets of traps of other sites inside, one of which a thread may have executed just before.
    pub inside: Vec<usize>,
    pub rank: Rank,
}

impl Work {
    /// A site that was blocked, or is about to be.
    pub fn of_blocked(index: usize, entry: JournalEntry, goal: Vec<u8>, inside: Vec<usize>) -> Work {
        let rank = Rank::new(Kind::Other, entry.site, entry.site);
        Work { index, probes: 0, entry, goal: Some(goal), traps: vec![0], inside, rank }
    }

    pub fn site(&self) -> u64 {
        self.entry.site
    }

    pub fn len(&self) -> usize {
        usize::from(self.entry.len)
    }

    /// Will a jump be where other code is now?
    pub fn covers(&self) -> bool {
        self.len() > trap_of(&self.entry).len() && self.goal.as_deref() == Some(&self.entry.new[..self.len()])
    }

    /// May threads run while it changes?
    fn may_run(&self) -> bool {
        let (old, new) = (&self.entry.old[..self.len()], &self.entry.new[..self.len()]);
        let (isa, trap) = (isa_of(&self.entry), trap_of(&self.entry));
        isa.limits().traps_first || [old, new].iter().all(|now| is_one_write(isa, now, trap))
    }
}

/// The right to change a process.
pub(crate) fn take_turn(process: &Process) -> Result<sidestep_sys::Turn, SessionError> {
    turn(process, PATIENCE)?.ok_or(SessionError::Occupied { pid: process.pid() })
}

/// The same for what a session has to do before it ends.
pub(crate) fn take_last_turn(process: &Process) -> Result<sidestep_sys::Turn, SessionError> {
    turn(process, LAST_PATIENCE)?.ok_or(SessionError::StillProbed { pid: process.pid() })
}

fn turn(process: &Process, patience: Duration) -> Result<Option<sidestep_sys::Turn>, SessionError> {
    process.turn(patience).map_err(|source| crate::error::unreadable(process, source))
}

/// A debugger would be in the way half-way: it is waited for, but not for long.
fn await_tracer(process: &Process) -> Result<(), SessionError> {
    const LONGEST: Duration = Duration::from_secs(2);
    let limit = Limit::after(LONGEST);
    while let Err(error) = Process::open(process.pid()) {
        if !matches!(error, OpenError::Traced { .. }) || limit.is_over() {
            return Err(error.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Opens a process to attach to it. Another controller that is at work there stops its threads now
/// and then, for moments that are waited for. A debugger stays.
pub(crate) fn open(pid: i32) -> Result<Process, SessionError> {
    let own_name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let limit = Limit::after(PATIENCE);
    loop {
        match Process::open(pid) {
            Err(OpenError::Traced { tracer_comm, .. }) if tracer_comm == own_name.trim_end() && !limit.is_over() => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return Ok(result?),
        }
    }
}

/// Switches sites, by who has the turn.
pub(crate) fn in_turn(process: &Process, shared: Va, chosen: &[Site], to: Switch) -> Result<Switched, SessionError> {
    await_tracer(process)?;
    // Somebody may have detached, or switched the same sites, before it was our turn.
    let found = discovery::session(process, shared)?;
    let others = Others::of(process, &mappings(process)?, Some(shared))?;
    let traps = found.traps(process)?;
    if to == Switch::Trap && traps.is_empty() {
        return Err(SessionError::NoTraps { pid: process.pid() });
    }
    let mut switched = Switched::default();
    let order = if to == Switch::Off { Order::Disable } else { Order::Enable };
    let (shared, chosen): (Vec<&Site>, Vec<&Site>) = chosen.iter().partition(|site| others.are_at(site.entry.site));
    let [first, last] = order_of_shared(order, shared, &chosen);
    share::switch(process, &found, &others, &first, to, &mut switched)?;
    let coming = chosen.iter().filter(|_| to == Switch::On).map(|site| site.entry.site).collect();
    switched.longest = switched.longest.max(promote::make_way(process, &found, &coming)?);
    let mut work = decide(process, &found, &traps, &chosen, to, &mut switched)?;
    work.sort_by_key(Work::site);
    let indices = |work: &[Work]| work.iter().map(|w| w.index).collect::<Vec<usize>>();
    if matches!(to, Switch::Off | Switch::Trap) {
        note(process, &found, &indices(&work), to)?;
    }
    let trapped = |w: &Work| w.traps.iter().all(|o| traps.contains_key(&(w.site() + *o as u64)));
    let is_live = |w: &Work| w.entry.semaphore == 0 && w.entry.stays == 1 && trapped(w) && w.may_run();
    let (mut gone, ground) = (BTreeSet::new(), Ground::of(process, &found)?);
    for paired in order.paired() {
        let changing: Vec<&Work> = work.iter().filter(|w| w.goal.is_some() && w.rank.is_paired() == paired).collect();
        // All sites of a function in the same way.
        let stands: BTreeSet<Rank> = changing.iter().filter(|w| !is_live(w)).map(|w| w.rank.function()).collect();
        let (stopped, live): (Vec<&Work>, Vec<&Work>) =
            changing.into_iter().partition(|w| stands.contains(&w.rank.function()));
        for mut batch in order.batches(live, |w| w.rank) {
            batch.sort_by_key(|w| w.site());
            let longest = live::change(process, &batch, order, &ground, &mut gone)?;
            switched.longest = switched.longest.max(longest);
        }
        let longest = stopped::change(process, &found, &stopped, order, &ground, &mut gone)?;
        switched.longest = switched.longest.max(longest);
        switched.stopped += stopped.iter().filter(|w| !gone.contains(&w.site())).count();
    }
    work.retain(|w| !gone.contains(&w.site()));
    if matches!(to, Switch::On | Switch::Jump) {
        note(process, &found, &indices(&work), to)?;
    }
    for w in &work {
        switched.sites += 1;
        switched.probes += w.probes;
    }
    switched.refused.extend(gone.into_iter().map(|site| (Va(site), FOREIGN)));
    share::switch(process, &found, &others, &last, to, &mut switched)?;
    promote::settle(process, &found, &traps, &mut switched)?;
    Ok(switched)
}

/// Sites that other sessions have, too: those that change before all others, and those that change
/// after them. Functions all of whose sites are shared change as a whole, except paired exits.
fn order_of_shared<'s>(order: Order, shared: Vec<&'s Site>, alone: &[&Site]) -> [Vec<&'s Site>; 2] {
    let is_paired = |site: &&&Site| Rank::of(site).is_paired();
    let apart: HashSet<u64> = alone.iter().chain(shared.iter().filter(is_paired)).map(|site| site.function()).collect();
    let is_entry = |site: &Site| Rank::of(site).kind() == Kind::Other;
    let last = |site: &&Site| apart.contains(&site.function()) && is_entry(site) == (order == Order::Enable);
    let (last, first) = shared.into_iter().partition(last);
    [first, last]
}

/// What has to be done at each site.
fn decide(
    process: &Process,
    found: &Found,
    traps: &BTreeMap<u64, u64>,
    chosen: &[&Site],
    to: Switch,
    switched: &mut Switched,
) -> Result<Vec<Work>, SessionError> {
    let journal = Neighbours::of(found.entries(process)?);
    let maps = mappings(process)?;
    let mut work = Vec::new();
    let mut sites = chosen.to_vec();
    sites.sort_by_key(|site| site.entry.site);
    for page in pages(&sites, |site| site.entry.site) {
        let now = Stretch::read(process, page.iter().map(|site| (site.entry.site, usize::from(site.entry.len))));
        for site in page {
            let va = Va(site.entry.site);
            let Some(entry) = journal.entries.get(site.index).filter(|entry| is_same(entry, &site.entry)) else {
                switched.refused.push((va, "the probe is not there any more"));
                continue;
            };
            let entry = &entry.for_now();
            let len = usize::from(entry.len);
            let text = match text_of(now.at(entry.site, len), &maps, entry) {
                Text::Foreign if journal.covers(entry) => Text::Original,
                text => text,
            };
            if entry.own == 1 {
                switched.refused.push((va, "a probe that keeps the process safe is at the same place"));
            } else if text == Text::Disturbed {
                switched.refused.push((va, DISTURBED));
            } else if text == Text::Foreign {
                switched.refused.push((va, FOREIGN));
            } else if to == Switch::Jump && entry.is_trap() && !is_blocked(entry) {
                switched.traps += site.users().count();
            } else if is_as_wanted(entry, text, to) {
                switched.unchanged += site.users().filter(|(number, desc)| desc.is_first(*number)).count();
            } else if to == Switch::Trap && !traps.contains_key(&entry.site) {
                switched.refused.push((va, "its session takes no traps"));
            } else {
                let copies = entry.copies().iter().map(|(from, _)| usize::from(*from));
                // The displacement of another jump may have such a byte by chance.
                let is_trap = |o: &usize| {
                    entry.new[*o..].starts_with(trap_of(entry)) && traps.contains_key(&(entry.site + *o as u64))
                };
                let inner = copies.filter(|o| (1..len).contains(o)).filter(is_trap);
                let traps = std::iter::once(0).chain(inner).collect();
                let is_on = |(number, desc): &&(u32, sidestep_wire::ProbeDesc)| {
                    desc.is_first(*number) && !per_probe::is_off(process, desc)
                };
                let on = site.users().filter(is_on);
                let (probes, goal) = (on.count(), goal(entry, text, to));
                let (inside, rank) = (Vec::new(), Rank::of(site));
                work.push(Work { index: site.index, probes, entry: *entry, goal, traps, inside, rank });
            }
        }
    }
    Ok(work)
}

/// Has nobody else taken the place of an entry since it was looked at?
pub(crate) fn is_same(now: &JournalEntry, then: &JournalEntry) -> bool {
    (now.site, now.detour, now.newest) == (then.site, then.detour, then.newest)
}

fn is_as_wanted(entry: &JournalEntry, text: Text, to: Switch) -> bool {
    let jumps = entry.optimized == 1 || entry.is_trap();
    let wanted = if jumps { Text::Patched } else { Text::Trapped };
    match to {
        Switch::Jump | Switch::Trap if is_blocked(entry) => (entry.optimized == 1) == (to == Switch::Jump),
        Switch::On => entry.disabled == 0 && text == wanted,
        Switch::Off => text == Text::Original,
        Switch::Jump => jumps && (text == Text::Original || text == wanted),
        Switch::Trap => entry.is_trap() || !jumps && (text == Text::Original || text == wanted),
    }
}

/// What is to be at a site.
fn goal(entry: &JournalEntry, text: Text, to: Switch) -> Option<Vec<u8>> {
    let (old, new) = (&entry.old[..usize::from(entry.len)], &entry.new[..usize::from(entry.len)]);
    match to {
        Switch::Off => Some(old.to_vec()),
        Switch::Jump | Switch::Trap if text == Text::Original || is_blocked(entry) => None,
        Switch::On if entry.optimized == 0 && !entry.is_trap() => Some(trapped(entry)),
        Switch::On | Switch::Jump => Some(new.to_vec()),
        Switch::Trap => Some(trapped(entry)),
    }
}

/// Notes in the journal what is wanted of sites, given by their indices. A run of entries at a
/// time, since a write costs more than what it writes.
pub(crate) fn note(process: &Process, found: &Found, sites: &[usize], to: Switch) -> Result<(), SessionError> {
    let mut indices = sites.to_vec();
    indices.sort_unstable();
    for run in indices.chunk_by(|a, b| a + 1 == *b) {
        let at = found.entry(run[0]);
        let mut entries: Vec<JournalEntry> = discovery::read_array(process, at, run.len() as u64)?;
        for entry in &mut entries {
            *entry = entry.checked();
            match to {
                Switch::On | Switch::Off => entry.disabled = u32::from(to == Switch::Off),
                Switch::Jump | Switch::Trap => entry.optimized = u8::from(to == Switch::Jump),
            }
        }
        let bytes: Vec<u8> = entries.iter().flat_map(bytes_of).copied().collect();
        process.write(at, &bytes)?;
    }
    Ok(())
}
