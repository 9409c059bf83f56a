//! Handlers of probes, for the tests that run generated code.

use std::rc::Rc;

use sidestep_bpf::pass::Addition;
use sidestep_isa::Va;
use sidestep_plan::handler::{Handler, Program};
use sidestep_plan::thunk::Context;

/// No program: its hits are counted in the detour.
pub fn nothing(probe: u32) -> Handler {
    let (context, adds) = (Context::default(), Some(Rc::default()));
    let (cookie, func_ip, inline, filter) = (0, Va(0), None, None);
    Handler::Program(Program { probe, thunk: 0, adds, context, cookie, func_ip, inline, filter })
}

/// The program of a handler that is one.
pub fn program_of(handler: Handler) -> Program {
    match handler {
        Handler::Program(program) => program,
        other => panic!("{other:?}"),
    }
}

/// A program that adds to cells, given by their numbers, and does nothing else.
pub fn adding(probe: u32, to: &[(u64, u8)]) -> Handler {
    let adds = to.iter().map(|(cell, value)| Addition { offset: 8 * cell, value: *value }).collect();
    Handler::Program(Program { adds: Some(adds), ..program_of(nothing(probe)) })
}
