//! The measured process: it stays the same over all columns of a table.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sidestep_tests::kernel::{At, Uprobe, file_offset};
use sidestep_tests::process::Program;
use sidestep_tests::target;
use sidestep_tests::tool::{Report, Tracing};

/// Rounds of which the median counts.
pub const ROUNDS: usize = 7;
/// Before each round: what disturbs a machine for a moment is not to disturb most of a row's
/// rounds.
pub const PAUSE: Duration = Duration::from_millis(50);
/// A processor is calm if it needs at most so much of the least time that [`Bench::settle`] has
/// seen.
const CALM: f64 = 1.1;
/// A round that was disturbed is repeated so often at most,
const REPEATS: usize = 20;
/// and all of them together.
const ALL_REPEATS: usize = 1500;
/// Time of a round, about, in nanoseconds.
const ROUND_NS: f64 = 60e6;

/// The measured process.
pub struct Bench {
    program: Program,
    pub pid: String,
    pub path: PathBuf,
    /// Calls of each function since the last [`BTreeMap::clear`].
    pub calls: BTreeMap<&'static str, u64>,
    /// Threads that call the function; 0: the main thread, whose CPU time is measured.
    threads: u64,
    /// Picoseconds that the calibration takes at best.
    best: i64,
    /// Rounds, those that were disturbed all the same, and repeats.
    rounds: [usize; 3],
}

/// Hits per second, in millions: the median of some rounds, and their standard deviation.
#[derive(Debug, PartialEq)]
pub struct Rate {
    pub median: f64,
    pub deviation: f64,
}

impl Bench {
    /// Of the width that the thread is set to measure.
    pub fn start() -> Result<Bench> {
        let path = target("bench").context("no C compiler")?;
        let program = Program::start(&mut Command::new(&path));
        let pid = program.pid().to_string();
        let calls = BTreeMap::new();
        let mut bench = Bench { program, pid, path, calls, threads: 0, best: i64::MAX, rounds: [0; 3] };
        for _ in 0..500 {
            bench.settle();
        }
        Ok(bench)
    }

    /// Ends it; how many rounds were disturbed.
    pub fn finish(self) -> Result<String> {
        let [rounds, disturbed, repeats] = self.rounds;
        ensure!(self.program.finish().code() == 0, "the measured program did not end well");
        Ok(format!(
            "A round counts if a loop of additions and stores took at most {CALM} of its best time before and after it. {repeats} \
             rounds were repeated for that; of {rounds}, {disturbed} were measured all the same.\n"
        ))
    }

    /// The file of the program.
    pub fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// Goes to the next processor, and on if that is not calm. Machines are shared: where a thread
    /// of somebody else's runs on the same core, everything takes up to twice as long. Several
    /// threads take one processor each, and all of these have to be calm.
    fn settle(&mut self) -> bool {
        if self.threads > 1 {
            return self.is_calm();
        }
        let processors = processors();
        (0..processors).any(|i| {
            let which = (self.rounds[0] + i) % processors;
            self.program.ask(&format!("cpu {which}"));
            self.is_calm()
        })
    }

    fn is_calm(&mut self) -> bool {
        if self.threads <= 1 {
            return self.is_calm_here();
        }
        (0..self.threads as usize).all(|which| {
            self.program.ask(&format!("cpu {}", which % processors()));
            self.is_calm_here()
        })
    }

    fn is_calm_here(&mut self) -> bool {
        let now = self.program.ask("calm 1000000");
        self.best = self.best.min(now);
        now as f64 <= self.best as f64 * CALM
    }

    /// So many calls of each thread that a round of them takes about [`ROUND_NS`].
    pub fn calls_for(&mut self, name: &'static str) -> u64 {
        let mut calls = 2000;
        loop {
            let rough = self.median(name, calls, 3, Duration::ZERO).max(0.2) * self.threads.max(1) as f64;
            let fit = ((ROUND_NS / rough) as u64).clamp(2000, 20_000_000);
            // A short round of several threads is mostly the time until they have woken up.
            if fit <= 20 * calls {
                return fit;
            }
            calls *= 10;
        }
    }

    /// Median of `rounds` answers in nanoseconds per call, with a pause before each round: on a
    /// processor that is calm, if one is found; without a pause, wherever it is.
    pub fn median(&mut self, name: &'static str, calls: u64, rounds: usize, pause: Duration) -> f64 {
        self.answers(name, calls, rounds, pause)[rounds / 2] as f64 / 1000.0
    }

    /// The median of [`ROUNDS`] rounds of about [`ROUND_NS`] each.
    pub fn time(&mut self, name: &'static str) -> f64 {
        let calls = self.calls_for(name);
        self.median(name, calls, ROUNDS, PAUSE)
    }

    /// Calls of all threads of [`Bench::together`], by the clock on the wall.
    pub fn rate(&mut self, name: &'static str) -> Rate {
        let calls = self.calls_for(name);
        rate(&self.answers(name, calls, ROUNDS, PAUSE))
    }

