//! The part of Sidestep that runs inside the target.
//!
//! Generated thunks call the `agent_*` functions on the target's own stack, at any instruction of
//! the program, in any context: before the dynamic loader has run, inside `malloc`, in a signal
//! handler, on a coroutine's stack. So the agent calls nothing of the target, takes no lock, waits
//! for nobody, uses little stack, and cannot panic. All its state lies behind the
//! [`sidestep_wire::Private`] region whose address every function is given.
//!
//! The same source is two things: an ordinary library, tested on the host, and, compiled with
//! `--cfg agent_blob` by the build script of `sidestep-engine`, a flat position-independent image
//! that the engine maps into a target. The interpreter is in the image if it is compiled with
//! `--cfg agent_interpreter`, and `sidestep-bpf` with it.
#![no_std]
#![deny(unsafe_code)]

mod altstack;
mod blocked;
mod exclusive;
mod return_address;
mod thread;

// These touch memory of the program or of the controller, are called by generated code, or call
// the kernel. All other modules go through them.
#[allow(unsafe_code)]
mod arch;
#[allow(unsafe_code)]
mod bell;
#[allow(unsafe_code)]
mod children;
#[allow(unsafe_code)]
mod fault;
#[cfg(agent_blob)]
#[allow(unsafe_code)]
mod freestanding;
#[allow(unsafe_code)]
mod functions;
#[allow(unsafe_code)]
mod guard;
#[allow(unsafe_code)]
mod helpers;
#[allow(unsafe_code)]
mod hit;
#[cfg(any(not(agent_blob), agent_interpreter))]
#[allow(unsafe_code)]
mod interpret;
#[allow(unsafe_code)]
mod kernel;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod places;
#[allow(unsafe_code)]
mod record;
#[allow(unsafe_code)]
mod safe_read;
#[allow(unsafe_code)]
mod shadow;
#[allow(unsafe_code)]
mod signal;
#[allow(unsafe_code)]
mod trap;
#[allow(unsafe_code)]
mod unwind;

/// What `isa` prepares is executed here.
#[allow(dead_code)]
#[cfg_attr(target_arch = "aarch64", path = "../../isa/src/a64/emulate/op.rs")]
#[cfg_attr(target_arch = "arm", path = "../../isa/src/a32/emulate/op.rs")]
#[cfg_attr(not(any(target_arch = "aarch64", target_arch = "arm")), path = "../../isa/src/x86/emulate/op.rs")]
mod emulate;

pub use functions::*;
