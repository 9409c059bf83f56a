//! Classes of loads and stores (section C4.1.96).

use super::Class;
use crate::a64::bits;

pub(super) fn classify(word: u32) -> Option<Class> {
    let vector = bits(word, 26, 26) == 1;
    match (bits(word, 29, 28), bits(word, 25, 24), vector) {
        (0b00, 0b00, false) => exclusive(word),
        (0b00, 0b00, true) => structures(word),
        (0b00, 0b01, true) => structure(word),
        (0b01, 0b00, _) => literal(word, vector),
        (0b01, 0b01, _) => ordered_tags_copies(word, vector),
        (0b10, _, _) => pair(word, vector),
        (0b11, 0b00, _) => register(word, vector),
        (0b11, 0b01, _) => single(word, vector, true),
        _ => None,
    }
}

fn exclusive(word: u32) -> Option<Class> {
    let (size, load) = (bits(word, 31, 30), bits(word, 22, 22) == 1);
    let (status, second, to) = (bits(word, 20, 16), bits(word, 14, 10), bits(word, 4, 0));
    match (bits(word, 23, 23), bits(word, 21, 21)) {
        (0, 0) => Some(if load { Class::LoadExclusive } else { Class::StoreExclusive }),
        (0, _) if size >= 2 => Some(if load { Class::LoadExclusivePair } else { Class::StoreExclusivePair }),
        (0, _) => (second == 31 && status & 1 == 0 && to & 1 == 0).then_some(Class::CompareSwapPair),
        (_, 0) => Some(if load { Class::LoadAcquire } else { Class::StoreRelease }),
        _ => (second == 31).then_some(Class::CompareSwap),
    }
}

/// Whole structures: `ld1` to `ld4` of several registers.
fn structures(word: u32) -> Option<Class> {
    let post = bits(word, 23, 23) == 1;
    let (opcode, size, q) = (bits(word, 15, 12), bits(word, 11, 10), bits(word, 30, 30));
    // Those of one register each, which have a form for 64 bits.
    let apart = matches!(opcode, 0b0010 | 0b0110 | 0b0111 | 0b1010);
    let is_known = apart || matches!(opcode, 0b0000 | 0b0100 | 0b1000) && (size != 3 || q == 1);
    let zeros = bits(word, 21, 21) == 0 && (post || bits(word, 20, 16) == 0);
    (word >> 31 == 0 && is_known && zeros).then_some(Class::Structures)
}

/// One element of each register, or one element for all.
fn structure(word: u32) -> Option<Class> {
    let post = bits(word, 23, 23) == 1;
    let load = bits(word, 22, 22) == 1;
    let (s, size) = (bits(word, 12, 12), bits(word, 11, 10));
    // ldap1, stl1
    if word & 0xbfbf_fc00 == 0x0d01_8400 {
        return Some(Class::StructureOrdered);
    }
    let is_known = match bits(word, 15, 13) {
        0b000 | 0b001 => true,
        0b010 | 0b011 => size & 1 == 0,
        0b100 | 0b101 => size == 0 || size == 1 && s == 0,
        _ => load && s == 0,
    };
    (word >> 31 == 0 && is_known && (post || bits(word, 20, 16) == 0)).then_some(Class::Structures)
}

fn literal(word: u32, vector: bool) -> Option<Class> {
    match (bits(word, 31, 30), vector) {
        (0..=2, false) => Some(Class::LoadLiteral),
        (0..=2, true) => Some(Class::LoadLiteralVector),
        (_, false) => Some(Class::PrefetchLiteral),
        (_, true) => None,
    }
}

