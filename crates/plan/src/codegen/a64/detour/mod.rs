//! From a plan and its handlers to bytes: the detour, and the patch that leads to it.
//!
//! ```text
//!   site:    b detour              (or brk, and the trap handler continues at the detour)
//!   detour:  [displaced instructions that come before the handler]
//!            [undo the lead: see `policy::lead`]
//!            handlers
//!            [the lead once more]
//!            displaced instructions (handlers behind the first one, guards)
//!            b resume
//!   cold:    [slow paths of counts]
//!
//!   detour:  TrapRecord            (of a trap where the trap handler counts the hits)
//!            displaced instruction (for what the handler cannot do)
//!            b resume
//! ```
//!
//! A jump is one instruction, so no site is inside another one's jump: there are no gates, stubs
//! and islands. Lengths do not depend on addresses, which are multiples of 8.
//!
//! In front of a handler that can be switched are two words, at a multiple of 8. The first one is a
//! `nop`, or a `b` behind the handler; one may take the place of the other while threads run
//! ([`sidestep_isa::a64::patch`]). The second one is always a `nop`.

mod around;
mod inline;

use sidestep_isa::a64::emit::{Asm, EncodeError, Reg, add_imm, b, bl, movk, movz, nop, ret};
use sidestep_isa::a64::patch::jump;
use sidestep_isa::live::Dead;
use sidestep_isa::patch::OutOfReach;
use sidestep_isa::relocate;
use sidestep_isa::{Isa, Va};
use sidestep_wire::HandlerSwitch;

use crate::codegen::a64::thunk::{align, enter, leave, x};
use crate::codegen::detour::{Detour, DetourError, reads, record, sees_stack, short, thunk_of, undo};
use crate::codegen::handler::Handler;
use crate::codegen::thunk::{Env, Place, Places, Side, Thunks};
use crate::policy::plan::{DisplacedInsn, Patch, Plan, Technique};
use around::Around;

/// What is free when one function has called another, whatever its arguments are: what lies between
/// the two may change it (AAPCS64, 6.1.1).
const AT_A_CALL: Dead = Dead { regs: 3 << 16, flags: true };

/// See [`crate::detour::build`].
pub(crate) fn build(
    plan: &Plan,
    handlers: &[Handler],
    at: Va,
    bias: i64,
    thunks: &Thunks,
    env: &Env,
) -> Result<Detour, DetourError> {
    let (site, isa, mut asm) = (plan.site.offset(bias), Isa::A64, Asm::new(at));
    let singly = env.singly && handlers.len() > 1;
    let record = record(plan, handlers).filter(|_| !singly);
    if let Some(record) = record {
        raw(&mut asm, &record.to_bytes());
    }
    let handlers = if record.is_some() { &[] } else { handlers };
    let (before, after) = plan.displaced.split_at(plan.before_handler.min(plan.displaced.len()));

    let (copies, guarded, switches, cold) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut around = Around { plan, bias, start: at, thunks, env, singly, copies, guarded, switches, cold };
    around.displace(&mut asm, before)?;
    let (mut placed, handlers): (Vec<&Handler>, Vec<&Handler>) =
        handlers.iter().partition(|handler| matches!(handler, Handler::Guard { .. } | Handler::Exit { .. }));
    // In the order of the instructions. At an exit the newest comes first, as at a replaced return
    // address.
    placed.reverse();
    placed.sort_by_key(|handler| handler.before());
    let at_site = placed.iter().take_while(|handler| handler.before() == 0).count();
    let (posts, handlers): (Vec<&Handler>, Vec<&Handler>) =
        handlers.into_iter().partition(|handler| matches!(handler, Handler::Post(_)));
    let undone = plan.lead.filter(|_| handlers.iter().any(|handler| sees_stack(handler, isa))).and_then(undo);
    if let Some((_, bytes)) = undone {
        raise(&mut asm, bytes);
    }
    for (i, handler) in handlers.iter().enumerate() {
        // Programs see the registers of the site, also those that the function does not need.
        let dead = Dead { regs: plan.dead_regs, flags: plan.dead_flags };
        let later = handlers[i + 1..].iter().chain(&posts).chain(&placed);
        let dead = later.fold(dead, |dead, later| reads(later, env).spare(isa, dead));
        let switch = singly.then(|| switch(&mut asm));
        match handler {
            Handler::Program(program) => {
                around.cold.extend(inline::count(&mut asm, dead, program, thunk_of(program, thunks)?, env));
            }
            Handler::Replace { count, function } => {
                let cold = inline::count(&mut asm, AT_A_CALL, count, thunk_of(count, thunks)?, env);
                around.cold.extend(cold);
                go_to(&mut asm, *function);
            }
            Handler::Post(_) | Handler::Exit { .. } => {}
            Handler::Return { probe } => call(&mut asm, *probe, thunks.returns),
            Handler::Enter { probe, program } => call(&mut asm, *probe, thunks.end(Side::Enter, *program)),
            Handler::Agent { probe } | Handler::Guard { probe, .. } => call(&mut asm, *probe, thunks.agent),
        }
        around.switched(&asm, switch, handler);
    }
    let own_places = !placed.is_empty() || !posts.is_empty() || !before.is_empty();
    let leads = record.is_none() && undone.is_none() && !own_places;
    if let Some((insn, _)) = undone {
        relocated(&mut asm, &insn, plan, bias)?;
    }
    let mut after = after;
    for handler in &placed[..at_site] {
        around.put(&mut asm, handler, after.first())?;
    }
    if !posts.is_empty() {
        plan.behind()?;
        let (first, rest) = after.split_at(1.min(after.len()));
        around.displace(&mut asm, first)?;
        for handler in posts {
            let Handler::Post(program) = handler else { continue };
            let switch = singly.then(|| self::switch(&mut asm));
            let cold = inline::count(&mut asm, Dead::default(), program, thunk_of(program, thunks)?, env);
            around.cold.extend(cold);
            around.switched(&asm, switch, handler);
        }
        after = rest;
    }
    for handler in &placed[at_site..] {
        let before = handler.before().saturating_sub(plan.displaced.len() - after.len());
        let (first, rest) = after.split_at(before.min(after.len()));
        around.displace(&mut asm, first)?;
        after = rest;
        around.put(&mut asm, handler, after.first())?;
    }
    around.displace(&mut asm, after)?;
    if let Some(resume) = plan.resume {
        around.copies.push(offsets(plan.site, resume, &asm, at));
        asm.b_to(resume.offset(bias))?;
    }
    for cold in std::mem::take(&mut around.cold) {
        cold.emit(&mut asm);
    }
    let Around { copies, guarded, switches, .. } = around;
    let copies = short(copies).ok_or(DetourError::TooLong { site })?;
    let guards = short(guarded).ok_or(DetourError::TooLong { site })?;
    let traps = if plan.technique == Technique::Trap { vec![(0, 0)] } else { Vec::new() };
    Ok(Detour {
        at,
        bytes: asm.finish().map_err(|error| unreachable(at, error))?,
        recorded: record.is_some(),
        isa,
        leads,
        site,
        patch: patch(plan, bias, at)?,
        relies_on: Vec::new(),
        stub: None,
        island: None,
        traps,
        copies,
        guards,
        gate: None,
        switches,
    })
}

