//! From a plan and a handler to bytes: the detour, and the patch that leads to it.
//!
//! ```text
//!   site:    jmp detour            (or int3, and the trap handler continues at the detour)
//!            jmp stub              (where not all bytes of the displacement are free)
//!            jmp island            (2 bytes, to padding where the jump is put)
//!   detour:  [displaced instructions that come before the handler]
//!            [undo the lead: see `policy::lead`]
//!            [step over the red zone]
//!            handler, with its context
//!            [undo]
//!            [the lead once more]
//!            displaced instructions (handlers behind the first one, guards, maybe a gate)
//!            jmp resume
//!   cold:    [slow path of an inline handler]
//!
//!   detour:  TrapRecord            (of a trap where the trap handler counts the hits)
//!            displaced instruction (for what the handler cannot do)
//!            jmp resume
//! ```
//!
//! Lengths do not depend on addresses, so a detour can be measured before its slab exists.

mod around;
mod inline;
pub(crate) mod saved;
pub use inline::Inlined;

use sidestep_isa::live::Dead;
use sidestep_isa::patch::OutOfReach;
use sidestep_isa::relocate;
use sidestep_isa::x86::emit::{Asm, Reg, TRAP_PATCH, jump_patch, short_jump_patch};
use sidestep_isa::{Isa, Len, Va};
use sidestep_wire::HandlerSwitch;
use sidestep_wire::arch::x86::NO_PREFIX;

use crate::codegen::detour::{Detour, DetourError, reads, record, sees_stack, short, thunk_of, undo};
use crate::codegen::handler::Handler;
use crate::codegen::thunk::{Env, Place, Places, Side, Thunks};
use crate::codegen::x86::thunk::{RED_ZONE, watched};
use crate::policy::plan::{DisplacedInsn, Patch, Plan, SiteKind, Technique};
use around::Around;

/// See [`crate::detour::build`].
pub(crate) fn build(
    plan: &Plan,
    handlers: &[Handler],
    at: Va,
    bias: i64,
    thunks: &Thunks,
    env: &Env,
) -> Result<Detour, DetourError> {
    match build_with(Asm::near(plan.isa, at), plan, handlers, bias, thunks, env)? {
        Some(detour) => Ok(detour),
        None => build_with(Asm::of(plan.isa, at), plan, handlers, bias, thunks, env)?
            .ok_or(DetourError::TooLong { site: plan.site.offset(bias) }),
    }
}

