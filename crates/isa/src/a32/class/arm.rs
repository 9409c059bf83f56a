//! A32 (chapter A5).

use super::super::{PC, bit, bits, register, signed};
use super::coprocessor::{coprocessor, second, structures};
use super::{ALWAYS, Class, OPERATIONS, Op, Operation};
use crate::a32::usage::NZCV;

fn op(class: Class, word: u32) -> Op {
    Op::new(class, word, 4, false)
}

/// The instruction of a word.
pub(crate) fn arm(word: u32) -> Option<Op> {
    let condition = (word >> 28) as u8;
    if condition == 15 {
        return unconditional(word);
    }
    // Comparisons without the bit for flags are other instructions.
    let misc = bits(word, 24, 23) == 2 && !bit(word, 20);
    let found = match bits(word, 27, 25) {
        0 if bit(word, 7) && bit(word, 4) => extra(word),
        0 if misc => miscellaneous(word),
        0 => data_register(word),
        1 if misc => immediates(word),
        1 => data_immediate(word),
        2 => load_store(word),
        3 if !bit(word, 4) => load_store(word),
        3 => media(word),
        4 => multiple(word),
        5 => {
            let class = if bit(word, 24) { Class::BranchLink } else { Class::Branch };
            Some(branch(op(class, word), signed(word, 23, 0) << 2))
        }
        6 => coprocessor(op(Class::Coprocessor, word)),
        _ if !bit(word, 24) => coprocessor(op(Class::Coprocessor, word)),
        _ => Some(op(Class::SupervisorCall, word).reads(0x7fff).w(0)),
    }?;
    // Without conditions, by their encodings.
    let fixed = matches!(found.class, Class::Breakpoint | Class::Udf) || word & 0x0f90_00f0 == 0x0100_0040;
    (!fixed || condition == ALWAYS).then_some(Op { condition, ..found })
}

fn branch(op: Op, offset: i64) -> Op {
    let op = op.plus(offset as i32).w(PC);
    if op.class == Class::Branch { op } else { op.w(super::super::LINK) }
}

/// Bits 11 to 4 of a shift by an immediate: whether it takes the carry.
fn is_rrx(word: u32) -> bool {
    bits(word, 11, 7) == 0 && bits(word, 6, 5) == 3
}

fn data(word: u32, op: Op) -> Option<Op> {
    let (n, d, s) = (register(word, 16), register(word, 12), bit(word, 20));
    let operation = OPERATIONS[bits(word, 24, 21) as usize];
    let zero = match operation {
        Operation::Test | Operation::Compare => d == 0,
        Operation::Move => n == 0,
        _ => true,
    };
    // `subs pc, lr` and its like are the kernel's way back.
    let returns = d == PC && s;
    (zero && !returns).then(|| op.data(operation, s, d, n))
}

fn data_register(word: u32) -> Option<Op> {
    let found = data(word, op(Class::Compute, word).r(register(word, 0)))?;
    if !bit(word, 4) {
        return Some(found.uses_carry(is_rrx(word)));
    }
    let found = found.r(register(word, 8));
    ((found.reads | found.writes) >> PC == 0).then_some(found)
}

fn data_immediate(word: u32) -> Option<Op> {
    let found = data(word, op(Class::Compute, word))?;
    let operation = bits(word, 24, 21);
    let value = bits(word, 7, 0).rotate_right(2 * bits(word, 11, 8)) as i32;
    let plain = !bit(word, 20);
    Some(match operation {
        // sub, add
        2 if plain && register(word, 16) == PC => Op { class: Class::Address, ..found }.plus(value.wrapping_neg()),
        4 if plain && register(word, 16) == PC => Op { class: Class::Address, ..found }.plus(value),
        2 => found.plus(value.wrapping_neg()),
        4 => found.plus(value),
        13 => Op { class: Class::Constant, ..found }.plus(value),
        15 => Op { class: Class::Constant, ..found }.plus(!value),
        _ => found,
    })
}

