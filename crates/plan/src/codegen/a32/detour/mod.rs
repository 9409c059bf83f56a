//! From a plan and its handlers to bytes: the detour, and the patch that leads to it.
//!
//! ```text
//!   site:    b detour              (or udf, and the trap handler continues at the detour)
//!   detour:  [displaced instructions that come before the handler]
//!            [undo the lead: see `policy::lead`]
//!            handlers
//!            [the lead once more]
//!            displaced instructions (handlers behind the first one, guards, maybe a gate)
//!            b resume
//!   cold:    [slow paths of counts]
//!
//!   detour:  TrapRecord            (of a trap where the trap handler counts the hits)
//!            displaced instruction (for what the handler cannot do)
//!            b resume
//! ```
//!
//! A detour is written in the instruction set of its site, since copies have to run in that.
//! Lengths do not depend on addresses, which are multiples of 8.
//!
//! In front of a handler that can be switched are 8 bytes of `nop`s, at a multiple of 8. The first
//! one may be a `b` behind the handler instead, of T32 in 16 bits; one may take the place of the
//! other while threads run ([`sidestep_isa::a32::patch`]).

mod around;
mod inline;

use sidestep_isa::a32::emit::{self, Asm, EncodeError, list};
use sidestep_isa::a32::patch::jump;
use sidestep_isa::a32::{PC, SP};
use sidestep_isa::live::Dead;
use sidestep_isa::patch::OutOfReach;
use sidestep_isa::relocate;
use sidestep_isa::{Isa, Len, Va};
use sidestep_wire::HandlerSwitch;

use crate::codegen::a32::thunk::{IP, enter, leave};
use crate::codegen::detour::{Detour, DetourError, reads, record, sees_stack, short, thunk_of, undo};
use crate::codegen::handler::Handler;
use crate::codegen::thunk::{Env, Place, Places, Side, Thunks};
use crate::policy::plan::{DisplacedInsn, Patch, Plan, Technique};
use around::Around;

/// What is free when one function has called another, whatever its arguments are: what lies between
/// the two may change it (AAPCS32, 6.1.1).
const AT_A_CALL: Dead = Dead { regs: 1 << IP, flags: true };

/// Bytes of the jump at a site.
const JUMP: u64 = 4;

/// See [`crate::detour::build`].
pub(crate) fn build(
    plan: &Plan,
    handlers: &[Handler],
    at: Va,
    bias: i64,
    thunks: &Thunks,
    env: &Env,
) -> Result<Detour, DetourError> {
    let (site, isa, mut asm) = (plan.site.offset(bias), plan.isa, Asm::new(plan.isa, at));
    let singly = env.singly && handlers.len() > 1;
    let record = record(plan, handlers).filter(|_| !singly);
    if let Some(record) = record {
        asm.raw(&record.to_bytes());
    }
    let handlers = if record.is_some() { &[] } else { handlers };
    let (before, after) = plan.displaced.split_at(plan.before_handler.min(plan.displaced.len()));

    let (copies, guarded, switches, cold) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let loaded = None;
    let mut around = Around { plan, bias, start: at, thunks, env, singly, copies, guarded, switches, loaded, cold };
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
                around.cold.extend(inline::count(&mut asm, dead, program, thunk_of(program, thunks)?, env)?);
            }
            Handler::Replace { count, function } => {
                let cold = inline::count(&mut asm, AT_A_CALL, count, thunk_of(count, thunks)?, env)?;
                around.cold.extend(cold);
                go_to(&mut asm, *function, isa);
            }
            Handler::Post(_) | Handler::Exit { .. } => {}
            Handler::Return { probe } => call(&mut asm, *probe, thunks.returns)?,
            Handler::Enter { probe, program } => call(&mut asm, *probe, thunks.end(Side::Enter, *program))?,
            Handler::Agent { probe } | Handler::Guard { probe, .. } => call(&mut asm, *probe, thunks.agent)?,
        }
        around.switched(&asm, switch, handler)?;
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
            let cold = inline::count(&mut asm, Dead::default(), program, thunk_of(program, thunks)?, env)?;
            around.cold.extend(cold);
            around.switched(&asm, switch, handler)?;
        }
        after = rest;
    }
    let mut gate = None;
    if let (true, [first, rest @ ..]) = (plan.gate, &plan.displaced[..]) {
        if after.len() == plan.displaced.len() {
            around.displace(&mut asm, &[*first])?;
            after = rest;
        }
        if !rest.is_empty() {
            gate = Some(gate_to(&mut asm, plan, bias, at));
        }
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
        if plan.gate && gate.is_none() {
            gate = Some(gate_to(&mut asm, plan, bias, at));
        } else {
            around.copies.push(offsets(plan.site, resume, &asm, at));
            asm.b_to(resume.offset(bias))?;
        }
    }
    around.copies.extend(gate.iter().map(|(pair, _)| *pair));
    // Another session's jump may take the place of the copies, and of nothing else.
    let first = around.copies.first().map_or(0, |(_, to)| *to);
    while (asm.len() as u64) < first + JUMP {
        asm.nop();
    }
    for cold in std::mem::take(&mut around.cold) {
        cold.emit(&mut asm)?;
    }
    let Around { copies, guarded, switches, .. } = around;
    let copies = short(copies).ok_or(DetourError::TooLong { site })?;
    let guards = short(guarded).ok_or(DetourError::TooLong { site })?;
    let gate = gate.map(|(_, word)| u16::try_from(word)).transpose().map_err(|_| DetourError::TooLong { site })?;
    let traps = if plan.technique == Technique::Trap { vec![(0, 0)] } else { Vec::new() };
    Ok(Detour {
        at,
        bytes: asm.finish().map_err(unreachable)?,
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
        gate,
        switches,
    })
}

