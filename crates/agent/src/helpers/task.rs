//! Who and when: 5, 7, 8, 14, 15, 16, 261, 263; and signals to whoever it is: 109, 117.

use sidestep_wire::ThreadState;

use super::{EINVAL, here};
use crate::arch;
use crate::kernel;
use crate::memory::{Agent, Thread};

/// How long a thread name may be out of date, in nanoseconds.
const COMM_AGE: u64 = 10_000_000;

/// 5: nanoseconds of `CLOCK_MONOTONIC`. Records of the same hit carry the same time.
pub unsafe extern "C" fn ktime_get_ns(_: u64, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, thread) = unsafe { here(state) };
    let now = agent.monotonic();
    thread.set_stamp(now);
    now
}

/// The time of a record.
pub fn stamp(agent: Agent, thread: Thread) -> u64 {
    match thread.stamp() {
        0 => agent.monotonic(),
        stamp => stamp,
    }
}

/// 7: the cycle counter and the thread, well mixed (the finalizer of `splitmix64`): no state that a
/// handler could tear.
pub unsafe extern "C" fn get_prandom_u32(_: u64, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, _) = unsafe { here(state) };
    let mut z = agent.now().wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(state as u64);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ z >> 31) >> 32
}

/// 8
pub unsafe extern "C" fn get_smp_processor_id(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    arch::processor().unwrap_or(0)
}

/// 14: process and thread, as the target sees them. Where children are followed, the kernel is
/// asked: one of `vfork` runs on all that is its parent's, and nothing that we can read tells it
/// from that.
pub unsafe extern "C" fn get_current_pid_tgid(_: u64, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, thread) = unsafe { here(state) };
    if agent.private().follow != 0 {
        return u64::from(kernel::process_id()) << 32 | u64::from(kernel::thread_id());
    }
    let pid = agent.private().pid.load(core::sync::atomic::Ordering::Relaxed);
    u64::from(pid) << 32 | u64::from(thread.current_tid())
}

/// 263: an address that can be named without the process.
pub unsafe extern "C" fn symbol(address: u64, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, _) = unsafe { here(state) };
    sidestep_wire::private::symbol(address, agent.space())
}

/// 261: as the target sees it.
pub unsafe extern "C" fn get_parent_pid(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    kernel::parent_id()
}

/// 15: asked of the kernel each time, for a program may change its identity whenever it likes.
pub unsafe extern "C" fn get_current_uid_gid(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    u64::from(kernel::group_id()) << 32 | u64::from(kernel::user_id())
}

/// 16
pub unsafe extern "C" fn get_current_comm(to: u64, len: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    if len == 0 {
        return EINVAL;
    }
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, thread) = unsafe { here(state) };
    let now = agent.now();
    thread.current_tid();
    if agent.nanoseconds(now.wrapping_sub(thread.comm_time())) > COMM_AGE {
        thread.refresh_comm(now);
    }
    let name = thread.comm().cast::<u8>();
    for i in 0..len {
        // SAFETY: the name has 16 bytes, and only the first 15 are read. The verifier has proven
        // that `len` bytes can be written at `to`.
        unsafe {
            let byte = if i < 15 && i < len - 1 { name.add(i as usize).read_volatile() } else { 0 };
            (to as *mut u8).add(i as usize).write_volatile(byte);
        }
    }
    0
}

/// 109: a signal to the process, taken by any of its threads. As with the kernel's, this one takes
/// it at once if it may.
pub unsafe extern "C" fn send_signal(signal: u64, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    kernel::signal_process(signal) as u64
}

/// 117: a signal to this thread.
pub unsafe extern "C" fn send_signal_thread(signal: u64, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    kernel::signal_thread(kernel::thread_id(), signal) as u64
}
