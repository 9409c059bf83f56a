//! Exact counts in programs of every linkage, with threads, recursion, arguments.

use std::path::PathBuf;
use std::process::Command;

use sidestep_tests::process::Program;
use sidestep_tests::tool::{during, with_command};
use sidestep_tests::{Snapshot, target};

use super::registers::as_target;

/// Every build of `counts.c`.
const BUILDS: &[&str] = &[
    "counts",
    "counts-ibt",
    "counts-O0",
    "counts-no-pie",
    "counts-static",
    "counts-static-pie",
    "counts-musl",
    "counts-musl-dynamic",
];

/// Sum of `3i + 1` over the first n numbers: what `work n` answers, in a `long`.
pub fn work(n: i64) -> i64 {
    as_target(3 * n * (n - 1) / 2 + n)
}

/// Calls of `fib` by `fib n`: `2 F(n+1) - 1`.
fn fib_calls(n: u32) -> u64 {
    let (mut a, mut b) = (0, 1);
    for _ in 0..=n {
        (a, b) = (b, a + b);
    }
    2 * a - 1
}

fn start(path: &PathBuf) -> (Program, String) {
    let program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    (program, pid)
}

pub fn attached(build: &str) {
    let Some(path) = target(build) else { return };
    let (mut program, pid) = start(&path);
    assert_eq!(program.ask("work 10"), work(10));
    let before = Snapshot::of(program.pid());
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [&["funccount", "-p", &pid], flags, &["leaf"]].concat();
        let (report, answers) = during(&args, || (program.ask("work 12345"), program.ask("fib 10")));
        assert_eq!(answers, (work(12345), 55), "{build} {flags:?}");
        report.assert_count("leaf", 12345);
        before.assert_same(&Snapshot::of(program.pid()));

        let args = [&["funclatency", "-p", &pid], flags, &["fib"]].concat();
        let (report, answer) = during(&args, || program.ask("fib 15"));
        assert_eq!(answer, 610, "{build} {flags:?}");
        assert_eq!(report.latencies(), fib_calls(15), "{build} {flags:?}: {}", report.0);
        assert_eq!(report.histogram_sum(), fib_calls(15), "{build} {flags:?}: {}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    assert_eq!(program.ask("work 10"), work(10));
    program.finish().ok();
}

pub fn spawned(build: &str) {
    let Some(path) = target(build) else { return };
    let path = path.to_str().expect("UTF-8");
    let (output, report) = with_command(&["funccount", "leaf"], &[path, "work", "4321", "7"]);
    assert_eq!((output.code(), output.stdout), (7, format!("{}\n", work(4321))), "{build}: {}", report.0);
    report.assert_count("leaf", 4321);
    let (output, report) = with_command(&["funclatency", "fib"], &[path, "fib", "16", "8"]);
    assert_eq!((output.code(), output.stdout.as_str()), (8, "987\n"), "{build}: {}", report.0);
    assert_eq!(report.latencies(), fib_calls(16), "{build}: {}", report.0);
}

macro_rules! each_build {
    ($($name:ident = $index:literal,)*) => {
        mod attach {
            $(#[test] fn $name() { super::attached(super::BUILDS[$index]) })*
        }
        mod command {
            $(#[test] fn $name() { super::spawned(super::BUILDS[$index]) })*
        }
    };
}
each_build! {
    dynamic = 0, ibt = 1, unoptimized = 2, no_pie = 3, static_glibc = 4, static_pie = 5, static_musl = 6, musl = 7,
}

/// Chromium has reserved the first 4 GiB: "no free address space within 2 GiB of 0x20000000".
#[test]
fn the_first_4_gib_were_reserved_by_the_program() {
    let Some(path) = target("counts") else { return };
    let (mut program, pid) = start(&path);
    assert_eq!(program.ask("low 0"), 1, "the first 4 GiB are free in a program that can lie anywhere");
    let all: [&[&str]; 3] = [&[], &["--no-optimize"], &["--interpret"]];
    for flags in all {
        let args = [&["funccount", "-p", &pid], flags, &["leaf"]].concat();
        let (report, answer) = during(&args, || program.ask("threads 500"));
        assert_eq!(answer, as_target(64 * work(500)), "{flags:?}");
        report.assert_count("leaf", 64 * 500);
    }
    let before = Snapshot::of(program.pid());
    for flags in all {
        let args = [&["funclatency", "-p", &pid], flags, &["fib"]].concat();
        let (report, answer) = during(&args, || program.ask("fib 15"));
        assert_eq!((answer, report.latencies()), (610, fib_calls(15)), "{flags:?}: {}", report.0);
        let script = "u:leaf { @first[arg0] = count() } ur:leaf { @last[retval] = count(); @ = sum(retval) }";
        let args = [&["-f", "json", "-p", &pid], flags, &["-e", script]].concat();
        let (report, answer) = during(&args, || program.ask("work 3"));
        assert_eq!(answer, work(3), "{flags:?}");
        for line in [r#"{"@": 12}"#, r#"{"@first": {"0": 1, "1": 1, "2": 1}}"#] {
            assert!(report.0.stdout.contains(line), "{flags:?}: {}", report.0);
        }
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
}

#[test]
pub fn sixty_four_threads() {
    for build in ["counts", "counts-musl"] {
        let Some(path) = target(build) else { return };
        let (mut program, pid) = start(&path);
        for flags in [&[][..], &["--no-optimize"]] {
            let args = [&["funccount", "-p", &pid], flags, &["leaf"]].concat();
            let n = if flags.is_empty() { 20_000 } else { 500 };
            let (report, answer) = during(&args, || program.ask(&format!("threads {n}")));
            assert_eq!(answer, as_target(64 * work(n)));
            report.assert_count("leaf", 64 * n as u64);
        }
        let (report, answer) = during(&["funclatency", "-p", &pid, "leaf"], || program.ask("threads 5000"));
        assert_eq!(answer, as_target(64 * work(5000)));
        assert_eq!(report.latencies(), 64 * 5000, "{}", report.0);
        program.finish().ok();
    }
}

/// Each round starts 64 new threads: what a probe keeps per thread must be used again.
#[test]
pub fn threads_come_and_go() {
    let Some(path) = target("counts") else { return };
    let (mut program, pid) = start(&path);
    let (report, answers) =
        during(&["funclatency", "-p", &pid, "leaf"], || (0..20).map(|_| program.ask("threads 10")).collect::<Vec<_>>());
    assert_eq!(answers, [64 * work(10); 20]);
    assert_eq!(report.latencies(), 20 * 64 * 10, "{}", report.0);
    program.finish().ok();
}

#[test]
pub fn deep_recursion_with_return_probes() {
    let Some(path) = target("counts") else { return };
    let (mut program, pid) = start(&path);
    let args = ["funclatency", "-F", "-p", &pid, "-r", "^(even|odd|fib)$"];
    let (report, answer) = during(&args, || program.ask("even 20000"));
    assert_eq!(answer, 1);
    // 10001 calls of even, 10000 of odd, each with one of fib.
    assert_eq!(report.histogram_sum(), 10_001 + 10_000 + 10_000, "{}", report.0);
    program.finish().ok();
}

#[test]
pub fn several_functions_by_glob_and_expression() {
    let Some(path) = target("counts") else { return };
    let (mut program, pid) = start(&path);
    let (report, _) =
        during(&["funccount", "-p", &pid, "[ls]e[av]*"], || (program.ask("work 11"), program.ask("seven 12")));
    report.assert_count("leaf", 11);
    report.assert_count("seven", 12);
    let (report, _) = during(&["funccount", "-p", &pid, "-r", "^(leaf|real)$"], || {
        (program.ask("work 13"), program.ask("real 14"), program.ask("seven 15"))
    });
    report.assert_count("leaf", 13);
    report.assert_count("real", 14);
    report.assert_count("seven", 0);
    program.finish().ok();
}

#[test]
pub fn trace_shows_integers_and_strings() {
    let Some(path) = target("counts") else { return };
    for flags in [&[][..], &["--no-optimize"]] {
        let (mut program, pid) = start(&path);
        let specs = ["text \"%s %d\", arg0, arg1", "seven \"%d %d %d %d %d %d\", arg0, arg1, arg2, arg3, arg4, arg5"];
        let args = [&["trace", "-p", &pid], flags, &specs].concat();
        let (report, answers) = during(&args, || (program.ask("text 3"), program.ask("seven 2")));
        assert_eq!(answers, (3 * 6 - 3, 2 * 21 + 1));
        let tails: Vec<_> = report.records().iter().map(|w| w[w.len() - 3..].join(" ")).collect();
        assert_eq!(tails, ["line 0 -1", "line 1 -1", "line 2 -1", "3 4 5", "3 4 5"], "{}", report.0);
        for record in report.records() {
            assert_eq!((record[0], record[1]), (pid.as_str(), pid.as_str()), "PID and TID: {}", report.0);
            assert!(path.to_string_lossy().contains(record[2]), "COMM: {}", report.0);
        }
        program.finish().ok();
    }
}

#[test]
pub fn trace_shows_return_values() {
    let Some(path) = target("counts") else { return };
    let (mut program, pid) = start(&path);
    let (report, _) = during(&["trace", "-p", &pid, "r:leaf \"=%d\", retval"], || program.ask("work 4"));
    let tails: Vec<_> = report.records().iter().map(|w| w[w.len() - 1].to_owned()).collect();
    assert_eq!(tails, ["=1", "=4", "=7", "=10"], "{}", report.0);
    program.finish().ok();
}

/// Every record is either printed or counted as lost.
#[test]
pub fn trace_loses_nothing_silently() {
    let Some(path) = target("counts") else { return };
    let (mut program, pid) = start(&path);
    let (report, answer) = during(&["trace", "-p", &pid, "leaf \"%d\", arg0"], || program.ask("work 200000"));
    assert_eq!(answer, work(200_000));
    let printed = report.records().len() as u64;
    let total = report.0.stderr.lines().rev().find(|l| l.to_lowercase().contains("lost"));
    let lost = total.and_then(|l| l.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).next());
    assert_eq!(printed + lost.unwrap_or(0), 200_000, "printed {printed}, stderr: {}", report.0.stderr);
    program.finish().ok();
}

/// Floating point arguments and results are in registers that a handler must not touch.
#[test]
pub fn floating_point_survives() {
    let Some(path) = target("counts") else { return };
    let (mut program, pid) = start(&path);
    for args in [["funccount", "-p", &pid, "real"], ["funclatency", "-p", &pid, "real"], ["trace", "-p", &pid, "real"]]
    {
        let (_, answer) = during(&args, || program.ask("real 1001"));
        assert_eq!(answer, 1001, "{args:?}");
    }
    program.finish().ok();
}
