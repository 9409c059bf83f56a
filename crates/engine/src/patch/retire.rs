//! Sites whose probes are taken out for good, while their session goes on.

use std::ops::Range;
use std::time::Duration;

use sidestep_isa::Va;
use sidestep_sys::{Process, Stopped};
use sidestep_wire::TrapEntry;

use crate::error::SessionError;
use crate::patch::thread_state::LOOKS;
use crate::target::discovery::Found;
use crate::target::hold::Hold;
use crate::target::native;
use crate::target::remote::stopped_mappings;
use crate::target::signals;
use crate::target::thread_positions::{self, Position};

/// For how long the threads run before the next look.
const GAP: Duration = Duration::from_millis(1);

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
    // A thread that has executed a trap there, and has not come to the handler yet, needs the
    // entry.
    let forget = |stopped: &mut Stopped| {
        let positions = thread_positions::positions(stopped, &stopped_mappings(stopped)?)?;
        let comes = |p: &Position| is_at_trap(p, &traps) && thread_positions::has_trapped(stopped, p);
        let is_free = traps.is_empty() || !positions.iter().any(comes);
        if is_free {
            signals::forget_traps(stopped, found.private_va, |trap| leads(trap.detour))?;
            native::retire(stopped, found, sites)?;
        }
        Ok(is_free)
    };
    for _ in 0..LOOKS {
        if hold.stopped("sites", forget)? {
            return Ok(Some(detours));
        }
        std::thread::sleep(GAP);
    }
    Ok(None)
}

/// Is a position one of a thread that may have executed one of these traps? The kernel reports a
/// trap at its address or behind it.
fn is_at_trap(position: &Position, traps: &[u64]) -> bool {
    let Va(ip) = position.ip;
    traps.contains(&ip) || traps.contains(&ip.wrapping_sub(1))
}
