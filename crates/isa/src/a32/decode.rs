//! Decode: one instruction with its address, and what the planner asks about it.

use super::class::{ALWAYS, Class, Op, arm, thumb, wide};
use super::{FP, INSN_MAX, LINK, PC, SP, bit, bits};
use crate::insn::{DecodeError, Flow, RegisterSet};
use crate::{Isa, Len, Va};

/// Instructions that an `it` makes conditional, at most.
const BLOCK: usize = 4;

/// A decoded instruction: one of A32 or T32, or an `it` with all that it makes conditional.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Insn {
    va: Va,
    /// The only instruction, or the first one behind the `it`.
    first: Op,
    /// The halfword of the `it`; 0: there is none.
    it: u16,
    /// What is behind the first one: words and lengths. A length of 0: there is none.
    more: [(u32, u8); BLOCK - 1],
}

/// The instructions of an [`Insn`], one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Ops<'i> {
    insn: &'i Insn,
    /// How many were given.
    given: usize,
    /// The state of the `it` at the next one.
    state: u16,
}

impl Iterator for Ops<'_> {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        if self.given == 0 {
            self.given = 1;
            return Some(self.insn.first);
        }
        let (word, len) = self.insn.more.get(self.given - 1).copied().filter(|(_, len)| *len > 0)?;
        self.given += 1;
        self.state = next_state(self.state);
        // The words were decoded before.
        let op = if len == 2 { thumb(word, true) } else { wide(word, true) }?;
        Some(Op { condition: (self.state >> 4) as u8, ..op })
    }
}

/// Decodes the instruction at the start of `bytes`, which lie at `at`.
///
/// ```
/// use sidestep_isa::{DecodeError, Flow, Isa, Va, a32};
/// let insn = a32::decode(Isa::A32, &[0x00, 0x00, 0x00, 0xea], Va(0x1000))?; // b 0x1008
/// assert_eq!((insn.len(), insn.flow()), (4, Flow::Jump(Va(0x1008))));
/// // it eq; bxeq lr
/// let insn = a32::decode(Isa::T32, &[0x08, 0xbf, 0x70, 0x47], Va(0x1002))?;
/// assert_eq!((insn.len(), insn.flow(), insn.falls_through()), (4, Flow::Return, true));
/// # Ok::<(), DecodeError>(())
/// ```
///
/// # Errors
/// There is none, it is not known, or no instruction can be at the address.
pub fn decode(isa: Isa, bytes: &[u8], at: Va) -> Result<Insn, DecodeError> {
    let found = match isa {
        Isa::T32 => at.0 % 2 == 0,
        _ => at.0 % 4 == 0,
    };
    found.then(|| read(isa, bytes, at)).flatten().ok_or(DecodeError { at })
}

fn read(isa: Isa, bytes: &[u8], va: Va) -> Option<Insn> {
    let single = |first: Op| Insn { va, first, it: 0, more: [(0, 0); BLOCK - 1] };
    if isa != Isa::T32 {
        return arm(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?)).map(single);
    }
    let first = halfword(bytes, 0)?;
    // `it` has a mask, which is 0 in hints.
    if first & 0xff00 != 0xbf00 || first & 15 == 0 {
        return half(bytes, 0, false).map(single);
    }
    block(first, bytes, va)
}

