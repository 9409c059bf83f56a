//! Scenarios: the whole tool on real programs, judged by what the programs, the kernel and the file system say.

mod bpf;
mod carried;
mod counts;
mod coverage;
mod detach;
mod displaced;
mod errors;
mod events;
mod faults;
mod ladder;
mod programs;
mod races;
mod redis;
mod registers;
mod regressions;
mod sandbox;
mod short;
mod spawn;
mod status;
mod switch;
mod torture;
mod trap;
mod unwind;
mod usdt;
mod x86_32;
