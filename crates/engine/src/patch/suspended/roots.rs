//! Which suspended frames may still be in use.
//!
//! To return through a frame, a thread comes back to the stack at or below the frame. So an address
//! there is in memory: the saved stack pointer, or a pointer to the block that holds it. Where no
//! word leads there, the frame is over: its stack is that of a thread that has ended, or the
//! context on the stack was saved above the frame.
//!
//! Nor does an address count behind which there are only zeros: that of the low end of a stack, for
//! who will free it.
//!
//! What the stack itself has at and below the frame does not count, since calls that are over have
//! left addresses there. That needs somebody else who knows the stack: memory of objects is known
//! to the code that is linked with it, so there all words count.

use std::collections::BTreeSet;
use std::ops::Range;

use sidestep_isa::Va;
use sidestep_sys::arch::{self, SignalFrame, Word};
use sidestep_sys::{Mapping, Process, Stopped};

use super::{CHUNK, FRAME};
use crate::error::SessionError;
use crate::target::discovery;
use crate::target::remote::mappings;

/// A handler and what it calls take less, in bytes.
const DEEP: u64 = 1 << 20;

/// The same of the block that holds a saved stack pointer.
const BLOCK: u64 = 4096;

/// What is not in memory.
pub(crate) struct Roots {
    /// Words in registers.
    registers: Vec<u64>,
    /// What the C library hides stack pointers with in a `jmp_buf`.
    guard: Option<u64>,
}

impl Roots {
    /// Those of threads that stand.
    pub fn of(stopped: &Stopped) -> Roots {
        let threads = stopped.threads();
        let pointers = threads.iter().map(|thread| thread.regs.thread_pointer()).filter(|pointer| pointer.0 != 0);
        let guard = |pointer: Va| stopped.process().read_word(pointer.offset(arch::POINTER_GUARD)).ok();
        Roots {
            registers: threads.iter().flat_map(|thread| (0..16).filter_map(|n| thread.regs.gpr(n))).collect(),
            guard: pointers.filter_map(guard).find(|guard| *guard != 0),
        }
    }

    /// A word, and what it stands for if it is hidden.
    fn values(&self, word: u64) -> [u64; 2] {
        let shown = |guard| u64::from((word as Word).rotate_right(arch::POINTER_ROTATION)) ^ guard;
        [word, self.guard.map_or(word, shown)]
    }
}

/// Of a frame.
struct Wanted {
    /// Addresses on its stack from which a thread may come to the frame.
    below: Range<u64>,
    /// Where words do not count.
    apart: Range<u64>,
}

impl Wanted {
    fn of(frame: &SignalFrame, maps: &[Mapping]) -> Option<Wanted> {
        let mapping = maps.iter().find(|m| m.contains(frame.ip_at))?;
        let at = frame.ip_at.0;
        let start = mapping.start.0.max(at.saturating_sub(DEEP));
        let end = if mapping.contains(frame.sp) { frame.sp.0 } else { at + FRAME };
        let is_of_object = mapping.inode != 0 || is_behind_object(mapping, maps);
        Some(Wanted { below: start..at + 1, apart: if is_of_object { at..end } else { start..end } })
    }
}

/// Is it the zeroed memory of an object?
fn is_behind_object(mapping: &Mapping, maps: &[Mapping]) -> bool {
    mapping.name.is_empty() && maps.iter().any(|m| m.end == mapping.start && m.write && m.inode != 0)
}

/// Which of these frames a thread may come back to. The program may run meanwhile.
pub(crate) fn in_use(process: &Process, frames: &[SignalFrame], roots: &Roots) -> Result<Vec<bool>, SessionError> {
    let maps = mappings(process)?;
    let wanted: Vec<Option<Wanted>> = frames.iter().map(|frame| Wanted::of(frame, &maps)).collect();
    let mut known: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); frames.len()];
    let Some(start) = wanted.iter().flatten().map(|wanted| wanted.below.start).min() else {
        return Ok(vec![false; frames.len()]);
    };
    let end = wanted.iter().flatten().map(|wanted| wanted.below.end).max().unwrap_or(start);
    // What we know of stacks does not make anybody come back.
    let mut ours: Vec<Range<u64>> = Vec::new();
    for found in discovery::all(process, &maps) {
        ours.extend(found.mappings(process)?.iter().map(|m| m.addr..m.addr + m.len));
    }
    let mut meet = |at: Option<u64>, word: u64| {
        for value in roots.values(word) {
            if !(start..end).contains(&value) {
                continue;
            }
            for (wanted, known) in wanted.iter().zip(&mut known) {
                let Some(Wanted { below, apart }) = wanted else { continue };
                let counts = |at: &u64| !apart.contains(at) && !ours.iter().any(|range| range.contains(at));
                if below.contains(&value) && at.as_ref().is_none_or(counts) {
                    known.insert(value);
                }
            }
        }
    };
    roots.registers.iter().for_each(|word| meet(None, *word));
    let mut bytes = vec![0; CHUNK as usize];
    for mapping in maps.iter().filter(|m| m.read && m.write) {
        for part in process.resident_parts(mapping).unwrap_or_default() {
            for at in part.clone().step_by(CHUNK as usize) {
                let bytes = &mut bytes[..CHUNK.min(part.end - at) as usize];
                if process.read(Va(at), bytes).is_err() {
                    continue;
                }
                let words = bytes.chunks_exact(size_of::<Word>());
                for (place, word) in (at..).step_by(size_of::<Word>()).zip(words) {
                    meet(Some(place), word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)));
                }
            }
        }
    }
    let has_content = |at: &u64, frame: &SignalFrame| {
        let mut bytes = vec![0; (frame.ip_at.0 + 1 - at).min(BLOCK) as usize];
        process.read(Va(*at), &mut bytes).is_ok() && bytes.iter().any(|byte| *byte != 0)
    };
    Ok(known.iter().zip(frames).map(|(known, frame)| known.iter().any(|at| has_content(at, frame))).collect())
}
