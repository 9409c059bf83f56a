//! Probes for live processes: one's own, or another.
//!
//! A probe becomes a jump in the first instructions of a function (or at any instruction) to a
//! detour, which counts, runs a handler, and goes on with what was displaced. Every place is proven
//! safe for that before it is written, or gets a trap, or is refused; the `sidestep` program says
//! more about that. A [`Session`] has the probes of one process.
//!
//! | target | handlers |
//! |---|---|
//! | [`Session::own`]: this process | Rust closures, C functions, replaced functions, eBPF programs, counts |
//! | [`Session::attach`]: one that runs | eBPF programs, counts |
//! | [`Session::command`]: one that is started for it | the same, before its first instruction |
//!
//! ```
//! # #![allow(unsafe_code)]
//! use sidestep::{Probe, Session};
//!
//! #[inline(never)]
//! extern "C" fn double(number: u64) -> u64 {
//!     number * 2
//! }
//!
//! # fn main() -> Result<(), sidestep::Error> {
//! // SAFETY: `double` may return any number.
//! let probe = unsafe {
//!     Probe::function(double as *const ())?
//!         .on_return(|context| context.set_result(context.result() + 1))
//! };
//! let session = Session::own().start()?;
//! let registration = session.register(probe)?;
//! assert_eq!(std::hint::black_box(double as extern "C" fn(u64) -> u64)(4), 9);
//! assert_eq!(session.counts(registration)?, (1, 0));
//! session.detach()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What a handler may do
//!
//! This is about handlers that are functions of this process; eBPF programs are proven harmless. It
//! is the contract that the `unsafe` functions of [`Probe`] speak of.
//!
//! - **Where it runs**: on the stack of the thread that made the hit, at whatever this was doing.
//!   It may call what could be called there. In a handler at `malloc`, that is nearly everything,
//!   `malloc` included; in one at a function that runs while a lock is held, nothing that takes
//!   this lock; in one at a function that signal handlers call, what is async-signal-safe.
//! - **What it may change**: the general registers in its [`Context`], but `rsp`. With a handler of
//!   the entry only, also `rip`: the thread then goes on there, and handlers of the same place that
//!   come behind do not run, nor count. All other registers, the flags and `errno` are saved around
//!   it, vectors included.
//! - **It returns.** A panic in a closure ends the process. An exception of C++ or a `longjmp` must
//!   not leave a handler: the vectors would not be restored, later hits of the thread may count as
//!   missed, and the end of the session may wait for the handler.
//! - **Re-entrancy**: while a thread is in a handler, no other handler runs on it, of whatever
//!   probe, nor in a signal handler that interrupts it. Such a hit counts as *missed*, in the
//!   counts of its probe. Probes that only count, eBPF programs that can run inside themselves, and
//!   replaced functions do not care. Handlers run on many threads at the same time, so closures are
//!   `Sync`.
//! - **Stack**: the registers take 0.3 KiB of the thread's stack, the vectors up to 2.7 KiB, the
//!   handler what it takes. Stacks of goroutines are small, so a hit with less than 64 KiB left
//!   there counts as missed.
//! - **Threads** come and go as they like. At a return probe, a call that never returns (the end of
//!   a thread, a `longjmp` over it) has no hit at its return.
//! - **Fork**: a child has the patched code. No handler runs in it, nothing is counted, and the
//!   session cannot be used ([`Error::Forked`]); replaced functions stay replaced.
//! - **How long it stays**: a thread may be in a handler when it is unregistered. Closures live
//!   until it is known that none is, which is looked at when others are registered (then they are
//!   dropped by [`Session::register`]), or until the session is over. What is not a closure has to
//!   stay mapped until then. [`Session::detach`] waits until no thread is in a handler (3 seconds).
//! - **Not from a handler**: the functions of the session.
//! - **Order**: at one place, handlers run in the order of registration; each can be disabled while
//!   the others go on. In one that was switched off, a thread may still be, and the returns of
//!   calls that it saw the beginning of still run its handler.
//!
//! A replacement is simply another function: it runs at each call, in every thread and in forked
//! children, as if it had been called, with nothing of ours on the stack, so that exceptions and
//! `longjmp` pass through it. It may call the [`Original`], also when the probe is gone.
//!
//! # What a session does to its own process
//!
//! A process cannot stop all its threads and look at them from outside, so the engine works in
//! another one, which the session forks when it is started. That is no child that could be waited
//! for, and has none of the process's files open; but `fork` sends a `SIGCHLD`, runs handlers of
//! `pthread_atfork`, and takes as long as it does for a process of that size. Whoever replaces the
//! allocator has to see to it that it works in a forked child (glibc's, musl's, jemalloc and
//! tcmalloc do). If the controller is killed, the process goes on, probed as it is, and the next
//! session cleans up.
//!
//! Each registration stops all threads a few times for less than a millisecond or two; so do the
//! other changes, once. [`Session::list`] stops nobody.
//!
//! # What it costs
//!
//! A hit at a function that begins with a `push`, above the call of 1.4 ns (`examples/cost.rs`,
//! release build, Linux 6.18 on a virtual machine with AMD EPYC of the fifth generation, the best
//! of 200 rounds):
//!
//! | | ns |
//! |---|---:|
//! | count | 0.8 |
//! | closure at the entry | 33 |
//! | closures at the entry and at the return | 92 |
//! | C function at the entry | 31 |
//! | C function that uses general registers only | 10 |
//! | replacement that calls the original | 3.2 |
//!
//! Of a handler that is no count, 20 ns go to the vector registers, which are 32 of 64 bytes there.
//! Inside of functions they are saved by `XSAVE`, which takes 200 to 300 ns. What is disabled costs
//! nothing; where others are at the same place, a jump by a word, as it does while it is enabled.
//! Two probes that are so close that one is inside the bytes of the other's jump: the outer one is
//! a trap (2.4 µs) until the inner one is disabled or unregistered, then a jump
//! ([`Listed::optimized`]). Of memory, a probe takes about 150 bytes near the code, and each
//! handler 2 KiB.
//!
//! # 32-bit programs
//!
//! They use the crate built for `i686-unknown-linux-gnu`, which probes its own process and others
//! of 32 bits. Arguments are where [`Context::word_argument`] and [`Context::stack_argument`] say.
//! A handler costs as much as inside of functions of 64-bit programs: vectors and x87 registers are
//! saved by `XSAVE` everywhere; eBPF programs are interpreted.
//!
//! # C
//!
//! `include/sidestep.h` has the same for C, with `libsidestep.so`, which
//! `cargo build --release -p sidestep` makes.
mod c;
mod codec;
mod context;
mod controller;
mod error;
mod order;
mod original;
mod own;
mod probe;
mod session;

pub use context::{Callback, Context};
pub use error::Error;
pub use order::{Ended, Listed, Refused, State};
pub use original::Original;
pub use probe::Probe;
pub use session::{Builder, Registration, Session};
/// eBPF: programs as text, and the shapes of their maps.
pub use sidestep_bpf as bpf;
pub use sidestep_engine::{Bundle, BundleMap, Entry, Options, Record, Value};
pub use sidestep_probe::{Argument, lazy_probe, probe};
pub use sidestep_wire::Regs;
