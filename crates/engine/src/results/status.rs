//! Which probes a process carries, from its own memory: while it runs, whoever controls the
//! session, and after that one was killed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sidestep_isa::Va;
use sidestep_sys::{Mapping, Process};
use sidestep_wire::{Flow, JournalEntry, ProbeDesc};

use crate::api::{Counts, Options};
use crate::error::SessionError;
use crate::patch::per_probe;
use crate::patch::promote::{Neighbours, is_blocked};
use crate::patch::share::Others;
use crate::resolve::names::Names;
use crate::target::discovery::{self, Found, Site, Text};
use crate::target::remote::mappings;

/// The probes that a session has in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Process id of the controller.
    pub controller: i32,
    /// It is still there. If not, the next attach cleans up.
    pub controller_alive: bool,
    /// By address; those of one site in order of registration.
    pub probes: Vec<Installed>,
    /// Sites that users' probes are at.
    pub sites: usize,
    /// Bytes of their detours.
    pub detour_bytes: u64,
}

/// A probe in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Its number in the session.
    pub number: u32,
    /// Run-time address of the instruction whose execution is a hit: that of its site, or of the
    /// one in front that stays.
    pub va: Va,
    /// What it is.
    pub kind: ProbeKind,
    /// The function around the site, and the offset in it.
    pub symbol: Option<(String, u64)>,
    /// Path of the object as the target sees it.
    pub object: Option<PathBuf>,
    /// What is at the site.
    pub state: SiteState,
    /// A hit takes a jump; if not, a trap. False where no hit is possible.
    pub optimized: bool,
    /// Run-time addresses of the sites that keep a jump away: it comes when they are disabled.
    pub blocked_by: Vec<Va>,
    /// What it has counted so far.
    pub counts: Counts,
    /// What it took of the target's CPU time when its controller looked last, in parts per million.
    /// `None`: that is not known, or there is no controller.
    pub share: Option<u32>,
}

/// What a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// At an instruction, the first of a function for example.
    Instruction,
    /// Behind an instruction.
    Post,
    /// At the return of a function.
    Return,
    /// A USDT probe.
    Usdt,
    /// One of our own, without which others would do harm.
    Own,
}

/// What is at the site of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteState {
    /// Our patch.
    Enabled,
    /// The original code, until the probe is enabled; or the handlers of other probes, but not its
    /// own.
    Disabled,
    /// Something else: the object was unloaded, or somebody has changed its code.
    Gone,
}

/// The probes that a process carries, by sessions: one at least. The process is not stopped.
///
/// # Errors
/// It carries none, or cannot be looked at.
pub fn status(pid: i32, options: &Options) -> Result<Vec<Status>, SessionError> {
    let process = Process::look_at(pid)?;
    let sessions = discovery::sessions(&process)?;
    let alone = sessions.len() == 1;
    let mut all = Vec::new();
    for found in sessions {
        match of_session(&process, found.shared_va, options) {
            Ok(status) => all.push(status),
            Err(error) if alone => return Err(error),
            // It went meanwhile.
            Err(_) => {}
        }
    }
    if all.is_empty() { Err(SessionError::NotProbed { pid }) } else { Ok(all) }
}

/// Those of one session, given by the address of its shared region.
pub(crate) fn of_session(process: &Process, shared: Va, options: &Options) -> Result<Status, SessionError> {
    discovery::look(process, shared, |found| read(process, found, options))
}

fn read(process: &Process, found: &Found, options: &Options) -> Result<Status, SessionError> {
    let mut sites = found.sites(process)?;
    sites.sort_by_key(|site| (site.entry.site, site.index));
    let journal = Neighbours::of(found.entries(process)?);
    let numbers = sites.iter().map(|site| site.entry.newest).max().unwrap_or(0);
    let counts = found.counts(process, numbers)?;
    let maps = mappings(process)?;
    let others = Others::of(process, &maps, Some(found.shared_va))?;
    let mut names = Names::new(process, options)?;
    let parts: Vec<Part> =
        sites.iter().flat_map(|site| probes(process, &maps, &others, &mut names, &counts, &journal, site)).collect();
    let users: Vec<&Site> = sites.iter().filter(|site| site.users().next().is_some()).collect();
    let mut probes = by_probe(parts, |va| names.of(process, va));
    if found.controller_alive() {
        let shares = found.shares(process, numbers)?;
        for probe in &mut probes {
            probe.share = shares.get(probe.number as usize).copied().flatten();
        }
    }
    Ok(Status {
        controller: found.controller_pid,
        controller_alive: found.controller_alive(),
        sites: users.len(),
        detour_bytes: users.iter().map(|site| u64::from(site.entry.detour_len)).sum(),
        probes,
    })
}

/// A site of a probe, and what its descriptor says.
struct Part {
    desc: ProbeDesc,
    site: Installed,
}

