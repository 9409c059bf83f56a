//! New processes out of a probed one: they are not counted, and they come to no harm.

use std::process::Command;

use sidestep_tests::process::Program;
use sidestep_tests::tool::{Report, Tracing, during, with_command};
use sidestep_tests::{Snapshot, target};

use super::counts::work;

fn forked(command: &str, functions: &str, answer: i64, check: impl Fn(&str, &Report)) {
    let Some(path) = target("spawn") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    assert_eq!(program.ask(command), answer);
    let before = Snapshot::of(program.pid());
    for tool in ["funccount", "funclatency"] {
        for flags in [&[][..], &["--no-optimize"]] {
            let args = [&[tool], flags, &["-p", &pid, "-r", functions]].concat();
            let (report, got) = during(&args, || program.ask(command));
            assert_eq!(got, answer, "{tool} {flags:?}: {}", report.0);
            check(tool, &report);
            before.assert_same(&Snapshot::of(program.pid()));
        }
    }
    program.finish().ok();
}

#[test]
pub fn fork() {
    forked("fork 25", "^(leaf|forking|work)$", 25, |tool, report| {
        if tool == "funccount" {
            // The children's 25 × 25 calls of leaf are theirs.
            report.assert_count("leaf", 25);
            report.assert_count("forking", 25);
        } else {
            assert_eq!(report.latencies(), 50, "{}", report.0);
        }
    });
}

#[test]
pub fn posix_spawn() {
    forked("spawn 25", "^spawning$", 25, |tool, report| {
        let count = if tool == "funccount" { report.count("spawning") } else { report.latencies() };
        assert_eq!(count, 25, "{}", report.0);
    });
}

#[test]
pub fn vfork() {
    forked("vfork 25", "^(vforking|leaf)$", 25, |tool, report| {
        if tool == "funccount" {
            report.assert_count("vforking", 25);
        }
    });
}

/// Functions of the C library that return twice, or on another stack.
#[test]
pub fn the_functions_that_make_processes() {
    let Some(path) = target("spawn") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    for (function, command) in [("fork", "fork 10"), ("posix_spawn", "spawn 10"), ("vfork", "vfork 10")] {
        let pattern = format!("libc:{function}");
        let (report, answer) = during(&["funccount", "-p", &pid, &pattern], || program.ask(command));
        assert_eq!(answer, 10, "{function}: {}", report.0);
        // posix_spawn is there in two versions, of which one is called.
        let versions = report.counts().into_iter().filter(|(name, _)| name.split(' ').next() == Some(function));
        assert_eq!(versions.map(|(_, count)| count).sum::<u64>(), 10, "{function}: {}", report.0);
        if function != "vfork" {
            let (report, answer) = during(&["funclatency", "-p", &pid, &pattern], || program.ask(command));
            assert_eq!(answer, 10, "{function}: {}", report.0);
            assert_eq!(report.latencies(), 10, "{function}: {}", report.0);
        }
    }
    program.finish().ok();
}

/// A latency probe on vfork is either refused or right: its child must not run on a frame that is
/// not its own.
#[test]
pub fn latency_of_vfork_does_no_harm() {
    let Some(path) = target("spawn") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let mut tracing = Tracing::launch(&["funclatency", "-p", &pid, "libc:vfork"]);
    tracing.wait_for_heading();
    assert_eq!(program.ask("vfork 20"), 20);
    tracing.signal(libc::SIGINT);
    tracing.output();
    assert_eq!(program.ask("vfork 20"), 20);
    program.finish().ok();
}

#[test]
pub fn exec_by_the_target() {
    let Some(path) = target("spawn") else { return };
    for flags in [&[][..], &["--no-optimize"]] {
        let mut program = Program::start(&mut Command::new(&path));
        let pid = program.pid().to_string();
        let tracing = Tracing::start(&[&["funccount"], flags, &["-p", &pid, "leaf"]].concat());
        assert_eq!(program.ask("exec 50"), work(50));
        let output = program.finish();
        assert_eq!(output.code(), 3, "{output}");
        let report = tracing.end();
        report.assert_count("leaf", 10);
    }
}

#[test]
pub fn exec_by_a_command() {
    let Some(path) = target("spawn") else { return };
    let path = path.to_str().expect("UTF-8");
    let (output, report) = with_command(&["funccount", "leaf"], &[path, "exec", "50"]);
    assert_eq!((output.code(), output.stdout), (3, format!("{}\n", work(50))), "{}", report.0);
    report.assert_count("leaf", 10);
}
