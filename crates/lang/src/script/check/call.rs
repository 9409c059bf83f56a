//! Functions.

use super::super::ast::{Expr, ExprKind};
use super::super::checked::{Action, Builtin, Failure, Op, StackMode, Value, ValueKind};
use super::super::ctype::CType;
use super::super::diagnostic::{Diagnostic, Span, Unknown};
use super::super::printf::{Format, accepts};
use super::super::types::{Content, Meaning, Type};
use super::expr::int;
use super::{Checker, Checking, advice};

/// Functions that need the kernel.
const KERNEL: &[&str] = &[
    "kstack",
    "ksym",
    "kaddr",
    "kptr",
    "cgroupid",
    "cgroup_path",
    "skboutput",
    "path",
    "percpu_kaddr",
    "kfunc_allowed",
    "kfunc_exist",
    "socket_cookie",
    "unwatch",
    "debugf",
];

/// Functions without a value.
pub(super) const ACTIONS: &[&str] = &[
    "printf",
    "print",
    "clear",
    "zero",
    "exit",
    "time",
    "join",
    "system",
    "cat",
    "signal",
    "override",
    "signal_thread",
    "assert",
    "errorf",
    "fail",
    "warnf",
];

/// Builtins that have a second name in bpftrace's library.
const BUILTINS: &[&str] = &[
    "comm",
    "cgroup",
    "cpid",
    "cpu",
    "curtask",
    "dw_ustack",
    "elapsed",
    "func",
    "gid",
    "is_literal",
    "jiffies",
    "kfunc_allowed",
    "kfunc_exist",
    "ncpus",
    "numaid",
    "probe",
    "probetype",
    "rand",
    "retval",
    "uaddr",
    "uid",
    "usermode",
    "username",
];

/// A builtin's name without `__builtin_`. Stacks are always unwound by tables, as those of
/// `dw_ustack` are.
pub(super) fn plain_name(name: &str) -> &str {
    match name.strip_prefix("__builtin_").filter(|name| BUILTINS.contains(name)).unwrap_or(name) {
        "dw_ustack" => "ustack",
        name => name,
    }
}

/// Most arguments of functions that take the keys of a map.
pub(super) const KEYS: usize = 32;

