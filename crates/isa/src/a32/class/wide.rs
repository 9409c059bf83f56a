//! T32 of 32 bits (section A6.3). The first halfword is the upper one.

use super::super::{LINK, PC, SP, bit, bits, register, signed};
use super::arm::write_status;
use super::coprocessor::{coprocessor, second, structures};
use super::{Class, Op, Operation};
use crate::a32::usage::NZCV;

fn op(class: Class, word: u32) -> Op {
    Op::new(class, word, 4, true)
}

/// The instruction of two halfwords. `in_it`: in a block of `it`.
pub(crate) fn wide(word: u32, in_it: bool) -> Option<Op> {
    let kind = bits(word, 26, 20);
    match bits(word, 28, 27) {
        1 if kind >> 5 == 0 && !bit(word, 22) => multiple(word),
        1 if kind >> 5 == 0 => pairs(word),
        1 if kind >> 5 == 1 => data_register(word),
        2 if !bit(word, 15) && !bit(word, 25) => data_immediate(word),
        2 if !bit(word, 15) => plain_immediate(word),
        2 => control(word, in_it),
        3 if kind & 0x71 == 0 => store(word),
        3 if kind & 0x61 == 1 => load(word),
        3 if kind & 0x71 == 0x10 => structures(op(Class::VectorLoad, word)),
        3 if kind >> 4 == 2 => registers(word),
        3 if kind >> 3 == 6 => multiply(word),
        3 if kind >> 3 == 7 => multiply_long(word),
        // Advanced SIMD data processing has bit 28 for its sign.
        1 | 3 if kind & 0x70 == 0x70 => Some(op(Class::Vector, word)),
        1 => coprocessor(op(Class::Coprocessor, word)),
        3 if kind >> 6 == 1 => second(op(Class::Vector, word)).filter(|_| !in_it),
        _ => None,
    }
}

fn multiple(word: u32) -> Option<Op> {
    let (n, list, before) = (register(word, 16), word & 0xffff, bit(word, 24));
    let [back, load] = [21, 20].map(|at| bit(word, at));
    let both = 1 << PC | 1 << LINK;
    let bad = list & 1 << SP != 0 || !load && list & 1 << PC != 0 || list & both == both && load;
    if bad || list == 0 || bit(word, 23) == before || n == PC || back && list & 1 << n != 0 {
        return None;
    }
    let found = op(if load { Class::LoadMultiple } else { Class::StoreMultiple }, word).at(n);
    let found = if load { found.writes(list) } else { found.reads(list) };
    let bytes = 4 * list.count_ones() as i32;
    Op { before, ..found }.plus(if before { -bytes } else { bytes }).back(back)
}

/// Accesses to two registers, exclusive accesses, `tbb` and `tbh`.
fn pairs(word: u32) -> Option<Op> {
    let (n, t, d, m) = (register(word, 16), register(word, 12), register(word, 8), register(word, 0));
    let [before, up, back, load] = [24, 23, 21, 20].map(|at| bit(word, at));
    if before || back {
        let found = op(if load { Class::Load } else { Class::Store }, word).at(n).without_pc([t, d])?;
        let found = if load { found.w(t).w(d) } else { found.r(t).r(d) };
        let offset = 4 * bits(word, 7, 0) as i32;
        let found = Op { before, ..found }.plus(if up { offset } else { -offset });
        let bad = load && t == d || !load && n == PC || back && (n == t || n == d);
        return found.back(back).filter(|_| !bad);
    }
    let load_exclusive = |registers: u32| op(Class::LoadExclusive, word).at(n).writes(registers);
    let store_exclusive = |status: u8, registers: u32| {
        let found = op(Class::StoreExclusive, word).at(n).reads(registers).w(status);
        (status != n && registers & 1 << status == 0).then_some(found)
    };
    let plain = !up;
    match (load, bits(word, 7, 4)) {
        (true, _) if plain && d == 15 => {
            Some(load_exclusive(1 << t).plus(4 * bits(word, 7, 0) as i32)).filter(|_| t != PC && n != PC)
        }
        (false, _) if plain => store_exclusive(d, 1 << t)?.plus(4 * bits(word, 7, 0) as i32).without_pc([n, t, d]),
        _ if plain => None,
        (true, 0 | 1) if t == 15 && d == 0 => op(Class::TableBranch, word).at(n).r(m).w(PC).without_pc([m]),
        (true, 4 | 5 | 12 | 13 | 14) if d == 15 && m == 15 => load_exclusive(1 << t).without_pc([n, t]),
        (true, 7 | 15) if m == 15 && t != d => load_exclusive(1 << t | 1 << d).without_pc([n, t, d]),
        (true, 8..=10) if d == 15 && m == 15 => op(Class::Load, word).at(n).w(t).without_pc([n, t]),
        (false, 4 | 5 | 12 | 13 | 14) if d == 15 => store_exclusive(m, 1 << t)?.without_pc([n, t, m]),
        (false, 7 | 15) => store_exclusive(m, 1 << t | 1 << d)?.without_pc([n, t, d, m]),
        (false, 8..=10) if d == 15 && m == 15 => op(Class::Store, word).at(n).r(t).without_pc([n, t]),
        _ => None,
    }
}

