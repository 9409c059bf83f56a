//! The plan: all that will be done at one site, as data.

use std::fmt;
use std::iter::successors;

use sidestep_isa::emulate::Emulated;
use sidestep_isa::{DecodeError, INSN_MAX, Insn, Isa, Len, RegisterSet, Va, decode};

use crate::policy::lead::Lead;
use crate::reason::{NoReplacedReturn, Reason};

/// How a hit leaves the original code. Best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Technique {
    /// A long nop becomes the jump.
    NopSite,
    /// One instruction of at least 5 bytes (or with padding behind it) becomes the jump.
    Jump,
    /// Several instructions are displaced, proven free of jump targets.
    JumpOverSeveral,
    /// One short instruction becomes a jump whose displacement overlaps what follows, which stays.
    Pun,
    /// Several instructions are displaced, and the jump has a trap wherever one of them began: who
    /// comes from elsewhere goes on at its copy.
    GuardedJump,
    /// A 2-byte jump to padding, which becomes the jump to the detour.
    ShortJump,
    /// The first byte becomes `int3`; the handler continues in the detour.
    Trap,
}

impl Technique {
    /// All techniques, best first.
    pub fn all() -> impl Iterator<Item = Technique> {
        // As a match, which a new technique cannot be left out of.
        let next = |technique: &Technique| match technique {
            Technique::NopSite => Some(Technique::Jump),
            Technique::Jump => Some(Technique::JumpOverSeveral),
            Technique::JumpOverSeveral => Some(Technique::Pun),
            Technique::Pun => Some(Technique::GuardedJump),
            Technique::GuardedJump => Some(Technique::ShortJump),
            Technique::ShortJump => Some(Technique::Trap),
            Technique::Trap => None,
        };
        successors(Some(Technique::NopSite), next)
    }
}

/// What is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patch {
    /// `jmp rel32` behind `prefixes` prefixes without a meaning, as far as it lies in the region:
    /// the rest of its displacement is what is there. It leads to the detour, or to a stub at this
    /// link-time address (minus the bias, that is).
    Jump {
        /// Number of prefixes.
        prefixes: u8,
        /// Where it leads, if it cannot lead everywhere.
        stub: Option<Va>,
    },
    /// `jmp rel8` to padding at this link-time address, where a `jmp rel32` is put.
    Short {
        /// Where the padding is.
        island: Va,
    },
    /// `int3`.
    Trap,
}

/// Where in a function a site lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SiteKind {
    /// The first instruction of a function: nothing lives below the stack pointer.
    FunctionEntry,
    /// Anywhere else: the red zone must be stepped over.
    Inside,
}

/// One displaced instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DisplacedInsn {
    /// Link-time address of the original.
    pub va: Va,
    /// Its bytes; the first `len` count.
    pub bytes: [u8; INSN_MAX],
    /// Its length.
    pub len: u8,
}

impl DisplacedInsn {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// What it is.
    pub fn decoded(&self, isa: Isa) -> Result<Insn, DecodeError> {
        decode(isa, self.bytes(), self.va)
    }
}

/// All that will be done at one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What the code is.
    pub isa: Isa,
    /// Link-time address that the user asked for.
    pub asked: Va,
    /// Link-time address of the first byte that is written (behind an `endbr64` or a [`Lead`], for
    /// example).
    pub site: Va,
    /// The instruction that was asked for, if it stays in front of the site.
    pub lead: Option<Lead>,
    /// Where the site lies.
    pub kind: SiteKind,
    /// The technique.
    pub technique: Technique,
    /// What is written.
    pub patch: Patch,
    /// Bytes of the original code that the patch makes unusable: from `site`, whole instructions,
    /// plus padding.
    pub region: Len,
    /// The displaced instructions, in order.
    pub displaced: Vec<DisplacedInsn>,
    /// Where execution goes on behind them; `None` if the last one never falls through.
    pub resume: Option<Va>,
    /// The instruction of a trap as an operation, if it is one that the trap handler can do by
    /// itself. It does so where hits are only counted.
    pub emulated: Option<Emulated>,
    /// How many displaced instructions run before the handler (the stack check of a Go function),
    /// normally 0.
    pub before_handler: usize,
    /// Registers whose value nobody reads after the point where the handler runs.
    pub dead_regs: RegisterSet,
    /// The arithmetic flags are dead at that point.
    pub dead_flags: bool,
    /// Whether the function may be watched for returns by a replaced return address, and if not,
    /// why. If it may: how many bytes of arguments it takes off the stack when it returns.
    pub returns: Result<u16, NoReplacedReturn>,
    /// Better techniques that were not possible, best first, each with its reason.
    pub rejected: Vec<Rejected>,
    /// Link-time addresses of sites inside the jump: for as long as one of them is enabled, the
    /// site is a trap, which goes on behind the first instruction.
    pub blocked_by: Vec<Va>,
    /// Behind the first displaced instruction, and handlers that come after it, is a gate: a word
    /// says where to go on.
    pub gate: bool,
}

impl Plan {
    /// How many bytes at the site are written or, where a jump overlaps what follows, have to stay.
    #[must_use]
    pub fn relies_on(&self) -> Len {
        match self.patch {
            Patch::Jump { prefixes, .. } => Len(self.region.0.max(u64::from(prefixes) + self.isa.limits().jump as u64)),
            Patch::Short { .. } | Patch::Trap => self.region,
        }
    }

    /// Whether a thread may meet a trap.
    #[must_use]
    pub fn has_traps(&self) -> bool {
        self.is_blocked() || matches!(self.technique, Technique::Trap | Technique::GuardedJump)
    }
}

/// A technique that was not possible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejected {
    /// The technique that was rejected.
    pub technique: Technique,
    /// What the technique lacks at this site.
    pub reason: Reason,
}

/// Why a site cannot be probed at all.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{asked}: {reason}")]
pub struct Refusal {
    /// Link-time address that the user asked for.
    pub asked: Va,
    /// What makes every technique unsafe there.
    pub reason: Reason,
}

impl fmt::Display for Technique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Technique::NopSite => "nop site",
            Technique::Jump => "jump",
            Technique::JumpOverSeveral => "jump over several",
            Technique::Pun => "pun",
            Technique::GuardedJump => "guarded jump",
            Technique::ShortJump => "short jump",
            Technique::Trap => "trap",
        })
    }
}
