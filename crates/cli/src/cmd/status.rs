//! `sidestep status`: which probes does a process carry?

use std::process::ExitCode;

use sidestep_engine::{Options, ProbeKind};

use crate::flags::{Format, Status};
use crate::out::sink::{Sink, say};
use crate::out::status;

/// Runs the command.
pub fn run(flags: &Status) -> anyhow::Result<ExitCode> {
    let options = Options { debug_dirs: flags.debuginfo.directories.clone(), ..Options::default() };
    let mut sink = Sink::open(None, Format::Text, false)?;
    for mut found in sidestep_engine::status(flags.pid, &options)? {
        let summary = status::summary(&found);
        found.probes.retain(|probe| flags.verbose || probe.kind != ProbeKind::Own);
        let lines =
            if flags.format.is_json() { status::json(&found) } else { status::lines(&found.probes, flags.verbose) };
        for line in lines {
            sink.line(&line)?;
        }
        sink.flush()?;
        if !flags.format.is_json() {
            say(&format!("sidestep: {summary}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
