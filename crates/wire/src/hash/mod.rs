//! Hash tables that target and controller change at the same time, without locks: nobody ever waits
//! for anybody. A thread may be stopped at any step, by a signal handler that uses the same table,
//! and never go on.
//!
//! A table is its buckets and then its entries, in words. A bucket is a chain of entries (M. M.
//! Michael, *High Performance Dynamic Lock-Free Hash Tables and List-Based Sets*, 2002). An entry
//! is
//!
//! ```text
//!   state   generation << 2 | REFERENCED | USED
//!   next    reference of the next entry of the chain, or of the next free one
//!   key     zero-padded words
//!   value   zero-padded words; none in tables with a value per thread
//! ```
//!
//! A *reference* is `version << 32 | (index + 1) << 1 | MARK`; index + 1 is 0 at the end of a
//! chain. `MARK` in an entry's own `next` says that the entry is no longer in the table. Each
//! change of a reference counts its version up, also when the entry is used again. So a search that
//! strayed into a reused entry, or a change that comes too late, finds another version than it has
//! seen, and begins again.
//!
//! A new entry is only put at the end of its chain, by a compare-and-swap of the reference where
//! the search ended: had somebody put the same key there meanwhile, it would fail. A value is
//! replaced by a new entry that takes the old one's place in the step that marks the old one. So a
//! key is there once or not at all, at any time.
//!
//! Entries that were removed are used again at once, as in the kernel's preallocated tables: who
//! holds on to the address of a value may see that of another key. The state tells: it is another
//! one from the first change on.
//!
//! Everything is `#[inline]`, or generic: the agent has its own copy of the code, and calls it
//! directly. Places are borrowed rather than moved, for that would take xmm registers, which nobody
//! has saved for the agent.
//!
//! A thread that is interrupted for ever between two steps may keep an entry out of use, or `count`
//! one too high.

mod entries;
mod walk;

use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::map::{ANY, EXIST, MapDesc, MapError, NO_EXIST};
pub use walk::{Cursor, Step};

/// Bit of a reference: the entry that holds it is removed.
const MARK: u64 = 1;
/// Bit of a state: the entry has a key.
const USED: u64 = 1;
/// Bit of a state: looked up since the hand came by (LRU kinds).
const REFERENCED: u64 = 2;
/// Added to a state for a new generation.
const GENERATION: u64 = 4;

/// Most steps of an operation, besides some for each entry of the table. Among so many others are
/// not faster each time, unless somebody writes to the table what does not belong there.
const STEPS: u64 = 1 << 18;

/// Words of an entry before its key.
const HEAD: usize = 2;

/// Bytes as zero-padded words.
pub trait Words {
    /// The word with this number.
    fn word(&self, index: usize) -> u64;
}

impl Words for &[u8] {
    #[inline]
    fn word(&self, index: usize) -> u64 {
        let rest = self.get(index * 8..).unwrap_or_default();
        rest.iter().take(8).rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }
}

/// Nothing but zeros.
impl Words for () {
    #[inline]
    fn word(&self, _: usize) -> u64 {
        0
    }
}

/// A hash table.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    desc: &'a MapDesc,
    /// Where entries are counted: the same, or the one that others change.
    live: &'a MapDesc,
    words: &'a [AtomicU64],
    key_words: usize,
    value_words: usize,
}

/// An entry that was in the table when it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its number.
    pub index: u64,
    /// What [`Table::is_current`] compares: another one as soon as the entry is used for something
    /// else.
    pub generation: u64,
}

/// Where a search ended.
struct Place<'a> {
    /// The reference that leads there.
    at: &'a AtomicU64,
    /// Its value.
    reference: u64,
    /// The entry with the key, and its `next`.
    found: Option<(Found, u64)>,
}

/// What an update holds that is not in the table yet.
struct Hand {
    /// An entry with key and value.
    new: Option<Found>,
    /// [`MapDesc::count`] has been counted up for it.
    counted: bool,
    /// The generation of the entry that an attempt gives.
    generation: u64,
    /// Steps that are left.
    left: u64,
}

impl Hand {
    /// The new entry is in the table.
    #[inline]
    fn give<E>(&mut self, found: &Found) -> Option<Result<u64, E>> {
        self.new = None;
        self.generation = found.generation;
        Some(Ok(found.index))
    }

