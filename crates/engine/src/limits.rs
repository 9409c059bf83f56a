//! Limits on what probes cost their target, and what a session says of these costs.

use std::ffi::OsString;

/// What is allowed.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// What becomes of probes that take much of the target's CPU time.
    pub overhead: Overhead,
    /// After so many hits a probe is disabled (`--max-hits`).
    pub max_hits: Option<u64>,
    /// Bytes that a session may map in each process (`--max-memory`).
    pub max_memory: Option<u64>,
    /// A command that calls [`crate::calibration_target`]: what a hit costs is measured there.
    pub calibration: Vec<OsString>,
}

impl Protection {
    /// Are hits that a filter rejects counted, too?
    pub(crate) fn counts_rejected(&self) -> bool {
        matches!(self.overhead, Overhead::Limited(_))
    }
}

/// What becomes of probes that take much of the target's CPU time. Shares: 1 is all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Overhead {
    /// Nobody looks.
    #[default]
    Ignored,
    /// One event says so, once all together take more than this share.
    Warned(f64),
    /// The hottest are disabled until the others take no more than this share.
    Limited(f64),
}

/// What a session has to say about the cost of its probes ([`crate::Session::take_events`]).
#[derive(Clone, Debug)]
pub enum Event {
    /// Probes were disabled together, as they are at the same function or the same place: their
    /// ids.
    Disabled(Vec<usize>, Disabled),
    /// Probes should have been disabled and could not be: their ids, and a clause that says why.
    Kept(Vec<usize>, Disabled, String),
    /// All probes together take this share of the target's CPU time, and the hottest, of this id,
    /// the second one.
    Costly {
        /// Of all probes.
        share: f64,
        /// The id of the hottest.
        hottest: usize,
        /// Its share.
        of_hottest: f64,
    },
    /// What a hit costs that takes a jump, in nanoseconds, by the number of a request, and how much
    /// more one that takes a trap.
    Measured(Vec<(usize, f64)>, f64),
    /// It is not known what a hit costs: a clause for the user.
    Unmeasured(String),
}

/// Why probes were disabled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Disabled {
    /// They took this share of the target's CPU time, and all together more than the limit.
    Overhead {
        /// Of the probes that were disabled together.
        share: f64,
        /// What was allowed for all.
        limit: f64,
    },
    /// One of them had so many hits.
    Hits {
        /// When they were counted; some may have come before it was disabled.
        hits: u64,
        /// What was allowed.
        limit: u64,
    },
}
