//! Switching probes off and on: the original bytes of their sites come back, and the patches again. All of it is in the
//! target's own memory, so any process that may trace the target can do it, whoever controls the session.
//!
//! Sites are switched, not single probes: what is at a disabled site costs nothing. Detours, descriptors and entries of the trap
//! table stay: a thread may be in there, or have executed the trap just before.
//!
//! Only one process at a time has the target stopped, so whoever comes second (another command, or the controller with its
//! detach) finds what the first has left. The journal says that a site is disabled before its bytes are restored, and that it
//! is enabled after they are written again: a site with our patch is removed by the detach whatever the journal says.

use std::collections::{BTreeSet, HashSet};
use std::mem::offset_of;
use std::time::{Duration, Instant};

use sidestep_isa::Va;
use sidestep_sys::{Mapping, OpenError, Process, Stopped};
use sidestep_wire::JournalEntry;

use crate::api::{FuncPattern, Options, Pattern};
use crate::error::SessionError;
use crate::objects::Objects;
use crate::remote::mappings;
use crate::resolve;
use crate::semaphore;
use crate::survey;
use crate::traces::{self, Site, Text};

/// What became of probes that were to be enabled or disabled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switched {
    /// Probes that were switched.
    pub probes: usize,
    /// The sites that they are at.
    pub sites: usize,
    /// Probes that were as wanted already.
    pub unchanged: usize,
    /// Sites that stayed as they were, each with a clause that says why.
    pub refused: Vec<(Va, &'static str)>,
    /// How long the threads were stopped.
    pub stopped: Duration,
}

/// To which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Enables the probes that any of the patterns means, or all. From then on hits are exact again.
///
/// # Errors
/// The process carries no probes, or none that a pattern means: then nothing has changed.
pub fn enable(pid: i32, patterns: &[Pattern], options: &Options) -> Result<Switched, SessionError> {
    by_pattern(pid, patterns, options, Switch::On)
}

/// Disables the probes that any of the patterns means, or all: their sites get their original code.
///
/// # Errors
/// As [`enable`].
pub fn disable(pid: i32, patterns: &[Pattern], options: &Options) -> Result<Switched, SessionError> {
    by_pattern(pid, patterns, options, Switch::Off)
}

fn by_pattern(pid: i32, patterns: &[Pattern], options: &Options, to: Switch) -> Result<Switched, SessionError> {
    let process = Process::look_at(pid)?;
    let sites = users(&process)?;
    let chosen = if patterns.is_empty() { sites } else { meant(&process, sites, patterns, options)? };
    switch(&process, &chosen, to)
}

/// Switches the sites of these probes, given by number. A site that others are at, too, stays as it is.
pub(crate) fn by_number(process: &Process, numbers: &HashSet<u32>, to: Switch) -> Result<Switched, SessionError> {
    let named = |site: &Site| site.users().any(|(number, _)| numbers.contains(number));
    let all_named = |site: &Site| site.users().all(|(number, _)| numbers.contains(number));
    let sites = users(process)?.into_iter().filter(named);
    let (chosen, shared): (Vec<Site>, Vec<Site>) = sites.partition(all_named);
    let mut switched = switch(process, &chosen, to)?;
    switched.refused.extend(shared.iter().map(|site| (Va(site.entry.site), "another probe is at the same place")));
    Ok(switched)
}

/// The sites of users' probes.
fn users(process: &Process) -> Result<Vec<Site>, SessionError> {
    let mut sites = traces::look(process, |found| found.sites(process))?;
    sites.retain(|site| site.users().next().is_some());
    Ok(sites)
}

/// Those that any of the patterns means; an error if one means none of them.
fn meant(
    process: &Process,
    mut sites: Vec<Site>,
    patterns: &[Pattern],
    options: &Options,
) -> Result<Vec<Site>, SessionError> {
    let mut objects = Objects::new(options);
    let mut chosen = BTreeSet::new();
    for pattern in patterns {
        let addresses = addresses(process, &sites, pattern, &mut objects)?;
        let is_meant = |site: &&Site| {
            addresses.contains(&site.entry.site) || site.users().any(|(_, desc)| addresses.contains(&desc.asked))
        };
        let found: Vec<usize> = sites.iter().filter(is_meant).map(|site| site.index).collect();
        if found.is_empty() {
            return Err(SessionError::NoProbe { pid: process.pid(), pattern: pattern.text.clone() });
        }
        chosen.extend(found);
    }
    sites.retain(|site| chosen.contains(&site.index));
    Ok(sites)
}

