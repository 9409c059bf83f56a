//! Probes that watch only so many calls at a time ([`ProbeDesc::maxactive`]), as kretprobes do.
//!
//! Such a probe has as many places. Each holds the stack slot of the return address of a call that
//! is watched, or 0. A call may never come back (`longjmp`, the end of its thread), and then nobody
//! leaves the place; so whoever finds all of them taken looks at a few of them: one whose stack
//! slot does not hold the trampoline's address any more is free. The next call with the same slot
//! takes it, too: of the former one nothing is left.
//!
//! Between `take` and `keep` the slot does not hold that address yet, and the place is marked as
//! [`COMING`]. The highest bits of a place count who has taken it: who has found it free of a call
//! must not take it from the next one.

use core::sync::atomic::{AtomicU64, Ordering};

use sidestep_wire::{Flow, ProbeDesc};

use crate::memory::Agent;
use crate::safe_read;
use crate::shadow::kept::is_remembered;
use crate::shadow::{is_interrupted, is_watched};

/// Bit of a place, which no address of a stack slot has: the return address is about to be
/// replaced.
const COMING: u64 = 1;
/// The bits of a place that hold the stack slot: user addresses have 47.
const SLOT: u64 = (1 << 48) - 1 - COMING;
/// One in the count of who has taken it.
const TAKEN: u64 = 1 << 48;
/// How many places one call looks at when all are taken: a miss must stay cheap.
const LOOKS: u64 = 8;

/// A probe's places, behind a word that says where the next look begins.
#[derive(Clone, Copy)]
struct Places {
    base: *mut u64,
    count: u64,
}

impl Places {
    fn of(desc: &ProbeDesc) -> Places {
        Places { base: desc.places as *mut u64, count: desc.maxactive }
    }

    fn word<'a>(self, index: u64) -> &'a AtomicU64 {
        // SAFETY: the engine has mapped `maxactive` words behind the first one, for as long as
        // there are probes.
        unsafe { AtomicU64::from_ptr(self.base.add(index as usize)) }
    }

    fn iter<'a>(self) -> impl Iterator<Item = &'a AtomicU64> {
        (1..=self.count).map(move |index| self.word(index))
    }
}

/// May the call whose return address is at `slot` be watched? [`keep`] or [`leave`] comes next.
#[inline(always)]
#[must_use]
pub fn take(agent: Agent, desc: &ProbeDesc, slot: u64) -> bool {
    // The cell of the hits has the probe's number.
    let kept = (desc.flow == Flow::Enter as u32).then_some(desc.hits);
    desc.maxactive == 0 || take_one(agent, Places::of(desc), slot, kept)
}

/// The return address is replaced.
#[inline(always)]
pub fn keep(desc: &ProbeDesc, slot: u64) {
    if desc.maxactive != 0 {
        change(Places::of(desc), slot, slot);
    }
}

/// The call is not watched (any more).
#[inline(always)]
pub fn leave(desc: &ProbeDesc, slot: u64) {
    if desc.maxactive != 0 {
        change(Places::of(desc), slot, 0);
    }
}

#[inline(never)]
fn take_one(agent: Agent, places: Places, slot: u64, kept: Option<u32>) -> bool {
    let take = |word: &AtomicU64, held: u64| {
        let taken = (held & !(SLOT | COMING)).wrapping_add(TAKEN) | slot & SLOT | COMING;
        word.compare_exchange(held, taken, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let take_if = |word: &AtomicU64, of: u64| {
        let held = word.load(Ordering::Relaxed);
        held & SLOT == of && take(word, held)
    };
    if places.iter().any(|word| take_if(word, slot & SLOT)) || places.iter().any(|word| take_if(word, 0)) {
        return true;
    }
    let looks = LOOKS.min(places.count);
    let first = places.word(0).fetch_add(looks, Ordering::Relaxed);
    (0..looks).any(|i| {
        let word = places.word(1 + first.wrapping_add(i) % places.count);
        let held = word.load(Ordering::Acquire);
        let is_left = || {
            if let Some(probe) = kept {
                return !is_remembered(agent, held & SLOT, probe);
            }
            let word = safe_read::word(agent, held & SLOT);
            !word.is_some_and(|word| is_watched(agent, word) || is_interrupted(agent, held & SLOT))
        };
        held & COMING == 0 && is_left() && take(word, held)
    })
}

/// Makes `to` of the place of a slot, which this thread's call has.
#[inline(never)]
fn change(places: Places, slot: u64, to: u64) {
    for word in places.iter() {
        let held = word.load(Ordering::Relaxed);
        if held & SLOT == slot & SLOT {
            let changed = held & !(SLOT | COMING) | to & SLOT;
            let _ = word.compare_exchange(held, changed, Ordering::AcqRel, Ordering::Relaxed);
            return;
        }
    }
}
