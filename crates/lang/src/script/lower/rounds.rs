//! Loops of any number of rounds: the body is a function, which the helper `loop` calls.

use sidestep_bpf::{Cond, Insn, Reg, Size, Width};
use sidestep_wire::watchdog::ANY_NUMBER;

use super::super::checked::{Loop, Value};
use super::text::At;
use super::{Lower, SCRATCH, helper};
use crate::build::Label;

/// What ends a loop that does not end by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// The number of rounds that it may have.
    Rounds,
    /// The time that it may last.
    Time,
}

/// Words of a body that is called again and again.
pub(super) struct Calls {
    /// Where it begins.
    pub start: Label,
    /// A word that says that the block ends, if the body may do so.
    pub left: Option<u32>,
    /// A word that says that the loop came to its end, if time limits it.
    pub done: Option<u32>,
}

impl Lower<'_, '_> {
    /// Calls a body, which is still to be written, up to `most` times; how often it did is in `r0`.
    /// `leaves`: the body may end the block.
    pub(super) fn call_body(&mut self, most: &Value, leaves: bool, limit: Limit) -> Calls {
        let left = leaves.then(|| self.scratch(8));
        let done = (limit == Limit::Time).then(|| self.scratch(8));
        for word in left.into_iter().chain(done) {
            self.out.map_value(Reg::R1, SCRATCH, word);
            self.out.put_imm(Reg::R1, 0, 0);
        }
        let context = self.stack(8);
        self.int(most);
        self.out.put(Reg::R10, context, Reg::R6);
        let start = self.out.label();
        self.out.mov(Reg::R1, Reg::R0);
        self.out.function(Reg::R2, start);
        self.address(Reg::R3, At::Stack(context));
        self.out.mov_imm(Reg::R4, if limit == Limit::Time { ANY_NUMBER as i32 } else { 0 });
        self.out.call(helper::LOOP);
        Calls { start, left, done }
    }

    /// Ends the block if the body has said so; `r0` stays.
    pub(super) fn leave_if_left(&mut self, calls: &Calls) {
        if let Some(left) = calls.left {
            let end = self.end;
            self.out.map_value(Reg::R1, SCRATCH, left);
            self.out.load(Size::Dw, Reg::R1, Reg::R1, 0);
            self.out.branch_imm(Width::W64, Cond::Ne, Reg::R1, 0, end);
        }
    }

    /// The end of a body: what leaves the block goes to `end`, what ends the loop to `stop`.
    pub(super) fn end_body(&mut self, calls: &Calls, next: Label, stop: Label) {
        self.out.bind(next);
        self.out.mov_imm(Reg::R0, 0);
        self.out.push(Insn::Exit);
        let end = self.end;
        self.out.bind(end);
        if let Some(left) = calls.left {
            self.out.map_value(Reg::R1, SCRATCH, left);
            self.out.put_imm(Reg::R1, 0, 1);
        }
        self.out.bind(stop);
        if let Some(done) = calls.done {
            self.out.map_value(Reg::R1, SCRATCH, done);
            self.out.put_imm(Reg::R1, 0, 1);
        }
        self.out.mov_imm(Reg::R0, 1);
        self.out.push(Insn::Exit);
    }

    /// A loop whose number of rounds is not known.
    pub(super) fn rounds(&mut self, of: &Loop, number: usize) {
        let most = Value { ty: super::Type::INT, kind: super::checked::ValueKind::Int(u32::MAX.into()) };
        let calls = self.call_body(&most, super::each::leaves(&of.body), Limit::Time);
        self.leave_if_left(&calls);
        let end = self.out.label();
        if let Some(done) = calls.done {
            // The last call may be that which finds the condition false.
            self.out.map_value(Reg::R1, SCRATCH, done);
            self.out.load(Size::Dw, Reg::R1, Reg::R1, 0);
            self.out.branch_imm(Width::W64, Cond::Ne, Reg::R1, 0, end);
        }
        self.act(of.warning, &[]);
        let leave = self.end;
        self.out.goto(leave);
        self.out.bind(end);
        self.bodies.push(super::Body::Rounds { of: of.clone(), number, calls });
    }

    /// A function that does one round. Its result is not 0 if the loop ends.
    pub(super) fn round_body(&mut self, of: &Loop, number: usize, calls: &Calls) {
        let (next, stop) = (self.out.label(), self.out.label());
        let again = self.out.label();
        self.end = self.out.label();
        self.out.bind(calls.start);
        self.out.load(Size::Dw, Reg::R6, Reg::R2, 0);
        self.clear_vars(number, None);
        self.branch(&of.cond, false, stop);
        self.loops = vec![(again, stop)];
        self.ops(&of.body);
        self.loops.clear();
        self.out.bind(again);
        self.ops(&of.step);
        self.end_body(calls, next, stop);
    }
}
