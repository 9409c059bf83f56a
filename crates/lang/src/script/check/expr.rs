//! Expressions, with constants folded.

use super::super::ast::{BinaryOp, Expr, ExprKind, Provider, UnaryOp};
use super::super::checked::{Action, Builtin, StackMode, Value, ValueKind};
use super::super::ctype::CType;
use super::super::diagnostic::{Diagnostic, Span, Unknown};
use super::super::types::{COMM, NAME, POINT, Type};
use super::aggregate::readable;
use super::memory::times;
use super::{Checker, Checking, advice, literal};

/// What only the kernel knows.
const KERNEL: &[&str] = &["kstack", "ksym", "curtask", "cgroup", "ctx", "numaid", "jiffies", "kaddr"];

/// Frames of `ustack` without a number, as in bpftrace.
const STACK_DEPTH: u32 = 127;

/// Bytes of the name of a kind of probes.
const PROVIDER: usize = 9;

pub(super) fn int(value: u64) -> Value {
    let ty = if i64::try_from(value).is_ok() { Type::INT } else { Type::UINT };
    Value { ty, kind: ValueKind::Int(value) }
}

/// True or false.
pub(super) fn truth(kind: ValueKind) -> Value {
    Value { ty: Type::bool(), kind }
}

fn signed(value: i64) -> Value {
    Value { ty: Type::INT, kind: ValueKind::Int(value as u64) }
}

pub(super) fn text(bytes: Vec<u8>) -> Value {
    Value { ty: Type::Text(bytes.len()), kind: ValueKind::Text(bytes) }
}

