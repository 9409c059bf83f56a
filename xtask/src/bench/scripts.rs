//! What scripts cost: a hit of each at one function, and the time until they are attached;
//! bpftrace's beside them.

use std::fmt::Write;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sidestep_tests::process::{LIMIT, Program, Running, eventually};
use sidestep_tests::tool::{Report, Tracing};
use sidestep_tests::{build, target};

use super::program::{Bench, PAUSE, ROUNDS, number};

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

/// A script, and what a hit of it may cost in nanoseconds. `F` stands for the function in it.
struct Script {
    text: &'static str,
    /// Without two time stamps, if it takes them.
    at_most: Option<f64>,
    kind: Kind,
    /// Does bpftrace have it?
    portable: bool,
}

/// What is known of its results, at each hit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A line is printed.
    Prints,
    /// Maps count so many.
    Counts(u64),
    /// A map counts one, and two time stamps are taken.
    Times,
}

const SCRIPTS: [Script; 9] = [
    Script { text: "u:F { @ = count() }", at_most: Some(3.0), kind: Kind::Counts(1), portable: true },
    Script { text: "ur:F { @ = count() }", at_most: Some(2.0), kind: Kind::Counts(1), portable: true },
    Script {
        text: "u:F { @ = count() } ur:F { @ = count() }",
        at_most: Some(6.0),
        kind: Kind::Counts(2),
        portable: true,
    },
    // The function returns its argument + 1, as a number of 32 bits.
    Script {
        text: "u:F { self.a = arg0 } ur:F { @ = sum((uint32)(retval - self.a)) }",
        at_most: Some(6.0),
        kind: Kind::Counts(1),
        portable: false,
    },
    Script { text: "ur:F { @ = hist(latency()) }", at_most: Some(12.0), kind: Kind::Times, portable: false },
    Script {
        text: "u:F { @t[tid] = nsecs } ur:F /@t[tid]/ { @ = hist(nsecs - @t[tid]); delete(@t[tid]) }",
        at_most: None,
        kind: Kind::Times,
        portable: true,
    },
    Script { text: "u:F { @[arg0] = count() }", at_most: Some(20.0), kind: Kind::Counts(1), portable: true },
    Script { text: "u:F { @[ustack(5)] = count() }", at_most: Some(60.0), kind: Kind::Counts(1), portable: true },
    Script {
        text: r#"u:F { printf("%d %d\n", arg0, arg1) }"#,
        at_most: Some(40.0),
        kind: Kind::Prints,
        portable: true,
    },
];

/// Measures all.
pub fn scripts() -> Result<String> {
    let mut bench = Bench::start()?;
    let with_bpftrace = build::installed("bpftrace");
    if !with_bpftrace {
        eprintln!("bpftrace not measured: not installed");
    }
    let base = bench.median(FUNCTION, CALLS, ROUNDS, PAUSE);
    let stamps = bench.median("stamps", 1_000_000, ROUNDS, PAUSE);
    let place = format!(":{}:{FUNCTION} ", bench.path());
    let mut text =
        String::from("| script at `f_push`, ns per hit | sidestep | at most | bpftrace |\n|---|---:|---:|---:|\n");
    for script in &SCRIPTS {
        let source = script.text.replace(":F ", &place);
        let above = base + if script.kind == Kind::Times { stamps } else { 0.0 };
        let ours = sidestep(&mut bench, script, &source)? - above;
        let bpftrace = match with_bpftrace && script.portable {
            true => number(bpftrace(&mut bench, script, &source)? - above),
            false => String::from("–"),
        };
        let name = script.text.replace('|', "\\|");
        let note = if script.kind == Kind::Times { ", without two time stamps" } else { "" };
        let at_most = script.at_most.map_or(String::from("–"), |limit| limit.to_string());
        writeln!(text, "| `{name}`{note} | {} | {at_most} | {bpftrace} |", number(ours))?;
    }
    writeln!(text, "\nTwo time stamps take {} ns in the same process.", number(stamps))?;
    text += "\n| from the start of the command until it traces, ms | sidestep | at most | bpftrace |\n\
             |---|---:|---:|---:|\n";
    let script = format!("uprobe{place}{{ @ = count() }}");
    let (ours, _) = attach(&bench.pid, &script)?;
    let bpftrace = match with_bpftrace {
        true => number(bpftrace_attach(&mut bench, &script)?),
        false => String::from("–"),
    };
    writeln!(text, "| a script of one line, one function | {} | 50 | {bpftrace} |", number(ours))?;
    text += &wildcards()?;
    text += &bench.finish()?;
    Ok(text)
}

