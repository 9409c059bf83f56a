//! A tiny instruction set: it proves that a port is a folder. It exists for tests only
//! (`crates/plan/tests/toy.rs` has a machine for it).
//!
//! An instruction is a word of 32 bits, little-endian: operation, `rd`, `rs` and an 8-bit number
//! from the highest byte to the lowest, or a 16-bit or 24-bit number in the lower bytes. There are
//! 16 registers: r13 is the frame pointer, r14 the stack pointer, r15 has the return address. One
//! flag says whether the last comparison found equal numbers.

mod relocate;

use crate::context::{CallingConvention, Context};
use crate::emulate::Emulated;
use crate::indirect::Origin;
use crate::insn::{DecodeError, Flow, Insn as AnyInsn, RegisterSet, Usage};
use crate::limits::Limits;
use crate::passed::Passed;
use crate::patch::OutOfReach;
use crate::scan::{Distance, Reference};
use crate::stack::Stack;
use crate::{Isa, Len, Va};

pub use relocate::{relocate, relocated_len};

/// Bytes of an instruction.
pub const WORD: usize = 4;
/// The frame pointer.
pub const FP: u8 = 13;
/// The stack pointer.
pub const SP: u8 = 14;
/// The register with the return address.
pub const LINK: u8 = 15;

const REGISTERS: [&str; 16] =
    ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "fp", "sp", "link"];

/// What is fixed for it.
pub const LIMITS: Limits = Limits {
    bits: 64,
    alignment: WORD as u64,
    jump: WORD,
    jump_text: ("xx xx xx 10", "jump detour"),
    breakpoint: &word(op::TRAP, 0, 0, 0),
    traps_first: false,
    reach: Some(1 << 25),
    address_end: 1 << 47,
    registers: &REGISTERS,
    stack_pointer: SP,
    changed_by_calls: 0x80ff,
    flags: 1,
    overlaps: false,
    short_branch: 0,
    operand_slack: 0,
    exclusive: false,
    guards_targets: false,
    data_in_code: false,
    skipped_prefix: None,
    drops_arguments: false,
    words_name_code: true,
    go: false,
    context: &CONTEXT,
};

/// The registers in the context of a hit.
pub static CONTEXT: Context = Context {
    names: &REGISTERS,
    registers: &[],
    flags: 8 * 17,
    aliases: &[],
    floats: &[],
    floats_at: 8 * 16,
    convention: CallingConvention::SystemV,
    arguments: &[0, 8, 16, 24],
    go_arguments: &[],
    result: 0,
    second_result: 8,
    result_address: 0,
    pc: 8 * 15,
    stack_pointer: 8 * SP as u16,
    goroutine: 0,
    link: None,
};

/// What makes a system call, as bytes.
pub const SYSTEM_CALLS: &[&[u8]] = &[&word(op::SYSCALL, 0, 0, 0)];

/// Operations, and what their numbers are.
#[allow(missing_docs, reason = "the comment of each one is its meaning")]
pub mod op {
    pub const NOP: u8 = 0x01;
    /// `rd` = the 16-bit number, with its sign.
    pub const LOAD_NUMBER: u8 = 0x02;
    /// `rd` = `rs`.
    pub const COPY: u8 = 0x03;
    /// `rd` = `rs` + the 8-bit number.
    pub const ADD: u8 = 0x04;
    /// `rd` = the address so many words from here (16 bits).
    pub const ADDRESS: u8 = 0x05;
    /// `rd` = the 64-bit word so many words from here (16 bits).
    pub const LOAD_HERE: u8 = 0x06;
    /// `rd` = the 64-bit word at `rs` + 8 × the 8-bit number.
    pub const LOAD: u8 = 0x07;
    /// The 64-bit word at `rs` + 8 × the 8-bit number = `rd`.
    pub const STORE: u8 = 0x08;
    /// The flag = whether `rd` is `rs`.
    pub const COMPARE: u8 = 0x09;
    /// Jumps so many words (24 bits).
    pub const JUMP: u8 = 0x10;
    /// The same if the flag is set.
    pub const JUMP_EQUAL: u8 = 0x11;
    /// Calls what is so many words from here (24 bits).
    pub const CALL: u8 = 0x12;
    /// Jumps to the address in `rs`.
    pub const JUMP_REGISTER: u8 = 0x13;
    /// Calls the address in `rs`.
    pub const CALL_REGISTER: u8 = 0x14;
    /// Jumps to the return address.
    pub const RETURN: u8 = 0x15;
    /// Jumps so many words if `rd` is 0 (16 bits).
    pub const JUMP_ZERO: u8 = 0x16;
    /// The breakpoint.
    pub const TRAP: u8 = 0x20;
    pub const SYSCALL: u8 = 0x21;
    /// A hit of the probe with this number (24 bits): what handlers of the tests are.
    pub const HIT: u8 = 0x22;
    /// The mark of a target of indirect jumps.
    pub const MARK: u8 = 0x23;
}

