//! A thread's part of the shared region: counters, histograms and the record ring. One writer, so
//! no locks.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Head of a slot; cells and ring follow at [`crate::SharedLayout::cells_off`] and
/// [`crate::SharedLayout::ring_off`].
#[repr(C, align(64))]
pub struct Slot {
    /// `fs` base of the thread that uses the slot.
    pub fs_base: AtomicU64,
    /// Its thread id (in its own pid namespace) when the slot was taken.
    pub tid: AtomicU32,
    /// The process that has the slot, in its own pid namespace ([`crate::Private::pid`]); 0 = none.
    pub owner: AtomicU32,
    /// Bytes ever reserved in the ring by the thread (free-running; position = value & (ring_len -
    /// 1)).
    pub head: AtomicU64,
    /// Bytes ever consumed by the controller (free-running).
    pub tail: AtomicU64,
    /// Keeps the cells on a cache line of their own.
    pub pad1: [u64; 4],
}

/// Shape of a latency histogram in cells: log-linear, [`Histogram::SUB`] buckets an octave, so that
/// quantiles are good to a few percent while the printed rows are powers of two.
pub struct Histogram;

impl Histogram {
    /// Log2 of the buckets per octave.
    pub const SUB_BITS: u32 = 4;
    /// Buckets per octave.
    pub const SUB: usize = 1 << Self::SUB_BITS;
    /// Number of buckets for the whole `u64` range.
    pub const BUCKETS: usize = (64 - Self::SUB_BITS as usize + 1) * Self::SUB;
    /// Cells of one histogram: buckets, then the sum of all values.
    pub const CELLS: usize = Self::BUCKETS + 1;
    /// Cell of the sum, relative to the first bucket.
    pub const SUM: usize = Self::BUCKETS;

    /// The bucket of a value.
    ///
    /// ```
    /// use sidestep_wire::Histogram;
    /// assert_eq!(Histogram::bucket(5), 5);
    /// let b = Histogram::bucket(1000);
    /// assert!(Histogram::low(b) <= 1000 && 1000 < Histogram::low(b + 1));
    /// ```
    #[must_use]
    pub const fn bucket(value: u64) -> usize {
        if value < Self::SUB as u64 {
            return value as usize;
        }
        let octave = 63 - value.leading_zeros() - Self::SUB_BITS;
        (octave as usize + 1) * Self::SUB + ((value >> octave) as usize & (Self::SUB - 1))
    }

    /// The smallest value of a bucket; of one past the last: `u64::MAX`.
    #[must_use]
    pub const fn low(bucket: usize) -> u64 {
        if bucket < Self::SUB {
            return bucket as u64;
        }
        if bucket >= Self::BUCKETS {
            return u64::MAX;
        }
        let octave = bucket / Self::SUB - 1;
        ((Self::SUB + bucket % Self::SUB) as u64) << octave
    }
}
