//! What `trace` prints of a hit, whoever recorded it: bcc's columns.

use std::collections::HashMap;

use crate::flags::Trace;
use crate::out::{escape, json, time};

/// A hit.
pub struct Hit<'a> {
    /// When, by `CLOCK_MONOTONIC`.
    pub nsecs: u64,
    /// Where, if that was asked for.
    pub cpu: Option<u64>,
    pub pid: i32,
    pub tid: i32,
    pub comm: &'a str,
    pub func: &'a str,
    /// The values, if they are printed in JSON.
    pub args: Vec<String>,
    pub message: String,
    /// The frames of its stack, innermost first.
    pub stack: Vec<String>,
}

/// The column of the time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Time {
    None,
    OfDay,
    SinceStart,
    Since1970,
}

/// How hits are printed.
pub struct Rows {
    time: Time,
    cpu: bool,
    /// Nothing is printed but that there was a hit.
    plain: bool,
    tid: Option<i32>,
    name: String,
    text: String,
    start: u64,
    /// Add to a hit's time to get nanoseconds since 1970.
    monotonic_to_real: i64,
    /// How many may still be printed.
    left: u64,
    /// Equal rows with their number, and the order in which they came.
    aggregated: Option<HashMap<String, (u64, usize)>>,
    /// The second that was formatted last, and its text: most hits share it with the one before.
    last_second: (u64, String),
}

impl Rows {
    /// As the flags have it. `plain`: no SPEC has a format.
    pub fn new(flags: &Trace, plain: bool) -> Rows {
        let start = time::monotonic();
        Rows {
            time: match (flags.timestamp, flags.unix_timestamp, flags.time) {
                (true, true, _) => Time::Since1970,
                (true, false, _) => Time::SinceStart,
                (false, _, true) => Time::OfDay,
                _ => Time::None,
            },
            cpu: flags.cpu,
            plain,
            tid: flags.tid,
            name: flags.name.clone().unwrap_or_default(),
            text: flags.msg_filter.clone().unwrap_or_default(),
            start,
            monotonic_to_real: time::realtime().wrapping_sub(start) as i64,
            left: flags.max_events.unwrap_or(u64::MAX),
            aggregated: flags.aggregate.then(HashMap::new),
            last_second: (u64::MAX, String::new()),
        }
    }

    /// The names of the columns.
    pub fn heading(&self) -> String {
        let time = match self.time {
            Time::None => String::new(),
            Time::Since1970 => format!("{:<17} ", "TIME"),
            _ => format!("{:<8} ", "TIME"),
        };
        let cpu = if self.cpu { format!("{:<3} ", "CPU") } else { String::new() };
        let message = if self.plain { "" } else { "-" };
        let line = format!("{time}{cpu}{:<7} {:<7} {:<15} {:<16} {message}", "PID", "TID", "COMM", "FUNC");
        line.trim_end().to_owned()
    }

    /// As many as were wanted have been printed.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// What is printed of a hit, whole lines; nothing of one that is left out, or printed at the
    /// end.
    pub fn show(&mut self, hit: &Hit, json: bool) -> String {
        let is_wanted = self.tid.is_none_or(|tid| tid == hit.tid)
            && hit.comm.contains(&self.name)
            && hit.message.contains(&self.text);
        if self.left == 0 || !is_wanted {
            return String::new();
        }
        self.left -= 1;
        let row = if json { self.object(hit) } else { self.line(hit) };
        if let Some(rows) = &mut self.aggregated {
            let order = rows.len();
            rows.entry(row).or_insert((0, order)).0 += 1;
            return String::new();
        }
        match json {
            true => json::line("trace", row) + "\n",
            false if hit.stack.is_empty() => row,
            false => row + "\n",
        }
    }

    /// What is printed at the end: equal rows, the most frequent first.
    pub fn end(&mut self, json: bool) -> String {
        let mut rows: Vec<_> = self.aggregated.take().into_iter().flatten().collect();
        rows.sort_by_key(|(_, (count, order))| (std::cmp::Reverse(*count), *order));
        let line = |(row, (count, _)): (String, (u64, usize))| match json {
            true => json::line("aggregate", json::object([("count", json::number(count)), ("event", row)])) + "\n",
            false => format!("{row}-->COUNT {count}\n\n"),
        };
        rows.into_iter().map(line).collect()
    }

    fn line(&mut self, hit: &Hit) -> String {
        let time = match self.time {
            Time::None => String::new(),
            Time::Since1970 => format!("{:<17.17} ", self.time_of(hit.nsecs)),
            _ => format!("{:<8.8} ", self.time_of(hit.nsecs)),
        };
        let cpu = hit.cpu.map_or(String::new(), |cpu| format!("{cpu:<3} "));
        let Hit { pid, tid, comm, func, message, .. } = hit;
        let func = escape::row(func);
        let line = format!("{time}{cpu}{pid:<7} {tid:<7} {comm:<15} {func:<16} {message}");
        let stack: String = hit.stack.iter().map(|frame| format!("        {frame}\n")).collect();
        format!("{}\n{stack}", line.trim_end())
    }

    fn object(&mut self, hit: &Hit) -> String {
        let time = match self.aggregated {
            // Otherwise no two were equal.
            Some(_) => Vec::new(),
            None => vec![("time", json::string(self.time_of(hit.nsecs))), ("nsecs", json::number(hit.nsecs))],
        };
        let cpu = hit.cpu.map(|cpu| ("cpu", json::number(cpu)));
        let rest = [
            ("pid", hit.pid.to_string()),
            ("tid", hit.tid.to_string()),
            ("comm", json::string(hit.comm)),
            ("func", json::string(hit.func)),
            ("args", json::array(hit.args.iter().cloned())),
            ("message", json::string(&hit.message)),
        ];
        let frames = || json::array(hit.stack.iter().map(|frame| json::string(frame)));
        let stack = (!hit.stack.is_empty()).then(|| ("stack", frames()));
        json::object(time.into_iter().chain(cpu).chain(rest).chain(stack))
    }

    fn time_of(&mut self, nsecs: u64) -> &str {
        let real = nsecs.saturating_add_signed(self.monotonic_to_real);
        let seconds = match self.time {
            Time::SinceStart => Some(nsecs.saturating_sub(self.start)),
            Time::Since1970 => Some(real),
            Time::None | Time::OfDay => None,
        };
        if let Some(nanos) = seconds {
            self.last_second.1 = format!("{}.{:06}", nanos / 1_000_000_000, nanos % 1_000_000_000 / 1000);
            return &self.last_second.1;
        }
        let second = real / 1_000_000_000;
        if second != self.last_second.0 {
            self.last_second = (second, time::of_day(real));
        }
        &self.last_second.1
    }
}
