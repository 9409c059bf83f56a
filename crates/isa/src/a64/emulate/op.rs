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
    /// A register: 0 to 30, [`SP`] or [`ZERO`]; of [`BRANCH`] the condition.
    pub(super) reg: u8,
    /// The second register of a pair or of a comparison, or [`NONE`]; of [`TEST_BIT`] the bit.
    pub(super) second: u8,
    /// The base of an access or the first term of a sum: a register, or [`PC`]; of [`COMPARE`] the
    /// condition.
    pub(super) base: u8,
    /// Bytes of a register or of each access: 4 or 8; of [`COMPARE`] also 1 or 2.
    pub(super) size: u8,
    /// What happens to the base: [`KEEP`], [`BEFORE`] or [`AFTER`].
    pub(super) update: u8,
    /// 1: the opposite condition, or a load that extends the sign.
    pub(super) flag: u8,
    /// An immediate to compare with.
    pub(super) number: u8,
    /// Second term, offset, or distance of the target from the start of the instruction.
    pub(super) value: u64,
}

/// The stack pointer as a register.
pub(super) const SP: u8 = 31;
/// The zero register.
pub(super) const ZERO: u8 = 32;
/// No register.
pub(super) const NONE: u8 = 33;
/// The address of the instruction.
pub(super) const PC: u8 = 34;
const LINK: u8 = 30;

pub(super) const NOP: u8 = 1;
pub(super) const JUMP: u8 = 2;
pub(super) const CALL: u8 = 3;
pub(super) const BRANCH: u8 = 4;
/// `cbz`, and `cbnz` with the flag.
pub(super) const COMPARE_ZERO: u8 = 5;
/// `tbz`, and `tbnz` with the flag.
pub(super) const TEST_BIT: u8 = 6;
/// `cbgt` and its like.
pub(super) const COMPARE: u8 = 7;
pub(super) const JUMP_REGISTER: u8 = 8;
pub(super) const CALL_REGISTER: u8 = 9;
pub(super) const RETURN: u8 = 10;
/// `reg` = base + value.
pub(super) const SUM: u8 = 11;
/// `reg` = the page of the instruction + value.
pub(super) const PAGE: u8 = 12;
pub(super) const LOAD: u8 = 13;
pub(super) const STORE: u8 = 14;

pub(super) const KEEP: u8 = 0;
pub(super) const BEFORE: u8 = 1;
pub(super) const AFTER: u8 = 2;

/// `PSTATE.BTYPE` (section C5.2.20, "SPSR_EL1").
const BTYPE: u64 = 3 << 10;

impl Op {
    /// As two words.
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        let Op { kind, reg, second, base, size, update, flag, number, value } = self;
        [u64::from_le_bytes([kind, reg, second, base, size, update, flag, number]), value]
    }

    /// From what [`Op::to_words`] gave. Other words are an operation that [`execute`] leaves to the
    /// displaced copy, or some other one; they break nothing.
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> Op {
        let [first, value] = words;
        let [kind, reg, second, base, size, update, flag, number] = first.to_le_bytes();
        Op { kind, reg, second, base, size, update, flag, number, value }
    }

    /// Is it a call or a return? These use the processor's own stack of return addresses
    /// (`FEAT_GCS`), where there is one, too.
    #[must_use]
    pub fn uses_shadow_stack(&self) -> bool {
        matches!(self.kind, CALL | CALL_REGISTER | RETURN)
    }

    /// A value as a register of this size has it.
    fn cut(&self, value: u64) -> u64 {
        match self.size {
            1 => value & 0xff,
            2 => value & 0xffff,
            4 => value & 0xffff_ffff,
            _ => value,
        }
    }

    /// The same as a number with a sign.
    fn signed(&self, value: u64) -> i64 {
        match self.size {
            1 => i64::from(value as i8),
            2 => i64::from(value as i16),
            4 => i64::from(value as i32),
            _ => value as i64,
        }
    }
}

/// What an operation works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// x0 to x30.
    pub x: [u64; 31],
    /// The stack pointer.
    pub sp: u64,
    /// Before: the address of the instruction. After: where to go on.
    pub pc: u64,
    /// `PSTATE`, as the kernel saves it.
    pub pstate: u64,
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
    /// the instruction would. Of a store of two registers, the first may be written already: the
    /// copy writes the same again.
    Displaced,
}

/// Does what the instruction at `registers.pc` does.
///
/// `PSTATE.BTYPE` becomes 0, as behind any instruction that is no indirect branch. Behind `br` and
/// `blr` it would ask for a landing pad at the target; here, nothing is asked.
#[must_use]
pub fn execute(op: &Op, registers: &mut Registers, memory: &mut impl Memory) -> Next {
    match step(op, registers, memory) {
        Some(()) => Next::Done,
        None => Next::Displaced,
    }
}

