//! What belongs to a hit, and control: 58, 173, 174, 181, 183, 184, 185, 265.

use sidestep_wire::arch::{RESULT, STACK_POINTER, WORDS_BEFORE_ARGUMENTS};
use sidestep_wire::watchdog::{ANY_NUMBER, Watchdog};
use sidestep_wire::{Hit, ProbeDesc, Regs, ThreadState};

use super::{E2BIG, EINVAL, EOPNOTSUPP, Function, here};
use crate::arch;
use crate::hit::Place;
use crate::safe_read;
use crate::shadow::goroutines::Call;

/// Arguments in registers.
const REGISTERS: u64 = arch::REGISTER_ARGUMENTS;
/// Arguments on the stack that are looked for.
const MOST_ARGUMENTS: u64 = 64;
/// Most calls of a callback: the kernel's `BPF_MAX_LOOPS`.
const MAX_LOOPS: u64 = 1 << 23;

/// # Safety
/// `context` points to the registers of this thread's hit, `state` is the running thread's,
/// prepared.
unsafe fn probe(context: u64, state: *mut ThreadState) -> Option<&'static ProbeDesc> {
    // SAFETY: the caller promises that `context` points to the registers of a hit and that `state`
    // is this thread's (section "Safety" above). Descriptions are never unmapped before the detach.
    unsafe {
        let (agent, _) = here(state);
        let probe = Place::around(context as *mut Regs).probe();
        agent.probe(probe as u32).map(|desc| &*core::ptr::from_ref(desc))
    }
}

/// 58: the probed function returns at once, with `value`.
pub unsafe extern "C" fn override_return(context: u64, value: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    // SAFETY: the verifier has proven that `context` points to the registers of this thread's hit.
    unsafe {
        let regs = context as *mut Regs;
        arch::set_register(regs, RESULT, value);
        Place::around(regs).override_return();
    }
    0
}

/// 173
pub unsafe extern "C" fn get_func_ip(context: u64, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the verifier has proven that `context` points to the registers of this thread's hit.
    // The sixth argument is the state of this thread.
    unsafe { probe(context, state) }.map_or(0, |desc| desc.asked)
}

/// 174
pub unsafe extern "C" fn get_attach_cookie(
    context: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    // SAFETY: the verifier has proven that `context` points to the registers of this thread's hit.
    // The sixth argument is the state of this thread.
    unsafe { probe(context, state) }.map_or(0, |desc| desc.cookie)
}

/// 265: what tells the calls of a function apart while they last: the address of the return
/// address, or where that may move, a number made of the goroutine and the distance from the end of
/// its stack.
pub unsafe extern "C" fn call_place(
    context: u64,
    slot: u64,
    goroutine: u64,
    _: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    // SAFETY: the verifier has proven that `context` points to the registers of this thread's hit.
    // The sixth argument is the state of this thread.
    let desc = unsafe { probe(context, state) };
    if desc.is_none_or(|desc| desc.flags & ProbeDesc::GOROUTINE == 0) {
        return slot;
    }
    // SAFETY: the probe is at a function of Go, which has the address of its `runtime.g` in `r14`.
    // Compiled scripts pass that as `goroutine`; the verifier does not check it.
    unsafe { Call::of(goroutine, slot, 0) }.map_or(slot, Call::place)
}

/// How often [`repeat`] calls, or its error.
pub fn loops(times: u64, flags: u64) -> Result<u64, u64> {
    match times & u64::from(u32::MAX) {
        times if flags == ANY_NUMBER => Ok(times),
        _ if flags != 0 => Err(EINVAL),
        times if times > MAX_LOOPS => Err(E2BIG),
        times => Ok(times),
    }
}

/// 181: calls a function until it gives 1, or for as long as a loop of a script may last; how
/// often.
pub unsafe extern "C" fn repeat(
    times: u64,
    callback: u64,
    context: u64,
    flags: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    let times = match loops(times, flags) {
        Ok(times) => times,
        Err(error) => return error,
    };
    // SAFETY: the verifier has proven that `callback` is native code of a function of the program.
    let callback: Function = unsafe { core::mem::transmute(callback as *const ()) };
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, _) = unsafe { here(state) };
    let mut watchdog = Watchdog::new();
    for index in 0..times {
        if flags == ANY_NUMBER && watchdog.ends(index, || agent.nanoseconds(agent.now())) {
            return index;
        }
        // SAFETY: functions of a program take these arguments. The state is this thread's.
        if unsafe { callback(index, context, 0, 0, 0, state) } != 0 {
            return index + 1;
        }
    }
    times
}

/// 183: an argument of the function that was just entered.
pub unsafe extern "C" fn get_func_arg(
    context: u64,
    number: u64,
    to: u64,
    _: u64,
    _: u64,
    state: *mut ThreadState,
) -> u64 {
    // SAFETY: the sixth argument is the state of this thread.
    let (agent, _) = unsafe { here(state) };
    let regs = context as *const Regs;
    // SAFETY: the verifier has proven that `context` points to the registers of this thread's hit.
    // The word on the stack is read safely.
    let value = unsafe {
        match arch::register_argument(&*regs, number) {
            Some(value) => Some(value),
            None if number < MOST_ARGUMENTS => {
                let stack = arch::register(regs, STACK_POINTER);
                safe_read::word(
                    agent,
                    stack.wrapping_add((WORDS_BEFORE_ARGUMENTS as u64 + number - REGISTERS) * arch::WORD),
                )
            }
            _ => None,
        }
    };
    // SAFETY: the verifier has proven that a word can be written at `to`.
    unsafe { (to as *mut u64).write_volatile(value.unwrap_or(0)) };
    if value.is_some() { 0 } else { EINVAL }
}

/// 184: what the function returned.
pub unsafe extern "C" fn get_func_ret(context: u64, to: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    let regs = context as *mut Regs;
    // SAFETY: the verifier has proven that `context` points to the registers of this thread's hit,
    // and that a word can be written at `to`.
    unsafe {
        let returned = Place::around(regs).probe() & Hit::RETURNED != 0;
        let value = arch::register(regs, RESULT);
        (to as *mut u64).write_volatile(if returned { value } else { 0 });
        if returned { 0 } else { EOPNOTSUPP }
    }
}

/// 185: nobody knows the function's type; as many as there are registers for them.
pub unsafe extern "C" fn get_func_arg_cnt(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    REGISTERS
}
