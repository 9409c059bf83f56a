//! Scenarios: the whole tool on real programs, judged by what the programs, the kernel and the file system say.

mod counts;
mod detach;
mod errors;
mod programs;
mod redis;
mod regressions;
mod sandbox;
mod short;
mod spawn;
mod status;
mod trap;
mod unwind;
