//! What generated code calls: the functions of the agent.

use sidestep_wire::{LookupEntry, Private, Regs, ThreadState};

use crate::hit::{self, Place};
use crate::memory::{Agent, Thread};
use crate::{arch, exclusive, shadow, signal, thread};

/// The lookup entry of the thread with this `fs` base, made at its first hit. Null = there is no
/// room for another thread: the caller counts a missed hit.
///
/// # Safety
/// `private` is a filled private region, which stays mapped with all that it points to, and
/// `fs_base` is the calling thread's.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_slot(private: *const Private, fs_base: u64) -> *const LookupEntry {
    // SAFETY: the caller promises that `private` is a filled private region, which stays mapped.
    let agent = unsafe { Agent::new(private) };
    match thread::slot(agent, fs_base) {
        Some(bucket) => bucket.as_ptr(),
        None => core::ptr::null(),
    }
}

/// A hit of `probe`: does what its [`sidestep_wire::ProbeDesc`] says. Gives 1 if the return address
/// was replaced by this hit: the function is then to be called by the code in front of the
/// trampoline.
///
/// # Safety
/// `private` is a filled private region, which stays mapped with all that it points to. `state` is
/// the calling thread's state from its lookup entry (null counts as missed). `regs` are those of a
/// [`sidestep_wire::Hit`] that the thunk saved, which stays in place until this returns; the rest
/// of it is filled here. For probes that watch a return, `regs.rsp` points to the return address.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_hit(
    regs: *mut Regs,
    state: *mut ThreadState,
    private: *const Private,
    probe: u32,
) -> u64 {
    // SAFETY: the caller promises that `private` is a filled private region, and that `regs` are
    // those of a hit, which stays on the stack of this thread.
    let (agent, place) = unsafe { (Agent::new(private), Place::around(regs)) };
    if state.is_null() {
        hit::missed(agent, probe);
        return 0;
    }
    // SAFETY: the caller promises that `state`, which is not null here, is this thread's state.
    u64::from(hit::hit(agent, unsafe { Thread::new(state) }, place, probe))
}

/// A function returned to the trampoline: does the work of the probes that watch it, newest first,
/// and gives the address to go on at.
///
/// The slot of the return address is at `regs.rsp - 8`. Every slot that holds the trampoline's
/// address has a live entry in some thread's shadow stack; only if the target wrote that address
/// somewhere else itself (stacks copied to the heap and back, as greenlets are) the answer is 0,
/// and the target dies at address 0.
///
/// # Safety
/// `private` is a filled private region, which stays mapped with all that it points to. `regs` are
/// those of a [`sidestep_wire::Hit`] that the thunk saved, which stays in place until this returns.
/// `state` is the calling thread's state, or null for a thread without a slot.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_return(regs: *mut Regs, state: *mut ThreadState, private: *const Private) -> u64 {
    // SAFETY: the caller promises that `private` is a filled private region, and that `regs` are
    // those of a hit, which stays on the stack of this thread.
    let (agent, place) = unsafe { (Agent::new(private), Place::around(regs)) };
    // SAFETY: the caller promises that `state` is this thread's state if it is not null.
    let thread = (!state.is_null()).then(|| unsafe { Thread::new(state) });
    hit::returned(agent, thread, place)
}

/// Where the frame of a stack slot returns to in the end, that this session's trampoline stands for
/// in the slot, or in the shadow stack of another session, which asks: of entries before `before`,
/// a time stamp. With `unwinds`, for an unwinder, which then finds that address in the slot. 0 = it
/// is not known.
///
/// # Safety
/// `private` is a filled private region, which stays mapped with all that it points to.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_real(private: *const Private, slot: u64, before: u64, unwinds: u64) -> u64 {
    // SAFETY: the caller promises that `private` is a filled private region, which stays mapped.
    let agent = unsafe { Agent::new(private) };
    shadow::real_before(agent, slot, before, unwinds != 0).unwrap_or(0)
}

/// Gives the thread a stack of its own for programs ([`ThreadState::stack`]), which is returned. 0
/// = there is no memory for it: the caller counts a missed hit.
///
/// # Safety
/// `state` is the calling thread's state, which has been prepared.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_stack(state: *mut ThreadState) -> u64 {
    // SAFETY: the caller promises that `state` is this thread's state.
    let thread = unsafe { Thread::new(state) };
    // SAFETY: the state has the address of the private region since it was prepared.
    let agent = unsafe { Agent::new(thread.private() as *const Private) };
    thread::stack(agent, thread).unwrap_or(0)
}

