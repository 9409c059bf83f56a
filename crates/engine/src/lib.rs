//! Sessions: attach to or spawn a process, install probes, read what they found, detach without a trace.
//!
//! No ISA name appears here; decisions come from `plan`, operating-system work goes to `sys`.

pub mod api;
pub mod session;

pub use api::*;
pub use session::{Listed, Progress, Session, SessionError, explain, list};
