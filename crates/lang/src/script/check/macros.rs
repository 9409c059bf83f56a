//! Macros: their bodies are put where they are called. What a body does not get by its parameters
//! it cannot see, and its variables are its own.

use std::collections::HashMap;

use super::super::ast::{Expr, ExprKind, Macro, Param, Sized, Stmt, StmtKind, TypeName};
use super::super::checked::{Op, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::{Checker, Checking};

/// Macros inside of macros at most.
const NESTED: usize = 32;

/// What the names in a body stand for.
struct Names<'a> {
    vars: HashMap<&'a str, &'a str>,
    maps: HashMap<&'a str, &'a str>,
    exprs: HashMap<&'a str, &'a Expr>,
    /// What the body's own variables end with.
    number: usize,
    /// A map that is not a parameter, or a statement that may not be in a macro.
    wrong: Option<(Span, String)>,
}

impl Checker<'_> {
    /// The macro that a call with so many arguments means, or would if it had the right number. A
    /// function of the language keeps its own numbers of arguments.
    pub(super) fn find_macro(&self, name: &str, args: usize) -> Option<&Macro> {
        let mut same = self.macros.iter().filter(|known| known.name == name);
        let is_known = super::advice::is_known(name);
        same.find(|of| of.params.len() == args || !is_known)
    }

    /// `name(args)`, of a macro: what it does, and its value.
    pub(super) fn expand(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<(Vec<Op>, Option<Value>)> {
        let macros = self.macros;
        let same: Vec<&Macro> = macros.iter().filter(|known| known.name == name).collect();
        // Of several with this name, the one whose parameters the arguments are; a variable is also
        // an expression, so the strictest comes first.
        let strict = |of: &&&Macro| of.params.iter().filter(|param| !matches!(param, Param::Expr(_))).count();
        let fitting = same.iter().filter(|of| takes(of, args)).max_by_key(strict);
        // What is no variable is assigned to one of the body's own.
        let assigned = same.iter().find(|of| takes_values(of, args));
        let closest = assigned.or(same.iter().find(|of| of.params.len() == args.len())).or(same.first());
        let Some(of) = fitting.or(closest).copied() else {
            return self.advised(span, format!("Unknown function: {name}"), super::advice::function(name));
        };
        let (expected, got) = (of.params.len(), args.len());
        if expected != got {
            let message =
                format!("Call to macro {name}() has the wrong number of arguments: expected {expected}, got {got}");
            return self.error(span, message);
        }
        if self.calls.len() >= NESTED {
            return self.error(span, format!("Macros are more than {NESTED} levels deep: {name}() may call itself"));
        }
        self.expanded += 1;
        let number = self.expanded;
        let mut names =
            Names { vars: HashMap::new(), maps: HashMap::new(), exprs: HashMap::new(), number, wrong: None };
        let mut body = Vec::new();
        for (param, arg) in of.params.iter().zip(args) {
            match (param, &arg.kind) {
                (Param::Var(param), ExprKind::Var(name)) => {
                    names.vars.insert(param, name);
                }
                (Param::Map(param), ExprKind::Map(name, keys)) if keys.is_empty() => {
                    names.maps.insert(param, name);
                }
                (Param::Expr(param), _) => {
                    names.exprs.insert(param, arg);
                }
                // What the body does to `$param` would be lost.
                (Param::Var(_), ExprKind::Map(_, keys)) if keys.is_empty() => {
                    return self.mismatched(name, param, "a map", arg.span);
                }
                (Param::Var(param), _) => {
                    let kind = StmtKind::Let { name: names.var(param), ty: None, value: Some(arg.clone()) };
                    body.push(Stmt { kind, span: arg.span });
                }
                (Param::Map(_), ExprKind::Var(_)) => return self.mismatched(name, param, "a variable", arg.span),
                (Param::Map(_), _) => return self.mismatched(name, param, "an expression", arg.span),
            }
        }
        body.extend(names.stmts(&of.body));
        let value = of.value.as_ref().map(|value| names.expr(value));
        if let Some((span, message)) = names.wrong {
            return self.error(span, message);
        }
        self.calls.push(span);
        let result = self.block_value(&body, value.as_ref());
        self.calls.pop();
        result
    }

    fn mismatched<T>(&mut self, name: &str, param: &Param, got: &str, span: Span) -> Checking<T> {
        let expected = if matches!(param, Param::Var(_)) { "variable" } else { "map" };
        let param = param.text();
        self.error(span, format!("Mismatched arg. {name}() expects a {expected} for arg {param} but got {got}."))
    }

    /// The same as a value.
    pub(super) fn macro_value(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<Value> {
        let (ops, value) = self.expand(name, args, span)?;
        match value {
            Some(value) => Ok(after(ops, value)),
            None => self.error(span, format!("Macro {name}() has no value: its body does not end with an expression")),
        }
    }

    /// What is between braces: what it does, and its value.
    pub(super) fn block_value(&mut self, body: &[Stmt], value: Option<&Expr>) -> Checking<(Vec<Op>, Option<Value>)> {
        self.scopes.push(HashMap::new());
        let mut ops = self.stmts(body);
        let value = match value {
            Some(Expr { kind: ExprKind::Block(body, value), .. }) => {
                self.block_value(body, value.as_deref()).map(|(inner, value)| {
                    ops.extend(inner);
                    value
                })
            }
            // A call that only does something is no value.
            Some(expr) => match self.last_call(expr, &mut ops) {
                Ok(true) => Ok(None),
                Ok(false) => self.expr(expr).map(Some),
                Err(wrong) => Err(wrong),
            },
            None => Ok(None),
        };
        self.scopes.pop();
        Ok((ops, value?))
    }

    /// Whether it is a call without a value.
    fn last_call(&mut self, expr: &Expr, ops: &mut Vec<Op>) -> Checking<bool> {
        let ExprKind::Call(name, args) = &expr.kind else { return Ok(false) };
        if self.find_macro(name, args.len()).is_some() {
            return Ok(false);
        }
        match self.action_call(name, args, expr.span)? {
            Some(op) => {
                ops.push(op);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// `{ …; value }` as a value.
    pub(super) fn block_expr(&mut self, body: &[Stmt], value: Option<&Expr>, span: Span) -> Checking<Value> {
        match self.block_value(body, value)? {
            (ops, Some(value)) => Ok(after(ops, value)),
            (_, None) => self.error(span, "a block that is a value must end with an expression, without a semicolon"),
        }
    }
}

/// Whether a macro may be called with such arguments.
fn takes(of: &Macro, args: &[Expr]) -> bool {
    of.params.len() == args.len() && of.params.iter().zip(args).all(|(param, arg)| param.takes(arg))
}

/// The same where parameters that are variables take any value.
fn takes_values(of: &Macro, args: &[Expr]) -> bool {
    let takes = |(param, arg): (&Param, &Expr)| matches!(param, Param::Var(_)) || param.takes(arg);
    of.params.len() == args.len() && of.params.iter().zip(args).all(takes)
}

fn after(ops: Vec<Op>, value: Value) -> Value {
    match ops.is_empty() || value.ty == Type::None {
        true => value,
        false => Value { ty: value.ty.clone(), kind: ValueKind::After(ops, Box::new(value)) },
    }
}

impl Names<'_> {
    fn stmts(&mut self, stmts: &[Stmt]) -> Vec<Stmt> {
        stmts.iter().map(|stmt| self.stmt(stmt)).collect()
    }

    fn var(&self, name: &str) -> String {
        self.vars.get(name).map_or_else(|| format!("{name}#{}", self.number), |name| (*name).to_owned())
    }

    fn stmt(&mut self, stmt: &Stmt) -> Stmt {
        let kind = match &stmt.kind {
            StmtKind::Expr(expr) => StmtKind::Expr(self.expr(expr)),
            StmtKind::Discard(expr) => StmtKind::Discard(self.expr(expr)),
            StmtKind::Assign { target, op, value } => {
                StmtKind::Assign { target: self.expr(target), op: *op, value: self.expr(value) }
            }
            StmtKind::Let { name, ty, value } => StmtKind::Let {
                name: self.var(name),
                ty: ty.as_ref().map(|ty| *self.sized(ty)),
                value: value.as_ref().map(|value| self.expr(value)),
            },
            StmtKind::If { cond, then, otherwise } => {
                StmtKind::If { cond: self.expr(cond), then: self.stmts(then), otherwise: self.stmts(otherwise) }
            }
            StmtKind::ForMap { name, map, body } => {
                StmtKind::ForMap { name: self.var(name), map: self.expr(map), body: self.stmts(body) }
            }
            StmtKind::ForRange { name, from, to, body } => StmtKind::ForRange {
                name: self.var(name),
                from: self.expr(from),
                to: self.expr(to),
                body: self.stmts(body),
            },
            StmtKind::While { cond, body } => StmtKind::While { cond: self.expr(cond), body: self.stmts(body) },
            StmtKind::Unroll { count, body } => StmtKind::Unroll { count: self.expr(count), body: self.stmts(body) },
            StmtKind::Return(_) => {
                self.wrong = Some((stmt.span, "return cannot be used in a macro".to_owned()));
                StmtKind::Return(None)
            }
            StmtKind::Break => StmtKind::Break,
            StmtKind::Continue => StmtKind::Continue,
        };
        Stmt { kind, span: stmt.span }
    }

    fn exprs(&mut self, exprs: &[Expr]) -> Vec<Expr> {
        exprs.iter().map(|expr| self.expr(expr)).collect()
    }

    fn sized(&mut self, of: &Sized) -> Box<Sized> {
        Box::new(match of {
            Sized::Type(TypeName { keyword: "", name, stars: 0, length: None, pointers: 0 })
                if self.exprs.contains_key(name.as_str()) =>
            {
                return self.sized(&Sized::Expr(Expr { kind: ExprKind::Ident(name.clone()), span: Span::default() }));
            }
            Sized::Type(name) => Sized::Type(name.clone()),
            Sized::Expr(expr) => match self.expr(expr) {
                // A parameter that is a type.
                Expr { kind: ExprKind::TypeOf(of), .. } => *of,
                expr => Sized::Expr(expr),
            },
        })
    }

    fn boxed(&mut self, expr: &Expr) -> Box<Expr> {
        Box::new(self.expr(expr))
    }

    fn expr(&mut self, expr: &Expr) -> Expr {
        let kind = match &expr.kind {
            ExprKind::Var(name) => ExprKind::Var(self.var(name)),
            ExprKind::Ident(name) => match self.exprs.get(name.as_str()) {
                Some(arg) => return (*arg).clone(),
                None => ExprKind::Ident(name.clone()),
            },
            ExprKind::Map(name, keys) => match self.maps.get(name.as_str()) {
                Some(map) => ExprKind::Map((*map).to_owned(), self.exprs(keys)),
                None => {
                    let message = format!("@{name} is not a parameter of the macro: it must be passed in");
                    self.wrong = Some((expr.span, message));
                    ExprKind::Int(0)
                }
            },
            ExprKind::Call(name, args) => ExprKind::Call(name.clone(), self.exprs(args)),
            ExprKind::Unary(op, of) => ExprKind::Unary(*op, self.boxed(of)),
            ExprKind::Step(step, of) => ExprKind::Step(*step, self.boxed(of)),
            ExprKind::Binary(op, a, b) => ExprKind::Binary(*op, self.boxed(a), self.boxed(b)),
            ExprKind::Ternary(cond, a, b) => ExprKind::Ternary(self.boxed(cond), self.boxed(a), self.boxed(b)),
            ExprKind::Cast(ty, of) => ExprKind::Cast(self.sized(ty), self.boxed(of)),
            ExprKind::Member(of, name) => ExprKind::Member(self.boxed(of), name.clone()),
            ExprKind::Index(of, index) => ExprKind::Index(self.boxed(of), self.boxed(index)),
            ExprKind::Tuple(items) => ExprKind::Tuple(self.exprs(items)),
            ExprKind::Record(names, items) => ExprKind::Record(names.clone(), self.exprs(items)),
            ExprKind::Block(body, value) => {
                ExprKind::Block(self.stmts(body), value.as_ref().map(|value| self.boxed(value)))
            }
            ExprKind::SizeOf(of) => ExprKind::SizeOf(self.sized(of)),
            ExprKind::TypeOf(of) => ExprKind::TypeOf(self.sized(of)),
            ExprKind::TypeInfo(of) => ExprKind::TypeInfo(self.sized(of)),
            ExprKind::OffsetOf(of, names) => ExprKind::OffsetOf(self.sized(of), names.clone()),
            kind @ (ExprKind::Int(_) | ExprKind::Str(_) | ExprKind::Param(_) | ExprKind::ParamCount) => kind.clone(),
        };
        Expr { kind, span: expr.span }
    }
}
