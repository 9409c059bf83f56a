//! Alternate signal stacks (`sigaltstack`). Threads may share one if it is only used by a handler
//! that ends the program. Handlers of ours run there by default, in several threads at a time. So
//! once two threads have the same one, handlers of ours run on the stack that the thread is on,
//! except for signals whose own handler of the program asks for the alternate stack.

use core::sync::atomic::Ordering;

use sidestep_wire::Regs;
use sidestep_wire::signals::{SIGNALS, set_of};

use crate::arch::{self, argument};
use crate::memory::{Agent, Thread};
use crate::{blocked, guard, safe_read, signal, thread};

/// `stack_t::ss_flags`: no alternate stack from now on.
const SS_DISABLE: u32 = 2;

/// The thread is about to set its alternate stack by this system call.
pub fn set(agent: Agent, thread: Thread, frame: &mut Regs) {
    let new = *argument(frame, 0);
    if new == 0 || thread::is_borrower(agent) {
        return;
    }
    // `stack_t`: address, flags, size, a word each. The kernel says what is wrong with it.
    let word = |index: u64| safe_read::word(agent, new.wrapping_add(index * arch::WORD));
    let (Some(start), Some(flags)) = (word(0), word(1)) else { return };
    thread.set_altstack(if flags as u32 & SS_DISABLE == 0 { start } else { 0 });
    if thread.altstack() != 0 && thread::shares_altstack(agent, thread) {
        leave(agent);
    }
}

/// From here on handlers of ours do not run there. A fault of a read of ours would, where the
/// program has a handler for it: so such reads ask the kernel (`safe_read`).
fn leave(agent: Agent) {
    let signals = &agent.private().signals;
    if signals.shared_stack.swap(1, Ordering::AcqRel) != 0 {
        return;
    }
    let ours = blocked::ours(agent);
    for (index, number) in SIGNALS.iter().enumerate().filter(|(_, number)| ours & set_of(**number) != 0) {
        guard::set_flags(agent, *number as u64, &signal::old_action(agent, index));
    }
}