/// Data processing: the operation, and what 15 as destination or first operand make of it.
fn data(word: u32, found: Op) -> Option<Op> {
    let (n, d, s) = (register(word, 16), register(word, 8), bit(word, 20));
    let compares = d == PC && s;
    let operation = match bits(word, 24, 21) {
        0 | 4 if compares => Operation::Test,
        8 | 13 if compares => Operation::Compare,
        2 | 3 if n == PC => Operation::Move,
        0..=4 => Operation::Logic,
        8 | 13 | 14 => Operation::Sum,
        10 | 11 => Operation::Carry,
        _ => return None,
    };
    let found = found.data(operation, s, d, n);
    ((found.reads | found.writes) >> PC == 0).then_some(found)
}

fn data_register(word: u32) -> Option<Op> {
    let (n, d, m) = (register(word, 16), register(word, 8), register(word, 0));
    let found = op(Class::Compute, word).r(m);
    if bit(word, 15) {
        return None;
    }
    // pkhbt, pkhtb
    if bits(word, 24, 21) == 6 {
        let fixed = !bit(word, 20) && !bit(word, 4);
        return found.r(n).w(d).without_pc([n, d, m]).filter(|_| fixed);
    }
    let rrx = bits(word, 14, 12) == 0 && bits(word, 7, 6) == 0 && bits(word, 5, 4) == 3;
    data(word, found.uses_carry(rrx))
}

/// The number that twelve bits stand for (section A6.3.2).
fn modified(word: u32) -> i32 {
    let twelve = bits(word, 26, 26) << 11 | bits(word, 14, 12) << 8 | bits(word, 7, 0);
    let byte = twelve & 255;
    (match twelve >> 8 {
        0 => byte,
        1 => byte * 0x0001_0001,
        2 => byte * 0x0100_0100,
        3 => byte * 0x0101_0101,
        _ => (byte & 127 | 128).rotate_right(twelve >> 7),
    }) as i32
}

fn data_immediate(word: u32) -> Option<Op> {
    let found = data(word, op(Class::Compute, word))?;
    let value = modified(word);
    Some(match bits(word, 24, 21) {
        2 if register(word, 16) == PC => Op { class: Class::Constant, ..found }.plus(value),
        3 if register(word, 16) == PC => Op { class: Class::Constant, ..found }.plus(!value),
        8 => found.plus(value),
        13 => found.plus(value.wrapping_neg()),
        _ => found,
    })
}

