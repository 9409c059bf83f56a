//! Keeps signals of ours deliverable: the kernel kills a process whose `int3` or bad load finds its
//! signal blocked, or its handler replaced (`force_sig_info_to_task` in kernel/signal.c).
//!
//! The engine probes the target's own system calls that change masks or actions, between
//! `mov $NUMBER,%eax` and `syscall`. What the program asked for is done here, with the signals left
//! open and its answers made as if they were not; the system call that follows then becomes one
//! that returns 0 and does nothing.
//!
//! Not hidden from the program: a signal of ours that a process sends (not one that an instruction
//! raises) arrives even where the program believes it blocked, so `sigwait` and `signalfd` get it
//! only while they wait.

use core::mem::MaybeUninit;
use core::ptr::addr_of;
use core::sync::atomic::Ordering;

use sidestep_wire::masks::SEES_HANDLERS_END;
use sidestep_wire::signals::{SIGNALS, flags, flags_for, set_of};
use sidestep_wire::{Regs, SigAction};

use crate::arch::{self, argument, nr};
use crate::kernel::SET_LEN;
use crate::memory::{Agent, Thread, looking};
use crate::thread::is_borrower;
use crate::{altstack, bell, blocked, children, fault, kernel, safe_read, signal, thread};

const SIG_UNBLOCK: u64 = 1;
const SIG_SETMASK: u64 = 2;
/// The last signal.
pub const NSIG: u64 = 64;
/// Offset of the mask in an action of the kernel.
const MASK: u64 = 3 * arch::WORD;
/// SIGKILL and SIGSTOP.
pub const NEVER_BLOCKED: u64 = set_of(9) | set_of(19);

/// A system call is about to be made by the target. All that is known of signals is in the memory
/// of their owner. Its guards and those of the sessions that share them do the same.
pub fn system_call(agent: Agent, thread: Thread, frame: &mut Regs) {
    let (agent, thread) = match agent.owner() {
        owner if owner.address() == agent.address() => (agent, thread),
        owner => match thread::current(owner) {
            Some(thread) => (owner, thread),
            None => return,
        },
    };
    looking(|| prepare(agent, thread, frame));
}

/// The same; `agent`: the session that owns the signals.
fn prepare(agent: Agent, thread: Thread, frame: &mut Regs) {
    let number = frame.call_number();
    if thread.clearing() != 0 {
        children::clear(agent, thread);
    }
    // Its argument is the stack pointer.
    if let Some(context) = arch::returning_context(number, frame.sp()) {
        blocked::returned(thread, context);
        open_frame(agent, thread, arch::returning_mask(number, context));
        for (session, thread) in states(agent, thread) {
            thread::returns_to(session, thread, context);
        }
        let _ = agent.sharing().any(|session| fault::return_to_copy(session, context));
        return;
    }
    let len = *argument(frame, 3);
    match number {
        nr::RT_SIGPROCMASK if len == SET_LEN => mask(agent, thread, frame),
        nr::RT_SIGACTION if len == SET_LEN => action(agent, frame),
        // These wait with another mask, which a handler that runs meanwhile keeps. The call itself
        // is the target's: no thread may wait in here.
        nr::RT_SIGSUSPEND => opened(agent, thread, argument(frame, 0)),
        _ if nr::PPOLLS.contains(&number) => opened(agent, thread, argument(frame, 3)),
        _ if nr::EPOLL_PWAITS.contains(&number) => opened(agent, thread, argument(frame, 4)),
        _ if nr::PSELECTS.contains(&number) => select(agent, thread, frame),
        nr::SIGALTSTACK => altstack::set(agent, thread, frame),
        nr::VFORK | nr::CLONE | nr::CLONE3 => children::call(agent, thread, frame),
        nr::EXECVE | nr::EXECVEAT => bell::execute(agent, frame),
        _ => {}
    }
}

/// A handler is about to return, and the kernel gives the thread the mask at this address in the
/// handler's frame. The handler may have added signals of ours there, as that of qemu-user does, or
/// the frame is older than the guards.
fn open_frame(agent: Agent, thread: Thread, at: u64) {
    let Some(mask) = safe_read::word(agent, at) else { return };
    let masks = blocked::masks(agent);
    let named = mask & masks.ours;
    if named != 0 {
        // SAFETY: the word was readable, and the kernel is about to take it from the program's own
        // frame, which the program may write.
        unsafe { arch::write_word(at, masks.kept(masks.told(mask))) };
        if SEES_HANDLERS_END && !is_borrower(agent) {
            blocked::add(thread, named);
        }
    }
}

