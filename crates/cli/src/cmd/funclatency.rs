//! `sidestep funclatency`: how long do functions take, from entry to return?

use std::io;
use std::process::ExitCode;

use sidestep_bpf::map::{Map, MapKind};
use sidestep_engine::{Action, Bundle, BundleMap, Cookie, Distribution, Histogram, Request, Session};

use super::explain;
use super::funccount::{timestamp, tracing};
use super::watch::{self, Job, Tool};
use crate::flags::Funclatency;
use crate::out::distribution::{self, Unit};
use crate::out::sink::Sink;
use crate::out::{json, label};

/// Remembers the time of the call.
const ENTRY: &str = "
    r6 = r1
    call 5 // ktime_get_ns
    *(u64 *)(r6 + KEPT) = r0
    r0 = 0
    exit
";

/// What `INDEX` stands for in [`EXIT`] if there is one histogram, and if each probe has its own.
const ONE: &str = "*(u32 *)(r10 - 4) = 0";
const PER_PROBE: &str = "
    r1 = r6
    call 174 // get_attach_cookie
    *(u32 *)(r10 - 4) = w0
";

/// Adds the time since then to a histogram: a bucket, and behind all buckets the sum.
const EXIT: &str = "
    r6 = r1
    call 5 // ktime_get_ns
    r7 = *(u64 *)(r6 + KEPT)
    if r7 s<= r0 goto passed
    r0 = r7
passed:
    r0 -= r7
    r7 = r0
    INDEX
    r1 = map(0) ll
    r2 = r10
    r2 += -4
    call 1 // map_lookup_elem
    if r0 == 0 goto out
    r6 = r0
    r1 = r7
    call 256 // hist_bucket
    r0 <<= 3
    r1 = r6
    r1 += r0
    r2 = 1
    lock *(u64 *)(r1 + 0) += r2
    lock *(u64 *)(r6 + SUM) += r7
out:
    r0 = 0
    exit
";

fn bundle(per_function: bool) -> anyhow::Result<Bundle> {
    let map = Map {
        name: "latencies".to_owned(),
        // A histogram has 4 KiB: one for each function and each thread is too much, so the threads
        // share those of the functions.
        kind: if per_function { MapKind::Array } else { MapKind::PercpuArray },
        key_size: 4,
        value_size: (Histogram::CELLS * 8) as u32,
        max_entries: 1,
        flags: 0,
        readonly: false,
        initial: Vec::new(),
    };
    let mut bundle = Bundle { maps: vec![BundleMap { map, per_probe: per_function }], ..Bundle::default() };
    let sum = (Histogram::SUM * 8).to_string();
    let exit = EXIT.replace("INDEX", if per_function { PER_PROBE } else { ONE });
    // Of the context: what stays from the entry of a call to its return.
    let kept = sidestep_engine::COOKIE.start.to_string();
    bundle.add("entry", &sidestep_bpf::assemble(&ENTRY.replace("KEPT", &kept))?)?;
    bundle.add("exit", &sidestep_bpf::assemble(&exit.replace("SUM", &sum).replace("KEPT", &kept))?)?;
    Ok(bundle)
}

/// Runs the command.
pub fn run(flags: &Funclatency) -> anyhow::Result<ExitCode> {
    let pattern = super::parse_pattern(&flags.pattern, flags.regexp);
    let cookie = if flags.per_function { Cookie::PerProbe } else { Cookie::default() };
    let action = Action { entry: Some(0), exit: Some(1), cookie, ..Action::default() };
    let request = Request::new(pattern, action);
    let bundle = bundle(flags.per_function)?;
    let job = Job {
        target: &flags.target,
        timing: Some(&flags.timing),
        output: &flags.output,
        engine: &flags.engine,
        bundle: &bundle,
        requests: &[request],
    };
    if flags.dry_run {
        return explain::dry_run(&job);
    }
    let unit = match (flags.microseconds, flags.milliseconds) {
        (true, _) => Unit::Micros,
        (_, true) => Unit::Millis,
        _ => Unit::Nanos,
    };
    let mut tool = Timer { flags, unit, functions: Vec::new(), cookies: Vec::new(), printed: Vec::new() };
    watch::run(&job, &mut tool)
}

struct Timer<'a> {
    flags: &'a Funclatency,
    unit: Unit,
    /// With `-F` the functions' names; otherwise one that stands for all.
    functions: Vec<String>,
    /// Where their distributions are.
    cookies: Vec<u64>,
    /// The distributions as they were printed last.
    printed: Vec<Distribution>,
}

impl Timer<'_> {
    /// Probes may come later: in other processes, in libraries.
    fn look(&mut self, session: &Session) {
        if self.flags.per_function {
            if self.functions.len() != session.probes().len() {
                self.functions = label::labels(session.probes());
                self.cookies = session.probes().iter().map(|probe| probe.cookie).collect();
            }
        } else if self.functions.is_empty() {
            self.functions.push(self.flags.pattern.clone());
            self.cookies.push(0);
        }
        self.printed.resize(self.functions.len(), Distribution::default());
    }

    fn print(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.look(session);
        // What was never called has cells that nobody has touched: a look would give them memory.
        let counts = session.counts();
        let is_called = |index: usize| !self.flags.per_function || counts.get(index).is_some_and(|c| c.hits > 0);
        let distribution = |(index, cookie): (usize, &u64)| match is_called(index) {
            true => Distribution::from_cells(&session.sums(0, *cookie)),
            false => Distribution::default(),
        };
        let now: Vec<_> = self.cookies.iter().enumerate().map(distribution).collect();
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
        tracing(session.probes().len(), &self.flags.pattern, sink)?;
        self.look(session);
        Ok(())
    }

    fn interval(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.print(session, sink)
    }

    fn end(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.print(session, sink)?;
        sink.flush()?;
        sink.progress("Detaching...");
        if self.printed.iter().all(|distribution| distribution.count == 0) {
            sink.note("no call began and returned while the probes were in");
        }
        Ok(())
    }
}
