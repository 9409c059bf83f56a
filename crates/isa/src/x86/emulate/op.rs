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
    /// Length of the instruction.
    pub(super) len: u8,
    /// A register; of [`BRANCH`] the condition, of [`LOOP`] the low bits of the opcode.
    pub(super) reg: u8,
    /// First term of a sum: a register, [`RIP`], or a number that is none.
    pub(super) base: u8,
    /// Second term: a register, or a number that is none.
    pub(super) index: u8,
    /// By how much it is shifted.
    pub(super) shift: u8,
    /// 1: the result or counter has 32 bits, and the upper half becomes 0.
    pub(super) narrow: u8,
    /// 1: 32-bit code. Words of the stack have 4 bytes, and all results 32 bits.
    pub(super) short: u8,
    /// Immediate, third term, or distance of the target from the start of the instruction.
    pub(super) value: u64,
}

/// The address of the instruction.
pub(super) const RIP: u8 = 17;

pub(super) const NOP: u8 = 1;
/// Pushes a register.
pub(super) const PUSH: u8 = 2;
/// Pushes `value`.
pub(super) const PUSH_VALUE: u8 = 3;
pub(super) const POP: u8 = 4;
pub(super) const LEAVE: u8 = 5;
/// `reg` = base + (index << shift) + value: `mov` and `lea`.
pub(super) const SUM: u8 = 6;
/// `reg` += value, with flags.
pub(super) const ADD: u8 = 7;
/// `reg` -= value, with flags.
pub(super) const SUB: u8 = 8;
pub(super) const JUMP: u8 = 9;
pub(super) const BRANCH: u8 = 10;
pub(super) const LOOP: u8 = 11;
pub(super) const CALL: u8 = 12;
pub(super) const JUMP_REGISTER: u8 = 13;
pub(super) const CALL_REGISTER: u8 = 14;
/// `value`: bytes that are dropped in addition.
pub(super) const RETURN: u8 = 15;

impl Op {
    /// As two words.
    #[must_use]
    pub fn to_words(self) -> [u64; 2] {
        let Op { kind, len, reg, base, index, shift, narrow, short, value } = self;
        [u64::from_le_bytes([kind, len, reg, base, index, shift, narrow, short]), value]
    }

    /// From what [`Op::to_words`] gave. Other words are an operation that [`execute`] leaves to the
    /// displaced copy, or some other one; they break nothing.
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> Op {
        let [first, value] = words;
        let [kind, len, reg, base, index, shift, narrow, short] = first.to_le_bytes();
        Op { kind, len, reg, base, index, shift, narrow, short, value }
    }

    /// Bytes of a word of the stack.
    fn word(&self) -> u64 {
        if self.short == 0 { 8 } else { 4 }
    }

    /// A result as this code has it.
    fn cut(&self, value: u64) -> u64 {
        if self.short == 0 { value } else { value & 0xffff_ffff }
    }

    /// Is it a call or a return? These use the processor's shadow stack (CET), where there is one,
    /// too.
    #[must_use]
    pub fn uses_shadow_stack(&self) -> bool {
        matches!(self.kind, CALL | CALL_REGISTER | RETURN)
    }
}

/// What an operation works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// By number in encodings: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 … r15. Of 32-bit code,
    /// the upper halves are 0.
    pub gpr: [u64; 16],
    /// Before: the address of the instruction. After: where to go on.
    pub rip: u64,
    /// rflags.
    pub flags: u64,
}

/// The program's memory.
pub trait Memory {
    /// The 8 bytes at an address, which may be unaligned; `None` = they cannot be read.
    fn load(&mut self, at: u64) -> Option<u64>;

    /// Writes 8 bytes; `None` = they cannot be written, and none of them was.
    fn store(&mut self, at: u64, value: u64) -> Option<()>;

    /// The 4 bytes at an address, for 32-bit code. Where there is none, nothing is read.
    fn load32(&mut self, _at: u64) -> Option<u32> {
        None
    }

    /// Writes 4 bytes, for 32-bit code.
    fn store32(&mut self, _at: u64, _value: u32) -> Option<()> {
        None
    }
}

/// What is left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing: registers and memory are as after the instruction.
    Done,
    /// Everything: nothing has changed, and the displaced copy has to run. It faults as the
    /// instruction would.
    Displaced,
}

const RSP: u8 = 4;
const RBP: u8 = 5;
const RCX: u8 = 1;

// Bits of rflags (SDM volume 1, section 3.4.3).
const CF: u64 = 1;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;

/// Does what the instruction at `registers.rip` does. All other flags than the six of `add` and
/// `sub` stay as they are.
///
/// Shadow stacks (CET) are the caller's matter, as is the trap after the instruction if the program
/// runs with TF set.
#[must_use]
pub fn execute(op: &Op, registers: &mut Registers, memory: &mut impl Memory) -> Next {
    match step(op, registers, memory) {
        Some(()) => Next::Done,
        None => Next::Displaced,
    }
}

