//! Call stacks: 27, 67 (`kernel/bpf/stackmap.c`).

use core::mem::MaybeUninit;

use sidestep_wire::private::stack_id;
use sidestep_wire::stacks::{DEPTH, Digest, FAST_COMPARE, REUSE};
use sidestep_wire::{MapError, Stacks, ThreadState};

use super::{EFAULT, EINVAL, here, map, maps, memory};
use crate::unwind::Frames;

/// `BPF_F_SKIP_FIELD_MASK`: innermost addresses that are left out.
const SKIP: u64 = 0xff;
/// `BPF_F_USER_STACK`. Without it the kernel gives its own stack, which is empty at a probe of a
/// user program.
const USER_STACK: u64 = 1 << 8;

/// How many addresses of a stack are kept while its number is looked up.
const KEPT: usize = 16;

/// A stack of which only the `first` addresses are kept, for want of room: the others are walked
/// through each time.
#[inline(never)]
fn insert_deep(
    stacks: Stacks<'_>,
    flags: u64,
    first: &[u64],
    frames: &Frames,
    digest: Digest,
) -> Result<u64, MapError> {
    let others = || frames.again().take((stacks.depth() as usize).saturating_sub(KEPT));
    let digest = others().fold(digest, Digest::with);
    stacks.insert(digest, flags, || first.iter().copied().chain(others()))
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
    // SAFETY: the verifier has proven that `desc` is a map. The sixth argument is the state of this
    // thread.
    let (desc, (agent, thread)) = unsafe { (map(desc), here(state)) };
    let stacks = maps::stacks(agent, desc);
    // SAFETY: the verifier has proven that `context` points to the registers of this thread's hit,
    // which stays in place.
    let mut frames = unsafe { Frames::new(agent, thread, context) };
    for _ in 0..flags & SKIP {
        if frames.next().is_none() {
            return EFAULT;
        }
    }
    let mut first = [const { MaybeUninit::<u64>::uninit() }; KEPT];
    let depth = stacks.depth();
    // SAFETY: `first` has room for `KEPT` words, and no more are asked for.
    let kept = unsafe { frames.fill(first.as_mut_ptr().cast(), depth.min(KEPT as u64)) };
    // SAFETY: `fill` has written the first `kept` words.
    let first = unsafe { core::slice::from_raw_parts(first.as_ptr().cast::<u64>(), kept as usize) };
    let digest = first.iter().fold(Digest::EMPTY, |digest, address| digest.with(*address));
    if digest.is_empty() {
        return EFAULT;
    }
    let result = if kept < KEPT as u64 || kept == depth {
        stacks.insert(digest, flags, || first.iter().copied())
    } else {
        insert_deep(stacks, flags, first, &frames, digest)
    };
    match result {
        Ok(id) => stack_id(id, agent.space()),
        Err(error) => {
            if error == MapError::Exists {
                agent.live(desc).dropped.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
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
    // SAFETY: the verifier has proven that `len` bytes can be written at `to`, and that `context`
    // is that of this thread's hit. The sixth argument is the state of this thread.
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
