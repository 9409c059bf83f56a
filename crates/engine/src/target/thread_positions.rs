//! Where every stopped thread is: its instruction pointer, and those that signal frames on its
//! stack will restore.

use std::collections::BTreeMap;

use sidestep_isa::Va;
use sidestep_sys::arch::{self, Caller, SignalFrame};
use sidestep_sys::{Mapping, Stopped};
use sidestep_wire::signals::{DEALT_WITH, set_of};

use crate::error::SessionError;
use crate::memory::layout::PAGE;
use crate::target::signals::{FAULTS, TRAPS};

/// Most bytes of one stack that are looked at.
const STACK_MAX: u64 = 8 << 20;
/// Most bytes of stacks that are looked at, per thread: its own stack and those that signals have
/// interrupted. So many threads more may each have as much.
const BYTES_PER_THREAD: u64 = 2 * STACK_MAX;
const MORE_THREADS: u64 = 16;
/// A signal frame has more bytes.
const FRAME_MIN: u64 = 512;
/// More bytes than a signal frame has from its start to its end.
const FRAME_MAX: u64 = 64 << 10;
/// More bytes than our handler uses below the frame of its signal.
const HANDLER_MAX: u64 = 16 << 10;
/// Offset of `si_addr` in `siginfo_t`: behind three numbers, aligned as an address.
const SI_ADDR: u64 = 12u64.next_multiple_of(size_of::<arch::Word>() as u64);

/// A place from which a thread will go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The thread's own instruction pointer.
    Thread { tid: i32 },
    /// The instruction pointer that a signal frame will restore.
    SignalFrame { tid: i32, frame: SignalFrame },
}

impl Place {
    /// The thread.
    pub fn tid(&self) -> i32 {
        match *self {
            Place::Thread { tid } | Place::SignalFrame { tid, .. } => tid,
        }
    }
}

/// A place and the address there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub place: Place,
    pub ip: Va,
}

impl Position {
    /// Is a system call right before it, whose address is still in a register
    /// ([`arch::Regs::is_behind_call`])?
    pub fn is_behind_call(&self, stopped: &Stopped) -> bool {
        match self.place {
            Place::Thread { tid } => {
                stopped.threads().iter().any(|thread| thread.tid == tid && thread.regs.is_behind_call())
            }
            Place::SignalFrame { frame, .. } => frame.call_at.is_some(),
        }
    }

    /// The caller of the vDSO's function, if the position is in that function, in front of the
    /// instruction that enters the kernel ([`arch::caller`]).
    pub fn caller(&self, stopped: &Stopped) -> Option<Caller> {
        let (sp, frame_pointer) = match self.place {
            Place::Thread { tid } => {
                let thread = stopped.threads().iter().find(|t| t.tid == tid && !t.regs.may_wait())?;
                (thread.regs.sp(), thread.regs.frame_pointer())
            }
            Place::SignalFrame { frame, .. } => (frame.sp, frame.frame_pointer),
        };
        arch::caller(stopped.process(), self.ip, sp, frame_pointer)
    }
}

/// All positions of all threads.
///
/// Signal frames are recognised by the word of segment selectors behind the saved flags: a
/// conservative scan of the stack from the stack pointer upwards, and of the stacks that the frames
/// found interrupted.
///
/// Frames may be made up. More of them than a program has, or more bytes of stacks, are an error: a
/// position that is left out would be a thread in memory that is gone. What is left of frames of
/// our handler is left out, where nothing is on the way back through it ([`DEALT_WITH`]).
pub(crate) fn positions(stopped: &Stopped, mappings: &[Mapping]) -> Result<Vec<Position>, SessionError> {
    look(stopped, mappings, |_| ())
}

