//! The detour of a plan with its handlers, and the patch that leads to it: what code generators of
//! all instruction sets give.

use sidestep_isa::passed::Passed;
use sidestep_isa::patch::OutOfReach;
use sidestep_isa::{Isa, RelocateError, Va};
use sidestep_wire::{HandlerSwitch, TrapEntry, TrapRecord};

use crate::codegen::handler::{AtExit, Handler, Program};
use crate::codegen::thunk::{Env, Places, Thunks};
#[cfg(feature = "toy")]
use crate::codegen::toy;
use crate::codegen::{a32, a64, x86};
use crate::context::Context;
use crate::policy::lead::Lead;
use crate::policy::plan::{DisplacedInsn, Plan, Technique};
use crate::reason::NotBehind;

/// A detour, ready to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Detour {
    /// Run-time address.
    pub at: Va,
    /// Its code.
    pub bytes: Vec<u8>,
    /// The code begins with a [`sidestep_wire::TrapRecord`].
    pub recorded: bool,
    /// Its instruction set.
    pub isa: Isa,
    /// All handlers are in front of the first copy, and begin where the code does.
    pub leads: bool,
    /// Run-time address of the site.
    pub site: Va,
    /// What is written at the site.
    pub patch: Vec<u8>,
    /// What has to be behind it, and is not written: the rest of its displacement.
    pub relies_on: Vec<u8>,
    /// Code elsewhere that leads to the detour: run-time address, bytes.
    pub stub: Option<(Va, Vec<u8>)>,
    /// What is written over padding, before the site is: run-time address, bytes.
    pub island: Option<(Va, Vec<u8>)>,
    /// Traps that a thread may meet: offset from the site, offset in the detour of where it goes
    /// on.
    pub traps: Vec<(u16, u16)>,
    /// For each displaced instruction: offset from the site, offset of its copy in the detour. Then
    /// the place behind them, if execution gets there: the jump back. At last the gate.
    pub copies: Vec<(u16, u16)>,
    /// For each guard: offset of its system call from the site, offset of the guard in the detour.
    /// A thread that is about to make the call has to go through it.
    pub guards: Vec<(u16, u16)>,
    /// Offset in the detour of the word that its gate goes by. Where a jump has one instruction,
    /// no site is inside it, and no detour has a gate.
    pub gate: Option<u16>,
    /// Of handlers that can be switched one by one: number of the probe, and how.
    pub switches: Vec<(u32, HandlerSwitch)>,
}

impl Detour {
    /// Where threads that meet its traps go on. Any site may become a trap, so there is one for its
    /// first byte in any case.
    pub fn trap_entries(&self) -> impl Iterator<Item = TrapEntry> {
        let flag = if self.recorded { TrapEntry::RECORD } else { 0 };
        let entry = move |(from, to): (u16, u16)| TrapEntry {
            site: self.site.0 + u64::from(from),
            detour: (self.at.0 + u64::from(to)) | flag,
        };
        let inner = self.traps.iter().copied().filter(|(from, _)| *from != 0);
        std::iter::once((0, 0)).chain(inner).map(entry)
    }
}

