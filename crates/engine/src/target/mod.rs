//! A process: what a session has mapped there, its threads, its signals, and its limits.
//!
//! | what | modules |
//! |---|---|
//! | stopping threads, and for how long | [`hold`] |
//! | where threads are | [`thread_positions`], [`native`] |
//! | mappings and their contents | [`regions`], [`blob`] |
//! | free memory, the address space | [`allocator`], [`space`] |
//! | system calls of the target for us | [`remote`] |
//! | what a session has left there, for any reader | [`discovery`] |
//! | signals and faults of displaced code | [`signals`], [`faults`] |
//! | stacks | [`unwinding`] |
//! | threads that cannot be told apart, filters of system calls | [`identity`], [`seccomp`] |
//! | privileges, libraries that stay loaded | [`privileges`], [`permanent`] |

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
