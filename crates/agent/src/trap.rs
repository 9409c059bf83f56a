//! The SIGTRAP handler: a trap of ours goes on at its detour, every other is passed on.

use core::sync::atomic::Ordering;

use sidestep_wire::TrapEntry;

use crate::arch::{self, BREAKPOINT, INT_IMM8, UCONTEXT_IP, nr};
use crate::memory::Agent;
use crate::safe_read;

const SIGTRAP: i32 = 5;
/// `si_code` of `int3` (`arch/x86/kernel/traps.c`: `force_sig`).
const SI_KERNEL: i32 = 0x80;
const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
const SIG_BLOCK: u64 = 0;
const SA_RESETHAND: u64 = 0x8000_0000;

/// # Safety
/// `info` and `context` are what the kernel passes to a handler with `SA_SIGINFO`.
pub unsafe fn sigtrap(agent: Agent, signal: i32, info: *mut u8, context: *mut u8) {
    // SAFETY: `si_code` is the third word of `siginfo_t`, the instruction pointer a word of the context.
    let (code, ip) = unsafe { (info.cast::<i32>().add(2).read_volatile(), context.add(UCONTEXT_IP).cast::<u64>()) };
    if signal == SIGTRAP && code == SI_KERNEL {
        // SAFETY: as above.
        let site = unsafe { ip.read_volatile() }.wrapping_sub(1);
        if let Some(next) = detour(agent, site) {
            // SAFETY: as above; the kernel takes the registers from there on return.
            return unsafe { ip.write_volatile(next) };
        }
    }
    // SAFETY: the caller's.
    unsafe { pass_on(agent, signal, code, info, context) }
}

/// Where to go on after a breakpoint at `site`; `None` = it is the program's own.
fn detour(agent: Agent, site: u64) -> Option<u64> {
    if let Some(detour) = look_up(agent, site) {
        return Some(detour);
    }
    let mut bytes = [0u8; 2]; // the one before, and the one at the site
    // SAFETY: one byte each.
    let read = unsafe {
        let before = bytes.as_mut_ptr();
        safe_read::within_page(site.wrapping_sub(1), before, 1);
        safe_read::within_page(site, before.add(1), 1)
    };
    // The probe went away between the trap and now: what is there instead has not been executed yet.
    (read == 1 && bytes[1] != BREAKPOINT && bytes != [INT_IMM8, 3]).then_some(site)
}

fn look_up(agent: Agent, site: u64) -> Option<u64> {
    let private = agent.private();
    // Table and mask change together while all threads are stopped, possibly between these lines.
    let (table, mask) = loop {
        let table = private.traps.load(Ordering::Acquire);
        let mask = private.trap_mask.load(Ordering::Acquire);
        if table == private.traps.load(Ordering::Acquire) {
            break (table as *const TrapEntry, mask);
        }
    };
    if table.is_null() {
        return None;
    }
    let first = TrapEntry::bucket(site, mask);
    for step in 0..=mask {
        let index = (first + step) & mask;
        // SAFETY: the controller put a table of `mask + 1` entries there, which stays mapped.
        let (key, detour) = unsafe {
            let entry = table.add(index as usize);
            (core::ptr::addr_of!((*entry).site).read_volatile(), core::ptr::addr_of!((*entry).detour).read_volatile())
        };
        if key == site {
            return Some(detour);
        }
        if key == 0 {
            return None;
        }
    }
    None
}

/// Does what would have happened without us.
unsafe fn pass_on(agent: Agent, signal: i32, code: i32, info: *mut u8, context: *mut u8) {
    let old = agent.old_sigtrap();
    match old.handler {
        // Sent by a process. The kernel ignores the disposition for what it raises itself (`force_sig_info_to_task`).
        SIG_IGN if code <= 0 => {}
        SIG_DFL | SIG_IGN => die(signal, info),
        handler => {
            if old.flags & SA_RESETHAND != 0 {
                agent.reset_old_sigtrap();
            }
            // A trap probe in the handler must not find SIGTRAP blocked: the kernel would kill the process.
            let mask = old.mask & !(1 << (SIGTRAP - 1));
            // SAFETY: the mask lives through the call; sigreturn restores the interrupted code's mask. The handler is
            // the program's: the kernel, too, calls it with three arguments whether or not it asked for them.
            unsafe {
                arch::syscall(nr::RT_SIGPROCMASK, [SIG_BLOCK, core::ptr::addr_of!(mask) as u64, 0, 8, 0, 0]);
                let handler: extern "C" fn(i32, *mut u8, *mut u8) = core::mem::transmute(handler as *const ());
                handler(signal, info, context);
            }
        }
    }
}

/// The default action: the same signal again, with the same information, now that nobody catches it.
fn die(signal: i32, info: *mut u8) {
    static DEFAULT: [u64; 4] = [SIG_DFL, 0, 0, 0]; // struct sigaction
    // SAFETY: the arguments are what the calls want. `si_code` may be anything in a signal to one's own process
    // (`do_rt_tgsigqueueinfo` in kernel/signal.c).
    unsafe {
        let action = core::ptr::addr_of!(DEFAULT) as u64;
        arch::syscall(nr::RT_SIGACTION, [signal as u64, action, 0, 8, 0, 0]);
        let pid = arch::syscall(nr::GETPID, [0; 6]) as u64;
        let tid = arch::syscall(nr::GETTID, [0; 6]) as u64;
        arch::syscall(nr::RT_TGSIGQUEUEINFO, [pid, tid, signal as u64, info as u64, 0, 0]);
    }
}
