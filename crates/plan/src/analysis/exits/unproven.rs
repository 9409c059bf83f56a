//! Why the exits of a function are not known.

use std::fmt;

use sidestep_isa::Va;

use crate::reason::{Fault, UnknownJumps};

/// Why the exits of a function are not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoExits {
    /// No function starts there.
    NotAFunction,
    /// What is on top of the stack at its entry is no return address, by its unwind information.
    OddFrame,
    /// The instructions are not known for certain.
    Undecodable(Fault),
    /// Not all jumps are understood.
    UnknownJumps(UnknownJumps),
    /// An indirect jump that may stay in the function or leave it.
    Ambiguous {
        /// Link-time address of the jump.
        at: Va,
    },
    /// The stack pointer is not that of the entry.
    Unbalanced {
        /// Link-time address of the exit.
        at: Va,
        /// Stack pointer there minus that at the entry, in bytes.
        depth: i64,
    },
    /// It calls an address inside of itself, so a return may not be one of the function.
    InnerCall {
        /// Link-time address of the call.
        at: Va,
    },
    /// Execution runs over the end.
    OpenEnd {
        /// Link-time address of the end.
        at: Va,
    },
    /// A conditional jump whose condition is no flag.
    CountedBranch {
        /// Link-time address of the jump.
        at: Va,
    },
    /// A far jump or return.
    Far {
        /// Link-time address of the instruction.
        at: Va,
    },
    /// A return takes arguments off the stack, which 64-bit code of compilers never does.
    DropsArguments {
        /// Link-time address of the return.
        at: Va,
    },
    /// No path leads to a return.
    NeverReturns,
    /// The result is that of another function, which is not known.
    ForeignResult {
        /// Link-time address of the jump to it.
        at: Va,
    },
}

impl fmt::Display for NoExits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoExits::NotAFunction => f.write_str("it is not the start of a function"),
            NoExits::OddFrame => f.write_str("its unwind information says that no ordinary call leads to it"),
            NoExits::Undecodable(fault) => fault.fmt(f),
            NoExits::UnknownJumps(unknown) => unknown.fmt(f),
            NoExits::Ambiguous { at } => write!(f, "the indirect jump at {at} may stay in the function or leave it"),
            NoExits::Unbalanced { at, depth } => {
                write!(f, "at the exit at {at} the stack pointer is {depth} bytes from where it was at the entry")
            }
            NoExits::InnerCall { at } => write!(f, "the call at {at} goes to the inside of the function"),
            NoExits::OpenEnd { at } => write!(f, "execution runs over the end of the function at {at}"),
            NoExits::CountedBranch { at } => {
                write!(f, "the jump at {at} leaves the function by a counter, not by a flag")
            }
            NoExits::Far { at } => write!(f, "the instruction at {at} leaves by a far jump"),
            NoExits::DropsArguments { at } => write!(f, "the return at {at} takes arguments off the stack"),
            NoExits::ForeignResult { at } => {
                write!(f, "its result is that of the function that the jump at {at} leads to, which is not known")
            }
            NoExits::NeverReturns => f.write_str("it never returns: no path from its entry leads to a return"),
        }
    }
}

impl std::error::Error for NoExits {}
