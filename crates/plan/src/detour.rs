//! From a plan and a handler to bytes: the detour, and the patch that leads to it.
//!
//! ```text
//!   site:    jmp detour            (or int3, and the trap handler continues at the detour)
//!   detour:  [displaced instructions that come before the handler]
//!            [step over the red zone]
//!            handler, with its context
//!            [undo]
//!            displaced instructions, with guards in between
//!            jmp resume
//!   cold:    [slow path of an inline handler]
//! ```
//!
//! Lengths do not depend on addresses, so a detour can be measured before its slab exists.

use sidestep_isa::Va;
use sidestep_isa::x86::emit::{Asm, Cond, OutOfReach, Reg, TRAP_PATCH, jump_patch};
use sidestep_isa::x86::relocate::{RelocateError, relocate};

use crate::handler::{Context, Handler};
use crate::plan::{DisplacedInsn, Plan, SiteKind, Technique};
use crate::thunk::{Env, RED_ZONE, Thunks};

/// A detour, ready to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Detour {
    /// Run-time address.
    pub at: Va,
    /// Its code.
    pub bytes: Vec<u8>,
    /// Run-time address of the site.
    pub site: Va,
    /// What is written at the site.
    pub patch: Vec<u8>,
    /// For each displaced instruction: offset from the site, offset of its copy in the detour. The last pair is the
    /// place behind them, if execution gets there: the jump back.
    pub copies: Vec<(u8, u8)>,
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
        /// Why.
        source: RelocateError,
    },
    /// A copy lies more than 255 bytes into the detour.
    #[error("the detour of {site} is too long")]
    TooLong {
        /// Run-time address of the site.
        site: Va,
    },
}

/// Builds the detour of a plan at run-time address `at`; `bias` = run-time minus link-time address of the object. The
/// handlers run in order.
pub fn build(
    plan: &Plan,
    handlers: &[Handler],
    at: Va,
    bias: i64,
    thunks: &Thunks,
    env: &Env,
) -> Result<Detour, DetourError> {
    let site = plan.site.offset(bias);
    let mut asm = Asm::new(at);
    let mut copies = Vec::new();
    let split = plan.before_handler.min(plan.displaced.len());
    let (before, after) = plan.displaced.split_at(split);

    displace(&mut asm, before, plan, bias, &mut copies)?;
    let (guards, handlers): (Vec<Handler>, Vec<Handler>) =
        handlers.iter().partition(|handler| matches!(handler, Handler::Guard { .. }));
    let inside = plan.kind == SiteKind::Inside && !handlers.is_empty();
    if inside {
        asm.lea(Reg::Rsp, Reg::Rsp, -RED_ZONE);
    }
    let mut cold = Vec::new();
    for handler in handlers {
        match handler.context() {
            Context::Cells => cold.push((handler, inline_handler(&mut asm, plan, handler, env))),
            Context::Frame => agent_handler(&mut asm, handler, inside, thunks)?,
        }
    }
    if inside {
        asm.lea(Reg::Rsp, Reg::Rsp, RED_ZONE);
    }
    let mut after = after;
    for guard in guards {
        if let Handler::Guard { before, .. } = guard {
            let done = plan.displaced.len() - after.len();
            let (first, rest) = after.split_at(before.saturating_sub(done).min(after.len()));
            displace(&mut asm, first, plan, bias, &mut copies)?;
            asm.lea(Reg::Rsp, Reg::Rsp, -RED_ZONE);
            agent_handler(&mut asm, guard, true, thunks)?;
            asm.lea(Reg::Rsp, Reg::Rsp, RED_ZONE);
            after = rest;
        }
    }
    displace(&mut asm, after, plan, bias, &mut copies)?;
    if let Some(resume) = plan.resume {
        copies.push(offsets(plan.site, resume, &asm, at));
        asm.jmp_to(resume.offset(bias))?;
    }
    for (handler, cold) in cold {
        cold.emit(&mut asm, handler, thunks)?;
    }
    let copies = copies
        .into_iter()
        .map(|(from, to)| Some((u8::try_from(from).ok()?, u8::try_from(to).ok()?)))
        .collect::<Option<Vec<_>>>()
        .ok_or(DetourError::TooLong { site })?;
    let patch = match plan.technique {
        Technique::Trap => TRAP_PATCH.to_vec(),
        _ => jump_patch(site, at)?.to_vec(),
    };
    Ok(Detour { at, bytes: asm.finish(), site, patch, copies })
}

