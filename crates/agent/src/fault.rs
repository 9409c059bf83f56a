//! Faults of displaced instructions. What the program's handler sees is the original address, as if
//! the instruction had not been displaced; where it returns to inside a patch becomes the copy
//! again ([`return_to_copy`]).

use core::sync::atomic::Ordering;

use sidestep_wire::signals::{SIGFPE, SIGILL, SIGTRAP};
use sidestep_wire::{CopyPair, DetourEntry, DetourTable, ProbeDesc};

use crate::arch::{self, JUMP_LEN, SI_ADDR, SINGLE_STEP, UCONTEXT_FLAGS, UCONTEXT_IP, UCONTEXT_SP};
use crate::memory::Agent;
use crate::safe_read;

/// `si_code` of `int1`.
const TRAP_BRKPT: i32 = 1;
/// `si_code` of a broken page that nobody has touched (`mm/memory-failure.c`): of no instruction.
pub const BUS_MCEERR_AO: i32 = 5;

/// Registers that a handler is not shown.
#[derive(Clone, Copy)]
pub struct Hidden {
    ip: u64,
    sp: u64,
}

/// A signal that the kernel raised: if a displaced instruction did it, its context says so from
/// here on. `returns` tells whether [`return_to_copy`] will see the handler return; without that,
/// an address inside a patch must not be shown.
///
/// # Safety
/// `info` and `context` are what the kernel passes to a handler with `SA_SIGINFO`.
pub unsafe fn show_original(
    agent: Agent,
    (signal, code): (i32, i32),
    info: *mut u8,
    context: *mut u8,
    returns: &impl Fn() -> bool,
) -> Option<Hidden> {
    let table = Table::of(agent)?;
    // SAFETY: words of the context and of the information.
    unsafe {
        let (ip_at, sp_at) = (context.add(UCONTEXT_IP) as u64, context.add(UCONTEXT_SP) as u64);
        let addr_at = info.add(SI_ADDR) as u64;
        let (ip, sp) = (arch::read_word(ip_at), arch::read_word(sp_at));
        // `int1`: some hypervisors report it as if it had not been executed yet.
        let at_once = || if (signal, code) == (SIGTRAP, TRAP_BRKPT) { table.original(ip, false) } else { None };
        let (site, flags, offset) = table.original(ip, signal == SIGTRAP).or_else(at_once)?;
        if offset != 0 && !returns() {
            return None;
        }
        arch::write_word(ip_at, site + offset);
        if flags & CopyPair::PUSHED != 0 {
            arch::write_word(sp_at, sp.wrapping_add(arch::WORD));
        }
        if matches!(signal, SIGILL | SIGFPE | SIGTRAP) && arch::read_word(addr_at) == ip {
            arch::write_word(addr_at, site + offset);
        }
        Some(Hidden { ip, sp })
    }
}