/// What can fail comes before the first change of a register.
fn step(op: &Op, r: &mut Registers, memory: &mut impl Memory) -> Option<()> {
    let target = r.pc.wrapping_add(op.value);
    let next = r.pc.wrapping_add(4);
    let mut go_on = next;
    match op.kind {
        NOP => {}
        JUMP => go_on = target,
        CALL => {
            r.set(LINK, next);
            go_on = target;
        }
        BRANCH if !r.holds(op.reg) => {}
        COMPARE_ZERO if (op.cut(r.get(op.reg)) == 0) == (op.flag == 1) => {}
        TEST_BIT if (r.get(op.reg) >> (op.second & 63) & 1 == 0) == (op.flag == 1) => {}
        COMPARE if !compares(op, r) => {}
        BRANCH | COMPARE_ZERO | TEST_BIT | COMPARE => go_on = target,
        JUMP_REGISTER | RETURN => go_on = user(r.get(op.reg))?,
        CALL_REGISTER => {
            go_on = user(r.get(op.reg))?;
            r.set(LINK, next);
        }
        SUM => r.set(op.reg, op.cut(r.get(op.base).wrapping_add(op.value))),
        PAGE => r.set(op.reg, (r.pc & !0xfff).wrapping_add(op.value)),
        LOAD | STORE => access(op, r, memory)?,
        _ => return None,
    }
    r.pc = go_on;
    r.pstate &= !BTYPE;
    Some(())
}

fn access(op: &Op, r: &mut Registers, memory: &mut impl Memory) -> Option<()> {
    let base = r.get(op.base);
    if op.base == SP && base & 15 != 0 {
        return None;
    }
    let moved = base.wrapping_add(op.value);
    let at = if op.update == AFTER { base } else { moved };
    let above = at.wrapping_add(op.size.into());
    if op.kind == STORE {
        store(op, memory, at, r.get(op.reg))?;
        if op.second != NONE {
            store(op, memory, above, r.get(op.second))?;
        }
    } else {
        let first = load(op, memory, at)?;
        if op.second != NONE {
            let second = load(op, memory, above)?;
            r.set(op.second, second);
        }
        r.set(op.reg, first);
    }
    if op.update != KEEP {
        r.set(op.base, moved);
    }
    Some(())
}

fn load(op: &Op, memory: &mut impl Memory, at: u64) -> Option<u64> {
    match (op.size, op.flag) {
        (8, _) => memory.load(at),
        (4, 0) => memory.load32(at).map(u64::from),
        (4, _) => memory.load32(at).map(|value| i64::from(value as i32) as u64),
        _ => None,
    }
}

fn store(op: &Op, memory: &mut impl Memory, at: u64, value: u64) -> Option<()> {
    match op.size {
        8 => memory.store(at, value),
        4 => memory.store32(at, value as u32),
        _ => None,
    }
}

/// An address that a program can go to. Others fault there, and tags in the upper byte are left to
/// the processor.
fn user(address: u64) -> Option<u64> {
    (address >> 52 == 0 && address & 3 == 0).then_some(address)
}

/// Compare and branch (`FEAT_CMPBR`): of registers, the condition is one of greater, greater or
/// equal, higher, higher or same, and with an immediate one of greater, less, higher, lower.
fn compares(op: &Op, r: &Registers) -> bool {
    let is_immediate = op.second == NONE;
    let (a, b) = (r.get(op.reg), if is_immediate { op.number.into() } else { r.get(op.second) });
    let (x, y) = (op.cut(a), op.cut(b));
    let (i, j) = (op.signed(a), op.signed(b));
    match (op.base, is_immediate) {
        (0, _) => i > j,
        (1, false) => i >= j,
        (1, true) => i < j,
        (2, _) => x > y,
        (3, false) => x >= y,
        (3, true) => x < y,
        (6, _) => x == y,
        _ => x != y,
    }
}

impl Registers {
    /// Before: the address of the instruction. After: where to go on.
    #[must_use]
    pub fn ip(&self) -> u64 {
        self.pc
    }

    /// Says where the instruction is.
    pub fn set_ip(&mut self, ip: u64) {
        self.pc = ip;
    }

    /// The flags.
    #[must_use]
    pub fn flags(&self) -> u64 {
        self.pstate
    }

    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        self.sp
    }

    /// 0 for what is no register.
    fn get(&self, number: u8) -> u64 {
        match number {
            SP => self.sp,
            PC => self.pc,
            _ => self.x.get(usize::from(number)).copied().unwrap_or(0),
        }
    }

    fn set(&mut self, number: u8, value: u64) {
        if number == SP {
            self.sp = value;
        } else if let Some(register) = self.x.get_mut(usize::from(number)) {
            *register = value;
        }
    }

    /// Whether a condition holds (section C1.2.4).
    fn holds(&self, condition: u8) -> bool {
        let [n, z, c, v] = [31, 30, 29, 28].map(|bit| self.pstate >> bit & 1 == 1);
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
