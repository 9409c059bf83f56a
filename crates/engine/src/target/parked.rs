//! Signal frames on stacks that no thread is on.
//!
//! User-level threads may be preempted by a signal: the handler leaves its frame on the stack that
//! it has interrupted, and switches to another one. Such a frame is *parked*. A thread will return
//! through it later, perhaps into the bytes of a patch, or into a detour that a detach takes away.
//!
//! A process that parks frames is recognised by one that is parked when somebody takes the turn to
//! change the process. Memory is searched while the threads run. What looks like a parked frame is
//! looked at again in a pause, in which the stacks of threads are known. From then on
//! [`crate::target::thread_positions`] finds parked frames in each pause.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use sidestep_isa::Va;
use sidestep_sys::arch::{self, SignalFrame};
use sidestep_sys::{Mapping, Process, Stopped};

use crate::error::SessionError;
use crate::target::hold;
use crate::target::remote::{mappings, stopped_mappings};

/// Most bytes of memory in use that are searched: 20 ms at most. Small mappings come first, since
/// stacks are small.
const USED_MAX: u64 = 64 << 20;
/// Most bytes of address space that are searched: what is larger are reservations and heaps.
const SPACE_MAX: u64 = 4 << 30;
/// Signals 32 and 33, whose handlers are the C library's (cancellation, change of user ids): they
/// switch no stacks.
const OF_THE_C_LIBRARY: u64 = 3 << 31;
/// Bytes that are read together.
const PIECE: u64 = 1 << 20;
/// More bytes than a signal frame has, with what the kernel leaves free below the interrupted stack
/// pointer.
pub(crate) const FRAME_MAX: u64 = 64 << 10;

/// Bytes of a stack that a probe's handler uses.
const HANDLER_MAX: u64 = 4096;

/// Finds out whether a process parks frames, and notes that in its handle. It must not be stopped.
///
/// # Errors
/// The process has ended, or does not stop.
pub(crate) fn look_for(process: &Process) -> Result<(), SessionError> {
    let suspected =
        process.caught() & !OF_THE_C_LIBRARY != 0 && !search(process, &mappings(process)?, &BTreeSet::new()).is_empty();
    let parks = suspected && {
        let stopped = hold::stop(process)?;
        !frames(&stopped, &stopped_mappings(&stopped)?).is_empty()
    };
    process.set_parks_frames(parks);
    Ok(())
}

/// The parked frames of a process whose threads all stand.
pub(crate) fn frames(stopped: &Stopped, mappings: &[Mapping]) -> Vec<SignalFrame> {
    // What lies on a stack below its pointer is over, but other stacks may be in the same mapping.
    // A mapping with the thread's own block is the stack of this thread alone.
    let (mut in_use, mut pointers) = (BTreeSet::new(), Vec::new());
    for thread in stopped.threads() {
        let (sp, block) = (thread.regs.sp(), thread.regs.thread_pointer());
        pointers.push(sp);
        let stack = mappings.iter().find(|mapping| mapping.contains(sp));
        if let Some(stack) = stack.filter(|stack| stack.contains(block) || stack.name == "[stack]") {
            in_use.insert(stack.start);
        }
    }
    let mut all = search(stopped.process(), mappings, &in_use);
    // What is above a frame was in use while the frame was: a frame around a stack pointer is over.
    // The thread may have been deeper then, in a handler of ours.
    let is_around = |frame: &SignalFrame, sp: &Va| frame.ip_at < *sp && sp.0 <= frame.sp.0 + HANDLER_MAX;
    all.retain(|frame| !pointers.iter().any(|sp| is_around(frame, sp)));
    all
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

/// What looks like a signal frame of a normal stack in the memory that may be a stack, without the
/// mappings that begin at `left_out`.
fn search(process: &Process, mappings: &[Mapping], left_out: &BTreeSet<Va>) -> Vec<SignalFrame> {
    let may_be = |m: &&Mapping| {
        let known = m.name == "[stack]" || m.name.to_string_lossy().starts_with("/memfd:");
        m.read && m.write && !known && !left_out.contains(&m.start)
    };
    let len = |range: &Range<u64>| range.end - range.start;
    let mut ranges: Vec<Range<u64>> = mappings.iter().filter(may_be).map(|m| m.start.0..m.end.0).collect();
    ranges.sort_by_key(len);
    let (mut used, mut space) = (USED_MAX, SPACE_MAX);
    let mut found = BTreeMap::new();
    for range in ranges {
        let Some(left) = space.checked_sub(len(&range)) else { break };
        space = left;
        for part in process.used_pages(&range) {
            let Some(left) = used.checked_sub(len(&part)) else { return found.into_values().collect() };
            used = left;
            look_at(process, &part, &mut found);
        }
    }
    found.into_values().collect()
}

/// Adds what looks like a signal frame in a part of memory, by the address of its instruction
/// pointer. Pieces overlap, so that no frame lies across a border.
fn look_at(process: &Process, part: &Range<u64>, found: &mut BTreeMap<Va, SignalFrame>) {
    let mut start = part.start;
    let mut bytes = Vec::new();
    while start < part.end {
        let end = part.end.min(start + PIECE + FRAME_MAX);
        bytes.resize((end - start) as usize, 0);
        if process.read(Va(start), &mut bytes).is_ok() {
            // No thread has its stack pointer at 0, so no frame on an alternate stack counts.
            let frames = arch::signal_frames(&bytes, Va(start), Va(0), Va(0));
            let is_whole = |frame: &SignalFrame| arch::is_whole(frame, |at| process.read_word(at).ok());
            let frames = frames.into_iter().filter(|frame| is_on_its_stack(frame) && is_whole(frame));
            found.extend(frames.map(|frame| (frame.ip_at, frame)));
        }
        start += PIECE;
    }
}

/// Does a frame lie right below the stack pointer that it will restore?
fn is_on_its_stack(frame: &SignalFrame) -> bool {
    (1..2 * FRAME_MAX).contains(&frame.sp.0.wrapping_sub(frame.ip_at.0))
}
