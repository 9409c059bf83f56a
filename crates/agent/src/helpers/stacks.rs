//! Call stacks: 27, 67 (`kernel/bpf/stackmap.c`).

use core::mem::MaybeUninit;

use sidestep_wire::stacks::{DEPTH, Digest, FAST_COMPARE, REUSE};
use sidestep_wire::{MapError, ThreadState};

use super::{EFAULT, EINVAL, here, map, maps, memory};
use crate::unwind::Frames;

/// `BPF_F_SKIP_FIELD_MASK`: innermost addresses that are left out.
const SKIP: u64 = 0xff;
/// `BPF_F_USER_STACK`. Without it the kernel gives its own stack, which is empty at a probe of a user program.
const USER_STACK: u64 = 1 << 8;

/// How many addresses of a stack are kept while its number is looked up.
const KEPT: usize = 16;

/// All addresses of a stack: those that are kept, and others that are walked through each time, for want of room.
#[derive(Clone, Copy)]
struct Walk {
    at: *const u64,
    kept: u64,
    frames: Frames,
    /// Most addresses that are still wanted.
    left: u64,
}

impl Iterator for Walk {
    type Item = u64;

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        let Some(kept) = self.kept.checked_sub(1) else { return self.frames.next() };
        self.kept = kept;
        // SAFETY: one of the words that were filled, which are there as long as the walk.
        let address = unsafe { self.at.read() };
        self.at = self.at.wrapping_add(1);
        Some(address)
    }
}

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
    let mut frames = unsafe { Frames::new(agent, thread, context) };
    for _ in 0..flags & SKIP {
        if frames.next().is_none() {
            return EFAULT;
        }
    }
    let mut first = [const { MaybeUninit::<u64>::uninit() }; KEPT];
    let depth = stacks.depth();
    // SAFETY: as many words, or fewer.
    let kept = unsafe { frames.fill(first.as_mut_ptr().cast(), depth.min(KEPT as u64)) };
    let walk = Walk { at: first.as_ptr().cast(), kept, frames, left: depth };
    let digest = walk.fold(Digest::EMPTY, Digest::with);
    if digest.is_empty() {
        return EFAULT;
    }
    let addresses = || walk;
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
        8 * frames.fill(to as *mut u64, (len / 8).min(DEPTH))
    }
}
