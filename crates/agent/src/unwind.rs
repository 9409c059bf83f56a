//! From the frame of a hit to its callers, by the engine's table of what `.eh_frame` says
//! (`wire::unwind`), and by frame pointers through code that has none: of compilers at run time, of
//! objects that came later.
//!
//! Nothing that is read is trusted. A chain ends where a word cannot be read, a frame is not above
//! the one before, or an address is not behind a call.

use core::ptr::{self, addr_of};
use core::sync::atomic::Ordering;

use sidestep_wire::arch::{FRAME_BASE, FRAME_POINTER, INSTRUCTION_POINTER, STACK_POINTER};
use sidestep_wire::private::UNWOUND;
use sidestep_wire::{Flow, Hit, PlainRule, ProbeDesc, Regs, UnwindKind, UnwindObject, UnwindRule, UnwindTable};

use crate::hit::Place;
use crate::memory::{Agent, Thread};
use crate::safe_read::Stack;
use crate::{arch, fault, return_address, safe_read, shadow};

const UNKNOWN: u8 = UnwindKind::Unknown as u8;
const REGISTER: u8 = UnwindKind::Register as u8;
const MEMORY: u8 = UnwindKind::Memory as u8;
const SIGNAL: u8 = UnwindKind::Signal as u8;

/// A walk along the frames of a stack, innermost first.
pub struct Frames {
    agent: Agent,
    thread: Thread,
    table: Option<Table>,
    /// Address of the instruction that runs, or to which a call returns.
    pc: u64,
    sp: u64,
    /// Where the frame pointer is: address of a word, or 0 = lost.
    bp: u64,
    /// The same of the other register that frames are restored by.
    bx: u64,
    next: Next,
    stack: Stack,
    /// The context of a hit while its frame is the one to be left: all registers are known.
    regs: *const Regs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// `pc` itself.
    Here,
    /// The caller; the frame has only just been entered.
    Entered,
    /// The caller; `pc` is about to be executed.
    Exact,
    /// The caller; `pc` is behind a call.
    Called,
    /// Nothing more.
    End,
}

impl Frames {
    /// # Safety
    /// `context` is verified to be the address of the registers of a hit on `thread`. The hit stays
    /// in place as long as the walk is used.
    pub unsafe fn new(agent: Agent, thread: Thread, context: u64) -> Frames {
        let regs = context as *const Regs;
        // SAFETY: the caller promises that `context` leads to the registers of a hit.
        let (pc, sp) = unsafe { (arch::register(regs, INSTRUCTION_POINTER), arch::register(regs, STACK_POINTER)) };
        // Also where words are shorter, the lower half is read.
        let (bp, bx) = (context + FRAME_POINTER as u64, context + FRAME_BASE as u64);
        Frames {
            agent,
            thread,
            table: Table::of(agent),
            pc,
            sp,
            bp,
            bx,
            next: Next::Here,
            stack: Stack::of_thread(),
            regs,
        }
    }

    /// The same walk from here on. Copied word by word: as a whole, it would go through vector
    /// registers, which are the program's.
    #[inline(always)]
    pub fn again(&self) -> Frames {
        let word = |at: &u64| {
            // SAFETY: `at` is a reference, so it can be read.
            unsafe { ptr::from_ref(at).read_volatile() }
        };
        // SAFETY: both are fields behind a reference, so they can be read.
        let (agent, thread) = unsafe { (addr_of!(self.agent).read_volatile(), addr_of!(self.thread).read_volatile()) };
        // SAFETY: both are fields behind a reference, so they can be read.
        let (next, regs) = unsafe { (addr_of!(self.next).read_volatile(), addr_of!(self.regs).read_volatile()) };
        let (pc, sp, bp, bx) = (word(&self.pc), word(&self.sp), word(&self.bp), word(&self.bx));
        Frames { agent, thread, table: Table::of(agent), pc, sp, bp, bx, next, stack: Stack::of_thread(), regs }
    }

    /// Writes the next addresses, at most `max`; gives how many there were.
    ///
    /// # Safety
    /// `to` is writable for `max` words.
    #[inline(never)]
    pub unsafe fn fill(&mut self, to: *mut u64, max: u64) -> u64 {
        let mut count = 0;
        // SAFETY: the caller promises that `to` is writable for `max` words, and `at` is below
        // `max`.
        let put = |at: u64, pc: u64| unsafe { to.add(at as usize).write_unaligned(pc) };
        if self.next == Next::Here && max != 0 {
            let (next, pc) = match self.entered() {
                // With a mark for indirect branches in front, that is where the function is.
                Some(desc) => (Next::Entered, if desc.asked != 0 { desc.asked } else { self.pc }),
                None => (Next::Exact, self.pc),
            };
            self.next = next;
            put(0, pc);
            count = 1;
        }
        while count < max {
            // SAFETY: the caller promises that `to` is writable for `max` words, of which `count`
            // are written.
            count += unsafe { self.fill_fast(to.add(count as usize), max - count) };
            if count != 0 && self.goes_past_foreign() {
                put(count - 1, self.pc);
                continue;
            }
            if count == max {
                break;
            }
            if self.step().is_none() {
                self.next = Next::End;
                break;
            }
            put(count, self.pc);
            count += 1;
        }
        count
    }

