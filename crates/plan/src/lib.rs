//! From a site to a complete plan, or a refusal with its reason. Pure: reads bytes that it is given, touches nothing.
#![forbid(unsafe_code)]

pub mod object;
pub mod plan;

pub use object::ObjectCode;
pub use plan::{DisplacedInsn, Plan, Refusal, Rejected, SiteKind, Technique};
