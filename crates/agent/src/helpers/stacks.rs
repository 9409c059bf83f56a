//! Call stacks: 27, 67 (`kernel/bpf/stackmap.c`).

use sidestep_wire::stacks::{DEPTH, Digest, FAST_COMPARE, REUSE};
use sidestep_wire::{MapError, ThreadState};

use super::{EFAULT, EINVAL, here, map, maps, memory};
use crate::unwind::Frames;

/// `BPF_F_SKIP_FIELD_MASK`: innermost addresses that are left out.
const SKIP: u64 = 0xff;
/// `BPF_F_USER_STACK`. Without it the kernel gives its own stack, which is empty at a probe of a user program.
const USER_STACK: u64 = 1 << 8;

/// 27: the number of the stack in the map.
pub unsafe extern "C" fn get_stackid(
    context: u64,
    desc: u64,
    flags: u64,
    _: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    if flags & !(SKIP | USER_STACK | FAST_COMPARE | REUSE) != 0 {
        return EINVAL;
    }
    if flags & USER_STACK == 0 {
        return EFAULT;
    }
    // SAFETY: verified.
    let (desc, (agent, thread)) = unsafe { (map(desc), here(state)) };
    let stacks = maps::stacks(agent, desc);
    // SAFETY: verified.
    let frames = unsafe { Frames::new(agent, thread, context) };
    // Walked more than once: there is no room here to keep it.
    let addresses = || frames.skip((flags & SKIP) as usize).take(stacks.depth() as usize);
    let digest = addresses().fold(Digest::EMPTY, Digest::with);
    if digest.is_empty() {
        return EFAULT;
    }
    match stacks.insert(digest, flags, addresses) {
        Ok(id) => id,
        Err(error) => {
            if error == MapError::Exists {
                desc.dropped.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
            }
            error.errno() as u64
        }
    }
}

/// 67: the stack itself; how many bytes. Build ids are not known here.
pub unsafe extern "C" fn get_stack(
    context: u64,
    to: u64,
    len: u64,
    flags: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    // SAFETY: verified; the running thread's.
    unsafe {
        memory::clear(to, len);
        if flags & !(SKIP | USER_STACK) != 0 || len % 8 != 0 {
            return EINVAL;
        }
        if flags & USER_STACK == 0 {
            return if flags & SKIP == 0 { 0 } else { EFAULT };
        }
        let (agent, thread) = here(state);
        let mut frames = Frames::new(agent, thread, context);
        for _ in 0..flags & SKIP {
            if frames.next().is_none() {
                return EFAULT;
            }
        }
        let mut at = to;
        let end = to + len.min(DEPTH * 8);
        while at < end {
            let Some(address) = frames.next() else { break };
            (at as *mut u64).write_unaligned(address);
            at += 8;
        }
        at - to
    }
}