/// The run-time addresses that a pattern means.
fn addresses(
    process: &Process,
    sites: &[Site],
    pattern: &Pattern,
    objects: &mut Objects,
) -> Result<HashSet<u64>, SessionError> {
    // As [`crate::status`] shows it.
    if let (None, FuncPattern::Addr(va)) = (&pattern.object, &pattern.func) {
        if sites.iter().any(|site| site.entry.site == va.0) {
            return Ok(HashSet::from([va.0]));
        }
    }
    let matches = resolve::in_process(pattern, process, objects)?;
    Ok(matches.into_iter().filter_map(|m| Some(m.va.ok()?.offset(m.loaded?.bias).0)).collect())
}

fn switch(process: &Process, chosen: &[Site], to: Switch) -> Result<Switched, SessionError> {
    let begin = Instant::now();
    let mut stopped = process.stop().map_err(|error| match Process::open(process.pid()) {
        Err(traced @ OpenError::Traced { .. }) => SessionError::from(traced),
        _ => error.into(),
    })?;
    let result = switch_stopped(&mut stopped, chosen, to);
    stopped.resume()?;
    let mut switched = result?;
    switched.stopped = begin.elapsed();
    Ok(switched)
}

fn switch_stopped(stopped: &mut Stopped, chosen: &[Site], to: Switch) -> Result<Switched, SessionError> {
    let process = stopped.process().clone();
    // Somebody may have detached, or switched the same sites, while we were not the one who had it stopped.
    let found = traces::session(&process)?;
    let journal = found.journal(&process)?;
    let maps = mappings(&process)?;
    let mut switched = Switched::default();
    let mut work: Vec<(Va, JournalEntry)> = Vec::new();
    for site in chosen {
        let va = Va(site.entry.site);
        let is_it =
            |e: &&JournalEntry| (e.site, e.detour, e.newest) == (site.entry.site, site.entry.detour, site.entry.newest);
        let Some(entry) = journal.get(site.index).filter(is_it) else {
            switched.refused.push((va, "the probe is not there any more"));
            continue;
        };
        match (traces::text(&process, &maps, entry), to) {
            _ if entry.own == 1 => {
                switched.refused.push((va, "a probe that keeps the process safe is at the same place"))
            }
            (Text::Foreign, _) => {
                switched.refused.push((va, "its object was unloaded, or somebody else has changed its code"))
            }
            (Text::Original, Switch::Off) => switched.unchanged += site.users().count(),
            (Text::Patched, Switch::On) if entry.disabled == 0 => switched.unchanged += site.users().count(),
            _ => {
                switched.sites += 1;
                switched.probes += site.users().count();
                work.push((found.entry(site.index), *entry));
            }
        }
    }
    if to == Switch::On {
        leave_regions(stopped, &maps, &work)?;
    }
    for (at, entry) in &work {
        match to {
            Switch::On => write(stopped, *at, entry)?,
            Switch::Off => restore(stopped, *at, entry)?,
        }
    }
    Ok(switched)
}

/// Moves every thread that stands where a patch is about to be, behind its first byte, to the copy of its instruction.
fn leave_regions(stopped: &mut Stopped, maps: &[Mapping], work: &[(Va, JournalEntry)]) -> Result<(), SessionError> {
    let mut entries: Vec<&JournalEntry> = work.iter().map(|(_, entry)| entry).collect();
    entries.sort_by_key(|entry| entry.site);
    for position in survey::positions(stopped, maps)? {
        let ip = position.ip.0;
        let index = entries.partition_point(|entry| entry.site < ip);
        let Some(entry) = index.checked_sub(1).map(|index| entries[index]) else { continue };
        if ip < entry.site + u64::from(entry.len) {
            if let Some((_, to)) = entry.copies().iter().find(|(from, _)| entry.site + u64::from(*from) == ip) {
                survey::move_to(stopped, &position, Va(entry.detour + u64::from(*to)))?;
            }
        }
    }
    Ok(())
}

fn write(stopped: &Stopped, at: Va, entry: &JournalEntry) -> Result<(), SessionError> {
    stopped.write(Va(entry.site), &entry.new[..usize::from(entry.len)])?;
    if entry.semaphore != 0 && !entry.is_raised(stopped.read_pod(Va(entry.semaphore))?) {
        semaphore::raise(stopped, at, Va(entry.semaphore))?;
    }
    set_disabled(stopped, at, false)
}

fn restore(stopped: &Stopped, at: Va, entry: &JournalEntry) -> Result<(), SessionError> {
    set_disabled(stopped, at, true)?;
    if entry.semaphore != 0 {
        let now = stopped.read_pod(Va(entry.semaphore))?;
        if now != 0 && entry.is_raised(now) {
            semaphore::lower(stopped, at, Va(entry.semaphore))?;
        }
    }
    Ok(stopped.write(Va(entry.site), &entry.old[..usize::from(entry.len)])?)
}

fn set_disabled(stopped: &Stopped, at: Va, disabled: bool) -> Result<(), SessionError> {
    let at = Va(at.0 + offset_of!(JournalEntry, disabled) as u64);
    Ok(stopped.write(at, &u32::from(disabled).to_ne_bytes())?)
}
