//! What the program blocks of signals of ours, where no guard sees the ends of signal handlers.
//!
//! A signal of ours must not be blocked. In its place the kernel blocks a *stand-in*, a signal that
//! nobody uses, wherever the program has asked for a mask: in threads, actions and calls that wait.
//! The kernel puts masks back at the ends of handlers and of such calls, gives them to new threads
//! and to the handlers of signals, and the stand-ins come along. So there is nothing to remember
//! and nothing to become wrong.
//!
//! What the program itself blocks of the stand-ins has no place in such a mask. Programs block all
//! signals that nobody uses or none of them, so one of these that is no stand-in says it for all. A
//! stand-in that a program treats otherwise is its own from then on, and stands for nothing.

use crate::arch::STAND_INS;
use crate::signals::{SIGNALS, set_of};

/// Whether a guard of ours sees each signal handler end. Where it does not, there are stand-ins.
pub const SEES_HANDLERS_END: bool = STAND_INS.is_none();

/// The signals that nobody uses, as sets of one.
#[derive(Clone, Copy, Debug)]
pub struct StandIns {
    /// For each of [`SIGNALS`], the one that stands for it.
    pub of: [u64; SIGNALS.len()],
    /// Never blocked in a mask with stand-ins: one that blocks it was made by the program alone,
    /// which a handler can do by the mask in its frame.
    pub never: u64,
    /// Left to the program, which treats all others like this one.
    pub like: u64,
}

/// What the masks of a process depend on.
#[derive(Clone, Copy, Debug)]
pub struct Masks {
    /// The signals that are ours.
    pub ours: u64,
    /// The stand-ins that the program uses itself.
    pub own: u64,
}

impl StandIns {
    /// The signals that the program is not told of as they are blocked.
    #[inline(always)]
    const fn hidden(&self, masks: Masks) -> u64 {
        let (mut hidden, mut index) = (0, 0);
        while index < SIGNALS.len() {
            if masks.ours & set_of(SIGNALS[index]) != 0 {
                hidden |= self.of[index] | self.never;
            }
            index += 1;
        }
        hidden & !masks.own
    }

    /// As [`Masks::kept`].
    #[inline(always)]
    #[must_use]
    pub const fn kept(&self, masks: Masks, set: u64) -> u64 {
        let hidden = self.hidden(masks);
        let (mut kept, mut index) = (set & !(masks.ours | hidden), 0);
        while index < SIGNALS.len() {
            if masks.ours & set & set_of(SIGNALS[index]) != 0 {
                kept |= self.of[index] & hidden;
            }
            index += 1;
        }
        kept
    }

    /// As [`Masks::told`].
    #[inline(always)]
    #[must_use]
    pub const fn told(&self, masks: Masks, mask: u64) -> u64 {
        if self.is_programs(masks, mask) {
            return mask;
        }
        let hidden = self.hidden(masks);
        let (mut told, mut index) = (mask & !hidden, 0);
        if mask & self.like != 0 {
            told |= hidden;
        }
        while index < SIGNALS.len() {
            if mask & hidden & self.of[index] != 0 {
                told |= set_of(SIGNALS[index]);
            }
            index += 1;
        }
        told
    }

    /// Was the mask made by the program alone?
    #[inline(always)]
    const fn is_programs(&self, masks: Masks, mask: u64) -> bool {
        mask & self.never & self.hidden(masks) != 0
    }

    /// As [`Masks::uses`].
    #[inline(always)]
    #[must_use]
    pub const fn uses(&self, set: u64) -> u64 {
        let (mut all, mut index) = (self.never, 0);
        while index < SIGNALS.len() {
            all |= self.of[index];
            index += 1;
        }
        all & if set & self.like != 0 { !set } else { set }
    }
}

impl Masks {
    /// What the kernel blocks where the program blocks a set. Bit by bit: changes of masks are the
    /// same for both.
    #[inline(always)]
    #[must_use]
    pub const fn kept(self, set: u64) -> u64 {
        match &STAND_INS {
            Some(all) => all.kept(self, set),
            None => set & !self.ours,
        }
    }

    /// What the program blocks where the kernel blocks this. Without stand-ins the mask does not
    /// say it of signals of ours.
    #[inline(always)]
    #[must_use]
    pub const fn told(self, mask: u64) -> u64 {
        match &STAND_INS {
            Some(all) => all.told(self, mask),
            None => mask,
        }
    }

    /// The mask with stand-ins, if the program has made it alone.
    #[inline(always)]
    #[must_use]
    pub const fn normal(self, mask: u64) -> u64 {
        match &STAND_INS {
            Some(all) if all.is_programs(self, mask) => all.kept(self, mask),
            _ => mask,
        }
    }

    /// The stand-ins that a program uses itself that blocks or handles this set.
    #[inline(always)]
    #[must_use]
    pub const fn uses(set: u64) -> u64 {
        match &STAND_INS {
            Some(all) => all.uses(set),
            None => 0,
        }
    }
}