/// As [`positions`]; `each` is given all stacks that are looked at, in whole words.
pub(crate) fn look(
    stopped: &Stopped,
    mappings: &[Mapping],
    mut each: impl FnMut(&[u8]),
) -> Result<Vec<Position>, SessionError> {
    let mut all = Vec::new();
    let mut left = (stopped.threads().len() as u64 + MORE_THREADS) * BYTES_PER_THREAD;
    let mut frames_left = left / FRAME_MIN;
    let too_many = |tid: i32| SessionError::Frames { pid: stopped.process().pid(), tid };
    for thread in stopped.threads() {
        let (tid, first) = (thread.tid, all.len());
        all.push(Position { place: Place::Thread { tid }, ip: thread.regs.ip() });
        let mut todo = vec![(thread.regs.sp(), thread.regs.frame_pointer())];
        let mut seen = Windows::default();
        while let Some((sp, frame_pointer)) = todo.pop() {
            if seen.contain(sp.0) {
                continue;
            }
            let Some(end) = stack_end(mappings, sp, thread.regs.thread_pointer()) else { continue };
            let start = sp.0 & !7;
            let end = seen.add(start, end);
            left = left.checked_sub((end - start).max(PAGE)).ok_or_else(|| too_many(tid))?;
            let mut bytes = vec![0; (end - start) as usize];
            if stopped.read(Va(start), &mut bytes).is_err() {
                continue; // unmapped or a guard: nothing there to return to
            }
            each(&bytes);
            let frames = arch::signal_frames(&bytes, Va(start), sp, frame_pointer);
            frames_left = frames_left.checked_sub(frames.len() as u64).ok_or_else(|| too_many(tid))?;
            for frame in frames {
                all.push(Position { place: Place::SignalFrame { tid, frame }, ip: frame.ip });
                todo.push((frame.sp, frame.frame_pointer));
            }
        }
        drop_remains(mappings, &mut all, (first, thread.regs.sp()));
    }
    Ok(all)
}

/// Drops what is left of frames of signals that our handler has dealt with. It stays on the stack
/// until something else is written there, and would keep a detach waiting for as long as the thread
/// is in a call. `first` and `sp`: where the positions of the thread begin, and its stack pointer.
fn drop_remains(mappings: &[Mapping], all: &mut Vec<Position>, (first, sp): (usize, Va)) {
    let mut marked = BTreeMap::new();
    for position in all.split_off(first) {
        match position.place {
            Place::SignalFrame { frame, .. } if frame.mark == DEALT_WITH => {
                marked.insert(frame.ip_at.0, (frame.start, position));
            }
            _ => all.push(position),
        }
    }
    // The thread may be on its way from the handler back through a frame, and so may be what the
    // signal of another frame has interrupted.
    let mut next = first;
    while let (Some(position), false) = (all.get(next), marked.is_empty()) {
        let sp = match position.place {
            Place::Thread { .. } => sp,
            Place::SignalFrame { frame, .. } => frame.sp,
        };
        let above = marked.range(sp.0..=sp.0.saturating_add(HANDLER_MAX + FRAME_MAX));
        let live = above.filter(|(_, (start, _))| returns_through(mappings, position.ip, sp, *start));
        let live: Vec<u64> = live.map(|(at, _)| *at).collect();
        all.extend(live.iter().filter_map(|at| marked.remove(at)).map(|(_, position)| position));
        next += 1;
    }
}

/// May something at `ip` be on the way from our handler back through a frame that starts at `start`
/// and whose saved instruction pointer is above `sp`? `sp` is in the frame at the system call that
/// ends the handler, and right below the frame in the agent, whose mapping has no name.
fn returns_through(mappings: &[Mapping], ip: Va, sp: Va, start: Va) -> bool {
    let is_nameless = || mapping_at(mappings, ip).is_some_and(|mapping| mapping.name.is_empty());
    sp >= start || sp.0 >= start.0.saturating_sub(HANDLER_MAX) && is_nameless()
}

/// The parts of memory that were looked at for a thread: ends by starts.
#[derive(Default)]
struct Windows(BTreeMap<u64, u64>);

impl Windows {
    fn contain(&self, at: u64) -> bool {
        self.0.range(..=at).next_back().is_some_and(|(_, end)| at < *end)
    }

