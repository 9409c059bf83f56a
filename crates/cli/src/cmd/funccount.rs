//! `sidestep funccount`: how often are functions called?

use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use sidestep_engine::{Action, Bundle, Request, Session};

use super::watch::{self, Job, Tool};
use super::{explain, tools};
use crate::flags::Funccount;
use crate::out::sink::Sink;
use crate::out::{json, label, number, table, time};

/// Runs the command.
pub fn run(flags: &Funccount) -> anyhow::Result<ExitCode> {
    if let Some(why) = refused(flags) {
        tools::usage("funccount", ErrorKind::ValueValidation, why);
    }
    let pattern = super::parse_counted(&flags.pattern, flags.regexp);
    // Without a program: hits are counted anyway.
    let request = Request::new(pattern, Action::default());
    let job = Job {
        target: &flags.target,
        timing: Some(&flags.timing),
        output: &flags.output,
        engine: &flags.engine,
        bundle: &Bundle::default(),
        requests: &[request],
    };
    if flags.dry_run {
        return explain::dry_run(&job);
    }
    let mut tool =
        Counter { pattern: &flags.pattern, timestamp: flags.timing.timestamp, labels: Vec::new(), printed: Vec::new() };
    watch::run(&job, &mut tool)
}

/// Why a flag of bcc's is none here.
fn refused(flags: &Funccount) -> Option<&'static str> {
    let refused = [
        (
            flags.debug,
            "-D: no program runs at a hit, which is counted in the detour; --dry-run prints what is written where",
        ),
        (
            flags.cpu.is_some(),
            "--cpu: hits are those on all CPUs; a script counts by CPU: -e 'u:OBJECT:FUNC { @[cpu] = count() }'",
        ),
    ];
    refused.into_iter().find(|(is_given, _)| *is_given).map(|(_, why)| why)
}

struct Counter<'a> {
    pattern: &'a str,
    timestamp: bool,
    labels: Vec<String>,
    /// Hits that were printed already.
    printed: Vec<u64>,
}

impl Counter<'_> {
    /// Probes may come later: in other processes, in libraries.
    fn look(&mut self, session: &Session) {
        if self.labels.len() != session.probes().len() {
            self.labels = label::labels(session.probes());
            self.printed.resize(self.labels.len(), 0);
        }
    }

    fn print(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.look(session);
        let hits: Vec<u64> = session.counts().iter().map(|counts| counts.hits).collect();
        let rows: Vec<(&str, u64)> = (self.labels.iter().zip(&hits))
            .zip(&self.printed)
            .map(|((label, hits), printed)| (label.as_str(), hits.saturating_sub(*printed)))
            .collect();
        sink.gap()?;
        timestamp(self.timestamp, sink)?;
        if sink.json() {
            let counts = table::sorted(rows).into_iter().map(|(label, count)| (label, json::number(count)));
            sink.line(&json::line("map", json::object([("@", json::object(counts))])))?;
        } else {
            for line in table::counts(rows) {
                sink.line(&line)?;
            }
        }
        self.printed = hits;
        Ok(())
    }
}

impl Tool for Counter<'_> {
    fn heading(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.look(session);
        tracing(self.labels.len(), self.pattern, sink)
    }

    fn interval(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.print(session, sink)
    }

    fn end(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.print(session, sink)?;
        sink.flush()?;
        sink.progress("Detaching...");
        Ok(())
    }
}

/// bcc's first line; bpftrace's first object.
pub fn tracing(probes: usize, pattern: &str, sink: &mut Sink) -> io::Result<()> {
    if sink.json() {
        return attached(probes, sink);
    }
    sink.progress(&format!("Tracing {} for \"{pattern}\"... Hit Ctrl-C to end.", number::of(probes, "function")));
    Ok(())
}

/// bpftrace's first object.
pub fn attached(probes: usize, sink: &mut Sink) -> io::Result<()> {
    if sink.is_quiet() {
        return Ok(());
    }
    let data = json::object([("probes", probes.to_string())]);
    sink.line(&format!("{{\"type\": \"attached_probes\", \"count\": {probes}, \"data\": {data}}}"))
}

/// `-T`.
pub fn timestamp(wanted: bool, sink: &mut Sink) -> io::Result<()> {
    match (wanted, sink.json()) {
        (false, _) => Ok(()),
        (true, false) => sink.line(&time::now()),
        (true, true) => sink.line(&json::line("time", json::string(&format!("{}\n", time::now())))),
    }
}
