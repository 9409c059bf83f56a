//! Breakpoints of ours: which detour a site goes on at.

use core::sync::atomic::Ordering;

use sidestep_wire::TrapEntry;

use crate::arch::{BREAKPOINT, INT_IMM8};
use crate::memory::Agent;
use crate::safe_read;

/// Where to go on after a breakpoint at `site`; `None` = it is the program's own.
#[must_use]
pub fn detour(agent: Agent, site: u64) -> Option<u64> {
    if let Some(detour) = look_up(agent, site) {
        return Some(detour);
    }
    let mut bytes = [0u8; 2]; // the one before, and the one at the site
    // SAFETY: one byte each.
    let read = unsafe {
        let before = bytes.as_mut_ptr();
        safe_read::within_page(site.wrapping_sub(1), before, 1);
        safe_read::within_page(site, before.add(1), 1)
    };
    // The probe went away between the trap and now: what is there instead has not been executed yet.
    (read == 1 && bytes[1] != BREAKPOINT && bytes != [INT_IMM8, 3]).then_some(site)
}

fn look_up(agent: Agent, site: u64) -> Option<u64> {
    let private = agent.private();
    // Table and mask change together while all threads are stopped, possibly between these lines.
    let (table, mask) = loop {
        let table = private.traps.load(Ordering::Acquire);
        let mask = private.trap_mask.load(Ordering::Acquire);
        if table == private.traps.load(Ordering::Acquire) {
            break (table as *const TrapEntry, mask);
        }
    };
    if table.is_null() {
        return None;
    }
    let first = TrapEntry::bucket(site, mask);
    for step in 0..=mask {
        let index = (first + step) & mask;
        // SAFETY: the controller put a table of `mask + 1` entries there, which stays mapped.
        let (key, detour) = unsafe {
            let entry = table.add(index as usize);
            (core::ptr::addr_of!((*entry).site).read_volatile(), core::ptr::addr_of!((*entry).detour).read_volatile())
        };
        if key == site {
            return Some(detour);
        }
        if key == 0 {
            return None;
        }
    }
    None
}
