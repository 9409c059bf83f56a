//! Emulate: instructions that a trap handler finishes by itself, without the way through the
//! displaced copy.
//!
//! They are what functions begin and end with, and what goes elsewhere: `nop`, direct branches and
//! calls, `bx`, `blx`, `cbz`, `adr`, `mov` of registers and constants, `movt`, `add` and `sub` of
//! an immediate without flags, of T32 in 16 bits also with flags; and `push`, `pop`, `ldr`, `str`,
//! `ldrd` and `strd` by the stack pointer, and of literals. A condition is no obstacle; blocks of
//! `it` run in their copies. [`prepare`] does the decoding, at registration; [`execute`] is all
//! that is left at a hit.

pub mod op;

pub use op::{Memory, Next, Op, Registers, execute};

use super::class::{self, Class};
use super::decode::decode;
use super::usage::NZCV;
use super::{LINK, PC, SP, bits, register};
use crate::{Isa, Va};

/// The instruction at the start of `bytes` as an operation; `None` = it has to run as a displaced
/// copy.
///
/// ```
/// use sidestep_isa::Isa;
/// use sidestep_isa::a32::emulate::{Memory, Next, Registers, execute, prepare};
/// struct Nothing;
/// impl Memory for Nothing {
///     fn load(&mut self, _: u64) -> Option<u64> { None }
///     fn store(&mut self, _: u64, _: u64) -> Option<()> { None }
/// }
/// // add r11, sp, #4
/// let op = prepare(Isa::A32, &0xe28d_b004_u32.to_le_bytes()).expect("one of them");
/// let mut registers = Registers::default();
/// (registers.r[13], registers.r[15]) = (0x7000, 0x1000);
/// assert_eq!(execute(&op, &mut registers, &mut Nothing), Next::Done);
/// assert_eq!((registers.r[11], registers.r[15]), (0x7004, 0x1004));
/// ```
#[must_use]
pub fn prepare(isa: Isa, bytes: &[u8]) -> Option<Op> {
    let insn = decode(isa, bytes, Va(0)).ok()?;
    let of = insn.single()?;
    let op = Op {
        kind: op::NOP,
        condition: of.condition,
        reg: op::NONE,
        base: op::NONE,
        second: op::NONE,
        update: op::KEEP,
        len: of.len,
        thumb: of.thumb.into(),
        value: of.number as u32,
        list: 0,
    };
    let one = |set: u16| (set.count_ones() == 1).then_some(set.trailing_zeros() as u8);
    match of.class {
        Class::Hint if of.hint() == 0 => Some(op),
        Class::Branch => Some(Op { kind: op::JUMP, ..op }),
        Class::BranchLink => Some(Op { kind: op::CALL, ..op }),
        Class::BranchExchange => Some(Op { kind: op::CALL_OTHER, ..op }),
        Class::CompareZero => {
            Some(Op { kind: op::COMPARE_ZERO, reg: one(of.reads)?, list: u32::from(!of.bit(11)), ..op })
        }
        Class::BranchRegister if !is_bxj(of) => Some(Op { kind: op::JUMP_REGISTER, reg: one(of.reads)?, ..op }),
        Class::BranchLinkRegister => Some(Op { kind: op::CALL_REGISTER, reg: one(of.reads)?, ..op }),
        Class::Address if !of.writes_pc() => Some(Op { kind: op::SUM, reg: one(of.writes)?, base: op::ALIGNED, ..op }),
        Class::Constant if !of.writes_pc() => {
            // Of 16 bits, the carry stays; of others, it may be that of a rotation.
            let update = match of.flags_set {
                0 => op::KEEP,
                _ if of.len == 2 => op::MOVES,
                _ => return None,
            };
            Some(Op { kind: op::CONSTANT, reg: one(of.writes)?, update, ..op })
        }
        Class::MoveTop => Some(Op { kind: op::TOP, reg: one(of.writes)?, ..op }),
        Class::Compute => compute(of, op),
        Class::Load | Class::Store => access(of, op),
        Class::LoadMultiple | Class::StoreMultiple => multiple(of, op),
        _ => None,
    }
}

/// `bxj`, whose meaning is the processor's.
fn is_bxj(of: &class::Op) -> bool {
    if of.thumb { of.len == 4 } else { bits(of.word, 7, 4) == 2 }
}