/// What can fail comes before the first change.
fn step(op: &Op, r: &mut Registers, memory: &mut impl Memory) -> Option<()> {
    let target = op.cut(r.rip.wrapping_add(op.value));
    let next = op.cut(r.rip.wrapping_add(u64::from(op.len)));
    let mut go_on = next;
    match op.kind {
        NOP => {}
        PUSH => push(op, r, memory, r.get(op.reg))?,
        PUSH_VALUE => push(op, r, memory, op.value)?,
        POP => {
            let at = r.get(RSP);
            let value = load(op, memory, at)?;
            r.set(RSP, op.cut(at.wrapping_add(op.word())));
            // Last: `pop %rsp` ends with the value.
            r.set(op.reg, value);
        }
        LEAVE => {
            let at = r.get(RBP);
            let value = load(op, memory, at)?;
            r.set(RSP, op.cut(at.wrapping_add(op.word())));
            r.set(RBP, value);
        }
        SUM => {
            let base = if op.base == RIP { r.rip } else { r.get(op.base) };
            let sum = base.wrapping_add(r.get(op.index) << (op.shift & 3)).wrapping_add(op.value);
            r.set(op.reg, narrowed(op, sum));
        }
        ADD => {
            let a = r.get(op.reg);
            let sum = op.cut(a.wrapping_add(op.value));
            r.set(op.reg, sum);
            r.set_flags(op, a, sum, sum < a, (a ^ sum) & (op.value ^ sum));
        }
        SUB => {
            let a = r.get(op.reg);
            let difference = op.cut(a.wrapping_sub(op.value));
            r.set(op.reg, difference);
            r.set_flags(op, a, difference, a < op.cut(op.value), (a ^ op.value) & (a ^ difference));
        }
        JUMP => go_on = target,
        BRANCH if r.holds(op.reg) => go_on = target,
        BRANCH => {}
        LOOP => {
            if counted(op, r) {
                go_on = target;
            }
        }
        CALL => {
            push(op, r, memory, next)?;
            go_on = target;
        }
        JUMP_REGISTER => go_on = user(r.get(op.reg))?,
        CALL_REGISTER => {
            go_on = user(r.get(op.reg))?;
            push(op, r, memory, next)?;
        }
        RETURN => {
            let at = r.get(RSP);
            go_on = user(load(op, memory, at)?)?;
            r.set(RSP, op.cut(at.wrapping_add(op.word()).wrapping_add(op.value)));
        }
        _ => return None,
    }
    r.rip = go_on;
    Some(())
}

fn load(op: &Op, memory: &mut impl Memory, at: u64) -> Option<u64> {
    if op.short == 0 { memory.load(at) } else { memory.load32(at).map(u64::from) }
}

fn push(op: &Op, r: &mut Registers, memory: &mut impl Memory, value: u64) -> Option<()> {
    let at = op.cut(r.get(RSP).wrapping_sub(op.word()));
    match op.short {
        0 => memory.store(at, value)?,
        _ => memory.store32(at, value as u32)?,
    }
    r.set(RSP, at);
    Some(())
}

/// An address that a program can go to. Others fault at the branch itself, which no signal frame
/// can express.
fn user(address: u64) -> Option<u64> {
    (address >> 47 == 0).then_some(address)
}

fn narrowed(op: &Op, value: u64) -> u64 {
    if op.narrow == 0 { value } else { value & 0xffff_ffff }
}

/// `loopne`, `loope`, `loop`, `jcxz` (e0 … e3): counts, and says whether to jump.
fn counted(op: &Op, r: &mut Registers) -> bool {
    let count = narrowed(op, r.get(RCX));
    if op.reg == 3 {
        return count == 0;
    }
    let count = narrowed(op, count.wrapping_sub(1));
    r.set(RCX, count);
    let zero = r.flags & ZF != 0;
    count != 0
        && match op.reg {
            0 => !zero,
            1 => zero,
            _ => true,
        }
}

impl Registers {
    /// Before: the address of the instruction. After: where to go on.
    #[must_use]
    pub fn ip(&self) -> u64 {
        self.rip
    }

    /// Says where the instruction is.
    pub fn set_ip(&mut self, ip: u64) {
        self.rip = ip;
    }

    /// The flags.
    #[must_use]
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        self.gpr[4]
    }

    /// 0 for what is no register.
    fn get(&self, number: u8) -> u64 {
        self.gpr.get(usize::from(number)).copied().unwrap_or(0)
    }

    fn set(&mut self, number: u8, value: u64) {
        if let Some(register) = self.gpr.get_mut(usize::from(number)) {
            *register = value;
        }
    }

    /// The flags of an addition or subtraction; the sign of `overflow` is OF.
    fn set_flags(&mut self, op: &Op, a: u64, result: u64, carry: bool, overflow: u64) {
        let sign = op.word() * 8 - 1;
        let on = |bit: u64, set: bool| if set { bit } else { 0 };
        let parity = (result & 0xff).count_ones() & 1 == 0;
        self.flags = self.flags & !(CF | PF | AF | ZF | SF | OF)
            | on(CF, carry)
            | on(PF, parity)
            | on(AF, (a ^ op.value ^ result) & 0x10 != 0)
            | on(ZF, result == 0)
            | on(SF, result >> sign & 1 != 0)
            | on(OF, overflow >> sign & 1 != 0);
    }

    /// A condition as `jcc` encodes it (SDM volume 1, appendix B).
    fn holds(&self, condition: u8) -> bool {
        let set = |bit: u64| self.flags & bit != 0;
        let less = set(SF) != set(OF);
        let holds = match condition >> 1 & 7 {
            0 => set(OF),
            1 => set(CF),
            2 => set(ZF),
            3 => set(CF) || set(ZF),
            4 => set(SF),
            5 => set(PF),
            6 => less,
            _ => less || set(ZF),
        };
        holds != (condition & 1 == 1)
    }
}