/// `movw`, `movt`, `msr` and hints.
fn immediates(word: u32) -> Option<Op> {
    let d = register(word, 12);
    let value = (bits(word, 19, 16) << 12 | bits(word, 11, 0)) as i32;
    match bits(word, 22, 21) {
        0 => op(Class::Constant, word).w(d).plus(value).without_pc([d]),
        2 => op(Class::MoveTop, word).rw(d).plus(value).without_pc([d]),
        1 if d != 15 => None,
        1 if bits(word, 19, 16) == 0 => (bits(word, 11, 8) == 0).then(|| op(Class::Hint, word)),
        1 => Some(write_status(op(Class::WriteStatus, word), bits(word, 19, 16))),
        _ => None,
    }
}

/// `msr`: the highest bit of its mask means the flags.
pub(super) fn write_status(op: Op, mask: u32) -> Op {
    op.sets(mask & 8 != 0)
}

fn miscellaneous(word: u32) -> Option<Op> {
    let (n, d, s, m) = (register(word, 16), register(word, 12), register(word, 8), register(word, 0));
    let kind = bits(word, 22, 21);
    let compute = op(Class::Compute, word);
    if bit(word, 7) {
        // Multiplies of halfwords: the result is in bits 19 to 16.
        let found = compute.r(m).r(s);
        let adds = match kind {
            0 => true,
            1 => !bit(word, 5),
            2 => return found.rw(n).rw(d).without_pc([n, d, s, m]),
            _ => false,
        };
        let found = if adds { found.r(d) } else { found };
        return found.w(n).without_pc([n, if adds { d } else { 0 }, s, m]).filter(|_| adds || d == 0);
    }
    let ones = bits(word, 19, 8) == 0xfff;
    match (bits(word, 6, 4), kind) {
        (0, 0) if n == 15 && bits(word, 11, 0) == 0 => {
            op(Class::ReadStatus, word).w(d).uses_flags(NZCV).without_pc([d])
        }
        (0, 1) if d == 15 && bits(word, 11, 4) == 0 && n != 0 => {
            write_status(op(Class::WriteStatus, word), n.into()).r(m).without_pc([m])
        }
        (1, 1) if ones => Some(op(Class::BranchRegister, word).r(m).w(PC)),
        (1, 3) if n == 15 && s == 15 => compute.r(m).w(d).without_pc([d, m]),
        (2, 1) if ones => op(Class::BranchRegister, word).r(m).w(PC).without_pc([m]),
        (3, 1) if ones => op(Class::BranchLinkRegister, word).r(m).w(PC).w(super::super::LINK).without_pc([m]),
        // crc32
        (4, 0..=2) if s & 13 == 0 => compute.r(n).r(m).w(d).without_pc([n, d, m]),
        (5, _) if s == 0 => compute.r(n).r(m).w(d).without_pc([n, d, m]),
        (7, 1) => Some(op(Class::Breakpoint, word)),
        _ => None,
    }
}

/// Multiplies, exclusive accesses, and accesses to halfwords and doublewords.
fn extra(word: u32) -> Option<Op> {
    let (n, d, s, m) = (register(word, 16), register(word, 12), register(word, 8), register(word, 0));
    if bits(word, 6, 5) != 0 {
        return extra_load_store(word);
    }
    if bit(word, 24) {
        return exclusive(word);
    }
    let found = op(Class::Compute, word).r(m).r(s);
    let flags = bit(word, 20);
    match bits(word, 23, 20) {
        // mul, mla, umaal, mls
        0 | 1 if d == 0 => found.w(n).sets_logic(flags).without_pc([n, s, m]),
        2 | 3 => found.r(d).w(n).sets_logic(flags).without_pc([n, d, s, m]),
        4 => found.rw(n).rw(d).without_pc([n, d, s, m]),
        6 => found.r(d).w(n).without_pc([n, d, s, m]),
        // umull, smull; umlal, smlal
        kind @ 8.. if n != d => {
            let found = if kind & 2 == 0 { found } else { found.r(n).r(d) };
            found.w(n).w(d).sets_logic(flags).without_pc([n, d, s, m])
        }
        _ => None,
    }
}

