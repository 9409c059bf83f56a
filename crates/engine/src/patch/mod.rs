//! Changing the code of a target, and putting the original code back. Nothing else writes sites.
//!
//! | step | modules |
//! |---|---|
//! | what is in the way | [`thread_state`] |
//! | writing: tables first, then sites | [`install`], [`commit`], [`pages`] |
//! | in an order, while the threads run or stand | [`order`], [`live`], [`stopped`] |
//! | switching probes | [`toggle`], [`switch`], [`per_probe`], [`retire`] |
//! | switching between traps and jumps | [`promote`] |
//! | what goes with a switch | [`semaphore`], [`calls`] |
//! | sites of several sessions | [`share`] |
//! | removing a session | [`detach`], [`journal`], [`left`], [`returns`] |
//! | threads that keep a session | [`usher`] |
//! | what other sessions need stays | [`retain`] |

mod calls;
mod commit;
pub(crate) mod detach;
pub(crate) mod install;
mod journal;
pub(crate) mod left;
mod live;
mod order;
mod pages;
pub(crate) mod per_probe;
pub(crate) mod promote;
mod retain;
pub(crate) mod retire;
pub(crate) mod returns;
mod semaphore;
pub(crate) mod share;
mod stopped;
pub(crate) mod switch;
mod thread_state;
pub(crate) mod toggle;
mod usher;
