//! Sessions that share the signals of another one, and who may look into their memory.

use core::ptr::addr_of_mut;
use core::sync::atomic::{Ordering, compiler_fence};

use sidestep_wire::Private;
use sidestep_wire::signals::looking_mark;

use super::Agent;

impl Agent {
    /// The session that owns the signals: this one, or the one whose signals it shares.
    #[must_use]
    pub fn owner(self) -> Agent {
        match self.private().owner.load(Ordering::Acquire) {
            0 => self,
            at => Agent { private: at as *const Private },
        }
    }

    /// All sessions that use the signals of this one, itself first. Only inside of [`looking`].
    pub fn sharing(self) -> impl Iterator<Item = Agent> {
        let len = self.private().signals.sharers_len.load(Ordering::Acquire) as usize;
        // Not a chain: what is done for each session would be in the code twice.
        (0..=len).filter_map(move |number| {
            let Some(index) = number.checked_sub(1) else { return Some(self) };
            match self.private().signals.sharers.get(index)?.load(Ordering::Acquire) {
                0 => None,
                at => Some(Agent { private: at as *const Private }),
            }
        })
    }
}

/// Marks this thread's stack while `look` may look into the memory of sharers
/// ([`looking_mark`]): until then, the memory of one that has ended stays.
#[inline(always)]
pub fn looking<T>(look: impl FnOnce() -> T) -> T {
    let mut mark = 0u64;
    let at = addr_of_mut!(mark);
    // SAFETY: a variable of this function.
    unsafe { at.write_volatile(looking_mark(at as u64)) };
    compiler_fence(Ordering::SeqCst);
    let result = look();
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the same variable. What is left on the stack must not look like a mark.
    unsafe { at.write_volatile(0) };
    result
}
