//! Why a probe is refused, before anything is written. The plan's own reasons are
//! [`sidestep_plan::reason`].

use sidestep_isa::Va;
use sidestep_plan::reason::{NoReplacedReturn, NotBehind, NotPaired};
use sidestep_plan::{NoExits, Reason};
use thiserror::Error;

/// A refused probe.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{asked}: {reason}")]
pub struct Refusal {
    /// Link-time address that the user asked for.
    pub asked: Va,
    /// What keeps the probe from being installed.
    pub reason: RefusalReason,
}

/// Why a probe is refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RefusalReason {
    /// The symbol has no code.
    #[error("{0}")]
    Symbol(&'static str),
    /// No technique is safe at the site.
    #[error(transparent)]
    Site(#[from] Reason),
    /// The handler has to run behind the instruction, where nothing runs.
    #[error(transparent)]
    Behind(#[from] NotBehind),
    /// The returns of a function that has no exits.
    #[error(transparent)]
    Returns(#[from] Unproven),
    /// The returns can be watched neither at the exits nor by the return address.
    #[error("{exits}; and its return address cannot be replaced: {address}")]
    Neither {
        /// Why not at the exits.
        exits: Unproven,
        /// Why not by the return address.
        address: NoReplacedReturn,
    },
}

/// Why the returns of a function are not watched at its exits.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Unproven {
    /// The exits are not known.
    #[error(transparent)]
    Exits(#[from] NoExits),
    /// An exit, or the entry, cannot be probed.
    #[error(transparent)]
    Site(#[from] Reason),
    /// Entry and return of a Go call cannot be paired.
    #[error(transparent)]
    Pairing(#[from] NotPaired),
    /// 32-bit code: the jump at the entry takes the exit with it.
    #[error("its exit is in the bytes of the jump at its entry")]
    ExitInEntryJump,
    /// The probe of another session is in the way: which and why.
    #[error("{0}")]
    Beside(String),
    /// Handlers behind displaced instructions are not shared.
    #[error("another session has a probe at its exit")]
    OtherSession,
}

impl Unproven {
    /// Whether there is no return to watch.
    pub(crate) fn never_returns(&self) -> bool {
        *self == Unproven::Exits(NoExits::NeverReturns)
    }

    /// Whether the same fact rules out a replaced return address.
    pub(crate) fn is_like(&self, address: NoReplacedReturn) -> bool {
        matches!(
            (self, address),
            (Unproven::Exits(NoExits::NotAFunction), NoReplacedReturn::NotAFunction)
                | (Unproven::Exits(NoExits::OddFrame), NoReplacedReturn::OddFrame)
        )
    }
}
