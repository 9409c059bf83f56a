//! Stacks that `get_stackid` has seen: an array of buckets, each `[state][address…]`, in words.
//!
//! ```text
//!   state   hash << 16 | length << 2 | WRITING or COMPLETE; 0 = empty
//! ```
//!
//! A bucket belongs to the thread that has set it to `WRITING`, until it is `COMPLETE`. Nobody
//! waits for that: who finds his own hash there takes the stack for his own, 46 bits being enough
//! to tell stacks apart for the time of the writing. A thread that is interrupted for ever leaves a
//! bucket that nobody reads or uses again.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::map::{MapDesc, MapError};

const WRITING: u64 = 1;
const COMPLETE: u64 = 2;
const STATE: u64 = 3;
/// Most addresses of a stack: the kernel's `PERF_MAX_STACK_DEPTH`.
pub const DEPTH: u64 = 127;

/// Buckets in which a stack may be, one behind the other. The kernel has one: there, of two stacks
/// that meet the second one is lost, and of 150 stacks in 16,384 buckets two meet as often as not.
const TRIES: u64 = 32;

/// `BPF_F_FAST_STACK_CMP`: the hash is enough.
pub const FAST_COMPARE: u64 = 1 << 9;
/// `BPF_F_REUSE_STACKID`: another stack in the bucket makes room.
pub const REUSE: u64 = 1 << 10;

/// A map of stacks.
#[derive(Clone, Copy)]
pub struct Stacks<'a> {
    desc: &'a MapDesc,
    words: &'a [AtomicU64],
}

/// What is stored of a stack besides its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    hash: u64,
    len: u64,
}

impl Digest {
    /// Of no addresses.
    pub const EMPTY: Digest = Digest { hash: 0x51de_57e9, len: 0 };

    /// With one more address.
    #[inline]
    #[must_use]
    pub const fn with(self, address: u64) -> Digest {
        let mixed = (self.hash ^ address).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Digest { hash: mixed ^ mixed >> 29, len: self.len + 1 }
    }

    /// How many addresses.
    #[inline]
    #[must_use]
    pub const fn len(self) -> u64 {
        self.len
    }

    /// No address yet?
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    #[inline]
    const fn word(self, state: u64) -> u64 {
        self.hash >> 16 << 16 | (self.len & 0x3fff) << 2 | state
    }
}

impl<'a> Stacks<'a> {
    /// The stacks of a map, in [`MapDesc::data_len`] bytes that began as zeros.
    #[inline]
    #[must_use]
    pub fn new(desc: &'a MapDesc, words: &'a [AtomicU64]) -> Stacks<'a> {
        Stacks { desc, words }
    }

    /// Words of so many buckets.
    #[inline]
    #[must_use]
    pub const fn len(buckets: u32, value_size: u32) -> u64 {
        buckets as u64 * (1 + value_size as u64 / 8)
    }

    /// Most addresses of a stack.
    #[inline]
    #[must_use]
    pub fn depth(&self) -> u64 {
        u64::from(self.desc.value_size / 8).min(DEPTH)
    }

    /// The number of a stack, which is put there if it is new. `addresses` gives it, as often as it
    /// is asked.
    ///
    /// # Errors
    /// [`MapError::Exists`]: there are other stacks in all its buckets.
    #[inline]
    pub fn insert<I: Iterator<Item = u64>>(
        &self,
        digest: Digest,
        flags: u64,
        addresses: impl Fn() -> I,
    ) -> Result<u64, MapError> {
        let mask = u64::from(self.desc.buckets).wrapping_sub(1);
        // One that may take another's place never goes on.
        let tries = if flags & REUSE != 0 { 1 } else { TRIES };
        let (mut id, mut tried) = ((digest.hash >> 16) & mask, 0);
        loop {
            let inserted = self.insert_at(id, digest, flags, &addresses);
            tried += 1;
            if inserted.is_ok() || tried == tries {
                return inserted;
            }
            id = (id + 1) & mask;
        }
    }

    #[inline]
    fn insert_at<I: Iterator<Item = u64>>(
        &self,
        id: u64,
        digest: Digest,
        flags: u64,
        addresses: &impl Fn() -> I,
    ) -> Result<u64, MapError> {
        let bucket = self.bucket(id).ok_or(MapError::Exists)?;
        let (state, places) = bucket.split_first().ok_or(MapError::Exists)?;
        let found = state.load(Ordering::Acquire);
        if found == digest.word(WRITING) {
            return Ok(id);
        }
        let is_same = || flags & FAST_COMPARE != 0 || addresses_are(places, addresses());
        if found == digest.word(COMPLETE) && is_same() {
            return Ok(id);
        }
        let free = found == 0 || flags & REUSE != 0 && found & STATE == COMPLETE;
        let claimed = digest.word(WRITING);
        if !free || state.compare_exchange(found, claimed, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Whoever was faster may have had the same stack.
            let now = state.load(Ordering::Relaxed);
            let same = free && now & !STATE == claimed & !STATE;
            return if same { Ok(id) } else { Err(MapError::Exists) };
        }
        fence(Ordering::Release);
        let mut addresses = addresses();
        for place in places {
            let Some(at) = addresses.next() else { break };
            place.store(at, Ordering::Relaxed);
        }
        state.store(digest.word(COMPLETE), Ordering::Release);
        Ok(id)
    }

    /// Passes the addresses of a stack to `each`, innermost first, and says whether they belong
    /// together. If not, the stack was changed meanwhile, or there is none.
    #[inline]
    pub fn read(&self, id: u64, mut each: impl FnMut(u64)) -> bool {
        let Some((state, places)) = self.bucket(id).and_then(<[AtomicU64]>::split_first) else { return false };
        let before = state.load(Ordering::Acquire);
        if before & STATE != COMPLETE {
            return false;
        }
        let len = (before >> 2 & 0x3fff) as usize;
        let mut digest = Digest::EMPTY;
        for place in places.iter().take(len) {
            let address = place.load(Ordering::Relaxed);
            digest = digest.with(address);
            each(address);
        }
        fence(Ordering::Acquire);
        // The same stack may have been there before and after another one: only what was read can
        // tell.
        state.load(Ordering::Relaxed) == before && digest.word(COMPLETE) == before
    }

    /// Removes a stack.
    ///
    /// # Errors
    /// [`MapError::Missing`].
    #[inline]
    pub fn delete(&self, id: u64) -> Result<(), MapError> {
        let state = self.bucket(id).and_then(<[AtomicU64]>::first).ok_or(MapError::Missing)?;
        let found = state.load(Ordering::Relaxed);
        let gone =
            found & STATE == COMPLETE && state.compare_exchange(found, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if gone { Ok(()) } else { Err(MapError::Missing) }
    }

    /// Numbers of buckets.
    #[inline]
    #[must_use]
    pub fn buckets(&self) -> u64 {
        self.desc.buckets.into()
    }

    #[inline]
    fn bucket(&self, id: u64) -> Option<&'a [AtomicU64]> {
        if id >= u64::from(self.desc.buckets) {
            return None;
        }
        let len = 1 + self.desc.value_size as usize / 8;
        let first = id as usize * len;
        self.words.get(first..first.checked_add(len)?)
    }
}

/// No `zip`: it begins with two zeros, which would come from an xmm register.
#[inline]
fn addresses_are(places: &[AtomicU64], mut expected: impl Iterator<Item = u64>) -> bool {
    for place in places {
        match expected.next() {
            Some(at) if at == place.load(Ordering::Relaxed) => {}
            Some(_) => return false,
            None => break,
        }
    }
    true
}
