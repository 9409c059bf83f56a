//! What a trap handler can finish by itself: a prepared operation, and its execution on saved
//! registers.
//!
//! This file needs nothing but `core` and cannot panic, so that it can be compiled into whatever
//! handles the trap.
#![forbid(unsafe_code)]

/// An instruction, prepared for [`execute`]. It holds no address: it does the same wherever the
/// instruction lies.
///
/// Plain data: two words travel between who prepares it and who executes it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    pub(super) kind: u8,
    /// The condition under which it does anything.
    pub(super) condition: u8,
    /// A register: 0 to 15, or [`NONE`].
    pub(super) reg: u8,
    /// The base of an access or the first term of a sum: a register, or [`ALIGNED`].
    pub(super) base: u8,
    /// The second register of a pair, or [`NONE`].
    pub(super) second: u8,
    /// What happens to the base: [`KEEP`], [`BEFORE`] or [`AFTER`]. Of [`SUM`] and [`CONSTANT`],
    /// which flags change: [`KEEP`] for none, [`ADDS`], [`SUBTRACTS`] or [`MOVES`].
    pub(super) update: u8,
    /// Bytes of the instruction.
    pub(super) len: u8,
    /// 1: it is T32.
    pub(super) thumb: u8,
    /// Second term, offset, constant, or distance of the target from the program counter.
    pub(super) value: u32,
    /// The registers of [`LOAD_ALL`] and [`STORE_ALL`], a bit each; of [`COMPARE_ZERO`] 1: it goes
    /// on if the register is 0.
    pub(super) list: u32,
}

pub(super) const SP: u8 = 13;
const LINK: u8 = 14;
/// The program counter, as the instruction reads it.
pub(super) const PC: u8 = 15;
/// The same as a multiple of 4.
pub(super) const ALIGNED: u8 = 16;
/// No register.
pub(super) const NONE: u8 = 17;

pub(super) const NOP: u8 = 1;
/// To [`PC`] + value.
pub(super) const JUMP: u8 = 2;
pub(super) const CALL: u8 = 3;
/// To [`ALIGNED`] + value in the other instruction set.
pub(super) const CALL_OTHER: u8 = 4;
/// `cbnz`, and `cbz` by the list.
pub(super) const COMPARE_ZERO: u8 = 5;
pub(super) const JUMP_REGISTER: u8 = 6;
pub(super) const CALL_REGISTER: u8 = 7;
/// `reg` = base + value.
pub(super) const SUM: u8 = 8;
/// `reg` = value.
pub(super) const CONSTANT: u8 = 9;
/// The upper half of `reg` = value.
pub(super) const TOP: u8 = 10;
pub(super) const LOAD: u8 = 11;
pub(super) const STORE: u8 = 12;
/// From the base on, each register of the list.
pub(super) const LOAD_ALL: u8 = 13;
pub(super) const STORE_ALL: u8 = 14;

pub(super) const KEEP: u8 = 0;
pub(super) const BEFORE: u8 = 1;
pub(super) const AFTER: u8 = 2;
pub(super) const ADDS: u8 = 1;
pub(super) const SUBTRACTS: u8 = 2;
pub(super) const MOVES: u8 = 3;

/// `T` of `CPSR` (DDI 0406C, B1.3.3): T32.
const THUMB: u32 = 1 << 5;
/// Bits of `CPSR` that say where in a block of `it` the processor is.
const IN_BLOCK: u32 = 0x0600_fc00;

impl Op {
    /// As two words.
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        let Op { kind, condition, reg, base, second, update, len, thumb, value, list } = self;
        let first = u64::from_le_bytes([kind, condition, reg, base, second, update, len, thumb]);
        [first, u64::from(list) << 32 | u64::from(value)]
    }

    /// From what [`Op::to_words`] gave. Other words are an operation that [`execute`] leaves to the
    /// displaced copy, or some other one; they break nothing.
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> Op {
        let [first, last] = words;
        let [kind, condition, reg, base, second, update, len, thumb] = first.to_le_bytes();
        let (value, list) = (last as u32, (last >> 32) as u32);
        Op { kind, condition, reg, base, second, update, len, thumb, value, list }
    }

    /// Is it a call or a return, which use the processor's own stack of return addresses, too?
    /// There is none on arm32.
    #[must_use]
    pub fn uses_shadow_stack(&self) -> bool {
        false
    }
}

/// What an operation works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// r0 to r15. The last one is the address of the instruction; after it, where to go on, without
    /// the bit that says T32.
    pub r: [u32; 16],
    /// `CPSR`, as the kernel saves it.
    pub cpsr: u32,
}

