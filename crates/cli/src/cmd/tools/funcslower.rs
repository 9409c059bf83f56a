//! `funcslower`: calls that take longer than a limit.

use super::{KERNEL_STACKS, Tool, spec};
use crate::flags::Output;
use crate::flags::tools::{Funcslower, Run};
use crate::out::script::{Cell, Layout, Line, Shown, folded, frames, merged};

impl Funcslower {
    /// The limit, its unit, and the nanoseconds of that.
    fn limit(&self) -> (f64, &'static str, u64) {
        match (self.microseconds, self.milliseconds) {
            (Some(us), _) => (us, "us", 1_000),
            (None, ms) => (ms.unwrap_or(1.0), "ms", 1_000_000),
        }
    }
}

impl Tool for Funcslower {
    const NAME: &'static str = "funcslower";

    fn flags(&self) -> &Run {
        &self.run
    }

    fn output(&self) -> Output {
        self.output.output()
    }

    fn regexp(&self) -> bool {
        self.regexp
    }

    fn script(&self) -> Result<String, String> {
        if self.kernel {
            return Err(KERNEL_STACKS.to_owned());
        }
        let points = |provider| -> Result<String, String> {
            let points = self.functions.iter().map(|text| spec::function(provider, text, self.regexp));
            Ok(points.collect::<Result<Vec<_>, _>>()?.join(", "))
        };
        let (limit, _, nanos) = self.limit();
        let limit = (limit * nanos as f64) as u64;
        let exits = points("uretprobe")?;
        if self.output.folded {
            let sum = format!("@[comm, ustack, func] = sum(latency() / {nanos})");
            return Ok(format!("{PLAIN}{exits} /latency() > {limit}/ {{ {sum} }}\n"));
        }
        let mut script = PLAIN.to_owned();
        let (mut formats, mut values) =
            (vec!["%s", "%d", "%lu", "%lx", "%s"], vec!["comm", "pid", "latency()", "retval", "func"]);
        let args: Vec<String> = (0..self.arguments).map(|index| format!("self.arg{index}")).collect();
        if !args.is_empty() {
            let saves: Vec<String> =
                args.iter().enumerate().map(|(index, arg)| format!("{arg} = arg{index}")).collect();
            script += &format!("{} {{ {} }}\n", points("uprobe")?, saves.join("; "));
            formats.extend(args.iter().map(|_| "0x%lx"));
            values.extend(args.iter().map(String::as_str));
        }
        if self.time {
            formats.insert(0, "%s");
            values.insert(0, "strftime(\"%H:%M:%S\", nsecs)");
        } else if self.timestamp {
            formats.insert(0, "%lu");
            values.insert(0, "elapsed");
        }
        if self.stack {
            formats.push("%s");
            values.push("ustack");
        }
        let print = format!("printf(\"{}\\n\", {})", formats.join(" "), values.join(", "));
        script += &format!("{exits} /latency() > {limit}/ {{ {print} }}\n");
        Ok(script)
    }

    fn layout(&self) -> Box<dyn Layout> {
        const ARGS: [&str; 6] = ["arg0", "arg1", "arg2", "arg3", "arg4", "arg5"];
        let mut columns = vec!["comm", "pid", "latency_ns", "retval", "func"];
        columns.extend(&ARGS[..self.arguments as usize]);
        if self.time || self.timestamp {
            columns.insert(0, if self.time { "time" } else { "elapsed_ns" });
        }
        if self.stack {
            columns.push("stack");
        }
        let (limit, unit, nanos) = self.limit();
        Box::new(Calls { limit, unit, nanos, columns, folded: self.output.folded })
    }
}

/// Stacks are functions alone, as bcc prints them.
const PLAIN: &str = "config = { show_debug_info = false }\n";

struct Calls {
    limit: f64,
    unit: &'static str,
    nanos: u64,
    columns: Vec<&'static str>,
    folded: bool,
}

impl Layout for Calls {
    fn progress(&self, _probes: usize) -> String {
        format!("Tracing function calls slower than {} {}... Ctrl+C to quit.", self.limit, self.unit)
    }

    fn heading(&self) -> String {
        if self.folded {
            return String::new();
        }
        let time = if self.columns[0] == "comm" { String::new() } else { format!("{:<10} ", "TIME") };
        let args = if self.columns.contains(&"arg0") { " ARGS" } else { "" };
        let latency = format!("LAT({})", self.unit);
        format!("{time}{:<14} {:<6} {latency:>7} {:>16} FUNC{args}", "COMM", "PID", "RVAL")
    }

    fn columns(&self) -> &[&str] {
        &self.columns
    }

    fn line(&mut self, values: &[Shown], _json: bool) -> Option<String> {
        let mut out = String::new();
        let (mut lat, mut stack) = (String::new(), String::new());
        for (name, value) in self.columns.iter().zip(values) {
            match (*name, value) {
                ("time", value) => out.push_str(&format!("{:<10} ", value.text())),
                ("elapsed_ns", Shown::Int(ns)) => out.push_str(&format!("{:<10.6} ", *ns as f64 / 1e9)),
                ("comm", value) => out.push_str(&format!("{:<14.14} ", value.text())),
                ("pid", value) => out.push_str(&format!("{:<6} ", value.text())),
                ("latency_ns", Shown::Int(ns)) => {
                    lat = format!("{:7.2}", *ns as f64 / self.nanos as f64);
                }
                ("retval", value) => out.push_str(&format!("{lat} {:16x}", value.number()? as u64)),
                ("stack", value) => {
                    stack = frames(value).iter().map(|frame| format!("    {frame}\n")).collect();
                }
                ("func", value) => out.push_str(&format!(" {}", value.text())),
                (_, value) => out.push_str(&format!(" {:#x}", value.number()? as u64)),
            }
        }
        Some(format!("{out}\n{stack}"))
    }

    fn map(&mut self, _name: &str, rows: &[Line], json: bool) -> Option<String> {
        let row = |row: &Line| match (&*row.keys, &row.cell) {
            ([comm, stack, func], Cell::Value(Shown::Int(sum))) => {
                let frames = [comm.text(), folded(stack), func.text()];
                let frames: Vec<String> = frames.into_iter().filter(|frame| !frame.is_empty()).collect();
                Some((frames.join(";"), *sum))
            }
            _ => None,
        };
        if json {
            return None;
        }
        let rows: Option<Vec<_>> = rows.iter().map(row).collect();
        Some(merged(rows?).into_iter().map(|(text, sum)| format!("{text} {sum}\n")).collect())
    }
}
