//! `tplist`: which USDT probes are there?

use std::process::ExitCode;

use clap::error::ErrorKind;
use sidestep_engine::{ArgumentKind, Options, StaticProbe, UsdtProbe, static_probes};

use crate::flags::tools::Tplist;
use crate::out::json;
use crate::out::sink::Sink;

/// Runs the command.
pub fn run(flags: &Tplist) -> anyhow::Result<ExitCode> {
    if flags.pid.is_none() && flags.object.is_none() {
        super::usage("tplist", ErrorKind::MissingRequiredArgument, "where to look? add -p PID or -l OBJECT");
    }
    let filter = flags.filter.as_deref().unwrap_or("*");
    let globs = filter.split_once(':').unwrap_or(("*", filter));
    let options = Options { debug_dirs: flags.debuginfo.directories.clone(), ..Options::default() };
    let sites = static_probes(flags.object.as_deref(), flags.pid, globs, &options)?;
    let mut sink = Sink::open(flags.file.as_deref(), flags.format, false)?;
    for probe in sites.chunk_by(|a, b| name(a) == name(b)) {
        if sink.json() {
            sink.line(&json::line("probe", object(probe)))?;
            continue;
        }
        let (first, name) = (&probe[0], name(&probe[0]).1);
        if !flags.verbose {
            sink.line(&format!("{} {name}", first.object.display()))?;
            continue;
        }
        let semaphore = first.probe.semaphore.map_or(0, |at| at.0);
        sink.line(&format!("{} {name} [sema {semaphore:#x}]", first.object.display()))?;
        for (number, site) in probe.iter().enumerate() {
            sink.line(&format!("  location #{} {} {}", number + 1, site.object.display(), site.probe.va))?;
            for (number, argument) in arguments(&site.probe).iter().enumerate() {
                sink.line(&format!("    argument #{} {argument}", number + 1))?;
            }
        }
    }
    sink.flush()?;
    if sites.is_empty() {
        sink.note(&format!("no USDT probe matches {filter}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn name(site: &StaticProbe) -> (&std::path::Path, String) {
    (&site.object, format!("{}:{}", site.probe.provider, site.probe.name))
}

/// A line each, as bcc has them; what is wrong if they are not understood.
fn arguments(probe: &UsdtProbe) -> Vec<String> {
    let arguments = match &probe.arguments {
        Ok(arguments) => arguments,
        Err(error) => return vec![error.to_string()],
    };
    let line = |(argument, operand): (&sidestep_engine::UsdtArgument, &str)| {
        let kind = match argument.kind {
            ArgumentKind::Unsigned => "unsigned",
            ArgumentKind::Signed => "signed  ",
            ArgumentKind::Float => "float   ",
        };
        format!("{} {kind} bytes @ {operand}", argument.size)
    };
    arguments.iter().zip(probe.operands()).map(line).collect()
}

fn object(sites: &[StaticProbe]) -> String {
    let first = &sites[0];
    let locations = sites.iter().map(|site| {
        let arguments = site.probe.text.split_ascii_whitespace().map(json::string);
        json::object([("address", json::string(&site.probe.va.to_string())), ("arguments", json::array(arguments))])
    });
    json::object([
        ("object", json::string(&first.object.display().to_string())),
        ("provider", json::string(&first.probe.provider)),
        ("name", json::string(&first.probe.name)),
        ("semaphore", json::string(&format!("{:#x}", first.probe.semaphore.map_or(0, |at| at.0)))),
        ("locations", json::array(locations)),
    ])
}