/// What the Arm Architecture Reference Manual calls "LDAPR/STLR (unscaled immediate)", "Load/store
/// memory tags", "Memory Copy and Memory Set", and the pairs of `FEAT_LRCPC3` and `FEAT_LSE128`.
fn ordered_tags_copies(word: u32, vector: bool) -> Option<Class> {
    let (size, opc, form) = (bits(word, 31, 30), bits(word, 23, 22), bits(word, 11, 10));
    let (middle, from, to) = (bits(word, 20, 16), bits(word, 9, 5), bits(word, 4, 0));
    let low = bits(word, 21, 21) == 0;
    match (low, form, vector) {
        (true, 0b00, false) => {
            let is_known = match size {
                0 | 1 => true,
                2 => opc < 3,
                _ => opc < 2,
            };
            is_known.then_some(Class::Single)
        }
        (true, 0b10, true) => (opc < 2 || size == 0).then_some(Class::SingleVector),
        (true, 0b10, false) if size >= 2 => match opc {
            0b00 | 0b01 => (bits(word, 15, 13) == 0).then_some(Class::OrderedPair),
            _ => (middle == 0 && bits(word, 15, 12) == 0).then_some(Class::OrderedWriteBack),
        },
        (true, 0b01, _) => {
            // Equal registers, and 31 for an address or a number of bytes, have no defined effect.
            let sets = opc == 3;
            let distinct = from != to && middle != from && middle != to && from != 31 && to != 31;
            let source = sets || middle != 31;
            let stage = !sets || bits(word, 15, 14) != 3;
            (size == 0 && stage && distinct && source).then_some(Class::MemoryCopy)
        }
        (false, _, false) if size == 3 => match (opc, form) {
            (0b01, 0b00) => Some(Class::LoadTag),
            (_, 0b00) => (bits(word, 20, 12) == 0).then_some(Class::TagBlock),
            _ => Some(Class::StoreTag),
        },
        (false, 0b00, false) if size == 0 => {
            let is_known = matches!(bits(word, 15, 12), 0b0001 | 0b0011 | 0b1000);
            (is_known && middle != 31 && to != 31).then_some(Class::AtomicPair)
        }
        _ => None,
    }
}

fn pair(word: u32, vector: bool) -> Option<Class> {
    let load = bits(word, 22, 22) == 1;
    let keeps_cache = bits(word, 25, 23) == 0;
    if bits(word, 25, 25) == 1 {
        return None;
    }
    match (bits(word, 31, 30), vector) {
        (0b11, _) => None,
        (_, true) => Some(Class::PairVector),
        (0b01, _) if keeps_cache => None,
        (0b01, _) if !load => Some(Class::PairTag),
        _ => Some(Class::Pair),
    }
}

/// Forms with a small offset, a register as offset, and atomics.
fn register(word: u32, vector: bool) -> Option<Class> {
    let high = bits(word, 21, 21) == 1;
    match (high, bits(word, 11, 10)) {
        (false, 0b00) => single(word, vector, true),
        // Unprivileged.
        (false, 0b10) => (!vector).then(|| single(word, vector, false)).flatten(),
        (false, _) => single(word, vector, false),
        // An extended register of 32 or 64 bits.
        (true, 0b10) => (bits(word, 14, 14) == 1).then(|| single(word, vector, true)).flatten(),
        (true, 0b00) => (!vector).then(|| atomic(word)).flatten(),
        _ => (!vector && bits(word, 31, 30) == 3).then_some(Class::LoadAuthenticated),
    }
}

/// One register. `prefetches`: a prefetch has this form, too.
fn single(word: u32, vector: bool, prefetches: bool) -> Option<Class> {
    let (size, opc) = (bits(word, 31, 30), bits(word, 23, 22));
    match (vector, size, opc) {
        (true, _, 0 | 1) | (true, 0, _) => Some(Class::SingleVector),
        (true, ..) => None,
        (false, 3, 2) => prefetches.then_some(Class::Prefetch),
        (false, 2 | 3, 3) => None,
        (false, ..) => Some(Class::Single),
    }
}

fn atomic(word: u32) -> Option<Class> {
    let (size, order) = (bits(word, 31, 30), bits(word, 23, 22));
    let source = bits(word, 20, 16);
    match bits(word, 15, 12) {
        0b0000..=0b1000 => Some(Class::Atomic),
        0b1100 => (order == 0b10 && source == 31).then_some(Class::LoadAcquire),
        // Eight registers, the first one even.
        opcode @ (0b1001 | 0b1010 | 0b1011 | 0b1101) => {
            let to = bits(word, 4, 0);
            let fits = size == 3 && order == 0 && to & 1 == 0 && to <= 22;
            match opcode {
                0b1001 => (fits && source == 31).then_some(Class::Store64Bytes),
                0b1101 => (fits && source == 31).then_some(Class::Load64Bytes),
                _ => fits.then_some(Class::Store64Bytes),
            }
        }
        _ => None,
    }
}
