//! How a thread of the target asks the controller for something, and waits for the answer: once in
//! a while, as the target is about to become something else. Futexes in the shared region, so
//! nothing of the target is needed, and nobody waits for ever.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// One question at a time: who has `turn` may ask.
#[repr(C, align(8))]
pub struct Bell {
    /// 0: nobody asks; else the thread that does, in its own pid namespace.
    pub turn: AtomicU32,
    /// Grows with each question: what the controller waits on.
    pub rung: AtomicU32,
    /// The last question that was answered: what the target waits on.
    pub answered: AtomicU32,
    /// What is asked, a [`Question`].
    pub question: AtomicU32,
    /// Process of the thread, in its own pid namespace.
    pub pid: AtomicU32,
    /// 1: the controller listens.
    pub listens: AtomicU32,
    /// With [`Question::Exec`], the run-time address of the path.
    pub path: AtomicU64,
    /// Grows as long as the controller works on its answer, at least every [`BEAT`] nanoseconds. A
    /// thread waits as long as this goes on.
    pub working: AtomicU32,
    /// Zero.
    pub pad: u32,
}

/// The time between two steps of [`Bell::working`], in nanoseconds. Far less than the time after
/// which a controller counts as gone.
pub const BEAT: u64 = 200_000_000;

/// What a thread may ask for.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The process is about to execute another program: follow it there.
    Exec = 1,
    /// It did not come to that.
    NoExec = 2,
    /// The dynamic loader has mapped or unmapped something, of which nothing has run.
    Mapped = 3,
}
