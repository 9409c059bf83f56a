//! What is printed, and how.

pub mod color;
pub mod coverage;
pub mod distribution;
pub mod escape;
pub mod json;
pub mod label;
pub mod man;
pub mod number;
pub mod outlet;
pub mod plan;
pub mod processes;
pub mod refusals;
pub mod script;
pub mod sink;
pub mod status;
pub mod table;
pub mod time;
