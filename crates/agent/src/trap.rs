//! Breakpoints of ours. Where there is more to do than to count, a thread goes on at the site's
//! detour. Otherwise the hit is counted here, and an instruction that is known how to do is done,
//! too: the program goes on behind it.

use core::sync::atomic::Ordering;

use sidestep_wire::{TrapEntry, TrapRecord};

use crate::arch::{self, ABOVE_FRAME, BEHIND_BREAKPOINT, SINGLE_STEP, UCONTEXT_IP, UCONTEXT_STACK};
use crate::emulate::{Memory, Next, Op, execute};
use crate::memory::Agent;
use crate::{safe_read, thread};

/// What a breakpoint was.
pub enum Met {
    /// The program's own.
    Foreign,
    /// Ours: the context says where to go on.
    Ours,
    /// Ours, in a program that runs in single steps. Its instruction is done, so this was one, up
    /// to this address.
    Stepped(u64),
}

/// A breakpoint was executed: of the session that owns the signals, or of those that share them.
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
#[must_use]
pub unsafe fn met(agent: Agent, context: *mut u8) -> Met {
    // SAFETY: the instruction pointer is a word of the context.
    let ip_at = unsafe { context.add(UCONTEXT_IP) as u64 };
    // SAFETY: `ip_at` is a word of the context.
    let site = unsafe { arch::read_word(ip_at) }.wrapping_sub(BEHIND_BREAKPOINT);
    let (mut detour, mut record) = (None, None);
    for session in agent.sharing() {
        match look_up(session, site) {
            Some(at) if at & TrapEntry::RECORD != 0 => {
                let at = (at & !TrapEntry::RECORD) as *const TrapRecord;
                // SAFETY: the controller put a record there, which stays while a thread is in
                // this handler.
                count(session, unsafe { (*at).newest });
                record = Some(at);
            }
            Some(at) => detour = Some(at),
            None => {}
        }
    }
    let next = match (detour, record) {
        (Some(detour), _) => detour,
        // SAFETY: the controller put a record there, which stays while a thread is in this handler.
        // The caller promises that `context` is what the kernel passes.
        (None, Some(record)) => unsafe {
            if let Some(met) = emulate(Op::from_words((*record).op), site, context) {
                return met;
            }
            record.add(1) as u64
        },
        (None, None) if is_gone(site) => site,
        (None, None) => return Met::Foreign,
    };
    // SAFETY: `ip_at` is a word of the context. On return, the kernel takes the instruction pointer
    // from there.
    unsafe { arch::write_word(ip_at, next) };
    Met::Ours
}

/// A hit of all probes of a site.
fn count(agent: Agent, newest: u32) {
    let thread = thread::current(agent);
    let mut next = newest;
    while let Some(probe) = next.checked_sub(1) {
        let Some(desc) = agent.probe(probe) else { return };
        match thread {
            Some(thread) if thread.counts(agent) => thread.count(agent, u64::from(desc.hits)),
            Some(_) => {} // a child
            None => agent.count_missed(probe),
        }
        next = desc.older;
    }
}

/// Does what the instruction at `site` does; `None` = nothing was done.
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
#[inline(never)]
unsafe fn emulate(op: Op, site: u64, context: *mut u8) -> Option<Met> {
    if op.uses_shadow_stack() && arch::has_shadow_stack() {
        return None;
    }
    // SAFETY: the caller promises that `context` is what the kernel passes.
    let mut registers = unsafe { arch::registers(context) };
    registers.set_ip(site);
    // SAFETY: the caller promises that `context` is what the kernel passes.
    let mut stack = unsafe { Stack::of(context, registers.sp()) };
    if execute(&op, &mut registers, &mut stack) == Next::Displaced {
        return None;
    }
    // SAFETY: the caller promises that `context` is what the kernel passes.
    unsafe { arch::set_registers(context, &registers) };
    Some(if registers.flags() & SINGLE_STEP != 0 { Met::Stepped(registers.ip()) } else { Met::Ours })
}

/// The part of the interrupted stack that is certainly there: the page on which the kernel has put
/// the upper end of the signal's frame. What is elsewhere may fault, and that has to be the
/// program's own instruction.
struct Stack {
    /// An address in that page.
    frame: u64,
}

const PAGE: u64 = 4096;

impl Stack {
    /// # Safety
    /// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
    unsafe fn of(context: *const u8, sp: u64) -> Stack {
        // SAFETY: words of the context.
        let (start, size) = unsafe {
            let stack = context.add(UCONTEXT_STACK) as u64;
            (arch::read_word(stack), arch::read_word(stack + 2 * arch::WORD))
        };
        // As the kernel has decided where its frame goes (`__on_sig_stack` in
        // include/linux/sched/signal.h).
        let is_alternate = |at: u64| at > start && at - start <= size;
        let here = is_alternate(context as u64) == is_alternate(sp);
        Stack { frame: if here { sp.wrapping_sub(ABOVE_FRAME) } else { 0 } }
    }

    fn has(&self, at: u64, len: u64) -> bool {
        let page = self.frame / PAGE;
        page != 0 && at / PAGE == page && at.wrapping_add(len - 1) / PAGE == page
    }
}

impl Memory for Stack {
    fn load(&mut self, at: u64) -> Option<u64> {
        // SAFETY: `has` found that the bytes are on the page of the signal's frame, which the
        // kernel wrote.
        self.has(at, 8).then(|| unsafe { (at as *const u64).read_unaligned() })
    }

    fn store(&mut self, at: u64, value: u64) -> Option<()> {
        // SAFETY: `has` found that the bytes are on the page of the signal's frame, which the
        // kernel wrote. Above the red zone is nothing of ours.
        self.has(at, 8).then(|| unsafe { (at as *mut u64).write_unaligned(value) })
    }

    // Nothing is written in 32-bit code: without a red zone, the frame of the signal lies right
    // below the stack pointer.
    fn load32(&mut self, at: u64) -> Option<u32> {
        // SAFETY: `has` found that the bytes are on the page of the signal's frame, which the
        // kernel wrote.
        self.has(at, 4).then(|| unsafe { (at as *const u32).read_unaligned() })
    }
}

/// Has the breakpoint that was executed at `site` gone away since? Then what is there instead has
/// not been executed yet.
fn is_gone(site: u64) -> bool {
    const LEN: usize = sidestep_wire::arch::BREAKPOINT.len();
    let (mut before, mut code) = ([0u8; 1], [0u8; 8]);
    // SAFETY: there is that much room.
    let read = unsafe {
        safe_read::within_page(site.wrapping_sub(1), before.as_mut_ptr(), 1);
        safe_read::within_page(site, code.as_mut_ptr(), LEN as u64)
    };
    read == LEN as u64 && arch::has_gone(before[0], u64::from_le_bytes(code))
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
            return (detour != 0).then_some(detour);
        }
        if key == 0 {
            return None;
        }
    }
    None
}
