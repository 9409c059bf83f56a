//! How long a target is waited for, and the user who wants to wait no longer.
//!
//! Each wait for a target has a [`Limit`], as a thread may hang in the kernel, and a hostile target
//! does what it likes. After [`interrupt`], a wait ends when [`LEAST`] is over. A target that does
//! what it is told needs far less, so work that is under way is finished in order, and only a wait
//! that leads nowhere is cut short.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What a wait is given in any case.
pub const LEAST: Duration = Duration::from_millis(300);

/// How often the user has asked for the end.
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);
/// How many [`Ending`]s there are.
static ENDINGS: AtomicU32 = AtomicU32::new(0);

/// The user asks for the end. A signal handler may call this.
pub fn interrupt() {
    INTERRUPTS.fetch_add(1, Ordering::Relaxed);
}

/// How often the user has asked for the end.
#[must_use]
pub fn interrupts() -> u32 {
    INTERRUPTS.load(Ordering::Relaxed)
}

/// Are waits cut short? The first interrupt cuts those of an attach, the second one those of the
/// detach, too.
#[must_use]
pub fn is_hurried() -> bool {
    interrupts() > u32::from(ENDINGS.load(Ordering::Relaxed) > 0)
}

/// As long as this exists, a session is being ended, which is what the first interrupt asks for.
#[derive(Debug)]
pub struct Ending(());

impl Ending {
    /// From now on.
    #[must_use]
    pub fn begin() -> Ending {
        ENDINGS.fetch_add(1, Ordering::Relaxed);
        Ending(())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        ENDINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// When a wait is over.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    begin: Instant,
    /// `None`: when the user says so.
    most: Option<Duration>,
}

impl Limit {
    /// A wait that begins now, and is over after this time.
    #[must_use]
    pub fn after(most: Duration) -> Limit {
        Limit { begin: Instant::now(), most: Some(most) }
    }

    /// A wait that begins now, for what may take any time.
    #[must_use]
    pub fn none() -> Limit {
        Limit { begin: Instant::now(), most: None }
    }

    /// Is it over?
    #[must_use]
    pub fn is_over(&self) -> bool {
        let waited = self.waited();
        self.most.is_some_and(|most| waited >= most) || waited >= LEAST && is_hurried()
    }

    /// The time since the wait has begun.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.begin.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, as there is one count for the whole process.
    #[test]
    fn the_first_interrupt_cuts_an_attach_short_and_the_second_one_a_detach() {
        let long = Limit { begin: Instant::now() - LEAST, most: Some(Duration::from_secs(60)) };
        let any = Limit { begin: Instant::now() - LEAST, most: None };
        assert!(!long.is_over() && !any.is_over());
        assert!(Limit { most: Some(LEAST), ..long }.is_over());
        interrupt();
        assert!(long.is_over() && any.is_over());
        assert!(!Limit::after(Duration::from_secs(60)).is_over(), "each wait has its least time");
        let ending = Ending::begin();
        assert!(!long.is_over() && !any.is_over());
        interrupt();
        assert!(long.is_over() && any.is_over());
        drop(ending);
        INTERRUPTS.store(0, Ordering::Relaxed);
    }
}
