//! Switching probes off and on, and their jumps: the original bytes of their sites come back, and
//! the patches again. All of it is in the target's own memory, so any process that may trace the
//! target can do it, whoever controls the session.
//!
//! Sites are switched, not single probes ([`super::per_probe`] does that): what is at a disabled
//! site costs nothing. Detours, descriptors and entries of the trap table stay: a thread may be in
//! there, or have executed the trap just before. How the bytes change: [`super::switch`].

use std::collections::{BTreeSet, HashSet};

use sidestep_isa::Va;
use sidestep_sys::Process;
use sidestep_wire::ProbeDesc;

use crate::api::{FuncPattern, Options, Pattern};
use crate::error::SessionError;
use crate::patch::switch::{Switch, Switched, in_turn, take_turn};
use crate::patch::{calls, per_probe};
use crate::resolve;
use crate::resolve::objects::Objects;
use crate::target::discovery::{self, Site};

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

/// Optimizes the probes that any of the patterns means, or all: they are jumps where that is
/// possible. Or makes them traps, which lead to the same detours.
///
/// # Errors
/// As [`enable`].
pub fn optimize(pid: i32, patterns: &[Pattern], options: &Options, on: bool) -> Result<Switched, SessionError> {
    by_pattern(pid, patterns, options, if on { Switch::Jump } else { Switch::Trap })
}

fn by_pattern(pid: i32, patterns: &[Pattern], options: &Options, to: Switch) -> Result<Switched, SessionError> {
    let process = Process::look_at(pid)?;
    let mut sites = Vec::new();
    for found in discovery::sessions(&process)? {
        sites.extend(users(&process, found.shared_va)?.into_iter().map(|site| (found.shared_va, site)));
    }
    let chosen = if patterns.is_empty() { sites } else { meant(&process, sites, patterns, options)? };
    let _turn = take_turn(&process)?;
    let mut switched = Switched::default();
    // Those of one session after the other.
    for sites in chosen.chunk_by(|(a, _), (b, _)| a == b) {
        let (shared, sites): (Va, Vec<Site>) = (sites[0].0, sites.iter().map(|(_, site)| site.clone()).collect());
        if to == Switch::On {
            // Those that are off alone, too. Somebody may have detached before it was our turn.
            let chosen: HashSet<usize> = sites.iter().map(|site| site.index).collect();
            let mut now = users(&process, shared)?;
            now.retain(|site| chosen.contains(&site.index));
            calls::forget(&process, &discovery::session(&process, shared)?, &calls::away(&process, &now))?;
            for site in &now {
                per_probe::set(&process, site, |_| Some(true))?;
            }
        }
        switched.add(in_turn(&process, shared, &sites, to)?);
    }
    Ok(switched)
}

/// Switches these probes of a session, given by number. Others of their sites stay as they are, but
/// that a site has a jump or a trap for all.
pub(crate) fn by_number(
    process: &Process,
    shared: Va,
    numbers: &HashSet<u32>,
    to: Switch,
) -> Result<Switched, SessionError> {
    let _turn = take_turn(process)?;
    switch_numbers(process, shared, numbers, to)
}

/// Adds the numbers of the other probes at the sites of these.
pub(crate) fn add_neighbours(process: &Process, shared: Va, numbers: &mut HashSet<u32>) -> Result<(), SessionError> {
    for site in users(process, shared)? {
        if site.users().any(|(number, _)| numbers.contains(number)) {
            numbers.extend(site.users().map(|(number, _)| *number));
        }
    }
    Ok(())
}

/// Disables probes that could not be put in as a whole, or that were disabled before their library
/// went, by who has the turn.
pub(crate) fn withdraw(process: &Process, shared: Va, numbers: &HashSet<u32>) -> Result<(), SessionError> {
    switch_numbers(process, shared, numbers, Switch::Off).map(drop)
}

