//! `sidestep funclatency`: how long do functions take, from entry to return?

use std::io;
use std::process::ExitCode;

use sidestep_engine::{Action, Distribution, Request, Session};

use super::funccount::{timestamp, tracing};
use super::watch::{self, Job, Tool};
use crate::flags::Funclatency;
use crate::out::distribution::{self, Unit};
use crate::out::sink::Sink;
use crate::out::{json, label};

/// Runs the command.
pub fn run(flags: &Funclatency) -> anyhow::Result<ExitCode> {
    let pattern = super::parse_pattern(&flags.pattern, flags.regexp);
    let request = Request { pattern, action: Action::Latency { per_function: flags.per_function } };
    let job = Job {
        target: &flags.target,
        timing: Some(&flags.timing),
        output: &flags.output,
        engine: &flags.engine,
        requests: &[request],
    };
    let unit = match (flags.microseconds, flags.milliseconds) {
        (true, _) => Unit::Micros,
        (_, true) => Unit::Millis,
        _ => Unit::Nanos,
    };
    let mut tool = Timer { flags, unit, functions: Vec::new(), printed: Vec::new() };
    watch::run(&job, &mut tool)
}

struct Timer<'a> {
    flags: &'a Funclatency,
    unit: Unit,
    /// With `-F` the functions' names; otherwise one that stands for all.
    functions: Vec<String>,
    /// The distributions as they were printed last.
    printed: Vec<Distribution>,
}

impl Timer<'_> {
    fn print(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        let now: Vec<_> = (0..self.functions.len()).map(|probe| session.distribution(probe)).collect();
        let new: Vec<_> = now.iter().zip(&self.printed).map(|(now, before)| distribution::since(now, before)).collect();
        self.printed = now;
        sink.gap()?;
        timestamp(self.flags.timing.timestamp, sink)?;
        if sink.json() {
            return self.print_json(&new, sink);
        }
        let called = self.functions.iter().zip(&new).filter(|(_, new)| new.count > 0);
        for (index, (function, new)) in called.enumerate() {
            if index > 0 {
                sink.gap()?;
            }
            if self.flags.per_function {
                sink.line(&format!("Function = {function}"))?;
            }
            for line in distribution::histogram(new, self.unit) {
                sink.line(&line)?;
            }
            sink.gap()?;
            for line in distribution::summary(new, self.unit) {
                sink.line(&line)?;
            }
        }
        Ok(())
    }

    fn print_json(&self, new: &[Distribution], sink: &mut Sink) -> io::Result<()> {
        let name = format!("@{}", self.unit.label());
        let data = |one: &dyn Fn(&Distribution, Unit) -> String| {
            let values = if self.flags.per_function {
                let called = self.functions.iter().zip(new).filter(|(_, new)| new.count > 0);
                json::object(called.map(|(function, new)| (function, one(new, self.unit))))
            } else {
                new.first().map_or_else(|| "[]".to_owned(), |new| one(new, self.unit))
            };
            json::object([(&name, values)])
        };
        sink.line(&json::line("hist", data(&distribution::histogram_json)))?;
        sink.line(&json::line("stats", data(&distribution::summary_json)))
    }
}

impl Tool for Timer<'_> {
    fn heading(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        let mut labels = label::labels(session.probes());
        tracing(labels.len(), &self.flags.pattern, sink)?;
        if !self.flags.per_function {
            // All probes feed the distribution of the first.
            labels.truncate(1);
        }
        self.printed = vec![Distribution::default(); labels.len()];
        self.functions = labels;
        Ok(())
    }

    fn interval(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.print(session, sink)
    }

    fn end(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.print(session, sink)?;
        sink.heading("\nDetaching...")?;
        sink.flush()?;
        if self.printed.iter().all(|distribution| distribution.count == 0) {
            sink.note("no call began and returned while the probes were in");
        }
        let dropped = session.returns_dropped();
        if dropped > 0 {
            sink.warn(&format!(
                "{dropped} calls did not return (longjmp, or the thread ended); they are not in the histogram"
            ));
        }
        Ok(())
    }
}
