//! Signal frames on stacks that no thread is on.
//!
//! User-level threads may be preempted by a signal: the handler leaves its frame on the stack that
//! it has interrupted, and switches to another one. Such a frame is *parked*. A thread will return
//! through it later, perhaps into the bytes of a patch, or into a detour that a detach takes away.
//!
//! A process that parks frames is recognised by one that is parked when somebody takes the turn to
//! change the process. Memory is searched while the threads run. What looks like a parked frame is
//! looked at again in a pause, in which the stacks of threads are known. From then on
//! [`crate::target::thread_positions`] finds parked frames in each pause. Only those of
//! x86-64 are searched.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use sidestep_isa::Va;
use sidestep_sys::arch::{self, SignalFrame};
use sidestep_sys::{Mapping, Process, Stopped};

use crate::error::SessionError;
use crate::target::hold;
use crate::target::remote::{mappings, stopped_mappings};
use crate::target::thread_positions::NO_THREAD;

/// Most bytes of memory in use that are searched. Small mappings come first, since stacks are
/// small.
const USED_MAX: u64 = 64 << 20;
/// Most bytes of address space that are searched: what is larger are reservations and heaps.
const SPACE_MAX: u64 = 4 << 30;
/// Most frames: those of so many user-level threads at a time.
const FRAMES_MAX: usize = 4096;
/// Signals 32 and 33, whose handlers are the C library's (cancellation, change of user ids): they
/// switch no stacks.
const OF_THE_C_LIBRARY: u64 = 3 << 31;
/// Bytes that are read together.
const PIECE: u64 = 1 << 20;
/// More bytes than a signal frame has, with what the kernel leaves free below the interrupted stack
/// pointer.
pub(crate) const FRAME_MAX: u64 = 64 << 10;
/// Most bytes from the thread pointer to the end of a thread's stack: the thread's own block.
const BLOCK_MAX: u64 = 1 << 20;

/// Finds out whether a process parks frames, and notes that in its handle. We must not have stopped
/// the process.
///
/// # Errors
/// The process has ended, or has too many such frames.
pub(crate) fn look_for(process: &Process) -> Result<(), SessionError> {
    process.set_parks_frames(false);
    if process.caught() & !OF_THE_C_LIBRARY == 0 {
        return Ok(());
    }
    let suspected = search(process, &mappings(process)?, &[])?;
    if suspected.is_empty() {
        return Ok(());
    }
    // A process that does not stop now is taken for one that parks frames.
    let Ok(stopped) = hold::stop(process) else {
        process.set_parks_frames(true);
        return Ok(());
    };
    let stacks = Stacks::of(&stopped, &stopped_mappings(&stopped)?);
    let is_there = |frame: &SignalFrame| process.read_word(frame.ip_at).is_ok_and(|ip| ip == frame.ip.0);
    process.set_parks_frames(suspected.iter().any(|frame| is_there(frame) && stacks.park(frame)));
    Ok(())
}

/// The parked frames of a process whose threads all stand.
///
/// # Errors
/// There are too many.
pub(crate) fn frames(stopped: &Stopped, mappings: &[Mapping]) -> Result<Vec<SignalFrame>, SessionError> {
    let stacks = Stacks::of(stopped, mappings);
    let mut all = search(stopped.process(), mappings, &stacks.own)?;
    all.retain(|frame| stacks.park(frame));
    Ok(all)
}

/// Lets `each` see all threads of a process: one after the other, or all at once if frames are
/// parked, through which another thread might return meanwhile. Gives the longest time that a
/// thread stood.
pub(crate) fn each_thread(
    process: &Process,
    mut each: impl FnMut(&mut Stopped) -> Result<(), SessionError>,
) -> Result<Duration, SessionError> {
    if !process.parks_frames() {
        return process.each_thread(false, each);
    }
    let begin = Instant::now();
    let mut stopped = hold::stop(process)?;
    each(&mut stopped)?;
    drop(stopped);
    Ok(begin.elapsed())
}

/// Where the threads of a stopped process have their stacks.
struct Stacks {
    /// The stack pointers.
    pointers: Vec<Va>,
    /// Mappings that are nothing but the stack of the thread that is on it.
    own: Vec<Range<u64>>,
}

