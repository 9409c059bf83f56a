//! From the thread pointer (`fs` base) to the thread's cells and state: an open-addressing hash
//! table that detours read without calling anything.
//!
//! An entry belongs to one `fs` base for ever. Only the thread with that `fs` base uses it, so
//! reads need no lock. The agent claims an empty entry with a compare-and-swap of `owner`, then
//! fills `state`, `cells` and last `key`.
//!
//! Bucket 0 belongs to `fs` base 0 (a thread before its TLS is set up). There an unused entry has
//! the right key, so a detour that finds `cells == 0` takes the slow path, as with a wrong key.

use core::sync::atomic::AtomicU64;

/// Number of buckets, a power of two.
pub const LOOKUP_BUCKETS: usize = 1 << 13;
/// Multiplier of the hash, fits a sign-extended 32-bit immediate of `imul`.
pub const HASH_MULTIPLIER: u32 = 0x1e37_79b1;
/// The hash is bits `HASH_SHIFT ..` of the 64-bit product.
pub const HASH_SHIFT: u32 = 32;
/// Value of [`LookupTable::marker`] in the attached process. A forked child reads 0
/// (`MADV_WIPEONFORK`).
pub const LOOKUP_MARKER: u64 = u64::from_le_bytes(*b"LOOKUP_1");

/// [`LookupEntry::key`] while a thread has lent its memory to a child
/// ([`crate::ThreadState::counting`]): the `fs` base of no thread, so that hits take the slow path.
pub const LENT: u64 = 1;

/// One bucket, 32 bytes.
#[repr(C, align(32))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct LookupEntry {
    /// `fs` base; 0 = empty (see above for bucket 0); [`LENT`]. Written last.
    pub key: u64,
    /// Run-time address of the thread's cells (`[u64]`); 0 in a forked child: programs do not run
    /// there.
    pub cells: u64,
    /// Run-time address of the thread's [`crate::ThreadState`].
    pub state: u64,
    /// The `fs` base that claimed the entry, for the agent only.
    pub owner: u64,
}

/// The whole table.
#[repr(C, align(4096))]
pub struct LookupTable {
    /// [`LOOKUP_MARKER`], or 0 in a forked child that has not hit a probe yet.
    pub marker: u64,
    /// 1 once a function has returned on another thread than it was entered on (coroutines): from
    /// then on a return compares the shadow stacks of all threads.
    pub migrated: AtomicU64,
    /// Where the next search for the slot of a dead thread goes on.
    pub reclaim: AtomicU64,
    /// Keeps the buckets aligned.
    pub pad: [u64; 5],
    /// The buckets. Linear probing; a detour looks at the first bucket only, the agent at all.
    pub buckets: [LookupEntry; LOOKUP_BUCKETS],
}

/// The first bucket of a thread pointer. The generated code computes the same.
///
/// ```
/// use sidestep_wire::lookup::{bucket, LOOKUP_BUCKETS};
/// assert!(bucket(0x7f12_3456_7740) < LOOKUP_BUCKETS);
/// ```
#[must_use]
pub const fn bucket(fs_base: u64) -> usize {
    ((fs_base.wrapping_mul(HASH_MULTIPLIER as u64) >> HASH_SHIFT) as usize) & (LOOKUP_BUCKETS - 1)
}
