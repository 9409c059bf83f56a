//! What programs see of a site, and what is left of it: all registers, flags and the red zone,
//! judged by the target.

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::target;
use sidestep_tests::tool::{Report, Tracing, is_32_bit, sidestep};

use std::process::Command;

use super::bpf::{entries, variable};

/// What the target calls a site, and where it is. At a dead one some registers and the flags are
/// written at once.
fn sites() -> [(&'static str, String); 4] {
    [
        ("entry", "at_entry".to_owned()),
        ("dead_entry", "at_dead_entry".to_owned()),
        ("middle", middle("at_middle")),
        ("dead_middle", middle("at_dead_middle")),
    ]
}

/// The instruction of `at_middle` or `at_dead_middle` that is probed.
pub fn middle(function: &str) -> String {
    format!("{function}+{}", if is_32_bit() { "0x24" } else { "0x50" })
}

/// What the target says of a word: one of 32 bits says its lower half.
pub fn as_target(word: i64) -> i64 {
    if is_32_bit() { word as i32 as i64 } else { word }
}

/// Programs that add up a word of the context, and which that is.
const SUMS: [(&str, usize); 7] =
    [("rdi", 14), ("rax", 10), ("r11", 6), ("rcx", 11), ("rsp", 19), ("rip", 16), ("eflags", 18)];

const ROUNDS: i64 = 500;

/// Programs that are at a site together.
const SETS: [&[&str]; 14] = [
    &["words"],
    &["copy"],
    &["add_rdi"],
    &["add_rax"],
    &["add_r11", "add_rcx"],
    &["timer"],
    &["stop"],
    &["go"],
    &["alone"],
    &["walk"],
    &["timer", "words"],
    &["stop", "words"],
    &["add_rsp", "add_rip", "add_eflags"],
    &[
        "add_rdi",
        "add_rax",
        "add_r11",
        "add_rcx",
        "add_rsp",
        "add_rip",
        "timer",
        "add_eflags",
        "stop",
        "go",
        "walk",
        "alone",
        "copy",
        "words",
    ],
];

fn start() -> Option<Program> {
    Some(Program::start(&mut Command::new(target("registers")?)))
}

/// Puts programs at a place, lets `work` run meanwhile, stops.
#[track_caller]
fn with_programs(
    flags: &[&str],
    programs: &[&str],
    place: &str,
    target_program: &mut Program,
    work: impl FnOnce(&mut Program),
) -> Option<Report> {
    let (object, pid) = (target("registers.bpf.o")?, target_program.pid().to_string());
    let attach: Vec<String> = programs.iter().map(|program| format!("{program}=registers:{place}")).collect();
    let attach = attach.iter().flat_map(|text| ["-a", text]);
    let args = ["bpf", object.to_str().expect("UTF-8"), "-p", &pid].into_iter().chain(flags.iter().copied());
    let tracing = Tracing::start(&args.chain(attach).collect::<Vec<_>>());
    work(target_program);
    Some(tracing.stop())
}

/// The words of an array of numbers.
#[track_caller]
pub fn words(report: &Report, name: &str) -> Vec<i64> {
    let heading = format!("{name}: [");
    let line = report.0.stdout.lines().rev().find_map(|line| line.trim().strip_prefix(&heading));
    let line = line.unwrap_or_else(|| panic!("no {name}: {}", report.0));
    let word = |text: &str| {
        let word = text.trim().parse::<u64>().expect("a word") as i64;
        // Only a system call's number that is none has more.
        assert!(!is_32_bit() || word >> 32 == 0 || word == -1, "{line}");
        as_target(word)
    };
    line.trim_end_matches(']').split(',').map(word).collect()
}

/// An unsigned variable, as the target prints it.
#[track_caller]
pub fn sum(report: &Report, name: &str) -> i64 {
    let heading = format!("{name}: ");
    let text = report.0.stdout.lines().rev().find_map(|line| line.trim().strip_prefix(&heading));
    let sum = text.and_then(|text| text.parse::<u64>().ok()).unwrap_or_else(|| panic!("no {name}: {}", report.0));
    as_target(sum as i64)
}

fn programs_see_and_leave(flags: &[&str]) {
    let Some(mut program) = start() else { return };
    for (site, place) in sites() {
        assert_eq!(program.ask(&format!("{site} {ROUNDS}")), 0, "without a probe");
        for set in SETS {
            let what = format!("{flags:?} {site} {set:?}");
            let (mut wrong, mut seen, mut sums) = (0, Vec::new(), Vec::new());
            let report = with_programs(flags, set, &place, &mut program, |program| {
                wrong = program.ask(&format!("{site} {ROUNDS}"));
                seen = (0..21).map(|k| program.ask(&format!("word {k}"))).collect();
                sums = (0..21).map(|k| program.ask(&format!("sum {k}"))).collect();
            });
            let Some(report) = report else { return };
            assert_eq!(wrong, 0, "{what}: the target's state is another");
            assert!(!report.0.stderr.contains("missed"), "{what}: {}", report.0);
            for (name, array) in [("words", "seen"), ("copy", "copied"), ("go", "chosen")] {
                let expected = if set.contains(&name) { seen.clone() } else { vec![0; 21] };
                assert_eq!(words(&report, array), expected, "{what}: {name}");
            }
            for (name, word) in SUMS {
                let expected = if set.contains(&format!("add_{name}").as_str()) { sums[word] } else { 0 };
                assert_eq!(sum(&report, &format!("sum_{name}")), expected, "{what}: {name}");
            }
            for (name, counter) in [("timer", "timed"), ("walk", "walked"), ("alone", "entries")] {
                let expected = if set.contains(&name) { ROUNDS } else { 0 };
                assert_eq!(variable(&report, counter), expected, "{what}: {name}");
            }
            assert_eq!(variable(&report, "stopped"), 0, "{what}");
            let of_site = entries(&report, "by_site");
            let expected = if set.contains(&"alone") { vec![format!("key: 1  value: {ROUNDS}")] } else { Vec::new() };
            assert_eq!(of_site, expected, "{what}");
        }
    }
    program.finish().ok();
}

#[test]
pub fn programs_see_true_registers_and_leave_them() {
    programs_see_and_leave(&[]);
}

#[test]
pub fn programs_at_traps_see_true_registers_and_leave_them() {
    programs_see_and_leave(&["--no-optimize"]);
}

#[test]
pub fn interpreted_programs_see_true_registers_and_leave_them() {
    programs_see_and_leave(&["--interpret"]);
}

#[test]
pub fn children_keep_their_registers_and_write_no_map() {
    let Some(mut program) = start() else { return };
    let all = SETS[SETS.len() - 1];
    for flags in [&[][..], &["--no-optimize"], &["--interpret"]] {
        for (site, place) in sites() {
            let mut status = 0;
            let report = with_programs(flags, all, &place, &mut program, |program| status = program.ask("child 200"));
            let Some(report) = report else { return };
            assert_eq!(status, 0, "{flags:?} {site}");
            for counter in ["timed", "walked", "entries", "stopped"] {
                assert_eq!(variable(&report, counter), 0, "{flags:?} {site}: {counter}");
            }
            for array in ["seen", "copied", "chosen"] {
                assert_eq!(words(&report, array), [0; 21], "{flags:?} {site}: {array}");
            }
            for (name, _) in SUMS {
                assert_eq!(sum(&report, &format!("sum_{name}")), 0, "{flags:?} {site}: {name}");
            }
        }
    }
    program.finish().ok();
}

/// Whether to return was read from the stack, where the hit of the parent had left its answer.
#[test]
pub fn a_child_does_not_return_as_its_parent_did() {
    let Some(mut program) = start() else { return };
    let (Some(object), pid) = (target("override.bpf.o"), program.pid().to_string()) else { return };
    let object = object.to_str().expect("UTF-8");
    for flag in ["--user", "--no-optimize"] {
        let tracing = Tracing::start(&["bpf", object, "-p", &pid, "--unsafe", flag, "-a", "deny=registers:allowed"]);
        assert_eq!(program.ask("forked 7"), 42 * 1000 + 7, "{flag}");
        tracing.stop();
    }
    program.finish().ok();
}

/// There it went to whatever lay below the stack pointer.
#[test]
pub fn override_return_in_the_middle_of_a_function_is_refused() {
    let Some(mut program) = start() else { return };
    let (Some(object), pid) = (target("override.bpf.o"), program.pid().to_string()) else { return };
    let object = object.to_str().expect("UTF-8");
    let args = ["bpf", object, "-p", &pid, "--unsafe", "-a", &format!("deny=registers:{}", middle("at_middle"))];
    let output = run(&mut sidestep(&args), LIMIT);
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stderr.contains("a function can only be overridden at its start"), "{output}");
    assert_eq!(program.ask("middle 10"), 0);
    program.finish().ok();
}

