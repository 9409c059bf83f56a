//! What static probes cost: a hit of each, with bpftrace beside it, and an attach to very many.

use std::fmt::Write;

use anyhow::{Context, Result};
use sidestep_tests::build;
use sidestep_tests::process::Program;
use sidestep_tests::target;

use super::program::{Bench, PAUSE, ROUNDS, number};
use super::scripts;

/// Calls of a round.
const CALLS: u64 = 2_000_000;

/// A row: what is at the site, the function and the probe in it, what the block of the script adds
/// up, how much that is at a hit, and what a hit may cost.
type Row = (&'static str, &'static str, &'static str, &'static str, u64, f64);

const TWO: &str = "@ = sum(arg0 + arg1)";
const ROWS: [Row; 5] = [
    ("one-byte nop", "f_usdt", "short", "@ = count()", 1, 3.0),
    ("one-byte nop, two integers read", "f_usdt", "short", TWO, 3, 4.0),
    ("long nop, two integers read", "f_usdt5", "long", TWO, 3, 4.0),
    ("long nop, two integers read from the frame", "f_usdt_frame", "frame", TWO, 3, 4.0),
    ("long nop, two integers read from below the stack pointer", "f_usdt_stack", "stack", TWO, 3, 50.0),
];

/// Measures all.
pub fn usdt() -> Result<String> {
    let mut bench = Bench::start()?;
    let with_bpftrace = build::installed("bpftrace");
    let mut text = String::from(
        "| static probe (USDT), ns per hit | call alone | sidestep | above the call | at most | bpftrace |\n\
         |---|---:|---:|---:|---:|---:|\n",
    );
    for (name, function, probe, block, per_hit, at_most) in ROWS {
        let script = format!("usdt:{}:bench:{probe} {{ {block} }}", bench.path());
        let base = bench.median(function, CALLS, ROUNDS, PAUSE);
        let (time, _) = bench.scripted(&script, &[], per_hit, |bench| bench.median(function, CALLS, ROUNDS, PAUSE))?;
        let bpftrace = match with_bpftrace {
            true => number(scripts::bpftrace_at(&mut bench, function, &script)? - base),
            false => String::from("–"),
        };
        let above = number(time - base);
        writeln!(text, "| {name} | {} | {} | {above} | {at_most} | {bpftrace} |", number(base), number(time))?;
    }
    text += &attach()?;
    text += &bench.finish()?;
    Ok(text)
}

/// Attaches to 50,000 sites.
fn attach() -> Result<String> {
    let path = target("usdt-50000").context("no C compiler")?;
    let program = Program::start(&mut std::process::Command::new(&path));
    let script = format!("usdt:{}:many:* {{ @ = sum(arg0 + arg1) }}", path.display());
    let (time, report) = scripts::attach(&program.pid().to_string(), &script)?;
    program.finish().ok();
    Ok(format!(
        "\nFrom the start of the command until it traces 50,000 sites of static probes, two integers each: {} ms; {}.\n",
        number(time),
        scripts::note(&report)
    ))
}
