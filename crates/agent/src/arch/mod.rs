//! What differs between processors: system calls, the cycle counter, single-instruction updates, signal contexts.

#[cfg(target_arch = "x86_64")]
pub mod load;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the agent runs on x86-64 only so far");
