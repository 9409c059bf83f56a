//! Live processes: everything here stops, calls into and starts real programs. Needs ptrace, cc,
//! and for some tests musl-gcc and go.

mod call;
mod churn;
mod death;
mod sharers;
mod spawn;
mod stop;
mod target;
mod turns;