    /// Where another session watches the frame, goes to the real return address.
    fn goes_past_foreign(&mut self) -> bool {
        let known = |table: &Table| table.rule(self.thread, self.pc.wrapping_sub(1)).kind != UNKNOWN;
        if self.next != Next::Called || self.table.as_ref().is_some_and(known) {
            return false;
        }
        let slot = self.sp.wrapping_sub(arch::WORD);
        let real = shadow::past_foreign(self.agent, self.pc, slot, u64::MAX, false);
        self.pc = real.unwrap_or(self.pc);
        real.is_some()
    }

    /// What most frames are: called, found by stack or frame pointer, with a return address in its
    /// place. All else is for [`Frames::step`].
    ///
    /// # Safety
    /// `to` is writable for `max` words.
    #[inline(always)]
    unsafe fn fill_fast(&mut self, to: *mut u64, max: u64) -> u64 {
        let (Next::Called, Some(table)) = (self.next, self.table) else { return 0 };
        let (agent, thread, trampoline) = (self.agent, self.thread, self.agent.private().trampoline);
        let (mut pc, mut sp, mut bp, mut bx) = (self.pc, self.sp, self.bp, self.bx);
        let mut count = 0;
        while count < max {
            let number = table.number(thread, pc - 1);
            let (cfa, bp_words, bx_words) = if let Some(plain) = PlainRule::of_number(number) {
                (sp.wrapping_add(u64::from(plain.cfa()) * arch::WORD), plain.bp(), plain.bx())
            } else {
                let rule = table.listed(number);
                if rule.kind != REGISTER || rule.flags != 0 {
                    break;
                }
                let base = match rule.base {
                    UnwindRule::SP => sp,
                    UnwindRule::BP => match self.stack.word(agent, bp) {
                        Some(frame) => frame,
                        None => break,
                    },
                    _ => break,
                };
                (base.wrapping_add(rule.offset as u64), rule.bp, rule.bx)
            };
            let slot = if arch::LINKS { saved(bx_words, cfa, 0) } else { cfa.wrapping_sub(arch::WORD) };
            if slot < sp || slot % arch::WORD != 0 {
                break;
            }
            let Some(word) = self.stack.word(agent, slot).map(arch::unsigned) else { break };
            if word == trampoline || word == 0 {
                break;
            }
            (bp, bx) = (saved(bp_words, cfa, bp), saved(bx_words, cfa, bx));
            (pc, sp) = (word, cfa);
            // SAFETY: the caller promises that `to` is writable for `max` words, and `count` is
            // below `max`.
            unsafe { to.add(count as usize).write_unaligned(pc) };
            count += 1;
        }
        (self.pc, self.sp, self.bp, self.bx) = (pc, sp, bp, bx);
        count
    }

    /// Goes to the caller.
    fn step(&mut self) -> Option<()> {
        match self.next {
            Next::Entered => self.leave(self.sp.wrapping_add(if arch::LINKS { 0 } else { arch::WORD })),
            Next::Called | Next::Exact => self.caller(),
            Next::Here | Next::End => None,
        }
    }

    /// The probe, if the hit is at the entry of a function.
    #[inline(always)]
    fn entered(&self) -> Option<&ProbeDesc> {
        // SAFETY: no step was made yet, so `regs` are those of the hit that `new` was promised.
        // Nothing is written.
        let probe = unsafe { Place::around(self.regs.cast_mut()) }.probe();
        let is_entry = |desc: &&ProbeDesc| desc.flow == Flow::Return as u32 || desc.flags & ProbeDesc::FUNCTION != 0;
        let desc = if probe & Hit::RETURNED == 0 { self.agent.probe(probe as u32) } else { None };
        desc.filter(is_entry)
    }

    fn read(&mut self, at: u64) -> Option<u64> {
        if arch::WORD == 8 { safe_read::word(self.agent, at) } else { self.stack.word(self.agent, at) }
    }

