//! What a detach has to know about handlers that are functions of the target: they run outside of
//! our memory.

use std::mem::offset_of;

use sidestep_isa::Va;
use sidestep_sys::{Mapping, Process, Stopped};
use sidestep_wire::{Hit, JournalEntry, Private, ProbeDesc, ThreadState};

use crate::error::SessionError;
use crate::target::discovery::{Found, Site, read_one, state_addresses};

/// A thread that is in such a handler, and will come back to our code.
///
/// `ThreadState::busy` says which hit a thread is in (`agent::exclusive`). It may be of a handler
/// that was left by `longjmp`: then the word of the hit is no such probe's any more, or the
/// thread's stack pointer is above it on the same stack.
pub(crate) fn inside(stopped: &Stopped, found: &Found, mappings: &[Mapping]) -> Result<Option<i32>, SessionError> {
    for Busy { at, fs_base, .. } in busy(stopped.process(), found)? {
        let thread = stopped.threads().iter().find(|thread| thread.regs.thread_pointer().0 == fs_base);
        let Some(thread) = thread else { continue };
        let sp = thread.regs.sp();
        let same_stack = mappings.iter().any(|m| m.contains(sp) && m.contains(Va(at)));
        if !(same_stack && sp.0 > at) {
            return Ok(Some(thread.tid));
        }
    }
    Ok(None)
}

/// A hit whose handler, a function of the target, runs or was left by `longjmp`.
pub(crate) struct Busy {
    /// Stack address of the hit.
    at: u64,
    fs_base: u64,
    /// Of the probe.
    pub number: u64,
}

/// All of them.
pub(crate) fn busy(process: &Process, found: &Found) -> Result<Vec<Busy>, SessionError> {
    let mut all = Vec::new();
    if found.is_child(process) || !found.has_private(process) {
        return Ok(all);
    }
    let head: Private = read_one(process, found.private_va)?;
    for state in state_addresses(process, found.private_va)? {
        let field = |offset: usize| process.read_pod::<u64>(Va(state.0 + offset as u64));
        let busy = field(offset_of!(ThreadState, busy))?;
        if busy == 0 {
            continue;
        }
        let fs_base = field(offset_of!(ThreadState, fs_base))?;
        let Ok(word) = process.read_pod::<u64>(Va(busy)) else { continue };
        let number = word & !Hit::RETURNED;
        if number >= head.layout.probes_max {
            continue;
        }
        let desc: ProbeDesc = read_one(process, Va(head.probes + number * size_of::<ProbeDesc>() as u64))?;
        if desc.flags & ProbeDesc::NATIVE == 0 {
            continue;
        }
        all.push(Busy { at: busy, fs_base, number });
    }
    Ok(all)
}

/// The words that lead to replaced functions.
pub(crate) struct Originals(Vec<(Va, u64)>);

impl Originals {
    /// As far as their sites have probes.
    pub fn of(process: &Process, found: &Found) -> Result<Originals, SessionError> {
        let sites = if found.has_private(process) { found.sites(process)? } else { Vec::new() };
        Ok(Originals(sites.iter().flat_map(|site| &site.probes).filter_map(|(_, desc)| original(desc)).collect()))
    }

    /// They lead to the functions themselves again.
    pub fn restore(&self, stopped: &Stopped) -> Result<(), SessionError> {
        self.0.iter().try_for_each(|(word, function)| Ok(stopped.write(*word, &function.to_ne_bytes())?))
    }
}

/// The word that leads to the function which a probe replaces, and the address of that.
fn original(desc: &ProbeDesc) -> Option<(Va, u64)> {
    (desc.flags & ProbeDesc::REPLACES != 0).then_some((Va(desc.cookie), desc.asked))
}

/// Disabled sites, given by their addresses, are no users' sites any more.
pub(crate) fn retire(stopped: &Stopped, found: &Found, sites: &[u64]) -> Result<(), SessionError> {
    for site in found.sites(stopped.process())? {
        if sites.contains(&site.entry.site) && site.users().next().is_some() {
            retire_site(stopped, found, &site)?;
        }
    }
    Ok(())
}

/// The site is nobody's any more.
pub(crate) fn retire_site(stopped: &Stopped, found: &Found, site: &Site) -> Result<(), SessionError> {
    let originals = site.probes.iter().filter_map(|(_, desc)| original(desc)).collect();
    Originals(originals).restore(stopped)?;
    let newest = found.entry(site.index).0 + offset_of!(JournalEntry, newest) as u64;
    Ok(stopped.write(Va(newest), &0u32.to_ne_bytes())?)
}
