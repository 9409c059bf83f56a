//! What users write about probes, made into eBPF programs.
//!
//! Pure: text in, programs and descriptions of their output out.
#![forbid(unsafe_code)]

mod build;
pub mod printf;
pub mod script;
pub mod signals;
pub mod uprobe_events;
