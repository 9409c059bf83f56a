//! Probes for live processes.
mod codec;
mod context;
mod controller;
mod error;
mod order;
mod original;
mod own;
mod probe;
mod session;

pub use context::{Callback, Context};
pub use error::Error;
pub use order::{Ended, Listed, Refused, State};
pub use original::Original;
pub use probe::Probe;
pub use session::{Builder, Registration, Session};
pub use sidestep_bpf as bpf;
pub use sidestep_engine::{Bundle, BundleMap, Entry, Options, Record, Value};
pub use sidestep_wire::Regs;