fn halfword(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The instruction of T32 at an offset, which is no `it`.
fn half(bytes: &[u8], at: usize, in_it: bool) -> Option<Op> {
    let first = u32::from(halfword(bytes, at)?);
    if first >> 11 < 0b1_1101 {
        return thumb(first, in_it);
    }
    wide(first << 16 | u32::from(halfword(bytes, at + 2)?), in_it)
}

/// An `it` and its instructions (section A8.8.55). Only the last one may go elsewhere.
fn block(it: u16, bytes: &[u8], va: Va) -> Option<Insn> {
    let mut state = it & 255;
    let first = state >> 4;
    if first == 15 || first == 14 && (state & 15).count_ones() != 1 {
        return None;
    }
    let mut insn: Option<Insn> = None;
    let (mut at, mut addresses) = (2, 0);
    for i in 0..BLOCK {
        let op = half(bytes, at, true)?;
        // Some are never conditional, and a system call is to be seen.
        let bad = matches!(op.class, Class::CompareZero | Class::Breakpoint | Class::SupervisorCall);
        let last = state & 7 == 0;
        addresses += usize::from(op.class == Class::Address);
        if bad || op.writes_pc() && !last || addresses > 1 {
            return None;
        }
        match &mut insn {
            None => {
                let first = Op { condition: (state >> 4) as u8, ..op };
                insn = Some(Insn { va, first, it, more: [(0, 0); BLOCK - 1] });
            }
            Some(insn) => *insn.more.get_mut(i - 1)? = (op.word, op.len),
        }
        at += usize::from(op.len);
        if last {
            return insn;
        }
        state = next_state(state);
    }
    None
}

/// The state of an `it` behind one of its instructions: the condition, and the rest of the mask.
fn next_state(state: u16) -> u16 {
    state & 0xe0 | state << 1 & 0x1f
}

/// A number of 32 bits that an address has become.
pub(super) fn wrap(va: Va) -> Va {
    Va(va.0 & 0xffff_ffff)
}

#[allow(missing_docs, reason = "`sidestep_isa::Insn` documents the questions")]
impl Insn {
    /// Its instructions: one, or those behind an `it`.
    #[must_use]
    pub fn ops(&self) -> Ops<'_> {
        Ops { insn: self, given: 0, state: self.it & 255 }
    }

    /// The `it` in front of its instructions.
    #[must_use]
    pub fn it(&self) -> Option<u16> {
        (self.it != 0).then_some(self.it)
    }

    /// A literal.
    pub(super) fn data(va: Va, word: u32, thumb: bool) -> Insn {
        Insn { va, first: Op::new(Class::Data, word, 4, thumb), it: 0, more: [(0, 0); BLOCK - 1] }
    }

    /// The instruction if there is no `it`.
    #[must_use]
    pub fn single(&self) -> Option<&Op> {
        (self.it == 0).then_some(&self.first)
    }

    /// The instruction if there is no `it`, and no condition but that of a branch.
    pub(super) fn plain(&self) -> Option<&Op> {
        self.single().filter(|op| op.is_always())
    }

    /// The last of its instructions, the only one that may go elsewhere.
    fn last(&self) -> Op {
        if self.it == 0 { self.first } else { self.ops().last().unwrap_or(self.first) }
    }

    /// Each of its instructions with its address.
    pub(super) fn places(&self) -> impl Iterator<Item = (Va, Op)> {
        let mut at = self.va.plus(Len(if self.it == 0 { 0 } else { 2 }));
        self.ops().map(move |op| {
            let va = at;
            at = at.plus(Len(op.len.into()));
            (va, op)
        })
    }

    fn is_thumb(&self) -> bool {
        self.first.thumb
    }

    #[must_use]
    pub fn isa(&self) -> Isa {
        if self.is_thumb() { Isa::T32 } else { Isa::A32 }
    }

    #[must_use]
    pub fn va(&self) -> Va {
        self.va
    }

    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        let it = if self.it == 0 { 0 } else { 2 };
        let more: usize = self.more.iter().map(|(_, len)| usize::from(*len)).sum();
        (it + usize::from(self.first.len) + more).min(INSN_MAX)
    }

    #[must_use]
    pub fn next(&self) -> Va {
        self.va.plus(Len(self.len() as u64))
    }

    #[must_use]
    pub fn flow(&self) -> Flow {
        let last;
        let (va, op) = if self.it == 0 {
            (self.va, &self.first)
        } else {
            last = self.last();
            (self.va.plus(Len(self.len() as u64 - u64::from(last.len))), &last)
        };
        let target = || op.target(va).unwrap_or(va);
        let returns = |yes: bool| if yes { Flow::Return } else { Flow::JumpIndirect };
        match op.class {
            Class::Branch | Class::CompareZero if !op.is_always() || op.class == Class::CompareZero => {
                Flow::Branch(target())
            }
            Class::Branch => Flow::Jump(target()),
            Class::BranchLink => Flow::Call(target()),
            // The other instruction set is there: not what code of this one is.
            Class::BranchExchange | Class::BranchLinkRegister => Flow::CallIndirect,
            Class::BranchRegister => returns(op.reads & 1 << LINK != 0),
            Class::TableBranch => Flow::JumpIndirect,
            Class::SupervisorCall => Flow::Syscall,
            Class::Breakpoint => Flow::Interrupt,
            Class::Udf if op.is_kernels_breakpoint() => Flow::Interrupt,
            Class::Udf | Class::Data => Flow::Stop,
            _ if !op.writes_pc() => Flow::Next,
            Class::Address if op.is_always() => Flow::Jump(target()),
            Class::Address => Flow::Branch(target()),
            // Of the link register as well, it is none that compilers write.
            Class::LoadMultiple => returns(matches!(op.base, Some(SP | FP)) && op.writes & 1 << LINK == 0),
            Class::Load => returns(op.base == Some(SP) && op.write_back && !op.before),
            _ => returns(op.moves_link()),
        }
    }

    /// Also returns and jumps go on behind themselves, if they have a condition.
    #[must_use]
    pub fn falls_through(&self) -> bool {
        self.flow().falls_through() || !self.last().is_always()
    }

    #[must_use]
    pub fn condition(&self) -> Option<u8> {
        let op = self.single().filter(|op| op.class == Class::Branch && !op.is_always())?;
        Some(op.condition)
    }

    #[must_use]
    pub fn is_nop(&self) -> bool {
        self.plain().is_some_and(|op| op.is_nop())
    }

    /// A nop, a breakpoint, a literal, or zeros: `movs r0, r0` and `andeq r0, r0, r0`.
    #[must_use]
    pub fn is_filler(&self) -> bool {
        let zeros = self.single().is_some_and(|op| op.word == 0 || op.class == Class::Data);
        self.is_nop() || self.is_breakpoint() || zeros
    }

    /// There are none on the processors that these instruction sets are run on.
    #[must_use]
    pub fn is_target_mark(&self) -> bool {
        false
    }

    #[must_use]
    pub fn dropped_by_return(&self) -> Option<u16> {
        (self.flow() == Flow::Return).then_some(0)
    }

    /// `bkpt`, and the undefined instructions for which the kernel sends SIGTRAP
    /// (arch/arm/kernel/ptrace.c).
    #[must_use]
    pub fn is_breakpoint(&self) -> bool {
        self.plain().is_some_and(|op| op.class == Class::Breakpoint || op.is_kernels_breakpoint())
    }

    /// There is none: a breakpoint is reported with its own address.
    #[must_use]
    pub fn is_trap(&self) -> bool {
        false
    }

    /// Of several behind an `it`, that of the first one that has one.
    #[must_use]
    pub fn pc_target(&self) -> Option<Va> {
        self.places().find_map(|(va, op)| op.operand(va))
    }

    #[must_use]
    pub fn address_candidate(&self) -> Option<Va> {
        self.pc_target()
    }

    #[must_use]
    pub fn address_in_sum(&self) -> Option<Va> {
        None
    }

    #[must_use]
    pub fn address_from(&self, _got: Va) -> Option<Va> {
        None
    }

    #[must_use]
    pub fn makes_address(&self) -> bool {
        self.ops().any(|op| op.class == Class::Address && !op.writes_pc())
    }

    #[must_use]
    pub fn destination(&self) -> Option<u8> {
        let op = self.single()?;
        let whole = matches!(
            op.class,
            Class::Compute
                | Class::Address
                | Class::Constant
                | Class::MoveTop
                | Class::Load
                | Class::LoadExclusive
                | Class::ReadStatus
        );
        let writes = op.writes & 0x7fff & !if op.write_back { op.base.map_or(0, |base| 1 << base) } else { 0 };
        (whole && writes.count_ones() == 1).then_some(writes.trailing_zeros() as u8)
    }

    #[must_use]
    pub fn copied(&self) -> Option<(u8, u8)> {
        self.plain()?.copied().filter(|(from, to)| *from != PC && *to != PC)
    }

    /// A `mov` with a condition. Blocks of an `it` compute.
    #[must_use]
    pub fn selected(&self) -> Option<(RegisterSet, u8)> {
        let (from, to) = self.single().filter(|op| !op.is_always())?.copied()?;
        (from != PC && to != PC).then(|| (1 << from | 1 << to, to))
    }

    /// All that computes, but for moves: also what only compares.
    #[must_use]
    pub fn is_sum(&self) -> bool {
        self.ops().any(|op| op.class == Class::Compute && op.copied().is_none() && op.offset() != Some(0))
    }

    /// The procedure linkage table jumps through a word at a register.
    #[must_use]
    pub fn is_slot_jump(&self) -> bool {
        false
    }

    /// Also jumps through memory: the memory may be a table.
    #[must_use]
    pub fn jumps_through_value(&self) -> bool {
        self.flow() == Flow::JumpIndirect
    }

    #[must_use]
    pub fn pointer_table(&self) -> Option<Va> {
        None
    }

    /// Not zeros, and no access to registers of the debugger.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        self.ops().all(|op| match op.class {
            Class::Coprocessor => bits(op.word, 11, 8) == 15,
            Class::Swap => false,
            _ => op.word != 0,
        })
    }

    #[must_use]
    pub fn is_plain_syscall(&self) -> bool {
        self.plain().is_some_and(|op| op.class == Class::SupervisorCall)
    }

    #[must_use]
    pub fn is_exclusive_load(&self) -> bool {
        self.ops().any(|op| op.class == Class::LoadExclusive)
    }

    /// A block of `it`.
    #[must_use]
    pub fn is_divisible(&self) -> bool {
        self.it != 0
    }

    #[must_use]
    pub fn is_exclusive_store(&self) -> bool {
        self.ops().any(|op| matches!(op.class, Class::StoreExclusive | Class::ClearExclusive))
    }
}

