//! `--test` and `--bench`: the blocks of a script that are about the script itself.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use sidestep_engine::Maps;
use sidestep_lang::script::ast::Provider;

use super::run::Script;
use crate::flags::Format;
use crate::out::json;
use crate::out::sink::Sink;

/// How long a benchmark is repeated.
const BENCH: Duration = Duration::from_millis(1);

/// A test that was run.
struct Test {
    name: String,
    took: Duration,
    passed: bool,
    output: String,
}

/// Runs each test once.
pub fn test(script: &mut Script, maps: Maps<'_>, sink: &mut Sink) -> anyhow::Result<ExitCode> {
    let tests = script.named(Provider::Test);
    if tests.is_empty() {
        anyhow::bail!("the script has no test probes: test:NAME {{ … }}");
    }
    let mut done = Vec::new();
    if !sink.json() {
        sink.text(&format!("{} Running {}.\n", green("[==========]"), count(tests.len())))?;
    }
    for (name, program) in tests {
        if !sink.json() {
            sink.text(&format!("{} {name}\n", green("[ RUN      ]")))?;
        }
        let begun = Instant::now();
        let output = captured(|sink| script.run_alone(program, maps, sink))?;
        let test = Test { name, took: begun.elapsed(), passed: script.exit.take().unwrap_or(0) == 0, output };
        if !sink.json() {
            if !test.passed {
                sink.text(&test.output)?;
            }
            sink.text(&format!("{} {} ({} us)\n", test.verdict(), test.name, test.took.as_micros()))?;
        }
        done.push(test);
    }
    let failed: Vec<&Test> = done.iter().filter(|test| !test.passed).collect();
    if sink.json() {
        for test in &done {
            let (duration, passed) = (test.took.as_nanos().to_string(), test.passed.to_string());
            let members = [("duration", duration), ("passed", passed), ("output", json::string(&test.output))];
            sink.line(&json::line("test_result", json::object([(&test.name, json::object(members))])))?;
        }
    } else {
        sink.text(&format!("{} {} ran.\n", green("[==========]"), count(done.len())))?;
        sink.text(&format!("{} {}.\n", green("[  PASSED  ]"), count(done.len() - failed.len())))?;
        if !failed.is_empty() {
            sink.text(&format!("{} {}, listed below:\n", red("[  FAILED  ]"), count(failed.len())))?;
            for test in &failed {
                sink.text(&format!("{} {}\n", test.verdict(), test.name))?;
            }
        }
    }
    sink.end()?;
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Repeats each benchmark for a while.
pub fn bench(script: &mut Script, maps: Maps<'_>, sink: &mut Sink) -> anyhow::Result<ExitCode> {
    let benchmarks = script.named(Provider::Bench);
    if benchmarks.is_empty() {
        anyhow::bail!("the script has no bench probes: bench:NAME {{ … }}");
    }
    let mut rows = Vec::new();
    for (name, program) in benchmarks {
        let (begun, mut rounds) = (Instant::now(), 0_u64);
        captured(|sink| {
            while begun.elapsed() < BENCH {
                script.run_alone(program, maps, sink)?;
                script.exit = None;
                rounds += 1;
            }
            Ok(())
        })?;
        rows.push((name, begun.elapsed().as_nanos() as u64 / rounds.max(1), rounds));
    }
    if sink.json() {
        let row = |(name, average, rounds): &(String, u64, u64)| {
            let members = [("average", average.to_string()), ("iters", rounds.to_string())];
            (name.clone(), json::object(members))
        };
        for benchmark in &rows {
            sink.line(&json::line("benchmark_result", json::object([row(benchmark)])))?;
        }
    } else {
        sink.text(&format!("{:<41}{:<15}Iterations\n{}\n", "Benchmark", "Time(ns)", "-".repeat(66)))?;
        for (name, average, rounds) in &rows {
            sink.text(&format!("{name:<41}{average:<15}{rounds}\n"))?;
        }
    }
    sink.end()?;
    Ok(ExitCode::SUCCESS)
}

/// What is printed while something runs.
fn captured(run: impl FnOnce(&mut Sink) -> io::Result<()>) -> anyhow::Result<String> {
    let file = Scrap(std::env::temp_dir().join(format!("sidestep-test-{}", std::process::id())));
    let mut sink = Sink::open(Some(&file.0), Format::Text, true)?;
    run(&mut sink)?;
    sink.end()?;
    Ok(String::from_utf8_lossy(&std::fs::read(&file.0)?).into_owned())
}

/// A file that goes when it is no longer needed.
struct Scrap(PathBuf);

impl Drop for Scrap {
    fn drop(&mut self) {
        // Somebody else may have removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Test {
    fn verdict(&self) -> String {
        if self.passed { green("[       OK ]") } else { red("[  FAILED  ]") }
    }
}

fn count(tests: usize) -> String {
    if tests == 1 { "1 test".to_owned() } else { format!("{tests} tests") }
}

fn green(text: &str) -> String {
    format!("\x1b[32m{text}\x1b[0m")
}

fn red(text: &str) -> String {
    format!("\x1b[31m{text}\x1b[0m")
}
