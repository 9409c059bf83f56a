//! All operating-system unsafety of the controller: processes, stopping their threads, remote
//! system calls, starting commands, shared memory and the clock.
//!
//! [`Process`] is a target that runs. [`Process::stop`] makes a [`Stopped`] of it: the only place
//! where registers can be seen and changed and where the target executes system calls for us.
//! [`spawn()`] starts a command that is stopped before its first instruction.
//!
//! One rule holds everywhere: **the controller may be killed at any instruction** and the target
//! goes on as if it had never been there. The kernel lets all threads of a dead tracer run with the
//! registers they have at that moment, so no thread ever has registers that only we could repair
//! (see `arch::frame`).

mod access;
pub mod arch;
pub mod bpf;
mod call;
mod clock;
mod credentials;
mod exec;
mod hand_over;
mod memory;
mod news;
mod patience;
mod process;
mod procfs;
mod ptrace;
mod room;
mod seccomp;
mod shared;
mod sharers;
mod sigmask;
mod spawn;
mod startup;
mod stopped;
mod stuck;
mod turns;
mod urgent;
mod watch;

pub use access::OpenError;
pub use arch::{Regs, Vectors, vectors};
pub use call::{ADD, Batch, Call, CallError};
pub use clock::{TscScale, cpu_time, monotonic, thread_time, tsc_usable};
pub use credentials::Credentials;
pub use exec::{Executed, Executing, has_capabilities, may_trace_privileged};
pub use hand_over::{HAND_OVER_LEN, HandOverError};
pub use memory::{MemoryError, Pod};
pub use patience::{Ending, Limit, interrupt, interrupts, is_hurried};
pub use process::Process;
pub use procfs::{
    Mapping, comm_bytes, is_ending, limit, namespace_ids, parent, parse_maps, processes, room, start_time_of,
};
pub use seccomp::Verdict;
pub use shared::{SharedData, SharedError, SharedMap};
pub use spawn::{Child, SpawnError, Spawned, spawn};
pub use startup::{StartupError, StartupEvent};
pub use stopped::{StopError, Stopped, Thread};
pub use stuck::until_stuck;
pub use turns::Turn;
pub use watch::{Beat, Watch, futex_wake};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// `exit(code)`.
    Code(i32),
    /// Killed by a signal.
    Signal(i32),
}