impl Op {
    /// The program counter as this instruction at `va` reads it (section A2.3.2). T32 cuts it to a
    /// multiple of 4 where it is the base of a literal or of `adr`.
    pub(super) fn pc(&self, va: Va) -> Va {
        let ahead = if self.thumb { 4 } else { 8 };
        let pc = wrap(va.plus(Len(ahead)));
        let aligned = matches!(self.class, Class::Branch | Class::BranchLink | Class::CompareZero);
        let cut = self.thumb && !aligned && (self.base == Some(PC) || self.offset().is_some());
        // `tbb` takes it as it is.
        if cut && self.class != Class::TableBranch { Va(pc.0 & !3) } else { pc }
    }

    /// Where a direct branch leads.
    pub(super) fn target(&self, va: Va) -> Option<Va> {
        let direct = matches!(
            self.class,
            Class::Branch | Class::BranchLink | Class::BranchExchange | Class::CompareZero | Class::Address
        );
        let target = wrap(self.pc(va).offset(self.offset().filter(|_| direct)?.into()));
        Some(target)
    }

    /// The address that its operand means.
    pub(super) fn operand(&self, va: Va) -> Option<Va> {
        let literal = self.base == Some(PC) && self.class != Class::TableBranch;
        let means = literal || self.class == Class::Address && !self.writes_pc();
        // What is added behind the access is not in the address.
        let offset = self.offset().filter(|_| means)?;
        let up = self.class != Class::LoadMultiple && self.class != Class::StoreMultiple && self.before;
        Some(wrap(self.pc(va).offset(if up { offset.into() } else { 0 })))
    }

