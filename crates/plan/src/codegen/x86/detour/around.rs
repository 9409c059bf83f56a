//! Handlers among the displaced instructions: guards of system calls, and handlers of exits.

use sidestep_isa::live::Dead;
use sidestep_isa::x86::emit::Asm;
use sidestep_isa::{Isa, Va};
use sidestep_wire::HandlerSwitch;

use super::{call, inline, offsets, step, switch, switched};
use crate::codegen::detour::{DetourError, thunk_of};
use crate::codegen::handler::{AtExit, Handler};
use crate::codegen::thunk::{Env, Place, Side, Thunks};
use crate::codegen::x86::thunk::RED_ZONE;
use crate::policy::plan::{DisplacedInsn, Plan};

/// What handlers at a place of their own need of the detour that they are in.
pub(super) struct Around<'d> {
    pub plan: &'d Plan,
    pub bias: i64,
    /// Where the detour starts.
    pub start: Va,
    pub thunks: &'d Thunks,
    pub env: &'d Env,
    pub singly: bool,
    /// For each guard: the offset of its system call from the site, and its own in the detour.
    pub guarded: Vec<(u64, u64)>,
    pub switches: Vec<(u32, HandlerSwitch)>,
}

impl Around<'_> {
    /// Emits a guard, or the handler of an exit, in front of the displaced instruction `next`.
    /// `None`: the next one is not displaced.
    pub fn put(
        &mut self,
        asm: &mut Asm,
        handler: &Handler,
        next: Option<&DisplacedInsn>,
        cold: &mut Vec<inline::Cold>,
    ) -> Result<(), DetourError> {
        let Around { plan, thunks, env, .. } = *self;
        let isa = plan.isa;
        let zone = if isa == Isa::X64 { RED_ZONE } else { 0 };
        match handler {
            Handler::Exit { run, .. } => {
                let switch = self.singly.then(|| switch(asm));
                // A branch is an exit only if it is taken.
                let over = asm.label();
                if let Some(condition) = next.and_then(|insn| insn.decoded(isa).ok()?.condition()) {
                    asm.jump_unless(condition, over);
                }
                step(asm, -zone);
                match run {
                    AtExit::Leave { probe, program } => {
                        call(asm, *probe, thunks.end(Side::Leave, *program), Place::Inside)?;
                    }
                    AtExit::Jump { probe, program } => {
                        call(asm, *probe, thunks.end(Side::Jump, *program), Place::Inside)?;
                    }
                    AtExit::Agent { probe } => call(asm, *probe, thunks.agent, Place::Inside)?,
                    AtExit::Program(program) => {
                        let (thunk, live) = (thunk_of(program, thunks)?, Dead::default());
                        let ip = plan.site.offset(self.bias);
                        cold.extend(match isa {
                            Isa::X86 => inline::count(asm, live, program, thunk, env)?,
                            _ => inline::program(asm, live, ip, program, (thunk, &thunks.inlined), Place::Exit, env)?,
                        });
                    }
                }
                step(asm, zone);
                asm.bind(over);
                self.switches.extend(switch.map(|word| (handler.probe(), switched(word, asm))));
            }
            Handler::Guard { probe, .. } => {
                if let Some(call) = next.map(|insn| insn.va).or(plan.resume) {
                    self.guarded.push(offsets(plan.site, call, asm, self.start));
                }
                step(asm, -zone);
                call(asm, *probe, thunks.agent, Place::Inside)?;
                step(asm, zone);
            }
            _ => {}
        }
        Ok(())
    }
}