/// See [`crate::codegen::detour::patch`].
pub(crate) fn patch(plan: &Plan, bias: i64, at: Va) -> Result<Vec<u8>, OutOfReach> {
    match plan.patch {
        Patch::Trap => Ok(Isa::A64.limits().breakpoint.to_vec()),
        Patch::Jump { .. } | Patch::Short { .. } => jump(plan.site.offset(bias), at).map(|bytes| bytes.to_vec()),
    }
}

/// Code without an encoding: an address is too far away, or is none of a program.
fn unreachable(from: Va, error: EncodeError) -> DetourError {
    match error {
        EncodeError::Reach(error) => error.into(),
        EncodeError::Operand { value, .. } => OutOfReach { from, to: Va(value as u64) }.into(),
        EncodeError::Register { .. } => OutOfReach { from, to: from }.into(),
    }
}

/// Words as they are.
fn raw(asm: &mut Asm, bytes: &[u8]) {
    for word in bytes.chunks_exact(4) {
        asm.word(word.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)));
    }
}

fn offsets(site: Va, original: Va, asm: &Asm, at: Va) -> (u64, u64) {
    (original.0.wrapping_sub(site.0), asm.here().0.wrapping_sub(at.0))
}

/// Emits a copy of an instruction.
fn relocated(asm: &mut Asm, insn: &DisplacedInsn, plan: &Plan, bias: i64) -> Result<(), DetourError> {
    let from = insn.va.offset(bias);
    let mut out = Vec::new();
    relocate(plan.isa, insn.bytes(), from, asm.here(), &mut out)
        .map_err(|source| DetourError::Relocate { va: from, source })?;
    raw(asm, &out);
    Ok(())
}

/// Raises the stack pointer.
fn raise(asm: &mut Asm, bytes: i32) {
    let bytes = i64::from(bytes);
    for part in [bytes & !0xfff, bytes & 0xfff].into_iter().filter(|part| *part != 0) {
        asm.push(add_imm(Reg::SP, Reg::SP, part));
    }
}

/// Calls a thunk with the number of a probe.
fn call(asm: &mut Asm, probe: u32, thunk: Places) {
    let to = thunk.at(Place::Entry);
    enter(asm);
    asm.push(movz(x(16), probe as u16, 0));
    if probe > 0xffff {
        asm.push(movk(x(16), (probe >> 16) as u16, 1));
    }
    asm.push(bl(asm.here(), to));
    leave(asm);
}

/// Goes to a function, at its call: in four words, wherever it is. `ret` asks for no landing pad.
fn go_to(asm: &mut Asm, function: Va) {
    match b(asm.here(), function) {
        Ok(near) => [near, nop(), nop(), nop()].into_iter().for_each(|word| asm.word(word)),
        Err(_) => {
            asm.mov_address(x(16), function.0);
            asm.push(ret(x(16)));
        }
    }
}

/// Emits the switch in front of a handler, on. Gives the address of its word.
fn switch(asm: &mut Asm) -> Va {
    align(asm, 8);
    let word = asm.here();
    (0..2).for_each(|_| asm.word(nop()));
    word
}

/// The switch with this word, behind its handler.
fn switched(word: Va, asm: &Asm) -> Option<HandlerSwitch> {
    let words = |first: u32| u64::from(nop()) << 32 | u64::from(first);
    let over = b(word, asm.here()).ok()?;
    Some(HandlerSwitch { word: word.0, on: words(nop()), off: words(over) })
}
