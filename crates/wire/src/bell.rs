//! How a thread of the target asks the controller for something, and waits for the answer: once in
//! a while, as the target is about to become something else. Futexes in the shared region, so
//! nothing of the target is needed, and nobody waits for ever.
//!
//! All processes of a session can write to the [`Bell`]. So it says only that a process asks. What
//! is asked, and the answer, are in private memory of that process ([`Asked`]).

use core::sync::atomic::{AtomicU32, AtomicU64};

/// One process at a time: the thread that has `turn` may ask.
#[repr(C, align(8))]
pub struct Bell {
    /// 0: nobody asks; else the thread that does, in its own pid namespace.
    pub turn: AtomicU32,
    /// Grows with each ring: what the controller waits on.
    pub rung: AtomicU32,
    /// The last ring that the controller has dealt with: what the target waits on.
    pub heard: AtomicU32,
    /// Process of the thread, in its own pid namespace.
    pub pid: AtomicU32,
    /// 1: the controller listens.
    pub listens: AtomicU32,
    /// Grows as long as the controller works on its answer, at least every [`BEAT`] nanoseconds. A
    /// thread waits as long as this goes on, but at most for [`PATIENCE`].
    pub working: AtomicU32,
}

/// What a thread of this process has asked last, in the private region.
#[repr(C, align(8))]
#[derive(Default, Debug)]
pub struct Asked {
    /// Grows with each question.
    pub number: AtomicU32,
    /// The last question that the controller has answered.
    pub answered: AtomicU32,
    /// What is asked, a [`Question`].
    pub question: AtomicU32,
    /// The thread, in its own pid namespace.
    pub tid: AtomicU32,
    /// Its process, in that namespace: one that only borrows this memory (`vfork`) asks here, too.
    pub pid: AtomicU32,
    /// 1: the controller has heard this process and not answered, so it is not asked again. It
    /// cannot read the memory of this process.
    pub given_up: AtomicU32,
    /// With [`Question::Exec`], the run-time address of the path.
    pub path: AtomicU64,
}

/// The time between two steps of [`Bell::working`], in nanoseconds. Far less than the time after
/// which a controller counts as gone.
pub const BEAT: u64 = 200_000_000;

/// How long a thread waits at most for its turn and its answer, in nanoseconds: two minutes. To
/// analyse a large library takes seconds.
pub const PATIENCE: u64 = 120_000_000_000;

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
