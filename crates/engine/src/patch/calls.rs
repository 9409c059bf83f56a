//! Calls that are remembered for the exits of their functions, seen from outside.
//!
//! While a probe is off, neither ends of calls nor new calls are seen. A call that began before may
//! be over when the probe comes back, and another one of the same function, with the same stack
//! slot, may be about to return: its exit would be taken for that of the first call. So a probe
//! that comes back has no calls.

use std::collections::HashSet;
use std::mem::offset_of;

use sidestep_isa::Va;
use sidestep_sys::Process;
use sidestep_wire::private::{CALLS, CALLS_OFF, GOROUTINE_CALLS};
use sidestep_wire::{Call, Flow, GoroutineCall, Private, ShadowEntry};

use crate::error::SessionError;
use crate::patch::per_probe;
use crate::target::discovery::{Found, Site, read_array, shadow_entries, state_addresses};
use crate::target::hold;

/// The probes at these sites that are off and remember calls, by number.
pub(crate) fn away(process: &Process, sites: &[Site]) -> HashSet<u32> {
    let remembers = |site: &&Site| site.users().any(|(_, desc)| desc.flow == Flow::Enter as u32);
    let off = |site: &Site| -> Vec<u32> {
        let users = site.users().filter(|(_, desc)| desc.flow == Flow::Enter as u32);
        users
            .filter(|(_, desc)| site.entry.disabled == 1 || per_probe::is_off(process, desc))
            .map(|(number, _)| *number)
            .collect()
    };
    sites.iter().filter(remembers).flat_map(off).collect()
}

/// Forgets the calls of these probes. The threads stand meanwhile, if there are any.
pub(crate) fn forget(process: &Process, found: &Found, numbers: &HashSet<u32>) -> Result<(), SessionError> {
    if numbers.is_empty() || !found.has_private(process) || remembered(process, found, numbers)?.is_empty() {
        return Ok(());
    }
    let stopped = hold::stop(process)?;
    let forgotten = remembered(process, found, numbers)
        .and_then(|words| words.into_iter().try_for_each(|at| Ok(process.write(at, &0u64.to_ne_bytes())?)));
    stopped.resume()?;
    forgotten
}

/// Where the calls of these probes are: the words that are 0 where there is no call.
fn remembered(process: &Process, found: &Found, numbers: &HashSet<u32>) -> Result<Vec<Va>, SessionError> {
    let mut all = Vec::new();
    for (at, entry) in shadow_entries(process, found.private_va)? {
        if entry.probe & ShadowEntry::KEPT != 0 && numbers.contains(&entry.number()) {
            all.push(Va(at.0.wrapping_add(offset_of!(ShadowEntry, slot) as u64)));
        }
    }
    let mut add = |base: u64, index: usize, size: usize, slot: usize| {
        all.push(Va(base.wrapping_add((index * size + slot) as u64)));
    };
    for at in state_addresses(process, found.private_va)? {
        let table = at.0.wrapping_add(CALLS_OFF as u64);
        for (index, call) in read_array::<Call>(process, Va(table), CALLS as u64)?.iter().enumerate() {
            if call.slot > Call::BUSY && numbers.contains(&call.number()) {
                add(table, index, size_of::<Call>(), offset_of!(Call, slot));
            }
        }
    }
    for (table, len) in GOROUTINE_CALLS.iter().enumerate() {
        let word = offset_of!(Private, goroutines) + table * size_of::<u64>();
        let base: u64 = process.read_pod(Va(found.private_va.0.wrapping_add(word as u64)))?;
        if base == 0 {
            break;
        }
        for (index, call) in read_array::<GoroutineCall>(process, Va(base), *len)?.iter().enumerate() {
            if call.goroutine > GoroutineCall::CLAIMED && numbers.contains(&(call.key as u32)) {
                add(base, index, size_of::<GoroutineCall>(), offset_of!(GoroutineCall, goroutine));
            }
        }
    }
    Ok(all)
}
