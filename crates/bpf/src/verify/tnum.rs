//! Bits of a number: each is 0, 1 or unknown.
//!
//! The domain is that of Vishwanathan, Shachnai, Narayana and Nagarakatte, "Sound, Precise, and
//! Fast Abstract Interpretation with Tristate Numbers", CGO 2022, which also proves what the kernel
//! does with it.

use std::fmt;

/// A set of numbers: those that agree with `value` in all bits outside `mask`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tnum {
    /// The known bits. 0 where `mask` is 1.
    pub value: u64,
    /// The unknown bits.
    pub mask: u64,
}

impl Tnum {
    pub const UNKNOWN: Tnum = Tnum { value: 0, mask: u64::MAX };

    pub fn new(value: u64, mask: u64) -> Tnum {
        Tnum { value: value & !mask, mask }
    }

    pub fn constant(value: u64) -> Tnum {
        Tnum { value, mask: 0 }
    }

    /// The smallest set with all numbers from `min` to `max`: they share what is above their first
    /// difference.
    pub fn range(min: u64, max: u64) -> Tnum {
        let mask = u64::MAX.checked_shr((min ^ max).leading_zeros()).unwrap_or(0);
        Tnum::new(min, mask)
    }

    pub fn is_constant(self) -> bool {
        self.mask == 0
    }

    /// The largest number of the set; the smallest is `value`.
    pub fn max(self) -> u64 {
        self.value | self.mask
    }

    /// The numbers in both; `None` if a bit is known to differ.
    pub fn intersect(self, other: Tnum) -> Option<Tnum> {
        if (self.value ^ other.value) & !self.mask & !other.mask != 0 {
            return None;
        }
        Some(Tnum::new(self.value | other.value, self.mask & other.mask))
    }

    /// The bits that are the same in all numbers of both.
    pub fn union(self, other: Tnum) -> Tnum {
        let mask = self.mask | other.mask | self.value ^ other.value;
        Tnum { value: self.value & !mask, mask }
    }

    /// Whether all numbers of `other` are in this set.
    pub fn contains(self, other: Tnum) -> bool {
        other.mask & !self.mask == 0 && (other.value ^ self.value) & !self.mask == 0
    }

    /// The lower `bits` bits, zero-extended.
    pub fn truncate(self, bits: u32) -> Tnum {
        let keep = u64::MAX >> (64 - bits);
        Tnum { value: self.value & keep, mask: self.mask & keep }
    }

    /// The lower `bits` bits, sign-extended: an unknown sign makes all above it unknown.
    pub fn sign_extend(self, bits: u32) -> Tnum {
        let up = 64 - bits;
        self.shl(up).sar(up)
    }

    /// A carry reaches a bit in some sums and not in others exactly where the smallest and the
    /// largest sum differ.
    pub fn add(self, other: Tnum) -> Tnum {
        let least = self.value.wrapping_add(other.value);
        let most = least.wrapping_add(self.mask).wrapping_add(other.mask);
        Tnum::new(least, (least ^ most) | self.mask | other.mask)
    }

    pub fn neg(self) -> Tnum {
        // -x = ~x + 1
        Tnum::new(!self.value, self.mask).add(Tnum::constant(1))
    }

    pub fn sub(self, other: Tnum) -> Tnum {
        self.add(other.neg())
    }

    pub fn and(self, other: Tnum) -> Tnum {
        let ones = self.value & other.value;
        Tnum::new(ones, self.max() & other.max() & !ones)
    }

    pub fn or(self, other: Tnum) -> Tnum {
        let ones = self.value | other.value;
        Tnum::new(ones, (self.mask | other.mask) & !ones)
    }

    pub fn xor(self, other: Tnum) -> Tnum {
        Tnum::new(self.value ^ other.value, self.mask | other.mask)
    }

    /// Schoolbook: the sum of `other` shifted by each bit of `self` that is or may be one.
    pub fn mul(self, other: Tnum) -> Tnum {
        if self.is_constant() && other.is_constant() {
            return Tnum::constant(self.value.wrapping_mul(other.value));
        }
        let mut sum = Tnum::constant(0);
        let mut bits = self.max();
        while bits != 0 {
            let at = bits.trailing_zeros();
            bits &= bits - 1;
            let term = other.shl(at);
            let known = self.value >> at & 1 == 1;
            sum = sum.add(if known { term } else { Tnum::new(0, term.max()) });
        }
        sum
    }