/// Joins the sites of each probe: a return probe is shown at its function.
fn by_probe(parts: Vec<Part>, mut name: impl FnMut(Va) -> (Option<PathBuf>, Option<(String, u64)>)) -> Vec<Installed> {
    let mut single = Vec::new();
    let mut joined: BTreeMap<u32, Vec<Part>> = BTreeMap::new();
    for part in parts {
        match part.desc.group {
            0 => single.push(part.site),
            group => joined.entry(group - 1).or_default().push(part),
        }
    }
    for (number, parts) in joined {
        let Some(first) = parts.first() else { continue };
        let va = Va(first.desc.asked);
        let (object, symbol) = name(va);
        // A probe with a program at the entry counts there.
        let counts_entries = parts.iter().any(|part| part.desc.flow == Flow::Enter as u32 && part.desc.entry != 0);
        let counted = |part: &&Part| counts_entries == (part.desc.flow == Flow::Enter as u32);
        let state = |is: SiteState| parts.iter().any(|part| part.site.state == is);
        let mut blocked_by: Vec<Va> = parts.iter().flat_map(|part| part.site.blocked_by.iter().copied()).collect();
        blocked_by.sort();
        blocked_by.dedup();
        single.push(Installed {
            number,
            va,
            kind: ProbeKind::Return,
            symbol,
            object,
            state: match () {
                () if state(SiteState::Gone) => SiteState::Gone,
                () if state(SiteState::Disabled) => SiteState::Disabled,
                () => SiteState::Enabled,
            },
            optimized: parts.iter().all(|part| part.site.optimized),
            blocked_by,
            counts: Counts {
                hits: parts.iter().filter(counted).map(|part| part.site.counts.hits).sum(),
                missed: parts.iter().map(|part| part.site.counts.missed).sum(),
                ..Counts::default()
            },
            share: None,
        });
    }
    single.sort_by_key(|probe| (probe.va, probe.number));
    single
}

fn probes(
    process: &Process,
    maps: &[Mapping],
    others: &Others,
    names: &mut Names,
    counts: &[(u64, u64)],
    journal: &Neighbours,
    site: &Site,
) -> Vec<Part> {
    let va = Va(site.entry.site);
    let text = match discovery::text(process, maps, &site.entry) {
        Text::Foreign if journal.covers(&site.entry) => Text::Original,
        Text::Foreign if others.leads_to(process, &site.entry) => Text::Patched,
        Text::Foreign if site.entry.disabled == 1 && others.are_in(process, &site.entry) => Text::Original,
        text => text,
    };
    let blocked_by = blocked_by(journal, site);
    let state = match text {
        Text::Patched | Text::Trapped => SiteState::Enabled,
        Text::Original => SiteState::Disabled,
        Text::Foreign | Text::Disturbed => SiteState::Gone,
    };
    let mut one = |(number, desc): &(u32, ProbeDesc)| {
        // The hit is at the instruction that was asked for, also if the patch is behind it.
        let va = if desc.flags & ProbeDesc::POST != 0 { va } else { Va(desc.site) };
        let (object, symbol) = names.of(process, va);
        let (hits, missed) = counts.get(*number as usize).copied().unwrap_or_default();
        let alone = per_probe::is_off(process, desc);
        let site = Installed {
            number: *number,
            va,
            kind: kind(desc),
            symbol,
            object,
            state: if alone && state == SiteState::Enabled { SiteState::Disabled } else { state },
            optimized: !alone && text == Text::Patched && !site.entry.is_trap(),
            blocked_by: blocked_by.clone(),
            counts: Counts { hits, missed, ..Counts::default() },
            share: None,
        };
        Part { desc: *desc, site }
    };
    site.probes.iter().filter(|(_, desc)| desc.flags & ProbeDesc::RETIRED == 0).map(&mut one).collect()
}

/// Who keeps a site from being a jump.
fn blocked_by(journal: &Neighbours, site: &Site) -> Vec<Va> {
    let waits = |entry: &&JournalEntry| entry.is_promotable() && is_blocked(entry);
    let Some(jump) = journal.entries.get(site.index).filter(waits) else { return Vec::new() };
    let mut all: Vec<Va> = journal.blockers(jump).map(|entry| Va(entry.site)).collect();
    all.sort();
    all.dedup();
    all
}

fn kind(desc: &ProbeDesc) -> ProbeKind {
    match desc.flow {
        _ if desc.flags & ProbeDesc::USDT != 0 => ProbeKind::Usdt,
        _ if desc.flags & ProbeDesc::POST != 0 => ProbeKind::Post,
        flow if flow == Flow::Entry as u32 => ProbeKind::Instruction,
        flow if [Flow::Return, Flow::Enter, Flow::Exit].iter().any(|is| flow == *is as u32) => ProbeKind::Return,
        _ => ProbeKind::Own,
    }
}
