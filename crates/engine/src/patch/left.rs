//! What controllers have left in a process that have ended without a detach: killed, or on a
//! machine that was out of memory. The next attach removes it, too; this is for whoever wants no
//! attach.

use std::time::Duration;

use sidestep_sys::{Limit, Mapping, Process};

use crate::error::SessionError;
use crate::patch::detach::{close_descriptors, remove};
use crate::patch::switch::take_last_turn;
use crate::target::discovery::{self, Found};
use crate::target::remote::mappings;

/// How long the end of a controller is waited for that was killed.
const LONGEST_END: Duration = Duration::from_secs(5);

/// What became of the sessions in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detached {
    /// Ids of the controllers that have ended, whose sessions were removed. 0: it ended before it
    /// had said who it was.
    pub ended: Vec<i32>,
    /// How many sites the users' probes of these sessions were at.
    pub sites: usize,
    /// Ids of controllers that are at work: their sessions stay.
    pub at_work: Vec<i32>,
}

/// Removes the sessions of controllers that have ended from a process, whatever state they were
/// left in.
///
/// # Errors
/// The process cannot be traced, or a thread does not leave the code of such a session.
pub fn detach(pid: i32) -> Result<Detached, SessionError> {
    let process = Process::open(pid)?;
    let mut detached = Detached::default();
    let mut left = Vec::new();
    let (all, _) = settled(&process)?;
    for found in all.iter().filter(|found| !found.retained || found.users(&all).next().is_none()) {
        // What has ended and is needed no more stays for nobody.
        if found.controller_alive() && !found.retained {
            detached.at_work.push(found.controller_pid);
            continue;
        }
        let sites = found.entries(&process).unwrap_or_default();
        detached.sites += sites.iter().filter(|entry| entry.own == 0 && entry.newest != 0).count();
        detached.ended.push(found.controller_pid);
        left.push(found.shared_va);
    }
    if left.is_empty() && detached.at_work.is_empty() {
        // Of a controller that was killed before the region was mapped.
        close_descriptors(&process)?;
    }
    remove(&process, take_last_turn, |found: &Found| {
        left.contains(&found.shared_va) && (found.retained || !found.controller_alive())
    })?;
    Ok(detached)
}

/// The sessions in a process and its mappings, when controllers that were killed are gone. That
/// takes some time for one that has much memory, and until then it seems to be at work.
///
/// # Errors
/// There is a session of another version of this program, or the mappings cannot be read.
pub(crate) fn settled(process: &Process) -> Result<(Vec<Found>, Vec<Mapping>), SessionError> {
    let limit = Limit::after(LONGEST_END);
    let ends = |found: &Found| found.controller_alive() && sidestep_sys::is_ending(found.controller_pid);
    loop {
        let maps = mappings(process)?;
        if let Some(error) = discovery::foreign(process, &maps) {
            return Err(error);
        }
        let all = discovery::all(process, &maps);
        if limit.is_over() || !all.iter().any(ends) {
            return Ok((all, maps));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
