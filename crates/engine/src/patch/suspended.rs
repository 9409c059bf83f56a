//! Signal frames on stacks that no thread is on. A scheduler in the program preempts a user-level
//! thread in a signal's handler, by a switch to another stack. The frame of that signal stays on
//! the stack of the preempted thread, which goes on through the frame later. So the instruction
//! pointer in the frame counts like that of a thread: the frame is moved out of bytes that are
//! about to change, and code does not go away before nobody returns there.
//!
//! Frames are searched for in all private memory that the program has written. A frame on an
//! alternate signal stack counts only for a thread that is on that stack, as the next signal
//! overwrites the frame. A frame that is over looks the same until another one overwrites a part of
//! it. To move such a frame changes only bytes that nobody reads: the selectors, the flags and an
//! address inside a site or in our code stand there together, which nothing else does. Code does
//! not wait for a frame that is over ([`roots`]).

use std::ops::Range;
use std::time::{Duration, Instant};

use sidestep_isa::Va;
use sidestep_sys::arch::{self, SignalFrame};
use sidestep_sys::{Mapping, Process, Stopped};

use crate::error::SessionError;
use crate::patch::detach::Journal;
use crate::patch::hold::Hold;
use crate::patch::thread_positions::{self, Place, Position};
use crate::target::remote::{mappings, stopped_mappings};

mod roots;

pub(crate) use roots::{Roots, in_use};

/// Bytes that are read at a time.
const CHUNK: u64 = 256 << 10;
/// A frame takes less, from the first word that is looked at to the last.
const FRAME: u64 = 512;
/// Address space of a mapping, in bytes. Larger mappings are not searched before a change: such a
/// search takes longer than the change. No scheduler makes stacks of that size.
const LARGE: u64 = 1 << 30;
/// The same before code goes away, which is searched for while the program runs.
const HUGE: u64 = 64 << 30;
/// How long such threads get to leave our code.
const PATIENCE: Duration = Duration::from_secs(3);

/// Has the program frames on stacks that no thread is on?
pub(crate) fn are_there(hold: &mut Hold<'_>) -> Result<bool, SessionError> {
    if !hold.is_running() {
        return Ok(false);
    }
    let process = hold.process();
    let maps = mappings(&process)?;
    if search(&process, &maps, LARGE, |_| true).is_empty() {
        return Ok(false);
    }
    hold.stopped("sites", |stopped| Ok(!positions(stopped, &stopped_mappings(stopped)?).is_empty()))
}

/// All of them.
pub(crate) fn positions(stopped: &Stopped, maps: &[Mapping]) -> Vec<Position> {
    let on_stacks = Stacks::of(stopped, maps);
    let mut frames = search(stopped.process(), maps, LARGE, |_| true);
    frames.retain(|frame| !on_stacks.have(frame.ip_at));
    frames.into_iter().map(|frame| Position { place: Place::Suspended { frame }, ip: frame.ip }).collect()
}

/// Those that lead to any of some addresses in our code. The program may run meanwhile.
pub(crate) fn that_lead_to(process: &Process, code: &[Range<u64>]) -> Result<Vec<SignalFrame>, SessionError> {
    Ok(search(process, &mappings(process)?, HUGE, |frame| leads_to(process, code, frame)))
}

/// Frames of faults and traps are left out. The agent's handler of those is not over as long as the
/// frame is in use: where that handler was preempted, another frame leads to the handler. But what
/// is left of such frames is on most stacks that have hit a trap.
fn leads_to(process: &Process, code: &[Range<u64>], frame: &SignalFrame) -> bool {
    code.iter().any(|range| range.contains(&frame.ip.0)) && !thread_positions::is_of_fault(process, frame)
}

