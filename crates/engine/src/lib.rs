//! Sessions: attach to or spawn a process, install probes, read what they found, detach without a
//! trace.
//!
//! No ISA name appears here; decisions come from `plan`, operating-system work goes to `sys`.
//!
//! | folder | what is in it |
//! |---|---|
//! | `fitness` | what a machine and a process can do |
//! | `session` | a session: attach, start of a command, probes that come later, the end |
//! | `session/follow` | children, executed programs, libraries that come later |
//! | `session/protection` | keeps the limits on what probes cost the target; what a hit costs |
//! | `results` | counts, maps, records, the status of probes; programs that run in the controller |
//! | `planning` | from functions to plans: where sites are, and what they have to fit in with |
//! | `patch` | changing the code of a target, and putting the original code back |
//! | `target` | a process: what a session has mapped there, its threads, signals, limits |
//! | `resolve` | from patterns to functions, objects, static probes, names |
//! | `programs` | programs linked, compiled, placed |
//! | `memory` | sizes and offsets of the shared memory, and access by values |
//!
//! A folder uses those below it, and the files beside this one.

mod api;
mod error;
pub mod fitness;
mod limits;
mod memory;
mod patch;
mod planning;
mod programs;
mod refusal;
mod resolve;
mod results;
mod session;
mod target;

pub use api::*;
pub use error::{BlobError, Inside, NoMatch, SessionError};
pub use limits::{Disabled, Event, Overhead, Protection};
pub use patch::left::{Detached, detach};
pub use patch::switch::Switched;
pub use patch::toggle::{disable, enable, optimize};
pub use planning::coverage::{Covered, coverage};
pub use planning::preview::{Listed, explain, list};
pub use refusal::{Refusal, RefusalReason, Unproven};
pub use resolve::kernel::{Files, Place};
pub use resolve::label::{Label, inside, written};
pub use resolve::names::{Frame, Symbols};
pub use resolve::pattern;
pub use resolve::static_probes::{StaticProbe, static_probes};
pub use resolve::typed::{Goroutine, NoGoroutine, Typed, TypedFunction};
pub use resolve::usdt::Arguments;
pub use results::controller::{Local, RunError};
pub use results::maps::Maps;
pub use results::status::{Installed, ProbeKind, SiteState, Status, status};
pub use session::process_names::process_names;
pub use session::protection::calibration::target as calibration_target;
pub use session::{Progress, Session};
pub use sidestep_symbols::search_in;
pub use sidestep_symbols::usdt::{Argument as UsdtArgument, ArgumentKind, Probe as UsdtProbe};
pub use sidestep_sys::bpf as kernel_bpf;
pub use sidestep_sys::{interrupt, interrupts, until_stuck};
pub use sidestep_wire::private::split_symbol;

/// Types of functions and data, from debug information.
pub mod types {
    pub use sidestep_symbols::{
        Argument, Convention, DataType, DebugInfo, Enumeration, FunctionParameter, FunctionType, Language, Part,
        Passed, RecordLayout, RecordMember, TypeError,
    };
}
