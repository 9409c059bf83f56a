//! The tool under test: how it is run, and how its output is read.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::build::{checkout, target_dir};
use crate::process::{LIMIT, Line, Output, Running, run};

/// A command that runs `sidestep`: the program named by `SIDESTEP_BIN`, or else the release build
/// of this checkout.
///
/// # Panics
/// If the build fails.
pub fn sidestep(args: &[&str]) -> Command {
    let mut command = Command::new(path());
    command.args(args);
    command
}

thread_local! {
    static IS_32_BIT: Cell<bool> = const { Cell::new(false) };
}

/// From here on, the test that runs in this thread is about 32-bit programs: its targets are
/// compiled as such, and [`sidestep`] is the build for them, named by `SIDESTEP_BIN_32` or else the
/// i686 release build of this checkout.
pub fn use_32_bit() {
    IS_32_BIT.set(true);
}

/// Whether a test is about 32-bit programs, for the threads that it starts.
#[derive(Clone, Copy)]
pub struct Width(bool);

impl Width {
    /// That of the test in this thread.
    pub fn of_test() -> Width {
        Width(is_32_bit())
    }

    /// From here on, this thread belongs to that test.
    pub fn set(self) {
        IS_32_BIT.set(self.0);
    }
}

/// Is this test about 32-bit programs?
pub fn is_32_bit() -> bool {
    IS_32_BIT.get()
}

/// Where the program is.
pub fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    static PATH_32: OnceLock<PathBuf> = OnceLock::new();
    let (path, name, triple) = match is_32_bit() {
        false => (&PATH, "SIDESTEP_BIN", None),
        true => (&PATH_32, "SIDESTEP_BIN_32", Some("i686-unknown-linux-gnu")),
    };
    path.get_or_init(|| std::env::var_os(name).map_or_else(|| build(triple), PathBuf::from))
}

fn build(triple: Option<&str>) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let target = target_dir();
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--locked", "--package", "sidestep-cli", "--target-dir"]).arg(&target);
    if let Some(triple) = triple {
        command.args(["--target", triple]);
    }
    run(command.current_dir(checkout()), Duration::from_secs(900)).ok();
    target.join(triple.unwrap_or_default()).join("release/sidestep")
}

/// Does a line say that the tool traces from now on?
fn is_heading(line: &str) -> bool {
    let headings = ["Tracing", "TIME ", "PID ", "CPU ", "Running ", "Attaching to pid"];
    headings.iter().any(|heading| line.starts_with(heading))
        || line.contains("TASK-TID")
        || line.contains("attached_probes")
}

/// What the tool writes while it runs.
pub(crate) struct Written {
    lines: Receiver<Line>,
    stdout: String,
    stderr: String,
}

impl Written {
    /// Starts a command.
    pub(crate) fn by(command: &mut Command) -> (Running, Written) {
        let (running, lines) = Running::start_lines(command);
        (running, Written { lines, stdout: String::new(), stderr: String::new() })
    }

    /// Reads on until a line says that the tool traces, waiting so long for each line.
    pub(crate) fn heading(&mut self, limit: Duration) -> Result<(), RecvTimeoutError> {
        loop {
            let line = self.lines.recv_timeout(limit)?;
            if self.note(line) {
                return Ok(());
            }
        }
    }

    /// Reads the rest, waiting as long for each line as `limit` says then.
    pub(crate) fn rest(&mut self, limit: impl Fn() -> Duration) {
        while let Ok(line) = self.lines.recv_timeout(limit()) {
            self.note(line);
        }
    }

    /// The same with how it ended.
    pub(crate) fn output(self, output: Output) -> Output {
        Output { stdout: self.stdout, stderr: self.stderr, ..output }
    }

    fn note(&mut self, line: Line) -> bool {
        let (line, all) = match line {
            Line::Out(line) => (line, &mut self.stdout),
            Line::Err(line) => (line, &mut self.stderr),
        };
        all.push_str(&line);
        all.push('\n');
        is_heading(&line)
    }
}

/// A run of `sidestep` beside its target: attached, and going on until it is stopped.
pub struct Tracing {
    running: Running,
    written: Written,
}

impl Tracing {
    /// Starts `sidestep ARGS` and waits until it says that it is tracing.
    ///
    /// # Panics
    /// If it ends before that, or takes too long.
    #[track_caller]
    pub fn start(args: &[&str]) -> Tracing {
        let mut tracing = Tracing::launch(args);
        if tracing.wait_for_heading() {
            return tracing;
        }
        panic!("sidestep {args:?} did not attach: {}", tracing.output())
    }

