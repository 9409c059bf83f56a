//! What the scenario tests and the benchmark share: programs to probe, the tool under test,
//! snapshots of a process, and the kernel's own uprobes as an oracle.
//!
//! Nothing here waits without a limit, and what was started is killed when its handle is dropped.

pub mod build;
pub mod callgrind;
pub mod kernel;
pub mod postgres;
pub mod process;
pub mod rack;
pub mod random;
pub mod redis;
pub mod rules;
pub mod scripts;
pub mod shell;
pub mod snapshot;
pub mod tool;

pub use build::target;
pub use process::{Output, Program, run};
pub use snapshot::Snapshot;
pub use tool::{Report, Tracing, sidestep};

/// Says loudly that something is missing on this machine. A missing part is a failure, unless
/// `SIDESTEP_ALLOW_SKIP=1` allows to go on without: then the caller returns. The file that
/// `SIDESTEP_SKIPPED` names says so afterwards.
///
/// # Panics
/// If skipping is not allowed.
pub fn skip(why: &str) {
    let allowed = std::env::var_os("SIDESTEP_ALLOW_SKIP").is_some_and(|v| v == "1");
    assert!(allowed, "{why}: run `cargo xtask setup`, or set SIDESTEP_ALLOW_SKIP=1 to go on without");
    eprintln!("SKIPPED, NOT TESTED: {why}");
    // The output of a test that passes is not seen everywhere.
    if let Some(file) = std::env::var_os("SIDESTEP_SKIPPED") {
        let _ = std::fs::write(file, format!("{why}\n"));
    }
}
