//! The entries of a table: where they are, which of them are free, and which are dropped to make
//! room.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use super::{Found, GENERATION, HEAD, Hand, MARK, REFERENCED, Table, USED, Words, index_of, refer, replace};

/// Most entries that are looked at to find one that may be dropped.
const HAND_STEPS: usize = 128;
/// Buckets that are cleaned when there is no free entry.
const CLEANED: u64 = 64;

impl<'a> Table<'a> {
    /// The key of an entry that is in use, as it was at one moment.
    #[inline]
    pub(super) fn key(&self, index: u64) -> Option<Held<'a, '_>> {
        let found = self.found(index)?;
        (found.generation & USED != 0).then_some(Held { table: self, index })
    }

    /// Puts key and value into an entry that nobody else has, the hand's or a free one.
    #[inline(never)]
    pub(super) fn filled(&self, hand: &mut Hand, key: &impl Words, value: &impl Words) -> Option<Found> {
        if hand.new.is_none() {
            let entry = self.take().or_else(|| {
                self.clean(&mut hand.left);
                self.take()
            })?;
            // The new generation first, so that a copy that is being made is seen to be wrong.
            let state = self.state(entry)?;
            let old = state.load(Ordering::Relaxed);
            state.store((old & !(GENERATION - 1)).wrapping_add(GENERATION) | USED, Ordering::Relaxed);
            fence(Ordering::Release);
            let at = self.entry_at(entry)? + HEAD;
            for word in 0..self.key_words {
                self.words.get(at + word)?.store(key.word(word), Ordering::Relaxed);
            }
            for word in 0..self.value_words {
                self.words.get(at + self.key_words + word)?.store(value.word(word), Ordering::Relaxed);
            }
            hand.new = self.found(entry);
        }
        hand.new
    }

    /// One more key, if there may be one.
    #[cold]
    #[inline]
    pub(super) fn count_up(&self, left: &mut u64) -> bool {
        let most = u64::from(self.desc.max_entries);
        for _ in 0..HAND_STEPS {
            let up = |count: u64| (count < most).then(|| count + 1);
            if self.live.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, up).is_ok() {
                return true;
            }
            if !self.desc.is_lru() || !self.evict(left) {
                return false;
            }
        }
        false
    }

    /// Drops an entry that was not looked up since the hand came by last.
    #[cold]
    #[inline]
    pub(super) fn evict(&self, left: &mut u64) -> bool {
        let entries = self.fresh();
        for step in 0..HAND_STEPS {
            let Some(index) = self.live.hand.fetch_add(1, Ordering::Relaxed).checked_rem(entries) else { return false };
            let Some(state) = self.state(index) else { return false };
            let now = state.load(Ordering::Relaxed);
            if now & USED == 0 {
                continue;
            }
            if now & REFERENCED != 0 && step < HAND_STEPS / 2 {
                state.fetch_and(!REFERENCED, Ordering::Relaxed);
                continue;
            }
            let key = Held { table: self, index };
            let place = self.find(&key, left);
            let Some(place) = &place else { return false };
            match &place.found {
                Some((found, next)) if found.index == index && self.remove(place, index, *next, &key, left) => {
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// Takes marked entries out of some chains, after threads that were interrupted for ever.
    #[cold]
    #[inline]
    pub(super) fn clean(&self, left: &mut u64) {
        let Some(buckets) = u64::from(self.desc.buckets).checked_sub(1) else { return };
        let first = self.live.hand.fetch_add(CLEANED, Ordering::Relaxed);
        for bucket in first..first.wrapping_add(CLEANED) {
            if let Some(head) = self.words.get((bucket & buckets) as usize) {
                let _ = self.search(head, None::<&()>, left);
            }
        }
    }

    /// An entry that nobody has: a free one, else one that was never used.
    #[inline]
    pub(super) fn take(&self) -> Option<u64> {
        let free = &self.live.free;
        loop {
            let head = free.load(Ordering::Acquire);
            let Some(index) = index_of(head) else { break };
            let next = self.next(index)?.load(Ordering::Acquire);
            if replace(free, head, refer(index_of(next), 0, head)) {
                return Some(index);
            }
        }
        let capacity = u64::from(self.desc.capacity);
        let up = |used: u64| (used < capacity).then(|| used + 1);
        self.live.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, up).ok()
    }

    /// Gives an entry back that is in no chain.
    #[inline]
    pub(super) fn release(&self, index: u64) {
        let (Some(state), Some(next)) = (self.state(index), self.next(index)) else { return };
        state.fetch_and(!(USED | REFERENCED), Ordering::Relaxed);
        let free = &self.live.free;
        loop {
            let head = free.load(Ordering::Relaxed);
            next.store(refer(index_of(head), MARK, next.load(Ordering::Relaxed)), Ordering::Relaxed);
            if replace(free, head, refer(Some(index), 0, head)) {
                return;
            }
        }
    }

    /// Sets the `next` of an entry that nobody else has.
    #[inline]
    pub(super) fn set_next(&self, index: u64, to: Option<u64>) {
        if let Some(next) = self.next(index) {
            next.store(refer(to, 0, next.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn replace_next(&self, index: u64, old: u64, new: u64) -> bool {
        self.next(index).is_some_and(|next| replace(next, old, new))
    }

    #[inline]
    pub(super) fn found(&self, index: u64) -> Option<Found> {
        Some(Found { index, generation: self.state(index)?.load(Ordering::Acquire) | REFERENCED })
    }

    /// Entries that were ever used.
    #[inline]
    pub(super) fn fresh(&self) -> u64 {
        self.live.fresh.load(Ordering::Acquire).min(self.desc.capacity.into())
    }

    /// The first word of an entry. `None`: there is no such entry, and somebody else has written to
    /// the table.
    #[inline]
    pub(super) fn entry_at(&self, index: u64) -> Option<usize> {
        let len = HEAD + self.key_words + self.value_words;
        (index < u64::from(self.desc.capacity)).then(|| self.desc.buckets as usize + index as usize * len)
    }

    #[inline]
    pub(super) fn entry_word(&self, index: u64, word: usize) -> Option<&'a AtomicU64> {
        self.words.get(self.entry_at(index)? + word)
    }

    #[inline]
    pub(super) fn state(&self, index: u64) -> Option<&'a AtomicU64> {
        self.entry_word(index, 0)
    }

    #[inline]
    pub(super) fn next(&self, index: u64) -> Option<&'a AtomicU64> {
        self.entry_word(index, 1)
    }
}

/// The key of an entry, as it is now.
pub(super) struct Held<'a, 't> {
    table: &'t Table<'a>,
    index: u64,
}

impl Words for Held<'_, '_> {
    #[inline]
    fn word(&self, index: usize) -> u64 {
        self.table.entry_word(self.index, HEAD + index).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}
