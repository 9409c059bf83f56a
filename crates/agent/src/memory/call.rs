//! An entry of a thread's table of calls.
//!
//! Only the thread itself fills and clears it, but its signal handlers may run the same code in the
//! middle of any line here. So an entry is claimed by one instruction, and nobody touches the
//! entry until the slot is stored. Another thread clears it if the call has moved there with its
//! stack.

use core::ptr::{addr_of, addr_of_mut};
use core::sync::atomic::{AtomicU64, Ordering};

use sidestep_wire::{Call as Fields, ShadowEntry};

use crate::arch;

/// An entry of a table of calls.
#[derive(Clone, Copy)]
pub struct Call(*mut Fields);

impl Call {
    /// # Safety
    /// `call` is an entry of a table of calls (those are never unmapped).
    #[inline(always)]
    #[must_use]
    pub unsafe fn new(call: *mut Fields) -> Call {
        Call(call)
    }

    #[inline(always)]
    fn word(self) -> *mut u64 {
        // SAFETY: `new` demands an entry of a table of calls, and those are never unmapped.
        unsafe { addr_of_mut!((*self.0).slot) }
    }

    /// The stack slot of the call; 0 = there is none.
    #[inline(always)]
    #[must_use]
    pub fn slot(self) -> u64 {
        // SAFETY: `new` demands an entry of a table of calls, and those are never unmapped.
        unsafe { self.word().read_volatile() }
    }

    /// The call of this slot as an entry of a shadow stack, if it is here.
    #[inline(always)]
    #[must_use]
    pub fn read(self, slot: u64) -> Option<ShadowEntry> {
        if self.slot() != slot {
            return None;
        }
        // SAFETY: `new` demands an entry of a table of calls, and those are never unmapped.
        let entry = unsafe {
            ShadowEntry {
                slot,
                ret: addr_of!((*self.0).ret).read_volatile(),
                time: 0,
                probe: addr_of!((*self.0).probe).read_volatile() | ShadowEntry::KEPT,
                cookie: addr_of!((*self.0).cookie).read_volatile(),
            }
        };
        (self.slot() == slot).then_some(entry)
    }

    /// Fills the entry in place of `old`: 0, or the slot of a call that is over. False: another
    /// call is there.
    #[inline(always)]
    #[must_use]
    pub fn replace(self, old: u64, new: &ShadowEntry) -> bool {
        // SAFETY: `new` demands an entry of a table of calls, and those are never unmapped. While
        // an entry is being filled, nobody else changes it.
        unsafe {
            if !arch::replace(self.word(), old, Fields::BUSY) {
                return false;
            }
            addr_of_mut!((*self.0).ret).write_volatile(new.ret);
            addr_of_mut!((*self.0).probe).write_volatile(new.probe & !ShadowEntry::KEPT);
            addr_of_mut!((*self.0).cookie).write_volatile(new.cookie);
            self.word().write_volatile(new.slot);
        }
        true
    }

    /// Notes that the call has left its function by a jump. `old` is what the entry was; false: it
    /// has changed.
    pub fn jump(self, old: &ShadowEntry) -> bool {
        let probe = old.probe & !ShadowEntry::KEPT;
        // SAFETY: `new` demands an entry of a table of calls, and those are never unmapped. The
        // word is aligned. Of another thread's entry only that thread changes the rest.
        let word = unsafe { AtomicU64::from_ptr(addr_of_mut!((*self.0).probe)) };
        let jumped = probe | ShadowEntry::JUMPED;
        word.compare_exchange(probe, jumped, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Frees the entry if it is that of `slot`.
    #[inline(always)]
    pub fn clear(self, slot: u64) -> bool {
        // SAFETY: `new` demands an entry of a table of calls, and those are never unmapped. Other
        // threads at most turn its slot into 0.
        unsafe { arch::replace(self.word(), slot, 0) }
    }

    /// The same from another thread.
    pub fn clear_foreign(self, slot: u64) {
        // SAFETY: `new` demands an entry of a table of calls, and those are never unmapped. The
        // slot is an aligned word.
        let word = unsafe { AtomicU64::from_ptr(self.word()) };
        let _ = word.compare_exchange(slot, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