/// The program's memory.
pub trait Memory {
    /// The 8 bytes at an address, which may be unaligned; `None` = they cannot be read.
    fn load(&mut self, at: u64) -> Option<u64>;

    /// Writes 8 bytes; `None` = they cannot be written, and none of them was.
    fn store(&mut self, at: u64, value: u64) -> Option<()>;

    /// The 4 bytes at an address. Where there is none, nothing is read.
    fn load32(&mut self, _at: u64) -> Option<u32> {
        None
    }

    /// Writes 4 bytes.
    fn store32(&mut self, _at: u64, _value: u32) -> Option<()> {
        None
    }
}

/// What is left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing: registers and memory are as after the instruction.
    Done,
    /// Everything: the registers have not changed, and the displaced copy has to run. It faults as
    /// the instruction would. Of a store of several registers, the first ones may be written
    /// already: the copy writes the same again.
    Displaced,
}

/// Does what the instruction at `registers.r[15]` does.
#[must_use]
pub fn execute(op: &Op, registers: &mut Registers, memory: &mut impl Memory) -> Next {
    match step(op, registers, memory) {
        Some(()) => Next::Done,
        None => Next::Displaced,
    }
}

/// What can fail comes before the first change of a register.
fn step(op: &Op, r: &mut Registers, memory: &mut impl Memory) -> Option<()> {
    let thumb = u32::from(op.thumb & 1);
    if r.cpsr & IN_BLOCK != 0 || (r.cpsr & THUMB != 0) != (thumb == 1) {
        return None;
    }
    let site = Site { pc: r.ip32().wrapping_add(if thumb == 1 { 4 } else { 8 }) };
    // As `bx` takes it.
    let next = r.ip32().wrapping_add(op.len.into()) | thumb;
    if !r.holds(op.condition) {
        return r.go_to(next);
    }
    let target = site.pc.wrapping_add(op.value) | thumb;
    match op.kind {
        NOP => r.go_to(next),
        JUMP => r.go_to(target),
        COMPARE_ZERO => {
            let is_zero = site.get(r, op.reg) == 0;
            r.go_to(if is_zero == (op.list == 1) { target } else { next })
        }
        CALL => {
            r.go_to(target)?;
            r.set(LINK, next);
            Some(())
        }
        CALL_OTHER => {
            r.go_to((site.pc & !3).wrapping_add(op.value) | (thumb ^ 1))?;
            r.set(LINK, next);
            Some(())
        }
        JUMP_REGISTER => r.go_to(site.get(r, op.reg)),
        CALL_REGISTER => {
            r.go_to(site.get(r, op.reg))?;
            r.set(LINK, next);
            Some(())
        }
        SUM => {
            let (first, second) = (site.get(r, op.base), op.value);
            r.go_to(next)?;
            r.set(op.reg, first.wrapping_add(second));
            r.sets(op.update, first, second);
            Some(())
        }
        CONSTANT => {
            r.go_to(next)?;
            r.set(op.reg, op.value);
            r.sets(op.update, op.value, 0);
            Some(())
        }
        TOP => {
            let low = site.get(r, op.reg) & 0xffff;
            r.go_to(next)?;
            r.set(op.reg, op.value << 16 | low);
            Some(())
        }
        LOAD | STORE => access(op, site, r, memory, next),
        LOAD_ALL | STORE_ALL => access_all(op, site, r, memory, next),
        _ => None,
    }
}

/// Where an instruction is: what it reads as the program counter.
#[derive(Clone, Copy)]
struct Site {
    pc: u32,
}

impl Site {
    /// 0 for what is no register.
    fn get(self, r: &Registers, number: u8) -> u32 {
        match number {
            PC => self.pc,
            ALIGNED => self.pc & !3,
            _ => r.r.get(usize::from(number)).copied().unwrap_or(0),
        }
    }
}

fn access(op: &Op, site: Site, r: &mut Registers, memory: &mut impl Memory, next: u32) -> Option<()> {
    let base = site.get(r, op.base);
    let moved = base.wrapping_add(op.value);
    let at = if op.update == AFTER { base } else { moved };
    let is_pair = op.second != NONE;
    // Pairs have to be aligned to words (section A3.2.1).
    if is_pair && at & 3 != 0 {
        return None;
    }
    let mut to = next;
    if op.kind == STORE {
        let (first, second) = (site.get(r, op.reg), site.get(r, op.second));
        if is_pair {
            // As words, which a trap handler refuses: the frame of its signal lies right below the
            // stack pointer.
            memory.store32(at.into(), first)?;
            memory.store32(at.wrapping_add(4).into(), second)?;
        } else {
            memory.store32(at.into(), first)?;
        }
        r.go_to(to)?;
    } else {
        let value = if is_pair { memory.load(at.into())? } else { memory.load32(at.into())?.into() };
        if op.reg == PC {
            to = value as u32;
            // Only whole words go there.
            if at & 3 != 0 {
                return None;
            }
        }
        r.go_to(to)?;
        if op.update != KEEP {
            r.set(op.base, moved);
        }
        r.set(op.reg, value as u32);
        if is_pair {
            r.set(op.second, (value >> 32) as u32);
        }
        return Some(());
    }
    if op.update != KEEP {
        r.set(op.base, moved);
    }
    Some(())
}

