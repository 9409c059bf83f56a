//! Where instructions start in a stretch of code: a bit per byte.

use std::ops::Range;

/// Offsets at which an instruction starts.
#[derive(Clone, Default, Debug)]
pub(crate) struct Boundaries {
    words: Vec<u64>,
}

impl Boundaries {
    /// None yet, with room for `len` bytes of code.
    pub fn new(len: usize) -> Boundaries {
        Boundaries { words: vec![0; len.div_ceil(64)] }
    }

    /// Notes one. Those behind the room are left out.
    pub fn set(&mut self, offset: usize) {
        if let Some(word) = self.words.get_mut(offset / 64) {
            *word |= 1 << (offset % 64);
        }
    }

    /// Takes one back.
    pub fn clear(&mut self, offset: usize) {
        if let Some(word) = self.words.get_mut(offset / 64) {
            *word &= !(1 << (offset % 64));
        }
    }

    /// Whether an instruction starts here.
    pub fn get(&self, offset: usize) -> bool {
        self.words.get(offset / 64).is_some_and(|word| word >> (offset % 64) & 1 == 1)
    }

    /// The nearest one before `offset`, which lies in the room.
    pub fn before(&self, offset: usize) -> Option<usize> {
        (0..offset).rev().find(|at| self.get(*at))
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.within(0..self.words.len() * 64)
    }

    /// Those in a range of offsets, ascending. The time depends on the range, not on the room.
    pub fn within(&self, range: Range<usize>) -> impl Iterator<Item = usize> {
        let first = (range.start / 64).min(self.words.len());
        let last = range.end.div_ceil(64).clamp(first, self.words.len());
        let words = self.words[first..last].iter().enumerate();
        let bits = words.flat_map(move |(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some((first + at) * 64 + bit)
            })
        });
        bits.filter(move |at| range.contains(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_found_again() {
        let all = [0, 1, 5, 63, 64, 127, 128, 199];
        let mut boundaries = Boundaries::new(200);
        all.iter().for_each(|at| boundaries.set(*at));
        assert_eq!(boundaries.iter().collect::<Vec<_>>(), all);
        for range in [0..0, 0..1, 1..64, 5..128, 63..65, 64..64, 127..200, 128..1000, 900..1000] {
            let expected: Vec<usize> = all.into_iter().filter(|at| range.contains(at)).collect();
            assert_eq!(boundaries.within(range.clone()).collect::<Vec<_>>(), expected, "{range:?}");
        }
        for at in 0..200 {
            assert_eq!(boundaries.get(at), all.contains(&at));
            assert_eq!(boundaries.before(at), all.iter().copied().filter(|b| *b < at).max(), "{at}");
        }
        boundaries.set(1000);
        assert!(!boundaries.get(1000));
        boundaries.clear(64);
        assert_eq!((boundaries.get(63), boundaries.get(64)), (true, false));
    }
}
