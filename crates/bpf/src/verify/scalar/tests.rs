//! No number is lost: sets around telling numbers, and all operations on them.

use super::*;

/// Numbers at which readings and halves change.
const TELLING: [u64; 24] = [
    0,
    1,
    2,
    7,
    63,
    64,
    255,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_fffe,
    0xffff_ffff,
    0x1_0000_0000,
    0x1_0000_0001,
    0x1_7fff_ffff,
    0x1_8000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x8000_0000_0000_0001,
    0xffff_ffff_0000_0000,
    0xffff_ffff_7fff_ffff,
    0xffff_ffff_8000_0000,
    0xffff_ffff_ffff_fffe,
    0xffff_ffff_ffff_ffff,
];

/// The smallest set of each kind of fact around two or three of the numbers.
fn sets() -> Vec<(Scalar, Vec<u64>)> {
    let mut sets = Vec::new();
    for (i, &a) in TELLING.iter().enumerate() {
        for (j, &b) in TELLING.iter().enumerate().skip(i) {
            let numbers = vec![a, b, TELLING[(i * 7 + j * 3) % TELLING.len()]];
            sets.push((around(&numbers), numbers));
        }
    }
    sets
}

fn around(numbers: &[u64]) -> Scalar {
    fn span<T: Ord + Copy>(numbers: &[u64], read: impl Fn(u64) -> T) -> Span<T> {
        let first = read(numbers[0]);
        let one = |s: Span<T>, n: &u64| Span::new(s.min.min(read(*n)), s.max.max(read(*n)));
        numbers.iter().fold(Span::new(first, first), one)
    }
    let (all, any) = numbers.iter().fold((u64::MAX, 0), |(all, any), n| (all & n, any | n));
    Scalar {
        bits: Tnum::new(all, all ^ any),
        u: span(numbers, |n| n),
        s: span(numbers, |n| n as i64),
        u32: span(numbers, |n| n as u32),
        s32: span(numbers, |n| n as i32),
    }
    .settle()
    .expect("there are such numbers")
}

fn has(set: &Scalar, number: u64) -> bool {
    set.contains(&Scalar::constant(number))
}

#[test]
fn settling_loses_no_number() {
    for (set, numbers) in sets() {
        assert!(numbers.iter().all(|n| has(&set, *n)), "{numbers:x?} not in {set:?}");
    }
}

#[test]
fn a_union_has_the_numbers_of_both_sets() {
    let sets = sets();
    for (a, in_a) in &sets {
        for (b, in_b) in &sets {
            let both = a.union(b);
            assert!(both.contains(a) && both.contains(b), "{a:?} and {b:?}");
            assert!(in_a.iter().chain(in_b).all(|n| has(&both, *n)), "{a:?} and {b:?}");
        }
    }
}

#[test]
fn parts_of_numbers_are_in_parts_of_sets() {
    for (set, numbers) in sets() {
        for &n in &numbers {
            assert!(has(&set.low(), n as u32 as u64) && has(&set.low_signed(), n as i32 as i64 as u64), "{n:x}");
            assert!(has(&set.truncate(8), n as u8 as u64) && has(&set.truncate(16), n as u16 as u64), "{n:x}");
            assert!(has(&set.sign_extend(8), n as i8 as i64 as u64), "{n:x} {set:?}");
            assert!(has(&set.sign_extend(16), n as i16 as i64 as u64), "{n:x} {set:?}");
        }
    }
}

#[test]
fn conditions_keep_the_numbers_that_fulfil_them() {
    use Cond::{Eq, Ge, Gt, Le, Lt, Ne, Set, Sge, Sgt, Sle, Slt};
    for width in [Width::W32, Width::W64] {
        for cond in [Eq, Ne, Gt, Ge, Lt, Le, Sgt, Sge, Slt, Sle, Set] {
            for (left, in_left) in sets().iter().step_by(3) {
                for (right, in_right) in sets().iter().step_by(7) {
                    let (holds, fails) = (assume(width, cond, left, right), assume_not(width, cond, left, right));
                    for (&a, &b) in in_left.iter().flat_map(|a| in_right.iter().map(move |b| (a, b))) {
                        let now = if crate::alu::holds(width, cond, a, b) { &holds } else { &fails };
                        let kept = now.as_ref().is_some_and(|(l, r)| has(l, a) && has(r, b));
                        assert!(kept, "{a:#x} {cond:?} {b:#x} ({width:?}): {left:?} {right:?} became {now:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn arithmetic_contains_every_result() {
    use crate::insn::AluOp::{Add, And, Arsh, Div, Lsh, Mod, Mov, Mul, Or, Rsh, Sdiv, Smod, Sub, Xor};
    use crate::verify::arith::alu;
    for width in [Width::W32, Width::W64] {
        for op in [Add, Sub, Mul, Div, Sdiv, Mod, Smod, And, Or, Xor, Lsh, Rsh, Arsh, Mov] {
            for (left, in_left) in sets().iter().step_by(3) {
                for (right, in_right) in sets().iter().step_by(7) {
                    let result = alu(width, op, left, right);
                    for (&a, &b) in in_left.iter().flat_map(|a| in_right.iter().map(move |b| (a, b))) {
                        let exact = crate::alu::alu(width, op, a, b);
                        assert!(has(&result, exact), "{a:#x} {op:?} {b:#x} = {exact:#x} ({width:?}) not in {result:?}");
                    }
                }
            }
        }
    }
}