fn access_all(op: &Op, site: Site, r: &mut Registers, memory: &mut impl Memory, next: u32) -> Option<()> {
    let base = site.get(r, op.base);
    let bytes = 4 * (op.list & 0xffff).count_ones();
    let (start, moved) = match op.update & BEFORE {
        0 => (base, base.wrapping_add(bytes)),
        _ => (base.wrapping_sub(bytes), base.wrapping_sub(bytes)),
    };
    if base & 3 != 0 {
        return None;
    }
    let (mut at, mut loaded, mut to) = (start, *r, next);
    for number in (0..16u8).filter(|number| op.list >> number & 1 == 1) {
        if op.kind == STORE_ALL {
            memory.store32(at.into(), site.get(r, number))?;
        } else {
            let value = memory.load32(at.into())?;
            if number == PC {
                to = value;
            }
            loaded.set(number, value);
        }
        at = at.wrapping_add(4);
    }
    // The value says whether the base is written back.
    if op.value == 1 {
        loaded.set(op.base, moved);
    }
    loaded.go_to(to)?;
    *r = loaded;
    Some(())
}

impl Registers {
    /// Before: the address of the instruction. After: where to go on.
    #[must_use]
    pub fn ip(&self) -> u64 {
        self.ip32().into()
    }

    /// Says where the instruction is.
    pub fn set_ip(&mut self, ip: u64) {
        self.set_pc(ip as u32);
    }

    /// `CPSR`.
    #[must_use]
    pub fn flags(&self) -> u64 {
        self.cpsr.into()
    }

    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        let [.., sp, _, _] = self.r;
        sp.into()
    }

    fn ip32(&self) -> u32 {
        let [.., pc] = self.r;
        pc
    }

    fn set_pc(&mut self, to: u32) {
        let [.., pc] = &mut self.r;
        *pc = to;
    }

    /// All but the program counter, which only [`Registers::go_to`] changes.
    fn set(&mut self, number: u8, value: u32) {
        if number < PC {
            if let Some(register) = self.r.get_mut(usize::from(number)) {
                *register = value;
            }
        }
    }

    /// Goes on at an address, whose bit 0 says T32 (`BXWritePC`, section A2.3.1). What is not
    /// defined is left to the processor.
    fn go_to(&mut self, to: u32) -> Option<()> {
        match to & 3 {
            0 => {
                self.cpsr &= !THUMB;
                self.set_pc(to);
            }
            1 | 3 => {
                self.cpsr |= THUMB;
                self.set_pc(to & !1);
            }
            _ => return None,
        }
        Some(())
    }

    /// The flags of a computation: `N` and `Z` of the result, `C` and `V` of sums.
    fn sets(&mut self, how: u8, first: u32, second: u32) {
        let sum = first.wrapping_add(second);
        // A difference is a sum with the complement, and 1.
        let difference = second.wrapping_neg();
        let (changed, carry, overflow) = match how {
            ADDS => (15, first.checked_add(second).is_none(), (first ^ sum) & (second ^ sum)),
            SUBTRACTS => (15, first >= difference, (first ^ difference) & (first ^ sum)),
            MOVES => (12, false, 0),
            _ => return,
        };
        let flags = sum >> 31 << 3 | u32::from(sum == 0) << 2 | u32::from(carry) << 1 | overflow >> 31;
        self.cpsr = self.cpsr & !(changed << 28) | (flags & changed) << 28;
    }

    /// Whether a condition holds (section A8.3).
    fn holds(&self, condition: u8) -> bool {
        let [n, z, c, v] = [31, 30, 29, 28].map(|bit| self.cpsr >> bit & 1 == 1);
        let holds = match condition >> 1 & 7 {
            0 => z,
            1 => c,
            2 => n,
            3 => v,
            4 => c && !z,
            5 => n == v,
            6 => n == v && !z,
            _ => return true,
        };
        holds != (condition & 1 == 1)
    }
}
