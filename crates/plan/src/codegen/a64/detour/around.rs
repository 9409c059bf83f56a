//! The displaced instructions, and the handlers among them: guards of system calls, and handlers of
//! exits.

use sidestep_isa::Isa;
use sidestep_isa::Va;
use sidestep_isa::a64::emit::{Asm, Label, invert};
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
    /// What comes behind the detour.
    pub cold: Vec<inline::Cold>,
}

impl Around<'_> {
    /// Emits copies.
    pub fn displace(&mut self, asm: &mut Asm, insns: &[DisplacedInsn]) -> Result<(), DetourError> {
        for insn in insns {
            self.copies.push(offsets(self.plan.site, insn.va, asm, self.start));
            relocated(asm, insn, self.plan, self.bias)?;
        }
        Ok(())
    }

    /// Notes the switch of a handler, which ends here.
    pub fn switched(&mut self, asm: &Asm, switch: Option<Va>, handler: &Handler) {
        self.switches.extend(switch.and_then(|word| Some((handler.probe(), switched(word, asm)?))));
    }

    /// Emits a guard, or the handler of an exit, in front of the displaced instruction `next`.
    /// `None`: the next one is not displaced.
    pub fn put(&mut self, asm: &mut Asm, handler: &Handler, next: Option<&DisplacedInsn>) -> Result<(), DetourError> {
        match handler {
            Handler::Exit { run, .. } => {
                let switch = self.singly.then(|| switch(asm));
                // A branch is an exit only if it is taken.
                let over = asm.label();
                unless_taken(asm, next, over);
                match run {
                    AtExit::Leave { probe, program } => call(asm, *probe, self.thunks.end(Side::Leave, *program)),
                    AtExit::Jump { probe, program } => call(asm, *probe, self.thunks.end(Side::Jump, *program)),
                    AtExit::Agent { probe } => call(asm, *probe, self.thunks.agent),
                    AtExit::Program(program) => {
                        let thunk = thunk_of(program, self.thunks)?;
                        self.cold.extend(inline::count(asm, Dead::default(), program, thunk, self.env));
                    }
                }
                asm.bind(over);
                self.switched(asm, switch, handler);
            }
            Handler::Guard { probe, .. } => {
                if let Some(call) = next.map(|insn| insn.va).or(self.plan.resume) {
                    self.guarded.push(offsets(self.plan.site, call, asm, self.start));
                }
                call(asm, *probe, self.thunks.agent);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Goes to `over` if the next instruction is a branch that is not going to be taken.
fn unless_taken(asm: &mut Asm, next: Option<&DisplacedInsn>, over: Label) {
    let Some(insn) = next else { return };
    if insn.decoded(Isa::A64).ok().and_then(|insn| insn.condition()).is_none() {
        return;
    }
    let word = insn.bytes().iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    // The same condition, to the word behind the next one.
    if let Some(taken) = invert(word, 2).and_then(|word| invert(word, 2)) {
        asm.word(taken);
        asm.b(over);
    }
}
