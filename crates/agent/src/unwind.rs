//! From the frame of a hit to its callers, by the engine's table of what `.eh_frame` says (`wire::unwind`), and by frame
//! pointers through code that has none: of compilers at run time, of objects that came later.
//!
//! Nothing that is read is trusted. A chain ends where a word cannot be read, a frame is not above the one before, or an
//! address is not behind a call.

use core::ptr::addr_of;
use core::sync::atomic::Ordering;

use sidestep_wire::private::UNWOUND;
use sidestep_wire::{Flow, Hit, ProbeDesc, Regs, UnwindKind, UnwindObject, UnwindRule, UnwindTable};

use crate::hit::Place;
use crate::memory::{Agent, Thread};
use crate::{arch, fault, safe_read, shadow};

const UNKNOWN: u8 = UnwindKind::Unknown as u8;
const REGISTER: u8 = UnwindKind::Register as u8;
const MEMORY: u8 = UnwindKind::Memory as u8;
const SIGNAL: u8 = UnwindKind::Signal as u8;

/// Addresses of a stack, innermost first.
#[derive(Clone, Copy)]
pub struct Frames {
    agent: Agent,
    thread: Thread,
    table: Option<Table>,
    /// Address of the instruction that runs, or to which a call returns.
    pc: u64,
    sp: u64,
    bp: Register,
    bx: Register,
    next: Next,
    /// The context of a hit while its frame is the one to be left: all registers are known.
    regs: *const Regs,
}

/// A register of a frame.
#[derive(Clone, Copy)]
enum Register {
    Is(u64),
    /// In a word of the target's stack.
    At(u64),
    Lost,
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
}

impl Frames {
    /// # Safety
    /// `context` is verified to be that of a hit on `thread`, which stays in place.
    pub unsafe fn new(agent: Agent, thread: Thread, context: u64) -> Frames {
        let regs = context as *const Regs;
        // SAFETY: the caller's.
        let [pc, sp, bp, bx] = unsafe {
            let words = [addr_of!((*regs).rip), addr_of!((*regs).rsp), addr_of!((*regs).rbp), addr_of!((*regs).rbx)];
            words.map(|word| word.read_volatile())
        };
        let (bp, bx, table) = (Register::Is(bp), Register::Is(bx), Table::of(agent));
        Frames { agent, thread, table, pc, sp, bp, bx, next: Next::Here, regs }
    }

    /// Is the hit at the entry of a function?
    fn is_entry(&self) -> bool {
        // SAFETY: see `new`; nothing is written.
        let probe = unsafe { Place::around(self.regs.cast_mut()) }.probe();
        let is_entry = |desc: &ProbeDesc| desc.flow == Flow::Return as u32 || desc.flags & ProbeDesc::FUNCTION != 0;
        probe & Hit::RETURNED == 0 && self.agent.probe(probe as u32).is_some_and(is_entry)
    }

    #[inline(always)]
    fn read(&self, at: u64) -> Option<u64> {
        safe_read::word(self.agent, at)
    }

    #[inline(always)]
    fn value(&self, register: Register) -> Option<u64> {
        match register {
            Register::Is(value) => Some(value),
            Register::At(at) => self.read(at),
            Register::Lost => None,
        }
    }

    /// Goes to the caller.
    #[inline(always)]
    fn step(&mut self) -> Option<()> {
        if self.next == Next::Entered {
            return self.leave(self.sp.wrapping_add(arch::WORD));
        }
        let Some(table) = self.table else { return self.by_frame_pointer() };
        let rule = table.rule(self.thread, if self.next == Next::Called { self.pc - 1 } else { self.pc });
        let at = match rule.kind {
            REGISTER | MEMORY => self.base(rule.base)?.wrapping_add(rule.offset as u64),
            UNKNOWN | SIGNAL => return self.without_rule(rule.kind),
            _ => return None,
        };
        let cfa = if rule.kind == MEMORY { self.read(at)?.wrapping_add(rule.plus as u64) } else { at };
        let by = |saved: i16, own: bool, old: Register| match saved {
            0 if !own => Some(old),
            UnwindRule::LOST => Some(Register::Lost),
            saved => {
                let from = if own { self.value(self.bp)? } else { cfa };
                Some(Register::At(from.wrapping_add((i64::from(saved) * arch::WORD as i64) as u64)))
            }
        };
        let bx = by(rule.bx, rule.flags & UnwindRule::BX_BY_BP != 0, self.bx)?;
        self.bp = by(rule.bp, rule.flags & UnwindRule::BP_BY_BP != 0, self.bp)?;
        self.bx = bx;
        self.leave(cfa)
    }

    #[inline(always)]
    fn base(&self, base: u8) -> Option<u64> {
        match base {
            UnwindRule::SP => Some(self.sp),
            UnwindRule::BP => self.value(self.bp),
            UnwindRule::BX => self.value(self.bx),
            // SAFETY: see `new`; the number is one of the words.
            other if self.next == Next::Exact && !self.regs.is_null() && usize::from(other) < size_of::<Regs>() / 8 => unsafe {
                Some(self.regs.cast::<u64>().add(other.into()).read_volatile())
            },
            _ => None,
        }
    }

