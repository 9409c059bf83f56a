//! What detours and the agent get of the programs of a probe.

use std::collections::BTreeSet;
use std::rc::Rc;

use sidestep_bpf::native;
use sidestep_isa::Va;
use sidestep_plan::handler::{self, AtExit, Handler};
use sidestep_plan::thunk::{self, Side};
use sidestep_sys::arch::ISA;
use sidestep_wire::{Flow, ProbeDesc};

use super::{Compiled, Ends, Part, Programs, Replaces};
use crate::api::Action;

impl Programs {
    /// Run-time address of the word that leads to the replaced function.
    pub fn original(&self, action: &Action) -> Option<Va> {
        action.entry.and_then(|i| self.at(i)).and_then(|p| p.replaces).map(|replaces| replaces.original)
    }

    /// Whether a program sends the thread somewhere else.
    pub fn redirects(&self, action: &Action) -> bool {
        let program = |i: usize| self.at(i).is_some_and(|p| p.thunk.changes.has_ip(ISA) || p.replaces.is_some());
        [action.entry, action.exit].into_iter().flatten().any(program)
    }

    /// For a slab with detours that need these.
    pub fn thunks(&self, needed: &BTreeSet<usize>, is_go: bool) -> Vec<Option<thunk::Program>> {
        let one = |p: &Compiled| thunk::Program { goroutine: is_go.then_some(p.stack), ..p.thunk };
        let programs = self.compiled.iter().chain(&self.completed).enumerate();
        programs.map(|(i, program)| needed.contains(&i).then(|| one(program))).collect()
    }

    /// The ends of remembered calls, for a slab with detours that need these.
    pub fn ends(&self, needed: &BTreeSet<(Side, usize)>) -> Vec<thunk::End> {
        let one = |(side, number): &(Side, usize)| {
            let program = self.at(*number)?.inline.clone()?;
            Some(thunk::End { side: *side, number: *number, program })
        };
        needed.iter().filter_map(one).collect()
    }

    /// For the agent.
    pub fn desc(&self, action: &Action, number: u32, cookie: u64, part: &Part) -> ProbeDesc {
        let program = |index: Option<usize>| index.and_then(|i| self.at(i)).map(|p| p.thunk);
        let code = |index| program(index).map_or(0, |p| p.code.0);
        let exclusive = [action.entry, action.exit].into_iter().any(|i| program(i).is_some_and(|p| p.exclusive));
        let programs = [action.entry, action.exit].into_iter().flatten().filter_map(|i| self.at(i));
        let mut flags = programs.fold(0, |flags, program| flags | program.flags);
        if action.entry.is_some() || action.exit.is_none() || *part == Part::Enter {
            flags |= ProbeDesc::COUNT_ENTRY;
        }
        match part {
            Part::Exit { ends: Ends::Shared | Ends::Jumped, .. } => flags |= ProbeDesc::SHARED,
            Part::Exit { ends: Ends::Not, .. } => flags |= ProbeDesc::JUMP,
            _ => {}
        }
        if exclusive {
            flags |= ProbeDesc::EXCLUSIVE;
        }
        if action.post {
            flags |= ProbeDesc::POST;
        }
        let cookie = self.original(action).map_or(cookie, |word| word.0);
        let (flow, entry, exit) = match part {
            Part::Whole if action.exit.is_none() => (Flow::Entry, action.entry, None),
            Part::Whole => (Flow::Return, action.entry, action.exit),
            Part::Enter => (Flow::Enter, action.entry, None),
            Part::Exit { ends: Ends::Not, .. } => (Flow::Exit, None, None),
            Part::Exit { .. } => (Flow::Exit, None, action.exit),
        };
        let (entry, exit) = (code(entry), code(exit));
        ProbeDesc { flow: flow as u32, hits: number, flags, cookie, entry, exit, ..ProbeDesc::default() }
    }

    /// Whether a program makes the probed function return.
    pub fn overrides(&self, action: &Action) -> bool {
        [action.entry, action.exit].into_iter().flatten().any(|i| self.at(i).is_some_and(|p| p.thunk.overrides))
    }

    /// For the detour.
    pub fn handler(&self, action: &Action, number: u32, cookie: u64, func_ip: Va, part: &Part) -> Handler {
        let last = self.compiled.len().saturating_sub(1);
        let at_entry = match part {
            Part::Whole if action.exit.is_some() => return Handler::Return { probe: number },
            // The agent keeps the places of calls that are limited.
            Part::Enter if action.maxactive != 0 => return Handler::Agent { probe: number },
            Part::Enter => return Handler::Enter { probe: number, program: action.entry.unwrap_or(last) },
            Part::Whole => action.entry,
            Part::Exit { before, ends: Ends::Not, .. } => {
                return Handler::Exit { before: *before, run: AtExit::Jump { probe: number, program: last } };
            }
            Part::Exit { before, paired, .. } => {
                let run = match action.exit {
                    Some(program) if *paired && action.maxactive == 0 => AtExit::Leave { probe: number, program },
                    _ => {
                        let run = self.at_exit(action, number, cookie, func_ip).filter(|_| !paired);
                        run.map_or(AtExit::Agent { probe: number }, AtExit::Program)
                    }
                };
                return Handler::Exit { before: *before, run };
            }
        };
        let thunk = at_entry.unwrap_or(last);
        let program = self.at(thunk);
        let replaces = program.and_then(|p| p.replaces);
        let counts = action.entry.is_none() || replaces.is_some();
        let handler = handler::Program {
            probe: number,
            thunk,
            adds: if counts { Some(Rc::default()) } else { program.and_then(|p| p.adds.clone()) },
            context: program.map(|p| p.thunk.context).unwrap_or_default(),
            cookie,
            func_ip,
            inline: program.and_then(|p| p.inline.clone()),
            // Where there is no program, every hit is counted.
            filter: program.filter(|_| !counts).and_then(|p| p.filter.clone()),
        };
        match replaces {
            Some(Replaces { function, .. }) => Handler::Replace { count: handler, function },
            None if action.post => Handler::Post(handler),
            None => Handler::Program(handler),
        }
    }

    /// The program of the return, for a site at an exit. Where there are no compiled programs, only
    /// the agent knows what an exit is. A program that only adds to cells need not know.
    fn at_exit(&self, action: &Action, number: u32, cookie: u64, func_ip: Va) -> Option<handler::Program> {
        let thunk = action.exit?;
        let program = self.at(thunk)?;
        // What differs between the exit and the return is not the same in a detour.
        let same = !program.thunk.context.has_frame(ISA);
        (native::is_for(ISA) || program.adds.is_some()).then(|| handler::Program {
            probe: number,
            thunk,
            adds: program.adds.clone(),
            context: program.thunk.context,
            cookie,
            func_ip,
            inline: program.inline.clone().filter(|_| same),
            filter: program.filter.clone().filter(|_| same),
        })
    }
}