/// The sessions that use the signals of an owner, with the calling thread's state in each.
pub fn states(owner: Agent, thread: Thread) -> impl Iterator<Item = (Agent, Thread)> {
    owner.sharing().filter_map(move |session| match session.address() == owner.address() {
        true => Some((session, thread)),
        false => Some((session, thread::current(session)?)),
    })
}

/// The call is done: what follows must return 0 and change nothing.
fn done(frame: &mut Regs) {
    frame.set_call_number(nr::SCHED_YIELD);
}

fn mask(agent: Agent, thread: Thread, frame: &mut Regs) {
    let (how, set, old) = (*argument(frame, 0), *argument(frame, 1), *argument(frame, 2));
    let mut wanted = 0;
    if set != 0 {
        match safe_read::u64_at(agent, set) {
            Some(mask) => wanted = mask,
            None => return, // the kernel says what is wrong with it
        }
    }
    let masks = blocked::masks_with(agent, if set == 0 { 0 } else { wanted });
    let (kept, believed) = (masks.kept(wanted), blocked::noted(thread));
    let says_it = !SEES_HANDLERS_END && old != 0;
    if kept == wanted && believed == 0 && !says_it {
        return;
    }
    let from = if set == 0 { 0 } else { addr_of!(kept) as u64 };
    let mut before = MaybeUninit::<u64>::uninit();
    let answer = if SEES_HANDLERS_END || old != 0 { old } else { before.as_mut_ptr() as u64 };
    // SAFETY: sets of our own, and the program's pointer for the answer, which the kernel checks.
    let result = unsafe { arch::syscall(nr::RT_SIGPROCMASK, [how, from, answer, SET_LEN, 0, 0]) };
    if result != 0 {
        return; // made once more by the program, it fails the same way
    }
    let after = |mask: u64, named: u64| match how {
        SIG_SETMASK => named,
        SIG_UNBLOCK => mask & !named,
        _ => mask | named,
    };
    if answer != 0 && (believed != 0 || !SEES_HANDLERS_END) {
        let answer = answer as *mut u64;
        // SAFETY: the kernel has just written there.
        let before = unsafe { answer.read_volatile() };
        // SAFETY: as for the read.
        unsafe { answer.write_volatile(masks.told(before) | believed) };
        // A mask that a handler has made in its frame has no stand-ins yet.
        let normal = masks.normal(before);
        if set != 0 && normal != before {
            kernel::set_mask(after(normal, kept));
        }
    }
    if SEES_HANDLERS_END && set != 0 && !is_borrower(agent) {
        let new = after(believed, wanted & masks.ours);
        if new != believed {
            blocked::change(thread, new, frame.sp());
        }
    }
    done(frame);
}

fn action(agent: Agent, frame: &mut Regs) {
    let (number, new, old) = (*argument(frame, 0), *argument(frame, 1), *argument(frame, 2));
    let ours = blocked::ours(agent);
    let index = if number <= NSIG { signal::index(number as i32) } else { None };
    let own = index.filter(|i| SIGNALS.get(*i).is_some_and(|s| ours & set_of(*s) != 0));
    let mut wanted = None;
    if new != 0 {
        match read_action(agent, new) {
            Some(action) => wanted = Some(action),
            None => return, // the kernel says what is wrong with it
        }
    }
    match own {
        Some(index) => own_action(agent, frame, index, wanted.as_ref()),
        None if (1..=NSIG).contains(&number) => other_action(agent, frame, wanted.as_mut(), old),
        None => {}
    }
}

/// Field by field: zeros to begin with would come from an xmm register.
fn read_action(agent: Agent, at: u64) -> Option<SigAction> {
    let word = |index: u64| safe_read::word(agent, at.wrapping_add(arch::WORD * index));
    let mask = safe_read::u64_at(agent, at.wrapping_add(MASK))?;
    Some(SigAction { handler: word(0)?, flags: word(1)?, restorer: word(2)?, mask })
}

/// The program's own action for a signal of ours: remembered for signals that are not for us.
fn own_action(agent: Agent, frame: &mut Regs, index: usize, new: Option<&SigAction>) {
    let (number, old) = (*argument(frame, 0), *argument(frame, 2));
    if old != 0 {
        // Asked of the kernel first, which checks the pointer; then the truth.
        // SAFETY: the program's pointer, which the kernel checks.
        if unsafe { arch::syscall(nr::RT_SIGACTION, [number, 0, old, SET_LEN, 0, 0]) } != 0 {
            return;
        }
        write_action(old, &signal::old_action(agent, index));
    }
    // `posix_spawn` gives its child the default actions before the program begins: not the parent's
    // business.
    if let (Some(new), false) = (new, is_borrower(agent)) {
        // What the kernel does not keep (`do_sigaction` in kernel/signal.c).
        let flags = new.flags & !flags::UNSUPPORTED;
        let mask = new.mask & !NEVER_BLOCKED;
        signal::set_old_action(agent, index, &SigAction { flags, mask, ..*new });
        set_flags(agent, number, new);
    }
    done(frame);
}

