//! Being scheduled before everybody else while a target stands still: on a machine with more to do
//! than CPUs, a controller that waits for its turn would let the target wait, too.
#![allow(unsafe_code, reason = "sched_getscheduler, sched_setscheduler")]

/// The calling thread has real-time priority until this is dropped, if it may (`CAP_SYS_NICE` or
/// `RLIMIT_RTPRIO`), and does not have a policy of its own. Several at a time are as one.
#[derive(Debug)]
pub struct Urgent {
    raised: bool,
}

impl Urgent {
    /// From now on.
    pub fn new() -> Urgent {
        // SAFETY: no memory is involved.
        let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        // The lowest of the real-time priorities.
        Urgent { raised: policy == libc::c_long::from(libc::SCHED_OTHER) && schedule(libc::SCHED_RR, 1) }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if self.raised {
            schedule(libc::SCHED_OTHER, 0);
        }
    }
}

fn schedule(policy: i32, priority: i32) -> bool {
    // SAFETY: `struct sched_param` is one int, which lives through the call.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> libc::c_long {
        // SAFETY: the call has no pointers.
        unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) }
    }

    #[test]
    fn the_policy_is_as_it_was_afterwards() {
        let before = policy();
        let outer = Urgent::new();
        assert!(outer.raised == (policy() != before));
        drop(Urgent::new());
        assert!(outer.raised == (policy() != before), "an inner one has ended");
        drop(outer);
        assert_eq!(policy(), before);
    }
}
