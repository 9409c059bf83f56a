//! The helpers of programs, with the kernel's numbers and meanings (`include/uapi/linux/bpf.h`):
//! negative results are `-errno`.
//!
//! Generated code calls them through [`sidestep_wire::ThreadState::helpers`] and hands the state on
//! as the sixth argument. The SAFETY comments of helpers say what the verifier has proven about the
//! others: pointers to as much memory as is named, the context, a map.

mod context;
mod maps;
mod memory;
mod output;
mod stacks;
mod task;

use sidestep_wire::{HELPERS, MapDesc, ThreadState};

use crate::memory::{Agent, Thread};

#[cfg(any(not(agent_blob), agent_interpreter))]
pub use context::loops;

/// A helper, or native code of a program.
pub type Function = unsafe extern "C" fn(u64, u64, u64, u64, u64, *mut ThreadState) -> u64;

const fn error(number: i64) -> u64 {
    (-number) as u64
}

const ENOENT: u64 = error(2);
const E2BIG: u64 = error(7);
const EAGAIN: u64 = error(11);
const EFAULT: u64 = error(14);
const EINVAL: u64 = error(22);
const ENOSPC: u64 = error(28);
const EOPNOTSUPP: u64 = error(95);

/// Writes the helpers' addresses one by one: a table of them would need relocations.
pub fn install(thread: Thread) {
    for number in 0..HELPERS {
        thread.set_helper(number, address(unknown));
    }
    let set = |number: usize, helper: Function| thread.set_helper(number, address(helper));
    set(1, maps::lookup_elem);
    set(2, maps::update_elem);
    set(3, maps::delete_elem);
    set(5, task::ktime_get_ns);
    set(6, output::trace_printk);
    set(7, task::get_prandom_u32);
    set(8, task::get_smp_processor_id);
    set(14, task::get_current_pid_tgid);
    set(15, task::get_current_uid_gid);
    set(16, task::get_current_comm);
    set(25, output::perf_event_output);
    set(27, stacks::get_stackid);
    set(36, memory::probe_write_user);
    set(58, context::override_return);
    set(67, stacks::get_stack);
    set(109, task::send_signal);
    set(117, task::send_signal_thread);
    for number in [4, 112, 113] {
        set(number, memory::probe_read);
    }
    for number in [45, 114, 115] {
        set(number, memory::probe_read_str);
    }
    set(130, output::ringbuf_output);
    set(131, output::ringbuf_reserve);
    set(132, output::ringbuf_submit);
    set(133, output::ringbuf_discard);
    set(134, output::ringbuf_query);
    set(173, context::get_func_ip);
    set(174, context::get_attach_cookie);
    set(181, context::repeat);
    set(182, memory::strncmp);
    set(183, context::get_func_arg);
    set(184, context::get_func_ret);
    set(185, context::get_func_arg_cnt);
    set(256, memory::hist_bucket);
    set(257, output::ringbuf_submit_part);
    set(258, maps::map_next);
    set(259, maps::map_len);
    set(260, memory::text_find);
    set(261, task::get_parent_pid);
    set(262, memory::text_matches);
    set(263, task::symbol);
    set(265, context::call_place);
}

fn address(helper: Function) -> u64 {
    helper as usize as u64
}

unsafe extern "C" fn unknown(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    EINVAL
}

/// What a helper works with.
///
/// # Safety
/// `state` is the running thread's, and prepared: it has the address of the private region.
#[inline(always)]
pub unsafe fn here(state: *mut ThreadState) -> (Agent, Thread) {
    // SAFETY: the caller promises that `state` is this thread's prepared state (section "Safety"
    // above), which has the address of the private region.
    unsafe {
        let thread = Thread::new(state);
        (Agent::new(thread.private() as *const _), thread)
    }
}

/// A map argument: the shape of the map.
///
/// # Safety
/// `at` is the address of a map's description, as the verifier has proven.
#[inline(always)]
unsafe fn map<'a>(at: u64) -> &'a MapDesc {
    // SAFETY: the caller promises that `at` is the address of a map's description (section "Safety"
    // above). Those that programs are given lie in the private region, and nobody changes them.
    unsafe { &*(at as *const MapDesc) }
}