    #[inline(never)]
    fn caller(&mut self) -> Option<()> {
        let Some(table) = self.table else { return self.by_frame_pointer() };
        let rule = table.rule(self.thread, if self.next == Next::Called { self.pc - 1 } else { self.pc });
        let at = match rule.kind {
            REGISTER | MEMORY => self.base(rule.base)?.wrapping_add(rule.offset as u64),
            kind => return self.without_rule(kind),
        };
        let cfa = if rule.kind == MEMORY { self.read(at)?.wrapping_add(rule.plus as u64) } else { at };
        // A function that has called another one has the return address somewhere else.
        if arch::LINKS && self.next == Next::Called && rule.bx == 0 && rule.flags & UnwindRule::BX_BY_BP == 0 {
            return None;
        }
        (self.bp, self.bx) = match rule.flags {
            0 => (saved(rule.bp, cfa, self.bp), saved(rule.bx, cfa, self.bx)),
            flags => {
                let frame = self.read(self.bp)?;
                let by = |is: u8, words: i16, old: u64| match flags & is {
                    0 => saved(words, cfa, old),
                    _ => frame.wrapping_add((i64::from(words) * arch::WORD as i64) as u64),
                };
                (by(UnwindRule::BP_BY_BP, rule.bp, self.bp), by(UnwindRule::BX_BY_BP, rule.bx, self.bx))
            }
        };
        self.leave(cfa)
    }

    fn base(&mut self, base: u8) -> Option<u64> {
        match base {
            UnwindRule::SP => Some(self.sp),
            UnwindRule::BP => self.read(self.bp),
            UnwindRule::BX => self.read(self.bx),
            other => self.other_base(other),
        }
    }

    fn other_base(&self, base: u8) -> Option<u64> {
        let is_known = self.next == Next::Exact && !self.regs.is_null() && usize::from(base) < size_of::<Regs>() / 8;
        // SAFETY: `regs` is not null, so it is those of the hit that `new` was promised. The number
        // is that of one of their words.
        is_known.then(|| unsafe { self.regs.cast::<u64>().add(base.into()).read_volatile() })
    }

    /// To the caller, whose stack pointer this is: the return address is below, or where the link
    /// register is.
    #[inline(always)]
    fn leave(&mut self, cfa: u64) -> Option<()> {
        let slot = if arch::LINKS { self.bx } else { cfa.wrapping_sub(arch::WORD) };
        let least = if arch::LINKS { cfa } else { slot };
        if least < self.sp || slot % arch::WORD != 0 {
            return None;
        }
        let pc = self.return_address(slot)?;
        self.go(pc, cfa)
    }

    #[inline(always)]
    fn go(&mut self, pc: u64, sp: u64) -> Option<()> {
        (self.pc, self.sp, self.next) = (pc, sp, Next::Called);
        (pc != 0).then_some(())
    }

    /// The return address in a stack slot, also if it was replaced.
    #[inline(always)]
    fn return_address(&mut self, slot: u64) -> Option<u64> {
        let word = arch::unsigned(self.read(slot)?);
        if word != self.agent.private().trampoline {
            return Some(word);
        }
        shadow::real_return(self.agent, Some(self.thread), slot)
    }

    #[cold]
    fn without_rule(&mut self, kind: u8) -> Option<()> {
        let context = if kind == UNKNOWN || kind == SIGNAL { self.context(kind) } else { None };
        match context {
            Some(context) => self.interrupted(context),
            None if kind == UNKNOWN => self.by_frame_pointer(),
            None => None,
        }
    }

    /// The context of the signal whose handler returns to `pc`, by the code there.
    fn context(&self, kind: u8) -> Option<u64> {
        let code = self.read_code(self.pc).unwrap_or([0; 16]);
        let known = arch::restorer_call(&code)
            .and_then(|(number, popped)| arch::returning_context(number, self.sp.wrapping_add(popped)));
        known.or_else(|| (kind == SIGNAL).then(|| arch::returning_context(arch::nr::RT_SIGRETURN, self.sp)).flatten())
    }

    fn read_code(&self, at: u64) -> Option<[u8; 16]> {
        let (low, high) = (safe_read::u64_at(self.agent, at)?, safe_read::u64_at(self.agent, at.wrapping_add(8))?);
        Some((u128::from(low) | u128::from(high) << 64).to_le_bytes())
    }

