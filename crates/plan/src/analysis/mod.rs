//! Facts of an object's code: where instructions start, who jumps where, where functions end. No
//! decision about probes is made here.
//!
//! | what | modules |
//! |---|---|
//! | everything together, for one object | [`index`] |
//! | one instruction behind the other; their boundaries | [`sweep`], [`boundaries`] |
//! | code that nothing describes | [`discover`], [`gap`] |
//! | indirect jumps, the exits of a function | [`family`], [`exits`] |
//! | functions that look at their return address | [`returns`] |
//! | stack checks of Go, system calls | [`go`], [`syscalls`] |

mod boundaries;
mod discover;
pub mod exits;
pub(crate) mod family;
mod gap;
pub mod go;
pub mod index;
pub(crate) mod marks;
pub(crate) mod parallel;
pub(crate) mod returns;
pub(crate) mod sweep;
pub mod syscalls;