/// An instruction with an 8-bit number.
#[must_use]
pub const fn word(op: u8, rd: u8, rs: u8, number: u8) -> [u8; WORD] {
    [number, rs, rd, op]
}

/// An instruction with a 24-bit number; none if it is too large.
#[must_use]
pub fn word_24(op: u8, number: i64) -> Option<[u8; WORD]> {
    let fits = (-(1 << 23)..1 << 23).contains(&number);
    let [low, middle, high, ..] = number.to_le_bytes();
    fits.then_some([low, middle, high, op])
}

/// An instruction with a 16-bit number; none if it is too large.
#[must_use]
pub fn word_16(op: u8, rd: u8, number: i64) -> Option<[u8; WORD]> {
    let [low, high] = i16::try_from(number).ok()?.to_le_bytes();
    Some([low, high, rd, op])
}

/// A decoded instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Insn {
    va: Va,
    bytes: [u8; WORD],
}

/// Decodes the instruction at the start of `bytes`.
///
/// # Errors
/// There is none.
pub fn decode(bytes: &[u8], at: Va) -> Result<Insn, DecodeError> {
    let error = DecodeError { at };
    let bytes: [u8; WORD] = bytes.get(..WORD).and_then(|bytes| bytes.try_into().ok()).ok_or(error)?;
    let is_known = matches!(bytes[3], 0x01..=0x09 | 0x10..=0x16 | 0x20..=0x23);
    let is_aligned = at.0 % WORD as u64 == 0;
    if is_known && is_aligned { Ok(Insn { va: at, bytes }) } else { Err(error) }
}

/// Decodes at any place of one piece of code.
pub struct Reader<'a> {
    code: &'a [u8],
    base: Va,
}

impl<'a> Reader<'a> {
    /// For `code`, which lies at `base`.
    #[must_use]
    pub fn new(code: &'a [u8], base: Va) -> Reader<'a> {
        Reader { code, base }
    }

    /// The instruction at an address.
    ///
    /// # Errors
    /// There is none.
    pub fn at(&mut self, at: Va) -> Result<Insn, DecodeError> {
        let offset = usize::try_from(at.since(self.base)).map_err(|_| DecodeError { at })?;
        decode(self.code.get(offset..).unwrap_or_default(), at)
    }
}

/// One instruction behind the other, up to the first error.
pub struct Sweep<'a> {
    reader: Reader<'a>,
    /// None behind an error.
    at: Option<Va>,
}

impl<'a> Sweep<'a> {
    /// Of `bytes`, which lie at `at`.
    #[must_use]
    pub fn new(bytes: &'a [u8], at: Va) -> Sweep<'a> {
        Sweep { reader: Reader::new(bytes, at), at: Some(at) }
    }
}

impl Iterator for Sweep<'_> {
    type Item = Result<Insn, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at.filter(|at| (at.since(self.reader.base) as usize) < self.reader.code.len())?;
        let insn = self.reader.at(at);
        self.at = insn.is_ok().then(|| at.plus(Len(WORD as u64)));
        Some(insn)
    }
}

#[allow(missing_docs, reason = "`sidestep_isa::Insn` documents the questions")]
impl Insn {
    #[must_use]
    pub fn op(&self) -> u8 {
        self.bytes[3]
    }

    #[must_use]
    pub fn rd(&self) -> u8 {
        self.bytes[2] & 15
    }

    #[must_use]
    pub fn rs(&self) -> u8 {
        self.bytes[1] & 15
    }

    /// The number, of as many bits as the operation has.
    #[must_use]
    pub fn number(&self) -> i64 {
        let [low, middle, high, op] = self.bytes;
        match op {
            op::JUMP | op::JUMP_EQUAL | op::CALL | op::HIT => {
                i64::from(i32::from_le_bytes([0, low, middle, high]) >> 8)
            }
            op::LOAD_NUMBER | op::ADDRESS | op::LOAD_HERE | op::JUMP_ZERO => {
                i64::from(i16::from_le_bytes([low, middle]))
            }
            _ => i64::from(low as i8),
        }
    }