/// May the exclusive program of the hit around `regs` run although `state.busy` is not 0? If so
/// (1), `busy` is set; 0 = the hit is missed. See the rule in `exclusive.rs`.
///
/// # Safety
/// `state` is the calling thread's state, which has been prepared. `regs` are those of a
/// [`sidestep_wire::Hit`] that stays in place until this returns, and its `probe` is written.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_busy(regs: *mut Regs, state: *mut ThreadState) -> u64 {
    // SAFETY: the caller promises that `state` is this thread's state, and that `regs` are those of
    // a hit, which stays in place.
    let (thread, place) = unsafe { (Thread::new(state), Place::around(regs)) };
    // SAFETY: the state has the address of the private region since it was prepared.
    let agent = unsafe { Agent::new(thread.private() as *const Private) };
    u64::from(exclusive::replace(agent, thread, place.address()))
}

/// Runs a program that was not compiled: its `len` instruction slots at `slots`, on a stack of
/// `stack_len` bytes that ends at `stack_end` (16-aligned; 512 bytes for each nested call). The
/// code of such a probe is a stub that makes room for the stack and sets the arguments but the
/// first and the last, which it was given.
///
/// # Safety
/// At `slots` are `len` slots of a program, which does not change while it runs. It is verified and
/// linked, but for callbacks of `loop`, which stay numbers of slots; the stack is writable. `regs`
/// and `state` are what every program is given.
#[cfg(any(not(agent_blob), agent_interpreter))]
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_interpret(
    regs: *mut Regs,
    slots: *const u64,
    len: u64,
    stack_end: u64,
    stack_len: u64,
    state: *mut ThreadState,
) -> u64 {
    // SAFETY: the caller promises that `len` slots are at `slots`, and that nobody changes them
    // while the program runs.
    let code = unsafe { core::slice::from_raw_parts(slots.cast(), len as usize) };
    crate::interpret::run(code, regs as u64, stack_end, stack_len, state)
}

/// The handler of the signals of [`sidestep_wire::Signals`], called by a stub that puts `private`
/// in front of the kernel's arguments. Gives the address of the program's own handler, to which the
/// stub has to jump with registers and stack as the kernel had made them; 0 = return. `back` is
/// where the stub has the return address of the handler, where that is in a register; elsewhere it
/// is not used.
///
/// # Safety
/// `private` is a filled private region, which stays mapped with all that it points to. `info` and
/// `context` are what the kernel passes to a handler with `SA_SIGINFO`. `back` is a word of the
/// stub's, where the return address is in a register.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub unsafe extern "C" fn agent_signal(
    private: *const Private,
    signal: i32,
    info: *mut u8,
    context: *mut u8,
    back: *mut u64,
) -> u64 {
    // SAFETY: the caller promises that `private` is a filled private region, that `info` and
    // `context` are what the kernel passes to a handler with `SA_SIGINFO`, and what `back` is.
    unsafe { signal::handle(Agent::new(private), signal, info, context, back) }
}

/// Where a load of this agent goes on that has failed at `ip`; 0 = that is no load of this agent.
/// Called by the agent of the session that owns the signals.
#[cfg_attr(agent_blob, unsafe(no_mangle))]
pub extern "C" fn agent_after_fault(ip: u64) -> u64 {
    arch::load::after_fault(ip).unwrap_or(0)
}

/// Reads of memory that may not be there, for tests and measurements.
#[cfg(not(agent_blob))]
pub mod reads {
    use sidestep_wire::Private;

    use crate::memory::Agent;
    use crate::safe_read;

    /// As `safe_read::copy` of the agent.
    ///
    /// # Safety
    /// `private` is a filled private region, which stays mapped with all that it points to. `to` is
    /// writable for `len` bytes.
    pub unsafe fn copy(private: *const Private, from: u64, to: *mut u8, len: u64) -> u64 {
        // SAFETY: the caller promises that `private` is a filled private region, and that `to` is
        // writable for `len` bytes.
        unsafe { safe_read::copy(Agent::new(private), from, to, len) }
    }

    /// As `safe_read::copy_str` of the agent.
    ///
    /// # Safety
    /// `private` is a filled private region, which stays mapped with all that it points to. `to` is
    /// writable for `max` bytes.
    pub unsafe fn copy_str(private: *const Private, from: u64, to: *mut u8, max: u64) -> Option<u64> {
        // SAFETY: the caller promises that `private` is a filled private region, and that `to` is
        // writable for `max` bytes.
        unsafe { safe_read::copy_str(Agent::new(private), from, to, max) }
    }

    /// As `safe_read::word` of the agent.
    ///
    /// # Safety
    /// `private` is a filled private region, which stays mapped with all that it points to.
    #[must_use]
    pub unsafe fn word(private: *const Private, at: u64) -> Option<u64> {
        // SAFETY: the caller promises that `private` is a filled private region, which stays
        // mapped.
        unsafe { safe_read::word(Agent::new(private), at) }
    }
}
