//! Calls of Go functions that end at an exit. A goroutine changes threads, and its stack is moved
//! when it grows. So a call is known by its goroutine and by the distance of its return address
//! from the end of the stack, which a moved stack keeps.
//!
//! All threads share hash tables, each eight times as large as the one before. A call is in one of
//! the [`WINDOW`] entries behind its hash, in any table. Only the goroutine that makes a call looks
//! for its entry, and one goroutine does one thing at a time: an entry is claimed by one
//! instruction, and no other thread changes it until it is free again. A call that is left by a
//! panic stays, until the goroutine makes another one at the same place.

use core::ptr::{addr_of, addr_of_mut};
use core::sync::atomic::{AtomicU64, Ordering};

use sidestep_wire::GoroutineCall as Entry;
use sidestep_wire::private::GOROUTINE_CALLS as SIZES;

use crate::arch;
use crate::memory::Agent;

/// Entries of a table in which a call can be.
const WINDOW: u64 = 16;

/// A call: of which goroutine, and the distance and the probe in one word.
#[derive(Clone, Copy)]
pub struct Call {
    goroutine: u64,
    key: u64,
}

impl Call {
    /// The call of a probe's function whose return address is at `slot`. `None`: the thread is not
    /// on the stack of this goroutine.
    ///
    /// # Safety
    /// `goroutine` is a `runtime.g`, which begins with the lowest and the highest address of its
    /// stack (`runtime/runtime2.go`).
    #[must_use]
    pub unsafe fn of(goroutine: u64, slot: u64, probe: u32) -> Option<Call> {
        // SAFETY: the caller promises that `goroutine` is a `runtime.g`, so its first two words are
        // readable (section "Safety" above).
        let (low, high) = unsafe { (arch::read_word(goroutine), arch::read_word(goroutine + arch::WORD)) };
        let distance = high.checked_sub(slot)? / arch::WORD;
        let fits = low <= slot && distance >> 32 == 0;
        fits.then_some(Call { goroutine, key: distance << 32 | u64::from(probe) })
    }

    /// One number for it; two calls that last at the same time have the same one only by chance.
    #[must_use]
    pub fn place(self) -> u64 {
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
        (self.goroutine.wrapping_mul(MIX) ^ self.key).wrapping_mul(MIX)
    }

    /// The first of the entries of a table in which the call can be.
    fn start(self, size: u64) -> u64 {
        (self.place() >> 32) & (size - 1)
    }
}

/// Remembers a call. False: there is no memory for it; it is a call that is not seen to end.
pub fn remember(agent: Agent, call: Call, cookie: u64) -> bool {
    if let Some(entry) = find(agent, call) {
        // SAFETY: the entry lies in a table, which stays mapped. It is this goroutine's, which is
        // here, so nobody else changes it.
        unsafe { addr_of_mut!((*entry).cookie).write_volatile(cookie) };
        return true;
    }
    (0..SIZES.len()).any(|level| {
        let Some(table) = table(agent, level) else { return false };
        window(table, SIZES[level], call).any(|entry| {
            // SAFETY: the entry lies in a table, which stays mapped. From the claim on nobody else
            // writes to it.
            unsafe {
                let goroutine = AtomicU64::from_ptr(addr_of_mut!((*entry).goroutine));
                if goroutine.compare_exchange(0, Entry::CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_err() {
                    return false;
                }
                addr_of_mut!((*entry).key).write_volatile(call.key);
                addr_of_mut!((*entry).cookie).write_volatile(cookie);
                goroutine.store(call.goroutine, Ordering::Release);
            }
            true
        })
    })
}

/// Forgets a call. Gives what the program of its entry left; `None`: it was not seen to begin.
pub fn end(agent: Agent, call: Call) -> Option<u64> {
    let entry = find(agent, call)?;
    // SAFETY: the entry lies in a table, which stays mapped. It is this goroutine's, which is here,
    // so nobody else changes it.
    unsafe {
        let cookie = addr_of!((*entry).cookie).read_volatile();
        AtomicU64::from_ptr(addr_of_mut!((*entry).goroutine)).store(0, Ordering::Release);
        Some(cookie)
    }
}

fn find(agent: Agent, call: Call) -> Option<*mut Entry> {
    let bases =
        agent.private().goroutines.iter().map(|base| base.load(Ordering::Acquire)).take_while(|base| *base != 0);
    bases.zip(SIZES).find_map(|(base, size)| {
        window(base, size, call).find(|entry| {
            // SAFETY: the entry lies in a table, which stays mapped. Others change it only while it
            // is not this goroutine's.
            unsafe {
                AtomicU64::from_ptr(addr_of_mut!((**entry).goroutine)).load(Ordering::Acquire) == call.goroutine
                    && addr_of!((**entry).key).read_volatile() == call.key
            }
        })
    })
}

/// The entries of a table in which a call can be.
fn window(base: u64, size: u64, call: Call) -> impl Iterator<Item = *mut Entry> {
    let start = call.start(size);
    (0..WINDOW).map(move |i| (base as *mut Entry).wrapping_add(((start + i) & (size - 1)) as usize))
}

/// A table, which is made when it is needed first.
fn table(agent: Agent, level: usize) -> Option<u64> {
    let word = &agent.private().goroutines[level];
    match word.load(Ordering::Acquire) {
        0 => {
            let new = agent.map(SIZES[level] * size_of::<Entry>() as u64)?;
            // Another thread may have been faster: ours then stays unused until the detach.
            Some(word.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire).map_or_else(|other| other, |_| new))
        }
        base => Some(base),
    }
}