/// Takes all of them out of our code, to which no site leads any more. `false`: one does not leave.
pub(crate) fn leave(hold: &mut Hold<'_>, journal: &Journal) -> Result<bool, SessionError> {
    let process = hold.process();
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    let mut over: Vec<SignalFrame> = Vec::new();
    // One that went on during a search may stand elsewhere: so two in sequence find none.
    let mut quiet = 0;
    loop {
        let all = search(&process, &mappings(&process)?, HUGE, |_| true);
        if all.is_empty() {
            return Ok(true);
        }
        let left = hold.stopped("restoring", |stopped| move_all(stopped, journal, &all, &over))?;
        if left.are_none() {
            quiet += 1;
            if quiet == 2 || !left.suspended {
                return Ok(true);
            }
            continue;
        }
        quiet = 0;
        // They have been there since before the search: whoever leaves our code does not come back.
        let used = in_use(&process, &left.unmoved, &left.roots)?;
        let mut waits = left.thread;
        for (frame, used) in left.unmoved.into_iter().zip(used) {
            waits |= used;
            if !used {
                over.push(frame);
            }
        }
        if waits {
            if begin.elapsed() > PATIENCE {
                return Ok(false);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

/// What a pause has found of frames and threads that lead to our code.
struct Left {
    /// A thread is in there that cannot be moved.
    thread: bool,
    /// Some frame was moved, or has gone on since the search.
    changed: bool,
    /// Frames that cannot be moved.
    unmoved: Vec<SignalFrame>,
    /// Some frame, whatever it leads to, is on a stack that no thread is on.
    suspended: bool,
    roots: Roots,
}

impl Left {
    fn are_none(&self) -> bool {
        !self.thread && !self.changed && self.unmoved.is_empty()
    }
}

/// Moves frames and threads out of our code, but for frames that are over.
fn move_all(
    stopped: &mut Stopped,
    journal: &Journal,
    frames: &[SignalFrame],
    over: &[SignalFrame],
) -> Result<Left, SessionError> {
    let maps = stopped_mappings(stopped)?;
    let process = stopped.process().clone();
    let on_stacks = Stacks::of(stopped, &maps);
    let suspended: Vec<&SignalFrame> = frames.iter().filter(|frame| !on_stacks.have(frame.ip_at)).collect();
    let mut left = Left {
        thread: false,
        changed: false,
        unmoved: Vec::new(),
        suspended: !suspended.is_empty(),
        roots: Roots::of(stopped),
    };
    let mut all: Vec<Position> = thread_positions::positions(stopped, &maps)?;
    all.retain(|position| journal.code.iter().any(|range| range.contains(&position.ip.0)));
    for frame in suspended.into_iter().filter(|f| leads_to(&process, &journal.code, f) && !over.contains(f)) {
        if process.read_word(frame.ip_at).ok() == Some(frame.ip.0) {
            all.push(Position { place: Place::Suspended { frame: *frame }, ip: frame.ip });
        } else {
            left.changed = true;
        }
    }
    for position in &all {
        match (journal.original_of(stopped, position), position.place) {
            (Some((_, original)), place) => {
                thread_positions::move_back(stopped, position, original)?;
                left.changed |= matches!(place, Place::Suspended { .. });
            }
            (None, Place::Suspended { frame }) => left.unmoved.push(frame),
            (None, _) => left.thread = true,
        }
    }
    Ok(left)
}

/// Signal frames that lead to code of the program or ours, in private memory that the program has
/// written: in mappings of at most `largest` bytes. What cannot be read has none.
fn search(
    process: &Process,
    maps: &[Mapping],
    largest: u64,
    is_meant: impl Fn(&SignalFrame) -> bool,
) -> Vec<SignalFrame> {
    let code: Vec<Range<u64>> = maps.iter().filter(|m| m.exec).map(|m| m.start.0..m.end.0).collect();
    let is_code = |ip: Va| code[..code.partition_point(|c| c.start <= ip.0)].last().is_some_and(|c| c.contains(&ip.0));
    let mut found = Vec::new();
    let mut bytes = vec![0; (CHUNK + 2 * FRAME) as usize];
    let is_memory = |m: &&Mapping| m.private && m.read && m.write && m.end.0 - m.start.0 <= largest;
    for mapping in maps.iter().filter(is_memory) {
        for part in process.resident_parts(mapping).unwrap_or_default() {
            for at in part.clone().step_by(CHUNK as usize) {
                let chunk = at..part.end.min(at + CHUNK);
                let start = chunk.start.saturating_sub(FRAME).max(mapping.start.0);
                let end = (chunk.end + FRAME).min(mapping.end.0);
                let bytes = &mut bytes[..(end - start) as usize];
                if process.read(Va(start), bytes).is_err() {
                    continue;
                }
                let frames = arch::signal_frames(bytes, Va(start), Va(0)).into_iter();
                found.extend(frames.filter(|f| f.whole && chunk.contains(&f.ip_at.0) && is_code(f.ip) && is_meant(f)));
            }
        }
    }
    found
}

/// The stacks that threads are on. Their frames are found by the threads' stack pointers.
struct Stacks(Vec<Range<u64>>);

impl Stacks {
    fn of(stopped: &Stopped, maps: &[Mapping]) -> Stacks {
        let stack = |thread: &sidestep_sys::Thread| {
            let (sp, pointer) = (thread.regs.sp(), thread.regs.thread_pointer());
            let mapping = maps.iter().find(|m| m.contains(sp))?;
            // Below the stack pointer nothing is in use, if the mapping is one stack: the first
            // thread's, or one with the thread's control block on top.
            let is_one = mapping.name == "[stack]" || pointer > sp && mapping.contains(pointer);
            let start = if is_one { mapping.start.0 } else { sp.0 };
            Some(start..thread_positions::stack_end(maps, sp, pointer)?)
        };
        Stacks(stopped.threads().iter().filter_map(stack).collect())
    }

    fn have(&self, at: Va) -> bool {
        self.0.iter().any(|stack| stack.contains(&at.0))
    }
}
