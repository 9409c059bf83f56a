//! Names: builtins and constants.

use super::super::ast::Provider;
use super::super::checked::{Builtin, StackMode, Value, ValueKind};
use super::super::diagnostic::{Diagnostic, Span, Unknown};
use super::super::types::{COMM, Type};
use super::expr::{text, truth};
use super::known::machine;
use super::{Checker, Checking, advice};

/// What only the kernel knows.
const KERNEL: &[&str] = &["kstack", "ksym", "curtask", "cgroup", "ctx", "jiffies", "kaddr"];

/// Frames of `ustack` without a number, as in bpftrace.
const STACK_DEPTH: u32 = 127;

/// Bytes of the name of a kind of probes.
const PROVIDER: usize = 9;

impl Checker<'_> {
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
            "config" | "__builtin_config" => Ok(self.all_told()),
            "__builtin_arch" => Ok(text(machine().as_bytes().to_vec())),
            "__builtin_safe_mode" => Ok(truth(ValueKind::Int((!self.out.config.allow_unsafe).into()))),
            "uid" => builtin(Type::UINT32, Builtin::Uid),
            "gid" => builtin(Type::UINT32, Builtin::Gid),
            "comm" => builtin(Type::Text(COMM), Builtin::Comm),
            "leader_comm" => builtin(Type::Text(COMM), Builtin::LeaderComm),
            "pcomm" => builtin(Type::Text(COMM), Builtin::ParentComm),
            // The first thread has the number of its process.
            "leader_tid" => builtin(Type::UINT32, Builtin::Pid),
            "nsecs" => builtin(Type::UINT, Builtin::Nsecs),
            "elapsed" => builtin(Type::UINT, Builtin::Elapsed),
            "cpu" => builtin(Type::UINT32, Builtin::Cpu),
            "numaid" => builtin(Type::UINT32, Builtin::Node),
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
}
