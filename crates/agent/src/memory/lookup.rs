//! The table in which generated code finds a thread.

use core::ptr::{addr_of, addr_of_mut};
use core::sync::atomic::AtomicU64;

use sidestep_wire::lookup::LOOKUP_BUCKETS;
use sidestep_wire::{LookupEntry, LookupTable};

/// The lookup table.
#[derive(Clone, Copy)]
pub struct Table(pub(super) *mut LookupTable);

impl Table {
    /// Zero in a forked child that has not been noticed yet.
    #[must_use]
    pub fn marker(self) -> &'static AtomicU64 {
        // SAFETY: the table stays mapped (`Agent::new` demands it). Only atomic accesses are made
        // to this word.
        unsafe { AtomicU64::from_ptr(addr_of_mut!((*self.0).marker)) }
    }

    /// See [`LookupTable::migrated`].
    #[must_use]
    pub fn migrated(self) -> &'static AtomicU64 {
        // SAFETY: the table stays mapped (`Agent::new` demands it). The field is an atomic.
        unsafe { &*addr_of!((*self.0).migrated) }
    }

    /// See [`LookupTable::reclaim`].
    #[must_use]
    pub fn reclaim(self) -> &'static AtomicU64 {
        // SAFETY: the table stays mapped (`Agent::new` demands it). The field is an atomic.
        unsafe { &*addr_of!((*self.0).reclaim) }
    }

    /// A bucket; numbers beyond the end go round.
    #[must_use]
    pub fn bucket(self, index: usize) -> Bucket {
        // SAFETY: the table stays mapped (`Agent::new` demands it). The index is in range.
        Bucket(unsafe { addr_of_mut!((*self.0).buckets).cast::<LookupEntry>().add(index % LOOKUP_BUCKETS) })
    }
}

/// One entry of the lookup table.
#[derive(Clone, Copy)]
pub struct Bucket(*mut LookupEntry);

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident),*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(self) -> &'static AtomicU64 {
            // SAFETY: the entry lies in the lookup table or in a thread's state, and both stay
            // mapped. The agent makes only atomic accesses to it.
            unsafe { AtomicU64::from_ptr(addr_of_mut!((*self.0).$name)) }
        })*
    };
}

impl Bucket {
    /// One that is not in the table, but in a thread's state.
    pub(super) fn at(entry: *mut LookupEntry) -> Bucket {
        Bucket(entry)
    }

    words! {
        /// The visible key.
        key,
        /// Address of the cells.
        cells,
        /// Address of the thread state.
        state,
        /// Who claimed it.
        owner
    }

    /// As generated code sees it.
    #[must_use]
    pub fn as_ptr(self) -> *const LookupEntry {
        self.0
    }
}
