//! A process: what a session has mapped there, its threads, its signals, and its limits.
//!
//! | what | modules |
//! |---|---|
//! | stopping threads, and for how long; where they are | [`hold`], [`thread_positions`], [`native`] |
//! | mappings: contents, free memory, the address space | [`regions`], [`allocator`], [`blob`], [`space`] |
//! | system calls of the target for us | [`remote`] |
//! | what a session has left there, for any reader | [`discovery`] |
//! | signals and faults of displaced code | [`signals`], [`faults`] |
//! | stacks | [`unwinding`] |
//! | limits of a process: threads, filters, privileges, libraries | [`identity`], [`seccomp`], [`privileges`], [`permanent`] |

pub(crate) mod allocator;
pub(crate) mod blob;
pub(crate) mod discovery;
pub(crate) mod faults;
pub(crate) mod hold;
pub(crate) mod identity;
pub(crate) mod native;
pub(crate) mod permanent;
pub(crate) mod privileges;
pub(crate) mod regions;
pub(crate) mod remote;
pub(crate) mod seccomp;
pub(crate) mod signals;
pub(crate) mod space;
pub(crate) mod thread_positions;
pub(crate) mod unwinding;
