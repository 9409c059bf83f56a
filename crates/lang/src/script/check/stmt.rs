//! Statements.

use std::collections::HashMap;

use super::super::ast::{BinaryOp, Expr, ExprKind, Provider, Step, Stmt, StmtKind};
use super::super::checked::{Action, Entry, Loop, Op, Value, ValueKind};
use super::super::diagnostic::{Diagnostic, Span, Unknown};
use super::super::lower::{INLINE_ROUNDS, ROUNDS};
use super::super::types::{Content, Type};
use super::expr::int;
use super::{Checker, Checking};

/// Rounds of `unroll`, as in bpftrace.
const UNROLL: u64 = 100;

impl Checker<'_> {
    pub(super) fn stmts(&mut self, stmts: &[Stmt]) -> Vec<Op> {
        let mut ops = Vec::new();
        for stmt in stmts {
            let _ = self.stmt(stmt, &mut ops);
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
            StmtKind::Expr(expr) => self.statement_call(expr, ops),
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
                    // Its type is that of the first assignment, which may be in an inner block.
                    (None, None) => {
                        self.declare(name, Type::None);
                        Ok(())
                    }
                }
            }
            StmtKind::If { cond, then, otherwise } => {
                let span = cond.span;
                let cond = self.expr(cond).and_then(|value| self.condition(value, span, "if()"));
                let known = match &cond {
                    Ok(Value { kind: ValueKind::Int(n), .. }) => Some(*n != 0),
                    _ => None,
                };
                let then = self.branch(then, known != Some(false));
                let otherwise = self.branch(otherwise, known != Some(true));
                ops.push(Op::If(cond?, then, otherwise));
                Ok(())
            }
            StmtKind::Unroll { count, body } => {
                let span = count.span;
                let count = self.expr(count)?;
                match count.kind {
                    ValueKind::Int(n @ 1..=UNROLL) => {
                        for _ in 0..n {
                            let round = self.scope(body);
                            ops.extend(round);
                        }
                        Ok(())
                    }
                    ValueKind::Int(n) if n > UNROLL => self.error(span, format!("unroll maximum value is {UNROLL}")),
                    ValueKind::Int(_) => self.error(span, "unroll minimum value is 1"),
                    _ => self.error(span, "invalid unroll value"),
                }
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
                let value = self.expr(value)?;
                ops.extend([Op::Eval(value), Op::Return]);
                Ok(())
            }
            StmtKind::While { cond, body } => {
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
        let most = if number.is_some() { ROUNDS.into() } else { INLINE_ROUNDS };
        let message = format!("A loop was ended after {most} rounds: no block may run for longer.");
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
                (*to as i64).saturating_sub(*from as i64) <= INLINE_ROUNDS as i64
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

    fn assign(&mut self, target: &Expr, op: Option<BinaryOp>, value: &Expr, ops: &mut Vec<Op>) -> Checking<()> {
        let span = target.span.to(value.span);
        match &target.kind {
            ExprKind::Var(name) => {
                let value = self.expr(value)?;
                let value = match op {
                    Some(op) => {
                        let old = self.var(name, target.span)?;
                        self.binary(op, old, value, span)?
                    }
                    None => value,
                };
                self.set_var(name, value, span, ops)
            }
            ExprKind::Map(name, keys) => {
                if op.is_none() {
                    if let ExprKind::Call(function, args) = &value.kind {
                        if let Some(content) = self.aggregate(function, args, value.span)? {
                            let entry = self.entry(name, keys, target.span)?;
                            self.set_content(entry.map, content.0.clone(), span)?;
                            let read =
                                self.maps[entry.map].read && matches!(content.0, Content::Count | Content::Sum { .. });
                            ops.push(match content.1 {
                                number if read => Op::AddMap(entry, number.unwrap_or_else(|| int(1))),
                                number => Op::Aggregate(entry, number),
                            });
                            return Ok(());
                        }
                    }
                }
                let entry = self.entry(name, keys, target.span)?;
                let value = self.expr(value)?;
                match op {
                    None => {
                        self.set_content(entry.map, content(&value.ty), span)?;
                        ops.push(Op::SetMap(entry, value));
                    }
                    Some(op) => self.update(entry, op, value, span, ops)?,
                }
                Ok(())
            }
            ExprKind::Member(_, name) => {
                let value = self.expr(value)?;
                self.set_own(name, op, value, span, ops)
            }
            _ => self.error(target.span, "only variables and maps can be assigned"),
        }
    }

    /// `@m op= value`
    fn update(&mut self, entry: Entry, op: BinaryOp, value: Value, span: Span, ops: &mut Vec<Op>) -> Checking<()> {
        let pointer = match self.content_type(entry.map) {
            Type::Pointer(to) if matches!(value.ty, Type::Int { .. }) => Some(to),
            _ => None,
        };
        if let (Some(to), BinaryOp::Add | BinaryOp::Sub) = (pointer, op) {
            let by = super::memory::times(value, self.size(&to, span)?);
            let by = if op == BinaryOp::Add { by } else { negated(by) };
            ops.push(Op::AddMap(entry, by));
            return Ok(());
        }
        self.set_content(entry.map, content(&value.ty), span)?;
        if !value.ty.is_int() {
            return self.error(
                span,
                format!("The {} operator can not be used on expressions of type {}", op.text(), value.ty.kind()),
            );
        }
        ops.push(match op {
            BinaryOp::Add => Op::AddMap(entry, value),
            BinaryOp::Sub => Op::AddMap(entry, negated(value)),
            op => {
                let ty = self.content_type(entry.map);
                let old = Value { ty, kind: ValueKind::Read(entry.clone()) };
                let new = self.binary(op, old, value, span)?;
                Op::SetMap(entry, new)
            }
        });
        Ok(())
    }

    /// The type of a map's values, as far as it is known.
    pub(super) fn content_type(&self, map: usize) -> Type {
        match &self.maps[map].content {
            Some(Content::Value(ty)) => ty.clone(),
            _ => Type::INT,
        }
    }

    /// Makes room for what the variable is assigned further down.
    fn roomy(&self, index: usize, mut ty: Type) -> Type {
        match self.before.get(self.out.blocks.len()).and_then(|vars| vars.get(index)) {
            Some(known) if ty.fits(known) => ty.widen(known),
            _ => {}
        }
        ty
    }

    pub(super) fn declare(&mut self, name: &str, ty: Type) -> usize {
        let ty = self.roomy(self.vars.len(), ty);
        let index = self.new_var(ty);
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), index);
        }
        index
    }

    /// A variable, which may have no name.
    fn new_var(&mut self, ty: Type) -> usize {
        self.vars.push(ty);
        self.owners.push(Some(self.walk));
        self.vars.len() - 1
    }

    /// A variable that is used here.
    pub(super) fn find_var(&mut self, name: &str) -> Option<usize> {
        let index = self.scopes.iter().rev().find_map(|scope| scope.get(name)).copied()?;
        if self.owners[index] != Some(self.walk) {
            self.owners[index] = None;
        }
        Some(index)
    }

    pub(super) fn set_var(&mut self, name: &str, value: Value, span: Span, ops: &mut Vec<Op>) -> Checking<()> {
        if value.ty == Type::None {
            return self.error(span, format!("Value of type none cannot be assigned to ${name}"));
        }
        self.small(&value.ty, span)?;
        let found = self.find_var(name);
        let value = match found {
            Some(index) => self.as_declared(index, name, value, span)?,
            None => value,
        };
        let ty = value.ty.kept();
        let index = match found {
            None => self.declare(name, ty),
            Some(index) => {
                let roomy = self.roomy(index, ty.clone());
                match (&mut self.vars[index], &ty) {
                    (known @ Type::None, _) => *known = roomy,
                    (known, ty) if known.fits(ty) => known.widen(ty),
                    (known, ty) => {
                        let (known, ty) = (known.name(), ty.name());
                        let why = match self.typed.contains_key(&index) {
                            true => format!("when variable was declared with type '{known}'"),
                            false => format!("when variable already contains a value of type '{known}'"),
                        };
                        let message = format!("Type mismatch for ${name}: trying to assign value of type '{ty}' {why}");
                        return self.error(span, message);
                    }
                }
                index
            }
        };
        ops.push(Op::SetVar(index, value));
        Ok(())
    }

    /// What a map holds from now on.
    pub(super) fn set_content(&mut self, map: usize, new: Content, span: Span) -> Checking<()> {
        let name = self.maps[map].name.clone();
        if new == Content::Value(Type::None) {
            return self.error(span, format!("Value of type none cannot be assigned to @{name}"));
        }
        if let Content::Value(ty) = &new {
            self.small(ty, span)?;
        }
        match &mut self.maps[map].content {
            None => self.maps[map].content = Some(new),
            Some(known) if known.fits(&new) => {
                if let (Content::Value(known), Content::Value(new)) = (known, &new) {
                    known.widen(new);
                }
            }
            Some(Content::Lhist { .. }) if matches!(new, Content::Lhist { .. }) => {
                return self.error(span, "Different lhist bounds in a single map unsupported");
            }
            Some(Content::Tseries { .. }) if matches!(new, Content::Tseries { .. }) => {
                return self.error(span, "Different tseries bounds in a single map unsupported");
            }
            Some(Content::Hist { .. }) if matches!(new, Content::Hist { .. }) => {
                return self.error(span, "Different bits in a single hist unsupported");
            }
            Some(known) => {
                let known = known.name();
                return self.error(
                    span,
                    format!(
                        "Type mismatch for @{name}: trying to assign value of type '{}' when map already contains a value \
                         of type '{known}'",
                        new.name()
                    ),
                );
            }
        }
        Ok(())
    }

    /// `++`, a call, or anything else that stands alone.
    fn statement_call(&mut self, expr: &Expr, ops: &mut Vec<Op>) -> Checking<()> {
        if let Some((inner, value)) = self.nested_block(expr)? {
            ops.extend(inner);
            ops.extend(value.map(Op::Eval));
            return Ok(());
        }
        // `c ? print(1) : print(2)`
        if let ExprKind::Ternary(cond, then, otherwise) = &expr.kind {
            if is_action(then) || is_action(otherwise) {
                let branch = |of: &Expr| vec![Stmt { kind: StmtKind::Expr(of.clone()), span: of.span }];
                let kind = StmtKind::If { cond: (**cond).clone(), then: branch(then), otherwise: branch(otherwise) };
                return self.stmt(&Stmt { kind, span: expr.span }, ops);
            }
        }
        if let ExprKind::Call(name, args) = &expr.kind {
            if let Some(op) = self.action_call(name, args, expr.span)? {
                ops.push(op);
                return Ok(());
            }
            if self.aggregate(name, args, expr.span)?.is_some() {
                return self.error(expr.span, format!("{name}() should be assigned to a map, e.g. @ = {name}()"));
            }
        }
        let value = self.expr(expr)?;
        // Nothing is left of a step of a map but its addition.
        ops.push(match value.kind {
            ValueKind::StepMap(step, entry, by) => {
                let one = if step.up { by } else { by.wrapping_neg() };
                Op::AddMap(entry, Value { ty: Type::INT, kind: ValueKind::Int(one) })
            }
            kind => Op::Eval(Value { ty: value.ty, kind }),
        });
        Ok(())
    }

    /// What a block or macro does that stands alone; its value is not needed.
    fn nested_block(&mut self, expr: &Expr) -> Checking<Option<(Vec<Op>, Option<Value>)>> {
        Ok(Some(match &expr.kind {
            ExprKind::Block(body, value) => self.block_value(body, value.as_deref())?,
            ExprKind::Call(name, args) if self.find_macro(name).is_some() => self.expand(name, args, expr.span)?,
            ExprKind::Ident(name) if self.find_macro(name).is_some() => self.expand(name, &[], expr.span)?,
            _ => return Ok(None),
        }))
    }

    /// An entry of a map, whose keys have the types that they have everywhere.
    pub(super) fn entry(&mut self, name: &str, keys: &[Expr], span: Span) -> Checking<Entry> {
        let map = self.map(name);
        // `@m[(a, b)]` is `@m[a, b]`.
        let keys = match keys {
            [Expr { kind: ExprKind::Tuple(items), .. }] if !items.is_empty() => items,
            keys => keys,
        };
        let mut values = Vec::new();
        for key in keys {
            values.push(self.key(key)?);
        }
        self.set_keys(map, &values, span)?;
        Ok(Entry { map, keys: values })
    }

    fn key(&mut self, key: &Expr) -> Checking<Value> {
        let value = self.expr(key)?;
        match &value.ty {
            Type::None => self.error(key.span, "a key must have a value"),
            ty => {
                self.small(ty, key.span)?;
                Ok(value)
            }
        }
    }

    fn set_keys(&mut self, map: usize, values: &[Value], span: Span) -> Checking<()> {
        let new: Vec<Type> = match values {
            // A tuple is as many keys.
            [Value { ty: Type::Tuple(types), .. }] if types.are_keys() => types.iter().map(Type::kept).collect(),
            values => values.iter().map(|value| value.ty.kept()).collect(),
        };
        match &mut self.maps[map].keys {
            None => self.maps[map].keys = Some(new),
            Some(known) if known.len() == new.len() && known.iter().zip(&new).all(|(a, b)| a.fits(b)) => {
                known.iter_mut().zip(&new).for_each(|(known, new)| known.widen(new));
            }
            Some(known) => {
                let list = |types: &[Type]| {
                    let names: Vec<String> = types.iter().map(Type::name).collect();
                    format!("arguments: '{}'", names.join(","))
                };
                let expects = if known.is_empty() { "no arguments".to_owned() } else { list(known) };
                let access = if new.is_empty() { "no arguments".to_owned() } else { list(&new) };
                let message = format!(
                    "Argument mismatch for @{}: trying to access with {access} when map expects {expects}",
                    self.maps[map].name
                );
                return self.error(span, message);
            }
        }
        Ok(())
    }
}

/// Whether it is a call that only does something.
fn is_action(expr: &Expr) -> bool {
    matches!(&expr.kind, ExprKind::Call(name, _) if super::call::ACTIONS.contains(&&**name))
}

fn negated(value: Value) -> Value {
    Value { ty: value.ty.clone(), kind: ValueKind::Negate(Box::new(value)) }
}

/// What a map holds after a value was assigned.
fn content(ty: &Type) -> Content {
    Content::Value(ty.kept())
}