/// Moves, sums and comparisons with an immediate.
fn compute(of: &class::Op, op: Op) -> Option<Op> {
    if let Some((from, to)) = of.copied() {
        return match to {
            // That of T32 does not look at bit 0 (`BranchWritePC`, section A2.3.1).
            PC => (!of.thumb).then_some(Op { kind: op::JUMP_REGISTER, reg: from, ..op }),
            _ => Some(Op { kind: op::SUM, reg: to, base: from, value: 0, ..op }),
        };
    }
    let op = Op { kind: op::SUM, base: of.reads.trailing_zeros() as u8, ..op };
    if of.thumb && of.len == 2 && of.flags_set == NZCV {
        let subtracts = match bits(of.word, 15, 11) {
            3 if of.bit(10) => of.bit(9),
            // cmp
            5 => {
                let value = (of.word & 255).wrapping_neg();
                return Some(Op { value, update: op::SUBTRACTS, ..op });
            }
            6 => false,
            7 => true,
            _ => return None,
        };
        let update = if subtracts { op::SUBTRACTS } else { op::ADDS };
        return Some(Op { reg: of.writes.trailing_zeros() as u8, update, ..op });
    }
    let is_sum = of.offset().is_some() && of.flags_set == 0 && !of.writes_pc() && !of.reads_pc();
    let single = of.reads.count_ones() == 1 && of.writes.count_ones() == 1;
    (is_sum && single).then_some(Op { reg: of.writes.trailing_zeros() as u8, ..op })
}

/// A load or store of a word, or of two, by the stack pointer or of a literal.
fn access(of: &class::Op, op: Op) -> Option<Op> {
    of.offset()?;
    let load = of.class == Class::Load;
    let base = match of.base? {
        SP => op::SP,
        PC if load => op::ALIGNED,
        _ => return None,
    };
    let (word, first) = (of.word, register(of.word, 12));
    let (reg, second) = match (of.thumb, of.len) {
        // Of a literal, and by the stack pointer.
        (true, 2) => (bits(word, 10, 8) as u8, op::NONE),
        (true, _) if word >> 25 == 0x74 && (of.before || of.write_back) => (first, register(word, 8)),
        // Not those that access as without privileges.
        (true, _) if word >> 25 == 0x7c && bits(word, 22, 21) == 2 => {
            let user = base == op::SP && !of.bit(23) && bits(word, 11, 8) == 14;
            (!user).then_some((first, op::NONE))?
        }
        (true, _) => return None,
        (false, _) if bits(word, 27, 25) == 2 && !of.bit(22) => {
            let user = !of.bit(24) && of.bit(21);
            (!user).then_some((first, op::NONE))?
        }
        (false, _) if bits(word, 27, 25) == 0 && bits(word, 7, 4) & 13 == 13 && !of.bit(20) => (first, first + 1),
        _ => return None,
    };
    // A store of the program counter depends on the processor.
    if reg == PC && !load || second == PC {
        return None;
    }
    let update = match (of.write_back, of.before) {
        (false, _) => op::KEEP,
        (true, true) => op::BEFORE,
        (true, false) => op::AFTER,
    };
    Some(Op { kind: if load { op::LOAD } else { op::STORE }, reg, second, base, update, ..op })
}

/// `push`, `pop` and their like by the stack pointer, which is not in the list.
fn multiple(of: &class::Op, op: Op) -> Option<Op> {
    let (load, word) = (of.class == Class::LoadMultiple, of.word);
    let list = match of.len {
        2 => word & 255 | (word >> 8 & 1) << if load { PC } else { LINK },
        _ => word & 0xffff,
    };
    let up = of.offset()? > 0;
    let usual = of.base == Some(SP) && list >> SP & 1 == 0 && up != of.before;
    // One register alone is not defined in T32 (sections A8.8.58 and A8.8.200).
    let few = of.thumb && of.len == 4 && list.count_ones() < 2;
    if !usual || few || !load && list >> PC & 1 == 1 {
        return None;
    }
    let kind = if load { op::LOAD_ALL } else { op::STORE_ALL };
    let update = if up { op::KEEP } else { op::BEFORE };
    Some(Op { kind, base: op::SP, update, list, value: of.write_back.into(), ..op })
}
