//! The displaced instructions, and the handlers among them: guards of system calls, and handlers of
//! exits.

use sidestep_isa::Va;
use sidestep_isa::a32::LINK;
use sidestep_isa::a32::emit::{Asm, Label};
use sidestep_isa::a32::relocate::load_of_return;
use sidestep_isa::live::Dead;
use sidestep_wire::HandlerSwitch;

use super::{call, inline, offsets, relocated, switch, switched};
use crate::codegen::detour::{DetourError, thunk_of};
use crate::codegen::handler::{AtExit, Handler};
use crate::codegen::thunk::{Env, Side, Thunks};
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
    /// For each displaced instruction: its offset from the site, and that of its copy.
    pub copies: Vec<(u64, u64)>,
    /// For each guard: the offset of its system call from the site, and its own in the detour.
    pub guarded: Vec<(u64, u64)>,
    pub switches: Vec<(u32, HandlerSwitch)>,
    /// The return whose load is in front of handlers of the exit.
    pub loaded: Option<Va>,
    /// What comes behind the detour.
    pub cold: Vec<inline::Cold>,
}

impl Around<'_> {
    /// Emits copies.
    pub fn displace(&mut self, asm: &mut Asm, insns: &[DisplacedInsn]) -> Result<(), DetourError> {
        for insn in insns {
            if self.loaded == Some(insn.va) {
                asm.bx(LINK);
                continue;
            }
            self.copies.push(offsets(self.plan.site, insn.va, asm, self.start));
            relocated(asm, insn, self.plan, self.bias)?;
        }
        Ok(())
    }

    /// Notes the switch of a handler, which ends here.
    pub fn switched(&mut self, asm: &Asm, switch: Option<Va>, handler: &Handler) -> Result<(), DetourError> {
        if let Some(word) = switch {
            self.switches.push((handler.probe(), switched(word, asm, self.plan.isa)?));
        }
        Ok(())
    }

    /// Emits a guard, or the handler of an exit, in front of the displaced instruction `next`.
    /// `None`: the next one is not displaced.
    pub fn put(&mut self, asm: &mut Asm, handler: &Handler, next: Option<&DisplacedInsn>) -> Result<(), DetourError> {
        match handler {
            Handler::Exit { run, .. } => {
                self.load_return(asm, next);
                let switch = self.singly.then(|| switch(asm));
                // A branch is an exit only if it is taken.
                let over = asm.label();
                self.unless_taken(asm, next, over);
                match run {
                    AtExit::Leave { probe, program } => call(asm, *probe, self.thunks.end(Side::Leave, *program))?,
                    AtExit::Jump { probe, program } => call(asm, *probe, self.thunks.end(Side::Jump, *program))?,
                    AtExit::Agent { probe } => call(asm, *probe, self.thunks.agent)?,
                    AtExit::Program(program) => {
                        let thunk = thunk_of(program, self.thunks)?;
                        self.cold.extend(inline::count(asm, Dead::default(), program, thunk, self.env)?);
                    }
                }
                asm.bind(over);
                self.switched(asm, switch, handler)?;
            }
            Handler::Guard { probe, .. } => {
                if let Some(call) = next.map(|insn| insn.va).or(self.plan.resume) {
                    self.guarded.push(offsets(self.plan.site, call, asm, self.start));
                }
                call(asm, *probe, self.thunks.agent)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A return that takes its address off the stack does so in front of the handlers: they see the
    /// stack pointer as it was at the entry, and the return address in the link register, which
    /// means nothing behind a return (AAPCS32, 6.1.1). The way back is `bx lr` then.
    fn load_return(&mut self, asm: &mut Asm, next: Option<&DisplacedInsn>) {
        let Some(insn) = next.filter(|insn| self.loaded != Some(insn.va)) else { return };
        if let Some(load) = load_of_return(self.plan.isa, insn.bytes()) {
            self.copies.push(offsets(self.plan.site, insn.va, asm, self.start));
            asm.raw(&load);
            self.loaded = Some(insn.va);
        }
    }

    /// Goes to `over` if the next instruction is a branch that is not going to be taken. Exits are
    /// branches with a condition, no others that may not be taken (`analysis::exits`).
    fn unless_taken(&self, asm: &mut Asm, next: Option<&DisplacedInsn>, over: Label) {
        let insn = next.and_then(|insn| insn.decoded(self.plan.isa).ok());
        if let Some(condition) = insn.and_then(|insn| insn.condition()) {
            asm.b_numbered(condition ^ 1, over);
        }
    }
}
