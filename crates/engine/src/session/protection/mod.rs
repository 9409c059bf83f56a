//! What keeps a target from harm by its own probes: limits on the CPU time that they take, on
//! their hits, and on memory. `docs/guide/limits.md` says what is promised.

pub(crate) mod calibration;
mod guard;

pub(crate) use guard::Guard;
