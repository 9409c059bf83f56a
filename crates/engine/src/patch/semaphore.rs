//! Semaphores of USDT probes: a number that a program looks at to see whether somebody listens.
//!
//! Others count there, too: the kernel for its uprobes, other sessions, the program itself. So
//! nothing is written back that was read before: the target adds, by an instruction with `lock`,
//! and then adds to what the journal says of the site. A controller that is killed in between
//! changes neither, as the target goes on with the list that it was given. A forked child has
//! copies of both, which agree: nobody is forked while the threads stand.

use std::mem::offset_of;

use sidestep_isa::Va;
use sidestep_sys::{ADD, Call, MemoryError, Stopped};
use sidestep_wire::{JournalEntry, SemaphoreState};

use crate::error::SessionError;
use crate::target::remote::{Room, stopped_mappings};

/// A site that is to count in its semaphore, or no more.
pub(crate) struct Change {
    /// Where its entry of the journal is.
    pub entry: Va,
    /// Run-time address of its semaphore.
    pub semaphore: Va,
    /// Whether it is to count.
    pub raised: bool,
}

/// Makes changes that are known to be due. A semaphore that is not there any more, or cannot be
/// written, is left alone, and so is one that is 0 already and is to be lowered.
pub(crate) fn change(stopped: &mut Stopped, room: &Room, changes: &[Change]) -> Result<(), SessionError> {
    if changes.is_empty() {
        return Ok(());
    }
    let mappings = stopped_mappings(stopped)?;
    let is_there = |at: Va| mappings.iter().any(|m| m.write && m.contains(at) && m.contains(Va(at.0 + 1)));
    let mut calls: Vec<Call> = Vec::new();
    for change in changes.iter().filter(|change| is_there(change.semaphore)) {
        let now: Result<u16, MemoryError> = stopped.read_pod(change.semaphore);
        if change.raised || now.is_ok_and(|now| now != 0) {
            calls.push(add(change.semaphore, change.raised));
        }
        const { assert!(SemaphoreState::High as u32 == SemaphoreState::Low as u32 + 1) };
        let state = Va(change.entry.0 + offset_of!(JournalEntry, semaphore_state) as u64);
        calls.push(add(state, change.raised));
    }
    for part in calls.chunks(room.batch.room().max(1)) {
        stopped.batch(&room.batch, part)?;
    }
    Ok(())
}

fn add(at: Va, one: bool) -> Call {
    (ADD, [at.0, if one { 1 } else { u64::MAX }, 0, 0, 0, 0])
}
