//! What ends loops that last too long: the helper `loop` asks before each round.

/// A flag of the helper `loop` that is ours: the number of rounds may be larger than the kernel's
/// limit (`BPF_MAX_LOOPS`), for time is what limits them.
pub const ANY_NUMBER: u64 = 1 << 30;

/// How long a loop may last, in nanoseconds.
pub const LONGEST: u64 = 5_000_000_000;

/// Rounds since the last look at the clock that took less are quick, in nanoseconds.
const QUICK: u64 = 1_000_000;
/// Quick rounds from one look at the clock to the next at most.
const MOST: u64 = 1024;

/// Looks at the clock seldom while rounds are quick, and at each round when they are not: a loop
/// inside another one lasts as long as it may in each round of that.
pub struct Watchdog {
    next: u64,
    step: u64,
    before: u64,
}

impl Watchdog {
    /// For a loop that begins.
    #[must_use]
    pub fn new() -> Watchdog {
        Watchdog { next: 1, step: 1, before: 0 }
    }

    /// Whether the loop ends before this round. `elapsed`: nanoseconds since it began.
    ///
    /// ```
    /// use sidestep_wire::watchdog::{LONGEST, Watchdog};
    /// let mut watchdog = Watchdog::new();
    /// assert!((0..100_000).all(|round| !watchdog.ends(round, || round)));
    /// assert!((100_000..102_000).any(|round| watchdog.ends(round, || LONGEST + 1)));
    /// ```
    #[inline]
    pub fn ends(&mut self, round: u64, elapsed: impl FnOnce() -> u64) -> bool {
        if round < self.next {
            return false;
        }
        let elapsed = elapsed();
        self.step = if elapsed.wrapping_sub(self.before) < QUICK { (2 * self.step).min(MOST) } else { 1 };
        (self.next, self.before) = (round + self.step, elapsed);
        elapsed > LONGEST
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Watchdog::new()
    }
}
