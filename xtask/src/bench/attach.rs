//! The time of an attach to very many functions.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use sidestep_tests::process::Program;
use sidestep_tests::target;
use sidestep_tests::tool::Tracing;

use super::program::ROUNDS;

/// Over a thousand functions of libcrypto 3.
const MANY: &str = "libcrypto:^(EVP_|EC)";

/// The time until the tool traces over a thousand functions, from the start of its process.
pub fn attach() -> Result<String> {
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
    let heading = report.0.stdout.lines().next().unwrap_or_default();
    let functions = heading.split_whitespace().nth(1).unwrap_or("?");
    Ok(format!(
        "Attach to {functions} functions of libcrypto (`-r '{MANY}'`): {:.0} ms from the start of `sidestep` until it \
         traces, detach and report {:.0} ms; median of {ROUNDS} runs. Of this attach: {}.\n",
        time.as_secs_f64() * 1e3,
        detach.as_secs_f64() * 1e3,
        super::scripts::note(report)
    ))
}
