//! Changing what is at the sites that a process carries: the original code, a trap to the detour,
//! or the patch. Mostly while its threads run ([`super::live`]). Sites of sessions that take no
//! traps, of libraries that may be unloaded meanwhile, and of USDT probes with a semaphore are
//! changed while all threads stand, in pauses that are not long ([`crate::target::hold`]).
//!
//! A controller that is killed leaves each site in a state that runs, and that the journal can tell
//! from what is not ours: it says that a site is disabled, or not to be a jump, before anything
//! else than the patch is there, and that it is not any more after the patch is back. One process
//! at a time changes things ([`Process::turn`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sidestep_isa::Va;
use sidestep_isa::patch::is_one_write;
use sidestep_sys::{Limit, OpenError, Process, Stopped};
use sidestep_wire::{Flow, JournalEntry};

use crate::error::SessionError;
use crate::memory::layout::PAGE;
use crate::memory::raw::bytes_of;
use crate::patch::live;
use crate::patch::pages::{Stretch, pages};
use crate::patch::per_probe;
use crate::patch::promote::{self, Neighbours, is_blocked};
use crate::patch::semaphore;
use crate::patch::share::{self, Others};
use crate::patch::thread_state::{Ground, LOOKS, Scene};
use crate::target::discovery::{self, Found, Site, Text, isa_of, text_of, trap_of, trapped};
use crate::target::hold::{Hold, Turn};
use crate::target::remote::{mappings, stopped_mappings};
use crate::target::thread_positions::{self, Position};

/// How long somebody else may be at work on the process.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same at the end of a session, whose probes would stay: an attach to a large program may take
/// longer.
const LAST_PATIENCE: Duration = Duration::from_secs(60);
/// So many sites are traps at the same time, which costs the target some time.
const GROUP: usize = 1024;

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
    index: usize,
    /// Probes that are there.
    probes: usize,
    pub entry: JournalEntry,
    /// What is to be there; `None`: as it is, only the journal changes.
    pub goal: Option<Vec<u8>>,
    /// Offsets of the bytes that are traps while it changes, the first one first.
    pub traps: Vec<usize>,
    /// Offsets of traps of other sites inside, one of which a thread may have executed just before.
    inside: Vec<usize>,
    /// All of its probes are exits of functions.
    is_exit: bool,
}

