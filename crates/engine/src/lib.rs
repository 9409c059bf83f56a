//! Sessions: attach to or spawn a process, install probes, read what they found, detach without a
//! trace.
//!
//! No ISA name appears here; decisions come from `plan`, operating-system work goes to `sys`.

mod adopt;
mod analyses;
mod api;
mod attach;
mod blob;
mod book;
mod controller;
mod coverage;
mod detach;
mod error;
mod extend;
mod facts;
mod family;
mod faults;
pub mod fitness;
mod follow;
mod hold;
mod identity;
mod install;
mod installer;
mod kernel;
mod lasting;
mod late;
mod layout;
mod left;
mod live;
mod maps;
mod meanings;
mod names;
mod native;
mod objects;
mod pages;
pub mod pattern;
mod placement;
mod planner;
mod planning;
mod preview;
mod privileges;
mod programs;
mod promote;
mod put;
mod raw;
mod reclaim;
mod regions;
mod release;
mod remote;
mod resolve;
mod results;
mod returns;
mod scene;
mod seccomp;
mod semaphore;
mod session;
mod share;
mod signals;
mod singly;
mod space;
mod spare;
mod startup;
mod static_probes;
mod status;
mod surroundings;
mod survey;
mod switch;
mod toggle;
mod traces;
mod typed;
mod unnamed;
mod unwinding;
mod usdt;
mod view;
mod wanted;

pub use api::*;
pub use blob::BlobError;
pub use controller::{Local, RunError};
pub use coverage::{Covered, coverage};
pub use error::{Inside, NoMatch, SessionError};
pub use kernel::{Files, Place};
pub use left::{Detached, detach};
pub use maps::Maps;
pub use names::{Frame, Symbols};
pub use preview::{Listed, explain, list};
pub use session::{Progress, Session};
pub use sidestep_symbols::search_in;
pub use sidestep_symbols::usdt::{Argument as UsdtArgument, ArgumentKind, Probe as UsdtProbe};
pub use sidestep_sys::bpf as kernel_bpf;
pub use sidestep_wire::private::split_symbol;
pub use static_probes::{StaticProbe, static_probes};
pub use status::{Installed, ProbeKind, SiteState, Status, status};
pub use switch::Switched;
pub use toggle::{disable, enable, optimize};
pub use typed::{Goroutine, NoGoroutine, Typed, TypedFunction};
pub use usdt::Arguments;

/// Types of functions and data, from debug information.
pub mod types {
    pub use sidestep_symbols::{
        Convention, DataType, DebugInfo, Enumeration, FunctionParameter, FunctionType, Passed, RecordLayout,
        RecordMember, TypeError,
    };
}
