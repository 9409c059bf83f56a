//! Semaphores of USDT probes: a number that a program looks at to see whether somebody listens. Each change is announced in
//! the journal before it is made, with what the number was, so that whoever comes after a process that was killed in between
//! knows whether it was made. A forked child has a copy, which stays as it is.

use std::mem::offset_of;

use sidestep_isa::Va;
use sidestep_sys::{MemoryError, Stopped};
use sidestep_wire::{JournalEntry, SemaphoreState};

/// Raises a semaphore by 1. `entry`: where the entry of its site is.
pub(crate) fn raise(stopped: &Stopped, entry: Va, semaphore: Va) -> Result<(), MemoryError> {
    let now: u16 = stopped.read_pod(semaphore)?;
    change(stopped, entry, semaphore, now, now.wrapping_add(1), [SemaphoreState::Raising, SemaphoreState::High])
}

/// Lowers a semaphore that was raised, by 1.
pub(crate) fn lower(stopped: &Stopped, entry: Va, semaphore: Va) -> Result<(), MemoryError> {
    let now: u16 = stopped.read_pod(semaphore)?;
    change(stopped, entry, semaphore, now, now.wrapping_sub(1), [SemaphoreState::Lowering, SemaphoreState::Low])
}

fn change(
    stopped: &Stopped,
    entry: Va,
    semaphore: Va,
    from: u16,
    to: u16,
    [before, after]: [SemaphoreState; 2],
) -> Result<(), MemoryError> {
    let at = Va(entry.0 + offset_of!(JournalEntry, semaphore_state) as u64);
    // State and number, which is next to it, in one piece.
    let announce = |state| stopped.write(at, &(state as u64 | u64::from(from) << 32).to_ne_bytes());
    announce(before)?;
    stopped.write(semaphore, &to.to_ne_bytes())?;
    announce(after)
}
