//! What scripts cost: a hit of each at one function, and the time until they are attached; bpftrace's beside them.

use std::fmt::Write;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sidestep_tests::process::{LIMIT, Program, Running, eventually};
use sidestep_tests::tool::{Report, Tracing};
use sidestep_tests::{build, target};

use crate::bench::{Bench, PAUSE, ROUNDS, number};

/// The probed function.
const FUNCTION: &str = "f_push";
/// Calls of a round.
const CALLS: u64 = 2_000_000;
/// Calls of a round under the kernel's probes.
const KERNEL_CALLS: u64 = 100_000;
/// Lines of a round: what the ring holds until the reader has looked.
const BURST: u64 = 2000;
/// Rounds of lines.
const BURSTS: usize = 25;
/// What a call may cost at most that no probe of the kernel is at, in nanoseconds.
const UNPROBED: f64 = 100.0;

/// A script's block, and what a hit of it may cost in nanoseconds.
struct Block {
    text: &'static str,
    at_most: f64,
    /// Does it print a line per hit?
    prints: bool,
}

const BLOCKS: [Block; 4] = [
    Block { text: "@ = count()", at_most: 3.0, prints: false },
    Block { text: "@[arg0] = count()", at_most: 20.0, prints: false },
    Block { text: "@[ustack(5)] = count()", at_most: 60.0, prints: false },
    Block { text: r#"printf("%d %d\n", arg0, arg1)"#, at_most: 40.0, prints: true },
];

/// Measures all; `bench` is the process that is probed.
pub fn scripts(bench: &mut Bench) -> Result<String> {
    let with_bpftrace = build::installed("bpftrace");
    if !with_bpftrace {
        eprintln!("bpftrace not measured: not installed");
    }
    let base = bench.median(FUNCTION, CALLS, ROUNDS, PAUSE);
    let mut text =
        String::from("| script at `f_push`, ns per hit | sidestep | at most | bpftrace |\n|---|---:|---:|---:|\n");
    for block in &BLOCKS {
        let script = format!("uprobe:{}:{FUNCTION} {{ {} }}", bench.path(), block.text);
        let ours = sidestep(bench, block, &script)? - base;
        let bpftrace = match with_bpftrace {
            true => number(bpftrace(bench, block, &script)? - base),
            false => String::from("–"),
        };
        writeln!(text, "| `{}` | {} | {} | {bpftrace} |", block.text, number(ours), block.at_most)?;
    }
    text += "\n| from the start of the command until it traces, ms | sidestep | at most | bpftrace |\n\
             |---|---:|---:|---:|\n";
    let script = format!("uprobe:{}:{FUNCTION} {{ @ = count() }}", bench.path());
    let (ours, _) = attach(&bench.pid, &script)?;
    let bpftrace = match with_bpftrace {
        true => number(bpftrace_attach(bench, &script)?),
        false => String::from("–"),
    };
    writeln!(text, "| a script of one line, one function | {} | 50 | {bpftrace} |", number(ours))?;
    text += &wildcards()?;
    Ok(text)
}

/// Nanoseconds of a call, with the call itself. Counts must be exact, and no line may be lost.
fn sidestep(bench: &mut Bench, block: &Block, script: &str) -> Result<f64> {
    let tracing = Tracing::start(&["-f", "json", "-p", &bench.pid, "-e", script]);
    bench.calls.clear();
    let time = rounds(bench, block, CALLS);
    let report = tracing.stop();
    let (expected, found) = (bench.calls[FUNCTION], hits(&report, block.prints));
    ensure!(found == expected, "`{}`: {found} instead of {expected}: {}", block.text, report.0.stderr);
    ensure!(!report.0.stderr.contains("ost"), "`{}`: {}", block.text, report.0.stderr);
    Ok(time)
}

/// The median of some rounds, of `calls` calls each if it prints nothing.
fn rounds(bench: &mut Bench, block: &Block, calls: u64) -> f64 {
    if !block.prints {
        return bench.median(FUNCTION, calls, ROUNDS, PAUSE);
    }
    let time = bench.median(FUNCTION, BURST, BURSTS, Duration::from_millis(100));
    sleep(Duration::from_millis(100));
    time
}

/// Lines that were printed, or what all keys of the map have counted.
pub fn hits(report: &Report, prints: bool) -> u64 {
    let of_kind = |kind: &str| {
        let head = format!("{{\"type\": \"{kind}\"");
        report.0.stdout.lines().filter(move |line| line.starts_with(&head)).map(str::to_owned).collect::<Vec<_>>()
    };
    if prints {
        return of_kind("printf").len() as u64;
    }
    // `{"type": "map", "data": {"@": 5}}`, `… {"@": {"KEY": 5, "KEY": 7}}}`
    let value = |part: &str| part.rsplit_once(": ")?.1.trim_end_matches('}').parse::<u64>().ok();
    of_kind("map").iter().flat_map(|line| line.split(", \"").filter_map(value).collect::<Vec<_>>()).sum()
}

/// The same under bpftrace, which loses lines.
fn bpftrace(bench: &mut Bench, block: &Block, script: &str) -> Result<f64> {
    let _running = start_bpftrace(bench, FUNCTION, script)?;
    Ok(rounds(bench, block, KERNEL_CALLS))
}

/// What a call of a function takes under bpftrace, with the call itself.
pub fn bpftrace_at(bench: &mut Bench, function: &'static str, script: &str) -> Result<f64> {
    let _running = start_bpftrace(bench, function, script)?;
    Ok(bench.median(function, KERNEL_CALLS, ROUNDS, PAUSE))
}

/// Starts it when no other is there any more, and waits until it is attached. It does not say when that is; the calls do.
/// It is killed in the end: after lines it goes on for minutes.
fn start_bpftrace(bench: &mut Bench, function: &'static str, script: &str) -> Result<(Running, Duration)> {
    let mut call = || bench.median(function, 200, 1, Duration::ZERO);
    ensure!(eventually(LIMIT, || call() < UNPROBED), "the bpftrace before is still there");
    let begin = Instant::now();
    let running = Running::start(Command::new("bpftrace").args(["-p", &bench.pid, "-e", script]));
    let mut call = || bench.median(function, 200, 1, Duration::ZERO);
    ensure!(eventually(LIMIT, || call() > UNPROBED), "bpftrace did not attach in {LIMIT:?}");
    Ok((running, begin.elapsed()))
}

/// Milliseconds from the start of bpftrace until the function is probed.
fn bpftrace_attach(bench: &mut Bench, script: &str) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let (_running, time) = start_bpftrace(bench, FUNCTION, script)?;
        times.push(time.as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

/// Milliseconds from the start of `sidestep` until it traces, the median, and what that run said.
pub fn attach(pid: &str, script: &str) -> Result<(f64, Report)> {
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let tracing = Tracing::start(&["-v", "-f", "json", "-p", pid, "-e", script]);
        let time = begin.elapsed().as_secs_f64() * 1e3;
        runs.push((time, tracing.stop()));
    }
    runs.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    Ok(runs.swap_remove(ROUNDS / 2))
}

/// Thousands of functions by one wildcard: of a program that waits, and of one with threads that call them all the time.
fn wildcards() -> Result<String> {
    let path = target("many-10000").context("no C compiler")?;
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let mut text = String::new();
    let script = |pattern: &str| format!("u:{}:{pattern} {{ @[func] = count() }}", path.display());
    let (time, _) = attach(&pid, &script("many1[0-4]*"))?;
    writeln!(text, "| 5,000 functions by one wildcard | {} | 1000 | – |", number(time))?;
    ensure!(program.ask("start 0") == 0, "no threads");
    let (time, report) = attach(&pid, &script("many1*"))?;
    writeln!(text, "| 10,000 functions of a program with three busy threads | {} | 1000 | – |", number(time))?;
    ensure!(program.ask("finish 0") == 0, "wrong results");
    program.finish().ok();
    let note = report.0.stderr.lines().find(|line| line.contains("probes in process")).unwrap_or("no figures");
    let note = note.split_once(": ").map_or(note, |(_, rest)| rest);
    writeln!(text, "\nMedians of {ROUNDS} runs. Of the attach to 10,000 functions: {note}.")?;
    Ok(text)
}
