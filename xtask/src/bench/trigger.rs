//! Hits per second at the functions of the kernel's benchmark `bench trig-…`
//! (`tools/testing/selftests/bpf/benchs/bench_trigger.c`), with its names for the rows.

use std::fmt::Write;

use anyhow::Result;
use sidestep_tests::kernel::At;

use super::program::{Bench, Rate, processors};
use super::width::both_widths;

/// Threads of the columns.
const THREADS: [u64; 2] = [1, 2];

/// A row: its name, the function that is called, and its probe. `OBJECT` stands for the program.
struct Row {
    name: &'static str,
    function: &'static str,
    probe: Option<Probe>,
}

struct Probe {
    script: &'static str,
    /// Where the kernel's probe is: bytes behind the function's start.
    offset: u64,
    at: At,
}

const fn entry(name: &'static str, function: &'static str, script: &'static str) -> Row {
    Row { name, function, probe: Some(Probe { script, offset: 0, at: At::Entry }) }
}

const fn exit(name: &'static str, function: &'static str, script: &'static str) -> Row {
    Row { name, function, probe: Some(Probe { script, offset: 0, at: At::Return }) }
}

/// The nop of a static probe is behind two moves of five bytes.
const fn usdt(name: &'static str, function: &'static str, script: &'static str) -> Row {
    Row { name, function, probe: Some(Probe { script, offset: 10, at: At::Entry }) }
}

const ROWS: [Row; 12] = [
    Row { name: "usermode-count", function: "usermode_count", probe: None },
    Row { name: "syscall-count", function: "syscall_count", probe: None },
    entry("uprobe-nop", "f_bare_nop", "u:OBJECT:f_bare_nop"),
    entry("uprobe-push", "f_push", "u:OBJECT:f_push"),
    entry("uprobe-ret", "f_ret", "u:OBJECT:f_ret"),
    entry("uprobe-nop5", "f_bare_nop5", "u:OBJECT:f_bare_nop5"),
    exit("uretprobe-nop", "f_bare_nop", "ur:OBJECT:f_bare_nop"),
    exit("uretprobe-push", "f_push", "ur:OBJECT:f_push"),
    exit("uretprobe-ret", "f_ret", "ur:OBJECT:f_ret"),
    exit("uretprobe-nop5", "f_bare_nop5", "ur:OBJECT:f_bare_nop5"),
    usdt("usdt-nop", "f_usdt", "usdt:OBJECT:bench:short"),
    usdt("usdt-nop5", "f_usdt5", "usdt:OBJECT:bench:long"),
];

/// Measures all, for programs of both widths.
pub fn trigger() -> Result<String> {
    let mut text = String::from(
        "Millions of hits per second, of all threads together, by the clock on the wall: median of the rounds ± standard \
         deviation. The names are those of the kernel's benchmark (`bench trig-…` of its BPF selftests). `usermode-count` is an \
         increment of a counter of the thread, `syscall-count` a `getpgid`; neither is probed. Sidestep runs the script \
         `PROBE { @ = count() }`. The kernel's probes are counted by perf, with a counter for each thread. All counts are exact.\n\n",
    );
    text += &both_widths(table)?;
    text += "\nFrida and retour have no column: this command does not install them.\n";
    Ok(text)
}

fn table() -> Result<String> {
    let mut bench = Bench::start()?;
    let threads: Vec<u64> = THREADS.into_iter().filter(|threads| *threads as usize <= processors()).collect();
    let mut text = String::from("| M/s |");
    for who in ["sidestep", "kernel"] {
        for threads in &threads {
            write!(text, " {who}, {threads} thread{} |", if *threads == 1 { "" } else { "s" })?;
        }
    }
    writeln!(text, "\n|---|{}", "---:|".repeat(2 * threads.len()))?;
    let mut refused = None;
    for row in &ROWS {
        let (mut ours, mut kernel) = (Vec::new(), Vec::new());
        for threads in &threads {
            let rate = |bench: &mut Bench| bench.rate(row.function);
            let Some(probe) = &row.probe else {
                ours.push(bench.together(*threads, rate));
                continue;
            };
            let script = format!("{} {{ @ = count() }}", probe.script.replace("OBJECT", &bench.path()));
            ours.push(bench.together(*threads, |bench| bench.scripted(&script, &[], 1, rate))?.0);
            let place = (row.function, probe.offset, probe.at);
            match bench.together(*threads, |bench| bench.under_kernel(place.0, place.1, place.2, rate)) {
                Ok(rate) => kernel.push(rate),
                Err(error) => refused = Some(error),
            }
        }
        let cells = |rates: &[Rate]| -> String {
            (0..threads.len()).map(|i| rates.get(i).map_or(String::from(" – |"), |rate| format!(" {rate} |"))).collect()
        };
        let line = format!("| {} |{}{}", row.name, cells(&ours), cells(&kernel));
        eprintln!("{line}");
        writeln!(text, "{line}")?;
    }
    writeln!(text)?;
    if let Some(error) = refused {
        writeln!(text, "Cells of the kernel are missing: {error:#}.")?;
    }
    if threads.len() < THREADS.len() {
        writeln!(text, "This machine has {} processor.", processors())?;
    }
    text += &bench.finish()?;
    Ok(text)
}