fn exclusive(word: u32) -> Option<Op> {
    let (n, d, t) = (register(word, 16), register(word, 12), register(word, 0));
    let (kind, size, load) = (bits(word, 11, 8), bits(word, 22, 21), bit(word, 20));
    if !bit(word, 23) {
        let swap = kind == 0 && size & 1 == 0 && !load && n != d && n != t;
        return op(Class::Swap, word).at(n).r(t).w(d).without_pc([n, d, t]).filter(|_| swap);
    }
    let pair = size == 1;
    let even = |register: u8| !pair || register & 1 == 0 && register != 14;
    let two = |register: u8| if pair { 3 << register } else { 1 << register };
    match (kind, load) {
        // lda and its like
        (12, true) if t == 15 && !pair => op(Class::Load, word).at(n).w(d).without_pc([n, d]),
        (12, false) if d == 15 && !pair => op(Class::Store, word).at(n).r(t).without_pc([n, t]),
        (14 | 15, true) if t == 15 && even(d) => op(Class::LoadExclusive, word).at(n).writes(two(d)).without_pc([n, d]),
        (14 | 15, false) if even(t) && d != n && two(t) & 1 << d == 0 => {
            op(Class::StoreExclusive, word).at(n).reads(two(t)).w(d).without_pc([n, d, t])
        }
        _ => None,
    }
}

fn extra_load_store(word: u32) -> Option<Op> {
    let (n, d, m) = (register(word, 16), register(word, 12), register(word, 0));
    let [before, up, immediate, w, l] = [24, 23, 22, 21, 20].map(|at| bit(word, at));
    let pair = !l && bit(word, 6);
    let load = l || bits(word, 6, 5) == 2;
    // Without the first bit and with the other one, it accesses as without privileges.
    let user = !before && w;
    let back = !before || w;
    if pair && (user || d & 1 == 1 || d == 14) || d == PC {
        return None;
    }
    let data = if pair { 3 << d } else { 1 << d };
    let found = op(if load { Class::Load } else { Class::Store }, word).at(n);
    let found = if load { found.writes(data) } else { found.reads(data) };
    let found = Op { before, ..found };
    let found = if immediate {
        let offset = (bits(word, 11, 8) << 4 | bits(word, 3, 0)) as i32;
        found.plus(if up { offset } else { -offset })
    } else {
        found.r(m).without_pc([m]).filter(|_| bits(word, 11, 8) == 0)?
    };
    found.back(back).filter(|_| !back || data & 1 << n == 0)
}

fn load_store(word: u32) -> Option<Op> {
    let (n, t, m) = (register(word, 16), register(word, 12), register(word, 0));
    let [by_register, before, up, byte, w, load] = [25, 24, 23, 22, 21, 20].map(|at| bit(word, at));
    let user = !before && w;
    let back = !before || w;
    if t == PC && (byte || user) || back && n == t {
        return None;
    }
    let found = op(if load { Class::Load } else { Class::Store }, word).at(n);
    let found = if load { found.w(t) } else { found.r(t) };
    let found = Op { before, ..found };
    let found = if by_register {
        found.r(m).uses_carry(is_rrx(word)).without_pc([m])?
    } else {
        let offset = bits(word, 11, 0) as i32;
        found.plus(if up { offset } else { -offset })
    };
    found.back(back)
}