/// See [`crate::codegen::detour::patch`].
pub(crate) fn patch(plan: &Plan, bias: i64, at: Va) -> Result<Vec<u8>, OutOfReach> {
    match plan.patch {
        Patch::Trap => Ok(plan.isa.limits().breakpoint.to_vec()),
        Patch::Jump { .. } | Patch::Short { .. } => {
            jump(plan.isa, plan.site.offset(bias), at).map(|bytes| bytes.to_vec())
        }
    }
}

/// Code without an encoding: an address is too far away, or a number is none of an instruction.
fn unreachable(error: EncodeError) -> DetourError {
    match error {
        EncodeError::Reach(error) => error.into(),
        EncodeError::Operand { at, value } => OutOfReach { from: at, to: Va(value.into()) }.into(),
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
    asm.raw(&out);
    Ok(())
}

/// Raises the stack pointer by a number that one instruction of the program has lowered it by.
fn raise(asm: &mut Asm, bytes: i32) {
    // What one instruction has is at most two parts here.
    let bytes = bytes as u32;
    let parts = if asm.has_immediate(bytes) { [bytes, 0] } else { [bytes & !0xff, bytes & 0xff] };
    for part in parts.into_iter().filter(|part| *part != 0) {
        asm.add_imm(SP, SP, part);
    }
}

/// Calls a thunk with the number of a probe.
fn call(asm: &mut Asm, probe: u32, thunk: Places) -> Result<(), OutOfReach> {
    enter(asm);
    asm.movw(IP, probe as u16);
    if probe > 0xffff {
        asm.movt(IP, (probe >> 16) as u16);
    }
    asm.call_a32(thunk.at(Place::Entry))?;
    leave(asm);
    Ok(())
}

/// Goes to a function of the same instruction set, at its call. The length does not depend on where
/// it is.
fn go_to(asm: &mut Asm, function: Va, isa: Isa) {
    let start = asm.len();
    if asm.b_to(function).is_ok() {
        let len = if isa == Isa::T32 { 10 } else { 12 };
        while asm.len() < start + len {
            asm.nop();
        }
        return;
    }
    asm.constant(IP, function.0 as u32 | u32::from(isa == Isa::T32));
    asm.bx(IP);
}

/// Emits a gate, closed: it leads to the original instruction behind the first one. Or open, if the
/// jump is there: to the copies behind it. Gives what it stands for with its place, and the place
/// of its word. The word is an address without the bit that says T32, which the gate puts on: no
/// register is free, so one is on the stack meanwhile, below the address.
fn gate_to(asm: &mut Asm, plan: &Plan, bias: i64, start: Va) -> ((u64, u64), u64) {
    let to = plan.site.plus(Len(plan.displaced.first().map_or(0, |first| u64::from(first.len))));
    let pair = offsets(plan.site, to, asm, start);
    let is_open = plan.may_be_around() && !plan.is_blocked();
    let word = asm.label();
    asm.sub_imm(SP, SP, 8);
    asm.str(0, SP, 0);
    asm.ldr_literal(0, word);
    asm.orr_imm(0, 0, u8::from(plan.isa == Isa::T32));
    asm.str(0, SP, 4);
    asm.pop(list(&[0, PC]));
    asm.align(8);
    let at = asm.here();
    asm.bind(word);
    asm.quad(if is_open { at.0 + 8 } else { to.offset(bias).0 });
    (pair, at.since(start) as u64)
}

/// Emits the switch in front of a handler, on. Gives the address of its word.
fn switch(asm: &mut Asm) -> Va {
    asm.align(8);
    let word = asm.here();
    while asm.here().since(word) < 8 {
        asm.nop();
    }
    word
}

/// The switch with this word, behind its handler.
fn switched(word: Va, asm: &Asm, isa: Isa) -> Result<HandlerSwitch, OutOfReach> {
    let over = asm.here();
    let [on, off] = emit::switch(isa, word, over).ok_or(OutOfReach { from: word, to: over })?;
    Ok(HandlerSwitch { word: word.0, on, off })
}
