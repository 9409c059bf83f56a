//! `count()`, `sum(n)`, `hist(n)` and their like: what is assigned to maps and merged over threads.

use super::super::ast::{Expr, ExprKind};
use super::super::checked::{Failure, Stat, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::{Content, Type};
use super::{Checker, Checking, count_of_arguments};

/// Most buckets of `lhist`, as in bpftrace.
const BUCKETS: u64 = 1000;

impl Checker<'_> {
    /// What the map holds, and the number; `None`: it is another function.
    pub(super) fn aggregate(
        &mut self,
        name: &str,
        args: &[Expr],
        span: Span,
    ) -> Checking<Option<(Content, Option<Value>)>> {
        let (least, most) = match name {
            "count" => (0, 0),
            "sum" | "avg" | "min" | "max" | "stats" => (1, 1),
            "hist" => (1, 2),
            "lhist" => (4, 4),
            "tseries" => return self.tseries(args, span).map(Some),
            _ => return Ok(None),
        };
        self.arguments(name, args, least, most, span)?;
        let mut values = Vec::new();
        for arg in args {
            let value = self.expr(arg)?;
            if !value.ty.is_int() {
                let message = format!("{name}() only supports integer arguments ({} provided)", value.ty.kind());
                return self.error(arg.span, message);
            }
            values.push(value);
        }
        let mut values = values.into_iter();
        let Some(value) = values.next() else { return Ok(Some((Content::Count, None))) };
        let mut constants = Vec::new();
        for (value, arg) in values.zip(&args[1..]) {
            match value.kind {
                ValueKind::Int(n) => constants.push(n as i64),
                _ => return self.error(arg.span, format!("{name}() expects a literal here")),
            }
        }
        let signed = !value.ty.is_unsigned();
        let content = match (name, &*constants) {
            ("sum", _) => Content::Sum { signed },
            ("avg", _) => Content::Avg { signed },
            ("min", _) => Content::Min { signed },
            ("max", _) => Content::Max { signed },
            ("stats", _) => Content::Stats { signed },
            ("hist", []) => Content::Hist { bits: 0 },
            ("hist", [bits @ 0..=5]) => Content::Hist { bits: *bits as u32 },
            ("hist", [bits, ..]) => {
                return self.error(args[1].span, format!("hist() bits must be 0..5 ({bits} provided)"));
            }
            (_, &[min, max, step]) => self.lhist(min, max, step, span)?,
            _ => return Ok(None),
        };
        Ok(Some((content, Some(value))))
    }

    fn lhist(&mut self, min: i64, max: i64, step: i64, span: Span) -> Checking<Content> {
        if step <= 0 {
            return self.error(span, format!("lhist() step must be >= 1 ({step} provided)"));
        }
        if min > max {
            let message = format!("lhist() min must be less than max (provided min {min} and max {max})");
            return self.error(span, message);
        }
        let buckets = (max.wrapping_sub(min) as u64).div_ceil(step as u64);
        if buckets > BUCKETS {
            let message = format!("lhist() too many buckets, must be <= {BUCKETS} (would need {buckets})");
            return self.error(span, message);
        }
        Ok(Content::Lhist { min, max, step })
    }

    /// Whether it is an entry of a map that keeps `stats(n)`, as far as that is known.
    pub(super) fn is_stats(&self, of: &Expr) -> bool {
        let ExprKind::Map(name, _) = &of.kind else { return false };
        let map = self.maps.iter().find(|map| map.name == *name);
        map.is_some_and(|map| matches!(map.content, Some(Content::Stats { .. })))
    }

    /// `@m[keys].count` and its like, of a map that keeps `stats(n)`.
    pub(super) fn stat(&mut self, of: &Expr, field: &str, span: Span) -> Checking<Value> {
        let ExprKind::Map(name, keys) = &of.kind else { return self.unknown() };
        let entry = self.entry(name, keys, of.span)?;
        let Some(Content::Stats { signed }) = self.maps[entry.map].content else { return self.unknown() };
        let number = if signed { Type::INT } else { Type::UINT };
        let (stat, ty) = match field {
            "count" => (Stat::Count, Type::INT),
            "total" => (Stat::Total, number),
            "average" | "avg" => (Stat::Average, number),
            _ => {
                let message = format!("Map value of type 'stats' does not contain a field named '{field}'");
                return self.error_with(span, message, "there are count, total and average");
            }
        };
        self.maps[entry.map].read = true;
        let entry = self.counted(entry, Failure::Lookup, of.span);
        Ok(Value { ty, kind: ValueKind::Stat(entry, stat) })
    }

    /// How many arguments a function takes.
    pub(super) fn arguments(
        &mut self,
        name: &str,
        args: &[Expr],
        least: usize,
        most: usize,
        span: Span,
    ) -> Checking<()> {
        let provided = args.len();
        if (least..=most).contains(&provided) {
            return Ok(());
        }
        let takes = match provided {
            _ if least == most => count_of_arguments(least),
            n if n < least => format!("at least {}", count_of_arguments(least)),
            _ => format!("at most {}", count_of_arguments(most)),
        };
        self.error(span, format!("{name}() requires {takes} ({provided} provided)"))
    }
}

/// Whether a function of this name is assigned to maps, and merged over threads.
pub(super) fn is_aggregate(name: &str) -> bool {
    matches!(name, "count" | "sum" | "avg" | "min" | "max" | "stats" | "hist" | "lhist" | "tseries")
}

/// The type of what a map holds when it is read as a number.
pub(super) fn readable(content: &Content) -> Option<Type> {
    match content {
        Content::Value(ty) => Some(ty.clone()),
        Content::Count => Some(Type::INT),
        Content::Sum { signed } | Content::Avg { signed } | Content::Min { signed } | Content::Max { signed } => {
            Some(if *signed { Type::INT } else { Type::UINT })
        }
        Content::Stats { .. } | Content::Hist { .. } | Content::Lhist { .. } | Content::Tseries { .. } => None,
    }
}
