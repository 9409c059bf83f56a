//! What a detach has to know about handlers that are functions of the target: they run outside of our memory.

use std::mem::offset_of;

use sidestep_isa::Va;
use sidestep_sys::{Mapping, Stopped};
use sidestep_wire::{Header, Hit, JournalEntry, Private, ProbeDesc};

use crate::error::SessionError;
use crate::traces::{Found, Site, read_one, states};

/// A thread that is in such a handler, and will come back to our code.
///
/// `ThreadState::busy` says which hit a thread is in (`agent::exclusive`). It may be of a handler that was left by `longjmp`: then the
/// word of the hit is no such probe's any more, or the thread's stack pointer is above it on the same stack.
pub(crate) fn inside(stopped: &Stopped, found: &Found, mappings: &[Mapping]) -> Result<Option<i32>, SessionError> {
    let process = stopped.process();
    if found.is_child(process) || !found.has_private(process) {
        return Ok(None);
    }
    let head: Private = read_one(process, found.private_va)?;
    let probes: u64 = process.read_pod(Va(found.shared_va.0 + offset_of!(Header, probes_max) as u64))?;
    for (_, state) in states(process, found.private_va)? {
        if state.busy == 0 {
            continue;
        }
        let Ok(word) = process.read_pod::<u64>(Va(state.busy)) else { continue };
        let number = word & !Hit::RETURNED;
        if number >= probes {
            continue;
        }
        let desc: ProbeDesc = read_one(process, Va(head.probes + number * size_of::<ProbeDesc>() as u64))?;
        if desc.flags & ProbeDesc::NATIVE == 0 {
            continue;
        }
        let thread = stopped.threads().iter().find(|thread| thread.regs.fs_base().0 == state.fs_base);
        let Some(thread) = thread else { continue };
        let sp = thread.regs.sp();
        let same_stack = mappings.iter().any(|m| m.contains(sp) && m.contains(Va(state.busy)));
        if !(same_stack && sp.0 > state.busy) {
            return Ok(Some(thread.tid));
        }
    }
    Ok(None)
}

/// The words that lead to replaced functions lead to the functions themselves again.
pub(crate) fn restore_originals(stopped: &Stopped, found: &Found) -> Result<(), SessionError> {
    match found.has_private(stopped.process()) {
        true => found.sites(stopped.process())?.iter().try_for_each(|site| restore_original(stopped, site)),
        false => Ok(()),
    }
}

fn restore_original(stopped: &Stopped, site: &Site) -> Result<(), SessionError> {
    let replaced = site.probes.iter().filter(|(_, desc)| desc.flags & ProbeDesc::REPLACES != 0);
    for (_, desc) in replaced {
        stopped.write(Va(desc.cookie), &desc.asked.to_ne_bytes())?;
    }
    Ok(())
}

/// Disabled sites, given by their addresses, are no users' sites any more.
pub(crate) fn retire(stopped: &Stopped, found: &Found, sites: &[u64]) -> Result<(), SessionError> {
    for site in found.sites(stopped.process())? {
        if sites.contains(&site.entry.site) && site.users().next().is_some() {
            restore_original(stopped, &site)?;
            let newest = found.entry(site.index).0 + offset_of!(JournalEntry, newest) as u64;
            stopped.write(Va(newest), &0u32.to_ne_bytes())?;
        }
    }
    Ok(())
}
