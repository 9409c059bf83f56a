//! `tseries(n, interval, intervals, merge)`: how a value changes over time.

use super::super::ast::{Expr, ExprKind};
use super::super::checked::{Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::{Content, Merge};
use super::{Checker, Checking};

/// Most intervals: each key has room for all of them, in each thread.
const INTERVALS: u64 = 10_000;

/// Longest one, in nanoseconds: 366 days.
const LONGEST: u64 = 366 * 86_400 * 1_000_000_000;

impl Checker<'_> {
    /// The time of a value of a series, if a map of the script has it: see
    /// [`Config::series_clock`](super::super::checked::Config::series_clock).
    pub(super) fn series_clock(&mut self, content: &Content, span: Span) -> Checking<Option<Value>> {
        match (content, self.out.config.series_clock.clone()) {
            (Content::Tseries { .. }, Some(map)) => {
                self.expr(&Expr { kind: ExprKind::Map(map, Vec::new()), span }).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// What the map holds, and the number.
    pub(super) fn tseries(&mut self, args: &[Expr], span: Span) -> Checking<(Content, Option<Value>)> {
        self.arguments("tseries", args, 3, 4, span)?;
        let value = self.expr(&args[0])?;
        if !value.ty.is_int() {
            let message = format!("tseries() only supports integer arguments ({} provided)", value.ty.kind());
            return self.error(args[0].span, message);
        }
        let mut constants = Vec::new();
        for arg in &args[1..3] {
            match self.expr(arg)?.kind {
                ValueKind::Int(n) => constants.push(n),
                _ => return self.error(arg.span, "tseries() expects a literal here"),
            }
        }
        let (interval, intervals) = (constants[0], constants[1]);
        if interval == 0 || interval > LONGEST {
            let message = format!("tseries() interval_ns must be 1ns to 366d ({} provided)", interval as i64);
            return self.error(args[1].span, message);
        }
        if !(1..=INTERVALS).contains(&intervals) {
            let message = format!("tseries() num_intervals must be 1 to {INTERVALS} ({} provided)", intervals as i64);
            return self.error(args[2].span, message);
        }
        let merge = match args.get(3) {
            None => Merge::Last,
            Some(arg) => match &*self.literal("tseries", arg)? {
                "avg" => Merge::Avg,
                "min" => Merge::Min,
                "max" => Merge::Max,
                "sum" => Merge::Sum,
                other => {
                    let message = format!(
                        "tseries() expects one of the aggregation functions avg, max, min, sum (\"{other}\" provided)"
                    );
                    return self.error(arg.span, message);
                }
            },
        };
        let signed = !value.ty.is_unsigned();
        Ok((Content::Tseries { interval, intervals: intervals as u32, merge, signed }, Some(value)))
    }
}