    /// A search that began when the new entry was in this hand has found it in the table: what does
    /// not belong there was written to the free entries.
    #[inline]
    fn refuse(&mut self) -> Result<u64, MapError> {
        self.new = None;
        Err(MapError::Full)
    }
}

#[inline]
const fn index_of(reference: u64) -> Option<u64> {
    ((reference & u32::MAX as u64) >> 1).checked_sub(1)
}

/// The reference to an entry (`None`: the end) that follows `old`.
#[inline]
const fn refer(index: Option<u64>, mark: u64, old: u64) -> u64 {
    let version = (old >> 32).wrapping_add(1) << 32;
    match index {
        Some(index) => version | (index + 1) << 1 | mark,
        None => version | mark,
    }
}

impl<'a> Table<'a> {
    /// The table of a map, in [`MapDesc::data_len`] bytes that began as zeros.
    #[inline]
    #[must_use]
    pub fn new(desc: &'a MapDesc, words: &'a [AtomicU64]) -> Table<'a> {
        Table::shared(desc, desc, words)
    }

    /// The same for somebody who does not trust those who share the map: its shape is that of
    /// `desc`, and what changes is in `live`.
    #[inline]
    #[must_use]
    pub fn shared(desc: &'a MapDesc, live: &'a MapDesc, words: &'a [AtomicU64]) -> Table<'a> {
        let value_words = if desc.has_thread_values() { 0 } else { desc.value_size.div_ceil(8) as usize };
        Table { desc, live, words, key_words: desc.key_size.div_ceil(8) as usize, value_words }
    }

    /// Words of a table of this shape.
    #[inline]
    #[must_use]
    pub const fn len(buckets: u32, capacity: u32, key_size: u32, value_size: u32) -> u64 {
        let entry = HEAD as u64 + key_size.div_ceil(8) as u64 + value_size.div_ceil(8) as u64;
        buckets as u64 + capacity as u64 * entry
    }

    /// The entry with this key.
    #[inline]
    #[must_use]
    pub fn lookup(&self, key: &impl Words) -> Option<Found> {
        let found = match self.first(key) {
            Some(found) => found,
            None => self.find(key, &mut self.patience())?.found?.0,
        };
        if self.desc.is_lru() {
            let state = self.state(found.index)?;
            if state.load(Ordering::Relaxed) & REFERENCED == 0 {
                state.fetch_or(REFERENCED, Ordering::Relaxed);
            }
        }
        Some(found)
    }

    /// The entry with this key, if it is the first of its chain, as it mostly is, and the key is
    /// one word: what a search would do in its first step.
    #[inline(always)]
    fn first(&self, key: &impl Words) -> Option<Found> {
        if self.key_words != 1 {
            return None;
        }
        let head = self.bucket_of(key)?;
        let reference = head.load(Ordering::Acquire);
        let index = index_of(reference)?;
        let at = self.entry_at(index)?;
        let (state, next, word) = (self.words.get(at)?, self.words.get(at + 1)?, self.words.get(at + HEAD)?);
        let removed = next.load(Ordering::Relaxed) & MARK != 0;
        let generation = state.load(Ordering::Relaxed) | REFERENCED;
        if removed || word.load(Ordering::Relaxed) != key.word(0) {
            return None;
        }
        // All was read before this looks whether the entry was in its place all the time.
        fence(Ordering::Acquire);
        (head.load(Ordering::Relaxed) == reference).then_some(Found { index, generation })
    }

    /// Sets the value of a key; `flags`: [`ANY`], [`NO_EXIST`] or [`EXIST`]. In a table with a
    /// value per thread an entry that is there stays as it is; the caller sets its own value.
    ///
    /// # Errors
    /// The kernel's; [`MapError::Full`] is also counted in [`MapDesc::dropped`].
    #[inline(never)]
    pub fn update(&self, key: &impl Words, value: &impl Words, flags: u64) -> Result<Found, MapError> {
        if flags > EXIST {
            return Err(MapError::Invalid);
        }
        let mut hand = Hand { new: None, counted: false, generation: 0, left: self.patience() };
        // Without any steps left the search finds nothing.
        let result = loop {
            if let Some(result) = self.attempt(key, value, flags, &mut hand) {
                break result;
            }
        };
        if let Some(unused) = hand.new {
            self.release(unused.index);
        }
        if hand.counted {
            self.live.count.fetch_sub(1, Ordering::Relaxed);
        }
        match result {
            Ok(index) => Ok(Found { index, generation: hand.generation }),
            Err(error) => {
                if error == MapError::Full {
                    self.live.dropped.fetch_add(1, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    /// One round of [`Table::update`], which gives the number of the entry; `None`: somebody was
    /// faster.
    #[inline(never)]
    fn attempt(
        &self,
        key: &impl Words,
        value: &impl Words,
        flags: u64,
        hand: &mut Hand,
    ) -> Option<Result<u64, MapError>> {
        let place = self.find(key, &mut hand.left);
        let Some(place) = &place else { return Some(Err(MapError::Full)) };
        match &place.found {
            Some(_) if flags == NO_EXIST => Some(Err(MapError::Exists)),
            Some((found, _)) if self.desc.has_thread_values() => {
                hand.generation = found.generation;
                Some(Ok(found.index))
            }
            Some((old, next)) => self.exchange(place, old, *next, hand, key, value),
            None if flags == EXIST => Some(Err(MapError::Missing)),
            None => self.append(place, hand, key, value),
        }
    }

    /// Removes a key.
    ///
    /// # Errors
    /// [`MapError::Missing`].
    #[inline(never)]
    pub fn delete(&self, key: &impl Words) -> Result<(), MapError> {
        let mut left = self.patience();
        loop {
            let place = self.find(key, &mut left);
            let Some(place) = &place else { return Err(MapError::Missing) };
            let Some((found, next)) = &place.found else { return Err(MapError::Missing) };
            if self.remove(place, found.index, *next, key, &mut left) {
                return Ok(());
            }
        }
    }

    /// Removes all keys that were there at the beginning.
    #[inline]
    pub fn clear(&self) {
        for index in 0..self.fresh() {
            let Some(key) = self.key(index) else { continue };
            let mut left = self.patience();
            while let Some(place) = self.find(&key, &mut left) {
                match place.found {
                    Some((found, next)) if found.index == index => {
                        if self.remove(&place, index, next, &key, &mut left) {
                            break;
                        }
                    }
                    _ => break,
                }
            }
        }
    }

    /// Is the entry still what it was when it was found? Asked after its words were read, it says
    /// whether they belong together.
    #[inline]
    #[must_use]
    pub fn is_current(&self, found: &Found) -> bool {
        fence(Ordering::Acquire);
        self.state(found.index).is_some_and(|state| state.load(Ordering::Relaxed) | REFERENCED == found.generation)
    }

    /// A word of an entry's key.
    #[inline]
    #[must_use]
    pub fn key_word(&self, found: &Found, word: usize) -> u64 {
        self.entry_word(found.index, HEAD + word).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// A word of an entry's value: of a table without a value per thread.
    #[inline]
    #[must_use]
    pub fn value_word(&self, found: &Found, word: usize) -> Option<&'a AtomicU64> {
        (word < self.value_words).then_some(())?;
        self.entry_word(found.index, HEAD + self.key_words + word)
    }

    /// The offset of an entry's value from the start of the table, in bytes.
    #[inline]
    #[must_use]
    pub fn value_offset(&self, found: &Found) -> u64 {
        self.entry_at(found.index).map_or(0, |at| (at + HEAD + self.key_words) as u64 * 8)
    }

    /// Words of a key and of a value.
    #[inline]
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        (self.key_words, self.value_words)
    }

    #[inline]
    fn remove(&self, place: &Place<'_>, index: u64, next: u64, key: &impl Words, left: &mut u64) -> bool {
        let removed = self.replace_next(index, next, refer(index_of(next), MARK, next));
        if removed {
            self.live.count.fetch_sub(1, Ordering::Relaxed);
            self.unlink(place, index, index_of(next), key, left);
        }
        removed
    }

    /// Puts a new entry in the place of one with the same key; `None`: somebody was faster.
    #[inline(never)]
    fn exchange(
        &self,
        place: &Place<'_>,
        old: &Found,
        next: u64,
        hand: &mut Hand,
        key: &impl Words,
        value: &impl Words,
    ) -> Option<Result<u64, MapError>> {
        if hand.new.as_ref().is_some_and(|new| new.index == old.index) {
            return Some(hand.refuse());
        }
        let Some(found) = self.filled(hand, key, value) else { return Some(Err(MapError::Full)) };
        self.set_next(found.index, index_of(next));
        if !self.replace_next(old.index, next, refer(Some(found.index), MARK, next)) {
            return None;
        }
        self.unlink(place, old.index, Some(found.index), key, &mut hand.left);
        hand.give(&found)
    }

    /// Puts a new entry at the end of its chain; `None`: somebody was faster.
    #[inline(never)]
    fn append(
        &self,
        place: &Place<'_>,
        hand: &mut Hand,
        key: &impl Words,
        value: &impl Words,
    ) -> Option<Result<u64, MapError>> {
        hand.counted = hand.counted || self.count_up(&mut hand.left);
        if !hand.counted {
            return Some(Err(MapError::Full));
        }
        let own_next = hand.new.as_ref().and_then(|new| self.next(new.index));
        if own_next.is_some_and(|next| core::ptr::eq(next, place.at)) {
            return Some(hand.refuse());
        }
        let Some(found) = self.filled(hand, key, value) else { return Some(Err(MapError::Full)) };
        self.set_next(found.index, None);
        if !replace(place.at, place.reference, refer(Some(found.index), 0, place.reference)) {
            return None;
        }
        hand.counted = false;
        hand.give(&found)
    }

    /// Takes a marked entry out of its chain: at once, or by another search.
    #[inline(never)]
    fn unlink(&self, place: &Place<'_>, index: u64, next: Option<u64>, key: &impl Words, left: &mut u64) {
        if replace(place.at, place.reference, refer(next, 0, place.reference)) {
            self.release(index);
        } else {
            let _ = self.find(key, left);
        }
    }

    /// The steps of an operation.
    #[inline]
    fn patience(&self) -> u64 {
        STEPS + 4 * u64::from(self.desc.capacity)
    }

    /// Michael's `Find`. `None`: the chain is longer than there are entries, or changes all the
    /// time, so somebody else has written to the table. Each step is taken from `left`.
    #[inline]
    fn find(&self, key: &impl Words, left: &mut u64) -> Option<Place<'a>> {
        self.search(self.bucket_of(key)?, Some(key), left)
    }

    #[inline(never)]
    fn search(&self, head: &'a AtomicU64, key: Option<&impl Words>, left: &mut u64) -> Option<Place<'a>> {
        'again: loop {
            let mut at = head;
            let mut reference = at.load(Ordering::Acquire);
            for _ in 0..=self.desc.capacity {
                *left = left.checked_sub(1)?;
                let Some(index) = index_of(reference) else { return Some(Place { at, reference, found: None }) };
                let next_at = self.next(index)?;
                let next = next_at.load(Ordering::Acquire);
                let entry = self.found(index)?;
                let same = key.is_some_and(|key| self.has_key(index, key));
                // Acquired above, so the key was read before this looks whether the entry was in
                // its place all the time.
                fence(Ordering::Acquire);
                if at.load(Ordering::Relaxed) != reference {
                    continue 'again;
                }
                if next & MARK != 0 {
                    let skipped = refer(index_of(next), 0, reference);
                    if !replace(at, reference, skipped) {
                        continue 'again;
                    }
                    self.release(index);
                    reference = skipped;
                } else if same {
                    return Some(Place { at, reference, found: Some((entry, next)) });
                } else {
                    (at, reference) = (next_at, next);
                }
            }
            return None;
        }
    }

    #[inline]
    fn bucket_of(&self, key: &impl Words) -> Option<&'a AtomicU64> {
        let mut hash = 0u64;
        for word in 0..self.key_words {
            hash = (hash ^ key.word(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 32;
        }
        let mask = u64::from(self.desc.buckets).wrapping_sub(1);
        self.words.get((hash & mask) as usize)
    }

    #[inline]
    fn has_key(&self, index: u64, key: &impl Words) -> bool {
        let same = |word: usize| {
            let own = self.entry_word(index, HEAD + word);
            own.is_some_and(|own| own.load(Ordering::Relaxed) == key.word(word))
        };
        (0..self.key_words).all(same)
    }
}

#[inline]
fn replace(at: &AtomicU64, old: u64, new: u64) -> bool {
    at.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

const _: () = assert!(ANY == 0 && NO_EXIST == 1 && EXIST == 2);
