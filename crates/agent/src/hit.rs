//! What happens at a hit: counts, return addresses, programs.

use core::ptr::addr_of_mut;

use sidestep_wire::arch::{GOROUTINE, INSTRUCTION_POINTER, STACK_POINTER};
use sidestep_wire::{Flow, Hit, ProbeDesc, Regs, ShadowEntry};

use crate::arch;
use crate::memory::{Agent, Thread};
use crate::{bell, exclusive, guard, helpers, places, return_address, shadow};

const ENTRY: u32 = Flow::Entry as u32;
const RETURN: u32 = Flow::Return as u32;
const ENTER: u32 = Flow::Enter as u32;
const EXIT: u32 = Flow::Exit as u32;
const UNWIND: u32 = Flow::Unwind as u32;
const CAUGHT: u32 = Flow::Caught as u32;
const MAPPED: u32 = Flow::Mapped as u32;
const SIGNAL_CALL: u32 = Flow::SignalCall as u32;

/// The hit that a thunk has on its stack. Programs and helpers write to it, too.
#[derive(Clone, Copy)]
pub struct Place(*mut Hit);

impl Place {
    /// # Safety
    /// `regs` is [`Hit::regs`] of a hit that stays in place while this is used.
    #[inline(always)]
    #[must_use]
    pub unsafe fn around(regs: *mut Regs) -> Place {
        Place(regs.cast::<u8>().wrapping_sub(core::mem::offset_of!(Hit, regs)).cast())
    }

    /// Where it is.
    #[inline(always)]
    #[must_use]
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// The context.
    #[inline(always)]
    #[must_use]
    pub fn regs(self) -> *mut Regs {
        // SAFETY: whoever made this place promised that a hit is there. Only an address is taken.
        unsafe { addr_of_mut!((*self.0).regs) }
    }

    /// Which probe.
    #[inline(always)]
    #[must_use]
    pub fn probe(self) -> u64 {
        // SAFETY: whoever made this place promised that a hit is there as long as this is used.
        unsafe { addr_of_mut!((*self.0).probe).read_volatile() }
    }

    /// Lets the program return from the probed function.
    pub fn override_return(self) {
        // SAFETY: whoever made this place promised that a hit is there as long as this is used.
        unsafe { addr_of_mut!((*self.0).overridden).write_volatile(1) }
    }

    fn is_overridden(self) -> bool {
        // SAFETY: whoever made this place promised that a hit is there as long as this is used.
        unsafe { addr_of_mut!((*self.0).overridden).read_volatile() != 0 }
    }

    fn cookie(self) -> u64 {
        // SAFETY: whoever made this place promised that a hit is there as long as this is used.
        unsafe { addr_of_mut!((*self.0).cookie).read_volatile() }
    }

    /// Makes it a hit of a probe.
    #[inline(always)]
    fn begin(self, probe: u64, cookie: u64) {
        // SAFETY: whoever made this place promised that a hit is there as long as this is used.
        unsafe {
            addr_of_mut!((*self.0).probe).write_volatile(probe);
            addr_of_mut!((*self.0).cookie).write_volatile(cookie);
            addr_of_mut!((*self.0).overridden).write_volatile(0);
        }
    }
}

/// A hit by a thread that has no state.
#[cold]
pub fn missed(agent: Agent, probe: u32) {
    agent.count_missed(probe);
}

/// A hit at the site of a probe. True: it has replaced the return address.
#[inline(always)]
pub fn hit(agent: Agent, thread: Thread, hit: Place, probe: u32) -> bool {
    let Some(desc) = agent.probe(probe) else { return false };
    let regs = hit.regs();
    // SAFETY: the registers are those of the hit of this place, which the thunk keeps on its stack.
    let stack_pointer = unsafe { arch::register(regs, STACK_POINTER) };
    if desc.flow == EXIT {
        leaves(agent, thread, desc, hit, probe, stack_pointer);
        return false;
    }
    if desc.flow == RETURN || desc.flow == ENTRY || desc.flow == ENTER {
        return entered(agent, thread, desc, hit, probe, stack_pointer);
    }
    own(agent, thread, desc.flow, regs, stack_pointer);
    false
}