    /// Adds a part that starts where none is, and gives its end. It ends inside the next one, so
    /// that no frame lies across the border.
    fn add(&mut self, start: u64, end: u64) -> u64 {
        let next = self.0.range(start..).next();
        let end = next.map_or(end, |(next, _)| end.min(next.saturating_add(FRAME_MAX)));
        self.0.insert(start, end);
        end
    }
}

/// The mapping of an address, of mappings in ascending order.
fn mapping_at(mappings: &[Mapping], at: Va) -> Option<&Mapping> {
    let next = mappings.partition_point(|m| m.start <= at);
    mappings[..next].last().filter(|m| m.contains(at))
}

/// End of the stack that `sp` points into: the thread control block, if it lies above on the same
/// mapping (that is where C libraries put it), else the end of the mapping.
fn stack_end(mappings: &[Mapping], sp: Va, thread_pointer: Va) -> Option<u64> {
    let mapping = mapping_at(mappings, sp).filter(|m| m.read && m.write)?;
    let end = if (sp.0..mapping.end.0).contains(&thread_pointer.0) { thread_pointer.0 } else { mapping.end.0 };
    Some(end.min(sp.0.saturating_add(STACK_MAX)) & !7)
}

/// Is it where an instruction has faulted, and its signal's handler runs?
pub(crate) fn has_faulted(stopped: &Stopped, position: &Position) -> bool {
    let Place::SignalFrame { frame, .. } = position.place else { return false };
    let Some(info_at) = frame.info_at else { return false };
    let info: Result<[i32; 3], _> = stopped.read_pod(info_at);
    // `si_signo`, `si_errno`, `si_code`: above 0 if the kernel has raised it.
    let raised = |[signal, _, code]: [i32; 3]| code > 0 && (FAULTS | TRAPS) & set_of(signal) != 0;
    info.is_ok_and(|info| (1..=64).contains(&info[0]) && raised(info))
}

/// Where the trap is that a thread at `ip` has executed: the kernel reports a trap at its address,
/// or behind it.
pub(crate) fn trap_places(Va(ip): Va) -> [u64; 2] {
    [ip, ip.wrapping_sub(1)]
}

/// Is it where a trap was executed, and the handler of its signal runs?
pub(crate) fn has_trapped(stopped: &Stopped, position: &Position) -> bool {
    let Place::SignalFrame { frame: SignalFrame { info_at: Some(info_at), .. }, .. } = position.place else {
        return false;
    };
    let signal: Result<i32, _> = stopped.read_pod(info_at);
    has_faulted(stopped, position) && signal.is_ok_and(|signal| set_of(signal) == TRAPS)
}

/// Moves a position to another address.
pub(crate) fn move_to(stopped: &mut Stopped, position: &Position, to: Va) -> Result<(), crate::SessionError> {
    match position.place {
        Place::Thread { tid } => stopped.set_ip(tid, to)?,
        Place::SignalFrame { frame, .. } => stopped.process().write_word(frame.ip_at, to.0)?,
    }
    Ok(())
}

/// Moves a position to another address, with the registers of its [`Position::caller`].
pub(crate) fn go_back(
    stopped: &mut Stopped,
    position: &Position,
    caller: &Caller,
    to: Va,
) -> Result<(), crate::SessionError> {
    match position.place {
        Place::Thread { tid } => Ok(stopped.go_back(tid, caller, to)?),
        Place::SignalFrame { frame, .. } => Ok(frame.go_back(stopped.process(), caller, to)?),
    }
}

