//! What a hit costs, by the first instruction of the probed function.

use std::fmt::Write;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use sidestep_tests::kernel::At;
use sidestep_tests::process::{LIMIT, Running, eventually};
use sidestep_tests::{Report, build};

use super::program::{Bench, PAUSE, ROUNDS, number};

/// As many records as fit into a ring between two looks of the reader.
const RECORDS: u64 = 2000;

/// Functions of `bench_asm.S`, and how their first instruction is called in the table.
const FUNCTIONS: [(&str, &str); 7] = [
    ("f_nop", "nop"),
    ("f_nop5", "nop5"),
    ("f_push", "push"),
    ("f_ret", "ret"),
    ("f_endbr64", "endbr64…"),
    ("f_sub", "sub"),
    ("f_mov", "mov"),
];
const ALL: &str = "^f_(nop|nop5|push|ret|endbr64|sub|mov)$";

/// Nanoseconds per function, in the order of [`FUNCTIONS`].
type Column = Vec<f64>;

/// Measures all.
pub fn hits() -> Result<String> {
    let mut bench = Bench::start()?;
    let base = column(&mut bench);
    let above = |column: Column| column.iter().zip(&base).map(|(ns, base)| ns - base).collect::<Column>();
    let stamps = bench.median("stamps", 1_000_000, ROUNDS, PAUSE);
    let trap = bench.median("trap", 20_000, ROUNDS, PAUSE);

    let counting = |bench: &mut Bench, flags: &[&str]| {
        let args = [&["funccount"], flags, &["-r", ALL]].concat();
        Ok::<_, anyhow::Error>(bench.traced(&args, 1, |report| report.counts().values().sum(), column)?.0)
    };
    let count = counting(&mut bench, &[])?;
    let (latency, _) = bench.traced(&["funclatency", "-r", ALL], 1, |report| report.latencies(), column)?;
    let records = records(&mut bench)?;
    let trapped = counting(&mut bench, &["--no-optimize"])?;
    let mut columns = vec![
        ("entry count", above(count)),
        ("entry + return + histogram", above(latency)),
        ("record", above(records)),
        ("trap probe, count", above(trapped)),
    ];
    for (name, at) in [("kernel uprobe", At::Entry), ("kernel uretprobe", At::Return)] {
        match kernel(&mut bench, at) {
            Ok(column) => columns.push((name, above(column))),
            Err(error) => eprintln!("{name} not measured: {error:#}"),
        }
    }
    match bpftrace(&mut bench) {
        Ok(column) => columns.push(("bpftrace `@ = count()`", above(column))),
        Err(error) => eprintln!("bpftrace not measured: {error:#}"),
    }
    let again = column(&mut bench);

    let mut text = String::new();
    let names = FUNCTIONS.map(|(_, name)| name).join(" | ");
    writeln!(text, "| ns per hit | {names} |\n|---|{}", "---:|".repeat(FUNCTIONS.len()))?;
    let mut row = |name: &str, column: &Column| {
        let cells: Vec<String> = column.iter().map(|ns| number(*ns)).collect();
        writeln!(text, "| {name} | {} |", cells.join(" | "))
    };
    row("unprobed call", &base)?;
    for (name, column) in &columns {
        row(name, column)?;
    }
    row("unprobed call, after all detaches", &again)?;
    writeln!(
        text,
        "\nIn the same process: two reads of the time stamp counter {} ns; a bare `int3` with a SIGTRAP handler and \
         sigreturn {} ns.",
        number(stamps),
        number(trap)
    )?;
    text += &bench.finish()?;
    Ok(text)
}

/// All functions, each in rounds of about the same time.
fn column(bench: &mut Bench) -> Column {
    FUNCTIONS.into_iter().map(|(name, _)| bench.time(name)).collect()
}

/// A record per hit, function by function: as many as fit into the ring, then time to read
/// them.
fn records(bench: &mut Bench) -> Result<Column> {
    let each = |(name, _): (&'static str, _)| {
        let printed = |report: &Report| report.records().len() as u64;
        let burst = |bench: &mut Bench| {
            let time = bench.median(name, RECORDS, 25, Duration::from_millis(100));
            sleep(Duration::from_millis(100));
            time
        };
        Ok(bench.traced(&["trace", &format!("{name} \"%d\", arg0")], 1, printed, burst)?.0)
    };
    FUNCTIONS.into_iter().map(each).collect()
}

/// The kernel's probes.
fn kernel(bench: &mut Bench, at: At) -> Result<Column> {
    FUNCTIONS.into_iter().map(|(name, _)| bench.under_kernel(name, 0, at, |bench| bench.time(name))).collect()
}

fn bpftrace(bench: &mut Bench) -> Result<Column> {
    ensure!(build::installed("bpftrace"), "not installed");
    let script: String = FUNCTIONS.map(|(f, _)| format!("uprobe:{}:{f} {{ @ = count(); }} ", bench.path())).concat();
    let running = Running::start(Command::new("bpftrace").args(["-p", &bench.pid, "-e", &script]));
    // It does not say when it is done; the calls do.
    let slow = eventually(LIMIT, || {
        FUNCTIONS.into_iter().all(|(name, _)| bench.median(name, 2000, 1, Duration::ZERO) > 100.0)
    });
    ensure!(slow, "it did not attach in {LIMIT:?}");
    let column = column(bench);
    running.signal(2);
    running.finish(LIMIT);
    Ok(column)
}
