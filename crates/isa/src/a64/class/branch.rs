//! Classes of branches, exceptions and system instructions (section C4.1.94).

use super::Class;
use crate::a64::bits;

pub(super) fn classify(word: u32) -> Option<Class> {
    match bits(word, 30, 26) {
        0b00101 => Some(if word >> 31 == 0 { Class::Branch } else { Class::BranchLink }),
        0b01101 => Some(if bits(word, 25, 25) == 0 { Class::CompareZero } else { Class::TestBit }),
        0b11101 => compare(word),
        0b10101 => match word >> 24 {
            0x54 => Some(Class::BranchCondition),
            0x55 => (bits(word, 23, 22) == 0 && bits(word, 4, 0) == 31).then_some(Class::ReturnHere),
            0xd4 => exception(word),
            0xd5 => system(word),
            0xd6 | 0xd7 => register(word),
            _ => None,
        },
        _ => None,
    }
}

/// Compare and branch of `FEAT_CMPBR`: `sf 1110100 cc Rm size imm9 Rt` and
/// `sf 1110101 cc imm6 0 imm9 Rt`.
fn compare(word: u32) -> Option<Class> {
    let condition = bits(word, 23, 21);
    if matches!(condition, 0b100 | 0b101) {
        return None;
    }
    match (bits(word, 25, 24), bits(word, 15, 14), word >> 31) {
        (0, 0b00, _) | (0, 0b10 | 0b11, 0) => Some(Class::CompareRegisters),
        (1, size, _) => (size & 1 == 0).then_some(Class::CompareImmediate),
        _ => None,
    }
}

fn exception(word: u32) -> Option<Class> {
    if bits(word, 4, 2) != 0 {
        return None;
    }
    match (bits(word, 23, 21), bits(word, 1, 0)) {
        (0b000, 0b01) => Some(Class::SupervisorCall),
        (0b000, 0b10 | 0b11) | (0b101, 0b01..=0b11) => Some(Class::HigherCall),
        (0b001, 0b00) => Some(Class::Breakpoint),
        (0b010, 0b00) => Some(Class::Halt),
        _ => None,
    }
}

fn register(word: u32) -> Option<Class> {
    let (op3, from, op4) = (bits(word, 15, 10), bits(word, 9, 5), bits(word, 4, 0));
    if bits(word, 20, 16) != 31 {
        return None;
    }
    // `aa` and `ab`.
    let signed = op3 == 2 || op3 == 3;
    let plain = op3 == 0 && op4 == 0;
    match bits(word, 24, 21) {
        0b0000 => (plain || signed && op4 == 31).then_some(Class::BranchRegister),
        0b0001 => (plain || signed && op4 == 31).then_some(Class::BranchLinkRegister),
        0b0010 if plain => Some(Class::Return),
        // With a register in place of 31: retaasppcr.
        0b0010 => (signed && from == 31).then_some(Class::ReturnAuthenticated),
        0b0100 => (from == 31 && (plain || signed && op4 == 31)).then_some(Class::ExceptionReturn),
        0b0101 => (from == 31 && plain).then_some(Class::ExceptionReturn),
        0b1000 => signed.then_some(Class::BranchRegister),
        0b1001 => signed.then_some(Class::BranchLinkRegister),
        _ => None,
    }
}

fn system(word: u32) -> Option<Class> {
    let (op0, op1, n, m) = (bits(word, 20, 19), bits(word, 18, 16), bits(word, 15, 12), bits(word, 11, 8));
    let (op2, to) = (bits(word, 7, 5), bits(word, 4, 0));
    let reads = bits(word, 21, 21) == 1;
    match bits(word, 23, 22) {
        0b00 => match (op0, reads) {
            (0b00, false) => own(op1, n, m, op2, to),
            (0b00, true) => None,
            (0b01, false) => Some(Class::System),
            (0b01, true) => Some(Class::SystemResult),
            (_, false) => Some(Class::MoveToSystem),
            (_, true) => Some(Class::MoveFromSystem),
        },
        // Pairs of registers begin with an even one. 31 stands for no register.
        0b01 => match (op0, reads) {
            (0b01, false) => (to & 1 == 0 || to == 31).then_some(Class::System),
            (0b10 | 0b11, false) => (to & 1 == 0).then_some(Class::MoveToSystem),
            (0b10 | 0b11, true) => (to & 1 == 0).then_some(Class::MoveFromSystem),
            _ => None,
        },
        _ => None,
    }
}

/// Hints, barriers and fields of the processor's state.
fn own(op1: u32, n: u32, m: u32, op2: u32, to: u32) -> Option<Class> {
    match (op1, n, op2) {
        (3, 1, 0 | 1) => (m == 0).then_some(Class::WaitTime),
        _ if to != 31 => None,
        (3, 2, _) => Some(Class::Hint),
        (3, 3, 2) => Some(Class::ClearExclusive),
        (3, 3, 4 | 5) => Some(Class::Barrier),
        // dsb with nXS.
        (3, 3, 1) => (m & 3 == 2).then_some(Class::Barrier),
        (3, 3, 7) => (m == 0).then_some(Class::Barrier),
        (3, 3, 6) => Some(Class::InstructionBarrier),
        // cfinv, xaflag, axflag.
        (0, 4, 0..=2) => Some(Class::MoveToState),
        // uao, pan, spsel; ssbs, dit, tco, daifset, daifclr.
        (0, 4, 3..=5) | (3, 4, 1 | 2 | 4 | 6 | 7) => Some(Class::MoveToState),
        // allint, pm.
        (1, 4, 0) => (m < 4).then_some(Class::MoveToState),
        // svcrsm, svcrza, svcrsmza.
        (3, 4, 3) => (2..=7).contains(&m).then_some(Class::MoveToState),
        _ => None,
    }
}
