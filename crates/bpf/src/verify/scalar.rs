//! What is known of a number: bits, and its range read as unsigned and signed, whole and lower
//! half.
//!
//! The same facts as the kernel keeps of a scalar (`Documentation/bpf/verifier.rst`, "Register
//! value tracking"). Each fact is sound alone; [`Scalar::settle`] lets each sharpen the others.

use std::fmt;

use super::tnum::Tnum;
use crate::insn::{Cond, Width};

/// All numbers from `min` to `max`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span<T> {
    pub min: T,
    pub max: T,
}

impl<T: Ord + Copy> Span<T> {
    pub fn new(min: T, max: T) -> Span<T> {
        Span { min, max }
    }

    fn intersect(self, other: Span<T>) -> Span<T> {
        Span { min: self.min.max(other.min), max: self.max.min(other.max) }
    }

    fn union(self, other: Span<T>) -> Span<T> {
        Span { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    fn is_empty(self) -> bool {
        self.min > self.max
    }

    pub fn contains(self, other: Span<T>) -> bool {
        self.min <= other.min && other.max <= self.max
    }
}

/// A set of numbers of 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scalar {
    pub bits: Tnum,
    pub u: Span<u64>,
    pub s: Span<i64>,
    /// Of the lower half.
    pub u32: Span<u32>,
    /// Of the lower half.
    pub s32: Span<i32>,
}

impl Scalar {
    pub const UNKNOWN: Scalar = Scalar {
        bits: Tnum::UNKNOWN,
        u: Span { min: 0, max: u64::MAX },
        s: Span { min: i64::MIN, max: i64::MAX },
        u32: Span { min: 0, max: u32::MAX },
        s32: Span { min: i32::MIN, max: i32::MAX },
    };

    pub fn constant(value: u64) -> Scalar {
        Scalar {
            bits: Tnum::constant(value),
            u: Span::new(value, value),
            s: Span::new(value as i64, value as i64),
            u32: Span::new(value as u32, value as u32),
            s32: Span::new(value as i32, value as i32),
        }
    }

    /// From `min` to `max`, unsigned.
    pub fn unsigned(min: u64, max: u64) -> Scalar {
        Scalar { u: Span::new(min, max), ..Self::UNKNOWN }.settled()
    }

    /// From `min` to `max`, signed.
    pub fn signed(min: i64, max: i64) -> Scalar {
        Scalar { s: Span::new(min, max), ..Self::UNKNOWN }.settled()
    }

    /// These bits.
    pub fn of_bits(bits: Tnum) -> Scalar {
        Scalar { bits, ..Self::UNKNOWN }.settled()
    }

    /// The only number it can be.
    pub fn as_constant(&self) -> Option<u64> {
        self.bits.is_constant().then_some(self.bits.value)
    }

    /// Whether all numbers of `other` are in this set, by every fact.
    pub fn contains(&self, other: &Scalar) -> bool {
        self.bits.contains(other.bits)
            && self.u.contains(other.u)
            && self.s.contains(other.s)
            && self.u32.contains(other.u32)
            && self.s32.contains(other.s32)
    }

    /// Numbers in both sets; `None` if there are none.
    pub fn intersect(&self, other: &Scalar) -> Option<Scalar> {
        Scalar {
            bits: self.bits.intersect(other.bits)?,
            u: self.u.intersect(other.u),
            s: self.s.intersect(other.s),
            u32: self.u32.intersect(other.u32),
            s32: self.s32.intersect(other.s32),
        }
        .settle()
    }

    /// What is true of the numbers of both sets.
    pub fn union(&self, other: &Scalar) -> Scalar {
        Scalar {
            bits: self.bits.union(other.bits),
            u: self.u.union(other.u),
            s: self.s.union(other.s),
            u32: self.u32.union(other.u32),
            s32: self.s32.union(other.s32),
        }
    }

    /// Sharpens each fact by the others; `None` if they contradict one another: there is no such
    /// number.
    pub fn settle(self) -> Option<Scalar> {
        let mut now = self;
        // Facts go around a short circle: two rounds find what there is, a third only costs.
        for _ in 0..2 {
            let next = now.spans_from_bits().halves_and_wholes().signs();
            if next.u.is_empty() || next.s.is_empty() || next.u32.is_empty() || next.s32.is_empty() {
                return None;
            }
            let bits = next.bits.intersect(Tnum::range(next.u.min, next.u.max))?;
            let low = bits.truncate(32).intersect(Tnum::range(next.u32.min.into(), next.u32.max.into()))?;
            let high = Tnum { value: bits.value & !u64::from(u32::MAX), mask: bits.mask & !u64::from(u32::MAX) };
            now = Scalar { bits: high.or(low), ..next };
        }
        Some(now)
    }

    /// For facts that describe at least one number.
    pub fn settled(self) -> Scalar {
        self.settle().unwrap_or(Self::UNKNOWN)
    }