/// As [`build`], with the jumps that `asm` makes; `None` if they are too short.
fn build_with(
    mut asm: Asm,
    plan: &Plan,
    handlers: &[Handler],
    bias: i64,
    thunks: &Thunks,
    env: &Env,
) -> Result<Option<Detour>, DetourError> {
    let (site, at, isa) = (plan.site.offset(bias), asm.here(), plan.isa);
    let mut copies = Vec::new();
    let singly = env.singly && handlers.len() > 1;
    let record = record(plan, handlers).filter(|_| !singly);
    let mut switches = Vec::new();
    if let Some(record) = record {
        asm.raw(&record.to_bytes());
    }
    let handlers = if record.is_some() { &[] } else { handlers };
    let split = plan.before_handler.min(plan.displaced.len());
    let (before, after) = plan.displaced.split_at(split);

    displace(&mut asm, before, plan, bias, &mut copies)?;
    let (mut placed, handlers): (Vec<&Handler>, Vec<&Handler>) =
        handlers.iter().partition(|handler| matches!(handler, Handler::Guard { .. } | Handler::Exit { .. }));
    // In the order of the instructions. At an exit the newest comes first, as at a replaced return
    // address.
    placed.reverse();
    placed.sort_by_key(|handler| handler.before());
    let at_site = placed.iter().take_while(|handler| handler.before() == 0).count();
    let (posts, handlers): (Vec<&Handler>, Vec<&Handler>) =
        handlers.into_iter().partition(|handler| matches!(handler, Handler::Post(_)));
    // In 32-bit code nothing lives below the stack pointer.
    let inside = plan.kind == SiteKind::Inside && !handlers.is_empty() && isa == Isa::X64;
    let undone = plan.lead.filter(|_| handlers.iter().any(|handler| sees_stack(handler, isa))).and_then(undo);
    if let Some((_, bytes)) = undone {
        step(&mut asm, bytes);
    }
    let hit_at = plan.hit_at().offset(bias);
    if inside {
        step(&mut asm, -RED_ZONE);
    }
    let mut cold = Vec::new();
    for (i, handler) in handlers.iter().enumerate() {
        // Programs see the registers of the site, also those that the function does not need.
        let dead = Dead { regs: plan.dead_regs, flags: plan.dead_flags };
        let later = handlers[i + 1..].iter().chain(&posts).chain(&placed);
        let dead = later.fold(dead, |dead, later| reads(later, env).spare(isa, dead));
        let switch = singly.then(|| switch(&mut asm));
        match handler {
            Handler::Program(program) if isa == Isa::X86 => {
                cold.extend(inline::count(&mut asm, dead, program, thunk_of(program, thunks)?, env)?);
            }
            Handler::Program(program) => {
                let thunk = thunk_of(program, thunks)?;
                let (place, all) = (Place::of(dead, inside), (thunk, &thunks.inlined));
                cold.extend(inline::program(&mut asm, dead, hit_at, program, all, place, env)?);
            }
            Handler::Replace { count, function } => {
                let thunk = thunk_of(count, thunks)?;
                cold.extend(match isa {
                    // Static functions have arguments in the registers that others may change.
                    Isa::X86 => inline::count(&mut asm, dead, count, thunk, env)?,
                    _ => {
                        let (place, all) = (Place::of(AT_A_CALL, inside), (thunk, &thunks.inlined));
                        inline::program(&mut asm, AT_A_CALL, site, count, all, place, env)?
                    }
                });
                asm.jmp_far(*function);
            }
            Handler::Post(_) | Handler::Exit { .. } => {}
            // The last one decides how the function is entered.
            Handler::Return { probe } if !inside && i + 1 == handlers.len() && isa == Isa::X64 => {
                asm.push_imm(*probe as i32);
                asm.call_to(thunks.returns.at(Place::of(dead, inside)))?;
                watched::enter(&mut asm, thunks.enter)?;
            }
            Handler::Enter { probe, program } => {
                call(&mut asm, *probe, thunks.end(Side::Enter, *program), Place::of(dead, inside))?;
            }
            Handler::Agent { probe } | Handler::Return { probe } | Handler::Guard { probe, .. } => {
                call(&mut asm, *probe, thunks.agent, Place::of(dead, inside))?;
            }
        }
        switches.extend(switch.map(|word| (handler.probe(), switched(word, &asm))));
    }
    if inside {
        step(&mut asm, RED_ZONE);
    }
    let own_places = !placed.is_empty() || !posts.is_empty() || !before.is_empty();
    let leads = record.is_none() && undone.is_none() && !own_places;
    if let Some((insn, _)) = undone {
        relocated(&mut asm, &insn, plan, bias)?;
    }
    let mut after = after;
    let mut gate = None;
    let mut around = Around { plan, bias, start: at, thunks, env, singly, guarded: Vec::new(), switches };
    for handler in &placed[..at_site] {
        around.put(&mut asm, handler, after.first(), &mut cold)?;
    }
    if !posts.is_empty() {
        let behind = plan.behind()?.offset(bias);
        let (first, rest) = after.split_at(1.min(after.len()));
        displace(&mut asm, first, plan, bias, &mut copies)?;
        let zone = if isa == Isa::X64 { RED_ZONE } else { 0 };
        step(&mut asm, -zone);
        for handler in posts {
            if let Handler::Post(program) = handler {
                let thunk = thunk_of(program, thunks)?;
                let switch = singly.then(|| switch(&mut asm));
                cold.extend(match isa {
                    Isa::X86 => inline::count(&mut asm, Dead::default(), program, thunk, env)?,
                    _ => {
                        let (live, all) = (Dead::default(), (thunk, &thunks.inlined));
                        inline::program(&mut asm, live, behind, program, all, Place::Inside, env)?
                    }
                });
                around.switches.extend(switch.map(|word| (handler.probe(), switched(word, &asm))));
            }
        }
        step(&mut asm, zone);
        after = rest;
    }
    if let (true, [first, rest @ ..]) = (plan.gate, &plan.displaced[..]) {
        if after.len() == plan.displaced.len() {
            displace(&mut asm, &[*first], plan, bias, &mut copies)?;
            after = rest;
        }
        if !rest.is_empty() {
            gate = Some(gate_to(&mut asm, plan, bias));
        }
    }
    for handler in &placed[at_site..] {
        let before = handler.before().saturating_sub(plan.displaced.len() - after.len());
        let (first, rest) = after.split_at(before.min(after.len()));
        displace(&mut asm, first, plan, bias, &mut copies)?;
        after = rest;
        around.put(&mut asm, handler, after.first(), &mut cold)?;
    }
    displace(&mut asm, after, plan, bias, &mut copies)?;
    if let Some(resume) = plan.resume {
        if plan.gate && gate.is_none() {
            gate = Some(gate_to(&mut asm, plan, bias));
        } else {
            copies.push(offsets(plan.site, resume, &asm, at));
            asm.jmp_to(resume.offset(bias))?;
        }
    }
    copies.extend(gate.iter().map(|(pair, _)| *pair));
    // Another session's jump may take the place of the copies, and of nothing else.
    let first = copies.first().map_or(0, |(_, to)| *to);
    while matches!(plan.patch, Patch::Jump { .. }) && (asm.len() as u64) < first + JUMP {
        asm.raw(&TRAP_PATCH);
    }
    for cold in cold {
        cold.emit(&mut asm)?;
    }
    if !asm.fits() {
        return Ok(None);
    }
    let copies = short(copies).ok_or(DetourError::TooLong { site })?;
    let Around { guarded, switches, .. } = around;
    let guards = short(guarded).ok_or(DetourError::TooLong { site })?;
    let (patch, relies_on) = patch(plan, bias, at)?;
    let (stub, island) = match plan.patch {
        Patch::Jump { stub: Some(to), .. } => (Some((to.offset(bias), stub(isa, to.offset(bias), at))), None),
        Patch::Short { island: to } => {
            (None, Some((to.offset(bias), jump_patch(plan.isa, to.offset(bias), at)?.to_vec())))
        }
        Patch::Jump { stub: None, .. } | Patch::Trap => (None, None),
    };
    let traps = match plan.technique {
        Technique::Trap => vec![(0, 0)],
        Technique::GuardedJump => {
            copies.iter().copied().filter(|(from, _)| (1..patch.len() as u16).contains(from)).collect()
        }
        _ => Vec::new(),
    };
    let gate = gate.map(|(_, word)| u16::try_from(word)).transpose().map_err(|_| DetourError::TooLong { site })?;
    let (recorded, bytes) = (record.is_some(), asm.finish());
    Ok(Some(Detour {
        at,
        bytes,
        recorded,
        isa,
        leads,
        site,
        patch,
        relies_on,
        stub,
        island,
        traps,
        copies,
        guards,
        gate,
        switches,
    }))
}