fn switch_numbers(process: &Process, shared: Va, numbers: &HashSet<u32>, to: Switch) -> Result<Switched, SessionError> {
    let named = |site: &Site| site.users().any(|(number, _)| numbers.contains(number));
    let all_named = |site: &Site| site.users().all(|(number, _)| numbers.contains(number));
    let (mut chosen, mut alone) = (Vec::new(), Switched::default());
    let mut sites = users(process, shared)?;
    sites.retain(named);
    if to == Switch::On {
        let mut away = calls::away(process, &sites);
        away.retain(|number| numbers.contains(number));
        calls::forget(process, &discovery::session(process, shared)?, &away)?;
    }
    for site in sites {
        let can = per_probe::can(&site);
        let whole = match to {
            Switch::Jump | Switch::Trap => true,
            Switch::On if can => {
                per_probe::enable(process, &site, numbers, &mut alone)?;
                site.entry.disabled == 1
            }
            Switch::Off if can && !all_named(&site) => per_probe::disable(process, &site, numbers, &mut alone)?,
            Switch::On | Switch::Off => {
                let whole = all_named(&site);
                if !whole {
                    alone.refused.push((Va(site.entry.site), "another probe is at the same place"));
                }
                whole
            }
        };
        if whole {
            chosen.push(site);
        }
    }
    let mut switched = in_turn(process, shared, &chosen, to)?;
    switched.probes += alone.probes;
    switched.unchanged += alone.unchanged;
    switched.refused.append(&mut alone.refused);
    Ok(switched)
}

/// Switches the users' sites of a session off, by who has the turn. Our own sites stay, and so do
/// the exits of functions whose entries they are.
pub(crate) fn off(process: &Process, shared: Va) -> Result<Switched, SessionError> {
    let mut sites = users(process, shared)?;
    let last = discovery::exits_of_own(&sites);
    sites.retain(|site| !last.contains(&site.entry.site));
    in_turn(process, shared, &sites, Switch::Off)
}

/// The sites of a session's users' probes.
fn users(process: &Process, shared: Va) -> Result<Vec<Site>, SessionError> {
    let mut sites = discovery::look(process, shared, |found| found.sites(process))?;
    sites.retain(|site| site.users().next().is_some());
    Ok(sites)
}

/// A site and its session, by the address of the shared region.
type Whose = (Va, Site);

/// Those that any of the patterns means; an error if one means none of them.
fn meant(
    process: &Process,
    mut sites: Vec<Whose>,
    patterns: &[Pattern],
    options: &Options,
) -> Result<Vec<Whose>, SessionError> {
    let mut objects = Objects::new(options);
    let mut chosen = BTreeSet::new();
    for pattern in patterns {
        let addresses = addresses(process, &sites, pattern, &mut objects)?;
        let is_meant = |(_, site): &&Whose| is_at(site, &addresses);
        let found: Vec<(Va, usize)> =
            sites.iter().filter(is_meant).map(|(shared, site)| (*shared, site.index)).collect();
        if found.is_empty() {
            return Err(SessionError::NoProbe { pid: process.pid(), pattern: pattern.text.clone() });
        }
        chosen.extend(found);
    }
    // All sites of a return probe are switched together.
    let groups = |site: &Site| site.users().map(|(_, desc)| desc.group).filter(|group| *group != 0).collect::<Vec<_>>();
    let is_chosen = |(shared, site): &&Whose| chosen.contains(&(*shared, site.index));
    let named: HashSet<(u64, u32)> = sites
        .iter()
        .filter(is_chosen)
        .flat_map(|(shared, site)| groups(site).into_iter().map(|group| (shared.0, group)))
        .collect();
    sites.retain(|(shared, site)| {
        chosen.contains(&(*shared, site.index)) || groups(site).iter().any(|group| named.contains(&(shared.0, *group)))
    });
    Ok(sites)
}

/// Whether a site, or a probe that is there, has one of these run-time addresses.
fn is_at(site: &Site, addresses: &HashSet<u64>) -> bool {
    let shown = |desc: &ProbeDesc| [desc.asked, desc.site].iter().any(|va| addresses.contains(va));
    addresses.contains(&site.entry.site) || site.users().any(|(_, desc)| shown(desc))
}

/// The run-time addresses that a pattern means.
fn addresses(
    process: &Process,
    sites: &[Whose],
    pattern: &Pattern,
    objects: &mut Objects,
) -> Result<HashSet<u64>, SessionError> {
    // As [`crate::results::status`] shows it.
    if let (None, FuncPattern::Addr(va)) = (&pattern.object, &pattern.func) {
        if sites.iter().any(|(_, site)| is_at(site, &HashSet::from([va.0]))) {
            return Ok(HashSet::from([va.0]));
        }
    }
    let matches = resolve::in_process(pattern, process, objects)?;
    Ok(matches.into_iter().filter_map(|m| Some(m.va.ok()?.offset(m.loaded?.bias).0)).collect())
}
