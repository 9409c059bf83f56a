//! What a probe hit costs, measured in one process that stays the same over all columns.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sidestep_tests::kernel::{At, Uprobe};
use sidestep_tests::process::{LIMIT, Program, Running, eventually};
use sidestep_tests::tool::{Report, Tracing};
use sidestep_tests::{build, target};

use crate::{handlers, machine, scripts, usdt};

/// Rounds of which the median counts.
pub const ROUNDS: usize = 7;
/// Before each round: what disturbs a machine for a moment is not to disturb most of a row's rounds.
pub const PAUSE: Duration = Duration::from_millis(50);
/// A processor is calm if it needs at most so much of the least time that [`Bench::settle`] has seen.
const CALM: f64 = 1.1;
/// A round that was disturbed is repeated so often at most,
const REPEATS: usize = 20;
/// and all of them together.
const ALL_REPEATS: usize = 1500;
/// CPU time of a round, about, in nanoseconds.
const ROUND_NS: f64 = 60e6;
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

/// Over a thousand functions of libcrypto 3.
const MANY: &str = "libcrypto:^(EVP_|EC)";

/// Measures and prints; `write`: also into `docs/bench.md`.
pub fn bench(write: bool) -> Result<()> {
    println!("measuring {}", sidestep_tests::tool::path().display());
    let mut bench = Bench::start()?;
    let handlers = handlers::handlers(&mut bench)?;
    let scripts = scripts::scripts(&mut bench)?;
    let usdt = usdt::usdt(&mut bench)?;
    let text = format!("{}{}\n{handlers}\n{scripts}\n{usdt}\n{}", heading()?, bench.hits()?, attach_many()?);
    println!("{text}");
    if write { machine::write_doc("bench.md", &text) } else { Ok(()) }
}

/// Measures scripts alone, and prints that.
pub fn scripts_alone() -> Result<()> {
    println!("{}", scripts::scripts(&mut Bench::start()?)?);
    Ok(())
}

/// Measures static probes alone, and prints that.
pub fn usdt_alone() -> Result<()> {
    println!("{}", usdt::usdt(&mut Bench::start()?)?);
    Ok(())
}

/// The measured process.
pub struct Bench {
    program: Program,
    pub pid: String,
    path: PathBuf,
    /// Calls of each function since the last [`BTreeMap::clear`].
    pub calls: BTreeMap<&'static str, u64>,
    /// Picoseconds that the calibration takes at best.
    best: i64,
    /// Rounds, those that were disturbed all the same, and repeats.
    rounds: [usize; 3],
}

/// Nanoseconds per function, in the order of [`FUNCTIONS`].
type Column = Vec<f64>;

impl Bench {
    fn start() -> Result<Bench> {
        let path = target("bench").context("no C compiler")?;
        let program = Program::start(&mut Command::new(&path));
        let pid = program.pid().to_string();
        let mut bench = Bench { program, pid, path, calls: BTreeMap::new(), best: i64::MAX, rounds: [0; 3] };
        for _ in 0..500 {
            bench.settle();
        }
        Ok(bench)
    }

    /// Goes to the next processor, and on if there is none. Is it calm? Machines are shared: where a thread of somebody else's
    /// runs on the same core, everything takes up to twice as long.
    fn settle(&mut self) -> bool {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        (0..processors).any(|i| {
            let which = (self.rounds[0] + i) % processors;
            self.program.ask(&format!("cpu {which}"));
            self.is_calm()
        })
    }

    fn is_calm(&mut self) -> bool {
        let now = self.program.ask("calm 1000000");
        self.best = self.best.min(now);
        now as f64 <= self.best as f64 * CALM
    }

    /// The file of the program.
    pub fn path(&self) -> String {
        self.path.display().to_string()
    }