/// See [`crate::codegen::detour::patch`].
pub(crate) fn patch(plan: &Plan, bias: i64, at: Va) -> Result<(Vec<u8>, Vec<u8>), OutOfReach> {
    let site = plan.site.offset(bias);
    let mut all = match plan.patch {
        Patch::Trap => TRAP_PATCH.to_vec(),
        Patch::Short { island } => short_jump_patch(site, island.offset(bias))?.to_vec(),
        Patch::Jump { prefixes, stub } => {
            let prefixes = vec![NO_PREFIX; prefixes.into()];
            let to = stub.map_or(at, |stub| stub.offset(bias));
            let jump = jump_patch(plan.isa, site.plus(Len(prefixes.len() as u64)), to)?;
            [&prefixes[..], &jump].concat()
        }
    };
    let written = all.len().min(plan.region.0 as usize);
    let relies_on = all.split_off(written);
    Ok((all, relies_on))
}

/// Code at `at` that leads to a detour.
fn stub(isa: Isa, at: Va, detour: Va) -> Vec<u8> {
    let mut asm = Asm::of(isa, at);
    if asm.jmp_to(detour).is_err() {
        asm.jmp_far(detour);
    }
    asm.finish()
}

fn offsets(site: Va, original: Va, asm: &Asm, at: Va) -> (u64, u64) {
    (original.0 - site.0, asm.here().0 - at.0)
}

