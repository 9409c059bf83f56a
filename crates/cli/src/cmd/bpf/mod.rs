//! `sidestep bpf`: the programs of an object file that clang made, in a process.

mod kernel;
mod load;
mod print;
mod set;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use sidestep_engine::Session;

use super::explain;
use super::watch::{self, Job, Pace, Tool};
use crate::flags::Bpf;
use crate::out::sink::Sink;
use load::Loaded;
use print::Printer;

/// Runs the command.
pub fn run(flags: &Bpf) -> anyhow::Result<ExitCode> {
    if let Some(flag) = flags.target.protect.first().filter(|_| flags.kernel) {
        let message = format!("{flag}: the kernel's probes have no such limit or log here");
        super::tools::usage("bpf", ErrorKind::ArgumentConflict, &message);
    }
    let kernel = flags.kernel.then(|| kernel::target(flags));
    let loaded = load::load(flags)?;
    let owner = if kernel.is_some() { "cpu" } else { "tid" };
    let printer = Printer::new(&loaded.object, &loaded.file, &flags.types, flags.output.format, owner)?;
    if let Some(pid) = kernel {
        return kernel::run(flags, pid, &loaded, &printer);
    }
    let job = Job {
        target: &flags.target,
        timing: Some(&flags.timing),
        output: &flags.output,
        engine: &flags.engine,
        bundle: &loaded.bundle,
        requests: &loaded.requests,
    };
    if flags.dry_run {
        return explain::dry_run(&job);
    }
    let mut tool = Runner { loaded: &loaded, printer, timestamp: flags.timing.timestamp, pace: Pace::default() };
    watch::run(&job, &mut tool)
}

struct Runner<'a> {
    loaded: &'a Loaded,
    printer: Printer<'a>,
    timestamp: bool,
    pace: Pace,
}

impl Runner<'_> {
    fn maps(&self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        super::funccount::timestamp(self.timestamp, sink)?;
        for map in self.printer.shown() {
            for line in self.printer.map(map, &session.entries(map)) {
                sink.line(&line)?;
            }
        }
        Ok(())
    }
}

impl Tool for Runner<'_> {
    fn heading(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        heading(self.loaded, session.probes().len(), "", sink)
    }

    fn period(&self) -> Duration {
        self.pace.period()
    }

    fn poll(&mut self, session: &mut Session, sink: &mut Sink) -> io::Result<bool> {
        let records = session.records();
        self.pace.saw(records.len());
        for record in &records {
            sink.text(&format!("{}\n", self.printer.record(record)))?;
        }
        Ok(false)
    }

    fn interval(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.maps(session, sink)
    }

    fn end(&mut self, session: &Session, sink: &mut Sink) -> io::Result<()> {
        self.maps(session, sink)?;
        sink.flush()?;
        sink.progress("Detaching...");
        Ok(())
    }
}

/// The first line. `place`: where, if not in the process.
fn heading(loaded: &Loaded, sites: usize, place: &str, sink: &mut Sink) -> io::Result<()> {
    if sink.json() {
        return super::funccount::attached(sites, sink);
    }
    let (programs, name) = (count(loaded.object.programs.len(), "program"), &loaded.name);
    sink.progress(&format!("Running {programs} of {name}{place} at {}... Hit Ctrl-C to end.", count(sites, "site")));
    Ok(())
}

/// `1 program`, `2 programs`.
fn count(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}
