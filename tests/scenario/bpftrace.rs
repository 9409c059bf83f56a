//! What bpftrace prints for the same script on the same program: `tests/specs/bpftrace.txt`.

use std::process::Command;

use sidestep_tests::build::{checkout, installed};
use sidestep_tests::process::{LIMIT, Output, run};
use sidestep_tests::target;
use sidestep_tests::tool::path;

/// The release of which the file speaks.
const RELEASE: &str = "bpftrace v0.17.";

/// Is it here, and may it work?
fn is_there() -> bool {
    let mut version = Command::new("bpftrace");
    let mut empty = Command::new("bpftrace");
    let may = installed("bpftrace")
        && run(version.arg("--version"), LIMIT).stdout.starts_with(RELEASE)
        && run(empty.args(["-e", "BEGIN { exit() }"]), LIMIT).code() == 0;
    if !may {
        eprintln!("NOT COMPARED: no {RELEASE}x here that may run");
    }
    may
}

/// What was printed, line by line, without what is known to differ: bpftrace's first line, blanks
/// behind the names of histograms, and empty lines.
fn lines(output: &Output) -> Vec<String> {
    let is_first = |line: &&str| line.starts_with("Attaching ") && line.ends_with(" probes...");
    let is_first = |line: &&str| is_first(line) || *line == "Attaching 1 probe...";
    let lines = output.stdout.lines().filter(|line| !is_first(line)).map(str::trim_end);
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn scripts_print_what_they_print_under_bpftrace() {
    let Some(program) = target("script") else { return };
    if !is_there() {
        return;
    }
    let program = program.to_string_lossy();
    let file = std::fs::read_to_string(checkout().join("tests/specs/bpftrace.txt")).expect("the scripts");
    let mut differ = Vec::new();
    let scripts: Vec<&str> = file.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    for line in &scripts {
        let (command, script) = match line.split_once(" ::: ") {
            Some((command, script)) => (command.strip_prefix("script "), script.replace("TARGET", &program)),
            None => (None, (*line).to_owned()),
        };
        let command = command.map(|args| format!("{program} {args}"));
        let output = |tool: &mut Command| {
            if let Some(command) = &command {
                tool.args(["-c", command]);
            }
            run(tool.args(["-e", &script]), LIMIT)
        };
        let (theirs, ours) = (output(&mut Command::new("bpftrace")), output(&mut Command::new(path())));
        // The program writes to the same place, when it likes.
        let sorted = |output: &Output| {
            let mut lines = lines(output);
            if command.is_some() {
                lines.sort();
            }
            lines
        };
        if sorted(&theirs) != sorted(&ours) || theirs.code() != ours.code() {
            differ.push(format!("{script}\nbpftrace: {theirs}\nsidestep: {ours}"));
        }
    }
    assert!(scripts.len() >= 80, "there are {} scripts", scripts.len());
    assert!(differ.is_empty(), "{} of {} differ:\n{}", differ.len(), scripts.len(), differ.join("\n\n"));
}
