//! `sidestep explain`, and `--dry-run` of others: what would be written where, and why?

use std::process::ExitCode;

use sidestep_engine::{Explained, Options, Pattern, SessionError};

use super::paths::{self, few_of_many};
use super::watch::Job;
use crate::flags::{Explain, Output};
use crate::out::plan;
use crate::out::sink::Sink;

/// Runs the command. A refusal is an answer, too.
pub fn run(flags: &Explain) -> anyhow::Result<ExitCode> {
    let look = &flags.look;
    let pattern = super::parse_place(&flags.pattern, look.regexp, look.pid);
    let sites = explained(&pattern, look.pid, &look.engine.options())?;
    print(&sites, look.verbose, Sink::open(look.file.as_deref(), look.format.format(), false)?)
}

/// The same for all that a command would probe, in each of its processes. A command of one's own is
/// not run.
pub fn dry_run(job: &Job) -> anyhow::Result<ExitCode> {
    dry_run_without(job, |_| false)
}

/// The same without the patterns whose error `skips` takes for none.
pub fn dry_run_without(job: &Job, skips: impl Fn(&SessionError) -> bool) -> anyhow::Result<ExitCode> {
    let mut sites = Vec::new();
    let pids = job.target.pid.iter().copied().map(Some);
    for pid in pids.chain(job.target.pid.is_empty().then_some(None)) {
        for request in job.requests {
            match explained(&request.pattern, pid, &job.engine.options()) {
                Ok(found) => sites.extend(found),
                Err(error) if skips(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    let Output { file, format, detail } = job.output;
    print(&sites, detail.verbose, Sink::open(file.as_deref(), *format, false)?)
}

fn explained(pattern: &Pattern, pid: Option<i32>, options: &Options) -> Result<Vec<Explained>, SessionError> {
    paths::in_each(pattern, pid, |pattern| sidestep_engine::explain(pattern, pid, options))
}

fn print(sites: &[Explained], verbose: bool, mut sink: Sink) -> anyhow::Result<ExitCode> {
    for (index, site) in sites.iter().enumerate() {
        if sink.json() {
            sink.line(&plan::json(site))?;
            continue;
        }
        if index > 0 {
            sink.line("")?;
        }
        for line in plan::lines(site, sites, verbose) {
            sink.line(&line)?;
        }
    }
    sink.flush()?;
    let few = sites.iter().filter(|site| site.is_few).map(|site| &*site.object);
    few_of_many(few).iter().for_each(|note| sink.note(note));
    Ok(ExitCode::SUCCESS)
}