/// With permission, programs change registers and where the thread goes on; without, they are
/// refused.
#[test]
pub fn programs_change_registers_and_skip_instructions() {
    let (Some(path), Some(object)) = (target("short"), target("change.bpf.o")) else { return };
    let object = object.to_str().expect("UTF-8");
    let mut program = Program::start(&mut std::process::Command::new(path));
    let pid = program.pid().to_string();
    for flag in ["--user", "--no-optimize", "--interpret"] {
        for (name, place, command, changed, usual) in [
            ("argument", "three_bytes", "three 9", 5, 9),
            ("result_low", "three_bytes+0x2", "three 9", 1000, 9),
            ("result", "three_bytes", "three 9", 77, 9),
            ("kept", if is_32_bit() { "in_rbx+0x3" } else { "in_rbx+0x4" }, "rbx 9", 51, 10),
            ("skip", if is_32_bit() { "reads_rip+0x7" } else { "reads_rip" }, "forty 9", 109, 49),
        ] {
            let probe = format!("{name}={place}");
            let tracing = Tracing::start(&["bpf", object, "-p", &pid, "--unsafe", flag, "-a", &probe]);
            assert_eq!(program.ask(command), changed, "{name} {flag}");
            tracing.stop();
            assert_eq!(program.ask(command), usual, "{name} {flag}");
        }
    }
    for (flags, name, text) in [
        (&[][..], "argument", "the context is read-only"),
        (&["--unsafe"], "nowhere", "a program that changes the instruction pointer cannot watch returns"),
    ] {
        let probe = format!("{name}=three_bytes");
        let output = run(&mut sidestep(&[&["bpf", object, "-p", &pid], flags, &["-a", &probe]].concat()), LIMIT);
        assert!(output.code() == 1 && output.stderr.contains(text), "{output}");
    }
    assert_eq!((program.ask("check 50"), program.ask("rbx 9")), (0, 10));
    program.finish().ok();
}
