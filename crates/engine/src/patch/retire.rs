//! Sites whose probes are taken out for good, while their session goes on.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use sidestep_sys::{Process, Stopped};
use sidestep_wire::TrapEntry;

use crate::error::SessionError;
use crate::patch::thread_state::LOOKS;
use crate::patch::usher;
use crate::target::discovery::{self, Found};
use crate::target::hold::Hold;
use crate::target::native;
use crate::target::remote::stopped_mappings;
use crate::target::signals;
use crate::target::thread_positions::{self, Position};

/// For how long the threads run before the next look.
const GAP: Duration = Duration::from_millis(1);
/// For how long a thread goes on alone that comes from a trap.
const ALONE: Duration = Duration::from_micros(50);

/// These sites, which are off, are no users' sites any more. Their traps are forgotten, too:
/// another session may have one there from now on, and the handler asks all sessions. Gives the
/// detours that no trap leads to any more; `None`: threads are on their way from such a trap to the
/// handler, and nothing was done. By who has the turn.
pub(crate) fn retire(process: &Process, found: &Found, sites: &[u64]) -> Result<Option<Vec<Range<u64>>>, SessionError> {
    let entries = found.entries(process)?;
    let gone = entries.iter().filter(|entry| entry.own == 0 && sites.contains(&entry.site));
    let detours: Vec<Range<u64>> = gone.map(|entry| entry.detour..entry.detour + u64::from(entry.detour_len)).collect();
    let leads = |detour: u64| detours.iter().any(|range| range.contains(&(detour & !TrapEntry::RECORD)));
    let traps: Vec<u64> = found.traps(process)?.iter().filter(|(_, to)| leads(**to)).map(|(site, _)| *site).collect();
    let mut hold = Hold::running(process);
    let forget = |stopped: &mut Stopped| {
        let coming = if traps.is_empty() { HashSet::new() } else { coming(stopped, &traps)? };
        if coming.is_empty() {
            signals::forget_traps(stopped, found.private_va, |trap| leads(trap.detour))?;
            native::retire(stopped, found, sites)?;
            return Ok(true);
        }
        // On a busy machine they get no CPU in the gap.
        for tid in coming {
            usher::nudge(stopped, tid, ALONE)?;
        }
        Ok(false)
    };
    for _ in 0..LOOKS {
        if hold.stopped("sites", forget)? {
            return Ok(Some(detours));
        }
        std::thread::sleep(GAP);
    }
    Ok(None)
}

/// The threads that have executed one of these traps, and whose handler may not have looked yet:
/// they need the entry of the trap. What is left of the frame of a former signal looks the same, so
/// only threads in a handler of ours count.
fn coming(stopped: &Stopped, traps: &[u64]) -> Result<HashSet<i32>, SessionError> {
    let mappings = stopped_mappings(stopped)?;
    let agents = discovery::agents(&discovery::all(stopped.process(), &mappings));
    let positions = thread_positions::positions(stopped, &mappings)?;
    let is_inside = |p: &&Position| agents.iter().any(|agent| agent.contains(&p.ip.0));
    let inside: HashSet<i32> = positions.iter().filter(is_inside).map(|p| p.place.tid()).collect();
    let comes = |p: &&Position| {
        thread_positions::trap_places(p.ip).iter().any(|at| traps.contains(at))
            && thread_positions::has_trapped(stopped, p)
            && inside.contains(&p.place.tid())
    };
    Ok(positions.iter().filter(comes).map(|p| p.place.tid()).collect())
}
