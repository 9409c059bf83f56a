//! The handler of the signals of ours: a trap of ours goes on at its detour, a load of ours that
//! failed at its fix-up, and a fault of a displaced instruction shows the original. Every other
//! signal meets what the program has installed, exactly as if the kernel had delivered it.
//!
//! A handler of the program is not called but jumped to, on the kernel's own signal frame, with the
//! program's restorer as its return address: unwinders see what they know, and nothing of ours is
//! on the stack when the probes are removed.

use core::ptr::{addr_of, addr_of_mut};

use sidestep_wire::SigAction;
use sidestep_wire::masks::SEES_HANDLERS_END;
use sidestep_wire::signals::{DEALT_WITH, SIGBUS, SIGNALS, SIGSEGV, SIGTRAP, flags, set_of};

use crate::arch::{self, BREAKPOINT_CODE, UCONTEXT_IP, UCONTEXT_MARK, nr};
use crate::fault::{self, BUS_MCEERR_AO, Hidden};
use crate::kernel::{self, SET_LEN};
use crate::memory::{Agent, looking};
use crate::thread::{self, is_borrower};
use crate::trap::{self, Met};
use crate::{blocked, children, safe_read};

/// `si_code` of a single step.
const TRAP_TRACE: i32 = 2;
/// The default action.
pub const SIG_DFL: u64 = 0;
/// No action.
pub const SIG_IGN: u64 = 1;

/// Gives the address of the program's handler to jump to; 0 = return, and the frame is marked
/// ([`DEALT_WITH`]). `back` is where the stub has the return address, where that is in a register.
/// `agent`: the session that owns the signals.
///
/// # Safety
/// `info` and `context` are what the kernel passes to a handler with `SA_SIGINFO`, and `back` is
/// the stub's.
pub unsafe fn handle(agent: Agent, signal: i32, info: *mut u8, context: *mut u8, back: *mut u64) -> u64 {
    // SAFETY: the caller promises that `info` and `context` are what the kernel passes to a handler
    // with `SA_SIGINFO`, and that `back` is the stub's.
    let next = looking(|| unsafe { deal_with(agent, signal, info, context, back) });
    if next == 0 {
        // SAFETY: a word of the context, which the kernel does not read.
        unsafe { context.add(UCONTEXT_MARK).cast::<u32>().write_volatile(DEALT_WITH) };
    }
    next
}

/// Gives what [`handle`] gives.
///
/// # Safety
/// As for [`handle`]: `info` and `context` are what the kernel passes to a handler with
/// `SA_SIGINFO`, and `back` is the stub's.
unsafe fn deal_with(agent: Agent, signal: i32, info: *mut u8, context: *mut u8, back: *mut u64) -> u64 {
    // SAFETY: `si_code` is the third word of `siginfo_t`, the instruction pointer a word of the
    // context.
    let (code_at, ip_at) = unsafe { (info.cast::<i32>().add(2), context.add(UCONTEXT_IP) as u64) };
    // SAFETY: both addresses are words of what the kernel passes.
    let (mut code, ip) = unsafe { (code_at.read_volatile(), arch::read_word(ip_at)) };
    // SAFETY: the caller promises that `context` is what the kernel passes.
    let had_no_room = unsafe { arch::had_no_room(code, context) };
    match signal {
        // SAFETY: the caller promises that `context` is what the kernel passes.
        SIGTRAP if code == BREAKPOINT_CODE => match unsafe { trap::met(agent, context) } {
            Met::Ours => return 0,
            Met::Stepped(to) => {
                code = TRAP_TRACE;
                // SAFETY: a word of the information. The caller promises that `info` and `context`
                // are what the kernel passes.
                unsafe {
                    code_at.write_volatile(code);
                    arch::tell_of_step(info, context, to);
                }
            }
            Met::Foreign => {}
        },
        // SAFETY: the caller promises that `context` is what the kernel passes.
        SIGSEGV if had_no_room => match unsafe { trap::met(agent, context) } {
            Met::Ours | Met::Stepped(_) => return 0,
            Met::Foreign => {}
        },
        // Not one that was sent while such a load was under way.
        SIGSEGV | SIGBUS if code > 0 => {
            if let Some(next) = agent.sharing().find_map(|session| safe_read::after_fault(session, ip)) {
                // SAFETY: `ip_at` is a word of the context. On return, the kernel takes the
                // instruction pointer from there.
                unsafe { arch::write_word(ip_at, next) };
                return 0;
            }
            // SAFETY: the caller promises that `context` is what the kernel passes.
            if agent.sharing().any(|session| unsafe { fault::leave_out(session, context) }) {
                return 0;
            }
        }
        _ => {}
    }
    // SAFETY: the caller promises that `info` and `context` are what the kernel passes.
    unsafe { pass_on(agent, signal, code, info, context, back) }
}

