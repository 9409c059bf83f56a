//! What ends loops of scripts that last too long: the helper `loop` asks before each round.

/// A flag of the helper `loop` that is ours: time limits the loop, not the number of rounds
/// (`BPF_MAX_LOOPS`).
pub const ANY_NUMBER: u64 = 1 << 30;

/// How long a loop may last, in nanoseconds.
pub const LONGEST: u64 = 5_000_000_000;

/// Rounds from one look at the clock to the next. Loops with fewer rounds never look.
const STEP: u64 = 64;

/// Looks at the clock now and then. A loop inside another one that lasts too long ends both.
pub struct Watchdog {
    next: u64,
    began: u64,
}

impl Watchdog {
    /// For a loop that begins.
    #[must_use]
    pub fn new() -> Watchdog {
        Watchdog { next: STEP, began: u64::MAX }
    }

    /// Whether the loop ends before this round. `now`: nanoseconds of any clock. Where that stands
    /// still, or goes back, the loop does not end.
    ///
    /// ```
    /// use sidestep_wire::watchdog::{LONGEST, Watchdog};
    /// let mut watchdog = Watchdog::new();
    /// assert!((0..1000).all(|round| !watchdog.ends(round, || 7 + round)));
    /// assert!((1000..1100).any(|round| watchdog.ends(round, || 7 + LONGEST + 1000)));
    /// assert!((0..10_000).all(|round| !Watchdog::new().ends(round, || LONGEST * round)));
    /// ```
    #[inline]
    pub fn ends(&mut self, round: u64, now: impl FnOnce() -> u64) -> bool {
        if round < self.next {
            return false;
        }
        self.next = round + STEP;
        let now = now();
        self.began = self.began.min(now);
        now - self.began > LONGEST
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Watchdog::new()
    }
}
