//! T32 of 16 bits (section A6.2).

use super::super::{LINK, PC, SP, bit, bits, register, signed};
use super::{Class, OPERATIONS, Op, Operation};

fn op(class: Class, word: u32) -> Op {
    Op::new(class, word, 2, true)
}

/// A register of three bits.
fn low(word: u32, at: u32) -> u8 {
    bits(word, at + 2, at) as u8
}

/// The instruction of a halfword. `in_it`: in a block of `it`, where computing sets no flags. `it`
/// itself is none.
pub(crate) fn thumb(word: u32, in_it: bool) -> Option<Op> {
    let sets = !in_it;
    let (m, d) = (low(word, 3), low(word, 0));
    let compute = op(Class::Compute, word);
    match bits(word, 15, 11) {
        // Shifts by an immediate.
        0..=2 => Some(compute.r(m).w(d).sets_logic(sets)),
        3 => {
            let found = compute.r(m).w(d).sets(sets);
            let immediate = bit(word, 10);
            let value = i32::from(low(word, 6));
            let subtracts = bit(word, 9);
            Some(match immediate {
                true => found.plus(if subtracts { -value } else { value }),
                false => found.r(low(word, 6)),
            })
        }
        4 => Some(op(Class::Constant, word).w(low(word, 8)).sets_logic(sets).plus((word & 255) as i32)),
        5 => Some(compute.r(low(word, 8)).sets(true)),
        6 => Some(compute.rw(low(word, 8)).sets(sets).plus((word & 255) as i32)),
        7 => Some(compute.rw(low(word, 8)).sets(sets).plus(-((word & 255) as i32))),
        8 if bit(word, 10) => high_registers(word),
        8 => Some(data(word, sets)),
        9 => Some(op(Class::Load, word).at(PC).w(low(word, 8)).plus(4 * (word & 255) as i32)),
        10 | 11 => {
            // str, strh, strb, ldrsb, ldr, ldrh, ldrb, ldrsh
            let load = bits(word, 11, 9) >= 3;
            Some(access(word, load, d).r(low(word, 6)))
        }
        // str, ldr, strb, ldrb, strh, ldrh
        kind @ 12..=17 => {
            let size = match kind {
                12 | 13 => 4,
                14 | 15 => 1,
                _ => 2,
            };
            Some(access(word, bit(word, 11), d).plus(size * bits(word, 10, 6) as i32))
        }
        18 | 19 => {
            let (load, t) = (bit(word, 11), low(word, 8));
            let found = op(if load { Class::Load } else { Class::Store }, word).at(SP).plus(4 * (word & 255) as i32);
            Some(if load { found.w(t) } else { found.r(t) })
        }
        20 => Some(op(Class::Address, word).r(PC).w(low(word, 8)).plus(4 * (word & 255) as i32)),
        21 => Some(compute.r(SP).w(low(word, 8)).plus(4 * (word & 255) as i32)),
        22 | 23 => miscellaneous(word),
        24 | 25 => {
            let (load, n, list) = (bit(word, 11), low(word, 8), word & 255);
            let bytes = 4 * list.count_ones() as i32;
            let found = op(if load { Class::LoadMultiple } else { Class::StoreMultiple }, word).at(n).plus(bytes);
            let found = Op { before: false, ..found };
            let found = if load { found.writes(list) } else { found.reads(list) };
            found.back(!load || list & 1 << n == 0).filter(|_| list != 0)
        }
        26 | 27 => match bits(word, 11, 8) {
            14 => Some(op(Class::Udf, word)),
            15 => Some(op(Class::SupervisorCall, word).reads(0x7fff).w(0)),
            condition => {
                let found = op(Class::Branch, word).w(PC).plus((signed(word, 7, 0) * 2) as i32);
                (!in_it).then_some(Op { condition: condition as u8, ..found })
            }
        },
        28 => Some(op(Class::Branch, word).w(PC).plus((signed(word, 10, 0) * 2) as i32)),
        _ => None,
    }
}

fn access(word: u32, load: bool, t: u8) -> Op {
    let found = op(if load { Class::Load } else { Class::Store }, word).at(low(word, 3));
    if load { found.w(t) } else { found.r(t) }
}

/// Data processing. The numbers are those of A32, but for shifts, `rsb` and `mul`.
fn data(word: u32, sets: bool) -> Op {
    let (m, d) = (low(word, 3), low(word, 0));
    let found = op(Class::Compute, word).r(m);
    match bits(word, 9, 6) as usize {
        // lsl, lsr, asr, ror, mul
        2 | 3 | 4 | 7 | 13 => found.rw(d).sets_logic(sets),
        9 => found.w(d).sets(sets),
        15 => found.w(d).sets_logic(sets),
        kind => found.data(OPERATIONS[kind], sets, d, d),
    }
}

/// `add`, `cmp` and `mov` of any registers, `bx` and `blx`.
fn high_registers(word: u32) -> Option<Op> {
    let m = register(word, 3);
    let d = (bits(word, 7, 7) << 3) as u8 | low(word, 0);
    let compute = op(Class::Compute, word);
    match bits(word, 9, 8) {
        0 => Some(compute.rw(d).r(m)).filter(|_| d != PC || m != PC),
        1 => compute.data(Operation::Compare, true, 0, d).r(m).without_pc([d, m]),
        2 => Some(compute.w(d).r(m)),
        _ if low(word, 0) != 0 => None,
        _ if bit(word, 7) => op(Class::BranchLinkRegister, word).r(m).w(PC).w(LINK).without_pc([m]),
        _ => Some(op(Class::BranchRegister, word).r(m).w(PC)),
    }
}

fn miscellaneous(word: u32) -> Option<Op> {
    let (m, d, list) = (low(word, 3), low(word, 0), word & 255);
    let compute = op(Class::Compute, word);
    let extra = bit(word, 8);
    match bits(word, 11, 8) {
        0 => {
            let value = 4 * (word & 127) as i32;
            Some(compute.rw(SP).plus(if bit(word, 7) { -value } else { value }))
        }
        1 | 3 | 9 | 11 => {
            let offset = bits(word, 9, 9) << 6 | bits(word, 7, 3) << 1;
            Some(op(Class::CompareZero, word).r(d).w(PC).plus(offset as i32))
        }
        2 => Some(compute.r(m).w(d)),
        4 | 5 => {
            let list = list | if extra { 1 << LINK } else { 0 };
            let bytes = 4 * list.count_ones() as i32;
            op(Class::StoreMultiple, word).at(SP).reads(list).plus(-bytes).back(true).filter(|_| list != 0)
        }
        12 | 13 => {
            let list = list | if extra { 1 << PC } else { 0 };
            let found = op(Class::LoadMultiple, word).at(SP).writes(list).plus(4 * list.count_ones() as i32);
            Op { before: false, ..found }.back(true).filter(|_| list != 0)
        }
        10 if bits(word, 7, 6) != 2 => Some(compute.r(m).w(d)),
        14 => Some(op(Class::Breakpoint, word)),
        // `it` has other lower bits.
        15 if word & 15 == 0 => Some(op(Class::Hint, word)),
        _ => None,
    }
}