impl Work {
    /// A site that was blocked, or is about to be.
    pub fn of_blocked(index: usize, entry: JournalEntry, goal: Vec<u8>, inside: Vec<usize>) -> Work {
        Work { index, probes: 0, entry, goal: Some(goal), traps: vec![0], inside, is_exit: false }
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
    // Each call that is seen to begin is seen to end: exits are there before entries, and go later.
    let (shared, chosen): (Vec<&Site>, Vec<&Site>) = chosen.iter().partition(|site| others.are_at(site.entry.site));
    let [shared_first, shared_last] = in_order(shared, to, is_exit);
    share::switch(process, &found, &others, &shared_first, to, &mut switched)?;
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
    let changing = work.iter().filter(|w| w.goal.is_some());
    let mut gone = BTreeSet::new();
    let ground = Ground::of(process, &found)?;
    let (live, stopped): (Vec<&Work>, Vec<&Work>) = changing.partition(|w| is_live(w));
    let [first, last] = in_order(live, to, |w| w.is_exit);
    let change_live = |part: &[&Work], gone: &mut BTreeSet<u64>, switched: &mut Switched| {
        for group in part.chunks(GROUP) {
            let longest = live::change(process, group, &ground, gone)?;
            switched.longest = switched.longest.max(longest);
        }
        Ok::<(), SessionError>(())
    };
    change_live(&first, &mut gone, &mut switched)?;
    switched.stopped += stopped.len();
    let [early, late] = in_order(stopped, to, |w| w.is_exit);
    let longest = change_stopped(process, &found, &ground, &[&early, &late], &mut gone)?;
    switched.longest = switched.longest.max(longest);
    change_live(&last, &mut gone, &mut switched)?;
    work.retain(|w| !gone.contains(&w.site()));
    if matches!(to, Switch::On | Switch::Jump) {
        note(process, &found, &indices(&work), to)?;
    }
    for w in &work {
        switched.sites += 1;
        switched.probes += w.probes;
    }
    switched.refused.extend(gone.into_iter().map(|site| (Va(site), FOREIGN)));
    share::switch(process, &found, &others, &shared_last, to, &mut switched)?;
    promote::settle(process, &found, &traps, &mut switched)?;
    Ok(switched)
}

/// Exits, and all others: in the order in which they change.
fn in_order<T>(all: Vec<&T>, to: Switch, is_exit: impl Fn(&T) -> bool) -> [Vec<&T>; 2] {
    let (exits, rest): (Vec<&T>, Vec<&T>) = all.into_iter().partition(|one| is_exit(one));
    if to == Switch::Off { [rest, exits] } else { [exits, rest] }
}

/// Does a site have nothing but exits of calls?
fn is_exit(site: &Site) -> bool {
    site.users().all(|(_, desc)| desc.flow == Flow::Exit as u32)
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
                let (inside, is_exit) = (Vec::new(), is_exit(site));
                work.push(Work { index: site.index, probes, entry: *entry, goal, traps, inside, is_exit });
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

/// Changes sites while all threads stand, one part behind the other. Parts that share a page share
/// a pause there: between two pauses, calls would be seen to end that were not seen to begin.
pub(crate) fn change_stopped(
    process: &Process,
    found: &Found,
    ground: &Ground,
    parts: &[&[&Work]],
    gone: &mut BTreeSet<u64>,
) -> Result<Duration, SessionError> {
    let mut hold = Hold::running(process);
    let page_of = |w: &Work| w.site() / PAGE;
    let mut pieces: Vec<Vec<&Work>> = Vec::new();
    for part in parts {
        let mut part: Vec<Vec<&Work>> = pages(part, |w| w.site()).map(<[&Work]>::to_vec).collect();
        if let Some(last) = pieces.last_mut() {
            if let Some(index) = part.iter().position(|page| page_of(page[0]) == page_of(last[0])) {
                last.extend(part.remove(index));
                last.sort_by_key(|w| w.site());
            }
        }
        pieces.extend(part);
    }
    let look = |stopped: &mut Stopped| {
        let maps = stopped_mappings(stopped)?;
        Ok((Scene::new(stopped, &maps, ground)?, maps))
    };
    let mut waited = 0;
    let purpose = |_: &Vec<&Work>| "sites";
    hold.in_turns(purpose, &pieces, look, |stopped, (scene, maps), page| {
        if waited < LOOKS && is_early(stopped, scene, page) {
            waited += 1;
            return Ok(Turn::Later);
        }
        let mut text = Stretch::read(process, page.iter().map(|w| (w.site(), w.len())));
        let mut there = Vec::new();
        for w in page {
            if matches!(text_of(text.at(w.site(), w.len()), maps, &w.entry), Text::Foreign | Text::Disturbed) {
                gone.insert(w.site());
            } else {
                there.push(*w);
                text.put(w.site(), w.goal.as_deref().unwrap_or_default());
            }
        }
        leave_regions(stopped, scene, &there)?;
        let raises = |w: &Work| w.goal.as_deref() != Some(&w.entry.old[..w.len()]);
        let of = |raised: bool| there.iter().filter(move |w| raises(w) == raised).map(|w| (w.index, w.entry.semaphore));
        set_semaphores(stopped, found, of(false), false)?;
        text.write(process)?;
        set_semaphores(stopped, found, of(true), true)?;
        Ok(Turn::Done)
    })?;
    Ok(hold.longest())
}

/// Raises or lowers the semaphores of sites, given by index and address (0: it has none), where
/// that is not so already.
pub(crate) fn set_semaphores(
    stopped: &mut Stopped,
    found: &Found,
    sites: impl Iterator<Item = (usize, u64)>,
    raised: bool,
) -> Result<(), SessionError> {
    let mut changes = Vec::new();
    for (index, semaphore) in sites.filter(|(_, semaphore)| *semaphore != 0) {
        let at = found.entry(index);
        let entry: JournalEntry = discovery::read_one(stopped.process(), at)?;
        if entry.is_raised() != raised {
            changes.push(semaphore::Change { entry: at, semaphore: Va(semaphore), raised });
        }
    }
    semaphore::change(stopped, &found.room(), &changes)
}

/// Moves the threads that stand where a patch is about to be, behind its first byte, to the copies
/// of their instructions.
pub(crate) fn leave_regions(stopped: &mut Stopped, scene: &Scene, work: &[&Work]) -> Result<(), SessionError> {
    for position in &scene.positions {
        let Some(w) = in_the_way(stopped, position, work) else { continue };
        let copy = w.entry.copies().iter().find(|(from, _)| w.site() + u64::from(*from) == position.ip.0);
        if let (Some((_, to)), false) = (copy, scene.comes_back(stopped, position)) {
            thread_positions::move_to(stopped, position, Va(w.entry.detour + u64::from(*to)))?;
        }
    }
    Ok(())
}

/// Is a thread where a patch is about to be that can neither be moved nor stay? See
/// [`Scene::is_early`].
pub(crate) fn is_early(stopped: &Stopped, scene: &Scene, work: &[&Work]) -> bool {
    scene.is_early(stopped, |position| in_the_way(stopped, position, work).is_some())
}

/// The site of which a position is inside, where a patch is about to be.
fn in_the_way<'w>(stopped: &Stopped, position: &Position, work: &[&'w Work]) -> Option<&'w Work> {
    let ip = position.ip.0;
    let index = work.partition_point(|w| w.site() < ip);
    let w = work[index.checked_sub(1)?];
    let inside = w.covers() && ip < w.site() + w.len() as u64;
    (inside && !comes_from_trap(stopped, position, w)).then_some(w)
}

/// Has it executed a trap of ours in front of it, for which the handler has yet to look at where it
/// was?
fn comes_from_trap(stopped: &Stopped, position: &Position, w: &Work) -> bool {
    let before = (position.ip.0 - 1).wrapping_sub(w.site());
    let is_trap = |offsets: &[usize]| offsets.contains(&(before as usize));
    (is_trap(&w.traps) || is_trap(&w.inside)) && thread_positions::has_trapped(stopped, position)
}
