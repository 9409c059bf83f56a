//! What a session has in the memory of its target, and what it has to know of the process.
//!
//! | what | modules |
//! |---|---|
//! | mappings: sizes, contents, free memory | [`layout`], [`regions`], [`allocator`], [`blob`], [`view`], [`raw`] |
//! | system calls of the target for us | [`remote`] |
//! | what a session has left there, for any reader | [`discovery`] |
//! | signals and faults of displaced code | [`signals`], [`faults`] |
//! | stacks | [`unwinding`] |
//! | limits of a process: threads, filters, privileges, libraries | [`identity`], [`seccomp`], [`privileges`], [`permanent`] |

pub(crate) mod allocator;
pub(crate) mod blob;
pub(crate) mod discovery;
pub(crate) mod faults;
pub(crate) mod identity;
pub(crate) mod layout;
pub(crate) mod permanent;
pub(crate) mod privileges;
pub(crate) mod raw;
pub(crate) mod regions;
pub(crate) mod remote;
pub(crate) mod seccomp;
pub(crate) mod signals;
pub(crate) mod unwinding;
pub(crate) mod view;