    fn spans_from_bits(mut self) -> Scalar {
        let Tnum { value, mask } = self.bits;
        self.u = self.u.intersect(Span::new(value, value | mask));
        let sign = i64::MIN as u64;
        self.s = self.s.intersect(Span::new((value | mask & sign) as i64, (value | mask & !sign) as i64));
        let (value, mask, sign) = (value as u32, mask as u32, i32::MIN as u32);
        self.u32 = self.u32.intersect(Span::new(value, value | mask));
        self.s32 = self.s32.intersect(Span::new((value | mask & sign) as i32, (value | mask & !sign) as i32));
        self
    }

    /// Where signed and unsigned reading agree on the order, one gives the other.
    fn signs(mut self) -> Scalar {
        if (self.s.min < 0) == (self.s.max < 0) {
            self.u = self.u.intersect(Span::new(self.s.min as u64, self.s.max as u64));
        }
        if (self.u.min as i64) <= (self.u.max as i64) {
            self.s = self.s.intersect(Span::new(self.u.min as i64, self.u.max as i64));
        }
        if (self.s32.min < 0) == (self.s32.max < 0) {
            self.u32 = self.u32.intersect(Span::new(self.s32.min as u32, self.s32.max as u32));
        }
        if (self.u32.min as i32) <= (self.u32.max as i32) {
            self.s32 = self.s32.intersect(Span::new(self.u32.min as i32, self.u32.max as i32));
        }
        self
    }

    fn halves_and_wholes(mut self) -> Scalar {
        // The same upper half throughout: the lower halves are in order.
        if self.u.min >> 32 == self.u.max >> 32 {
            self.u32 = self.u32.intersect(Span::new(self.u.min as u32, self.u.max as u32));
        }
        if self.s.min >> 32 == self.s.max >> 32 {
            self.u32 = self.u32.intersect(Span::new(self.s.min as u32, self.s.max as u32));
        }
        if let (Ok(min), Ok(max)) = (i32::try_from(self.s.min), i32::try_from(self.s.max)) {
            // The number is its lower half, sign-extended.
            self.s32 = self.s32.intersect(Span::new(min, max));
            self.s = self.s.intersect(Span::new(self.s32.min.into(), self.s32.max.into()));
        }
        // The upper half is at least that of the least number, the lower half at least the least
        // lower half.
        let join = |high: u64, low: u32| high & !u64::from(u32::MAX) | u64::from(low);
        self.u = self.u.intersect(Span::new(join(self.u.min, self.u32.min), join(self.u.max, self.u32.max)));
        let (min, max) = (join(self.s.min as u64, self.u32.min), join(self.s.max as u64, self.u32.max));
        self.s = self.s.intersect(Span::new(min as i64, max as i64));
        self
    }

    /// The lower half, zero-extended.
    pub fn low(&self) -> Scalar {
        Scalar {
            bits: self.bits.truncate(32),
            u: Span::new(self.u32.min.into(), self.u32.max.into()),
            s: Span::new(self.u32.min.into(), self.u32.max.into()),
            u32: self.u32,
            s32: self.s32,
        }
        .settled()
    }

    /// The lower half, sign-extended.
    pub fn low_signed(&self) -> Scalar {
        Scalar {
            bits: self.bits.sign_extend(32),
            s: Span::new(self.s32.min.into(), self.s32.max.into()),
            u32: self.u32,
            s32: self.s32,
            ..Self::UNKNOWN
        }
        .settled()
    }

    /// With this lower half; the upper half stays.
    pub fn with_low(&self, low: &Scalar) -> Option<Scalar> {
        let low_bits = low.bits.truncate(32);
        let bits = Tnum { mask: low_bits.mask | !u64::from(u32::MAX), ..low_bits };
        self.intersect(&Scalar { bits, u32: low.u32, s32: low.s32, ..Self::UNKNOWN })
    }

    /// The lower `bits` bits, zero-extended.
    pub fn truncate(&self, bits: u32) -> Scalar {
        match bits {
            64 => *self,
            32 => self.low(),
            _ if self.u.max < 1 << bits => *self,
            _ => Self::of_bits(self.bits.truncate(bits)),
        }
    }

