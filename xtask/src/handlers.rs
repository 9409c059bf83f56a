//! What the handler of a hit costs: programs of `bench.bpf.c` at one function, compiled and interpreted.

use std::fmt::Write;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sidestep_tests::target;
use sidestep_tests::tool::Tracing;

use crate::bench::{Bench, PAUSE, ROUNDS, number};

/// The probed function.
const FUNCTION: &str = "f_push";
/// Calls of a round.
const CALLS: u64 = 2_000_000;
/// Records of a round.
const BURST: u64 = 3500;

/// A handler: its name in the table, the program, what the map `total` or the keyed one must hold per hit, and the target.
struct Handler {
    name: &'static str,
    program: &'static str,
    per_hit: u64,
    at_most: f64,
}

const HANDLERS: [Handler; 6] = [
    Handler { name: "count, if an argument is not 0", program: "sum", per_hit: 1, at_most: 3.0 },
    Handler { name: "full register frame", program: "frame", per_hit: 1, at_most: 8.0 },
    Handler { name: "filter that fails", program: "filter", per_hit: 0, at_most: 2.5 },
    Handler { name: "count by an argument, a value per thread", program: "count_keyed", per_hit: 1, at_most: 20.0 },
    Handler { name: "count by an argument, one value", program: "count_shared", per_hit: 1, at_most: 20.0 },
    Handler { name: "string of 16 bytes", program: "text", per_hit: 17, at_most: 40.0 },
];

/// Measures all; `bench` is the process that is probed.
pub fn handlers(bench: &mut Bench) -> Result<String> {
    let object = target("bench.bpf.o").context("no clang")?;
    let object = object.to_str().context("a path in UTF-8")?;
    let base = bench.median(FUNCTION, CALLS, ROUNDS, PAUSE);
    let mut text =
        String::from("| handler at `f_push`, ns per hit | compiled | interpreted | at most |\n|---|---:|---:|---:|\n");
    for handler in &HANDLERS {
        let mut row = Vec::new();
        for flags in [&[][..], &["--interpret"]] {
            let place = format!("{}={FUNCTION}", handler.program);
            let tracing = Tracing::start(&[&["bpf", object, "-p", &bench.pid, "-a", &place], flags].concat());
            bench.calls.clear();
            row.push(bench.median(FUNCTION, CALLS, ROUNDS, PAUSE) - base);
            let report = tracing.stop();
            let (expected, found) = (bench.calls[FUNCTION] * handler.per_hit, sum(&report.0.stdout));
            ensure!(found == expected, "{}: {found} instead of {expected}: {}", handler.name, report.0);
        }
        writeln!(text, "| {} | {} | {} | {} |", handler.name, number(row[0]), number(row[1]), handler.at_most)?;
    }
    let record: Vec<f64> =
        [&[][..], &["--interpret"]].into_iter().map(|f| record(bench, object, f)).collect::<Result<_>>()?;
    let name = "ring record of two integers and the time";
    writeln!(text, "| {name} | {} | {} | 35 |", number(record[0] - base), number(record[1] - base))?;

    let stamps = bench.median("stamps", 1_000_000, ROUNDS, PAUSE);
    let mut latency = Vec::new();
    for flags in [&[][..], &["--interpret"]] {
        let tracing = Tracing::start(&[&["funclatency", "-p", &bench.pid, FUNCTION], flags].concat());
        bench.calls.clear();
        latency.push(bench.median(FUNCTION, CALLS, ROUNDS, PAUSE) - base);
        let report = tracing.stop();
        ensure!(report.latencies() == bench.calls[FUNCTION], "not all calls were timed: {}", report.0);
    }
    let name = "entry + return + histogram, without two time stamps";
    writeln!(text, "| {name} | {} | {} | 25 |", number(latency[0] - stamps), number(latency[1] - stamps))?;
    text += &two_threads(bench, object)?;
    Ok(text)
}

/// As many records as fit into the ring between two looks of the reader: it has 256 KiB, a record 64 bytes. Gives the time
/// with the call itself.
fn record(bench: &mut Bench, object: &str, flags: &[&str]) -> Result<f64> {
    let place = format!("record={FUNCTION}");
    let tracing = Tracing::start(&[&["bpf", object, "-p", &bench.pid, "-a", &place], flags].concat());
    bench.calls.clear();
    let time = bench.median(FUNCTION, BURST, 25, Duration::from_millis(100));
    sleep(Duration::from_millis(100));
    let report = tracing.stop();
    let (expected, printed) =
        (bench.calls[FUNCTION], report.0.stdout.lines().filter(|l| l.starts_with("ring ")).count());
    ensure!(printed as u64 == expected, "{printed} of {expected} records: {}", report.0.stderr);
    Ok(time)
}

/// How many times as many hits two threads make as one: each round measures both, as the processors are not always ours.
fn two_threads(bench: &mut Bench, object: &str) -> Result<String> {
    let mut text = String::from("\nHits of two threads in the time in which one thread makes one:");
    for program in ["sum", "count_keyed", "count_shared"] {
        let place = format!("{program}={FUNCTION}");
        let tracing = Tracing::start(&["bpf", object, "-p", &bench.pid, "-a", &place]);
        let mut once = |function| bench.median(function, CALLS, 1, Duration::ZERO);
        let mut ratios: Vec<f64> = (0..3 * ROUNDS).map(|_| 2.0 * once(FUNCTION) / once("pair")).collect();
        tracing.stop();
        ratios.sort_by(f64::total_cmp);
        write!(text, " {:.2} (`{program}`)", ratios[ratios.len() / 2])?;
    }
    text += ".\n";
    Ok(text)
}

/// All values of the maps that were printed: `key: 1  value: 2`, `key: 1  tid 7: 2`.
fn sum(output: &str) -> u64 {
    let value = |line: &str| line.strip_prefix("  ")?.rsplit_once(": ")?.1.parse::<u64>().ok();
    output.lines().filter_map(value).sum()
}
