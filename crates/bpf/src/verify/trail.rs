//! Checkpoints of all paths: what was known there, and what later instructions turned out to need
//! of it.
//!
//! A checkpoint whose paths have all ended is proof that every state it covers is safe. It covers
//! the more, the less is needed of it: registers that nobody reads may hold anything, and numbers
//! that decide no branch, offset or length may be any. So each read is noted at the checkpoints it
//! reaches back to, until one where the register was written since.

use super::state::{Needs, State};
use super::value::{FRAME_BITS, MAX_FRAMES, RegSet, bit};

/// Checkpoints whose states are kept at most.
const MAX_STATES: usize = 16_384;

/// What was written since a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub regs: RegSet,
    /// Slots of which all bytes were.
    pub slots: [u64; MAX_FRAMES],
}

#[derive(Debug)]
struct Checkpoint {
    /// Dropped when all paths have ended and nobody compares with it.
    state: Option<State>,
    frames: usize,
    parent: Option<usize>,
    depth: usize,
    needs: Needs,
    /// Since the parent.
    written: Written,
    /// Paths from here that have not ended, and checkpoints with such.
    open: usize,
    listed: bool,
    hits: usize,
    misses: usize,
}

/// All checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    checkpoints: Vec<Checkpoint>,
    kept: usize,
}

impl Trail {
    /// A new checkpoint on the path that has come from `parent`; `None` if there are too many.
    pub fn add(&mut self, state: State, parent: Option<usize>, written: Written) -> Option<usize> {
        if self.kept == MAX_STATES {
            return None;
        }
        self.kept += 1;
        let depth = parent.map_or(0, |p| self.checkpoints[p].depth + 1);
        self.checkpoints.push(Checkpoint {
            frames: state.frames.len(),
            state: Some(state),
            parent,
            depth,
            needs: Needs::default(),
            written,
            open: 1,
            listed: true,
            hits: 0,
            misses: 0,
        });
        Some(self.checkpoints.len() - 1)
    }

    /// How many checkpoints lie before this one.
    pub fn depth(&self, at: usize) -> usize {
        self.checkpoints[at].depth
    }

    /// Another path begins here.
    pub fn open(&mut self, at: usize) {
        self.checkpoints[at].open += 1;
    }

    /// A path that began here has ended.
    pub fn close(&mut self, at: usize) {
        let mut next = Some(at);
        while let Some(at) = next {
            let checkpoint = &mut self.checkpoints[at];
            checkpoint.open -= 1;
            if checkpoint.open > 0 {
                return;
            }
            next = checkpoint.parent;
            self.forget(at);
        }
    }

    /// Whether all paths from here have ended.
    pub fn is_done(&self, at: usize) -> bool {
        self.checkpoints[at].open == 0
    }

    /// What was known here.
    pub fn state(&self, at: usize) -> Option<&State> {
        self.checkpoints[at].state.as_ref()
    }

    /// What is needed of it, as far as is known.
    pub fn needs(&self, at: usize) -> Needs {
        self.checkpoints[at].needs
    }

    /// Notes that the checkpoint spared a path.
    pub fn hit(&mut self, at: usize) {
        self.checkpoints[at].hits += 1;
    }

    /// Notes that it did not. Returns whether it is worth comparing with further on; calls of
    /// callbacks are for longer, as their rounds end only by such.
    pub fn miss(&mut self, at: usize, calls_back: bool) -> bool {
        let checkpoint = &mut self.checkpoints[at];
        checkpoint.misses += 1;
        checkpoint.listed = checkpoint.misses <= 3 * checkpoint.hits + if calls_back { 64 } else { 8 };
        let listed = checkpoint.listed;
        self.forget(at);
        listed
    }

    fn forget(&mut self, at: usize) {
        let checkpoint = &mut self.checkpoints[at];
        if checkpoint.open == 0 && !checkpoint.listed && checkpoint.state.take().is_some() {
            self.kept -= 1;
        }
    }

    /// A register is read on the path that has come from `at` and has written `written` since.
    pub fn read_reg(&mut self, at: Option<usize>, written: &Written, mut frame: usize, reg: usize) {
        let (mut at, mut written) = (at, written.regs);
        while written & bit(frame, reg) == 0 {
            let Some(checkpoint) = at.map(|at| &mut self.checkpoints[at]) else { return };
            // An argument of a call since: there it was the caller's register.
            frame = frame.min(checkpoint.frames - 1);
            let bit = bit(frame, reg);
            if checkpoint.needs.regs & bit != 0 {
                return;
            }
            checkpoint.needs.regs |= bit;
            (at, written) = (checkpoint.parent, checkpoint.written.regs);
        }
    }

    /// The numbers of these registers at `at` matter.
    pub fn exact(&mut self, mut at: Option<usize>, mut origins: RegSet) {
        while origins != 0 {
            let Some(checkpoint) = at.map(|at| &mut self.checkpoints[at]) else { return };
            let mut new = origins & !checkpoint.needs.exact;
            checkpoint.needs.exact |= new;
            origins = 0;
            while new != 0 {
                let at = new.trailing_zeros() as usize;
                new &= new - 1;
                let frame = checkpoint.state.as_ref().and_then(|s| s.frames.get(at / FRAME_BITS));
                origins |= frame.map_or(0, |f| f.regs[at % FRAME_BITS].origin);
            }
            at = checkpoint.parent;
        }
    }

    /// A slot of the stack is read, as [`Trail::read_reg`]. Its number matters.
    pub fn read_slot(&mut self, at: Option<usize>, written: &Written, frame: usize, slot: usize) {
        let (mut at, mut written) = (at, *written);
        while written.slots[frame] >> slot & 1 == 0 {
            let Some(checkpoint) = at.map(|at| &mut self.checkpoints[at]) else { return };
            if frame >= checkpoint.frames || checkpoint.needs.slots[frame] >> slot & 1 == 1 {
                return;
            }
            checkpoint.needs.slots[frame] |= 1 << slot;
            let origin = checkpoint.state.as_ref().map_or(0, |s| s.frames[frame].slot(slot).value.origin);
            (at, written) = (checkpoint.parent, checkpoint.written);
            self.exact(at, origin);
        }
    }

    /// From `from` back to `to` paths rest on a checkpoint that is not done: everything matters
    /// there.
    pub fn need_all(&mut self, from: Option<usize>, to: usize) {
        let mut next = from;
        while let Some(at) = next {
            self.checkpoints[at].needs = Needs::ALL;
            if at == to {
                return;
            }
            next = self.checkpoints[at].parent;
        }
    }
}
