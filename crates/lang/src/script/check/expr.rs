//! Expressions, with constants folded.

use super::super::ast::{BinaryOp, Expr, ExprKind, Step, UnaryOp};
use super::super::checked::{Action, Builtin, Failure, Value, ValueKind};
use super::super::ctype::CType;
use super::super::diagnostic::{Diagnostic, Span, Unknown};
use super::super::number;
use super::super::types::{NAME, POINT, Type};
use super::aggregate::readable;
use super::memory::{COMPARED, array, bytes_at, same_data, times};
use super::{Checker, Checking, advice, known, literal};

pub(super) fn int(value: u64) -> Value {
    let ty = if i64::try_from(value).is_ok() { Type::INT } else { Type::UINT };
    Value { ty, kind: ValueKind::Int(value) }
}

/// True or false.
pub(super) fn truth(kind: ValueKind) -> Value {
    Value { ty: Type::bool(), kind }
}

/// A number that the script says itself has the smallest type that holds it.
fn literal(value: u64) -> Value {
    Value { ty: number::of_literal(value), kind: ValueKind::Int(value) }
}

fn signed(value: i64) -> Value {
    Value { ty: number::of_signed(value), kind: ValueKind::Int(value as u64) }
}

pub(super) fn text(bytes: Vec<u8>) -> Value {
    Value { ty: Type::Text(bytes.len()), kind: ValueKind::Text(bytes) }
}