/// Our action for a signal, as it has to be beside this action of the program.
pub fn set_flags(agent: Agent, number: u64, program: &SigAction) {
    let is_shared = agent.private().signals.shared_stack.load(Ordering::Relaxed) != 0;
    let mut ours = MaybeUninit::<arch::KernelAction>::uninit();
    let at = ours.as_mut_ptr();
    // SAFETY: an action of our own, which the kernel fills.
    unsafe {
        arch::syscall(nr::RT_SIGACTION, [number, 0, at as u64, SET_LEN, 0, 0]);
        arch::write_word(at as u64 + arch::WORD, flags_for(program, is_shared) & !arch::NOT_OURS);
        arch::syscall(nr::RT_SIGACTION, [number, at as u64, 0, SET_LEN, 0, 0]);
    }
}

/// Another signal, whose handler must not run with signals of ours blocked.
fn other_action(agent: Agent, frame: &mut Regs, new: Option<&mut SigAction>, old: u64) {
    let number = *argument(frame, 0);
    let bit = 1u64 << (number - 1);
    let signals = &agent.private().signals;
    let mut believed = 0;
    for (blocking, signal) in signals.blocking.iter().zip(SIGNALS) {
        if blocking.load(Ordering::Relaxed) & bit != 0 {
            believed |= set_of(signal);
        }
    }
    let wanted = new.as_ref().map_or(0, |action| action.mask);
    let masks = blocked::masks_with(agent, wanted);
    let (kept, named) = (masks.kept(wanted), wanted & masks.ours);
    let says_it = !SEES_HANDLERS_END && old != 0;
    if kept == wanted && believed == 0 && !says_it {
        return;
    }
    let kernels;
    let from = match new {
        Some(action) => {
            action.mask = kept;
            kernels = arch::kernel_action(action);
            addr_of!(kernels) as u64
        }
        None => 0,
    };
    // SAFETY: an action of our own, and the program's pointer for the answer, which the kernel
    // checks.
    if unsafe { arch::syscall(nr::RT_SIGACTION, [number, from, old, SET_LEN, 0, 0]) } != 0 {
        return; // made once more by the program, it fails the same way
    }
    if old != 0 {
        // SAFETY: the kernel has just written an action there.
        unsafe {
            let mask = (old + MASK) as *mut u64;
            mask.write_unaligned(masks.told(mask.read_unaligned()) | believed);
        }
    }
    if SEES_HANDLERS_END && from != 0 && !is_borrower(agent) {
        for (blocking, signal) in signals.blocking.iter().zip(SIGNALS) {
            if named & set_of(signal) != 0 {
                blocking.fetch_or(bit, Ordering::Relaxed);
            } else {
                blocking.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }
    done(frame);
}

fn write_action(at: u64, action: &SigAction) {
    // SAFETY: the kernel has just written an action there. Word by word, as in `read_action`.
    unsafe {
        arch::write_word(at, action.handler);
        arch::write_word(at + arch::WORD, action.flags);
        arch::write_word(at + 2 * arch::WORD, action.restorer);
        ((at + MASK) as *mut u64).write_unaligned(action.mask);
    }
}

/// In place of the address of a signal set, that of a copy without signals of ours that lives until
/// the call that follows is over; not where that makes no difference.
fn opened(agent: Agent, thread: Thread, set: &mut u64) {
    if *set == 0 {
        return;
    }
    if let Some(mask) = safe_read::u64_at(agent, *set) {
        let kept = blocked::masks_with(agent, mask).kept(mask);
        if kept != mask {
            *set = thread.keep([kept, 0], *set);
        }
    }
}

/// `pselect6` takes the address of an address and a length.
fn select(agent: Agent, thread: Thread, frame: &mut Regs) {
    let at = argument(frame, 5);
    if *at == 0 {
        return;
    }
    let (Some(set), Some(len)) = (safe_read::word(agent, *at), safe_read::word(agent, at.wrapping_add(arch::WORD)))
    else {
        return; // the kernel says what is wrong with it
    };
    let mut open = set;
    if len == SET_LEN {
        opened(agent, thread, &mut open);
    }
    if open != set {
        *at = thread.keep([0; 2], *at);
        // SAFETY: two words of the thread's state.
        unsafe {
            arch::write_word(*at, open);
            arch::write_word(*at + arch::WORD, len);
        }
    }
}