/// A hit at a site of our own.
#[cold]
#[inline(never)]
fn own(agent: Agent, thread: Thread, flow: u32, regs: *mut Regs, stack_pointer: u64) {
    match flow {
        UNWIND => shadow::unwind(agent, thread),
        CAUGHT => shadow::caught(agent, thread, stack_pointer),
        // An unwinder that has come may have no probe.
        MAPPED if !bell::mapped(agent) => {
            return_address::keep(agent);
            shadow::unwind(agent, thread);
        }
        // SAFETY: nobody else has the registers: no program runs at such a probe.
        SIGNAL_CALL => guard::system_call(agent, thread, unsafe { &mut *regs }),
        _ => {}
    }
}

#[inline(always)]
fn entered(agent: Agent, thread: Thread, desc: &ProbeDesc, hit: Place, probe: u32, stack_pointer: u64) -> bool {
    if !thread.counts(agent) {
        return false; // a child
    }
    hit.begin(u64::from(probe), 0);
    let mut watch = desc.flow != ENTRY;
    if watch && !places::take(agent, desc, stack_pointer) {
        agent.count_missed(probe);
        return false;
    }
    if desc.entry != 0 {
        let Some(result) = run(agent, thread, desc, desc.entry, hit) else {
            places::leave(desc, stack_pointer);
            agent.count_missed(probe);
            return false;
        };
        watch &= result == 0 && !hit.is_overridden();
    }
    if desc.flow == ENTRY || desc.flags & ProbeDesc::COUNT_ENTRY != 0 {
        thread.count(agent, u64::from(desc.hits));
    }
    if !watch {
        places::leave(desc, stack_pointer);
        return false;
    }
    if desc.flow == ENTER && desc.flags & ProbeDesc::GOROUTINE != 0 {
        if let Some(call) = goroutine_call(hit, probe, stack_pointer) {
            shadow::goroutines::remember(agent, call, hit.cookie());
        }
        return false;
    }
    if desc.flow == ENTER {
        // SAFETY: such probes are only put on function entries.
        let ret = unsafe { arch::returns_to(hit.regs(), stack_pointer) };
        if shadow::kept::remember(agent, thread, stack_pointer, ret, probe, hit.cookie()) {
            places::keep(desc, stack_pointer);
        } else {
            places::leave(desc, stack_pointer);
        }
        return false;
    }
    // Time stamps are slow to take: the program's will do.
    let time = match thread.stamp() {
        stamp if desc.entry != 0 && stamp != 0 => stamp,
        _ => agent.monotonic(),
    };
    // SAFETY: such probes are only put on function entries, where the stack pointer leads to the
    // return address.
    let replaced = unsafe { shadow::push(agent, thread, stack_pointer, probe, hit.cookie(), time) };
    places::keep(desc, stack_pointer);
    replaced
}

/// An exit of a function is about to be executed: the stack pointer is at the return address,
/// `slot`. The program sees the registers as they will be behind the return.
#[inline(never)]
fn leaves(agent: Agent, thread: Thread, desc: &ProbeDesc, hit: Place, probe: u32, slot: u64) {
    if !thread.counts(agent) {
        return; // a child
    }
    let mut cookie = 0;
    if let Some(pair) = desc.pair.checked_sub(1) {
        // Else the call began before the probe was there, or in another function that shares the
        // code.
        let Some(entry) = agent.probe(pair & !(ShadowEntry::JUMPED as u32)) else { return };
        // SAFETY: an exit is executed with the return address in its place.
        let ret = unsafe { arch::returns_to(hit.regs(), slot) };
        if desc.flags & ProbeDesc::JUMP != 0 {
            return shadow::kept::jumps(agent, thread, slot, pair);
        }
        let exit = shadow::kept::Exit { slot, ret, pair, is_shared: desc.flags & ProbeDesc::SHARED != 0 };
        let left = match desc.flags & ProbeDesc::GOROUTINE {
            0 => shadow::kept::end(agent, thread, &exit),
            _ => goroutine_call(hit, pair, slot).and_then(|call| shadow::goroutines::end(agent, call)),
        };
        let Some(left) = left else { return };
        cookie = left;
        places::leave(entry, slot);
    }
    if desc.exit != 0 {
        let regs = hit.regs();
        // SAFETY: an exit is executed with the return address in its place. The registers are those
        // of the hit of this place, which the thunk keeps on its stack.
        let site = unsafe {
            let ret = arch::returns_to(regs, slot);
            let real = match ret == agent.private().trampoline {
                true => shadow::real_return(agent, Some(thread), slot).unwrap_or(ret),
                false => ret,
            };
            let site = (arch::register(regs, INSTRUCTION_POINTER), arch::register(regs, STACK_POINTER));
            arch::set_register(regs, INSTRUCTION_POINTER, real);
            arch::set_register(regs, STACK_POINTER, slot.wrapping_add(arch::POPPED).wrapping_add(desc.drops));
            site
        };
        hit.begin(u64::from(probe) | Hit::RETURNED, cookie);
        let result = run(agent, thread, desc, desc.exit, hit);
        // SAFETY: the registers are those of the hit of this place, which the thunk keeps on its
        // stack. The thunk needs the values of the site.
        unsafe {
            arch::set_register(regs, INSTRUCTION_POINTER, site.0);
            arch::set_register(regs, STACK_POINTER, site.1);
        }
        if result.is_none() {
            return agent.count_missed(probe);
        }
    }
    thread.count(agent, u64::from(desc.hits));
}

