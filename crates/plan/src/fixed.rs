//! Displacements of which some bytes cannot be chosen.

use std::fmt;

/// Which of the four bytes of a displacement, lowest first, are what they are.
///
/// A jump whose displacement overlaps the next instruction, or that has traps in it, cannot go to
/// any address: what it leads to is put where it goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Fixed(pub [Option<u8>; 4]);

impl Fixed {
    /// The displacements with these upper two bytes (as a signed number of 64 KiB), as a range of
    /// the lower two, inclusive, and the distance between two of them. `None`: the upper bytes are
    /// others.
    #[must_use]
    pub fn low(&self, high: i16) -> Option<(u16, u16, u16)> {
        let [b0, b1, b2, b3] = self.0;
        let [h2, h3] = high.to_le_bytes();
        if b2.is_some_and(|b| b != h2) || b3.is_some_and(|b| b != h3) {
            return None;
        }
        let word = |b0: u8, b1: u8| u16::from_le_bytes([b0, b1]);
        let step = match (b0, b1) {
            (Some(_), None) => 256,
            _ => 1,
        };
        Some((word(b0.unwrap_or(0), b1.unwrap_or(0)), word(b0.unwrap_or(0xff), b1.unwrap_or(0xff)), step))
    }

    /// The upper halves that are possible, those with the shortest distance first.
    pub fn highs(self) -> impl Iterator<Item = i16> {
        let near = (0..=i16::MAX).flat_map(|n| [n, -1 - n]);
        let exact = match self.0 {
            [_, _, Some(b2), Some(b3)] => Some(i16::from_le_bytes([b2, b3])),
            _ => None,
        };
        let all = if exact.is_some() { None } else { Some(near) };
        exact.into_iter().chain(all.into_iter().flatten()).filter(move |high| self.low(*high).is_some())
    }

    /// How many addresses it leaves.
    #[must_use]
    pub fn choices(&self) -> u64 {
        1 << (8 * self.0.iter().filter(|byte| byte.is_none()).count())
    }
}

impl fmt::Display for Fixed {
    /// As in memory: `?? ?? 48 89`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            match byte {
                Some(byte) => write!(f, "{space}{byte:02x}")?,
                None => write!(f, "{space}??")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displacements_are_found_from_their_fixed_bytes() {
        let pun = Fixed([None, None, None, Some(0x48)]);
        assert_eq!(pun.to_string(), "?? ?? ?? 48");
        assert_eq!((pun.highs().count(), pun.highs().next()), (256, Some(0x4800)));
        assert_eq!((pun.low(0x4812), pun.low(0x4712)), (Some((0, 0xffff, 1)), None));
        let guard = Fixed([Some(0xcc), None, None, None]);
        assert_eq!(guard.highs().take(3).collect::<Vec<_>>(), [0, -1, 1]);
        assert_eq!(guard.low(-1), Some((0xcc, 0xffcc, 256)));
        let exact = Fixed([Some(1), Some(2), Some(3), Some(0x84)]);
        assert_eq!(exact.highs().collect::<Vec<_>>(), [0x8403_u16 as i16]);
        assert_eq!((exact.low(0x8403_u16 as i16), exact.choices()), (Some((0x201, 0x201, 1)), 1));
        assert_eq!(Fixed([None, Some(2), None, None]).low(0), Some((0x200, 0x2ff, 1)));
    }
}