impl Checker<'_> {
    pub(super) fn expr(&mut self, expr: &Expr) -> Checking<Value> {
        let span = expr.span;
        match &expr.kind {
            ExprKind::Int(value) => Ok(int(*value)),
            ExprKind::Str(bytes) => Ok(text(bytes.clone())),
            ExprKind::Param(number) => Ok(self.param(*number)),
            ExprKind::ParamCount => Ok(int(self.params.len() as u64)),
            ExprKind::Var(name) => self.var(name, span),
            ExprKind::Ident(name) if self.find_macro(name).is_some() => self.macro_value(name, &[], span),
            ExprKind::Ident(name) => self.ident(name, span),
            ExprKind::Map(name, keys) => {
                let entry = self.entry(name, keys, span)?;
                let content = self.maps[entry.map].content.clone();
                let Some(content) = content else {
                    // It may be assigned further down, or by what this is a part of.
                    return match self.last {
                        true => self.no_such(span, Unknown::Map(name.clone()), None),
                        false => Ok(Value { ty: Type::None, kind: ValueKind::Read(entry) }),
                    };
                };
                match readable(&content) {
                    Some(ty) => {
                        self.maps[entry.map].read = true;
                        Ok(Value { ty, kind: ValueKind::Read(entry) })
                    }
                    None => {
                        let message = format!("Map value of type '{}' cannot be used in an expression", content.name());
                        self.error_with(span, message, format!("print(@{name}) prints it"))
                    }
                }
            }
            ExprKind::Call(name, args) if self.find_macro(name).is_some() => self.macro_value(name, args, span),
            ExprKind::Call(name, args) => self.call(name, args, span),
            ExprKind::Block(body, value) => self.block_expr(body, value.as_deref(), span),
            ExprKind::Unary(UnaryOp::Deref, of) => match addressed(of) {
                // What the address of a variable leads to is the variable.
                Some(of) => self.expr(of),
                None => match self.place(expr)? {
                    Some(place) => self.read(&place, span),
                    None => self.unknown(),
                },
            },
            ExprKind::Unary(op, of) => {
                self.literals(expr)?;
                self.unary(*op, of, span)
            }
            ExprKind::Step(step, of) => match &of.kind {
                ExprKind::Var(name) => {
                    let ty = self.var(name, of.span)?.ty;
                    let Some(index) = self.find_var(name).filter(|_| ty.is_int()) else {
                        return self.error(span, "The ++ and -- operators must be applied to a map or variable");
                    };
                    Ok(Value { ty, kind: ValueKind::StepVar(*step, index) })
                }
                ExprKind::Map(name, keys) => {
                    let entry = self.entry(name, keys, of.span)?;
                    let known = self.maps[entry.map].content.clone();
                    match &known {
                        None => self.set_content(entry.map, super::Content::Value(Type::INT), span)?,
                        Some(super::Content::Value(Type::Int { .. } | Type::Pointer(_))) => {}
                        Some(_) => {
                            let name = known.map(|content| content.name()).unwrap_or_default();
                            let message = format!("The ++ and -- operators can not be used on a map of type '{name}'");
                            return self.error(span, message);
                        }
                    }
                    let ty = self.content_type(entry.map);
                    // A pointer goes on by what it leads to.
                    let by = if let Type::Pointer(to) = &ty { self.size(to, span)? } else { 1 };
                    Ok(Value { ty, kind: ValueKind::StepMap(*step, entry, by) })
                }
                _ => self.error(span, "The ++ and -- operators must be applied to a map or variable"),
            },
            ExprKind::Binary(op, a, b) => {
                // A result above the largest number with a sign has none, and one below 0 has one.
                if let Some(n) = self.literals(expr)?.filter(|n| !(0..=i128::from(i64::MAX)).contains(n)) {
                    let ty = if n < 0 { Type::INT } else { Type::UINT };
                    return Ok(Value { ty, kind: ValueKind::Int(n as u64) });
                }
                let (first, second) = (self.expr(a), self.expr(b)?);
                let first = first?;
                // A parameter that is missing is the text "" beside a text.
                let (first, second) = match (&first.ty, &second.ty) {
                    (_, Type::Text(_)) if self.is_missing(a) => (text(Vec::new()), second),
                    (Type::Text(_), _) if self.is_missing(b) => (first, text(Vec::new())),
                    _ => (first, second),
                };
                self.binary(*op, first, second, span)
            }
            ExprKind::Ternary(cond, then, otherwise) => self.ternary(cond, then, otherwise, span),
            ExprKind::Cast(ty, of) => self.cast(ty, of, span),
            ExprKind::SizeOf(of) => self.size_of(of, span),
            ExprKind::OffsetOf(of, names) => self.offset_of(of, names, span),
            ExprKind::TypeOf(_) => {
                self.error_with(span, "typeof() is a type, not a value", "let $x : typeof(…), (typeof(…))x")
            }
            ExprKind::TypeInfo(of) => self.type_info(of, span),
            ExprKind::Index(..) | ExprKind::Member(..) => match (self.place(expr)?, &expr.kind) {
                (Some(place), _) => self.read(&place, span),
                (None, ExprKind::Member(of, name)) if of.kind == ExprKind::Ident("self".to_owned()) => {
                    self.own(name, span)
                }
                (None, ExprKind::Member(of, name)) if of.kind == ExprKind::Ident("config".to_owned()) => {
                    self.told(name, span)
                }
                (None, ExprKind::Member(of, name)) => {
                    let of = self.expr(of)?;
                    self.item(of, name, span)
                }
                (None, ExprKind::Index(of, index)) => match (self.expr(of)?, self.expr(index)?.kind) {
                    (of, ValueKind::Int(n)) => self.item(of, &n.to_string(), span),
                    _ => self.error(index.span, "the index of a tuple must be a literal"),
                },
                (None, _) => self.unknown(),
            },
            ExprKind::Tuple(items) => self.tuple(&[], items, span),
            ExprKind::Record(names, items) => self.tuple(names, items, span),
        }
    }

    /// `$1`: a number if it is one, else a text.
    fn param(&self, number: u32) -> Value {
        let Some(param) = self.params.get(number as usize - 1) else { return int(0) };
        let digits = param.strip_prefix('-').unwrap_or(param);
        match super::super::lexer::number(digits) {
            Some(value) if digits.len() == param.len() => int(value),
            Some(value) if value <= 1 << 63 => signed((value as i64).wrapping_neg()),
            _ => text(param.clone().into_bytes()),
        }
    }

    /// `$1` that the script was not given.
    fn is_missing(&self, expr: &Expr) -> bool {
        matches!(expr.kind, ExprKind::Param(number) if self.params.len() < number as usize)
    }

    /// `str($1)`
    pub(super) fn param_text(&self, number: u32) -> Value {
        text(self.params.get(number as usize - 1).cloned().unwrap_or_default().into_bytes())
    }

    pub(super) fn var(&mut self, name: &str, span: Span) -> Checking<Value> {
        match self.find_var(name) {
            Some(index) if self.vars[index] != Type::None => {
                Ok(Value { ty: self.vars[index].clone(), kind: ValueKind::Var(index) })
            }
            _ => self.no_such(span, Unknown::Variable(name.to_owned()), None),
        }
    }

    pub(super) fn ident(&mut self, name: &str, span: Span) -> Checking<Value> {
        let name = super::call::plain_name(name);
        let builtin = |ty, builtin| Ok(Value { ty, kind: ValueKind::Builtin(builtin) });
        let at_function = [Provider::Uprobe, Provider::Usdt];
        if let Some(number) = name.strip_prefix("arg").and_then(|number| number.parse::<u32>().ok()) {
            // A static probe has up to 12.
            let last = if self.only_at(&[Provider::Usdt]) { 11 } else { 9 };
            if number > last {
                return self.error(span, format!("{name} is not a valid argument: there are arg0 to arg{last}"));
            }
            if !self.only_at(&at_function) {
                let providers: Vec<Provider> = self.points.iter().map(|point| point.provider).collect();
                let message = format!("The {name} builtin can only be used with 'uprobe' and 'usdt' probes");
                return self.advised(span, message, advice::argument(name, &providers));
            }
            return builtin(self.argument_type(number), Builtin::Arg(number));
        }
        match name {
            "pid" => builtin(Type::UINT32, Builtin::Pid),
            "ppid" => builtin(Type::UINT32, Builtin::Ppid),
            "cpid" => {
                let warning = Diagnostic::warning(span, "cpid is 0: no command was started");
                self.out.cpid.push(warning.hint("-c CMD starts one; has_cpid tells whether there is any"));
                builtin(Type::UINT32, Builtin::Cpid)
            }
            "ncpus" => builtin(Type::UINT, Builtin::Processors),
            // There are no other probes.
            "usermode" => Ok(Value { ty: Type::Int { bytes: 1, signed: false }, kind: ValueKind::Int(1) }),
            "tid" => builtin(Type::UINT32, Builtin::Tid),
            "uid" => builtin(Type::UINT32, Builtin::Uid),
            "gid" => builtin(Type::UINT32, Builtin::Gid),
            "comm" => builtin(Type::Text(COMM), Builtin::Comm),
            "pcomm" | "leader_comm" => builtin(Type::Text(COMM), Builtin::ProcessComm),
            // The first thread has the number of its process.
            "leader_tid" => builtin(Type::UINT32, Builtin::Pid),
            "nsecs" => builtin(Type::UINT, Builtin::Nsecs),
            "elapsed" => builtin(Type::UINT, Builtin::Elapsed),
            "cpu" => builtin(Type::UINT32, Builtin::Cpu),
            "rand" => builtin(Type::UINT32, Builtin::Rand),
            "username" => {
                let uid = Value { ty: Type::UINT32, kind: ValueKind::Builtin(Builtin::Uid) };
                Ok(Value { ty: Type::User, kind: ValueKind::Shown(Box::new(uid)) })
            }
            "probe" => builtin(Type::Probe { func: false }, Builtin::Probe),
            "probetype" => builtin(Type::Text(PROVIDER), Builtin::ProbeType),
            "has_cpid" => {
                self.out.asks_for_cpid = true;
                let cpid = Value { ty: Type::UINT32, kind: ValueKind::Builtin(Builtin::Cpid) };
                let none = Value { ty: Type::INT, kind: ValueKind::Not(Box::new(cpid)) };
                Ok(truth(ValueKind::Not(Box::new(none))))
            }
            "func" if self.only_at(&[Provider::Uprobe, Provider::Uretprobe]) => {
                builtin(Type::Probe { func: true }, Builtin::Function)
            }
            "func" => self.error(span, "The func builtin can only be used with 'uprobe' and 'uretprobe' probes"),
            "retval" if self.only_at(&[Provider::Uretprobe]) => match self.result(span)? {
                Some(place) => self.read(&place, span),
                None => builtin(Type::INT, Builtin::Retval),
            },
            "retval" => self.error_with(
                span,
                "The retval builtin can only be used with 'uretprobe' probes",
                "uretprobe:PATH:FUNCTION is where a function returns",
            ),
            "ustack" => self.ustack(self.out.config.stack_mode, STACK_DEPTH),
            "true" => Ok(truth(ValueKind::Int(1))),
            "false" => Ok(truth(ValueKind::Int(0))),
            "self" => self.error_with(span, "self has no value itself", "self.name has, for any name"),
            "caller" => {
                self.at_calls("caller", span)?;
                builtin(Type::Symbol, Builtin::Caller)
            }
            "goid" => self.goid(span),
            "args" => self.arguments_whole(span),
            name if KERNEL.contains(&name) => {
                self.error(span, format!("{name} needs the kernel: not available in this tool"))
            }
            name => match self.types.constant(self.points, name) {
                Some(constant) => Ok(constant),
                None => self.no_such(span, Unknown::Identifier(name.to_owned()), advice::value(name)),
            },
        }
    }

    pub(super) fn ustack(&mut self, mode: StackMode, depth: u32) -> Checking<Value> {
        let stack = self.stack(super::Stack { depth, mode });
        Ok(Value { ty: Type::Stack(stack), kind: ValueKind::Builtin(Builtin::Stack(stack)) })
    }

    fn unary(&mut self, op: UnaryOp, of: &Expr, span: Span) -> Checking<Value> {
        if op == UnaryOp::Address {
            return self.address(of, span);
        }
        let value = self.expr(of)?;
        if !value.ty.is_int() {
            let message =
                format!("The {} operator can not be used on expressions of type '{}'", op.text(), value.ty.name());
            return self.error(span, message);
        }
        Ok(match (op, &value.kind) {
            (UnaryOp::Not, ValueKind::Int(n)) => truth(ValueKind::Int((*n == 0).into())),
            (UnaryOp::Invert, ValueKind::Int(n)) => Value { kind: ValueKind::Int(!n), ty: value.ty },
            (UnaryOp::Negate, ValueKind::Int(n)) => signed((*n as i64).wrapping_neg()),
            (UnaryOp::Not, _) => truth(ValueKind::Not(Box::new(value))),
            (UnaryOp::Invert, _) => Value { ty: value.ty.clone(), kind: ValueKind::Invert(Box::new(value)) },
            _ => Value { ty: Type::INT, kind: ValueKind::Negate(Box::new(value)) },
        })
    }

    pub(super) fn binary(&mut self, op: BinaryOp, a: Value, b: Value, span: Span) -> Checking<Value> {
        if !self.last && (a.ty == Type::None || b.ty == Type::None) {
            return Ok(int(0));
        }
        let (a, b) = match (&a.ty, &b.ty) {
            (Type::Probe { func }, Type::Text(_) | Type::Probe { .. }) => {
                let a = probe_text(*func);
                let b = if let Type::Probe { func } = b.ty { probe_text(func) } else { b };
                (a, b)
            }
            (Type::Text(_), Type::Probe { func }) => (a, probe_text(*func)),
            _ => (a, b),
        };
        let comparable = match (&a.ty, &b.ty) {
            (Type::Text(_), Type::Text(_)) | (Type::Bytes(_), Type::Bytes(_)) => true,
            (Type::Tuple(_), Type::Tuple(_)) => a.ty.fits(&b.ty),
            _ => false,
        };
        if comparable {
            let same = |a, b| ValueKind::Same(Box::new(a), Box::new(b), None);
            return match op {
                BinaryOp::Eq => Ok(truth(same(a, b))),
                BinaryOp::Ne => {
                    let same = Value { ty: Type::INT, kind: same(a, b) };
                    Ok(truth(ValueKind::Not(Box::new(same))))
                }
                op => {
                    let message =
                        format!("The {} operator can not be used on expressions of type '{}'", op.text(), a.ty.name());
                    self.error(span, message)
                }
            };
        }
        if matches!(op, BinaryOp::LogicalAnd | BinaryOp::LogicalOr) {
            let a = self.condition(a, span, "a logical expression")?;
            let b = self.condition(b, span, "a logical expression")?;
            return Ok(truth(ValueKind::Binary(op, false, Box::new(a), Box::new(b))));
        }
        if !a.ty.is_int() || !b.ty.is_int() {
            let with_text = op.is_comparison() && (matches!(a.ty, Type::Text(_)) || matches!(b.ty, Type::Text(_)));
            let hint = if with_text { advice::text(&a.ty).or_else(|| advice::text(&b.ty)) } else { None };
            let message = match op.is_comparison() {
                true => {
                    format!("Type mismatch for '{}': comparing '{}' with '{}'", op.text(), a.ty.name(), b.ty.name())
                }
                false => {
                    let ty = if a.ty.is_int() { &b.ty } else { &a.ty };
                    format!("The {} operator can not be used on expressions of type '{}'", op.text(), ty.name())
                }
            };
            return self.advised(span, message, hint);
        }
        if let Some((a, b, to)) = self.pointer_step(op, &a, &b, span)? {
            let sum = self.binary(op, a, b, span)?;
            return Ok(Value { ty: Type::Pointer(to), ..sum });
        }
        // A literal takes the sign of what it is combined with.
        let literal = |value: &Value| matches!(value.kind, ValueKind::Int(n) if i64::try_from(n).is_ok());
        let unsigned = match (a.ty.is_unsigned(), b.ty.is_unsigned()) {
            (true, true) => true,
            (true, false) => literal(&b),
            (false, true) => literal(&a) || matches!(op, BinaryOp::Shl | BinaryOp::Shr) && a.ty.is_unsigned(),
            (false, false) => false,
        };
        // Shifts have the type of what is shifted.
        let unsigned = if matches!(op, BinaryOp::Shl | BinaryOp::Shr) { a.ty.is_unsigned() } else { unsigned };
        let ty = match op {
            op if op.is_comparison() => Type::bool(),
            _ if unsigned => Type::UINT,
            _ => Type::INT,
        };
        if let (ValueKind::Int(x), ValueKind::Int(y)) = (&a.kind, &b.kind) {
            if let Some(value) = fold(op, unsigned, *x, *y) {
                return Ok(Value { ty, kind: ValueKind::Int(value) });
            }
        }
        let divides = matches!(op, BinaryOp::Div | BinaryOp::Mod) && !matches!(b.kind, ValueKind::Int(1..));
        let (a, b) = (Box::new(a), Box::new(b));
        if !divides {
            return Ok(Value { ty, kind: ValueKind::Binary(op, unsigned, a, b) });
        }
        let message =
            "Divide or modulo by 0 detected. This can lead to unexpected results. 1 is being used as the result.";
        let warning = self.action(Action::Warning(Diagnostic::warning(span, message)));
        Ok(Value { ty, kind: ValueKind::Divide(op, unsigned, a, b, warning) })
    }

    /// The number that an expression of literals is, which must fit.
    fn literals(&mut self, expr: &Expr) -> Checking<Option<i128>> {
        match literal::exact(expr) {
            Some(Err(literal::Overflow)) => {
                self.error(expr.span, "unable to fold literals due to overflow or underflow")
            }
            number => Ok(number.and_then(Result::ok)),
        }
    }

    /// A pointer and a number that is added to it: both as numbers, and what the pointer leads to.
    fn pointer_step(
        &mut self,
        op: BinaryOp,
        a: &Value,
        b: &Value,
        span: Span,
    ) -> Checking<Option<(Value, Value, Box<CType>)>> {
        let (pointer, number, to) = match (op, &a.ty, &b.ty) {
            (BinaryOp::Add | BinaryOp::Sub, Type::Pointer(to), Type::Int { .. }) => (a, b, to),
            (BinaryOp::Add, Type::Int { .. }, Type::Pointer(to)) => (b, a, to),
            _ => return Ok(None),
        };
        let size = self.size(to, span)?;
        let pointer = Value { ty: Type::UINT, ..pointer.clone() };
        Ok(Some((pointer, times(number.clone(), size), to.clone())))
    }

    fn ternary(&mut self, cond: &Expr, then: &Expr, otherwise: &Expr, span: Span) -> Checking<Value> {
        let condition = self.expr(cond)?;
        let condition = self.condition(condition, cond.span, "a ternary")?;
        let (then, otherwise) = (self.expr(then)?, self.expr(otherwise)?);
        let ty = match (&then.ty, &otherwise.ty) {
            (a, b) if a.is_wide() && a.fits(b) => {
                let mut ty = a.clone();
                ty.widen(b);
                ty
            }
            (a, b) if a == b && *a != Type::None => a.clone(),
            (a, b) if a.is_int() && b.is_int() => {
                if a.is_unsigned() && b.is_unsigned() {
                    Type::UINT
                } else {
                    Type::INT
                }
            }
            (a, b) => {
                let message =
                    format!("Ternary operator must return the same type: have '{}' and '{}'", a.name(), b.name());
                return self.error(span, message);
            }
        };
        Ok(Value { ty, kind: ValueKind::Ternary(Box::new(condition), Box::new(then), Box::new(otherwise)) })
    }
}