/// Does what would have happened without us.
///
/// # Safety
/// `info` and `context` are what the kernel passes to a handler with `SA_SIGINFO`.
unsafe fn pass_on(agent: Agent, signal: i32, code: i32, info: *mut u8, context: *mut u8, back: *mut u64) -> u64 {
    let Some(index) = index(signal) else { return 0 };
    let thread = thread::current(agent);
    let mask_at = arch::returning_mask(nr::RT_SIGRETURN, context as u64) as *const u64;
    // SAFETY: a set in the context. The caller promises that it is what the kernel passes.
    let interrupted = unsafe { mask_at.read_unaligned() };
    let mut old = old_action(agent, index);
    if old.handler != SIG_IGN && thread.is_some_and(children::is_cleared) {
        old.handler = SIG_DFL;
    }
    let set = set_of(signal);
    // What the kernel raises for an instruction is neither ignored nor blocked
    // (`force_sig_info_to_task`).
    let forced = code > 0;
    let dies = match old.handler {
        SIG_IGN if !forced => return 0,
        SIG_DFL | SIG_IGN => true,
        _ => forced && blocked::told(agent, thread, interrupted) & set != 0,
    };
    let mut hidden = None;
    if forced && (signal, code) != (SIGBUS, BUS_MCEERR_AO) {
        // SAFETY: the caller promises that `context` is what the kernel passes.
        let returns = || dies || thread.is_some() && unsafe { is_guarded(agent, &old, context, back) };
        for session in agent.sharing() {
            // SAFETY: the caller promises that `info` and `context` are what the kernel passes.
            hidden = unsafe { fault::show_original(session, (signal, code), info, context, &returns) };
            if hidden.is_some() {
                break;
            }
        }
    }
    if dies {
        // SAFETY: the caller promises that `info` and `context` are what the kernel passes;
        // `hidden` is what `show_original` gave for this context.
        unsafe { die(signal, code, info, context, hidden) };
        return 0;
    }
    let mut mask = old.mask;
    if old.flags & flags::NODEFER == 0 {
        mask |= set;
    }
    let masks = blocked::masks(agent);
    let kept = masks.kept(mask);
    if kept != 0 {
        // The end of the handler gives back the interrupted code's mask.
        kernel::block(kept);
    }
    if !is_borrower(agent) {
        if let (Some(thread), true) = (thread, SEES_HANDLERS_END) {
            // Without a guard at the end of the handler this would last for ever.
            // SAFETY: the caller promises that `context` is what the kernel passes.
            if unsafe { is_guarded(agent, &old, context, back) } {
                let new = blocked::noted(thread) | mask & masks.ours;
                blocked::change(thread, new, (context as u64).wrapping_sub(1));
            }
        }
        if old.flags & flags::RESETHAND != 0 {
            // SAFETY: `old` is private memory, and `index` is the number of one of its entries.
            unsafe { addr_of_mut!((*agent.signals()).old[index].handler).write_volatile(SIG_DFL) };
        }
    }
    if let Some(restorer) = arch::restorer(&old) {
        // SAFETY: the caller promises that `context` is what the kernel passes, and `back` the
        // stub's.
        unsafe { arch::set_return_address(context, back, restorer) };
    }
    old.handler
}

