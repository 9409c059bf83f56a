//! `sidestep explain`: what would be written where, and why?

use std::process::ExitCode;

use sidestep_engine::Explained;

use crate::flags::{Explain, Format};
use crate::out::plan;
use crate::out::sink::Sink;

/// Runs the command. A refusal is an answer, too.
pub fn run(flags: &Explain) -> anyhow::Result<ExitCode> {
    let look = &flags.look;
    let pattern = super::parse_place(&flags.pattern, look.regexp, look.pid);
    let sites: Vec<Explained> = sidestep_engine::explain(&pattern, look.pid, &look.engine.options())?;
    let mut sink = Sink::open(look.file.as_deref(), Format::Text, false)?;
    for (index, site) in sites.iter().enumerate() {
        if index > 0 {
            sink.line("")?;
        }
        for line in plan::lines(site, &sites, look.verbose) {
            sink.line(&line)?;
        }
    }
    sink.flush()?;
    Ok(ExitCode::SUCCESS)
}
