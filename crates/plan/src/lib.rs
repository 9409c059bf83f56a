//! From a site to a complete plan, or a refusal with its reason. Pure: reads bytes that it is
//! given, touches nothing.
//!
//! | folder | what is in it |
//! |---|---|
//! | `codegen` | from a plan and its handlers to bytes, by instruction set |
//! | `policy` | the best technique that is proven safe at a site |
//! | `analysis` | facts of an object's code |
//!
//! A folder uses those below it, and the files beside this one.
#![forbid(unsafe_code)]

mod analysis;
mod codegen;
mod context;
pub mod explain;
mod fixed;
mod policy;
pub mod reason;

pub use analysis::exits::{Exit, ExitKind, Exits, NoExits, exits, jumps_to, results};
pub use analysis::go::{GoCall, go_call};
pub use analysis::index::{self, Index};
pub use analysis::syscalls;
pub use codegen::{detour, faults, handler, thunk};
pub use fixed::Fixed;
pub use policy::blocked::promotable;
pub use policy::lead::{Lead, Needs, Placement};
pub use policy::plan::{self, DisplacedInsn, Patch, Plan, Refusal, Rejected, SiteKind, Technique};
pub use policy::room::{self, Room};
pub use policy::strategy::{self, plan, plan_at, plan_exit, plan_in, site_of};
pub use policy::{coverage, syscall_guard};
pub use reason::Reason;
pub use sidestep_isa::object::{self, ObjectCode};