/// Moves a position to the original of where it is. What the signal of a frame says of its place
/// goes with it, since its handler may not have looked yet. So does the address that a system call
/// has left in a register.
pub(crate) fn move_back(stopped: &mut Stopped, position: &Position, to: Va) -> Result<(), crate::SessionError> {
    if let (true, Place::SignalFrame { frame: SignalFrame { info_at: Some(info_at), .. }, .. }) =
        (has_faulted(stopped, position), position.place)
    {
        let addr_at = Va(info_at.0 + SI_ADDR);
        if stopped.process().read_word(addr_at)? == position.ip.0 {
            stopped.process().write_word(addr_at, to.0)?;
        }
    }
    match position.place {
        Place::Thread { tid } if position.is_behind_call(stopped) => Ok(stopped.set_behind_call(tid, to)?),
        Place::SignalFrame { frame: SignalFrame { call_at: Some(at), .. }, .. } => {
            stopped.process().write_word(at, to.0)?;
            move_to(stopped, position, to)
        }
        Place::Thread { .. } | Place::SignalFrame { .. } => move_to(stopped, position, to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame at an address, that one has interrupted with this stack pointer.
    fn frame(start: u64, sp: u64, mark: u32) -> Position {
        let frame = SignalFrame {
            start: Va(start),
            ip_at: Va(start + 176),
            ip: AGENT,
            sp: Va(sp),
            call_at: None,
            mask_at: Va(0),
            mask_copy: 0,
            frame_pointer: Va(0),
            info_at: None,
            mark,
        };
        Position { place: Place::SignalFrame { tid: 1, frame }, ip: AGENT }
    }

    const AGENT: Va = Va(0x5000_0000);
    const LIBRARY: Va = Va(0x6000_0000);

    /// How many positions are left of a thread at an address.
    fn left(ip: Va, sp: u64, frames: &[Position]) -> usize {
        let code = |start: Va, name: &str| Mapping {
            start,
            end: start.offset(0x1000),
            read: true,
            write: false,
            exec: true,
            offset: 0,
            inode: 0,
            name: name.into(),
        };
        let mut all = vec![Position { place: Place::Thread { tid: 1 }, ip }];
        all.extend(frames);
        drop_remains(&[code(AGENT, ""), code(LIBRARY, "/lib/c.so")], &mut all, (0, Va(sp)));
        all.len()
    }

    #[test]
    fn a_frame_that_our_handler_has_dealt_with_counts_on_the_way_back_through_it() {
        let (start, remains) = (0x8000, [frame(0x8000, 0x9000, DEALT_WITH)]);
        assert_eq!(left(LIBRARY, start - 0x100, &remains), 1);
        assert_eq!(left(LIBRARY, start - 0x100, &[frame(start, 0x9000, 14)]), 2);
        // At the system call that ends the handler; in the handler; elsewhere in the agent.
        assert_eq!(left(LIBRARY, start + 8, &remains), 2);
        assert_eq!(left(AGENT, start - 0x100, &remains), 2);
        assert_eq!(left(AGENT, start - HANDLER_MAX - 8, &remains), 1);
        assert_eq!(left(AGENT, start + 0x100, &remains), 1);
    }

    #[test]
    fn what_a_frame_has_interrupted_may_be_on_the_way_back_through_another_one() {
        let outer = frame(0x8000, 0x9000, DEALT_WITH);
        let inner = |mark| frame(0x6000, 0x7f00, mark);
        // The program's handler waits far below, after it has interrupted ours.
        assert_eq!(left(LIBRARY, 0x1000, &[inner(0), outer]), 3);
        assert_eq!(left(LIBRARY, 0x1000, &[inner(DEALT_WITH), outer]), 1);
        assert_eq!(left(AGENT, 0x5f00, &[inner(DEALT_WITH), outer]), 3);
    }

    #[test]
    fn a_part_ends_inside_the_next_one() {
        let mut windows = Windows::default();
        let (stack, end) = (100 << 20, 108 << 20);
        assert_eq!(windows.add(stack, end), end);
        assert!(windows.contain(stack) && windows.contain(end - 1));
        assert!(!windows.contain(stack - 8) && !windows.contain(end));
        assert_eq!(windows.add(stack - 8, end), stack + FRAME_MAX);
        assert!(windows.contain(stack - 8) && windows.contain(end - 1));
        // One that is far away is whole.
        assert_eq!(windows.add(0, STACK_MAX), STACK_MAX);
    }
}