/// What `&$x` and `&@m` are the address of.
fn addressed(of: &Expr) -> Option<&Expr> {
    match &of.kind {
        ExprKind::Unary(UnaryOp::Address, of) if matches!(of.kind, ExprKind::Var(_) | ExprKind::Map(..)) => Some(of),
        _ => None,
    }
}

/// `probe` or `func` as a text, for programs that look at it.
pub(super) fn probe_text(func: bool) -> Value {
    let (len, builtin) = if func { (NAME, Builtin::Func) } else { (POINT, Builtin::ProbeText) };
    Value { ty: Type::Text(len), kind: ValueKind::Builtin(builtin) }
}

/// The value of an operation on constants, if it is no division by zero.
pub(in super::super) fn fold(op: BinaryOp, unsigned: bool, a: u64, b: u64) -> Option<u64> {
    let (x, y) = (a as i64, b as i64);
    Some(match op {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div if unsigned => a.checked_div(b)?,
        BinaryOp::Div => {
            if y == 0 {
                return None;
            } else {
                x.wrapping_div(y) as u64
            }
        }
        BinaryOp::Mod if unsigned => a.checked_rem(b)?,
        BinaryOp::Mod => {
            if y == 0 {
                return None;
            } else {
                x.wrapping_rem(y) as u64
            }
        }
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl => a.wrapping_shl(b as u32),
        BinaryOp::Shr if unsigned => a.wrapping_shr(b as u32),
        BinaryOp::Shr => x.wrapping_shr(b as u32) as u64,
        BinaryOp::Eq => (a == b).into(),
        BinaryOp::Ne => (a != b).into(),
        BinaryOp::Lt => if unsigned { a < b } else { x < y }.into(),
        BinaryOp::Le => if unsigned { a <= b } else { x <= y }.into(),
        BinaryOp::Gt => if unsigned { a > b } else { x > y }.into(),
        BinaryOp::Ge => if unsigned { a >= b } else { x >= y }.into(),
        BinaryOp::LogicalAnd | BinaryOp::LogicalOr => return None,
    })
}