    /// `work`, with `threads` threads that call.
    pub fn together<T>(&mut self, threads: u64, work: impl FnOnce(&mut Bench) -> T) -> T {
        self.set_threads(threads);
        let value = work(self);
        self.set_threads(0);
        value
    }

    fn set_threads(&mut self, threads: u64) {
        let set = self.program.ask(&format!("threads {threads}"));
        assert_eq!(set, threads as i64, "{threads} threads are too many");
        self.threads = threads;
    }

    /// In picoseconds, from the best one on.
    fn answers(&mut self, name: &'static str, calls: u64, rounds: usize, pause: Duration) -> Vec<i64> {
        let mut answers = Vec::new();
        for _ in 0..rounds {
            answers.push(if pause.is_zero() { self.round(name, calls) } else { self.calm_round(name, calls, pause) });
        }
        self.program.ask("cpu -1");
        answers.sort_unstable();
        answers
    }

    fn round(&mut self, name: &'static str, calls: u64) -> i64 {
        // One more to warm up.
        *self.calls.entry(name).or_default() += (calls + 1) * self.threads.max(1);
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

    /// `work` while `sidestep ARGS` traces the process. Each call must count `per_hit`, by what
    /// `counted` reads from the report, and nothing may be lost.
    pub fn traced<T>(
        &mut self,
        args: &[&str],
        per_hit: u64,
        counted: impl Fn(&Report) -> u64,
        work: impl FnOnce(&mut Bench) -> T,
    ) -> Result<(T, Report)> {
        let tracing = Tracing::start(&[args, &["-p", &self.pid]].concat());
        self.calls.clear();
        let value = work(self);
        let report = tracing.stop();
        let (expected, found) = (self.calls.values().sum::<u64>() * per_hit, counted(&report));
        ensure!(found == expected, "{args:?}: {found} instead of {expected}: {}", report.0);
        let lost = ["Lost ", " lost"].iter().any(|word| report.0.stderr.contains(word));
        ensure!(!lost, "{args:?}: {}", report.0.stderr);
        Ok((value, report))
    }

    /// The same under a script.
    pub fn scripted<T>(
        &mut self,
        script: &str,
        flags: &[&str],
        per_hit: u64,
        work: impl FnOnce(&mut Bench) -> T,
    ) -> Result<(T, Report)> {
        self.traced(&[flags, &["-f", "json", "-e", script]].concat(), per_hit, super::scripts::counted, work)
    }

    /// `work` under a probe of the kernel, `offset` bytes behind the start of a function. It is
    /// counted by perf, as `perf stat -e probe:…` does: a counter for each thread that calls, as
    /// the kernel fails to start a thread that would inherit one.
    pub fn under_kernel<T>(
        &mut self,
        name: &'static str,
        offset: u64,
        at: At,
        work: impl FnOnce(&mut Bench) -> T,
    ) -> Result<T> {
        let place = file_offset(&self.path, name) + offset;
        let attach = |tid: i32| Uprobe::attach_at(tid, &self.path, place, at).context(name);
        let mut probes = self.callers()?.into_iter().map(attach).collect::<Result<Vec<_>>>()?;
        self.calls.clear();
        let value = work(self);
        let hits = probes.iter_mut().map(Uprobe::hits).sum::<std::io::Result<u64>>()?;
        let calls = self.calls[name];
        ensure!(hits == calls, "the kernel counted {hits} of {calls} calls of {name}");
        Ok(value)
    }

    /// The threads that call functions.
    fn callers(&self) -> Result<Vec<i32>> {
        let main = self.program.pid();
        if self.threads == 0 {
            return Ok(vec![main]);
        }
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let tids = std::fs::read_dir(format!("/proc/{main}/task"))?.filter_map(name);
        Ok(tids.filter(|tid| *tid != main).collect())
    }
}

/// Processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Of picoseconds per call, in order.
fn rate(answers: &[i64]) -> Rate {
    let rates: Vec<f64> = answers.iter().map(|ps| 1e6 / (*ps).max(1) as f64).collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / rates.len() as f64;
    Rate { median: rates[rates.len() / 2], deviation: variance.sqrt() }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = if self.median < 10.0 { 3 } else { 1 };
        write!(f, "{:.digits$} ± {:.digits$}", self.median, self.deviation)
    }
}

/// Nanoseconds for a table.
pub fn number(ns: f64) -> String {
    if ns.abs() < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_per_second_and_their_deviation() {
        assert_eq!(rate(&[1000, 2000, 2000]), Rate { median: 500.0, deviation: (2.0f64 / 9.0).sqrt() * 500.0 });
        assert_eq!(rate(&[1000, 2000, 2000]).to_string(), "500.0 ± 235.7");
        assert_eq!(rate(&[2_500_000]).to_string(), "0.400 ± 0.000");
    }
}