/// Nanoseconds of a call, with the call itself. Counts must be exact, and no line may be lost.
fn sidestep(bench: &mut Bench, script: &Script, source: &str) -> Result<f64> {
    let work = |bench: &mut Bench| rounds(bench, script, CALLS);
    let (time, _) = match script.kind {
        Kind::Prints => bench.traced(&["-f", "json", "-e", source], 1, printed, work)?,
        Kind::Counts(per_hit) => bench.scripted(source, &[], per_hit, work)?,
        Kind::Times => bench.scripted(source, &[], 1, work)?,
    };
    Ok(time)
}

/// The median of some rounds, of `calls` calls each if it prints nothing.
fn rounds(bench: &mut Bench, script: &Script, calls: u64) -> f64 {
    if script.kind != Kind::Prints {
        return bench.median(FUNCTION, calls, ROUNDS, PAUSE);
    }
    let time = bench.median(FUNCTION, BURST, BURSTS, Duration::from_millis(100));
    sleep(Duration::from_millis(100));
    time
}

/// Lines of a script's JSON of one type.
fn lines<'a>(report: &'a Report, kind: &str) -> impl Iterator<Item = &'a str> {
    let head = format!("{{\"type\": \"{kind}\"");
    report.0.stdout.lines().filter(move |line| line.starts_with(&head))
}

/// Lines that were printed.
fn printed(report: &Report) -> u64 {
    lines(report, "printf").count() as u64
}

/// What all keys of all maps have counted, histograms among them.
pub fn counted(report: &Report) -> u64 {
    // `{"type": "map", "data": {"@": 5}}`, `… {"@": {"KEY": 5, "KEY": 7}}}`
    let value = |part: &str| part.rsplit_once(": ")?.1.trim_end_matches('}').parse::<u64>().ok();
    let maps: u64 = lines(report, "map").flat_map(|line| line.split(", \"").filter_map(value)).sum();
    // `… {"@": [{"min": 4, "max": 7, "count": 2}, …]}}`
    let row = |part: &str| part.split(['}', ',']).next()?.parse::<u64>().ok();
    let rows = |line: &str| line.split("\"count\": ").skip(1).filter_map(row).sum::<u64>();
    maps + lines(report, "hist").map(rows).sum::<u64>()
}

/// What `-v` said of the probes of a run.
pub fn note(report: &Report) -> &str {
    let note = report.0.stderr.lines().find(|line| line.contains(" in process ")).unwrap_or("no figures");
    note.split_once(": ").map_or(note, |(_, rest)| rest)
}

/// The same under bpftrace, which loses lines.
fn bpftrace(bench: &mut Bench, script: &Script, source: &str) -> Result<f64> {
    let _running = start_bpftrace(bench, FUNCTION, source)?;
    Ok(rounds(bench, script, KERNEL_CALLS))
}

/// What a call of a function takes under bpftrace, with the call itself.
pub fn bpftrace_at(bench: &mut Bench, function: &'static str, script: &str) -> Result<f64> {
    let _running = start_bpftrace(bench, function, script)?;
    Ok(bench.median(function, KERNEL_CALLS, ROUNDS, PAUSE))
}

/// Starts it when no other is there any more, and waits until it is attached. It does not say when
/// that is; the calls do. It is killed in the end: after lines it goes on for minutes.
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

/// Thousands of functions by one wildcard: of a program that waits, and of one with threads that
/// call them all the time.
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
    writeln!(text, "\nMedians of {ROUNDS} runs. Of the attach to 10,000 functions: {}.", note(&report))?;
    Ok(text)
}
