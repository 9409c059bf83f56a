//! What happens at a hit.

use std::rc::Rc;

use sidestep_bpf::pass::Addition;
use sidestep_bpf::verify::Verified;
use sidestep_isa::Va;

use crate::codegen::thunk::{Context, Side};

/// What a detour does besides what the program would have done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Handler {
    /// Counts the hit and runs an eBPF program.
    Program(Program),
    /// Counts the hit as a program does that does nothing, and goes on at the start of another
    /// function: whatever else is the matter, in a forked child for example.
    Replace {
        /// What counts.
        count: Program,
        /// Run-time address of that function.
        function: Va,
    },
    /// The same as [`Handler::Program`], when the probed instruction has been executed
    /// ([`crate::Plan::behind`]). The red zone may be in use there, even if the site is a function
    /// entry.
    Post(Program),
    /// Calls the agent's hit function.
    Agent {
        /// Number of the probe.
        probe: u32,
    },
    /// As [`Handler::Agent`], for a probe whose calls are remembered until they end at an exit.
    Enter {
        /// Number of the probe.
        probe: u32,
        /// Number of the program that runs.
        program: usize,
    },
    /// As [`Handler::Agent`], for a probe that may replace the return address.
    Return {
        /// Number of the probe.
        probe: u32,
    },
    /// Runs right before an exit of a function, which is one of the displaced instructions. The red
    /// zone may be in use there, even if the site is a function entry.
    Exit {
        /// How many displaced instructions run before it.
        before: usize,
        /// What runs.
        run: AtExit,
    },
    /// As [`Handler::Agent`], at a place of its own: behind the first displaced instructions
    /// (`plan::syscalls`). The red zone may be in use there, even if the site is a function entry.
    Guard {
        /// Number of the probe.
        probe: u32,
        /// How many displaced instructions run before it.
        before: usize,
    },
}

impl Handler {
    /// Does it run at an exit of a function?
    #[must_use]
    pub fn is_exit(&self) -> bool {
        matches!(self, Handler::Exit { .. })
    }

    /// Number of the thunks that it may need.
    #[must_use]
    pub fn thunk(&self) -> Option<usize> {
        match self {
            Handler::Program(program) | Handler::Post(program) | Handler::Replace { count: program, .. } => {
                Some(program.thunk)
            }
            Handler::Exit { run: AtExit::Program(program), .. } => Some(program.thunk),
            Handler::Exit { .. }
            | Handler::Agent { .. }
            | Handler::Enter { .. }
            | Handler::Return { .. }
            | Handler::Guard { .. } => None,
        }
    }

    /// Which end of remembered calls it is, and the number of the program that runs there.
    #[must_use]
    pub fn end(&self) -> Option<(Side, usize)> {
        match self {
            Handler::Enter { program, .. } => Some((Side::Enter, *program)),
            Handler::Exit { run: AtExit::Leave { program, .. }, .. } => Some((Side::Leave, *program)),
            Handler::Exit { run: AtExit::Jump { program, .. }, .. } => Some((Side::Jump, *program)),
            _ => None,
        }
    }

    /// How many displaced instructions run before it, of a handler at a place of its own; else 0.
    #[must_use]
    pub fn before(&self) -> usize {
        match self {
            Handler::Guard { before, .. } | Handler::Exit { before, .. } => *before,
            _ => 0,
        }
    }

    /// Without programs as parts of the detour that need memory of the stack: thunks see to it that
    /// the stack of a goroutine has enough.
    #[must_use]
    pub fn on_goroutine(mut self) -> Handler {
        let program = match &mut self {
            Handler::Program(program) | Handler::Post(program) | Handler::Replace { count: program, .. } => program,
            Handler::Exit { run: AtExit::Program(program), .. } => program,
            _ => return self,
        };
        let is_small = |verified: &Rc<Verified>| verified.program.functions.iter().all(|function| function.stack == 0);
        program.inline = program.inline.take().filter(is_small);
        program.filter = program.filter.take().filter(is_small);
        self
    }

    /// Number of its probe.
    #[must_use]
    pub fn probe(&self) -> u32 {
        match self {
            Handler::Program(program) | Handler::Post(program) | Handler::Replace { count: program, .. } => {
                program.probe
            }
            Handler::Exit { run: AtExit::Program(program), .. } => program.probe,
            Handler::Exit {
                run: AtExit::Agent { probe } | AtExit::Leave { probe, .. } | AtExit::Jump { probe, .. },
                ..
            } => *probe,
            Handler::Enter { probe, .. } => *probe,
            Handler::Agent { probe } | Handler::Return { probe } | Handler::Guard { probe, .. } => *probe,
        }
    }
}

/// What runs at an exit of a function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AtExit {
    /// A program that needs nothing of the entry of the call. It is a part of the detour only if it
    /// reads neither the instruction pointer nor the stack pointer: those of the exit are not those
    /// of the return.
    Program(Program),
    /// The end of a call that [`Handler::Enter`] has remembered.
    Leave {
        /// Number of the probe.
        probe: u32,
        /// Number of the program that runs.
        program: usize,
    },
    /// A call that [`Handler::Enter`] has remembered goes on in another function.
    Jump {
        /// Number of the probe.
        probe: u32,
        /// Number of a program that does nothing.
        program: usize,
    },
    /// The agent's hit function, which knows what is different.
    Agent {
        /// Number of the probe.
        probe: u32,
    },
}

/// Bytes of a cell.
const CELL: u64 = 8;

/// A program at a site, linked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Number of the probe: also the cell that counts its hits.
    pub probe: u32,
    /// Number of its thunks.
    pub thunk: usize,
    /// What it adds to words of the thread, if that is all that it does; empty: it does nothing,
    /// and the hit is counted.
    pub adds: Option<Rc<[Addition]>>,
    /// What it reads of the context.
    pub context: Context,
    /// What `get_attach_cookie` gives.
    pub cookie: u64,
    /// What `get_func_ip` gives: run-time address.
    pub func_ip: Va,
    /// The program, if it may become part of the detour.
    pub inline: Option<Rc<Verified>>,
    /// What decides, without any effect, whether the program would do anything
    /// ([`sidestep_bpf::pass::filter`]).
    pub filter: Option<Rc<Verified>>,
}

impl Program {
    /// Is a hit counted, and that is all?
    #[must_use]
    pub fn only_counts(&self) -> bool {
        self.adds.as_ref().is_some_and(|adds| adds.is_empty())
    }

    /// All additions to words of the thread at a hit, that of the hit included, in ascending order.
    /// `None`: the program does something else.
    #[must_use]
    pub fn additions(&self) -> Option<Vec<Addition>> {
        let hit = Addition { offset: u64::from(self.probe) * CELL, value: 1 };
        let mut all: Vec<Addition> = self.adds.as_ref()?.iter().copied().chain([hit]).collect();
        all.sort_unstable();
        Some(all)
    }
}
