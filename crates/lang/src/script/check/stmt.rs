//! Statements.

use std::collections::HashMap;

use sidestep_wire::watchdog::LONGEST;

use super::super::ast::{BinaryOp, Expr, ExprKind, Provider, Step, Stmt, StmtKind};
use super::super::checked::{Action, Loop, Op, Value, ValueKind};
use super::super::diagnostic::{Diagnostic, Severity, Span, Unknown};
use super::super::lower::INLINE_ROUNDS;
use super::super::types::Type;
use super::{Checker, Checking};

/// Rounds of `unroll`, as in bpftrace.
const UNROLL: u64 = 100;

/// Rounds of all that are one in the other.
const NESTED: u64 = 10_000;

impl Checker<'_> {
    pub(super) fn stmts(&mut self, stmts: &[Stmt]) -> Vec<Op> {
        let mut ops = Vec::new();
        let mut stmts = stmts.iter();
        while let Some(stmt) = stmts.next() {
            let _ = self.stmt(stmt, &mut ops);
            if ends(ops.last()) {
                if let Some(next) = stmts.next() {
                    self.warn(next.span, "Unreachable statement.");
                    let _ = self.stmt(next, &mut ops);
                }
            }
        }
        ops
    }

    /// Statements between braces, with variables of their own.
    fn scope(&mut self, stmts: &[Stmt]) -> Vec<Op> {
        self.scopes.push(HashMap::new());
        let ops = self.stmts(stmts);
        self.scopes.pop();
        ops
    }

    /// A branch, which may be known not to run.
    fn branch(&mut self, stmts: &[Stmt], runs: bool) -> Vec<Op> {
        self.dead += usize::from(!runs);
        let ops = self.scope(stmts);
        self.dead -= usize::from(!runs);
        ops
    }

    fn stmt(&mut self, stmt: &Stmt, ops: &mut Vec<Op>) -> Checking<()> {
        match &stmt.kind {
            StmtKind::Expr(expr) => {
                if self.statement_call(expr, ops)? {
                    self.warn(expr.span, "Return value discarded.");
                }
                Ok(())
            }
            StmtKind::Discard(expr) => self.statement_call(expr, ops).map(drop),
            StmtKind::Assign { target, op, value } => {
                self.assign(target, *op, value, ops).inspect_err(|_| match &target.kind {
                    ExprKind::Map(name, _) => self.unassigned.push(Unknown::Map(name.clone())),
                    ExprKind::Var(name) => self.unassigned.push(Unknown::Variable(name.clone())),
                    _ => {}
                })
            }
            StmtKind::Let { name, ty, value } => {
                if self.scopes.iter().any(|scope| scope.contains_key(name)) {
                    return self.error(
                        stmt.span,
                        format!("Variable ${name} was already declared. Variable shadowing is not allowed."),
                    );
                }
                match (ty, value) {
                    (Some(ty), value) => self.typed_var(name, ty, value.as_ref(), stmt.span, ops),
                    (None, Some(value)) => {
                        let value =
                            self.expr(value).inspect_err(|_| self.unassigned.push(Unknown::Variable(name.clone())))?;
                        self.set_var(name, value, stmt.span, ops)
                    }
                    (None, None) => {
                        self.declare_untyped(name, ops);
                        Ok(())
                    }
                }
            }
            StmtKind::If { cond, then, otherwise } => {
                let (span, cond_of) = (cond.span, cond);
                let cond = self.expr(cond).and_then(|value| self.condition(value, span, "if()"));
                let known = match &cond {
                    Ok(Value { kind: ValueKind::Int(n), .. }) => Some(*n != 0),
                    _ => None,
                };
                // What `comptime` rules out need not even be right.
                if is_comptime(cond_of) {
                    match known {
                        Some(true) => ops.extend(self.scope(then)),
                        Some(false) => ops.extend(self.scope(otherwise)),
                        None => {}
                    }
                    return cond.map(|_| ());
                }
                let then = self.branch(then, known != Some(false));
                let otherwise = self.branch(otherwise, known != Some(true));
                ops.push(Op::If(cond?, then, otherwise));
                Ok(())
            }
            StmtKind::Unroll { count, body } => {
                let span = count.span;
                let count = self.expr(count)?;
                match count.kind {
                    ValueKind::Int(n @ 1..=UNROLL) if self.rounds * n > NESTED => {
                        let all = self.rounds * n;
                        self.error(span, format!("unroll in unroll makes {all} rounds, at most {NESTED}"))
                    }
                    ValueKind::Int(n @ 1..=UNROLL) => {
                        self.rounds *= n;
                        let found = self.found.len();
                        for _ in 0..n {
                            let round = self.scope(body);
                            ops.extend(round);
                            // All rounds have the same mistakes.
                            if self.last && self.found[found..].iter().any(|found| found.severity == Severity::Error) {
                                break;
                            }
                        }
                        self.rounds /= n;
                        Ok(())
                    }
                    ValueKind::Int(n) if (n as i64) > UNROLL as i64 => {
                        self.error(span, format!("unroll maximum value is {UNROLL}"))
                    }
                    ValueKind::Int(_) => self.error(span, "unroll minimum value is 1"),
                    _ => self.error(span, "unroll() expects a number that is known before anything runs"),
                }
            }
            StmtKind::Return(value) if self.returns.is_some() => {
                ops.push(Op::Return);
                self.returned(value.as_ref(), stmt.span)
            }
            StmtKind::Return(None) => {
                ops.push(Op::Return);
                Ok(())
            }
            // A test has failed if it returns anything but 0.
            StmtKind::Return(Some(value)) if !self.points.is_empty() && self.only_at(&[Provider::Test]) => {
                let value = self.int_argument("return", value)?;
                let failed = Value { ty: Type::INT, kind: ValueKind::Not(Box::new(value.clone())) };
                let exit = Op::Exit(self.action(Action::Exit), value);
                ops.extend([Op::If(failed, Vec::new(), vec![exit]), Op::Return]);
                Ok(())
            }
            StmtKind::Return(Some(value)) => {
                let (span, value) = (value.span, self.expr(value)?);
                if !value.ty.is_int() && value.ty != Type::None {
                    let message = format!("a probe returns an integer ({} provided)", value.ty.kind());
                    return self.error(span, message);
                }
                ops.extend([Op::Eval(value), Op::Return]);
                Ok(())
            }
            StmtKind::While { cond, body } => {
                self.warn(stmt.span, "While loops are deprecated and may be removed in the future.");
                let span = cond.span;
                let outer = self.enter_function();
                let number = Some(self.walk);
                let cond = self.expr(cond).and_then(|value| self.condition(value, span, "while()"));
                let body = self.round(body);
                self.walk = outer;
                self.push_loop(number, cond?, body, Vec::new(), stmt.span, ops);
                Ok(())
            }
            StmtKind::ForRange { name, from, to, body } => self.for_range(name, [from, to], body, stmt.span, ops),
            StmtKind::ForMap { name, map, body } => self.for_map(name, map, body, stmt.span, ops),
            StmtKind::Break if self.loops == 0 => self.error(stmt.span, "break statement outside of a loop"),
            StmtKind::Continue if self.loops == 0 => self.error(stmt.span, "continue statement outside of a loop"),
            StmtKind::Break => {
                ops.push(Op::Break);
                Ok(())
            }
            StmtKind::Continue => {
                ops.push(Op::Continue);
                Ok(())
            }
        }
    }

    /// The body of a loop.
    pub(super) fn round(&mut self, body: &[Stmt]) -> Vec<Op> {
        self.loops += 1;
        let ops = self.scope(body);
        self.loops -= 1;
        ops
    }

    /// What follows is in a function of its own; which it was in before.
    pub(super) fn enter_function(&mut self) -> usize {
        self.walks += 1;
        std::mem::replace(&mut self.walk, self.walks)
    }

    fn push_loop(
        &mut self,
        number: Option<usize>,
        cond: Value,
        body: Vec<Op>,
        step: Vec<Op>,
        span: Span,
        ops: &mut Vec<Op>,
    ) {
        let most = match number {
            Some(_) => format!("{} seconds", LONGEST / 1_000_000_000),
            None => format!("{INLINE_ROUNDS} rounds"),
        };
        let message = format!("A loop was ended after {most}: no block may run for longer.");
        let warning = self.action(Action::Warning(Diagnostic::warning(span, message)));
        ops.push(Op::Loop(Box::new(Loop { number, warning, cond, body, step })));
    }

    /// `for ($name : from..to)`
    fn for_range(
        &mut self,
        name: &str,
        ends: [&Expr; 2],
        body: &[Stmt],
        span: Span,
        ops: &mut Vec<Op>,
    ) -> Checking<()> {
        let mut values = Vec::new();
        for end in ends {
            let value = self.expr(end)?;
            if !value.ty.is_int() {
                let message = format!("Loop range requires an integer ({} provided)", value.ty.kind());
                return self.error(end.span, message);
            }
            values.push(value);
        }
        if self.find_var(name).is_some() {
            return self.error(span, format!("Loop declaration shadows existing variable: ${name}"));
        }
        let end = values.pop();
        let few = match (values.first().map(|from| &from.kind), end.as_ref().map(|to| &to.kind)) {
            (Some(ValueKind::Int(from)), Some(ValueKind::Int(to))) => {
                let rounds = (*to as i64).saturating_sub(*from as i64).max(0);
                self.is_inline(rounds as u64, body)
            }
            _ => false,
        };
        self.scopes.push(HashMap::new());
        let index = self.declare(name, Type::INT);
        let last = self.new_var(Type::INT);
        ops.extend(values.into_iter().map(|from| Op::SetVar(index, from)));
        ops.extend(end.map(|to| Op::SetVar(last, to)));
        let outer = self.walk;
        if !few {
            self.enter_function();
            // They are set outside, and used in the function.
            self.owners[index] = None;
            self.owners[last] = None;
        }
        let number = (!few).then_some(self.walk);
        let var = |of: usize| Box::new(Value { ty: Type::INT, kind: ValueKind::Var(of) });
        let cond = Value { ty: Type::INT, kind: ValueKind::Binary(BinaryOp::Lt, false, var(index), var(last)) };
        let next = Value { ty: Type::INT, kind: ValueKind::StepVar(Step { up: true, post: false }, index) };
        let body = self.round(body);
        self.walk = outer;
        self.push_loop(number, cond, body, vec![Op::Eval(next)], span, ops);
        self.scopes.pop();
        Ok(())
    }

    /// `++`, a call, or anything else that stands alone. Returns whether it has a value that was
    /// wanted, most probably: steps, macros and some functions are there for what they do.
    fn statement_call(&mut self, expr: &Expr, ops: &mut Vec<Op>) -> Checking<bool> {
        if let Some((inner, value)) = self.nested_block(expr)? {
            ops.extend(inner);
            ops.extend(value.map(Op::Eval));
            return Ok(false);
        }
        // `c ? print(1) : print(2)`
        if let ExprKind::Ternary(cond, then, otherwise) = &expr.kind {
            if is_action(then) || is_action(otherwise) {
                let branch = |of: &Expr| vec![Stmt { kind: StmtKind::Expr(of.clone()), span: of.span }];
                let kind = StmtKind::If { cond: (**cond).clone(), then: branch(then), otherwise: branch(otherwise) };
                return self.stmt(&Stmt { kind, span: expr.span }, ops).map(|()| false);
            }
        }
        if let ExprKind::Call(name, args) = &expr.kind {
            if let Some(op) = self.action_call(name, args, expr.span)? {
                ops.push(op);
                return Ok(false);
            }
            if self.aggregate(name, args, expr.span)?.is_some() {
                return self.error(expr.span, format!("{name}() should be assigned to a map, e.g. @ = {name}()"));
            }
        }
        let value = self.expr(expr)?;
        let has_effect = match &expr.kind {
            ExprKind::Step(..) => true,
            ExprKind::Call(name, _) => matches!(&**name, "write_user" | "find"),
            _ => false,
        };
        let is_wanted = value.ty != Type::None && !has_effect;
        // Nothing is left of a step of a map but its addition.
        ops.push(match value.kind {
            ValueKind::StepMap(step, entry, by) => {
                let one = if step.up { by } else { by.wrapping_neg() };
                Op::AddMap(entry, Value { ty: Type::INT, kind: ValueKind::Int(one) })
            }
            kind => Op::Eval(Value { ty: value.ty, kind }),
        });
        Ok(is_wanted)
    }

    /// What a block or macro does that stands alone; its value is not needed.
    fn nested_block(&mut self, expr: &Expr) -> Checking<Option<(Vec<Op>, Option<Value>)>> {
        Ok(Some(match &expr.kind {
            ExprKind::Block(body, value) => self.block_value(body, value.as_deref())?,
            ExprKind::Call(name, args) if self.find_macro(name, args.len()).is_some() => {
                self.expand(name, args, expr.span)?
            }
            ExprKind::Ident(name) if self.find_macro(name, 0).is_some() => self.expand(name, &[], expr.span)?,
            _ => return Ok(None),
        }))
    }
}

