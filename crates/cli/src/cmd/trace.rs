//! `sidestep trace`: a line per call, with arguments or the return value.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::error::ErrorKind;
use sidestep_engine::{Record, Request, Session, Value};

use super::funccount::attached;
use super::watch::{self, Job, Tool};
use crate::flags::Trace;
use crate::flags::format::printable;
use crate::flags::spec::Spec;
use crate::out::sink::Sink;
use crate::out::{json, time};

/// More records than this at once: there are more to come, do not wait for them.
const BUSY: usize = 256;

/// Runs the command.
pub fn run(flags: &Trace) -> anyhow::Result<ExitCode> {
    let specs: Result<Vec<_>, _> = flags.specs.iter().map(|text| Spec::parse(text)).collect();
    let specs = specs.unwrap_or_else(|message| super::usage(ErrorKind::ValueValidation, &message));
    let requests: Vec<Request> = specs.iter().map(Spec::request).collect();
    let job =
        Job { target: &flags.target, timing: None, output: &flags.output, engine: &flags.engine, requests: &requests };
    let since_epoch = i64::try_from(time::realtime()).map_err(|_| anyhow!("the clock is beyond 2262"))?;
    let start = time::monotonic();
    let mut tool = Tracer {
        specs,
        since_start: flags.timestamp,
        start,
        monotonic_to_real: since_epoch - start as i64,
        left: flags.max_events.unwrap_or(u64::MAX),
        busy: false,
        last_second: (u64::MAX, String::new()),
    };
    watch::run(&job, &mut tool)
}

struct Tracer {
    specs: Vec<Spec>,
    since_start: bool,
    start: u64,
    /// Add to a record's time to get nanoseconds since 1970.
    monotonic_to_real: i64,
    left: u64,
    busy: bool,
    /// The second that was formatted last, and its text: most records share it with the one before.
    last_second: (u64, String),
}

impl Tracer {
    fn time_of(&mut self, record: &Record) -> &str {
        if self.since_start {
            let seconds = record.time_ns.saturating_sub(self.start) as f64 / 1e9;
            self.last_second.1 = format!("{seconds:.6}");
            return &self.last_second.1;
        }
        let real = record.time_ns.saturating_add_signed(self.monotonic_to_real);
        let second = real / 1_000_000_000;
        if second != self.last_second.0 {
            self.last_second = (second, time::of_day(real));
        }
        &self.last_second.1
    }

    fn print(&mut self, record: &Record, session: &Session, sink: &mut Sink) -> io::Result<()> {
        let Some(probe) = session.probes().get(record.probe) else {
            return Ok(());
        };
        let message = self.specs.get(probe.request).map_or_else(String::new, |spec| spec.message(&record.args));
        let (pid, comm) = (session.pid(), printable(record.comm.as_bytes()));
        let time = self.time_of(record);
        if !sink.json() {
            let line = format!("{time:<8} {pid:<7} {:<7} {comm:<15} {:<16} {message}", record.tid, probe.name);
            return sink.line(line.trim_end());
        }
        let args = record.args.iter().map(|value| match value {
            Value::Int(value) => json::number(*value),
            Value::Str(bytes) => json::string(&String::from_utf8_lossy(bytes)),
            Value::Fault(_) => "null".to_owned(),
        });
        sink.line(&json::line(
            "trace",
            json::object([
                ("time", json::string(time)),
                ("nsecs", json::number(record.time_ns)),
                ("pid", pid.to_string()),
                ("tid", record.tid.to_string()),
                ("comm", json::string(&record.comm)),
                ("func", json::string(&probe.name)),
                ("args", json::array(args)),
                ("message", json::string(&message)),
            ]),
        ))
    }
}

impl Tool for Tracer {
    fn heading(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        if sink.json() {
            return attached(session.probes().len(), sink);
        }
        sink.heading(&format!("{:<8} {:<7} {:<7} {:<15} {:<16} -", "TIME", "PID", "TID", "COMM", "FUNC"))
    }

    fn period(&self) -> Duration {
        if self.busy { Duration::ZERO } else { Duration::from_millis(20) }
    }

    fn poll(&mut self, session: &mut Session, sink: &mut Sink) -> io::Result<bool> {
        let records = session.records();
        self.busy = records.len() > BUSY;
        for record in &records {
            if self.left == 0 {
                break;
            }
            self.print(record, session, sink)?;
            self.left -= 1;
        }
        Ok(self.left == 0)
    }

    fn end(&mut self, _session: &Session, _sink: &mut Sink) -> io::Result<()> {
        Ok(())
    }
}
