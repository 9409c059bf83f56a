//! `signal()` and `signal_thread()`.

use super::super::ast::Expr;
use super::super::checked::{Op, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::expr::int;
use super::{Checker, Checking};

/// Signals by their names without `SIG`, from 1 on (`include/uapi/asm/signal.h` of x86).
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];
/// Real-time signals are those from 32 on.
const LAST: u64 = 64;

impl Checker<'_> {
    /// `signal("KILL")`, `signal(9)`, and the same to the thread.
    pub(super) fn signal(&mut self, name: &str, args: &[Expr], span: Span) -> Checking<Op> {
        self.arguments(name, args, 1, 1, span)?;
        if self.points.iter().any(|point| !point.provider.has_target()) {
            let message = format!("The {name} function can only be used with 'uprobe', 'uretprobe' and 'usdt' probes");
            return self.error(span, message);
        }
        let value = self.expr(&args[0])?;
        let number = match (&value.kind, &value.ty) {
            (ValueKind::Text(text), _) => match number(text) {
                Some(number) => int(number),
                None => {
                    let text = String::from_utf8_lossy(text).into_owned();
                    return self.error(args[0].span, format!("{text} is not a valid signal"));
                }
            },
            (ValueKind::Int(number), _) if !(1..=LAST).contains(number) => {
                let message = format!("{} is not a valid signal, allowed range: [1,{LAST}]", *number as i64);
                return self.error(args[0].span, message);
            }
            (_, Type::Int { .. } | Type::Enum(_)) => value,
            (_, ty) => {
                let kind = ty.kind();
                let message = format!("{name} only supports string literals and integers ({kind} provided)");
                return self.error(args[0].span, message);
            }
        };
        self.needs_unsafe(name, span);
        Ok(Op::Signal { thread: name == "signal_thread", number: Value { ty: Type::INT, ..number } })
    }
}

/// The number of a signal by its name, with or without `SIG`.
fn number(name: &[u8]) -> Option<u64> {
    let name = std::str::from_utf8(name).ok()?.to_ascii_uppercase();
    let name = match name.strip_prefix("SIG").unwrap_or(&name) {
        "POLL" => "IO",
        "IOT" => "ABRT",
        "CLD" => "CHLD",
        name => name,
    };
    Some(NAMES.iter().position(|known| *known == name)? as u64 + 1)
}
