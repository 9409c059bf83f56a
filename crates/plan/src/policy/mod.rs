//! Decisions: the best technique that is proven safe at a site, with the reasons against better
//! ones.
//!
//! | what | modules |
//! |---|---|
//! | the result | [`plan`] |
//! | the choice | [`strategy`], [`lead`] (behind the first instruction), [`post`] (handlers behind it) |
//! | what a site has to fit in with | [`room`], [`blocked`] |
//! | guards of system calls | [`syscall_guard`] |
//! | all sites of an object | [`coverage`] |

pub(crate) mod blocked;
pub mod coverage;
pub mod lead;
pub mod plan;
mod post;
pub mod room;
pub mod strategy;
pub mod syscall_guard;
