//! What static probes cost: a hit of each, with bpftrace beside it, and an attach to very many.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use sidestep_tests::build;
use sidestep_tests::process::Program;
use sidestep_tests::target;
use sidestep_tests::tool::Tracing;

use crate::bench::{Bench, PAUSE, ROUNDS, number};
use crate::scripts;

/// Calls of a round.
const CALLS: u64 = 2_000_000;

/// A row: what is at the site, the function and the probe in it, what the block of the script adds up, how much that is at a hit,
/// and what a hit may cost.
type Row = (&'static str, &'static str, &'static str, &'static str, u64, f64);

const TWO: &str = "@ = sum(arg0 + arg1)";
const ROWS: [Row; 4] = [
    ("one-byte nop", "f_usdt", "short", "@ = count()", 1, 3.0),
    ("one-byte nop, two integers read", "f_usdt", "short", TWO, 3, 4.0),
    ("long nop, two integers read", "f_usdt5", "long", TWO, 3, 4.0),
    ("long nop, two integers read from the stack", "f_usdt_stack", "stack", TWO, 3, 50.0),
];

/// Measures all; `bench` is the process that is probed.
pub fn usdt(bench: &mut Bench) -> Result<String> {
    let with_bpftrace = build::installed("bpftrace");
    let mut text = String::from(
        "| static probe (USDT), ns per hit | call alone | sidestep | above the call | at most | bpftrace |\n\
         |---|---:|---:|---:|---:|---:|\n",
    );
    for (name, function, probe, block, per_hit, at_most) in ROWS {
        let script = format!("usdt:{}:bench:{probe} {{ {block} }}", bench.path());
        let base = bench.median(function, CALLS, ROUNDS, PAUSE);
        let tracing = Tracing::start(&["-f", "json", "-p", &bench.pid, "-e", &script]);
        bench.calls.clear();
        let time = bench.median(function, CALLS, ROUNDS, PAUSE);
        let report = tracing.stop();
        let (expected, found) = (bench.calls[function] * per_hit, scripts::hits(&report, false));
        ensure!(found == expected, "{name}: {found} instead of {expected}: {}", report.0);
        let bpftrace = match with_bpftrace {
            true => number(scripts::bpftrace_at(bench, function, &script)? - base),
            false => String::from("–"),
        };
        let above = number(time - base);
        writeln!(text, "| {name} | {} | {} | {above} | {at_most} | {bpftrace} |", number(base), number(time))?;
    }
    text += &attach()?;
    Ok(text)
}

/// Attaches to 50,000 sites.
fn attach() -> Result<String> {
    let path = target("usdt-50000").context("no C compiler")?;
    let program = Program::start(&mut std::process::Command::new(&path));
    let script = format!("usdt:{}:many:* {{ @ = sum(arg0 + arg1) }}", path.display());
    let (time, report) = scripts::attach(&program.pid().to_string(), &script)?;
    program.finish().ok();
    let note = report.0.stderr.lines().find(|line| line.contains("probes in process")).unwrap_or("no figures");
    let note = note.split_once(": ").map_or(note, |(_, rest)| rest);
    Ok(format!(
        "\nFrom the start of the command until it traces 50,000 sites of static probes, two integers each: {} ms; {note}.\n",
        number(time)
    ))
}