    /// The address so many words from here.
    #[must_use]
    pub fn target(&self) -> Va {
        self.va.offset(self.number() * WORD as i64)
    }

    pub fn isa(&self) -> Isa {
        Isa::Toy
    }

    pub fn va(&self) -> Va {
        self.va
    }

    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        WORD
    }

    pub fn next(&self) -> Va {
        self.va.plus(Len(WORD as u64))
    }

    pub fn flow(&self) -> Flow {
        match self.op() {
            op::JUMP => Flow::Jump(self.target()),
            op::JUMP_EQUAL | op::JUMP_ZERO => Flow::Branch(self.target()),
            op::CALL => Flow::Call(self.target()),
            op::JUMP_REGISTER => Flow::JumpIndirect,
            op::CALL_REGISTER => Flow::CallIndirect,
            op::RETURN => Flow::Return,
            op::TRAP => Flow::Interrupt,
            op::SYSCALL => Flow::Syscall,
            _ => Flow::Next,
        }
    }

    pub fn condition(&self) -> Option<u8> {
        (self.op() == op::JUMP_EQUAL).then_some(0)
    }

    pub fn is_nop(&self) -> bool {
        self.op() == op::NOP
    }

    pub fn is_filler(&self) -> bool {
        self.is_nop() || self.is_breakpoint()
    }

    pub fn is_target_mark(&self) -> bool {
        self.op() == op::MARK
    }

    pub fn dropped_by_return(&self) -> Option<u16> {
        (self.op() == op::RETURN).then_some(0)
    }

    pub fn is_breakpoint(&self) -> bool {
        self.op() == op::TRAP
    }

    pub fn is_trap(&self) -> bool {
        self.is_breakpoint()
    }

    pub fn pc_target(&self) -> Option<Va> {
        matches!(self.op(), op::ADDRESS | op::LOAD_HERE).then(|| self.target())
    }

    pub fn address_candidate(&self) -> Option<Va> {
        self.pc_target()
    }

    pub fn address_in_sum(&self) -> Option<Va> {
        None
    }

    pub fn address_from(&self, _got: Va) -> Option<Va> {
        None
    }

    pub fn makes_address(&self) -> bool {
        self.op() == op::ADDRESS
    }

    pub fn destination(&self) -> Option<u8> {
        let writes = [op::LOAD_NUMBER, op::COPY, op::ADD, op::ADDRESS, op::LOAD_HERE, op::LOAD];
        writes.contains(&self.op()).then(|| self.rd())
    }

    pub fn copied(&self) -> Option<(u8, u8)> {
        (self.op() == op::COPY).then(|| (self.rs(), self.rd()))
    }

    pub fn selected(&self) -> Option<(RegisterSet, u8)> {
        None
    }

    pub fn is_sum(&self) -> bool {
        self.op() == op::ADD
    }

    pub fn is_slot_jump(&self) -> bool {
        false
    }

    pub fn jumps_through_value(&self) -> bool {
        self.op() == op::JUMP_REGISTER
    }

    pub fn pointer_table(&self) -> Option<Va> {
        None
    }

    pub fn is_usual(&self) -> bool {
        true
    }

    pub fn is_plain_syscall(&self) -> bool {
        self.op() == op::SYSCALL
    }

    pub fn usage(&self) -> Usage {
        let (rd, rs, link): (RegisterSet, RegisterSet, RegisterSet) = (1 << self.rd(), 1 << self.rs(), 1 << LINK);
        let (reads, writes) = match self.op() {
            op::LOAD_NUMBER | op::ADDRESS | op::LOAD_HERE => (0, rd),
            op::COPY | op::ADD | op::LOAD => (rs, rd),
            op::STORE | op::COMPARE => (rd | rs, 0),
            op::CALL => (0, link),
            op::CALL_REGISTER => (rs, link),
            op::JUMP_REGISTER => (rs, 0),
            op::RETURN => (link, 0),
            op::JUMP_ZERO => (rd, 0),
            _ => (0, 0),
        };
        let flag = |is: u8| u32::from(self.op() == is);
        let (flags_read, flags_killed) = (flag(op::JUMP_EQUAL), flag(op::COMPARE));
        Usage { reads, writes, kills: writes & !reads, flags_read, flags_killed }
    }

    pub fn passed(&self) -> Option<Passed> {
        match self.op() {
            op::NOP | op::MARK => Some(Passed::Nothing),
            op::LOAD_NUMBER | op::COPY | op::ADD | op::ADDRESS if self.rd() != SP => {
                Some(Passed::Registers { regs: self.usage().writes, flags: false })
            }
            _ => None,
        }
    }

    pub fn may_fault(&self) -> bool {
        matches!(self.op(), op::LOAD | op::STORE | op::TRAP)
    }

    pub fn may_fault_off_stack(&self) -> bool {
        self.may_fault()
    }

    pub fn is_recoverable(&self) -> bool {
        self.may_fault()
    }

    pub fn is_exclusive_load(&self) -> bool {
        false
    }

    pub fn is_divisible(&self) -> bool {
        false
    }

    pub fn is_exclusive_store(&self) -> bool {
        false
    }

    /// The return address is in a register.
    pub(crate) fn names_return_address(&self, _stack: Stack) -> bool {
        false
    }

    pub(crate) fn stack_after(&self, stack: Stack) -> Stack {
        let of = |register| match register {
            SP => stack.sp,
            FP => stack.fp,
            _ => None,
        };
        let value = match self.op() {
            op::COPY => of(self.rs()),
            op::ADD => of(self.rs()).map(|value| value + self.number()),
            _ => None,
        };
        match self.destination() {
            Some(SP) => Stack { sp: value, ..stack },
            Some(FP) => Stack { fp: value, ..stack },
            _ => stack,
        }
    }
}