fn plain_immediate(word: u32) -> Option<Op> {
    let (n, d) = (register(word, 16), register(word, 8));
    let twelve = (bits(word, 26, 26) << 11 | bits(word, 14, 12) << 8 | bits(word, 7, 0)) as i32;
    let sixteen = (bits(word, 19, 16) << 12) as i32 | twelve;
    let (low, width) = (bits(word, 14, 12) << 2 | bits(word, 7, 6), bits(word, 4, 0));
    let found = op(Class::Compute, word);
    let sum = |value: i32| {
        let class = if n == PC { Class::Address } else { Class::Compute };
        Op { class, ..found }.r(n).w(d).plus(value).without_pc([d])
    };
    let fixed = !bit(word, 26) && !bit(word, 5);
    match bits(word, 24, 20) {
        0 => sum(twelve),
        10 => sum(-twelve),
        4 => op(Class::Constant, word).w(d).plus(sixteen).without_pc([d]),
        12 => op(Class::MoveTop, word).rw(d).plus(sixteen).without_pc([d]),
        // ssat, usat; ssat16, usat16 where nothing is shifted.
        16 | 24 if fixed => found.r(n).w(d).without_pc([n, d]),
        18 | 26 if fixed && (low != 0 || !bit(word, 4)) => found.r(n).w(d).without_pc([n, d]),
        // sbfx, ubfx
        20 | 28 if fixed && low + width < 32 => found.r(n).w(d).without_pc([n, d]),
        // bfc, bfi
        22 if fixed && width >= low => {
            let found = found.rw(d).without_pc([d])?;
            Some(if n == PC { found } else { found.r(n) })
        }
        _ => None,
    }
}

/// Where the 25 bits of `b`, `bl` and `blx` lead.
fn far(word: u32) -> i32 {
    let s = bits(word, 26, 26);
    let [i1, i2] = [13, 11].map(|at| 1 ^ bits(word, at, at) ^ s);
    let all = s << 24 | i1 << 23 | i2 << 22 | bits(word, 25, 16) << 12 | bits(word, 10, 0) << 1;
    signed(all, 24, 0) as i32
}

/// Branches and control (section A6.3.4).
fn control(word: u32, in_it: bool) -> Option<Op> {
    match (bit(word, 14), bit(word, 12)) {
        (true, true) => return Some(op(Class::BranchLink, word).w(PC).w(LINK).plus(far(word))),
        (true, false) if bit(word, 0) => return None,
        (true, false) => return Some(op(Class::BranchExchange, word).w(PC).w(LINK).plus(far(word))),
        (false, true) => return Some(op(Class::Branch, word).w(PC).plus(far(word))),
        (false, false) => {}
    }
    let condition = bits(word, 25, 22);
    if condition < 14 {
        let [s, j1, j2] = [26, 13, 11].map(|at| bits(word, at, at));
        let all = s << 20 | j2 << 19 | j1 << 18 | bits(word, 21, 16) << 12 | bits(word, 10, 0) << 1;
        let found = op(Class::Branch, word).w(PC).plus(signed(all, 20, 0) as i32);
        return (!in_it).then_some(Op { condition: condition as u8, ..found });
    }
    let (n, d) = (register(word, 16), register(word, 8));
    match word {
        _ if word & 0xfff0_f0ff == 0xf380_8000 && d != 0 => {
            write_status(op(Class::WriteStatus, word), d.into()).r(n).without_pc([n])
        }
        _ if word & 0xffff_ff00 == 0xf3af_8000 => Some(op(Class::Hint, word)),
        0xf3bf_8f2f => Some(op(Class::ClearExclusive, word)),
        0xf3bf_8f40..=0xf3bf_8f6f => Some(op(Class::Barrier, word)),
        _ if word & 0xfff0_ffff == 0xf3c0_8f00 => op(Class::BranchRegister, word).r(n).w(PC).without_pc([n]),
        _ if word & 0xffff_f0ff == 0xf3ef_8000 => op(Class::ReadStatus, word).w(d).uses_flags(NZCV).without_pc([d]),
        _ if word & 0xfff0_f000 == 0xf7f0_a000 => Some(op(Class::Udf, word)),
        _ => None,
    }
}

/// What is added to a base: the offset and what becomes of the base, or a register.
fn address(word: u32, found: Op) -> Option<Op> {
    let m = register(word, 0);
    if bit(word, 23) {
        return Some(found.plus(bits(word, 11, 0) as i32));
    }
    if !bit(word, 11) {
        return found.r(m).without_pc([m]).filter(|_| bits(word, 10, 6) == 0);
    }
    let [before, up, back] = [10, 9, 8].map(|at| bit(word, at));
    let offset = bits(word, 7, 0) as i32;
    let found = Op { before, ..found }.plus(if up { offset } else { -offset });
    found.back(back).filter(|_| before || back)
}