/// A fault at a `push` or `call` of ours at the end of a stack: the handlers of the site are left
/// out, and their hits missed. What the program has there itself faults next, or does not. `false`:
/// it was something else.
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`.
pub unsafe fn leave_out(agent: Agent, context: *mut u8) -> bool {
    // SAFETY: words of the context.
    let (ip_at, sp_at) = unsafe { (context.add(UCONTEXT_IP) as u64, context.add(UCONTEXT_SP) as u64) };
    // SAFETY: both addresses are words of the context.
    let (ip, sp) = unsafe { (arch::read_word(ip_at), arch::read_word(sp_at)) };
    let Some((site, copy, depth)) = Table::of(agent).and_then(|table| table.save(ip)) else { return false };
    for number in 0..agent.layout().probes_max as u32 {
        let Some(desc) = agent.probe(number) else { break };
        if desc.site == site && desc.flags & (ProbeDesc::POST | ProbeDesc::RETIRED) == 0 {
            agent.count_missed(number);
        }
    }
    // SAFETY: both addresses are words of the context. On return, the kernel takes the registers
    // from there.
    unsafe {
        arch::write_word(ip_at, copy);
        arch::write_word(sp_at, sp.wrapping_add(depth));
    }
    true
}

/// Takes [`show_original`] back.
///
/// # Safety
/// `context` is what the kernel passes to a handler with `SA_SIGINFO`; `hidden` is what
/// [`show_original`] gave for it.
pub unsafe fn hide_original(context: *mut u8, hidden: Hidden) {
    // SAFETY: words of the context.
    unsafe {
        arch::write_word(context.add(UCONTEXT_IP) as u64, hidden.ip);
        arch::write_word(context.add(UCONTEXT_SP) as u64, hidden.sp);
    }
}

/// A signal handler with this context is about to return: not into a patch, behind its first
/// instruction, but to the copy of the instruction that was there. False: that is none of the
/// session's.
pub fn return_to_copy(agent: Agent, context: u64) -> bool {
    let Some(table) = Table::of(agent) else { return false };
    let ip_at = context.wrapping_add(UCONTEXT_IP as u64);
    let flags_at = context.wrapping_add(UCONTEXT_FLAGS as u64);
    let (Some(ip), Some(flags)) = (safe_read::word(agent, ip_at), safe_read::word(agent, flags_at)) else {
        return false;
    };
    // At the first one there is the probe, and this is a hit. But who asks for a single step means
    // the instruction, which a trap leads to at once, and a jump does not.
    let is_jump = || safe_read::word(agent, ip).is_some_and(|code| !arch::is_breakpoint(code));
    let first = flags & SINGLE_STEP != 0 && is_jump();
    let copy = table.copy(ip, first);
    if let Some(copy) = copy {
        // SAFETY: the kernel takes the registers from there; it is on the stack, and was read just
        // now.
        unsafe { arch::write_word(ip_at, copy) };
    }
    copy.is_some()
}

/// Which original a place in a detour stands for, for stacks, and whether the copy has already
/// pushed what the original pushes.
#[must_use]
pub fn original(agent: Agent, ip: u64) -> Option<(u64, bool)> {
    let table = Table::at(agent.private().copies.load(Ordering::Acquire))?;
    let (site, flags, offset) = table.original(ip, false)?;
    Some((site + offset, flags & CopyPair::PUSHED != 0))
}

/// The engine's table. It changes only by being replaced.
#[derive(Clone, Copy)]
struct Table {
    entries: *const DetourEntry,
    pairs: *const CopyPair,
    by_site: *const u32,
    len: u32,
}

impl Table {
    fn of(agent: Agent) -> Option<Table> {
        Table::at(agent.private().detours.load(Ordering::Acquire))
    }

    fn at(at: u64) -> Option<Table> {
        if at == 0 {
            return None;
        }
        // SAFETY: the controller put a table there, which stays mapped.
        let head = unsafe {
            let head = at as *const DetourTable;
            DetourTable { len: (*head).len, copies: (*head).copies }
        };
        Some(Table {
            entries: (at + DetourTable::ENTRIES) as *const DetourEntry,
            pairs: (at + head.pairs()) as *const CopyPair,
            by_site: (at + head.by_site()) as *const u32,
            len: head.len,
        })
    }

    /// Site, flags and offset of the original of a place in a detour.
    fn original(self, ip: u64, trap: bool) -> Option<(u64, u16, u64)> {
        let entry = self.entry(self.above(|index| index, |entry| entry.detour, ip).checked_sub(1)?);
        let offset = ip - entry.detour;
        // Behind a trap may be the copy of the next instruction.
        let wanted = |pair: &CopyPair| {
            let is_copy = pair.original & CopyPair::SAVES == 0;
            is_copy && u64::from(pair.copy) == offset && (pair.original & CopyPair::TRAPPED != 0) == trap
        };
        let pair = self.pairs(entry).find(wanted)?;
        Some((entry.site, pair.original & !CopyPair::OFFSET, u64::from(pair.original & CopyPair::OFFSET)))
    }

    /// Of a place where a handler saves something: the site, the first copy, and by how much the
    /// stack pointer is lower.
    fn save(self, ip: u64) -> Option<(u64, u64, u64)> {
        let entry = self.entry(self.above(|index| index, |entry| entry.detour, ip).checked_sub(1)?);
        let is_save =
            |pair: &CopyPair| pair.original & CopyPair::SAVES != 0 && entry.detour + u64::from(pair.copy) == ip;
        let save = self.pairs(entry).find(is_save)?;
        let first = self.pairs(entry).find(|pair| pair.original == 0)?;
        Some((entry.site, entry.detour + u64::from(first.copy), u64::from(save.original & CopyPair::OFFSET)))
    }

    /// Where the copy of an original instruction is; that of a site only if `first`.
    fn copy(self, ip: u64, first: bool) -> Option<u64> {
        // SAFETY: there are as many as entries.
        let by_site = |index: u32| unsafe { *self.by_site.add(index as usize) };
        let next = self.above(by_site, |entry| entry.site, ip);
        // A jump that is blocked no more has other sites inside.
        let before = (0..next.saturating_sub(1)).rev().map(|index| self.entry(by_site(index)));
        let mut near = before.take_while(|entry| ip - entry.site < JUMP_LEN);
        if let Some(copy) = near.find_map(|entry| if self.opened(entry)? { self.copy_in(entry, ip) } else { None }) {
            return Some(copy);
        }
        let entry = self.entry(by_site(next.checked_sub(1)?));
        let in_use = ip != entry.site && self.opened(entry) == Some(false);
        if ip == entry.site && !first || in_use { None } else { self.copy_in(entry, ip) }
    }

    /// Where the copy of an original instruction is in a detour. Those of a detour that leads to
    /// one of another session are written over, and that one has its own.
    fn copy_in(self, entry: &DetourEntry, ip: u64) -> Option<u64> {
        if ip != entry.site && self.leads_on(entry) {
            return None;
        }
        // Above are flags.
        let offset = (ip - entry.site).min(u64::from(CopyPair::OFFSET)) as u16;
        let pair = self.pairs(entry).find(|pair| pair.original == offset)?;
        Some(entry.detour + u64::from(pair.copy))
    }

    /// Is there a jump where the copies of a detour begin? Where that is the original instruction,
    /// nothing is displaced behind it.
    fn leads_on(self, entry: &DetourEntry) -> bool {
        let Some(first) = self.pairs(entry).find(|pair| pair.original == 0) else { return false };
        // SAFETY: a word of code that stays mapped.
        arch::is_jump(unsafe { arch::read_word(entry.detour + u64::from(first.copy)) })
    }

    /// Does the gate of a detour, if it has one, lead to copies?
    fn opened(self, entry: &DetourEntry) -> Option<bool> {
        let gate = self.pairs(entry).find(|pair| pair.original & CopyPair::GATE == CopyPair::GATE)?;
        let closed = entry.site + u64::from(gate.original & CopyPair::OFFSET);
        // SAFETY: a word of code that stays mapped.
        Some(unsafe { arch::read_word(entry.detour + u64::from(gate.copy)) } != closed)
    }

    fn pairs(self, entry: &DetourEntry) -> impl Iterator<Item = CopyPair> {
        let (pairs, first) = (self.pairs, entry.first as usize);
        // SAFETY: the table has these pairs.
        (0..entry.count as usize).map(move |i| unsafe {
            let pair = pairs.add(first + i);
            CopyPair { original: (*pair).original, copy: (*pair).copy }
        })
    }

    /// An entry by its number.
    fn entry(&self, number: u32) -> &DetourEntry {
        // SAFETY: numbers of entries are below their count.
        unsafe { &*self.entries.add(number as usize) }
    }

    /// How many entries, in an order, have addresses that are not above `ip`.
    fn above(&self, number: impl Fn(u32) -> u32, address: impl Fn(&DetourEntry) -> u64, ip: u64) -> u32 {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            if address(self.entry(number(middle))) <= ip {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}
