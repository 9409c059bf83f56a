//! Random programs, to compare what they compute with probes and without.
//!
//! A number makes a program: its source, its compiler and options are drawn from it, the same at
//! every run. Nothing here knows what Sidestep does with code. The oracles are the unprobed run,
//! for what the program prints, and callgrind, for how often each instruction runs.

mod alone;
mod compare;
mod expressions;
mod functions;
mod labels;
mod options;
mod source;

pub use alone::Result as Alone;
pub use compare::{Checked, Difference, check};
pub use options::Build;
pub use source::{Language, source};

/// Random numbers: SplitMix64 of Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of them.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}