fn offsets(site: Va, original: Va, asm: &Asm, at: Va) -> (u64, u64) {
    (original.0 - site.0, asm.here().0 - at.0)
}

fn displace(
    asm: &mut Asm,
    insns: &[DisplacedInsn],
    plan: &Plan,
    bias: i64,
    copies: &mut Vec<(u64, u64)>,
) -> Result<(), DetourError> {
    let start = Va(asm.here().0 - asm.len() as u64);
    for insn in insns {
        copies.push(offsets(plan.site, insn.va, asm, start));
        let from = insn.va.offset(bias);
        let mut out = Vec::new();
        relocate(&insn.bytes[..insn.len as usize], from, asm.here(), &mut out)
            .map_err(|source| DetourError::Relocate { va: from, source })?;
        asm.raw(&out);
    }
    Ok(())
}

fn agent_handler(asm: &mut Asm, handler: Handler, inside: bool, thunks: &Thunks) -> Result<(), OutOfReach> {
    if let Handler::Agent { probe } | Handler::Guard { probe, .. } = handler {
        asm.push_imm(probe as i32);
        asm.call_to(if inside { thunks.hit_inside } else { thunks.hit_entry })?;
        asm.lea(Reg::Rsp, Reg::Rsp, 8);
    }
    Ok(())
}

/// The slow path of an inline handler, emitted behind the detour.
struct Cold {
    slow: sidestep_isa::x86::emit::Label,
    done: sidestep_isa::x86::emit::Label,
}

impl Cold {
    fn emit(self, asm: &mut Asm, handler: Handler, thunks: &Thunks) -> Result<(), OutOfReach> {
        if let Handler::Count { cell, probe } = handler {
            asm.bind(self.slow);
            asm.push_imm(probe as i32);
            asm.push_imm(cell as i32);
            asm.call_to(thunks.count_slow)?;
            asm.lea(Reg::Rsp, Reg::Rsp, 16);
            asm.jmp(self.done);
        }
        Ok(())
    }
}

/// Finds the cells of the thread and runs the handler on them, saving only what is live.
fn inline_handler(asm: &mut Asm, plan: &Plan, handler: Handler, env: &Env) -> Cold {
    let slow = asm.label();
    let done = asm.label();
    // rsp is never scratch; the flags, if live, are kept in rax.
    let candidates = [Reg::R11, Reg::R10, Reg::R9, Reg::R8, Reg::Rcx, Reg::Rdx, Reg::Rsi, Reg::Rdi];
    let mut scratch: Vec<Reg> = candidates.into_iter().filter(|r| plan.dead_regs & r.bit() != 0).collect();
    if plan.dead_flags && plan.dead_regs & Reg::Rax.bit() != 0 {
        scratch.insert(0, Reg::Rax);
    }
    scratch.extend([Reg::Rcx, Reg::Rdx].into_iter().filter(|r| plan.dead_regs & r.bit() == 0));
    let (key, cells) = (scratch[0], scratch[1]);
    let mut saved: Vec<Reg> = [key, cells].into_iter().filter(|r| plan.dead_regs & r.bit() == 0).collect();
    let keep_flags = !plan.dead_flags;
    if keep_flags && plan.dead_regs & Reg::Rax.bit() == 0 {
        saved.insert(0, Reg::Rax);
    }

    for reg in &saved {
        asm.push(*reg);
    }
    if keep_flags {
        asm.flags_to_ax();
    }
    asm.thread_pointer(key, env.self_pointer);
    env.emit_hash(asm, cells, key);
    asm.cmp_mem(cells, env.bucket_disp(), key);
    asm.jcc(Cond::Ne, slow);
    asm.load(cells, cells, env.cells_disp());
    asm.test(cells);
    asm.jcc(Cond::E, slow);
    handler.emit_cells(asm, cells);
    asm.bind(done);
    if keep_flags {
        asm.ax_to_flags();
    }
    for reg in saved.iter().rev() {
        asm.pop(*reg);
    }
    Cold { slow, done }
}