fn store(word: u32) -> Option<Op> {
    let (n, t) = (register(word, 16), register(word, 12));
    let found = op(Class::Store, word).at(n).r(t).without_pc([n, t])?;
    let found = address(word, found)?;
    (bits(word, 22, 21) != 3 && !(found.write_back && n == t)).then_some(found)
}

fn load(word: u32) -> Option<Op> {
    let (n, t) = (register(word, 16), register(word, 12));
    let (sign, size) = (bit(word, 24), bits(word, 22, 21));
    if size == 3 || sign && size == 2 {
        return None;
    }
    let preload = t == PC && size != 2;
    let found = match preload {
        // There is no pldw of a literal, and nothing with a sign and two bytes.
        true if size == 1 && (sign || n == PC) => return None,
        true => op(Class::Preload, word).at(n),
        false => op(Class::Load, word).at(n).w(t),
    };
    let found = if n == PC {
        let offset = bits(word, 11, 0) as i32;
        found.plus(if bit(word, 23) { offset } else { -offset })
    } else {
        address(word, found)?
    };
    // `ldrt` has no program counter, and neither has what writes back.
    let user = n != PC && !bit(word, 23) && bits(word, 11, 8) == 14;
    let negative = n == PC || bit(word, 23) || !bit(word, 11) || bits(word, 11, 8) == 12;
    let bad = user && t == PC || found.write_back && n == t || preload && !negative;
    (!bad).then_some(found)
}

/// Shifts, extensions, parallel sums and others (section A6.3.12).
fn registers(word: u32) -> Option<Op> {
    let (n, d, m) = (register(word, 16), register(word, 8), register(word, 0));
    let (kind, second) = (bits(word, 23, 20), bits(word, 7, 4));
    if register(word, 12) != 15 || d == PC || m == PC {
        return None;
    }
    let found = op(Class::Compute, word).r(m).w(d);
    let two = found.r(n).without_pc([n]);
    match (kind, second) {
        (0..=7, 0) => two.map(|found| found.sets_logic(kind & 1 == 1)),
        (0..=5, 8..=11) => Some(if n == PC { found } else { found.r(n) }),
        (8 | 9 | 10 | 12 | 13 | 14, 0..=2 | 4..=6) => two,
        (8, 8..=11) | (10 | 11, 8) | (12 | 13, 8..=10) if kind != 11 => two,
        // rev and its like, clz: the register is there twice.
        (9, 8..=11) | (11, 8) if n == m => Some(found),
        _ => None,
    }
}

fn multiply(word: u32) -> Option<Op> {
    let (n, a, d, m) = (register(word, 16), register(word, 12), register(word, 8), register(word, 0));
    let (kind, second) = (bits(word, 22, 20), bits(word, 5, 4));
    let known = match kind {
        0 => second == 0 || second == 1 && a != PC,
        1 => true,
        6 => second < 2 && a != PC,
        7 => second == 0,
        _ => second < 2,
    };
    let found = op(Class::Compute, word).r(n).r(m).w(d).without_pc([n, d, m])?;
    let found = if a == PC { found } else { found.r(a) };
    (known && bits(word, 7, 6) == 0).then_some(found)
}

fn multiply_long(word: u32) -> Option<Op> {
    let (n, low, high, m) = (register(word, 16), register(word, 12), register(word, 8), register(word, 0));
    let found = op(Class::Compute, word).r(n).r(m);
    let writes = || found.w(low).w(high).without_pc([n, low, high, m]).filter(|_| low != high);
    let adds = || found.rw(low).rw(high).without_pc([n, low, high, m]).filter(|_| low != high);
    match (bits(word, 22, 20), bits(word, 7, 4)) {
        (0 | 2, 0) => writes(),
        (1 | 3, 15) if low == 15 => found.w(high).without_pc([n, high, m]),
        (4, 0 | 8..=13) | (5, 12 | 13) | (6, 0 | 6) => adds(),
        _ => None,
    }
}
