//! An entry of a shadow stack, as its own thread and others change it.

use core::ptr::{addr_of, addr_of_mut};
use core::sync::atomic::{AtomicU64, Ordering};

use sidestep_wire::ShadowEntry;

use crate::arch;

/// An entry of a shadow stack.
#[derive(Clone, Copy)]
pub struct Entry(*mut ShadowEntry);

impl Entry {
    /// # Safety
    /// `entry` is an entry of a shadow stack (those are never unmapped).
    #[inline(always)]
    #[must_use]
    pub unsafe fn new(entry: *mut ShadowEntry) -> Entry {
        Entry(entry)
    }

    /// The word that says whether the entry is alive.
    #[inline(always)]
    #[must_use]
    pub fn slot(self) -> *mut u64 {
        // SAFETY: `new` demands an entry of a shadow stack, and those are never unmapped.
        unsafe { addr_of_mut!((*self.0).slot) }
    }

    /// The entry, if its slot is `slot` before and after the look at the rest.
    #[inline(always)]
    #[must_use]
    pub fn read(self, slot: u64) -> Option<ShadowEntry> {
        // SAFETY: `new` demands an entry of a shadow stack, and those are never unmapped.
        unsafe {
            let found = addr_of!((*self.0).slot).read_volatile();
            let entry = ShadowEntry {
                slot: found,
                ret: addr_of!((*self.0).ret).read_volatile(),
                time: addr_of!((*self.0).time).read_volatile(),
                probe: addr_of!((*self.0).probe).read_volatile(),
                cookie: addr_of!((*self.0).cookie).read_volatile(),
            };
            (found == slot && self.slot().read_volatile() == slot).then_some(entry)
        }
    }

    /// Address of the stack slot, 0 = dead.
    #[inline(always)]
    #[must_use]
    pub fn stack_slot(self) -> u64 {
        // SAFETY: `new` demands an entry of a shadow stack, and those are never unmapped.
        unsafe { self.slot().read_volatile() }
    }

    /// Time stamp of the entry.
    #[must_use]
    pub fn time(self) -> u64 {
        // SAFETY: `new` demands an entry of a shadow stack, and those are never unmapped.
        unsafe { addr_of!((*self.0).time).read_volatile() }
    }

    /// Fills an unused entry, its slot last. False if it turned out to be in use.
    #[inline(always)]
    #[must_use]
    pub fn write(self, entry: &ShadowEntry) -> bool {
        // SAFETY: `new` demands an entry of a shadow stack, and those are never unmapped. Other
        // threads at most turn a slot into 0.
        unsafe {
            addr_of_mut!((*self.0).ret).write_volatile(entry.ret);
            addr_of_mut!((*self.0).time).write_volatile(entry.time);
            addr_of_mut!((*self.0).probe).write_volatile(entry.probe);
            addr_of_mut!((*self.0).cookie).write_volatile(entry.cookie);
            arch::replace(self.slot(), 0, entry.slot)
        }
    }

    /// Makes an entry of an array that is not in use unused.
    pub fn clear(self) {
        // SAFETY: `new` demands an entry of a shadow stack, and those are never unmapped.
        unsafe { self.slot().write_volatile(0) }
    }

    /// Sets the probe word.
    pub fn set_probe(self, probe: u64) {
        // SAFETY: `new` demands an entry of a shadow stack, and those are never unmapped.
        unsafe { addr_of_mut!((*self.0).probe).write_volatile(probe) }
    }

    /// Notes that a call has left its function by a jump. `old` is what the entry was; false: it
    /// has changed.
    pub fn jump(self, old: &ShadowEntry) -> bool {
        // SAFETY: `new` demands an entry of a shadow stack, and those are never unmapped. The word
        // is aligned.
        let word = unsafe { AtomicU64::from_ptr(addr_of_mut!((*self.0).probe)) };
        let jumped = old.probe | ShadowEntry::JUMPED;
        word.compare_exchange(old.probe, jumped, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Declares the entry dead if it still is the one of `slot`.
    #[inline(always)]
    pub fn kill(self, slot: u64) -> bool {
        // SAFETY: `new` demands an entry of a shadow stack, and those are never unmapped. Only the
        // owner of the stack calls this, and other threads at most turn a slot into 0.
        unsafe { arch::replace(self.slot(), slot, 0) }
    }

    /// The same from another thread.
    pub fn kill_foreign(self, slot: u64) {
        // SAFETY: `new` demands an entry of a shadow stack, and those are never unmapped. The slot
        // is an aligned word.
        let word = unsafe { AtomicU64::from_ptr(self.slot()) };
        let _ = word.compare_exchange(slot, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
