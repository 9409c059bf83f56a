//! Sessions: attach to or spawn a process, install probes, read what they found, detach without a trace.
//!
//! No ISA name appears here; decisions come from `plan`, operating-system work goes to `sys`.

mod api;
mod blob;
mod detach;
mod error;
mod install;
mod installer;
mod layout;
mod objects;
mod planning;
mod raw;
mod regions;
mod remote;
mod resolve;
mod results;
mod seccomp;
mod session;
mod sigtrap;
mod space;
mod startup;
mod survey;
mod view;

pub use api::*;
pub use blob::BlobError;
pub use error::SessionError;
pub use session::{Listed, Progress, Session, explain, list};