/// Emits a gate, closed: it leads to the original instruction behind the first one. Or open, if the
/// jump is there: to the copies behind it. Gives what it stands for with its place, and the place
/// of its word.
fn gate_to(asm: &mut Asm, plan: &Plan, bias: i64) -> ((u64, u64), u64) {
    let start = asm.here().0 - asm.len() as u64;
    let to = plan.site.plus(Len(plan.displaced.first().map_or(0, |first| u64::from(first.len))));
    let gate = (to.since(plan.site) as u64, asm.here().0 - start);
    let is_open = plan.may_be_around() && !plan.is_blocked();
    let word = jump_by_word(asm, |word| if is_open { behind_word(word) } else { to.offset(bias) });
    (gate, word.0 - start)
}

/// Emits the switch in front of a handler, on. Gives the address of its word.
fn switch(asm: &mut Asm) -> Va {
    jump_by_word(asm, behind_word)
}

/// What is behind the word of a jump by a word.
fn behind_word(word: Va) -> Va {
    word.plus(Len(8))
}

/// The switch with this word, behind its handler.
fn switched(word: Va, asm: &Asm) -> HandlerSwitch {
    HandlerSwitch { word: word.0, on: word.0 + 8, off: asm.here().0 }
}

/// Emits a jump by a word, and that behind it: aligned, so that it changes at once. Gives its
/// address.
fn jump_by_word(asm: &mut Asm, to: impl FnOnce(Va) -> Va) -> Va {
    let word = Va((asm.here().0 + JUMP_BY_WORD).next_multiple_of(8));
    asm.jmp_by(word);
    while asm.here() != word {
        asm.raw(&TRAP_PATCH);
    }
    asm.raw(&to(word).0.to_le_bytes());
    word
}

/// Bytes of a jump.
const JUMP: u64 = 5;
/// Bytes of a jump by a word.
const JUMP_BY_WORD: u64 = 6;

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
        relocated(asm, insn, plan, bias)?;
    }
    Ok(())
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

/// What every function may change at once, whatever its arguments are: `r11` belongs to what is
/// between caller and callee (System V ABI, AMD64 supplement, 3.2.1).
const AT_A_CALL: Dead = Dead { regs: 1 << Reg::R11 as u8, flags: true };

/// Calls a thunk with the number of a probe.
fn call(asm: &mut Asm, probe: u32, thunk: Places, place: Place) -> Result<(), OutOfReach> {
    asm.push_imm(probe as i32);
    asm.call_to(thunk.at(place))?;
    step(asm, asm.isa().word() as i32);
    Ok(())
}

/// Moves the stack pointer.
fn step(asm: &mut Asm, by: i32) {
    if by != 0 {
        asm.lea(Reg::Rsp, Reg::Rsp, by);
    }
}