/// Whether it is a call that only does something.
fn is_action(expr: &Expr) -> bool {
    matches!(&expr.kind, ExprKind::Call(name, _) if super::call::ACTIONS.contains(&&**name))
}

/// Whether it is `comptime x`.
fn is_comptime(expr: &Expr) -> bool {
    matches!(&expr.kind, ExprKind::Call(name, _) if name == "comptime")
}

/// Whether nothing runs behind a statement.
fn ends(op: Option<&Op>) -> bool {
    matches!(op, Some(Op::Return | Op::Break | Op::Continue | Op::Exit(..)))
}

#[cfg(test)]
mod tests {
    use super::super::super::parser::{Given, parse_given};
    use super::super::check;

    #[test]
    fn what_is_done_for_its_effect_has_no_value_that_is_missed() {
        let warnings = |body: &str| {
            let source = format!("macro two($x) {{ $x += 1; 2 }} u:a:b {{ $v = 1; @m[1] = 1; {body} }}");
            let script = parse_given(&source, &Given { allow_unsafe: true, ..Given::default() }).expect(body);
            let (_, warnings) = check(&script, &[]).expect(body);
            warnings.iter().filter(|warning| warning.message == "Return value discarded.").count()
        };
        for body in [
            "$v++;",
            "--@m[1];",
            "delete(@m, 1);",
            "find(@m, 1, $v);",
            "write_user(arg0, 1, 4);",
            "two($v);",
            "_ = $v;",
        ] {
            assert_eq!(warnings(body), 0, "{body}");
        }
        for body in ["$v;", "@m[1];", "arg0 + 1;", "has_key(@m, 1);", "str(arg0);", "unroll(3) { $v; }"] {
            assert_eq!(warnings(body), 1, "{body}");
        }
    }
}