impl core::fmt::Display for Insn {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "op{:02x}  r{},r{},{}", self.op(), self.rd(), self.rs(), self.number())
    }
}

/// There are no thunks.
pub fn is_thunk(_at: Va, _insn: impl Fn(Va) -> Option<AnyInsn>) -> bool {
    false
}

/// Jumps through registers may go anywhere.
#[must_use]
pub fn indirect_jumps(insns: &[AnyInsn]) -> Vec<(Va, Origin)> {
    let jumps = insns.iter().filter(|insn| insn.jumps_through_value());
    jumps.map(|insn| (insn.va(), Origin::Computed)).collect()
}

/// The nop is done by the trap handler.
#[must_use]
pub fn prepare(bytes: &[u8]) -> Option<Emulated> {
    let insn = decode(bytes, Va(0)).ok()?;
    insn.is_nop().then_some(Emulated([u64::from(op::NOP), 0]))
}

/// What words would refer to if they were instructions.
pub fn references(start: Va, bytes: &[u8], found: &mut dyn FnMut(Reference)) {
    let mut reader = Reader::new(bytes, start);
    let first = start.0.next_multiple_of(WORD as u64);
    for at in (first..start.0 + bytes.len() as u64).step_by(WORD).map(Va) {
        let Ok(insn) = reader.at(at) else { continue };
        match insn.flow() {
            Flow::Jump(target) | Flow::Branch(target) | Flow::Call(target) => {
                found(Reference::Branch { source: at, target });
            }
            _ => insn.pc_target().into_iter().for_each(|va| found(Reference::Names(va))),
        }
    }
}

/// See [`crate::scan::distances`].
pub fn distances(start: Va, bytes: &[u8], mut found: impl FnMut(Distance)) {
    let mut reader = Reader::new(bytes, start);
    for at in (start.0.next_multiple_of(WORD as u64)..start.0 + bytes.len() as u64).step_by(WORD) {
        let Ok(insn) = reader.at(Va(at)) else { continue };
        let branch = match insn.flow() {
            Flow::Jump(target) | Flow::Branch(target) | Flow::Call(target) => Some(target),
            _ => None,
        };
        if let Some(target) = branch.or(insn.pc_target()) {
            let at = (at - start.0) as usize;
            found(Distance { at, target, is_branch: branch.is_some(), is_operand: branch.is_none() });
        }
    }
}

/// The jump that is written at sites.
///
/// # Errors
/// It is too far.
pub fn jump(site: Va, to: Va) -> Result<Vec<u8>, OutOfReach> {
    let word = word_24(op::JUMP, to.since(site) / WORD as i64);
    word.map(|word| word.to_vec()).ok_or(OutOfReach { from: site, to })
}

/// There are no vector registers.
pub const NO_VECTORS: u32 = 0;

/// Where it leads.
#[must_use]
pub fn jump_target(bytes: &[u8], at: Va) -> Option<Va> {
    match decode(bytes, at).ok()?.flow() {
        Flow::Jump(target) => Some(target),
        _ => None,
    }
}