impl Checker<'_> {
    /// A function with a value.
    pub(super) fn call(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<Value> {
        let name = plain_name(name);
        match name {
            "str" => self.str(args, span),
            "comptime" => self.comptime(args, span),
            "str_concat" => self.concat(args, span),
            "ntop" => self.ntop(args, span),
            "pton" => self.pton(args, span),
            "macaddr" => self.macaddr(args, span),
            "comm" if args.len() == 1 => self.comm_of(&args[0]),
            "buf" => self.buf(args, span),
            "usym" => {
                self.arguments(name, args, 1, 1, span)?;
                let address = self.int_argument(name, &args[0])?;
                Ok(Value { ty: Type::Symbol, kind: ValueKind::Shown(Box::new(address)) })
            }
            "strftime" => {
                self.arguments(name, args, 2, 2, span)?;
                let format = self.literal(name, &args[0])?;
                let mut time = self.int_argument(name, &args[1])?;
                match time.kind {
                    ValueKind::Int(n) if (n as i64) < 0 && !time.ty.is_unsigned() => {
                        return self.error(args[1].span, "strftime() does not accept negative timestamps");
                    }
                    // It is printed by the wall clock in any case.
                    ValueKind::Builtin(Builtin::Clock(_)) => time.kind = ValueKind::Builtin(Builtin::Nsecs),
                    _ => {}
                }
                Ok(Value { ty: Type::Time(format), kind: ValueKind::Shown(Box::new(time)) })
            }
            "config" if args.is_empty() => Ok(self.all_told()),
            "ustack" => self.ustack_call(args, span),
            "uaddr" => self.uaddr(args, span),
            "bswap" => self.bswap(args, span),
            "strcap" => self.strcap(args, span),
            "is_err" => self.is_err(args, span),
            "is_scalar" => self.is_scalar(args, span),
            "is_str" | "is_integer" | "is_unsigned_integer" | "is_ptr" | "is_array" | "is_literal" => {
                self.is_kind(name, args, span)
            }
            "nsecs" | "pid" | "tid" if args.len() == 1 => self.clock_or_namespace(name, &args[0], span),
            "reg" => {
                self.arguments(name, args, 1, 1, span)?;
                let register = self.literal(name, &args[0])?;
                let context = self.types.context();
                let Some(at) = context.offset(&register) else {
                    let aliases = context.aliases.iter().map(|(name, _)| *name);
                    let names: Vec<&str> = context.words().map(|(name, _)| name).chain(aliases).collect();
                    return self.error_with(
                        args[0].span,
                        format!("'{register}' is not a valid register on this architecture (x86_64)"),
                        format!("there are {}", names.join(", ")),
                    );
                };
                if self.points.iter().any(|point| !point.provider.has_target()) {
                    return self
                        .error(span, "The reg function can only be used with 'uprobe', 'uretprobe' and 'usdt' probes");
                }
                Ok(Value { ty: Type::UINT, kind: ValueKind::Builtin(Builtin::Register(at)) })
            }
            "latency" => {
                self.arguments(name, args, 0, 0, span)?;
                if !self.only_at(&[super::Provider::Uretprobe]) {
                    return self.error(span, "The latency function can only be used with 'uretprobe' probes");
                }
                self.uses_latency = true;
                Ok(Value { ty: Type::UINT, kind: ValueKind::Builtin(Builtin::Latency) })
            }
            "has_key" => self.has_key(args, span),
            "find" => self.find_entry(args, span),
            "delete" => self.deleted(args, span),
            "memcmp" => self.memcmp(args, span),
            "write_user" => self.write_user(args, span),
            "strerror" => self.meaning(Meaning::Error, name, args, span),
            "signal_name" => self.meaning(Meaning::Signal, name, args, span),
            "syscall_name" => self.meaning(Meaning::SystemCall, name, args, span),
            "globmatch" => self.glob_match(args, span),
            // All addresses are the program's.
            "uptr" => {
                self.arguments(name, args, 1, 1, span)?;
                self.expr(&args[0])
            }
            "strncmp" => self.strncmp(args, span),
            "strstr" => self.find(name, args, span),
            "strcontains" => self.contains(args, span),
            "len" => self.len(args, span),
            name if advice::is_plain_value(name) => match args.is_empty() {
                true => self.ident(name, span),
                false => self.error(span, format!("{name}() takes no arguments")),
            },
            "strlen" => {
                self.arguments(name, args, 1, 1, span)?;
                let value = self.text_argument(name, &args[0])?;
                Ok(match value.kind {
                    ValueKind::Text(bytes) => int(bytes.len() as u64),
                    _ => Value { ty: Type::INT, kind: ValueKind::Length(Box::new(value)) },
                })
            }
            name if ACTIONS.contains(&name) => {
                self.error(span, format!("{name}() has no value: it must be a statement"))
            }
            "count" | "sum" | "avg" | "min" | "max" | "stats" | "hist" | "lhist" | "tseries" => {
                self.error(span, format!("{name}() should be assigned to a map, e.g. @ = {name}()"))
            }
            name if KERNEL.contains(&name) => {
                self.error(span, format!("{name}() needs the kernel: not available in this tool"))
            }
            name => self.advised(span, format!("Unknown function: {name}"), advice::function(name)),
        }
    }

    /// A function that does something; `None`: it is none of them.
    pub(super) fn action_call(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<Option<Op>> {
        Ok(Some(match name {
            "printf" | "system" | "cat" => self.printf(name, args, span)?,
            "print" => self.print(args, span)?,
            "join" => self.join(args, span)?,
            "errorf" | "warnf" => self.say(name, args, span)?,
            "assert" => self.assert(args, span)?,
            "static_assert" => self.static_assert(args, span)?,
            "fail" => self.fail(args, span)?,
            "signal" | "signal_thread" => self.signal(name, args, span)?,
            "override" => self.override_result(args, span)?,
            "clear" | "zero" => {
                self.arguments(name, args, 1, 1, span)?;
                let map = self.map_argument(name, &args[0])?;
                let action = if name == "clear" { Action::Clear(map) } else { Action::Zero(map) };
                Op::Act(self.action(action), Vec::new())
            }
            "delete" => {
                self.arguments(name, args, 1, KEYS, span)?;
                let entry = match args {
                    [Expr { kind: ExprKind::Map(map, keys), span }] => {
                        let entry = self.entry(map, keys, *span)?;
                        if self.last && self.maps[entry.map].content.is_none() {
                            return self.no_such(*span, Unknown::Map(map.clone()), None);
                        }
                        entry
                    }
                    [one] => return self.error(one.span, "delete() expects a map to be provided"),
                    args => self.entry_argument(name, args, span)?,
                };
                match &self.maps[entry.map].content {
                    // Each thread has its own: that is the controller's business.
                    Some(content) if content.is_aggregate() && !self.maps[entry.map].read && entry.keys.is_empty() => {
                        Op::Act(self.action(Action::Clear(entry.map)), Vec::new())
                    }
                    _ => Op::Delete(self.counted(entry, Failure::Delete, span)),
                }
            }
            "exit" => {
                self.arguments(name, args, 0, 1, span)?;
                let code = match args {
                    [code] => self.int_argument(name, code)?,
                    _ => int(0),
                };
                Op::Exit(self.action(Action::Exit), code)
            }
            "time" => {
                self.arguments(name, args, 0, 1, span)?;
                let format = match args {
                    [format] => self.literal(name, format)?,
                    _ => "%H:%M:%S\n".to_owned(),
                };
                Op::Act(self.action(Action::Time(format)), Vec::new())
            }
            _ => return Ok(None),
        }))
    }

    /// `printf`, and what takes the same arguments.
    fn printf(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<Op> {
        let (parsed, values) = self.formatted(name, args, span)?;
        let types = values.iter().map(|value| value.ty.clone()).collect();
        let action = match name {
            "system" => {
                self.needs_unsafe(name, span);
                Action::System(parsed, types)
            }
            "cat" => Action::Cat(parsed, types),
            _ => Action::Printf(parsed, types),
        };
        Ok(Op::Act(self.action(action), values))
    }

    /// A format, and values that fit.
    pub(super) fn formatted(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<(Format, Vec<Value>)> {
        let Some((format, args)) = args.split_first() else {
            return self.error(span, format!("{name}() requires at least one argument (0 provided)"));
        };
        let text = self.literal(name, format)?;
        let parsed = match Format::parse(&text) {
            Ok(parsed) => parsed,
            Err(message) => return self.error(format.span, format!("{name}: {message}")),
        };
        let takes: Vec<_> = parsed.takes().collect();
        let mut values = Vec::new();
        for arg in args {
            values.push(self.expr(arg)?);
        }
        let (supplied, expected) = (values.len(), takes.len());
        if supplied != expected {
            let much = if supplied < expected { "Not enough" } else { "Too many" };
            let message =
                format!("{name}: {much} arguments for format string ({supplied} supplied, {expected} expected)");
            return self.error(span, message);
        }
        for ((value, arg), (takes, letter)) in values.iter().zip(args).zip(takes) {
            if !accepts(takes, &value.ty) {
                let expected = match takes {
                    super::super::printf::Takes::Int => "integer",
                    super::super::printf::Takes::Text => "string",
                    super::super::printf::Takes::Bytes => "buffer",
                };
                let supplied = value.ty.kind();
                let message =
                    format!("{name}: %{letter} specifier expects a value of type {expected} ({supplied} supplied)");
                return self.error(arg.span, message);
            }
            if takes == super::super::printf::Takes::Text && is_address(&value.ty, arg) {
                let message = format!("{name}: %{letter} prints this as a number");
                let warning = Diagnostic { hint: advice::text(&value.ty), ..Diagnostic::warning(arg.span, message) };
                if !self.found.contains(&warning) {
                    self.found.push(warning);
                }
            }
        }
        Ok((parsed, values))
    }

    /// Notes a call that changes something.
    pub(super) fn needs_unsafe(&mut self, name: &str, span: Span) {
        // In bpftrace this one is a macro of its library, which says so itself.
        let message = match name {
            "write_user" => format!("{name}() is unsafe. To use you need the --unsafe flag"),
            _ => format!("{name}() is an unsafe function being used in safe mode"),
        };
        self.out.unsafe_calls.push(Diagnostic::error(span, message).hint("add --unsafe"));
    }

    fn print(&mut self, args: &[Expr], span: Span) -> Checking<Op> {
        self.arguments("print", args, 1, 3, span)?;
        if let ExprKind::Map(_, keys) = &args[0].kind {
            if keys.is_empty() {
                let map = self.map_argument("print", &args[0])?;
                let is_series = matches!(self.maps[map].content, Some(Content::Tseries { .. }));
                let mut numbers = Vec::new();
                for arg in &args[1..] {
                    match self.expr(arg)?.kind {
                        ValueKind::Int(n) if i64::try_from(n).is_ok() || is_series => numbers.push(n),
                        ValueKind::Int(n) => {
                            let message = format!("print() cannot use a negative number ({})", n as i64);
                            return self.error(arg.span, message);
                        }
                        _ => return self.error(arg.span, "print() expects an integer literal here"),
                    }
                }
                let number = |index: usize| numbers.get(index).copied();
                let print = if is_series {
                    let axis = (number(0).map(|n| n as i64), number(1).map(|n| n as i64));
                    if let (Some(min), Some(max)) = axis {
                        if min >= max {
                            let message = format!("print() of a tseries: {min} is not less than {max}");
                            return self.error(args[1].span.to(args[2].span), message);
                        }
                    }
                    Action::PrintMap { map, top: None, div: 1, axis }
                } else {
                    let (top, div) = (number(0).filter(|top| *top != 0), number(1).unwrap_or(1).max(1));
                    Action::PrintMap { map, top, div, axis: (None, None) }
                };
                return Ok(Op::Act(self.action(print), Vec::new()));
            }
        }
        if args.len() > 1 {
            return self.error(span, "Non-map print() only takes 1 argument");
        }
        let value = self.expr(&args[0])?;
        if value.ty == Type::None {
            return self.no_value(args[0].span);
        }
        Ok(Op::Act(self.action(Action::Print(value.ty.clone())), vec![value]))
    }

    fn ustack_call(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("ustack", args, 0, 2, span)?;
        let (mut mode, mut depth) = (self.out.config.stack_mode, None);
        for (place, arg) in args.iter().enumerate() {
            match &arg.kind {
                ExprKind::Ident(_) if place > 0 => {
                    return self.error_with(arg.span, "ustack() expects an integer literal here", "ustack(perf, 3)");
                }
                ExprKind::Ident(name) if name == "bpftrace" => mode = StackMode::Bpftrace,
                ExprKind::Ident(name) if name == "perf" => mode = StackMode::Perf,
                ExprKind::Ident(name) if name == "raw" => mode = StackMode::Raw,
                ExprKind::Ident(name) if name == "build_id" => mode = StackMode::BuildId,
                ExprKind::Ident(name) => {
                    let hint = "there are bpftrace, perf, raw and build_id";
                    return self.error_with(arg.span, format!("Invalid stack mode: '{name}'"), hint);
                }
                _ => match self.expr(arg)?.kind {
                    ValueKind::Int(n @ 1..=127) => depth = Some(n as u32),
                    ValueKind::Int(n) => {
                        return self.error(
                            arg.span,
                            format!("ustack([int limit]): limit must be 1 to 127 ({} provided)", n as i64),
                        );
                    }
                    _ => return self.error(arg.span, "ustack() expects an integer literal here"),
                },
            }
        }
        self.ustack(mode, depth.unwrap_or(127))
    }
}

/// Whether it is, most probably, where a text is: `%s` does not follow it.
fn is_address(ty: &Type, arg: &Expr) -> bool {
    match ty {
        Type::Pointer(to) => **to == CType::Char,
        Type::Int { .. } => matches!(&arg.kind, ExprKind::Ident(name) if name.starts_with("arg") || name == "retval"),
        _ => false,
    }
}
