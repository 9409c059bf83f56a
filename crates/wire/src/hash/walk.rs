//! Walks through a table, bucket by bucket, while others change it.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{Found, MARK, Table, Words, index_of, refer, replace};

/// Progress through a bucket, see [`Table::walk`].
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    at: &'a AtomicU64,
    reference: u64,
}

/// What [`Table::walk`] came to.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// An entry, and where to go on.
    Entry(Found, Cursor<'a>),
    /// The end of the bucket.
    End,
    /// The bucket was changed: forget what was found in it and begin again.
    Changed,
}

impl<'a> Table<'a> {
    /// Where a walk through a bucket begins; `None` past the last. Each key is in one bucket for
    /// ever.
    #[inline]
    #[must_use]
    pub fn bucket(&self, bucket: u32) -> Option<Cursor<'a>> {
        let at = (bucket < self.desc.buckets).then(|| self.words.get(bucket as usize))??;
        Some(Cursor { at, reference: at.load(Ordering::Acquire) })
    }

    /// More steps than a walk through the table takes, however much it changes meanwhile. A chain
    /// that somebody else has overwritten may lead back to itself.
    #[inline]
    #[must_use]
    pub fn steps(&self) -> u64 {
        u64::from(self.desc.capacity) * 2 + 1024
    }

    /// The next entry of a bucket. What is read of it is right if [`Table::is_current`] says so
    /// afterwards. Each step is taken from `left`; without any the bucket is at its end.
    #[inline]
    #[must_use]
    pub fn walk(&self, mut cursor: Cursor<'a>, left: &mut u64) -> Step<'a> {
        while let Some(less) = left.checked_sub(1) {
            *left = less;
            let Some(index) = index_of(cursor.reference) else {
                let same = cursor.at.load(Ordering::Acquire) == cursor.reference;
                return if same { Step::End } else { Step::Changed };
            };
            let (Some(next), Some(found)) = (self.next(index), self.found(index)) else { return Step::Changed };
            let reference = next.load(Ordering::Acquire);
            if cursor.at.load(Ordering::Acquire) != cursor.reference {
                return Step::Changed;
            }
            let after = Cursor { at: next, reference };
            if reference & MARK == 0 {
                return Step::Entry(found, after);
            }
            let skipped = refer(index_of(reference), 0, cursor.reference);
            if !replace(cursor.at, cursor.reference, skipped) {
                return Step::Changed;
            }
            self.release(index);
            cursor.reference = skipped;
        }
        Step::End
    }

    /// Never had a key: its memory has not been touched, and a look at all buckets would.
    #[inline]
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.fresh() == 0
    }

    /// Hands on the entry behind `cursor`, more than once if it changes meanwhile, and gives the
    /// cursor behind it; a walk begins with 0, and with any key. `last` is the key of the entry
    /// that the walk came to before, which may have been removed or given another value since: a
    /// walk comes to each key once that is there all the time.
    #[inline]
    #[must_use]
    pub fn after(&self, cursor: u64, last: &impl Words, mut take: impl FnMut(&Found)) -> Option<u64> {
        if self.is_untouched() {
            return None;
        }
        let (mut bucket, passed) = ((cursor >> 32) as u32, cursor & u64::from(u32::MAX));
        let mut start = match passed.checked_sub(1) {
            None => 0,
            // If it was removed, those behind it have moved up.
            Some(before) => self.position(bucket, last).map_or(before, |at| at + 1),
        };
        while bucket < self.desc.buckets {
            while let Some(found) = self.nth(bucket, start, |_| false).1 {
                take(&found);
                if self.is_current(&found) {
                    return Some(u64::from(bucket) << 32 | (start + 1));
                }
            }
            (bucket, start) = (bucket + 1, 0);
        }
        None
    }

    /// How many entries of a bucket are before the one with this key.
    #[inline]
    fn position(&self, bucket: u32, key: &impl Words) -> Option<u64> {
        let (at, found) = self.nth(bucket, u64::MAX, |found| self.has_key(found.index, key));
        found.map(|_| at)
    }

    /// The entry of a bucket before which there are `n`, or the first one that is `wanted`; and how
    /// many are before it.
    #[inline]
    fn nth(&self, bucket: u32, n: u64, wanted: impl Fn(&Found) -> bool) -> (u64, Option<Found>) {
        let mut left = self.steps();
        'again: loop {
            let Some(mut cursor) = self.bucket(bucket) else { return (0, None) };
            let mut at = 0;
            loop {
                match self.walk(cursor, &mut left) {
                    Step::Entry(found, _) if at == n || wanted(&found) => return (at, Some(found)),
                    // A chain with more entries leads back to itself.
                    Step::Entry(..) if at >= u64::from(self.desc.capacity) => return (at, None),
                    Step::Entry(_, next) => (at, cursor) = (at + 1, next),
                    Step::End => return (at, None),
                    Step::Changed => continue 'again,
                }
            }
        }
    }
}