/// Why a plan cannot be carried out at an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DetourError {
    /// A branch is too long.
    #[error(transparent)]
    OutOfReach(#[from] OutOfReach),
    /// A displaced instruction cannot be relocated.
    #[error("the instruction at {va} cannot be displaced: {source}")]
    Relocate {
        /// Run-time address of the instruction.
        va: Va,
        /// The cause.
        source: RelocateError,
    },
    /// The slab was made without this program.
    #[error("there is no code of program {program} in the slab")]
    NoThunk {
        /// Number of the program.
        program: usize,
    },
    /// Nothing can run behind the probed instruction.
    #[error(transparent)]
    NothingBehind(#[from] NotBehind),
    /// A copy lies more than 65535 bytes into the detour.
    #[error("the detour of {site} is too long")]
    TooLong {
        /// Run-time address of the site.
        site: Va,
    },
}

/// Builds the detour of a plan at run-time address `at`; `bias` = run-time minus link-time address
/// of the object. The handlers run in order.
///
/// The length of a detour does not depend on its address, so it can be measured before its slab
/// exists.
///
/// # Errors
/// The plan cannot be carried out at this address.
pub fn build(
    plan: &Plan,
    handlers: &[Handler],
    at: Va,
    bias: i64,
    thunks: &Thunks,
    env: &Env,
) -> Result<Detour, DetourError> {
    match plan.isa {
        Isa::X86 | Isa::X64 => x86::detour::build(plan, handlers, at, bias, thunks, env),
        Isa::A64 => a64::detour::build(plan, handlers, at, bias, thunks, env),
        Isa::A32 | Isa::T32 => a32::detour::build(plan, handlers, at, bias, thunks, env),
        #[cfg(feature = "toy")]
        Isa::Toy => toy::detour::build(plan, handlers, at, bias),
    }
}

/// What is written at the site if the detour is at `at`, and what has to be behind it.
pub(crate) fn patch(plan: &Plan, bias: i64, at: Va) -> Result<(Vec<u8>, Vec<u8>), OutOfReach> {
    match plan.isa {
        Isa::X86 | Isa::X64 => x86::detour::patch(plan, bias, at),
        Isa::A64 => Ok((a64::detour::patch(plan, bias, at)?, Vec::new())),
        Isa::A32 | Isa::T32 => Ok((a32::detour::patch(plan, bias, at)?, Vec::new())),
        #[cfg(feature = "toy")]
        Isa::Toy => Ok((toy::detour::patch(plan, bias, at)?, Vec::new())),
    }
}

/// What the trap handler needs to count by itself, where counting is all.
pub(crate) fn record(plan: &Plan, handlers: &[Handler]) -> Option<TrapRecord> {
    let counts = |handler: &Handler| matches!(handler, Handler::Program(program) if program.only_counts());
    // What the trap handler does by itself goes through no gate.
    let short = plan.before_handler == 0 && !plan.gate;
    let counted = plan.technique == Technique::Trap && short && handlers.iter().all(counts);
    let newest = handlers.last().filter(|_| counted)?.probe() + 1;
    Some(TrapRecord { op: plan.emulated.map_or([0; 2], |op| op.0), newest, pad: 0 })
}

/// Pairs of offsets, if they are that short.
pub(crate) fn short(pairs: Vec<(u64, u64)>) -> Option<Vec<(u16, u16)>> {
    pairs.into_iter().map(|(from, to)| Some((u16::try_from(from).ok()?, u16::try_from(to).ok()?))).collect()
}

/// A lead that has lowered the stack pointer, and by how much: the handlers run with that undone,
/// and the lead once more behind them.
pub(crate) fn undo(lead: Lead) -> Option<(DisplacedInsn, i32)> {
    match lead.passed {
        Passed::Stack { bytes, .. } => Some((lead.insn, bytes)),
        Passed::Nothing | Passed::Registers { .. } => None,
    }
}

/// Whether a handler could tell that the stack pointer is not as it was in front of the lead, or
/// changes what the lead does: not where counting is all, or code that is part of the detour and
/// looks at nothing but other registers.
pub(crate) fn sees_stack(handler: &Handler, isa: Isa) -> bool {
    // Elsewhere a thunk runs all programs that do more than add to cells.
    let in_detour = |program: &Program| isa == Isa::X64 && program.inline.is_some() && !program.context.has_sp(isa);
    match handler {
        Handler::Program(program) => program.adds.is_none() && !in_detour(program),
        _ => true,
    }
}

/// The thunks of a program.
pub(crate) fn thunk_of(program: &Program, thunks: &Thunks) -> Result<Places, DetourError> {
    thunks.programs.get(program.thunk).copied().flatten().ok_or(DetourError::NoThunk { program: program.thunk })
}

/// What the programs of a handler read of the context.
pub(crate) fn reads(handler: &Handler, env: &Env) -> Context {
    match handler {
        Handler::Program(program) | Handler::Post(program) => program.context,
        // Its arguments, which may be others than the probed function's.
        Handler::Replace { .. } => Context(u64::MAX),
        Handler::Exit { run: AtExit::Program(program), .. } => program.context,
        Handler::Exit { .. }
        | Handler::Agent { .. }
        | Handler::Enter { .. }
        | Handler::Return { .. }
        | Handler::Guard { .. } => env.context,
    }
}