    /// Waits until it traces; false if it ends instead.
    ///
    /// # Panics
    /// If it takes too long.
    #[track_caller]
    pub fn wait_for_heading(&mut self) -> bool {
        match self.written.heading(LIMIT) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => panic!("sidestep did not attach in {LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Starts it without waiting for anything.
    pub fn launch(args: &[&str]) -> Tracing {
        let (running, written) = Written::by(&mut sidestep(args));
        Tracing { running, written }
    }

    /// Ctrl-C, and its report.
    #[track_caller]
    pub fn stop(self) -> Report {
        self.running.signal(libc::SIGINT);
        self.end()
    }

    /// Waits until it ends by itself, without an error.
    #[track_caller]
    pub fn end(self) -> Report {
        Report(self.output().ok())
    }

    /// Waits until it ends by itself, one way or the other.
    pub fn output(mut self) -> Output {
        self.written.rest(|| LIMIT);
        self.written.output(self.running.finish(LIMIT))
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        self.running.signal(signal);
    }

    /// SIGKILL.
    pub fn kill(self) {
        self.running.signal(libc::SIGKILL);
        let _ = self.running.finish(LIMIT);
    }
}

/// Attaches by `sidestep ARGS`, lets `work` run in the meantime, stops.
#[track_caller]
pub fn during<T>(args: &[&str], work: impl FnOnce() -> T) -> (Report, T) {
    let tracing = Tracing::start(args);
    let value = work();
    (tracing.stop(), value)
}

/// Runs `sidestep TOOL ARGS -o FILE PATTERN… -- COMMAND`: what the command itself did, and the
/// report from the file.
#[track_caller]
pub fn with_command(args: &[&str], command: &[&str]) -> (Output, Report) {
    let dir = target_dir().join("test-targets");
    std::fs::create_dir_all(&dir).expect("target directory is writable");
    let thread = std::thread::current().name().unwrap_or("main").replace(':', "-");
    let file = dir.join(format!("report.{}.{thread}", std::process::id()));
    let file = file.to_str().expect("UTF-8");
    let _ = std::fs::remove_file(file);
    let args = [&args[..1], &["-o", file], &args[1..], &["--"], command].concat();
    let output = run(&mut sidestep(&args), LIMIT);
    let written = std::fs::read_to_string(file).unwrap_or_default();
    let _ = std::fs::remove_file(file);
    let report = Report(Output { status: output.status, stdout: written, stderr: output.stderr.clone() });
    (output, report)
}

/// The rows `@NAME[KEY]: NUMBER` of a map, and `@NAME: NUMBER` with an empty key. No key is there
/// twice.
#[track_caller]
pub fn rows(report: &str, map: &str) -> BTreeMap<String, u64> {
    let mut rows = BTreeMap::new();
    for line in report.lines() {
        let Some((key, number)) = line.strip_prefix(map).and_then(|line| line.rsplit_once(": ")) else { continue };
        let key = key.trim_start_matches('[').trim_end_matches(']').to_owned();
        let number = number.parse().unwrap_or_else(|_| panic!("{line}"));
        assert_eq!(rows.insert(key, number), None, "twice: {line} in {report}");
    }
    rows
}

/// What a run printed.
pub struct Report(pub Output);

impl Report {
    /// The table of `funccount`: the last word of a line is a count, what stands before it a
    /// function.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let row = |line: &str| {
            let (name, count) = line.trim_end().rsplit_once(char::is_whitespace)?;
            Some((name.trim().to_owned(), count.parse().ok()?))
        };
        self.0.stdout.lines().filter_map(row).collect()
    }

    /// The count of one function; 0 if it is not in the table, as zero rows are left out.
    pub fn count(&self, function: &str) -> u64 {
        self.counts().get(function).copied().unwrap_or(0)
    }

    /// How many hits the tool says that it has missed.
    ///
    /// # Panics
    /// If it says something else than a number.
    pub fn missed(&self) -> u64 {
        let total = self.0.stderr.lines().find_map(|line| line.strip_prefix("Total missed hit count: "));
        total.map_or(0, |text| text.split(' ').next().and_then(|n| n.parse().ok()).expect("a count"))
    }

    /// Asserts the count of one function.
    ///
    /// # Panics
    /// If it is another.
    #[track_caller]
    pub fn assert_count(&self, function: &str, expected: u64) {
        assert_eq!(self.count(function), expected, "count of {function}: {}", self.0);
    }

    /// Number of latencies in a histogram, from `avg = …, total: …, count: N`.
    ///
    /// # Panics
    /// If there is no such line.
    #[track_caller]
    pub fn latencies(&self) -> u64 {
        self.number("count:").unwrap_or_else(|| panic!("no count: {}", self.0))
    }

    /// The median in nanoseconds, from `p50 = N`.
    ///
    /// # Panics
    /// If there is no such line.
    #[track_caller]
    pub fn median(&self) -> u64 {
        self.number("p50 =").unwrap_or_else(|| panic!("no median: {}", self.0))
    }

    /// The sum of a histogram's rows `LOW -> HIGH : COUNT |***|`.
    pub fn histogram_sum(&self) -> u64 {
        let row =
            |line: &str| line.split_once("->")?.1.split(':').nth(1)?.split('|').next()?.trim().parse::<u64>().ok();
        self.0.stdout.lines().filter_map(row).sum()
    }

    /// The lines of `trace`, split into words: process, thread, name, function, and the message.
    pub fn records(&self) -> Vec<Vec<&str>> {
        let lines = self.0.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.filter(|words| words.len() >= 4 && words[..2].iter().all(|word| word.parse::<u32>().is_ok())).collect()
    }

    fn number(&self, after: &str) -> Option<u64> {
        let rest = self.0.stdout.lines().rev().find_map(|l| Some(l.split_once(after)?.1))?.trim_start();
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }
}