    /// The lower `bits` bits, sign-extended.
    pub fn sign_extend(&self, bits: u32) -> Scalar {
        if bits >= 64 {
            return *self;
        }
        if bits == 32 {
            return self.low_signed();
        }
        let limit = 1i64 << (bits - 1);
        if self.s.min >= -limit && self.s.max < limit {
            return *self;
        }
        Scalar { bits: self.bits.sign_extend(bits), s: Span::new(-limit, limit - 1), ..Self::UNKNOWN }.settled()
    }
}

/// What is known of both operands where `left cond right` holds; `None` if it cannot.
pub(crate) fn assume(width: Width, cond: Cond, left: &Scalar, right: &Scalar) -> Option<(Scalar, Scalar)> {
    if width == Width::W64 {
        return assume_whole(cond, left, right);
    }
    // Signed conditions on halves are conditions on sign-extended halves.
    let extend = if is_signed(cond) { Scalar::low_signed } else { Scalar::low };
    let (low_left, low_right) = assume_whole(cond, &extend(left), &extend(right))?;
    Some((left.with_low(&low_left)?, right.with_low(&low_right)?))
}

fn is_signed(cond: Cond) -> bool {
    matches!(cond, Cond::Sgt | Cond::Sge | Cond::Slt | Cond::Sle)
}

fn assume_whole(cond: Cond, left: &Scalar, right: &Scalar) -> Option<(Scalar, Scalar)> {
    let (mut a, mut b) = (*left, *right);
    match cond {
        Cond::Eq => {
            let both = a.intersect(&b)?;
            return Some((both, both));
        }
        Cond::Ne => {
            (a, b) = (without(&a, &b)?, without(&b, &a)?);
        }
        Cond::Gt => {
            a.u.min = a.u.min.max(b.u.min.checked_add(1)?);
            b.u.max = b.u.max.min(a.u.max.checked_sub(1)?);
        }
        Cond::Ge => {
            a.u.min = a.u.min.max(b.u.min);
            b.u.max = b.u.max.min(a.u.max);
        }
        Cond::Sgt => {
            a.s.min = a.s.min.max(b.s.min.checked_add(1)?);
            b.s.max = b.s.max.min(a.s.max.checked_sub(1)?);
        }
        Cond::Sge => {
            a.s.min = a.s.min.max(b.s.min);
            b.s.max = b.s.max.min(a.s.max);
        }
        Cond::Lt | Cond::Le | Cond::Slt | Cond::Sle => {
            let (b, a) = assume_whole(mirrored(cond), right, left)?;
            return Some((a, b));
        }
        Cond::Set => {
            if a.bits.and(b.bits).max() == 0 {
                return None;
            }
            for (this, other) in [(&mut a, right), (&mut b, left)] {
                // One bit is asked for: it is set.
                if let Some(bit) = other.as_constant().filter(|c| c.is_power_of_two()) {
                    this.bits = this.bits.intersect(Tnum { value: bit, mask: !bit })?;
                }
            }
        }
    }
    Some((a.settle()?, b.settle()?))
}

/// The same condition with exchanged operands.
pub(crate) fn mirrored(cond: Cond) -> Cond {
    match cond {
        Cond::Gt => Cond::Lt,
        Cond::Ge => Cond::Le,
        Cond::Lt => Cond::Gt,
        Cond::Le => Cond::Ge,
        Cond::Sgt => Cond::Slt,
        Cond::Sge => Cond::Sle,
        Cond::Slt => Cond::Sgt,
        Cond::Sle => Cond::Sge,
        Cond::Eq | Cond::Ne | Cond::Set => cond,
    }
}

/// What is known of both operands where `left cond right` does not hold; `None` if it must.
pub(crate) fn assume_not(width: Width, cond: Cond, left: &Scalar, right: &Scalar) -> Option<(Scalar, Scalar)> {
    let opposite = match cond {
        Cond::Eq => Cond::Ne,
        Cond::Ne => Cond::Eq,
        Cond::Gt => Cond::Le,
        Cond::Ge => Cond::Lt,
        Cond::Lt => Cond::Ge,
        Cond::Le => Cond::Gt,
        Cond::Sgt => Cond::Sle,
        Cond::Sge => Cond::Slt,
        Cond::Slt => Cond::Sge,
        Cond::Sle => Cond::Sgt,
        Cond::Set => return assume_no_common_bit(width, left, right),
    };
    assume(width, opposite, left, right)
}

fn assume_no_common_bit(width: Width, left: &Scalar, right: &Scalar) -> Option<(Scalar, Scalar)> {
    let bits = |s: &Scalar| s.bits.truncate(width.bits());
    let clear = |this: &Scalar, other: &Scalar| {
        let ones = bits(other).value;
        Scalar { bits: this.bits.intersect(Tnum { value: 0, mask: !ones })?, ..*this }.settle()
    };
    Some((clear(left, right)?, clear(right, left)?))
}

/// `set` without the number that `other` is, if that is at an end of a range; `None` if nothing is
/// left.
fn without(set: &Scalar, other: &Scalar) -> Option<Scalar> {
    let Some(value) = other.as_constant() else { return Some(*set) };
    let mut rest = *set;
    if rest.u.min == value {
        rest.u.min = value.checked_add(1)?;
    }
    if rest.u.max == value {
        rest.u.max = value.checked_sub(1)?;
    }
    let value = value as i64;
    if rest.s.min == value {
        rest.s.min = value.checked_add(1)?;
    }
    if rest.s.max == value {
        rest.s.max = value.checked_sub(1)?;
    }
    rest.settle()
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(value) = self.as_constant() {
            return write!(f, "{}", value as i64);
        }
        if *self == Self::UNKNOWN {
            return write!(f, "any number");
        }
        if self.s.min < 0 {
            return write!(f, "{} to {}", Bound(self.s.min), Bound(self.s.max));
        }
        write!(f, "{} to {}", self.u.min, self.u.max)
    }
}

/// The ends of the type are no information.
struct Bound(i64);

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            i64::MIN => f.write_str("-2^63"),
            i64::MAX => f.write_str("2^63-1"),
            value => write!(f, "{value}"),
        }
    }
}

#[cfg(test)]
mod tests;