/// The call of a Go function whose return address is at `slot`.
#[inline(never)]
fn goroutine_call(hit: Place, probe: u32, slot: u64) -> Option<shadow::goroutines::Call> {
    // SAFETY: the registers are those of the hit of this place, which the thunk keeps on its stack.
    let goroutine = unsafe { arch::register(hit.regs(), GOROUTINE) };
    // SAFETY: the controller puts such probes only on functions that have just read from where the
    // register leads (`plan::go`), and that keep it.
    unsafe { shadow::goroutines::Call::of(goroutine, slot, probe) }
}

/// A return to the trampoline. Gives the real return address.
#[inline(always)]
pub fn returned(agent: Agent, thread: Option<Thread>, hit: Place) -> u64 {
    // SAFETY: the registers are those of the hit of this place, which the thunk keeps on its stack.
    let behind = unsafe { arch::register(hit.regs(), STACK_POINTER) };
    let slot = if arch::DROPS_ARGUMENTS {
        shadow::returned_from(agent, thread, behind)
    } else {
        behind.wrapping_sub(arch::WORD)
    };
    let trampoline = agent.private().trampoline;
    // The thunk keeps this slot. Until then it says, as it did during the call, that the frame is
    // alive: a signal handler that makes room in the shadow stack must not take the entry for a
    // dead one. SAFETY: a slot that the thunk reserved.
    unsafe { arch::write_word(slot, trampoline) };
    let mut real = 0;
    loop {
        let Some(entry) = shadow::take(agent, thread, slot) else { return real };
        if entry.ret != trampoline {
            real = entry.ret;
        } else if real == 0 {
            real = shadow::real_return(agent, thread, slot).unwrap_or(0);
        }
        if let Some(desc) = agent.probe(entry.probe as u32) {
            places::leave(desc, slot);
        }
        match thread {
            Some(thread) => finish(agent, thread, entry.probe as u32, entry.cookie, hit, real),
            None => agent.count_dropped(entry.probe as u32),
        }
        if entry.ret != trampoline {
            return real;
        }
    }
}

#[inline(always)]
fn finish(agent: Agent, thread: Thread, probe: u32, cookie: u64, hit: Place, real: u64) {
    let Some(desc) = agent.probe(probe) else { return };
    if !thread.counts(agent) {
        return; // a child
    }
    if desc.exit != 0 {
        hit.begin(u64::from(probe) | Hit::RETURNED, cookie);
        // SAFETY: the registers are those of the hit of this place, which the thunk keeps on its
        // stack.
        unsafe { arch::set_register(hit.regs(), INSTRUCTION_POINTER, real) };
        if run(agent, thread, desc, desc.exit, hit).is_none() {
            return agent.count_missed(probe);
        }
    }
    if desc.flags & ProbeDesc::COUNT_ENTRY == 0 {
        thread.count(agent, u64::from(desc.hits));
    }
}

/// Runs a program; `None` = it must not be entered now.
#[inline(never)]
fn run(agent: Agent, thread: Thread, desc: &ProbeDesc, code: u64, hit: Place) -> Option<u64> {
    let alone = desc.flags & ProbeDesc::EXCLUSIVE != 0;
    if alone && !exclusive::enter(agent, thread, hit) {
        return None;
    }
    thread.set_stamp(0);
    // SAFETY: the controller put a verified program there, compiled for this ABI.
    let result = unsafe {
        let program: helpers::Function = core::mem::transmute(code as *const ());
        program(hit.regs() as u64, 0, 0, 0, 0, thread.as_ptr())
    };
    // Without asking `alone` again: the compiler would make two calls of one.
    exclusive::leave(thread, hit);
    Some(result)
}