    /// Whether the kernel sends SIGTRAP for it: `udf #16` of A32, `udf #1`, and `udf.w #0`
    /// (arch/arm/kernel/ptrace.c).
    pub(super) fn is_kernels_breakpoint(&self) -> bool {
        let word = if self.thumb { [0xde01, 0xf7f0_a000] } else { [0xe7f0_01f0; 2] };
        word.contains(&self.word)
    }

    fn is_nop(&self) -> bool {
        let moves = self.copied().is_some_and(|(from, to)| from == to && from != PC);
        self.class == Class::Hint && self.hint() == 0 || moves
    }

    /// The number of a hint.
    pub(super) fn hint(&self) -> u32 {
        match (self.thumb, self.len) {
            (true, 2) => bits(self.word, 7, 4),
            _ => bits(self.word, 7, 0),
        }
    }

    /// `mov` of a register, without flags: from, to.
    pub(super) fn copied(&self) -> Option<(u8, u8)> {
        let is_move = match (self.thumb, self.len) {
            (false, _) => self.word & 0x0fff_0ff0 == 0x01a0_0000,
            (true, 2) => self.word & 0xff00 == 0x4600,
            _ => self.word & 0xffff_f0f0 == 0xea4f_0000,
        };
        is_move.then(|| (self.reads.trailing_zeros() as u8, self.writes.trailing_zeros() as u8))
    }

    fn moves_link(&self) -> bool {
        self.copied() == Some((LINK, PC))
    }

    /// Bit 20, which is that of the flags in most classes.
    pub(super) fn bit(&self, at: u32) -> bool {
        bit(self.word, at)
    }
}

/// The condition of [`Op`] that always holds.
pub(super) const AL: u8 = ALWAYS;

/// The instruction at the start of some bytes, whatever is in front of it; no `it`.
pub(super) fn alone(isa: Isa, bytes: &[u8]) -> Option<Op> {
    match isa {
        Isa::T32 => half(bytes, 0, false),
        _ => arm(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?)),
    }
}
