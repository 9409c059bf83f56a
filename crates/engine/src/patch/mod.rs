//! Changing the code of a target, and putting the original code back. Nothing else writes sites.
//!
//! | step | modules |
//! |---|---|
//! | what is in the way | [`thread_state`] |
//! | writing: tables first, then sites | [`install`], [`commit`], [`pages`] |
//! | in an order, while the threads run or stand | [`order`], [`live`], [`stopped`] |
//! | switching probes and their jumps | [`toggle`], [`switch`], [`per_probe`], [`promote`] |
//! | what goes with a switch | [`semaphore`], [`calls`] |
//! | sites and signals of several sessions | [`share`], [`release`] |
//! | removing every trace | [`detach`], [`left`], [`returns`] |

mod calls;
mod commit;
pub(crate) mod detach;
pub(crate) mod install;
pub(crate) mod left;
mod live;
mod order;
mod pages;
pub(crate) mod per_probe;
pub(crate) mod promote;
pub(crate) mod release;
pub(crate) mod returns;
mod semaphore;
pub(crate) mod share;
mod stopped;
pub(crate) mod switch;
mod thread_state;
pub(crate) mod toggle;