/// Has the call of `rt_sigreturn`, where a handler that was installed with this action returns to,
/// a probe of ours?
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
unsafe fn is_guarded(agent: Agent, action: &SigAction, context: *mut u8, back: *const u64) -> bool {
    // SAFETY: the caller promises that `context` is what the kernel passes, and `back` the stub's.
    let restorer = arch::restorer(action).unwrap_or_else(|| unsafe { arch::return_address(context, back) });
    safe_read::word(agent, restorer).is_some_and(arch::is_guarded)
}

/// Place of a signal in the arrays of [`sidestep_wire::Signals`].
#[must_use]
pub fn index(signal: i32) -> Option<usize> {
    SIGNALS.iter().position(|s| *s == signal)
}

/// The action that the program believes to be installed.
#[must_use]
pub fn old_action(agent: Agent, index: usize) -> SigAction {
    // SAFETY: `old` is private memory, and `index` is the number of one of its entries. Field by
    // field: a copy of the whole would go through an xmm register.
    unsafe {
        let old = addr_of!((*agent.signals()).old).cast::<SigAction>().add(index);
        SigAction {
            handler: addr_of!((*old).handler).read_volatile(),
            flags: addr_of!((*old).flags).read_volatile(),
            restorer: addr_of!((*old).restorer).read_volatile(),
            mask: addr_of!((*old).mask).read_volatile(),
        }
    }
}

/// The program has set another action. The handler goes last: until then the old one's data fit it.
pub fn set_old_action(agent: Agent, index: usize, action: &SigAction) {
    // SAFETY: `old` is private memory, and `index` is the number of one of its entries.
    unsafe {
        let old = addr_of_mut!((*agent.signals()).old).cast::<SigAction>().add(index);
        addr_of_mut!((*old).flags).write_volatile(action.flags);
        addr_of_mut!((*old).restorer).write_volatile(action.restorer);
        addr_of_mut!((*old).mask).write_volatile(action.mask);
        addr_of_mut!((*old).handler).write_volatile(action.handler);
    }
}

/// The default action, now that nobody catches the signal any more: an instruction that failed
/// fails again, so that all that is told about the death is the truth. Any other signal comes
/// again, with the same information, and so does one of a displaced instruction: blocked until the
/// interrupted registers are back, which are then what is told.
///
/// # Safety
/// `info` and `context` are what the kernel passes to a handler with `SA_SIGINFO`; `hidden` is what
/// [`fault::show_original`] gave for this context.
unsafe fn die(signal: i32, code: i32, info: *mut u8, context: *mut u8, hidden: Option<Hidden>) {
    static DEFAULT: [u64; 4] = [SIG_DFL, 0, 0, 0]; // struct sigaction
    let set = set_of(signal);
    // SAFETY: the arguments are what the calls want. `si_code` may be anything in a signal to one's
    // own process (`do_rt_tgsigqueueinfo` in kernel/signal.c).
    let sent = unsafe {
        arch::syscall(nr::RT_SIGACTION, [signal as u64, addr_of!(DEFAULT) as u64, 0, SET_LEN, 0, 0]);
        // A breakpoint has been executed: its instruction would not be met again.
        let fails_again = code > 0 && signal != SIGTRAP && (signal, code) != (SIGBUS, BUS_MCEERR_AO);
        if fails_again && hidden.is_none() {
            return;
        }
        kernel::block(set);
        let (pid, tid) = (kernel::process_id().into(), kernel::thread_id().into());
        arch::syscall(nr::RT_TGSIGQUEUEINFO, [pid, tid, signal as u64, info as u64, 0, 0]) == 0
    };
    if let (false, Some(hidden)) = (sent, hidden) {
        // SAFETY: the caller promises that `context` is what the kernel passes, and that `hidden`
        // is what `show_original` gave for it. The copy fails once more.
        unsafe { fault::hide_original(context, hidden) };
    }
}
