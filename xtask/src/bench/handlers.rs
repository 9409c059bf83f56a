//! What the handler of a hit costs: programs of `bench.bpf.c` at one function, compiled and
//! interpreted.

use std::fmt::Write;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use sidestep_tests::target;
use sidestep_tests::tool::{Report, Tracing};

use super::program::{Bench, PAUSE, ROUNDS, number};

/// The probed function.
const FUNCTION: &str = "f_push";
/// Calls of a round.
const CALLS: u64 = 2_000_000;
/// Records of a round.
const BURST: u64 = 3500;

/// A handler: its name in the table, the program, what the map `total` or the keyed one must hold
/// per hit, and the target.
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

/// Measures all.
pub fn handlers() -> Result<String> {
    let mut bench = Bench::start()?;
    let object = target("bench.bpf.o").context("no clang")?;
    let object = object.to_str().context("a path in UTF-8")?;
    let time = |bench: &mut Bench| bench.median(FUNCTION, CALLS, ROUNDS, PAUSE);
    let base = time(&mut bench);
    let mut text =
        String::from("| handler at `f_push`, ns per hit | compiled | interpreted | at most |\n|---|---:|---:|---:|\n");
    for handler in &HANDLERS {
        let mut row = Vec::new();
        for flags in [&[][..], &["--interpret"]] {
            let place = format!("{}={FUNCTION}", handler.program);
            let args = [&["bpf", object, "-a", &place], flags].concat();
            row.push(bench.traced(&args, handler.per_hit, sum, time)?.0 - base);
        }
        writeln!(text, "| {} | {} | {} | {} |", handler.name, number(row[0]), number(row[1]), handler.at_most)?;
    }
    let record: Vec<f64> =
        [&[][..], &["--interpret"]].into_iter().map(|f| record(&mut bench, object, f)).collect::<Result<_>>()?;
    let name = "ring record of two integers and the time";
    writeln!(text, "| {name} | {} | {} | 35 |", number(record[0] - base), number(record[1] - base))?;

    let stamps = bench.median("stamps", 1_000_000, ROUNDS, PAUSE);
    let mut latency = Vec::new();
    for flags in [&[][..], &["--interpret"]] {
        let args = [&["funclatency", FUNCTION], flags].concat();
        latency.push(bench.traced(&args, 1, |report| report.latencies(), time)?.0 - base);
    }
    let name = "`funclatency`: entry + return + histogram, without two time stamps";
    writeln!(text, "| {name} | {} | {} | 12 |", number(latency[0] - stamps), number(latency[1] - stamps))?;
    text += &two_threads(&mut bench, object)?;
    text += &bench.finish()?;
    Ok(text)
}

/// As many records as fit into the ring between two looks of the reader: it has 256 KiB, a record
/// 64 bytes. Gives the time with the call itself.
fn record(bench: &mut Bench, object: &str, flags: &[&str]) -> Result<f64> {
    let place = format!("record={FUNCTION}");
    let args = [&["bpf", object, "-a", &place], flags].concat();
    let printed = |report: &Report| report.0.stdout.lines().filter(|line| line.starts_with("ring ")).count() as u64;
    let burst = |bench: &mut Bench| {
        let time = bench.median(FUNCTION, BURST, 25, Duration::from_millis(100));
        sleep(Duration::from_millis(100));
        time
    };
    Ok(bench.traced(&args, 1, printed, burst)?.0)
}

/// How many times as many hits two threads make as one: each round measures both, as the processors
/// are not always ours.
fn two_threads(bench: &mut Bench, object: &str) -> Result<String> {
    let mut text = String::from("\nHits of two threads in the time in which one thread makes one:");
    for program in ["sum", "count_keyed", "count_shared"] {
        let place = format!("{program}={FUNCTION}");
        let tracing = Tracing::start(&["bpf", object, "-p", &bench.pid, "-a", &place]);
        let mut once = |threads| bench.together(threads, |bench| bench.median(FUNCTION, CALLS, 1, Duration::ZERO));
        let mut ratios: Vec<f64> = (0..3 * ROUNDS).map(|_| once(1) / once(2)).collect();
        tracing.stop();
        ratios.sort_by(f64::total_cmp);
        write!(text, " {:.2} (`{program}`)", ratios[ratios.len() / 2])?;
    }
    text += ".\n";
    Ok(text)
}

/// All values of the maps that were printed: `key: 1  value: 2`, `key: 1  tid 7: 2`.
pub fn sum(report: &Report) -> u64 {
    let value = |line: &str| line.strip_prefix("  ")?.rsplit_once(": ")?.1.parse::<u64>().ok();
    report.0.stdout.lines().filter_map(value).sum()
}
