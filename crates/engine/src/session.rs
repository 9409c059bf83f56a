//! A session: one target, its probes, their results.

use std::path::PathBuf;

use sidestep_isa::Va;

use crate::api::{
    AttachStats, Counts, Distribution, Explained, Options, Pattern, Probe, Record, Refused, Request, Target,
    TargetState,
};

/// Why a session could not start, or not be ended cleanly. Each message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// To be replaced.
    #[error("not implemented")]
    NotImplemented,
}

/// How far a start has come, for a progress line.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Sites done.
    pub done: usize,
    /// Sites in all.
    pub total: usize,
}

/// A target with its probes installed. Dropping it detaches.
pub struct Session;

impl Session {
    /// Resolves, plans, attaches or spawns, installs. On an error nothing is left changed in the target. Fails if no
    /// site could be probed at all; single refusals are in [`Session::refused`]. A spawned command runs when this returns.
    pub fn start(
        _target: Target,
        _requests: &[Request],
        _options: &Options,
        _progress: &mut dyn FnMut(Progress),
    ) -> Result<Session, SessionError> {
        Err(SessionError::NotImplemented)
    }

    /// Process id of the target.
    pub fn pid(&self) -> i32 {
        0
    }

    /// All installed probes; `Probe::id` is the index.
    pub fn probes(&self) -> &[Probe] {
        &[]
    }

    /// Matches that were refused.
    pub fn refused(&self) -> &[Refused] {
        &[]
    }

    /// Current counts, per probe. Works while the target runs, after its end, and after the detach.
    pub fn counts(&self) -> Vec<Counts> {
        Vec::new()
    }

    /// The latency distribution that a probe feeds (probes of one request share one, unless `per_function`).
    pub fn distribution(&self, _probe: usize) -> Distribution {
        Distribution::default()
    }

    /// Returns that were never seen (longjmp, end of a thread): the number of entries without a latency.
    pub fn returns_dropped(&self) -> u64 {
        0
    }

    /// Takes the records written since the last call, in order of time. Never blocks.
    pub fn records(&mut self) -> Vec<Record> {
        Vec::new()
    }

    /// Is the target still there? Never blocks.
    pub fn poll(&mut self) -> TargetState {
        TargetState::Running
    }

    /// Removes every trace from the target. Idempotent; fine when the target is gone.
    pub fn detach(&mut self) -> Result<(), SessionError> {
        Ok(())
    }

    /// Waits for the end of a spawned command (after a detach, for example); `Exited(None)` at once for an attached one.
    pub fn wait(&mut self) -> TargetState {
        TargetState::Exited(None)
    }

    /// Figures about the attach.
    pub fn stats(&self) -> AttachStats {
        AttachStats::default()
    }
}

/// One function that `list` shows.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Object path.
    pub object: PathBuf,
    /// Raw symbol name.
    pub name: String,
    /// Demangled name, where it differs.
    pub demangled: Option<String>,
    /// Link-time address.
    pub va: Va,
    /// Size in bytes, 0 = unknown.
    pub size: u64,
}

/// All functions that a pattern matches: in the mappings of `pid`, or in files (a short library name is looked up
/// like the dynamic loader does). Sorted by object, then name.
pub fn list(_pattern: &Pattern, _pid: Option<i32>, _options: &Options) -> Result<Vec<Listed>, SessionError> {
    Err(SessionError::NotImplemented)
}

/// What would be written where, and why, for every match of a pattern. Touches no process.
pub fn explain(_pattern: &Pattern, _pid: Option<i32>, _options: &Options) -> Result<Vec<Explained>, SessionError> {
    Err(SessionError::NotImplemented)
}