impl Stacks {
    fn of(stopped: &Stopped, mappings: &[Mapping]) -> Stacks {
        let (mut pointers, mut own) = (Vec::new(), Vec::new());
        for thread in stopped.threads() {
            let (sp, block) = (thread.regs.sp(), thread.regs.thread_pointer());
            pointers.push(sp);
            let next = mappings.partition_point(|mapping| mapping.start <= sp);
            let Some(stack) = mappings[..next].last().filter(|stack| stack.contains(sp)) else { continue };
            // The C library puts the block of a thread at the end of the stack that it makes. A
            // mapping that goes on behind it is more than that.
            let ends_with_block = stack.contains(block) && stack.end.0 - block.0 <= BLOCK_MAX;
            if stack.name == "[stack]" || ends_with_block && thread.tid != thread.pid {
                own.push(stack.start.0..stack.end.0);
            }
        }
        Stacks { pointers, own }
    }

    /// Is a frame on a stack that no thread is on? What is above a frame was in use while the frame
    /// was: a frame around a stack pointer is over.
    fn park(&self, frame: &SignalFrame) -> bool {
        let is_around = |sp: &Va| frame.ip_at < *sp && *sp <= frame.sp;
        !self.own.iter().any(|own| own.contains(&frame.ip_at.0)) && !self.pointers.iter().any(is_around)
    }
}

/// What looks like a signal frame of a normal stack in the memory that may be a stack, without some
/// mappings.
fn search(process: &Process, mappings: &[Mapping], without: &[Range<u64>]) -> Result<Vec<SignalFrame>, SessionError> {
    let is_ours = |m: &Mapping| m.name.to_string_lossy().starts_with("/memfd:");
    let len = |range: &Range<u64>| range.end - range.start;
    let may_be = mappings.iter().filter(|m| m.read && m.write && !is_ours(m)).map(|m| m.start.0..m.end.0);
    let mut ranges: Vec<Range<u64>> = may_be.filter(|range| !without.contains(range)).collect();
    ranges.sort_by_key(len);
    let pages = process.pages();
    let (mut used, mut space) = (USED_MAX, SPACE_MAX);
    let mut found = BTreeMap::new();
    for range in ranges {
        let Some(left) = space.checked_sub(len(&range)) else { break };
        space = left;
        for part in pages.used(&range) {
            let Some(left) = used.checked_sub(len(&part)) else { return Ok(found.into_values().collect()) };
            used = left;
            look_at(process, &part, &mut found)?;
        }
    }
    Ok(found.into_values().collect())
}

/// Adds what looks like a signal frame in a part of memory, by the address of its instruction
/// pointer. Pieces overlap, so that no frame lies across a border.
fn look_at(process: &Process, part: &Range<u64>, found: &mut BTreeMap<Va, SignalFrame>) -> Result<(), SessionError> {
    let mut start = part.start;
    let mut bytes = Vec::new();
    while start < part.end {
        let end = part.end.min(start + PIECE + FRAME_MAX);
        bytes.resize((end - start) as usize, 0);
        if process.read(Va(start), &mut bytes).is_ok() {
            // No thread has its stack pointer at 0, so no frame on an alternate stack counts.
            let frames = arch::signal_frames(&bytes, Va(start), Va(0), Va(0));
            let is_whole = |frame: &SignalFrame| arch::is_whole(frame, |at| process.read_word(at).ok());
            for frame in frames.into_iter().filter(is_on_its_stack) {
                if found.len() >= FRAMES_MAX {
                    return Err(SessionError::Frames { pid: process.pid(), tid: NO_THREAD });
                }
                if is_whole(&frame) {
                    found.insert(frame.ip_at, frame);
                }
            }
        }
        start += PIECE;
    }
    Ok(())
}

/// Does a frame lie right below the stack pointer that it will restore?
fn is_on_its_stack(frame: &SignalFrame) -> bool {
    (1..2 * FRAME_MAX).contains(&frame.sp.0.wrapping_sub(frame.ip_at.0))
}