    /// To what a signal interrupted. A copy of an instruction stands for its original.
    fn interrupted(&mut self, context: u64) -> Option<()> {
        let at = |offset: usize| context.wrapping_add(offset as u64);
        let (pc, sp) = (self.read(at(arch::UCONTEXT_IP))?, self.read(at(arch::UCONTEXT_SP))?);
        (self.bp, self.bx) = (at(arch::UCONTEXT_BP), at(arch::UCONTEXT_BX));
        let (pc, pushed) = fault::original(self.agent, pc).unwrap_or((pc, false));
        self.go(pc, if pushed { sp.wrapping_add(arch::WORD) } else { sp })?;
        (self.next, self.regs) = (Next::Exact, core::ptr::null());
        Some(())
    }

    #[inline(never)]
    fn by_frame_pointer(&mut self) -> Option<()> {
        let frame = self.read(self.bp)?;
        if frame == 0 || frame < self.sp || frame % arch::WORD != 0 {
            return None;
        }
        let pc = self.return_address(frame.wrapping_add(arch::WORD))?;
        // What a register that is no frame pointer leads to mostly is not.
        if self.table.is_some() && !return_address::is_behind_call(self.agent, pc) {
            return None;
        }
        (self.bp, self.bx) = (frame, if arch::LINKS { frame.wrapping_add(arch::WORD) } else { self.bx });
        self.go(pc, frame.wrapping_add(2 * arch::WORD))
    }
}

impl Iterator for Frames {
    type Item = u64;

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        let mut address = 0;
        // SAFETY: `address` is one word.
        (unsafe { self.fill(&raw mut address, 1) } == 1).then_some(address)
    }
}

/// Where a register of the caller is.
#[inline(always)]
fn saved(words: i16, cfa: u64, old: u64) -> u64 {
    match words {
        0 => old,
        UnwindRule::LOST => 0,
        words => cfa.wrapping_add((i64::from(words) * arch::WORD as i64) as u64),
    }
}

/// The engine's table. It changes only by being replaced.
#[derive(Clone, Copy)]
struct Table {
    objects: *const UnwindObject,
    len: u32,
    rules: *const UnwindRule,
}

impl Table {
    #[inline(always)]
    fn of(agent: Agent) -> Option<Table> {
        let at = agent.private().unwind.load(Ordering::Acquire);
        if at == 0 {
            return None;
        }
        // SAFETY: the controller put a table there, which stays mapped.
        let head = unsafe { &*(at as *const UnwindTable) };
        let (objects, rules) = (at + UnwindTable::OBJECTS, at + head.rules());
        Some(Table { objects: objects as *const UnwindObject, len: head.objects, rules: rules as *const UnwindRule })
    }

    /// The rule for an address.
    #[inline(always)]
    fn rule(&self, thread: Thread, at: u64) -> UnwindRule {
        let number = self.number(thread, at);
        PlainRule::of_number(number).map_or_else(|| *self.listed(number), |plain| plain.rule(arch::WORD as i32))
    }

    /// The rule with a number that is not plain.
    #[inline(always)]
    fn listed(&self, number: u16) -> &'static UnwindRule {
        // SAFETY: a number that is not plain is that of a rule of the table.
        unsafe { &*self.rules.add(number.into()) }
    }

    /// The number of the rule for an address.
    #[inline(always)]
    fn number(&self, thread: Thread, at: u64) -> u16 {
        let known = thread.unwound(at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - UNWOUND.trailing_zeros()));
        // SAFETY: `known` is a word of the state of this thread. What a handler puts there in
        // between is the number of a rule, too.
        let word = unsafe { known.read_volatile() };
        if word >> 16 == at {
            return word as u16;
        }
        let number = self.search(at);
        // What is unknown now may be known later.
        if number != UnwindRule::UNKNOWN {
            // SAFETY: `known` is a word of the state of this thread.
            unsafe { known.write_volatile(at << 16 | u64::from(number)) };
        }
        number
    }

    #[cold]
    #[inline(never)]
    fn search(self, at: u64) -> u16 {
        // SAFETY: indices are below the lengths of the table.
        unsafe {
            let object = |index: u64| (*self.objects.add(index as usize)).start;
            let Some(index) = last(self.len.into(), |index| object(index) <= at) else { return UnwindRule::UNKNOWN };
            let object = &*self.objects.add(index as usize);
            if at >= object.end {
                return UnwindRule::UNKNOWN;
            }
            let (rows, numbers) = (object.rows as *const u32, object.numbers() as *const u16);
            let offset = at - object.start;
            let row = |index: u64| u64::from(rows.add(index as usize).read());
            last(object.len, |index| row(index) <= offset)
                .map_or(UnwindRule::UNKNOWN, |index| numbers.add(index as usize).read())
        }
    }
}

/// The last index below `len` for which this is true, if it is true up to there and nowhere behind.
#[inline(always)]
fn last(len: u64, is: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        if is(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.checked_sub(1)
}
