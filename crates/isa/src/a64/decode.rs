//! Decode: a word, its class, and what the planner asks about it.

use super::class::{Class, classify};
use super::{LINK, WORD, bits, signed};
use crate::insn::{DecodeError, Flow, RegisterSet};
use crate::{Isa, Len, Va};

/// A decoded instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Insn {
    va: Va,
    word: u32,
    class: Class,
}

/// Decodes the instruction at the start of `bytes`, which lie at `at`.
///
/// ```
/// use sidestep_isa::{DecodeError, Flow, Va, a64};
/// let insn = a64::decode(&[0x02, 0x00, 0x00, 0x14], Va(0x1000))?; // b 0x1008
/// assert_eq!((insn.len(), insn.flow()), (4, Flow::Jump(Va(0x1008))));
/// assert!(a64::decode(&[0x02, 0x00, 0x00, 0x14], Va(0x1002)).is_err(), "not aligned");
/// # Ok::<(), DecodeError>(())
/// ```
///
/// # Errors
/// There is none, it is not known, or the address is not a multiple of 4.
pub fn decode(bytes: &[u8], at: Va) -> Result<Insn, DecodeError> {
    let error = DecodeError { at };
    let bytes: [u8; WORD] = bytes.get(..WORD).and_then(|bytes| bytes.try_into().ok()).ok_or(error)?;
    let word = u32::from_le_bytes(bytes);
    let class = classify(word).filter(|_| at.0 % WORD as u64 == 0).ok_or(error)?;
    Ok(Insn { va: at, word, class })
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
    /// There is none, or the code does not have it.
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

/// `hint` numbers (section C6.2, "HINT").
pub(super) mod hint {
    pub const NOP: u32 = 0;
    pub const XPACLRI: u32 = 7;
    pub const PACIASP: u32 = 25;
    pub const PACIBSP: u32 = 27;
    pub const CHKFEAT: u32 = 40;
}

#[allow(missing_docs, reason = "`sidestep_isa::Insn` documents the questions")]
impl Insn {
    /// The word.
    #[must_use]
    pub fn word(&self) -> u32 {
        self.word
    }

    /// What kind of instruction it is.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }

    /// Bits `high` to `low`.
    pub(super) fn bits(&self, high: u32, low: u32) -> u32 {
        bits(self.word, high, low)
    }

    /// Rd or Rt, in bits 4 to 0.
    pub(super) fn rd(&self) -> u8 {
        self.bits(4, 0) as u8
    }

    /// Rn, in bits 9 to 5.
    pub(super) fn rn(&self) -> u8 {
        self.bits(9, 5) as u8
    }

    /// Rm or Rs, in bits 20 to 16.
    pub(super) fn rm(&self) -> u8 {
        self.bits(20, 16) as u8
    }

    /// Ra or Rt2, in bits 14 to 10.
    pub(super) fn ra(&self) -> u8 {
        self.bits(14, 10) as u8
    }

    /// Whether it has registers of 64 bits, where bit 31 says so.
    pub(super) fn is_wide(&self) -> bool {
        self.word >> 31 == 1
    }

    /// The number of a hint, if it is one.
    pub(super) fn hint(&self) -> Option<u32> {
        (self.class == Class::Hint).then(|| self.bits(11, 5))
    }

    /// The address that a number of words in bits `high` to `low` leads to.
    fn words_from_here(&self, high: u32, low: u32) -> Va {
        self.va.offset(signed(self.word, high, low) * WORD as i64)
    }

    /// Where a direct branch leads, if it is one.
    pub(super) fn branch_target(&self) -> Option<Va> {
        match self.class {
            Class::Branch | Class::BranchLink => Some(self.words_from_here(25, 0)),
            Class::BranchCondition | Class::CompareZero => Some(self.words_from_here(23, 5)),
            Class::TestBit => Some(self.words_from_here(18, 5)),
            Class::CompareRegisters | Class::CompareImmediate => Some(self.words_from_here(13, 5)),
            _ => None,
        }
    }

    /// A conditional branch whose condition always holds: `al` and `nv` (section C1.2.4).
    pub(super) fn is_always(&self) -> bool {
        self.class == Class::BranchCondition && self.bits(3, 0) >= 14
    }

    #[must_use]
    pub fn isa(&self) -> Isa {
        Isa::A64
    }

    #[must_use]
    pub fn va(&self) -> Va {
        self.va
    }

    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        WORD
    }

    #[must_use]
    pub fn next(&self) -> Va {
        self.va.plus(Len(WORD as u64))
    }

    /// What only the kernel may do never continues in a program.
    #[must_use]
    pub fn flow(&self) -> Flow {
        if let Some(target) = self.branch_target() {
            return match self.class {
                Class::Branch => Flow::Jump(target),
                Class::BranchLink => Flow::Call(target),
                _ if self.is_always() => Flow::Jump(target),
                _ => Flow::Branch(target),
            };
        }
        match self.class {
            Class::BranchRegister => Flow::JumpIndirect,
            Class::BranchLinkRegister => Flow::CallIndirect,
            // By another register it may lead anywhere, also to the function itself.
            Class::Return if self.rn() != LINK => Flow::JumpIndirect,
            Class::Return | Class::ReturnAuthenticated | Class::ReturnHere => Flow::Return,
            Class::Udf | Class::ExceptionReturn | Class::HigherCall | Class::Halt => Flow::Stop,
            Class::SupervisorCall => Flow::Syscall,
            Class::Breakpoint => Flow::Interrupt,
            _ => Flow::Next,
        }
    }

    #[must_use]
    pub fn condition(&self) -> Option<u8> {
        (self.class == Class::BranchCondition && !self.is_always()).then(|| self.bits(3, 0) as u8)
    }

    #[must_use]
    pub fn is_nop(&self) -> bool {
        self.hint() == Some(hint::NOP)
    }

    /// A nop, a breakpoint, or zeros, which are `udf #0`.
    #[must_use]
    pub fn is_filler(&self) -> bool {
        self.is_nop() || self.is_breakpoint() || self.word == 0
    }

    /// `bti` of all kinds, `paciasp` and `pacibsp`: where pages are guarded, these, `brk` and `hlt`
    /// are what an indirect branch may lead to (section C6.2, "BTI").
    #[must_use]
    pub fn is_target_mark(&self) -> bool {
        self.hint().is_some_and(|number| is_bti(number) || matches!(number, hint::PACIASP | hint::PACIBSP))
    }

    #[must_use]
    pub fn dropped_by_return(&self) -> Option<u16> {
        (self.flow() == Flow::Return).then_some(0)
    }

    /// `brk` with any number.
    #[must_use]
    pub fn is_breakpoint(&self) -> bool {
        self.class == Class::Breakpoint
    }

    /// There is none: the address of a `brk` is reported, not the one behind it (section D1.3.1.1,
    /// "preferred return address").
    #[must_use]
    pub fn is_trap(&self) -> bool {
        false
    }

    /// Of `adrp`: the start of a page of 4096 bytes. The address that is meant is up to
    /// [`Limits::operand_slack`](crate::Limits::operand_slack) bytes behind it.
    #[must_use]
    pub fn pc_target(&self) -> Option<Va> {
        // imm19:immlo.
        let high = signed(self.word, 23, 5) << 2 | i64::from(self.bits(30, 29));
        match self.class {
            Class::Adr => Some(self.va.offset(high)),
            Class::Adrp => Some(Va(self.va.0 & !0xfff).offset(high << 12)),
            Class::LoadLiteral | Class::LoadLiteralVector | Class::PrefetchLiteral => Some(self.words_from_here(23, 5)),
            Class::AuthenticateHere | Class::ReturnHere => {
                Some(self.va.offset(-i64::from(self.bits(20, 5)) * WORD as i64))
            }
            Class::SignHere => Some(self.va),
            _ => None,
        }
    }

    #[must_use]
    pub fn address_candidate(&self) -> Option<Va> {
        self.pc_target()
    }

    /// Immediates of sums are too small for addresses of programs.
    #[must_use]
    pub fn address_in_sum(&self) -> Option<Va> {
        None
    }

    /// Code does not name addresses by their distance from a table.
    #[must_use]
    pub fn address_from(&self, _got: Va) -> Option<Va> {
        None
    }

    #[must_use]
    pub fn makes_address(&self) -> bool {
        matches!(self.class, Class::Adr | Class::Adrp)
    }

    #[must_use]
    pub fn destination(&self) -> Option<u8> {
        // Stores and compares have an operand there that they read.
        let writes = self.usage().writes & 1 << self.rd() != 0;
        let is_first = !matches!(
            self.class,
            Class::Sve
                | Class::Sme
                | Class::Hint
                | Class::SupervisorCall
                | Class::BranchLink
                | Class::BranchLinkRegister
                | Class::StoreExclusive
                | Class::StoreExclusivePair
                | Class::CompareSwap
                | Class::CompareSwapPair
                | Class::Atomic
                | Class::AtomicPair
                | Class::Store64Bytes
                | Class::MemoryCopy
                | Class::AuthenticateLink
        );
        // A base that is written back has the same number as a stored register at most.
        (writes && is_first && !self.is_store()).then(|| self.rd())
    }

    /// `mov` between whole registers, also the stack pointer.
    #[must_use]
    pub fn copied(&self) -> Option<(u8, u8)> {
        // orr Xd, xzr, Xm
        if self.word & 0xffe0_ffe0 == 0xaa00_03e0 && self.rm() != 31 && self.rd() != 31 {
            return Some((self.rm(), self.rd()));
        }
        // add Xd, Xn, #0
        (self.word & 0xffff_fc00 == 0x9100_0000).then(|| (self.rn(), self.rd()))
    }

    /// `csel` of whole registers.
    #[must_use]
    pub fn selected(&self) -> Option<(RegisterSet, u8)> {
        let copies = self.class == Class::ConditionalSelect && self.bits(30, 30) == 0 && self.bits(10, 10) == 0;
        let bit = |register: u8| if register == 31 { 0 } else { 1 << register };
        (copies && self.is_wide()).then(|| (bit(self.rn()) | bit(self.rm()), self.rd()))
    }

    /// Differences are sums, too.
    #[must_use]
    pub fn is_sum(&self) -> bool {
        match self.class {
            Class::AddImmediate => self.bits(21, 10) != 0,
            Class::AddShifted
            | Class::AddExtended
            | Class::AddCarry
            | Class::AddPointer
            | Class::AddTag
            | Class::ThreeSources => true,
            _ => false,
        }
    }

    /// The procedure linkage table loads a register and jumps through that.
    #[must_use]
    pub fn is_slot_jump(&self) -> bool {
        false
    }

    #[must_use]
    pub fn jumps_through_value(&self) -> bool {
        self.flow() == Flow::JumpIndirect
    }

    /// Jumps have no memory operands.
    #[must_use]
    pub fn pointer_table(&self) -> Option<Va> {
        None
    }

    /// Not what only the kernel may do, and not zeros. The kernel answers programs that read
    /// registers of identification (Documentation/arch/arm64/cpu-feature-registers.rst).
    #[must_use]
    pub fn is_usual(&self) -> bool {
        let op1 = self.bits(18, 16);
        match self.class {
            Class::Udf => self.word != 0,
            Class::ExceptionReturn | Class::HigherCall | Class::Halt | Class::TagBlock => false,
            Class::System | Class::SystemResult | Class::MoveToSystem => op1 == 3,
            Class::MoveFromSystem => op1 == 3 || self.bits(20, 12) == 0b1_1000_0000,
            // daifset, daifclr and what has other numbers than 3; cfinv, xaflag and axflag are 0.
            Class::MoveToState => match op1 {
                0 => self.bits(7, 5) < 3,
                _ => op1 == 3 && self.bits(7, 5) < 6,
            },
            _ => true,
        }
    }

    #[must_use]
    pub fn is_plain_syscall(&self) -> bool {
        self.class == Class::SupervisorCall
    }

    #[must_use]
    pub fn is_exclusive_load(&self) -> bool {
        matches!(self.class, Class::LoadExclusive | Class::LoadExclusivePair)
    }

    #[must_use]
    pub fn is_divisible(&self) -> bool {
        false
    }

    #[must_use]
    pub fn is_exclusive_store(&self) -> bool {
        matches!(self.class, Class::StoreExclusive | Class::StoreExclusivePair | Class::ClearExclusive)
    }
}

/// Whether a hint is `bti`, `bti c`, `bti j` or `bti jc`.
pub(super) fn is_bti(number: u32) -> bool {
    matches!(number, 32 | 34 | 36 | 38)
}