    /// By less than 64, as in the other shifts.
    pub fn shl(self, by: u32) -> Tnum {
        Tnum { value: self.value << by, mask: self.mask << by }
    }

    pub fn shr(self, by: u32) -> Tnum {
        Tnum { value: self.value >> by, mask: self.mask >> by }
    }

    pub fn sar(self, by: u32) -> Tnum {
        let (value, mask) = ((self.value as i64) >> by, (self.mask as i64) >> by);
        Tnum::new(value as u64, mask as u64)
    }

    /// Bytes in reverse order: of the lower 2, 4 or 8, zero-extended.
    pub fn swap(self, bits: u32) -> Tnum {
        Tnum { value: self.value.swap_bytes() >> (64 - bits), mask: self.mask.swap_bytes() >> (64 - bits) }
    }
}

impl fmt::Display for Tnum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} and any of the bits {:#x}", self.value, self.mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All sets over four bits, and all numbers in each.
    fn sets() -> Vec<(Tnum, Vec<u64>)> {
        let mut sets = Vec::new();
        for mask in 0..16u64 {
            for value in (0..16u64).filter(|v| v & mask == 0) {
                sets.push((Tnum { value, mask }, (0..16).filter(|n| n & !mask == value).collect()));
            }
        }
        sets
    }

    fn sound(name: &str, abstracted: fn(Tnum, Tnum) -> Tnum, concrete: fn(u64, u64) -> u64) {
        for (a, in_a) in sets() {
            for (b, in_b) in sets() {
                let result = abstracted(a, b);
                assert_eq!(result.value & result.mask, 0);
                for &x in &in_a {
                    for &y in &in_b {
                        let exact = concrete(x, y);
                        assert!(result.contains(Tnum::constant(exact)), "{x} {name} {y} = {exact:#x} not in {result}");
                    }
                }
            }
        }
    }

    #[test]
    fn operations_contain_every_result() {
        sound("+", Tnum::add, u64::wrapping_add);
        sound("-", Tnum::sub, u64::wrapping_sub);
        sound("*", Tnum::mul, u64::wrapping_mul);
        sound("&", Tnum::and, |x, y| x & y);
        sound("|", Tnum::or, |x, y| x | y);
        sound("^", Tnum::xor, |x, y| x ^ y);
        sound("sext", |a, _| a.sign_extend(4), |x, _| ((x << 60) as i64 >> 60) as u64);
        sound("bswap", |a, _| a.swap(32), |x, _| u64::from((x as u32).swap_bytes()));
    }

    #[test]
    fn add_and_bitwise_operations_are_the_best_possible() {
        // Each unknown bit of the result is 0 in one case and 1 in another.
        for (a, in_a) in sets() {
            for (b, in_b) in sets() {
                let sums: Vec<u64> = in_a.iter().flat_map(|x| in_b.iter().map(move |y| x + y)).collect();
                let (all, any) = sums.iter().fold((u64::MAX, 0), |(all, any), s| (all & s, any | s));
                assert_eq!(a.add(b), Tnum::new(all, all ^ any), "{a} + {b}");
            }
        }
    }

    #[test]
    fn a_range_has_its_ends_and_what_is_between() {
        for min in 0..40u64 {
            for max in min..40 {
                let set = Tnum::range(min, max);
                assert!((min..=max).all(|n| set.contains(Tnum::constant(n))), "{min}..{max}");
            }
        }
        assert_eq!(Tnum::range(7, 7), Tnum::constant(7));
        assert_eq!(Tnum::range(0, u64::MAX), Tnum::UNKNOWN);
    }

    #[test]
    fn intersection_is_exact() {
        for (a, in_a) in sets() {
            for (b, in_b) in sets() {
                let both: Vec<u64> = in_a.iter().copied().filter(|n| in_b.contains(n)).collect();
                match a.intersect(b) {
                    None => assert!(both.is_empty()),
                    Some(set) => {
                        assert!((0..16).all(|n| set.contains(Tnum::constant(n)) == both.contains(&n)), "{a} {b}")
                    }
                }
            }
        }
    }
}
