//! The part of Sidestep that runs inside the target.
//!
//! Generated thunks call the four `agent_*` functions on the target's own stack, at any instruction of the program, in
//! any context: before the dynamic loader has run, inside `malloc`, in a signal handler, on a coroutine's stack. So the
//! agent calls nothing of the target, takes no lock, keeps no flag of being busy, uses little stack, and cannot panic.
//! All its state lies behind the [`Private`] region whose address every function is given.
//!
//! The same source is two things: an ordinary library, tested on the host, and, compiled with `--cfg agent_blob` by
//! the build script of `sidestep-engine`, a flat position-independent image that the engine maps into a target.
#![no_std]

mod arch;
#[cfg(agent_blob)]
mod freestanding;
mod guard;
mod hit;
mod memory;
mod record;
mod safe_read;
mod shadow;
mod thread;
mod trap;

use sidestep_wire::{Frame, LookupEntry, Private, ThreadState};

use memory::{Agent, Thread};

/// The lookup entry of the thread with this `fs` base, made at its first hit. Null = there is no room for another
/// thread: the caller counts a missed hit.
///
/// # Safety
/// `private` is a filled private region, and `fs_base` is the calling thread's.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_slot(private: *const Private, fs_base: u64) -> *const LookupEntry {
    // SAFETY: the caller's.
    let agent = unsafe { Agent::new(private) };
    match thread::slot(agent, fs_base) {
        Some(bucket) => bucket.as_ptr(),
        None => core::ptr::null(),
    }
}

/// A hit of `probe`: does what its [`sidestep_wire::ProbeDesc`] says.
///
/// # Safety
/// `private` is a filled private region, `state` the calling thread's state from its lookup entry (null counts as
/// missed), `frame` what the thunk saved. For probes that watch a return, `frame.rsp` points to the return address.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_hit(frame: *mut Frame, state: *mut ThreadState, private: *const Private, probe: u32) {
    // SAFETY: the caller's; the frame lies on this thread's stack and nobody else has it.
    let (agent, frame) = unsafe { (Agent::new(private), &mut *frame) };
    if state.is_null() {
        return hit::missed(agent, probe);
    }
    // SAFETY: the caller's.
    hit::hit(agent, unsafe { Thread::new(state) }, frame, probe);
}

/// A function returned to the trampoline: does the work of the probes that watch it, newest first, and gives the
/// address to go on at.
///
/// The slot of the return address is at `frame.rsp - 8`. Every slot that holds the trampoline's address has a live
/// entry in some thread's shadow stack; only if the target wrote that address somewhere else itself (stacks copied to
/// the heap and back, as greenlets are) the answer is 0, and the target dies at address 0.
///
/// # Safety
/// As for [`agent_hit`]; `state` may be null for a thread without a slot.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_return(frame: *mut Frame, state: *mut ThreadState, private: *const Private) -> u64 {
    // SAFETY: the caller's.
    let (agent, frame) = unsafe { (Agent::new(private), &*frame) };
    // SAFETY: the caller's.
    let thread = (!state.is_null()).then(|| unsafe { Thread::new(state) });
    hit::returned(agent, thread, frame)
}

/// The SIGTRAP handler, called by a stub that puts `private` in front of the kernel's arguments.
///
/// # Safety
/// `private` is a filled private region, `info` and `context` are the kernel's.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_sigtrap(private: *const Private, signal: i32, info: *mut u8, context: *mut u8) {
    // SAFETY: the caller's.
    unsafe { trap::sigtrap(Agent::new(private), signal, info, context) }
}
