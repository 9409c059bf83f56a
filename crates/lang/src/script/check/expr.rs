//! Expressions, with constants folded.

use super::super::ast::{BinaryOp, Expr, ExprKind, Provider, TypeName, UnaryOp};
use super::super::checked::{Action, Builtin, StackMode, Value, ValueKind};
use super::super::diagnostic::{Diagnostic, Span};
use super::super::types::Type;
use super::aggregate::readable;
use super::{Checker, Checking};

/// What only the kernel knows.
const KERNEL: &[&str] =
    &["kstack", "ksym", "curtask", "cgroup", "ctx", "numaid", "jiffies", "ncpus", "usermode", "kaddr"];

/// Frames of `ustack` without a number, as in bpftrace.
const STACK_DEPTH: u32 = 127;

/// Bytes of `comm`, without the NUL.
const COMM: usize = 15;

pub(super) fn int(value: u64) -> Value {
    let ty = if i64::try_from(value).is_ok() { Type::INT } else { Type::UINT };
    Value { ty, kind: ValueKind::Int(value) }
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
            ExprKind::Ident(name) => self.ident(name, span),
            ExprKind::Map(name, keys) => {
                let entry = self.entry(name, keys, span)?;
                let content = self.maps[entry.map].content.clone();
                let Some(content) = content else {
                    // It may be assigned further down, or by what this is a part of.
                    return match self.last {
                        true => self.error(span, format!("Undefined map: @{name}")),
                        false => Ok(Value { ty: Type::None, kind: ValueKind::Read(entry) }),
                    };
                };
                match readable(&content) {
                    Some(ty) => {
                        self.maps[entry.map].read = true;
                        Ok(Value { ty, kind: ValueKind::Read(entry) })
                    }
                    None => self.unsupported(span, &format!("reading a map of type '{}'", content.name())),
                }
            }
            ExprKind::Call(name, args) => self.call(name, args, span),
            ExprKind::Unary(op, of) => self.unary(*op, of, span),
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
                        Some(super::Content::Value(Type::Int { .. })) => {}
                        Some(_) => {
                            let name = known.map(|content| content.name()).unwrap_or_default();
                            let message = format!("The ++ and -- operators can not be used on a map of type '{name}'");
                            return self.error(span, message);
                        }
                    }
                    let ty = self.content_type(entry.map);
                    Ok(Value { ty, kind: ValueKind::StepMap(*step, entry) })
                }
                _ => self.error(span, "The ++ and -- operators must be applied to a map or variable"),
            },
            ExprKind::Binary(op, a, b) => {
                let a = self.expr(a);
                let b = self.expr(b)?;
                self.binary(*op, a?, b, span)
            }
            ExprKind::Ternary(cond, then, otherwise) => self.ternary(cond, then, otherwise, span),
            ExprKind::Cast(ty, of) => self.cast(ty, of, span),
            ExprKind::Index(of, index) => {
                let of = self.expr(of)?;
                let index = self.expr(index)?;
                let Type::Pointer { bytes, .. } = of.ty else {
                    let message =
                        format!("The array index operator [] can only be used on pointers, not on {}", of.ty.kind());
                    return self.error(span, message);
                };
                let scaled = self.binary(BinaryOp::Mul, index, int(bytes.into()), span)?;
                let ty = of.ty.clone();
                let address = self.binary(BinaryOp::Add, Value { ty: Type::UINT, ..of }, scaled, span)?;
                Ok(load(Value { ty, ..address }))
            }
            ExprKind::Member(of, name) => match &of.kind {
                ExprKind::Ident(args) if args == "args" => self.unsupported(span, &format!("args.{name}")),
                ExprKind::Ident(this) if this == "self" => self.unsupported(span, &format!("self.{name}")),
                _ => self.unsupported(span, "a member of a struct or tuple"),
            },
            ExprKind::Tuple(_) => self.unsupported(span, "a tuple"),
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

    /// `str($1)`
    pub(super) fn param_text(&self, number: u32) -> Value {
        text(self.params.get(number as usize - 1).cloned().unwrap_or_default().into_bytes())
    }

    pub(super) fn var(&mut self, name: &str, span: Span) -> Checking<Value> {
        match self.find_var(name) {
            Some(index) if self.vars[index] != Type::None => {
                Ok(Value { ty: self.vars[index].clone(), kind: ValueKind::Var(index) })
            }
            _ => self.error(span, format!("Undefined or undeclared variable: ${name}")),
        }
    }

    fn ident(&mut self, name: &str, span: Span) -> Checking<Value> {
        let builtin = |ty, builtin| Ok(Value { ty, kind: ValueKind::Builtin(builtin) });
        let at_function = [Provider::Uprobe, Provider::Usdt];
        if let Some(number) = name.strip_prefix("arg").and_then(|number| number.parse::<u32>().ok()) {
            if number > 9 {
                return self.error(span, format!("{name} is not a valid argument: there are arg0 to arg9"));
            }
            if !self.only_at(&at_function) {
                return self
                    .error(span, format!("The {name} builtin can only be used with 'uprobe' and 'usdt' probes"));
            }
            return builtin(Type::INT, Builtin::Arg(number));
        }
        match name {
            "pid" => builtin(Type::UINT32, Builtin::Pid),
            "tid" => builtin(Type::UINT32, Builtin::Tid),
            "uid" => builtin(Type::UINT32, Builtin::Uid),
            "gid" => builtin(Type::UINT32, Builtin::Gid),
            "comm" => builtin(Type::Text(COMM), Builtin::Comm),
            "nsecs" => builtin(Type::UINT, Builtin::Nsecs),
            "elapsed" => builtin(Type::UINT, Builtin::Elapsed),
            "cpu" => builtin(Type::UINT32, Builtin::Cpu),
            "rand" => builtin(Type::UINT32, Builtin::Rand),
            "username" => {
                let uid = Value { ty: Type::UINT32, kind: ValueKind::Builtin(Builtin::Uid) };
                Ok(Value { ty: Type::User, kind: ValueKind::Shown(Box::new(uid)) })
            }
            "probe" => builtin(Type::Probe { func: false }, Builtin::Probe),
            "func" if self.only_at(&[Provider::Uprobe, Provider::Uretprobe]) => {
                builtin(Type::Probe { func: true }, Builtin::Probe)
            }
            "func" => self.error(span, "The func builtin can only be used with 'uprobe' and 'uretprobe' probes"),
            "retval" if self.only_at(&[Provider::Uretprobe]) => builtin(Type::INT, Builtin::Retval),
            "retval" => self.error(span, "The retval builtin can only be used with 'uretprobe' probes"),
            "ustack" => self.ustack(self.out.config.stack_mode, STACK_DEPTH, span),
            "true" => Ok(int(1)),
            "false" => Ok(int(0)),
            "args" | "self" | "cpid" | "caller" | "goid" => self.unsupported(span, name),
            name if KERNEL.contains(&name) => {
                self.error(span, format!("{name} needs the kernel: not available in this tool"))
            }
            name => self.error(span, format!("Unknown identifier: '{name}'")),
        }
    }

    pub(super) fn ustack(&mut self, mode: StackMode, depth: u32, span: Span) -> Checking<Value> {
        if !self.only_at(&[Provider::Uprobe, Provider::Uretprobe, Provider::Usdt]) {
            return self
                .error(span, "The ustack builtin can only be used with 'uprobe', 'uretprobe' and 'usdt' probes");
        }
        let stack = self.stack(super::Stack { depth, mode });
        Ok(Value { ty: Type::Stack(stack), kind: ValueKind::Builtin(Builtin::Stack(stack)) })
    }

    fn unary(&mut self, op: UnaryOp, of: &Expr, span: Span) -> Checking<Value> {
        if op == UnaryOp::Address {
            return self.unsupported(span, "the & operator");
        }
        let value = self.expr(of)?;
        if !value.ty.is_int() {
            let message =
                format!("The {} operator can not be used on expressions of type '{}'", op.text(), value.ty.name());
            return self.error(span, message);
        }
        if op == UnaryOp::Deref {
            return match value.ty {
                Type::Pointer { .. } => Ok(load(value)),
                _ => self.error_with(
                    span,
                    "Can not dereference a value that is no pointer",
                    "say what is there, for example *(uint32 *)arg0",
                ),
            };
        }
        Ok(match (op, &value.kind) {
            (UnaryOp::Not, ValueKind::Int(n)) => int((*n == 0).into()),
            (UnaryOp::Invert, ValueKind::Int(n)) => Value { kind: ValueKind::Int(!n), ty: value.ty },
            (UnaryOp::Negate, ValueKind::Int(n)) => signed((*n as i64).wrapping_neg()),
            (UnaryOp::Not, _) => Value { ty: Type::INT, kind: ValueKind::Not(Box::new(value)) },
            (UnaryOp::Invert, _) => Value { ty: value.ty.clone(), kind: ValueKind::Invert(Box::new(value)) },
            _ => Value { ty: Type::INT, kind: ValueKind::Negate(Box::new(value)) },
        })
    }

    pub(super) fn binary(&mut self, op: BinaryOp, a: Value, b: Value, span: Span) -> Checking<Value> {
        if !self.last && (a.ty == Type::None || b.ty == Type::None) {
            return Ok(int(0));
        }
        if let (Type::Text(_), Type::Text(_)) = (&a.ty, &b.ty) {
            let same = |a, b| ValueKind::Same(Box::new(a), Box::new(b), None);
            return match op {
                BinaryOp::Eq => Ok(Value { ty: Type::INT, kind: same(a, b) }),
                BinaryOp::Ne => {
                    let same = Value { ty: Type::INT, kind: same(a, b) };
                    Ok(Value { ty: Type::INT, kind: ValueKind::Not(Box::new(same)) })
                }
                op => {
                    let message = format!("The {} operator can not be used on expressions of type 'string'", op.text());
                    self.error(span, message)
                }
            };
        }
        if matches!(op, BinaryOp::LogicalAnd | BinaryOp::LogicalOr) {
            let a = self.condition(a, span, "a logical expression")?;
            let b = self.condition(b, span, "a logical expression")?;
            return Ok(Value { ty: Type::INT, kind: ValueKind::Binary(op, false, Box::new(a), Box::new(b)) });
        }
        if !a.ty.is_int() || !b.ty.is_int() {
            let message = match op.is_comparison() {
                true => {
                    format!("Type mismatch for '{}': comparing '{}' with '{}'", op.text(), a.ty.name(), b.ty.name())
                }
                false => {
                    let ty = if a.ty.is_int() { &b.ty } else { &a.ty };
                    format!("The {} operator can not be used on expressions of type '{}'", op.text(), ty.name())
                }
            };
            return self.error(span, message);
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
        if let (ValueKind::Int(x), ValueKind::Int(y)) = (&a.kind, &b.kind) {
            if let Some(value) = fold(op, unsigned, *x, *y) {
                let ty = if unsigned && !op.is_comparison() { Type::UINT } else { Type::INT };
                return Ok(Value { ty, kind: ValueKind::Int(value) });
            }
        }
        let ty = match op {
            op if op.is_comparison() => Type::INT,
            _ if unsigned => Type::UINT,
            _ => Type::INT,
        };
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

    fn ternary(&mut self, cond: &Expr, then: &Expr, otherwise: &Expr, span: Span) -> Checking<Value> {
        let condition = self.expr(cond)?;
        let condition = self.condition(condition, cond.span, "a ternary")?;
        let (then, otherwise) = (self.expr(then)?, self.expr(otherwise)?);
        let ty = match (&then.ty, &otherwise.ty) {
            (Type::Text(a), Type::Text(b)) => Type::Text(*a.max(b)),
            (a, b) if a.is_int() && b.is_int() => {
                if a.is_unsigned() && b.is_unsigned() {
                    Type::UINT
                } else {
                    Type::INT
                }
            }
            (a, b) if a == b && *a != Type::None => a.clone(),
            (a, b) => {
                let message =
                    format!("Ternary operator must return the same type: have '{}' and '{}'", a.name(), b.name());
                return self.error(span, message);
            }
        };
        Ok(Value { ty, kind: ValueKind::Ternary(Box::new(condition), Box::new(then), Box::new(otherwise)) })
    }

    fn cast(&mut self, name: &TypeName, of: &Expr, span: Span) -> Checking<Value> {
        let Some((bytes, is_signed)) = int_type(&name.name).filter(|_| !name.is_struct && name.length.is_none()) else {
            return self.unsupported(span, &format!("a cast to '{}'", name.text()));
        };
        let value = self.expr(of)?;
        if !value.ty.is_int() {
            let message = format!("Cannot cast from '{}' to '{}'", value.ty.name(), name.text());
            return self.error(span, message);
        }
        match name.stars {
            0 if bytes == 0 => self.error(span, "Cannot cast to 'void'"),
            0 => {
                let ty = Type::Int { bytes, signed: is_signed };
                Ok(match value.kind {
                    ValueKind::Int(n) => Value { kind: ValueKind::Int(resize(n, bytes, is_signed)), ty },
                    _ => Value { ty, kind: ValueKind::Resize(Box::new(value)) },
                })
            }
            1 => Ok(Value { ty: Type::Pointer { bytes: bytes.max(1), signed: is_signed }, ..value }),
            _ => Ok(Value { ty: Type::Pointer { bytes: 8, signed: false }, ..value }),
        }
    }
}

/// What is at an address.
fn load(address: Value) -> Value {
    let ty = match address.ty {
        Type::Pointer { bytes, signed } => Type::Int { bytes, signed },
        _ => Type::UINT,
    };
    Value { ty, kind: ValueKind::Load(Box::new(address)) }
}

/// Bytes and sign of a type of C or bpftrace.
fn int_type(name: &str) -> Option<(u8, bool)> {
    let words: Vec<&str> = name.split(' ').collect();
    let signed = !words.contains(&"unsigned");
    let rest: Vec<&str> = words.into_iter().filter(|word| *word != "unsigned" && *word != "signed").collect();
    Some(match *rest {
        ["void"] => (0, true),
        ["bool" | "uint8" | "uint8_t"] => (1, false),
        ["char"] => (1, signed),
        ["int8" | "int8_t"] => (1, true),
        ["uint16" | "uint16_t"] => (2, false),
        ["int16" | "int16_t"] => (2, true),
        ["short"] | ["short", "int"] => (2, signed),
        ["uint32" | "uint32_t"] => (4, false),
        ["int32" | "int32_t"] => (4, true),
        ["int"] | [] => (4, signed),
        ["uint64" | "uint64_t" | "size_t" | "uintptr_t"] => (8, false),
        ["int64" | "int64_t" | "ssize_t" | "intptr_t"] => (8, true),
        ["long"] | ["long", "int"] | ["long", "long"] | ["long", "long", "int"] => (8, signed),
        _ => return None,
    })
}

/// The lower bytes of a number, extended.
fn resize(value: u64, bytes: u8, signed: bool) -> u64 {
    let unused = 64 - 8 * u32::from(bytes);
    if signed { ((value << unused) as i64 >> unused) as u64 } else { value << unused >> unused }
}

/// The value of an operation on constants, if it is no division by zero.
fn fold(op: BinaryOp, unsigned: bool, a: u64, b: u64) -> Option<u64> {
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