impl Checker<'_> {
    pub(super) fn expr(&mut self, expr: &Expr) -> Checking<Value> {
        let span = expr.span;
        match &expr.kind {
            ExprKind::Int(value) => Ok(literal(*value)),
            ExprKind::Str(bytes) => Ok(text(bytes.clone())),
            ExprKind::Param(number) => Ok(self.param(*number, span)),
            ExprKind::ParamCount => Ok(int(self.params.len() as u64)),
            ExprKind::Var(name) => self.var(name, span),
            ExprKind::Ident(name) if self.find_macro(name, 0).is_some() => self.macro_value(name, &[], span),
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
                        let entry = self.counted(entry, Failure::Lookup, span);
                        Ok(Value { ty, kind: ValueKind::Read(entry) })
                    }
                    None => {
                        let message = format!("Map value of type '{}' cannot be used in an expression", content.name());
                        let shown = format!("print(@{name}) prints it");
                        let hint = match content {
                            super::Content::Stats { .. } => format!("{shown}; .count, .total and .average are numbers"),
                            _ => shown,
                        };
                        self.error_with(span, message, hint)
                    }
                }
            }
            ExprKind::Call(name, args) if self.find_macro(name, args.len()).is_some() => {
                self.macro_value(name, args, span)
            }
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
                    if let Some(index) = self.find_var(name).filter(|index| self.vars[*index] == Type::None) {
                        self.vars[index] = Type::INT;
                    }
                    let ty = number::widest(&self.var(name, of.span)?.ty);
                    let Some(index) = self.find_var(name).filter(|_| ty.is_int()) else {
                        return self.error(span, "The ++ and -- operators must be applied to a map or variable");
                    };
                    self.step(*step, index, ty)
                }
                ExprKind::Map(name, keys) => {
                    let entry = self.entry(name, keys, of.span)?;
                    let known = self.maps[entry.map].content.clone();
                    match &known {
                        None => self.set_content(entry.map, super::Content::Value(Type::INT), span)?,
                        Some(super::Content::Value(ty @ (Type::Int { .. } | Type::Pointer(_)))) => {
                            let ty = number::widest(ty);
                            self.set_content(entry.map, super::Content::Value(ty), span)?;
                        }
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
                if let Some(n) = self.literals(expr)? {
                    return Ok(if n < 0 { signed(n as i64) } else { literal(n as u64) });
                }
                let kept = [self.record_var(a), self.record_var(b)];
                let (first, second) = (self.expr(a), self.expr(b)?);
                let (first, second) = self.in_one_order(first?, second, kept);
                // A parameter that is missing is the text "" beside a text.
                let (first, second) = match (&first.ty, &second.ty) {
                    (_, Type::Text(_)) if self.is_missing(a) => (text(Vec::new()), second),
                    (Type::Text(_), _) if self.is_missing(b) => (first, text(Vec::new())),
                    _ => (first, second),
                };
                let (first, second) = (as_bits(*op, a, first), as_bits(*op, b, second));
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
                (None, ExprKind::Member(of, name)) if is_config(of) => self.told(name, span),
                (None, ExprKind::Member(of, name)) if self.is_stats(of) => self.stat(of, name, span),
                (None, ExprKind::Member(of, name)) => {
                    let of = self.expr(of)?;
                    self.item(of, name, span)
                }
                (None, ExprKind::Index(of, index)) => match (self.expr(of)?, self.expr(index)?) {
                    (Value { ty: Type::Text(len), .. }, Value { kind: ValueKind::Int(n), .. })
                        if self.last && n > len as u64 =>
                    {
                        let (n, size) = (n as i64, len + 1);
                        self.error(span, format!("the index {n} is out of bounds for array of size {size}"))
                    }
                    (of @ Value { ty: Type::Text(_), .. }, at) if at.ty.is_int() => {
                        let kind = ValueKind::CharOf(Box::new(of), Box::new(at));
                        Ok(Value { ty: Type::Int { bytes: 1, signed: true }, kind })
                    }
                    (of, Value { kind: ValueKind::Int(n), .. }) => self.item(of, &n.to_string(), span),
                    _ => self.error(index.span, "the index of a tuple must be a literal"),
                },
                (None, _) => self.unknown(),
            },
            ExprKind::Tuple(items) => self.tuple(&[], items, span),
            ExprKind::Record(names, items) => self.tuple(names, items, span),
        }
    }

    /// `$1`: a number if it is one, else a text.
    fn param(&mut self, number: u32, span: Span) -> Value {
        self.look_for_param(number, span);
        let Some(param) = self.params.get(number as usize - 1) else { return int(0) };
        let digits = param.strip_prefix('-').unwrap_or(param);
        match super::super::lexer::number(digits) {
            Some(value) if digits.len() == param.len() => literal(value),
            Some(value) if value <= 1 << 63 => signed((value as i64).wrapping_neg()),
            _ => text(param.clone().into_bytes()),
        }
    }

    /// `$1` that the script was not given.
    fn is_missing(&self, expr: &Expr) -> bool {
        matches!(expr.kind, ExprKind::Param(number) if self.params.len() < number as usize)
    }

    /// Says that the script was not given `$1`.
    fn look_for_param(&mut self, number: u32, span: Span) {
        if self.params.get(number as usize - 1).is_none_or(String::is_empty) {
            self.warn(span, format!("Positional parameter ${number} is empty or not provided."));
        }
    }

    /// `str($1)`
    pub(super) fn param_text(&mut self, number: u32, span: Span) -> Value {
        self.look_for_param(number, span);
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

    fn unary(&mut self, op: UnaryOp, of: &Expr, span: Span) -> Checking<Value> {
        if op == UnaryOp::Address {
            return self.address(of, span);
        }
        let value = self.expr(of)?;
        // `~true` is true again, and an address with a sign is none.
        let means_nothing = match op {
            UnaryOp::Invert => value.ty.is_bool() || matches!(value.ty, Type::Pointer(_)),
            UnaryOp::Negate => matches!(value.ty, Type::Pointer(_)),
            _ => false,
        };
        if !value.ty.is_int() || means_nothing {
            let message =
                format!("The {} operator can not be used on expressions of type '{}'", op.text(), value.ty.name());
            return self.error(span, message);
        }
        Ok(match (op, &value.kind) {
            (UnaryOp::Not, ValueKind::Int(n)) => truth(ValueKind::Int((*n == 0).into())),
            // A literal has no sign before, and none behind.
            (UnaryOp::Invert, ValueKind::Int(n)) if literal::exact(of).is_some() => literal(!n),
            (UnaryOp::Invert, ValueKind::Int(n)) => Value { kind: ValueKind::Int(!n), ty: number::widest(&value.ty) },
            (UnaryOp::Negate, ValueKind::Int(n)) => signed((*n as i64).wrapping_neg()),
            (UnaryOp::Not, _) => truth(ValueKind::Not(Box::new(value))),
            (UnaryOp::Invert, _) => Value { ty: number::widest(&value.ty), kind: ValueKind::Invert(Box::new(value)) },
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
        let (a, b) = match (array(&a), array(&b)) {
            (Some((first, size)), Some((second, _))) if a.ty == b.ty && matches!(a.ty, Type::Data { .. }) => {
                (bytes_at(first, size), bytes_at(second, size))
            }
            _ => (a, b),
        };
        if let Some(known) = known_texts(op, &a.kind, &b.kind) {
            return Ok(known);
        }
        if let (Type::Data { ty: CType::Array(..), size: size @ 1..=COMPARED }, BinaryOp::Eq | BinaryOp::Ne) =
            (&a.ty, op)
        {
            if a.ty == b.ty {
                let same = same_data(&a, &b, *size);
                return Ok(if op == BinaryOp::Eq { same } else { truth(ValueKind::Not(Box::new(same))) });
            }
        }
        let comparable = match (&a.ty, &b.ty) {
            (Type::Text(_), Type::Text(_)) | (Type::Bytes(_), Type::Bytes(_)) => true,
            (Type::Tuple(_), Type::Tuple(_)) | (Type::List(_), Type::List(_)) => a.ty.fits(&b.ty),
            _ => false,
        };
        // Numbers that are printed as something else are compared as numbers.
        let (a, b) = match (&a.ty, &b.ty) {
            (Type::User, Type::User) if matches!(op, BinaryOp::Eq | BinaryOp::Ne) => {
                (Value { ty: Type::UINT, ..a }, Value { ty: Type::UINT, ..b })
            }
            _ => (a, b),
        };
        if comparable {
            self.small(&a.ty, span)?;
            self.small(&b.ty, span)?;
            let same = |a, b| ValueKind::Same(Box::new(a), Box::new(b), None);
            if let (Some(same), BinaryOp::Eq | BinaryOp::Ne) = (known::same(&a.kind, &b.kind), op) {
                return Ok(truth(ValueKind::Int((same == (op == BinaryOp::Eq)).into())));
            }
            return match op {
                BinaryOp::Eq => Ok(truth(same(a, b))),
                BinaryOp::Ne => {
                    let same = Value { ty: Type::INT, kind: same(a, b) };
                    Ok(truth(ValueKind::Not(Box::new(same))))
                }
                op => {
                    let message = no_operation(op, &a.ty, &b.ty);
                    self.error(span, message)
                }
            };
        }
        if matches!(op, BinaryOp::LogicalAnd | BinaryOp::LogicalOr) {
            let a = self.condition(a, span, "a logical expression")?;
            let b = self.condition(b, span, "a logical expression")?;
            let kind = match literal::logical(op, &a.kind, &b.kind) {
                Some(known) => ValueKind::Int(known.into()),
                None => ValueKind::Binary(op, false, Box::new(a), Box::new(b)),
            };
            return Ok(truth(kind));
        }
        if !a.ty.is_int() || !b.ty.is_int() {
            let are_records = matches!((&a.ty, &b.ty), (Type::Data { ty: CType::Record(_), .. }, Type::Data { .. }));
            if op.is_comparison() && are_records && a.ty == b.ty {
                let message =
                    format!("The {} operator can not be used on expressions of type '{}'", op.text(), a.ty.name());
                return self.error_with(span, message, "compare the members");
            }
            let with_text = op.is_comparison() && (matches!(a.ty, Type::Text(_)) || matches!(b.ty, Type::Text(_)));
            let hint = if with_text { advice::text(&a.ty).or_else(|| advice::text(&b.ty)) } else { None };
            let message = match op.is_comparison() {
                true => {
                    format!("Type mismatch for '{}': comparing {} with {}", op.text(), a.ty.name(), b.ty.name())
                }
                false => no_operation(op, &a.ty, &b.ty),
            };
            return self.advised(span, message, hint);
        }
        if let Some((a, b, to)) = self.pointer_step(op, &a, &b, span)? {
            let sum = self.binary(op, a, b, span)?;
            return Ok(Value { ty: Type::Pointer(to), ..sum });
        }
        if !op.is_comparison() && [&a.ty, &b.ty].iter().any(|ty| matches!(ty, Type::Pointer(_))) {
            let message = no_operation(op, &a.ty, &b.ty);
            return self.error_with(span, message, "a pointer is a number as (uint64)$p");
        }
        // A literal takes the sign of what it is combined with.
        let is_literal = |value: &Value| matches!(value.kind, ValueKind::Int(n) if i64::try_from(n).is_ok());
        let unsigned = match (a.ty.is_unsigned(), b.ty.is_unsigned()) {
            (true, true) => true,
            (true, false) => is_literal(&b),
            (false, true) => is_literal(&a) || matches!(op, BinaryOp::Shl | BinaryOp::Shr) && a.ty.is_unsigned(),
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
            if matches!(op, BinaryOp::Shl | BinaryOp::Shr) && *y >= 64 {
                return self.error(span, NO_LITERAL);
            }
            if let Some(value) = literal::fold(op, unsigned, *x, *y) {
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

    /// `++` or `--` of a variable, which has 64 bits then.
    fn step(&mut self, step: Step, index: usize, ty: Type) -> Checking<Value> {
        if !self.typed.contains_key(&index) && matches!(ty, Type::Int { .. }) {
            let new = number::New { ty: &ty, literal: None };
            number::grow(&mut self.vars[index], &mut self.free[index], new);
        }
        Ok(Value { ty, kind: ValueKind::StepVar(step, index) })
    }

    /// The number that an expression of literals is, which must fit.
    fn literals(&mut self, expr: &Expr) -> Checking<Option<i128>> {
        match literal::exact(expr) {
            Some(Err(literal::Overflow)) => self.error(expr.span, NO_LITERAL),
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
            (BinaryOp::Add | BinaryOp::Sub, Type::Pointer(to), Type::Int { .. } | Type::Enum(_)) => (a, b, to),
            (BinaryOp::Add, Type::Int { .. } | Type::Enum(_), Type::Pointer(to)) => (b, a, to),
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
            (a @ Type::Int { .. }, b @ Type::Int { .. }) => {
                let mut ty = a.clone();
                let new = number::New { ty: b, literal: super::assign::literal(&otherwise) };
                number::grow(&mut ty, &mut super::assign::literal(&then).is_some(), new);
                ty
            }
            (a, b) if a.is_int() && b.is_int() => {
                if a.is_unsigned() && b.is_unsigned() {
                    Type::UINT
                } else {
                    Type::INT
                }
            }
            (a, b) => {
                let message = format!(
                    "Branches must return the same type or compatible types: have '{}' and '{}'",
                    a.name(),
                    b.name()
                );
                return self.error(span, message);
            }
        };
        Ok(Value { ty, kind: ValueKind::Ternary(Box::new(condition), Box::new(then), Box::new(otherwise)) })
    }
}

/// What is said of an operator that two values do not have.
fn no_operation(op: BinaryOp, a: &Type, b: &Type) -> String {
    format!("The {} operator can not be used on expressions of types {}, {}", op.text(), a.name(), b.name())
}

/// What is calculated from literals is no number of 64 bits.
const NO_LITERAL: &str = "unable to fold literals due to overflow or underflow";

/// An operation on texts that are known: their order, `"a" + "b"`, and `"abc" + 1`, which is
/// `"bc"`.
fn known_texts(op: BinaryOp, a: &ValueKind, b: &ValueKind) -> Option<Value> {
    let (ValueKind::Text(a), b) = (a, b) else { return None };
    let b = match (b, op) {
        (ValueKind::Text(b), _) => b,
        (ValueKind::Int(n), BinaryOp::Add) => {
            return Some(text(a.get(usize::try_from(*n).ok()?..).unwrap_or_default().to_vec()));
        }
        _ => return None,
    };
    let holds = match op {
        BinaryOp::Add => return Some(text([&a[..], b].concat())),
        BinaryOp::Lt => a < b,
        BinaryOp::Le => a <= b,
        BinaryOp::Gt => a > b,
        BinaryOp::Ge => a >= b,
        _ => return None,
    };
    Some(truth(ValueKind::Int(holds.into())))
}

/// `config`, by either name, or written as a call.
pub(super) fn is_config(of: &Expr) -> bool {
    match &of.kind {
        ExprKind::Ident(name) => name == "config" || name == "__builtin_config",
        ExprKind::Call(name, args) => name == "config" && args.is_empty(),
        _ => false,
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

/// An operand of an operator that takes a number apart: bpftrace knows no types of results, so
/// scripts for it do that with addresses, too.
fn as_bits(op: BinaryOp, operand: &Expr, value: Value) -> Value {
    use BinaryOp::{And, Div, Mod, Mul, Or, Shl, Shr, Xor};
    let takes_apart = matches!(op, And | Or | Xor | Shl | Shr | Mul | Div | Mod);
    let is_result = matches!(&operand.kind, ExprKind::Ident(name) if name == "retval");
    match &value.ty {
        Type::Pointer(_) if takes_apart && is_result => Value { ty: Type::UINT, ..value },
        _ => value,
    }
}
