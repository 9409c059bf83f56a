//! Statements.

use sidestep_bpf::{AluOp, Cond, Reg, Size, Width};

use super::super::checked::{Loop, Op, Value, ValueKind};
use super::super::types::Type;
use super::text::At;
use super::{INLINE_ROUNDS, Lower, Place, SCRATCH, helper};

impl Lower<'_, '_> {
    pub(super) fn ops(&mut self, ops: &[Op]) {
        for op in ops {
            let used = self.used;
            self.op(op);
            self.release(used);
        }
    }

    fn op(&mut self, op: &Op) {
        match op {
            Op::Eval(value) => self.eval(value),
            Op::SetVar(var, value) => self.set_var(*var, value),
            Op::SetMap(entry, value) => self.set_map(entry, value),
            Op::AddMap(entry, value) => self.add_map(entry, value, false),
            Op::Series(entry, value, clock) => self.series(entry, value, Some(clock)),
            Op::Aggregate(entry, value) => self.aggregate(entry, value.as_ref()),
            Op::SetOwn(index, value) => self.set_own(*index, value),
            Op::Delete(entry) => self.delete(entry),
            Op::Act(action, args) => self.act(*action, args),
            Op::Exit(action, code) => {
                self.act(*action, std::slice::from_ref(code));
                let end = self.end;
                self.out.goto(end);
            }
            Op::If(cond, then, otherwise) => {
                let (not, end) = (self.out.label(), self.out.label());
                self.branch(cond, false, not);
                self.ops(then);
                if !otherwise.is_empty() {
                    self.out.goto(end);
                }
                self.out.bind(not);
                self.ops(otherwise);
                self.out.bind(end);
            }
            Op::Loop(of) => match of.number {
                Some(number) => self.rounds(of, number),
                None => self.repeat(of),
            },
            Op::Each(of) => self.each(of),
            Op::Signal { thread, number } => {
                self.int(number);
                self.out.mov(Reg::R1, Reg::R0);
                self.out.call(if *thread { helper::SEND_SIGNAL_THREAD } else { helper::SEND_SIGNAL });
            }
            Op::Override(result) => self.override_result(result),
            Op::Join(action, array) => self.join(*action, array),
            Op::Break | Op::Continue => {
                let Some((next, end)) = self.loops.last().copied() else { return };
                self.out.goto(if matches!(op, Op::Break) { end } else { next });
            }
            Op::Return => {
                let end = self.end;
                self.out.goto(end);
            }
        }
    }

    fn repeat(&mut self, of: &Loop) {
        let (top, next, enough, end) = (self.out.label(), self.out.label(), self.out.label(), self.out.label());
        // On the stack, where the verifier sees that each round is another one.
        let rounds = self.stack(8);
        self.out.put_imm(Reg::R10, rounds, 0);
        self.out.bind(top);
        self.branch(&of.cond, false, end);
        self.out.load(Size::Dw, Reg::R0, Reg::R10, rounds);
        self.out.alu_imm(AluOp::Add, Reg::R0, 1);
        self.out.put(Reg::R10, rounds, Reg::R0);
        self.out.branch_imm(Width::W64, Cond::Gt, Reg::R0, INLINE_ROUNDS as i32, enough);
        self.loops.push((next, end));
        self.ops(&of.body);
        self.loops.pop();
        self.out.bind(next);
        self.ops(&of.step);
        self.out.goto(top);
        // The body has changed the number that it counts.
        self.out.bind(enough);
        self.act(of.warning, &[]);
        self.out.bind(end);
    }

    fn eval(&mut self, value: &Value) {
        match &value.ty {
            ty if ty.is_wide() => {
                self.place(value);
            }
            Type::None => {}
            _ => self.int(value),
        }
    }

    fn set_var(&mut self, var: usize, value: &Value) {
        let (place, ty) = self.vars[var].clone();
        match (place, &value.ty) {
            (Place::Scratch(at), Type::Text(_)) => {
                let Type::Text(room) = ty else { return };
                let to = At::Scratch(at);
                // What is read may be what is written.
                if matches!(value.kind, ValueKind::Ternary(..) | ValueKind::Var(_)) {
                    let copy = self.text(value);
                    self.copy_text(to, copy, &value.ty, room);
                } else {
                    self.text_to(to, value, room);
                }
            }
            (Place::Scratch(at), own) if own.is_wide() => {
                if !matches!(value.kind, ValueKind::Var(own) if own == var) {
                    self.set_wide(At::Scratch(at), &ty, value);
                }
            }
            (Place::Stack(at), _) => {
                self.int(value);
                self.out.put(Reg::R10, at, Reg::R0);
            }
            (Place::Scratch(at), _) => {
                self.int(value);
                self.out.map_value(Reg::R1, SCRATCH, at);
                self.out.put(Reg::R1, 0, Reg::R0);
            }
        }
    }
}
