//! Numbers that are the same in each run of a test.
#![allow(dead_code)] // each test binary uses its part

/// A generator of numbers (xorshift64*), from a start that is not 0.
pub struct Rng(pub u64);

impl Rng {
    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A word.
    pub fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// Less than `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    /// True once in so many times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