    fn hits(mut self) -> Result<String> {
        let base = self.column();
        let above = |column: Column| column.iter().zip(&base).map(|(ns, base)| ns - base).collect::<Column>();
        let stamps = self.median("stamps", 1_000_000, ROUNDS, PAUSE);
        let trap = self.median("trap", 20_000, ROUNDS, PAUSE);

        let count = self.traced(&["funccount"])?;
        let latency = self.traced(&["funclatency"])?;
        let records = self.records()?;
        let trapped = self.traced(&["funccount", "--no-optimize"])?;
        let mut columns = vec![
            ("entry count", above(count)),
            ("entry + return + histogram", above(latency)),
            ("record", above(records)),
            ("trap probe, count", above(trapped)),
        ];
        for (name, at) in [("kernel uprobe", At::Entry), ("kernel uretprobe", At::Return)] {
            match self.kernel(at) {
                Ok(column) => columns.push((name, above(column))),
                Err(error) => eprintln!("{name} not measured: {error:#}"),
            }
        }
        match self.bpftrace() {
            Ok(column) => columns.push(("bpftrace `@ = count()`", above(column))),
            Err(error) => eprintln!("bpftrace not measured: {error:#}"),
        }
        let again = self.column();
        let disturbances = self.disturbances();
        ensure!(self.program.finish().code() == 0, "the measured program did not end well");

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
        text += &disturbances;
        Ok(text)
    }

    /// All functions, each in rounds of about the same time.
    fn column(&mut self) -> Column {
        let each = |(name, _): (&'static str, _)| {
            let rough = self.median(name, 2000, 3, Duration::ZERO).max(0.5);
            self.median(name, ((ROUND_NS / rough) as u64).clamp(2000, 20_000_000), ROUNDS, PAUSE)
        };
        FUNCTIONS.into_iter().map(each).collect()
    }

    /// Median of `rounds` answers in nanoseconds per call, with a pause before each round: on a processor that is calm, if one is
    /// found; without a pause, wherever it is.
    pub fn median(&mut self, name: &'static str, calls: u64, rounds: usize, pause: Duration) -> f64 {
        let mut answers = Vec::new();
        for _ in 0..rounds {
            answers.push(if pause.is_zero() { self.round(name, calls) } else { self.calm_round(name, calls, pause) });
        }
        self.program.ask("cpu -1");
        answers.sort_unstable();
        answers[rounds / 2] as f64 / 1000.0
    }

    fn round(&mut self, name: &'static str, calls: u64) -> i64 {
        // One more to warm up.
        *self.calls.entry(name).or_default() += calls + 1;
        self.program.ask(&format!("{name} {calls}"))
    }

    /// A round that nobody disturbed, as far as that is possible.
    fn calm_round(&mut self, name: &'static str, calls: u64, pause: Duration) -> i64 {
        self.rounds[0] += 1;
        let mut repeats = 0;
        loop {
            sleep(pause);
            let calm = self.settle();
            let answer = self.round(name, calls);
            if calm && self.is_calm() {
                return answer;
            }
            if repeats == REPEATS || self.rounds[2] == ALL_REPEATS {
                self.rounds[1] += 1;
                return answer;
            }
            repeats += 1;
            self.rounds[2] += 1;
        }
    }

    /// How many rounds were disturbed.
    fn disturbances(&self) -> String {
        let [rounds, disturbed, repeats] = self.rounds;
        format!(
            "A round counts if a loop of additions and stores took at most {CALM} of its best time before and after it: others, and \
             threads of other programs on the same core, took up to twice as long. {repeats} rounds were repeated for that; of \
             {rounds}, {disturbed} were measured all the same.\n"
        )
    }

    /// All functions under one tool. Counts must be exact.
    fn traced(&mut self, tool: &[&str]) -> Result<Column> {
        let pid = self.pid.clone();
        let tracing = Tracing::start(&[tool, &["-p", &pid, "-r", ALL][..]].concat());
        self.calls.clear();
        let column = self.column();
        let report = tracing.stop();
        let expected: u64 = self.calls.values().sum();
        let counted = if tool[0] == "funccount" { report.counts().values().sum() } else { report.latencies() };
        ensure!(counted == expected, "{counted} of {expected} hits were counted: {}", report.0);
        Ok(column)
    }