    /// To the caller, whose stack pointer this is: its return address is below.
    #[inline(always)]
    fn leave(&mut self, cfa: u64) -> Option<()> {
        let slot = cfa.wrapping_sub(arch::WORD);
        if slot < self.sp || slot % arch::WORD != 0 {
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
    fn return_address(&self, slot: u64) -> Option<u64> {
        let word = self.read(slot)?;
        if word != self.agent.private().trampoline {
            return Some(word);
        }
        shadow::real_return(self.agent, Some(self.thread), slot)
    }

    #[cold]
    #[inline(never)]
    fn without_rule(&mut self, kind: u8) -> Option<()> {
        match self.context() {
            Some(context) => self.interrupted(context),
            None if kind == UNKNOWN => self.by_frame_pointer(),
            None => None,
        }
    }

    /// The context of the signal whose handler returns to `pc`: who calls `rt_sigreturn` there is known by its code (`mov`,
    /// then `syscall` or `int $0x80`), as debuggers know it.
    fn context(&self) -> Option<u64> {
        let code = self.read_code(self.pc)?;
        let (number, rest) = match code[0] {
            0xb8 => (&code[1..5], &code[5..7]),
            0x48 if code[1..3] == [0xc7, 0xc0] => (&code[3..7], &code[7..9]),
            _ => return None,
        };
        let number = u64::from(u32::from_le_bytes(number.try_into().ok()?));
        let is_call = rest == [0x0f, 0x05] || rest == [0xcd, 0x80];
        if is_call { arch::returning_context(number, self.sp) } else { None }
    }

    fn read_code(&self, at: u64) -> Option<[u8; 16]> {
        let (low, high) = (safe_read::u64_at(self.agent, at)?, safe_read::u64_at(self.agent, at.wrapping_add(8))?);
        let mut code = [0; 16];
        code[..8].copy_from_slice(&low.to_le_bytes());
        code[8..].copy_from_slice(&high.to_le_bytes());
        Some(code)
    }

    /// To what a signal interrupted. A copy of an instruction stands for its original.
    fn interrupted(&mut self, context: u64) -> Option<()> {
        let at = |offset: usize| context.wrapping_add(offset as u64);
        let (pc, sp) = (self.read(at(arch::UCONTEXT_IP))?, self.read(at(arch::UCONTEXT_SP))?);
        self.bp = Register::At(at(arch::UCONTEXT_BP));
        self.bx = Register::At(at(arch::UCONTEXT_BX));
        let (pc, pushed) = fault::original(self.agent, pc).unwrap_or((pc, false));
        self.go(pc, if pushed { sp.wrapping_add(arch::WORD) } else { sp })?;
        (self.next, self.regs) = (Next::Exact, core::ptr::null());
        Some(())
    }

    fn by_frame_pointer(&mut self) -> Option<()> {
        let frame = self.value(self.bp)?;
        if frame == 0 || frame < self.sp || frame % arch::WORD != 0 {
            return None;
        }
        let outer = self.read(frame)?;
        let pc = self.return_address(frame.wrapping_add(arch::WORD))?;
        if self.table.is_some() && !self.is_behind_call(pc) {
            return None;
        }
        self.bp = Register::Is(outer);
        self.go(pc, frame.wrapping_add(2 * arch::WORD))
    }

    /// Is there a call in front of this address? What a register that is no frame pointer leads to mostly is not.
    fn is_behind_call(&self, pc: u64) -> bool {
        let Some(code) = self.read_code(pc.wrapping_sub(8)) else { return false };
        // `call rel32`, or `call r/m` of two to seven bytes (`ff /2`).
        code[3] == 0xe8 || (1..7).any(|at| code[at] == 0xff && code[at + 1] >> 3 & 7 == 2)
    }
}

impl Iterator for Frames {
    type Item = u64;

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        if self.next == Next::Here {
            self.next = if self.is_entry() { Next::Entered } else { Next::Exact };
            return Some(self.pc);
        }
        // What ends here has no more, however often it is asked.
        if self.step().is_none() {
            (self.pc, self.sp, self.next, self.table) = (0, u64::MAX, Next::Entered, None);
            return None;
        }
        Some(self.pc)
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
    fn rule(self, thread: Thread, at: u64) -> &'static UnwindRule {
        let known = thread.unwound(at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - UNWOUND.trailing_zeros()));
        // SAFETY: one of the thread's words. A handler that comes in between changes it as a whole.
        let word = unsafe { known.read_volatile() };
        let number = if word >> 16 == at {
            word as u16
        } else {
            let number = self.search(at);
            // What is unknown now may be known later.
            if number != UnwindRule::UNKNOWN {
                // SAFETY: as above.
                unsafe { known.write_volatile(at << 16 | u64::from(number)) };
            }
            number
        };
        // SAFETY: numbers are those of rules.
        unsafe { &*self.rules.add(number.into()) }
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
