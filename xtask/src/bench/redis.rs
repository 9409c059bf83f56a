//! How much slower redis-server is with all its functions probed.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::redis::{Redis, missing};
use sidestep_tests::tool::{Tracing, sidestep};

use super::program::ROUNDS;

/// Requests of a round, half of them SET and half of them GET.
const REQUESTS: u64 = 400_000;
/// Requests of one client that are under way at the same time.
const PIPELINE: &str = "16";

/// A row: its name, the arguments of `sidestep`, and by which factor the server may get slower.
/// `ALL` stands for all functions of the server.
const ROWS: [(&str, &[&str], f64); 4] = [
    ("entries: `funccount`", &["funccount", "ALL"], 1.25),
    ("returns: `ur { @ = count() }`", &["-f", "json", "-e", "ur:ALL { @ = count() }"], 1.4),
    ("latencies: `ur { @ = hist(latency()) }`", &["-f", "json", "-e", "ur:ALL { @ = hist(latency()) }"], 2.5),
    ("latencies: `funclatency`", &["funclatency", "ALL"], 2.5),
];

/// What a round has taken of the server, in nanoseconds per request.
struct Round {
    /// By the clock on the wall.
    wall: f64,
    /// Of the server's CPU time.
    cpu: f64,
}

/// Measures all. Rounds that are probed and rounds that are not take turns.
pub fn redis() -> Result<String> {
    if let Some(program) = missing() {
        eprintln!("SKIPPED, NOT MEASURED: redis: no {program}: run `cargo xtask setup`");
        return Ok(format!("Not measured: no {program}.\n"));
    }
    let redis = Redis::start();
    round(&redis)?;
    let mut text = String::from(
        "| all functions of redis-server | functions | hits per request | slower by the factor | at most | in its CPU time |\n\
         |---|---:|---:|---:|---:|---:|\n",
    );
    let mut unprobed = Vec::new();
    for (name, args, at_most) in ROWS {
        let (mut wall, mut cpu, mut hits, mut functions) = (Vec::new(), Vec::new(), 0, 0);
        for _ in 0..ROUNDS {
            let before = round(&redis)?;
            let args: Vec<String> = args.iter().map(|arg| arg.replace("ALL", "redis-server:*")).collect();
            let pid = redis.pid();
            let args: Vec<&str> = args.iter().map(String::as_str).chain(["-p", &pid]).collect();
            let tracing = Tracing::start(&args);
            let during = round(&redis);
            let counted = hits_of(&redis);
            tracing.stop();
            let during = during?;
            (functions, hits) = counted?;
            wall.push(during.wall / before.wall);
            cpu.push(during.cpu / before.cpu);
            unprobed.push(before);
        }
        let per_request = hits as f64 / REQUESTS as f64;
        let [wall, cpu] = [wall, cpu].map(median);
        writeln!(text, "| {name} | {functions} | {per_request:.0} | {wall:.2} | {at_most} | {cpu:.2} |")?;
    }
    let [wall, cpu] =
        [|round: &Round| round.wall, |round: &Round| round.cpu].map(|of| median(unprobed.iter().map(of).collect()));
    writeln!(
        text,
        "\nUnprobed: {:.0} requests per second, {cpu:.0} ns of CPU time per request; `redis-benchmark -P {PIPELINE}`, half SET, half \
         GET, {REQUESTS} requests a round. Medians of {ROUNDS} rounds, each beside an unprobed one. The calls of `getCommand` and \
         `setCommand` were checked to be exact, and no hit was missed.",
        1e9 / wall
    )?;
    Ok(text)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn round(redis: &Redis) -> Result<Round> {
    let before = cpu_time(redis)?;
    let each = (REQUESTS / 2).to_string();
    let printed = redis.benchmark(&["-P", PIPELINE, "-n", &each]);
    let cpu = cpu_time(redis)? - before;
    // `SET: 123456.00 requests per second, p50=0.5 msec`, after the progress of it.
    let rate = |test: &str| {
        let line = printed.rsplit(['\r', '\n']).find(|line| line.contains(test) && line.contains(" per second"));
        let rate = line.and_then(|line| line.split(": ").nth(1)?.split(' ').next()?.parse::<f64>().ok());
        rate.with_context(|| format!("no {test} in {printed}"))
    };
    // Both make the same number of requests.
    let wall = (1e9 / rate("SET")? + 1e9 / rate("GET")?) / 2.0;
    Ok(Round { wall, cpu: cpu as f64 / REQUESTS as f64 })
}

/// Nanoseconds that the main thread has run.
fn cpu_time(redis: &Redis) -> Result<u64> {
    let path = format!("/proc/{0}/task/{0}/schedstat", redis.pid());
    let text = std::fs::read_to_string(&path).context(path)?;
    Ok(text.split(' ').next().context("empty")?.parse()?)
}

/// Functions that are probed, and hits of all of them. Those of commands must be exact.
fn hits_of(redis: &Redis) -> Result<(usize, u64)> {
    let status = run(&mut sidestep(&["status", "-f", "json", "-p", &redis.pid()]), LIMIT).ok().stdout;
    let number = |line: &str, name: &str| -> Option<u64> {
        let rest = line.split_once(&format!("\"{name}\": "))?.1;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let probes: Vec<&str> = status.lines().filter(|line| line.contains("\"type\": \"probe\"")).collect();
    let sum = |name: &str| probes.iter().filter_map(|line| number(line, name)).sum::<u64>();
    for command in ["setCommand", "getCommand"] {
        let line = probes.iter().find(|line| line.contains(&format!("\"symbol\": \"{command}\"")));
        let hits = line.and_then(|line| number(line, "hits"));
        ensure!(hits == Some(REQUESTS / 2), "{command}: {hits:?} instead of {}", REQUESTS / 2);
    }
    ensure!(sum("missed") == 0, "{} hits were missed", sum("missed"));
    Ok((probes.len(), sum("hits")))
}
