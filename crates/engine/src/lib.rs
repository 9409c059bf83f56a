//! Sessions: attach to or spawn a process, install probes, read what they found, detach without a
//! trace.
//!
//! No ISA name appears here; decisions come from `plan`, operating-system work goes to `sys`.
//!
//! | folder | what is in it |
//! |---|---|
//! | `session` | a session from its start to its end: attach, start of a command, probes that come later |
//! | `resolve` | from patterns to functions, objects, static probes, names |
//! | `planning` | from functions to plans: where sites are, and what they have to fit in with |
//! | `patch` | changing the code of a target, and putting the original code back |
//! | `target` | the memory of a session in its target, signals, limits of a process |
//! | `programs` | programs linked, compiled, placed; programs that run in the controller |
//! | `results` | counts, maps, records, the status of probes |
//! | `follow` | children, executed programs, libraries that come later |
//! | `fitness` | what a machine and a process can do |
//! | `protection` | limits on what probes cost the target, and what a hit costs |

mod api;
mod error;
pub mod fitness;
mod follow;
mod patch;
mod planning;
mod programs;
mod protection;
mod resolve;
mod results;
mod session;
mod target;

pub use api::*;
pub use error::{Inside, NoMatch, SessionError};
pub use patch::left::{Detached, detach};
pub use patch::switch::Switched;
pub use patch::toggle::{disable, enable, optimize};
pub use planning::refusal::{Refusal, RefusalReason, Unproven};
pub use programs::controller::{Local, RunError};
pub use protection::calibration::target as calibration_target;
pub use protection::{Disabled, Event, Overhead, Protection};
pub use resolve::coverage::{Covered, coverage};
pub use resolve::kernel::{Files, Place};
pub use resolve::names::{Frame, Symbols};
pub use resolve::pattern;
pub use resolve::preview::{Listed, explain, list};
pub use resolve::static_probes::{StaticProbe, static_probes};
pub use resolve::typed::{Goroutine, NoGoroutine, Typed, TypedFunction};
pub use resolve::usdt::Arguments;
pub use results::maps::Maps;
pub use results::status::{Installed, ProbeKind, SiteState, Status, status};
pub use session::{Progress, Session};
pub use sidestep_symbols::search_in;
pub use sidestep_symbols::usdt::{Argument as UsdtArgument, ArgumentKind, Probe as UsdtProbe};
pub use sidestep_sys::bpf as kernel_bpf;
pub use sidestep_wire::private::split_symbol;
pub use target::blob::BlobError;

/// Types of functions and data, from debug information.
pub mod types {
    pub use sidestep_symbols::{
        Convention, DataType, DebugInfo, Enumeration, FunctionParameter, FunctionType, Passed, RecordLayout,
        RecordMember, TypeError,
    };
}
