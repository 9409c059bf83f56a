//! Emulate: instructions that a trap handler finishes by itself, without the way through the
//! displaced copy.
//!
//! They are what functions begin and end with, and what goes elsewhere: `nop` and `bti`, all direct
//! branches and calls, `br`, `blr` and `ret`, `adr` and `adrp`, loads of literals, `mov`, `add` and
//! `sub` of an immediate without flags, and `ldr`, `str`, `ldp` and `stp` of general-purpose
//! registers by the stack pointer. [`prepare`] does the decoding, at registration; [`execute`] is
//! all that is left at a hit.
//!
//! `bti` does nothing once it is reached. Hints that sign and authenticate are left to the copy:
//! the keys are the processor's.

pub mod op;

pub use op::{Memory, Next, Op, Registers, execute};

use super::access::Mode;
use super::class::Class;
use super::decode::{Insn, decode, is_bti};
use crate::Va;

/// The instruction at the start of `bytes` as an operation; `None` = it has to run as a displaced
/// copy.
///
/// ```
/// use sidestep_isa::a64::emulate::{Memory, Next, Registers, execute, prepare};
/// struct Nothing;
/// impl Memory for Nothing {
///     fn load(&mut self, _: u64) -> Option<u64> { None }
///     fn store(&mut self, _: u64, _: u64) -> Option<()> { None }
/// }
/// let op = prepare(&0x9100_03fd_u32.to_le_bytes()).expect("mov x29, sp is one of them");
/// let mut registers = Registers { pc: 0x1000, sp: 0x7000, ..Registers::default() };
/// assert_eq!(execute(&op, &mut registers, &mut Nothing), Next::Done);
/// assert_eq!((registers.x[29], registers.pc), (0x7000, 0x1004));
/// ```
#[must_use]
pub fn prepare(bytes: &[u8]) -> Option<Op> {
    // At address 0, every target is a distance.
    let insn = decode(bytes, Va(0)).ok()?;
    let op = Op {
        kind: op::NOP,
        reg: plain(insn.rd()),
        second: op::NONE,
        base: op::NONE,
        size: if insn.is_wide() { 8 } else { 4 },
        update: op::KEEP,
        flag: 0,
        number: 0,
        value: insn.branch_target().or(insn.pc_target()).unwrap_or(Va(0)).0,
    };
    match insn.class() {
        Class::Hint if insn.is_nop() || insn.hint().is_some_and(is_bti) => Some(op),
        Class::Branch => Some(Op { kind: op::JUMP, ..op }),
        Class::BranchLink => Some(Op { kind: op::CALL, ..op }),
        // bc.cond is undefined on some processors.
        Class::BranchCondition if insn.bits(4, 4) == 0 => {
            Some(Op { kind: op::BRANCH, reg: insn.bits(3, 0) as u8, ..op })
        }
        Class::CompareZero => Some(Op { kind: op::COMPARE_ZERO, flag: insn.bits(24, 24) as u8, ..op }),
        Class::TestBit => {
            let bit = insn.bits(31, 31) << 5 | insn.bits(23, 19);
            Some(Op { kind: op::TEST_BIT, second: bit as u8, flag: insn.bits(24, 24) as u8, ..op })
        }
        Class::CompareRegisters => {
            let size = match insn.bits(15, 14) {
                2 => 1,
                3 => 2,
                _ => op.size,
            };
            let second = plain(insn.rm());
            Some(Op { kind: op::COMPARE, second, base: insn.bits(23, 21) as u8, size, ..op })
        }
        Class::CompareImmediate => {
            Some(Op { kind: op::COMPARE, base: insn.bits(23, 21) as u8, number: insn.bits(20, 15) as u8, ..op })
        }
        // Not those that authenticate.
        Class::BranchRegister | Class::BranchLinkRegister | Class::Return if insn.bits(15, 10) == 0 => {
            let kind = match insn.class() {
                Class::BranchRegister => op::JUMP_REGISTER,
                Class::BranchLinkRegister => op::CALL_REGISTER,
                _ => op::RETURN,
            };
            Some(Op { kind, reg: plain(insn.rn()), ..op })
        }
        Class::Adr => Some(Op { kind: op::SUM, base: op::PC, size: 8, ..op }),
        Class::Adrp => Some(Op { kind: op::PAGE, size: 8, ..op }),
        Class::MoveWide => constant(&insn, op),
        Class::AddImmediate if insn.bits(29, 29) == 0 => {
            let value = if insn.bits(30, 30) == 1 { -insn.immediate() } else { insn.immediate() };
            Some(Op { kind: op::SUM, reg: insn.rd(), base: insn.rn(), value: value as u64, ..op })
        }
        // mov Xd, Xm; mov Wd, Wm
        Class::Logic if insn.word() & 0x7fe0_ffe0 == 0x2a00_03e0 => {
            Some(Op { kind: op::SUM, base: plain(insn.rm()), ..op })
        }
        Class::LoadLiteral => {
            let [size, flag] = [[4, 0], [8, 0], [4, 1]][insn.bits(31, 30) as usize % 3];
            Some(Op { kind: op::LOAD, base: op::PC, size, flag, ..op })
        }
        Class::Single | Class::Pair if insn.is_on_stack() => on_stack(&insn, op),
        _ => None,
    }
}

/// `movz` and `movn`; `movk` changes a part of a register.
fn constant(insn: &Insn, op: Op) -> Option<Op> {
    let value = u64::from(insn.bits(20, 5)) << (16 * insn.bits(22, 21));
    match insn.bits(30, 29) {
        0 => Some(Op { kind: op::SUM, value: !value, ..op }),
        2 => Some(Op { kind: op::SUM, value, ..op }),
        _ => None,
    }
}

/// A load or store of one or two registers by the stack pointer.
fn on_stack(insn: &Insn, op: Op) -> Option<Op> {
    let access = insn.access()?;
    let kind = if insn.is_store() { op::STORE } else { op::LOAD };
    let update = match access.mode {
        Mode::Offset => op::KEEP,
        Mode::Pre => op::BEFORE,
        Mode::Post => op::AFTER,
    };
    let op = Op { kind, base: op::SP, update, value: access.offset as u64, ..op };
    let load = kind == op::LOAD;
    if insn.class() == Class::Pair {
        let second = plain(insn.ra());
        // Two loads of one register have no defined effect.
        let defined = !load || insn.rd() != insn.ra();
        // ldpsw
        let extends = insn.bits(31, 30) == 1;
        let size = if insn.bits(31, 30) == 2 { 8 } else { 4 };
        return defined.then_some(Op { second, size, flag: extends.into(), ..op });
    }
    // Only what compilers write for the stack: not stlur and its like, and not the unprivileged
    // forms.
    let usual = insn.bits(29, 28) == 3 && (insn.bits(25, 24) == 1 || insn.bits(11, 10) != 2);
    match (insn.bits(31, 30), insn.bits(23, 22)) {
        _ if !usual => None,
        (3, 0 | 1) => Some(Op { size: 8, ..op }),
        (2, 0 | 1) => Some(Op { size: 4, ..op }),
        (2, 2) => Some(Op { size: 4, flag: 1, ..op }),
        _ => None,
    }
}

/// A register of an encoding where 31 is the zero register.
fn plain(number: u8) -> u8 {
    if number == 31 { op::ZERO } else { number }
}
