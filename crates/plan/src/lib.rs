//! From a site to a complete plan, or a refusal with its reason. Pure: reads bytes that it is
//! given, touches nothing.
#![forbid(unsafe_code)]

mod blocked;
mod boundaries;
pub mod coverage;
pub mod detour;
mod discover;
mod exits;
pub mod explain;
mod family;
pub mod faults;
mod go;
pub mod handler;
pub mod index;
mod lead;
mod parallel;
pub mod plan;
mod post;
pub mod reason;
mod returns;
pub mod room;
pub mod strategy;
mod sweep;
pub mod syscalls;
pub mod thunk;

pub use blocked::promotable;
pub use exits::{Exit, ExitKind, Exits, NoExits, exits, jumps_to, results};
pub use go::{GoCall, go_call};
pub use index::Index;
pub use lead::{Lead, Needs, Placement};
pub use plan::{DisplacedInsn, Patch, Plan, Refusal, Rejected, SiteKind, Technique};
pub use reason::Reason;
pub use room::{Fixed, Room};
pub use sidestep_isa::object::{self, ObjectCode};
pub use strategy::{plan, plan_at, plan_exit, plan_in, site_of};
