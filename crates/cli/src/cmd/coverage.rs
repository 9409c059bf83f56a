//! `sidestep coverage`: which sites get which technique?

use std::process::ExitCode;

use sidestep_engine::Options;
use sidestep_plan::coverage::{Coverage, Sites};

use crate::flags;
use crate::out::coverage;
use crate::out::sink::Sink;

/// Runs the command. The first file that cannot be read ends it.
pub fn run(flags: &flags::Coverage) -> anyhow::Result<ExitCode> {
    let sites = match (flags.all_instructions, flags.returns) {
        (true, _) => Sites::Instructions,
        (false, true) => Sites::Returns,
        (false, false) => Sites::Entries,
    };
    let options = Options { debug_dirs: flags.debuginfo.directories.clone(), ..Options::default() };
    let (format, json) = (flags.format.format(), flags.format.is_json());
    let mut total = Coverage::default();
    let mut blocks = Vec::new();
    for binary in &flags.binaries {
        let covered = sidestep_engine::coverage(binary, sites, &options)?;
        total.add(&covered.coverage);
        blocks.push(covered);
    }
    let mut sink = Sink::open(flags.file.as_deref(), format, false)?;
    for covered in &blocks {
        sink.gap()?;
        for line in if json { vec![coverage::json(covered, sites)] } else { coverage::lines(covered, sites) } {
            sink.line(&line)?;
        }
    }
    if blocks.len() > 1 {
        sink.gap()?;
        for line in if json { vec![coverage::json_total(&total, sites)] } else { coverage::total(&total, sites) } {
            sink.line(&line)?;
        }
    }
    sink.flush()?;
    Ok(ExitCode::SUCCESS)
}
