//! eBPF: instructions, text, verifier, passes, interpreter, native code. Handlers of probes are
//! eBPF programs.
//!
//! Pure: nothing here touches a process or a file. Without the feature `std` there are instructions
//! and interpreter only, on `core` alone: what the agent needs in a target.
#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]

pub mod alu;
#[cfg(feature = "std")]
pub mod asm;
mod codec;
pub mod disasm;
#[cfg(feature = "std")]
pub mod dump;
pub mod insn;
pub mod interp;
#[cfg(feature = "std")]
pub mod map;
#[cfg(feature = "std")]
pub mod native;
#[cfg(feature = "std")]
pub mod object;
#[cfg(feature = "std")]
pub mod pass;
#[cfg(feature = "std")]
pub mod program;
#[cfg(feature = "std")]
pub mod verify;

#[cfg(feature = "std")]
pub use asm::{AsmError, AsmProblem, assemble};
pub use codec::{DecodeError, DecodeProblem};
pub use insn::{AluOp, AtomicOp, Cond, Imm64, Insn, Operand, Reg, Size, Slot, Swap, Width};
#[cfg(feature = "std")]
pub use program::{Function, Program};