    /// A record per hit, function by function: as many as fit into the ring, then time to read them.
    fn records(&mut self) -> Result<Column> {
        let mut column = Column::new();
        for (name, _) in FUNCTIONS {
            let tracing = Tracing::start(&["trace", "-p", &self.pid, &format!("{name} \"%d\", arg0")]);
            self.calls.clear();
            column.push(self.median(name, RECORDS, 25, Duration::from_millis(100)));
            sleep(Duration::from_millis(100));
            let report: Report = tracing.stop();
            let (expected, printed) = (self.calls[name], report.records().len() as u64);
            ensure!(printed == expected, "{printed} of {expected} records of {name}: {}", report.0.stderr);
        }
        Ok(column)
    }

    /// The kernel's probes, counted by perf (`perf stat -e probe:…`), one at a time.
    fn kernel(&mut self, at: At) -> Result<Column> {
        let mut probes = Vec::new();
        for (name, _) in FUNCTIONS {
            probes.push(Uprobe::attach(self.program.pid(), &self.path, name, at).context(name)?);
        }
        self.calls.clear();
        let column = self.column();
        for ((name, _), probe) in FUNCTIONS.into_iter().zip(&mut probes) {
            let (hits, calls) = (probe.hits()?, self.calls[name]);
            ensure!(hits == calls, "the kernel counted {hits} of {calls} calls of {name}");
        }
        Ok(column)
    }

    fn bpftrace(&mut self) -> Result<Column> {
        ensure!(build::installed("bpftrace"), "not installed");
        let script: String =
            FUNCTIONS.map(|(f, _)| format!("uprobe:{}:{f} {{ @ = count(); }} ", self.path.display())).concat();
        let running = Running::start(Command::new("bpftrace").args(["-p", &self.pid, "-e", &script]));
        // It does not say when it is done; the calls do.
        let slow = eventually(LIMIT, || {
            FUNCTIONS.into_iter().all(|(name, _)| self.median(name, 2000, 1, Duration::ZERO) > 100.0)
        });
        ensure!(slow, "it did not attach in {LIMIT:?}");
        let column = self.column();
        running.signal(2);
        running.finish(LIMIT);
        Ok(column)
    }
}

pub fn number(ns: f64) -> String {
    if ns.abs() < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

/// The time until the tool traces over a thousand functions, from the start of its process.
fn attach_many() -> Result<String> {
    let program = Program::start(&mut Command::new(target("crypto").context("no C compiler")?));
    let pid = program.pid().to_string();
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let tracing = Tracing::start(&["funccount", "-v", "-p", &pid, "-r", MANY]);
        let time = begin.elapsed();
        let begin = Instant::now();
        let report = tracing.stop();
        runs.push((time, begin.elapsed(), report));
    }
    runs.sort_by_key(|(time, ..)| *time);
    let (time, detach, report) = &runs[ROUNDS / 2];
    let note = report.0.stderr.lines().find(|l| l.contains("probes in process")).unwrap_or("no figures");
    let note = note.split_once(": ").map_or(note, |(_, rest)| rest);
    let heading = report.0.stdout.lines().next().unwrap_or_default();
    let functions = heading.split_whitespace().nth(1).unwrap_or("?");
    Ok(format!(
        "Attach to {functions} functions of libcrypto (`-r '{MANY}'`): {:.0} ms from the start of `sidestep` until it \
         traces, detach and report {:.0} ms; median of {ROUNDS} runs. Of this attach: {note}.\n",
        time.as_secs_f64() * 1e3,
        detach.as_secs_f64() * 1e3
    ))
}

/// What the tables are about, and where they were made.
fn heading() -> Result<String> {
    let mut text = String::from("# What one probe hit costs\n\n");
    write!(text, "{}", machine::made_by("bench"))?;
    writeln!(text, " Columns: the first instruction of the probed function. Cells: nanoseconds of the")?;
    writeln!(
        text,
        "thread's CPU time per call above the unprobed call, median of {ROUNDS} rounds, all in one process that stays the"
    )?;
    writeln!(
        text,
        "same. The kernel's probes are counted by perf, as `perf stat` does. Every count was checked to be exact.\n"
    )?;
    Ok(text)
}