fn media(word: u32) -> Option<Op> {
    let (n, d, s, m) = (register(word, 16), register(word, 12), register(word, 8), register(word, 0));
    let kind = bits(word, 7, 5);
    let found = op(Class::Compute, word).r(m);
    let ones = s == 15;
    let two = || found.r(n).w(d).without_pc([n, d, m]);
    let one = || found.w(d).without_pc([d, m]);
    // Bits 15 to 12 are what is added, and 15 there means nothing.
    let product = |adds: bool| {
        let found = found.r(s).w(n).without_pc([n, s, m])?;
        Some(if adds && d != PC { found.r(d) } else { found })
    };
    match bits(word, 24, 20) {
        1..=3 | 5..=7 if ones && !matches!(kind, 5 | 6) => two(),
        0b01000 if kind & 1 == 0 => two(),
        0b01000 if kind == 5 && ones => two(),
        // Extensions: 15 adds nothing.
        0b01000 | 0b01010 | 0b01011 | 0b01100 | 0b01110 | 0b01111 if kind == 3 => {
            if bits(word, 9, 8) != 0 {
                return None;
            }
            if n == PC { one() } else { two() }
        }
        // ssat, usat; ssat16, usat16
        0b01010 | 0b01011 | 0b01110 | 0b01111 if kind & 1 == 0 => one(),
        0b01010 | 0b01110 if kind == 1 && ones => one(),
        // rev and its like
        0b01011 | 0b01111 if matches!(kind, 1 | 5) && n == 15 && ones => one(),
        0b10000 if kind < 4 => product(true),
        // sdiv, udiv
        0b10001 | 0b10011 if kind == 0 && d == 15 => product(false),
        0b10100 if kind < 4 && n != d => found.r(s).rw(n).rw(d).without_pc([n, d, s, m]),
        0b10101 if kind < 2 => product(true),
        0b10101 if kind > 5 && d != PC => product(true),
        0b11000 if kind == 0 => product(true),
        // sbfx, ubfx: the width is in bits 20 to 16.
        0b11010 | 0b11011 | 0b11110 | 0b11111 if kind & 3 == 2 => {
            (bits(word, 11, 7) + bits(word, 20, 16) < 32).then(one).flatten()
        }
        // bfc, bfi
        0b11100 | 0b11101 if kind & 3 == 0 && bits(word, 20, 16) >= bits(word, 11, 7) => {
            let found = op(Class::Compute, word).rw(d).without_pc([d])?;
            Some(if m == PC { found } else { found.r(m) })
        }
        0b11111 if kind == 7 => Some(op(Class::Udf, word)),
        _ => None,
    }
}

fn multiple(word: u32) -> Option<Op> {
    let (n, list) = (register(word, 16), word & 0xffff);
    let [before, up, user, back, load] = [24, 23, 22, 21, 20].map(|at| bit(word, at));
    if user || list == 0 || n == PC || load && back && list & 1 << n != 0 {
        return None;
    }
    let found = op(if load { Class::LoadMultiple } else { Class::StoreMultiple }, word).at(n);
    let found = if load { found.writes(list) } else { found.reads(list) };
    let bytes = 4 * list.count_ones() as i32;
    Op { before, ..found }.plus(if up { bytes } else { -bytes }).back(back)
}

fn unconditional(word: u32) -> Option<Op> {
    let n = register(word, 16);
    match bits(word, 27, 20) {
        0b0010_0000..=0b0011_1111 => Some(op(Class::Vector, word)),
        0b0101_0111 => match word {
            0xf57f_f01f => Some(op(Class::ClearExclusive, word)),
            0xf57f_f040..=0xf57f_f06f => Some(op(Class::Barrier, word)),
            _ => None,
        },
        // pli, pld, pldw of an immediate and of a register.
        kind if kind & 0xf7 == 0x45 || kind & 0xf3 == 0x51 => {
            let offset = bits(word, 11, 0) as i32;
            let found = op(Class::Preload, word).at(n).plus(if bit(word, 23) { offset } else { -offset });
            // pldw has no literal.
            let write = kind & 0xf3 == 0x51 && !bit(word, 22);
            (register(word, 12) == 15 && !(n == PC && write)).then_some(found)
        }
        kind if (kind & 0xf7 == 0x65 || kind & 0xf3 == 0x71) && !bit(word, 4) => {
            let m = register(word, 0);
            let found = op(Class::Preload, word).at(n).r(m).uses_carry(is_rrx(word)).without_pc([n, m]);
            found.filter(|_| register(word, 12) == 15)
        }
        kind if kind & 0xf1 == 0x40 => structures(op(Class::VectorLoad, word)),
        kind if kind >> 5 == 5 => {
            let offset = signed(word, 23, 0) << 2 | i64::from(bits(word, 24, 24)) << 1;
            Some(branch(op(Class::BranchExchange, word), offset))
        }
        kind if kind >> 6 == 3 => second(op(Class::Vector, word)),
        _ => None,
    }
}
