//! Coprocessors, floating point and Advanced SIMD (sections A6.18 and A7). A32 and T32 have the
//! same lower 28 bits.

use super::super::{PC, bit, bits, register};
use super::{ALL_FLAGS, Class, Op};

/// Words with a condition in A32, and with 14 in the upper bits in T32.
pub(super) fn coprocessor(op: Op) -> Option<Op> {
    let word = op.word;
    let (n, t) = (register(word, 16), register(word, 12));
    let load = bit(word, 20);
    match register(word, 8) {
        10 | 11 => return floating(op),
        14 | 15 => {}
        _ => return None,
    }
    let op = Op { class: Class::Coprocessor, ..op };
    if bits(word, 27, 24) == 14 {
        return match (bit(word, 4), load) {
            (true, true) if t == PC => Some(Op { flags_set: ALL_FLAGS, flags_killed: ALL_FLAGS, ..op }),
            (true, true) => Some(op.w(t)),
            (true, false) => op.r(t).without_pc([t]),
            _ => None,
        };
    }
    if bits(word, 27, 21) == 0b110_0010 {
        let op = if load { op.w(t).w(n) } else { op.r(t).r(n) };
        return op.without_pc([t, n]).filter(|_| !load || t != n);
    }
    // ldc and stc p14, c5: the register of the debugger. No program has them.
    None
}

fn floating(op: Op) -> Option<Op> {
    let word = op.word;
    let (n, t) = (register(word, 16), register(word, 12));
    let load = bit(word, 20);
    let moves = Op { class: Class::VectorMove, ..op };
    if bits(word, 27, 24) == 14 {
        if !bit(word, 4) {
            return Some(Op { class: Class::Vector, ..op });
        }
        let one = || if load { moves.w(t).without_pc([t]) } else { moves.r(t).without_pc([t]) };
        return match (bit(word, 8), bits(word, 23, 21)) {
            (false, 0) => one(),
            // vmrs of the flags
            (false, 7) if load && t == PC && n == 1 => {
                Some(Op { flags_set: ALL_FLAGS, flags_killed: ALL_FLAGS, ..moves })
            }
            (false, 7) => one(),
            (false, _) => None,
            (true, _) => one(),
        };
    }
    let [before, up, _, back, _] = [24, 23, 22, 21, 20].map(|at| bit(word, at));
    if bits(word, 27, 21) == 0b110_0010 {
        let fixed = bits(word, 7, 6) == 0 && bit(word, 4);
        let op = if load { moves.w(t).w(n) } else { moves.r(t).r(n) };
        return op.without_pc([t, n]).filter(|_| fixed && (!load || t != n));
    }
    let class = if load { Class::VectorLoad } else { Class::VectorStore };
    let op = Op { class, before, ..op }.at(n);
    let words = bits(word, 7, 0) as i32;
    let bytes = if up { 4 * words } else { -4 * words };
    // T32 stores nothing at the program counter.
    if n == PC && op.thumb && !load {
        return None;
    }
    match (before, up, back) {
        (true, _, false) => Some(op.plus(bytes)),
        (false, true, _) | (true, false, true) if words > 0 && !(op.thumb && n == PC) => op.plus(bytes).back(back),
        _ => None,
    }
}

/// Words without a condition in A32, and with 15 in the upper bits in T32: selections and
/// conversions of floating point.
pub(super) fn second(op: Op) -> Option<Op> {
    let word = op.word;
    let known = bits(word, 27, 24) == 14 && matches!(register(word, 8), 10 | 11) && !bit(word, 4);
    // vsel looks at the flags.
    let selects = !bit(word, 23);
    known.then_some(Op { class: Class::Vector, ..op }.uses_flags(if selects { ALL_FLAGS } else { 0 }))
}

/// `vld1` to `vst4`. Bits 23 to 0 are the same in T32.
pub(super) fn structures(op: Op) -> Option<Op> {
    let word = op.word;
    let (n, m) = (register(word, 16), register(word, 0));
    let load = bit(word, 21);
    let single = bit(word, 23);
    if !single && bits(word, 11, 8) > 10 || single && bits(word, 11, 10) == 3 && !load {
        return None;
    }
    let class = if load { Class::VectorLoad } else { Class::VectorStore };
    let op = Op { class, before: false, ..op }.at(n).without_pc([n])?;
    match m {
        15 => Some(Op { before: true, ..op }.plus(0)),
        13 => op.back(true),
        _ => op.r(m).back(true),
    }
}
