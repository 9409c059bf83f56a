//! `sidestep bpf`: objects of clang, judged by what the target says, in the process and in the
//! kernel.

use std::collections::BTreeMap;
use std::process::Command;

use sidestep_tests::process::{LIMIT, Output, Program, run};
use sidestep_tests::tool::{Report, Tracing, sidestep, with_command};
use sidestep_tests::{Snapshot, skip, target};

/// Where the object runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    User,
    Trap,
    Kernel,
}

impl Mode {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Mode::User => &["--user"],
            Mode::Trap => &["--no-optimize"],
            Mode::Kernel => &["--kernel"],
        }
    }
}

/// Attaches an object to a program, lets `work` run meanwhile, stops. `None`: not in this kernel.
#[track_caller]
pub fn with_object<T>(
    mode: Mode,
    object: &str,
    flags: &[&str],
    program: &mut Program,
    work: impl FnOnce(&mut Program) -> T,
) -> Option<(Report, T)> {
    let path = target(object)?;
    let (path, pid) = (path.to_str().expect("UTF-8"), program.pid().to_string());
    let mut tracing = Tracing::launch(&[&["bpf", path, "-p", &pid], mode.flags(), flags].concat());
    if !tracing.wait_for_heading() {
        let output = tracing.output();
        let missing = ["this kernel has no", "the kernel lets us"].iter().any(|text| output.stderr.contains(text));
        assert!(mode == Mode::Kernel && missing, "{object} was not attached: {output}");
        skip(&format!("not run in the kernel: {}", output.stderr.trim()));
        return None;
    }
    let value = work(program);
    Some((tracing.stop(), value))
}

/// The target program for most of them.
fn probed() -> Option<Program> {
    Some(Program::start(&mut Command::new(target("probed")?)))
}

/// Runs `sidestep bpf OBJECT FLAGS -- probed COMMAND`.
fn on_command(object: &str, flags: &[&str], command: &[&str]) -> Option<Output> {
    let (object, program) = (target(object)?, target("probed")?);
    let args = [&["bpf", object.to_str().expect("UTF-8")], flags].concat();
    let command = [&[program.to_str().expect("UTF-8")], command].concat();
    Some(run(&mut sidestep(&[&args[..], &["--"], &command].concat()), LIMIT))
}

/// A global variable.
#[track_caller]
pub fn variable(report: &Report, name: &str) -> i64 {
    let value = report.0.stdout.lines().rev().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
    value.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {name}: {}", report.0))
}

/// The lines of a map.
#[track_caller]
pub fn entries<'a>(report: &'a Report, map: &str) -> Vec<&'a str> {
    let heading = format!("{map} (");
    let lines = report.0.stdout.lines().skip_while(move |line| !line.starts_with(&heading)).skip(1);
    lines.take_while(|line| line.starts_with("  ")).map(str::trim).collect()
}

/// The values of a map of numbers, those of all threads or CPUs together.
fn values(report: &Report, map: &str) -> BTreeMap<u64, u64> {
    let mut sums = BTreeMap::new();
    for line in entries(report, map) {
        let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{line}: {}", report.0));
        let (key, value) = line.strip_prefix("key: ").and_then(|rest| rest.split_once("  ")).expect("an entry");
        *sums.entry(number(key)).or_default() += number(value.rsplit(' ').next().expect("a value"));
    }
    sums
}

#[test]
fn all_kinds_of_sections() {
    for mode in [Mode::User, Mode::Trap, Mode::Kernel] {
        let Some(mut program) = probed() else { return };
        let flags = ["-a", "hand=probed:other_job"];
        let found = with_object(mode, "sections.bpf.o", &flags, &mut program, |program| {
            (program.ask("threads 100"), program.ask("work 30"), program.ask("other 8"))
        });
        let Some((report, answers)) = found else { continue };
        // The sums of what `job` gave.
        assert_eq!(answers, (4 * (99 * 100 / 2 + 100), 29 * 30 / 2 + 30, 56));
        for (name, expected) in [
            ("entries", 430),
            ("returns", 430),
            ("returned", answers.0 + answers.1),
            ("many", 438),
            ("many_returns", 438),
            ("by_hand", 8),
            ("inner", 430),
        ] {
            assert_eq!(variable(&report, name), expected, "{mode:?}: {name}");
        }
        program.finish().ok();
    }
}

#[test]
fn sessions_choose_their_returns() {
    let Some(mut program) = probed() else { return };
    let found = with_object(Mode::User, "session.bpf.o", &[], &mut program, |program| program.ask("other 9"));
    let Some((report, answer)) = found else { return };
    assert_eq!(answer, 72);
    // 9 entries; of 0, 2, 4, 6 and 8 the returns.
    assert_eq!(variable(&report, "runs"), 14);
}

#[test]
fn maps_of_all_kinds_count_exactly() {
    for mode in [Mode::User, Mode::Kernel] {
        let Some(mut program) = probed() else { return };
        let found = with_object(mode, "maps.bpf.o", &["--set", "quiet=true"], &mut program, |program| {
            program.ask("threads 1000");
        });
        let Some((report, ())) = found else { continue };
        let rests: BTreeMap<u64, u64> = (0..8).map(|rest| (rest, 500)).collect();
        assert_eq!(variable(&report, "calls"), 4000, "{mode:?}");
        assert_eq!(variable(&report, "weight"), 1000 + 4 * 499_500);
        assert_eq!(variable(&report, "failed"), 0);
        assert_eq!(values(&report, "by_rest"), rests);
        assert_eq!(values(&report, "by_rest_per_cpu").len(), 8);
        let mut lengths = values(&report, "by_length");
        // Before Linux 6.13, an empty string had no NUL (`strncpy_from_user_nofault`).
        if let (Mode::Kernel, Some(empty @ 1..)) = (mode, lengths.insert(0, 0)) {
            *lengths.entry(1).or_default() += empty;
        }
        assert_eq!(lengths, BTreeMap::from([(0, 0), (1, 1336), (2, 1332), (3, 1332)]));
        assert_eq!(values(&report, "by_stack").values().sum::<u64>(), 4000);
        assert_eq!(entries(&report, "stacks").len(), values(&report, "by_stack").len());
        // In the kernel a thread can be preempted between load and store of what is its CPU's.
        if mode == Mode::User {
            assert_eq!(values(&report, "all_calls"), BTreeMap::from([(0, 4000)]));
            assert_eq!(values(&report, "by_rest_per_cpu"), rests);
            assert_eq!(entries(&report, "all_calls").len(), 4, "one value per thread: {}", report.0);
            // Full, but for what each of the other three threads may have dropped for a key that
            // somebody else has put there meanwhile.
            let recent = values(&report, "recent").len();
            assert!((13..=16).contains(&recent), "{recent} of at most 16 keys: {}", report.0);
        }
        program.finish().ok();
    }
}

#[test]
fn records_come_in_order_by_their_types() {
    for mode in [Mode::User, Mode::Kernel] {
        let Some(mut program) = probed() else { return };
        let flags = ["-t", "ring=event", "-t", "perf=struct event"];
        let found = with_object(mode, "maps.bpf.o", &flags, &mut program, |program| program.ask("work 300"));
        let Some((report, _)) = found else { continue };
        for ring in ["ring", "perf"] {
            let lines = report.0.stdout.lines().filter(|line| line.split([' ', ':']).next() == Some(ring));
            let records: Vec<&str> = lines.filter_map(|line| line.split_once(": ").map(|(_, value)| value)).collect();
            let expected: Vec<String> =
                (0..300).map(|n| format!("{{\"n\": {n},\"name\": \"{}\"}}", &"nn"[..n % 3])).collect();
            // The buffers of CPUs have no common order.
            let mut records = records;
            if mode == Mode::Kernel {
                records.sort_by_key(|r| r.split([' ', ',']).nth(1).and_then(|n| n.parse::<u64>().ok()));
            }
            assert_eq!(records, expected, "{mode:?}: {ring}");
        }
    }
}

#[test]
fn loops_call_functions_and_lines_are_printed() {
    let Some(mut program) = probed() else { return };
    let found = with_object(Mode::User, "loop.bpf.o", &[], &mut program, |program| {
        program.ask("allowed 5");
        program.ask("other 8")
    });
    let Some((report, _)) = found else { return };
    // The function ends the loop at 3: 0, 1, 2, 3, and 4 rounds from there on.
    assert_eq!(variable(&report, "rounds"), 1 + 2 + 3 + 4 * 4);
    assert_eq!(variable(&report, "sum"), 1 + 3 + 4 * 6);
    assert!(report.0.stdout.lines().any(|line| line == "allowed(5) of ff"), "{}", report.0);
}

#[test]
fn the_kernel_says_why_it_refuses() {
    let Some(program) = probed() else { return };
    let Some(object) = target("loop.bpf.o") else { return };
    let pid = program.pid().to_string();
    let args = ["bpf", "--kernel", object.to_str().expect("UTF-8"), "-p", &pid];
    let output = run(&mut sidestep(&args), LIMIT);
    if ["this kernel has no", "the kernel lets us"].iter().any(|text| output.stderr.contains(text)) {
        return skip(&format!("not run in the kernel: {}", output.stderr.trim()));
    }
    // Callbacks need types, which only libbpf loads into the kernel.
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stderr.contains("the kernel refuses program on_other_job"), "{output}");
    assert!(output.stderr.contains("missing btf func_info"), "{output}");
}

#[test]
fn constants_are_set_before_the_start() {
    let Some(mut program) = probed() else { return };
    let flags = ["--set", "quiet=1", "--set", "modulus=4", "-s", "weight=-7"];
    let found = with_object(Mode::User, "maps.bpf.o", &flags, &mut program, |program| program.ask("work 8"));
    let Some((report, _)) = found else { return };
    assert_eq!(values(&report, "by_rest"), BTreeMap::from([(0, 2), (1, 2), (2, 2), (3, 2)]));
    assert_eq!(variable(&report, "weight"), 28 - 7);
    for (set, message) in [
        ("modulo=4", "there is no integer variable 'modulo'; there are: "),
        ("quiet=2", "quiet cannot be \"2\""),
        ("modulus=-1", "modulus cannot be \"-1\""),
        ("modulus", "\"modulus\" is not NAME=VALUE"),
    ] {
        let Some(output) = on_command("maps.bpf.o", &["--set", set], &["work", "1"]) else { return };
        assert_eq!((output.code(), output.stdout.as_str()), (1, ""), "{output}");
        assert!(output.stderr.contains(message), "{output}");
    }
}

#[test]
fn a_tool_of_libbpf_runs_as_it_is() {
    for mode in [Mode::User, Mode::Kernel] {
        let Some(mut program) = probed() else { return };
        let pid = program.pid().to_string();
        let only = format!("only_tgid={pid}");
        let flags = ["-a", "entry=probed:job", "-a", "leave=probed:job", "--set", "unit=USEC", "--set", &only];
        let found = with_object(mode, "latency.bpf.o", &flags, &mut program, |program| program.ask("threads 250"));
        let Some((report, _)) = found else { continue };
        assert_eq!(variable(&report, "calls"), 1000, "{mode:?}");
        assert_eq!(entries(&report, "starts").len(), 0);
        let line = report.0.stdout.lines().find_map(|line| line.trim().strip_prefix("slots: [")).expect("slots");
        let slots = line.trim_end_matches(']').split(',').map(|n| n.parse::<u64>().expect("a count"));
        assert_eq!(slots.sum::<u64>(), 1000);
    }
}

/// The message, and nothing happened to the target.
#[track_caller]
fn refused(object: &str, flags: &[&str], messages: &[&str]) {
    let Some(program) = probed() else { return };
    let Some(path) = target(object) else { return };
    let before = Snapshot::of(program.pid());
    let pid = program.pid().to_string();
    let output = run(&mut sidestep(&[&["bpf", path.to_str().expect("UTF-8"), "-p", &pid], flags].concat()), LIMIT);
    assert_eq!((output.code(), output.stdout.as_str()), (1, ""), "{output}");
    for message in messages {
        assert!(output.stderr.contains(message), "{message}: {output}");
    }
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

#[test]
fn what_is_not_proven_is_refused_with_its_line() {
    refused("refused.bpf.o", &[], &["program careless: insn ", "r0 may be null", "(refused.bpf.c:", "*value += 1;)"]);
}

#[test]
fn types_of_the_kernel_are_refused() {
    refused("core.bpf.o", &[], &["of_the_kernel", "pid of struct task_struct is a CO-RE relocation"]);
}

#[test]
fn places_that_nobody_gave_are_asked_for() {
    refused("latency.bpf.o", &[], &["program entry does not say where to attach; add --attach entry=OBJECT:FUNC"]);
    let attach = ["-a", "nobody=probed:job"];
    refused("look.bpf.o", &attach, &["there is no program 'nobody' in look.bpf.o; it has: on_look"].map(|m| &m[..30]));
    refused("look.bpf.o", &["-t", "ring=sight"], &["the object has no type 'sight'", "*unused"]);
    refused("look.bpf.o", &["-t", "rings=seen"], &["there is no ring 'rings'; there are: ring"]);
    let Some(output) = on_command("look.bpf.o", &["--kernel"], &["look", "0"]) else { return };
    assert_eq!(output.code(), 2, "{output}");
    assert!(output.stderr.contains("give -p PID"), "{output}");
}

#[test]
fn functions_return_something_else_only_if_that_is_allowed() {
    refused("override.bpf.o", &[], &["override_return", "allow it with --unsafe", "(override.bpf.c:"]);
    for mode in [Mode::User, Mode::Trap] {
        let Some(mut program) = probed() else { return };
        let found = with_object(mode, "override.bpf.o", &["--unsafe"], &mut program, |program| {
            [7, 8, 7].map(|uid| program.ask(&format!("allowed {uid}")))
        });
        let Some((_, answers)) = found else { return };
        assert_eq!(answers, [42, 8, 42], "{mode:?}");
        assert_eq!(program.ask("allowed 7"), 7);
    }
}

#[test]
fn hits_within_a_handler_are_counted_as_missed() {
    let Some(mut program) = probed() else { return };
    let found = with_object(Mode::User, "storm.bpf.o", &[], &mut program, |program| program.ask("storm 500"));
    let Some((report, calls)) = found else { return };
    let hits = variable(&report, "hits");
    assert_eq!(hits + report.missed() as i64, calls, "{}", report.0);
    // No run was cut in two: each added 1 to what the last left.
    let words = entries(&report, "scratch")[0].split_once(": [").expect("words").1;
    assert_eq!(words.split(',').next().and_then(|n| n.parse().ok()), Some(hits), "{}", report.0);
    assert!(calls > 1000, "{calls}");
}

#[test]
fn reads_of_all_kinds_of_addresses() {
    const EFAULT: &str = "{\"length\": -14,\"error\": -14,\"text\": \"\"}";
    for mode in [Mode::User, Mode::Trap, Mode::Kernel] {
        let Some(mut program) = probed() else { return };
        let found = with_object(mode, "look.bpf.o", &["-t", "ring=seen"], &mut program, |program| {
            (0..8).for_each(|kind| assert_eq!(program.ask(&format!("look {kind}")), kind));
        });
        let Some((report, ())) = found else { continue };
        let lines = report.0.stdout.lines().filter(|line| line.starts_with("ring"));
        let seen: Vec<&str> = lines.filter_map(|line| line.split_once(": ")).map(|(_, value)| value).collect();
        let empty = match mode {
            // Nobody has touched the page: in the kernel a probe may not wait for it.
            Mode::Kernel => EFAULT,
            _ => "{\"length\": 1,\"error\": 0,\"text\": \"\"}",
        };
        let expected = [
            "{\"length\": 10,\"error\": 0,\"text\": \"some text\"}",
            EFAULT,
            EFAULT,
            EFAULT,
            // A word there is not all in the first page.
            "{\"length\": 7,\"error\": 0,\"text\": \"across\"}",
            EFAULT,
            empty,
            EFAULT,
        ];
        assert_eq!(seen, expected, "{mode:?}");
        program.finish().ok();
    }
}

#[test]
fn json_has_an_object_per_line() {
    let (Some(object), Some(program)) = (target("maps.bpf.o"), target("probed")) else { return };
    let args = ["bpf", object.to_str().expect("UTF-8"), "-f", "json", "-t", "ring=event"];
    let (_, report) = with_command(&args, &[program.to_str().expect("UTF-8"), "work", "2"]);
    let lines: Vec<&str> = report.0.stdout.lines().collect();
    assert!(lines.iter().all(|line| line.starts_with("{\"type\": \"") && line.ends_with("}")), "{}", report.0);
    assert_eq!(lines[0], "{\"type\": \"attached_probes\", \"count\": 1, \"data\": {\"probes\": 1}}");
    for (start, end) in [
        ("{\"type\": \"record\", \"data\": {\"map\": \"ring\"", "\"value\": {\"n\":1,\"name\":\"n\"}}}"),
        ("{\"type\": \"record\", \"data\": {\"map\": \"perf\"", "\"value\": \"01000000000000006e00000000000000\"}}"),
        ("{\"type\": \"map\", \"data\": {\"by_length\"", "{\"key\":2,\"value\":1}, {\"key\":3,\"value\":0}]}}"),
        ("{\"type\": \"map\", \"data\": {\".data\"", "[{\"value\":{\".data\":[{\"weight\":1001}]}}]}}"),
    ] {
        assert!(lines.iter().any(|l| l.starts_with(start) && l.ends_with(end)), "{start} … {end}: {}", report.0);
    }
}

#[test]
fn commands_are_probed_from_their_start() {
    let (Some(object), Some(program)) = (target("maps.bpf.o"), target("probed")) else { return };
    let args = ["bpf", object.to_str().expect("UTF-8"), "-s", "quiet=1"];
    let (output, report) = with_command(&args, &[program.to_str().expect("UTF-8"), "work", "30", "5"]);
    assert_eq!((output.code(), output.stdout.as_str()), (5, "465\n"), "{output}");
    assert_eq!(variable(&report, "calls"), 30);
}

/// They were counted nowhere.
#[test]
fn lines_that_do_not_fit_are_counted() {
    const CALLS: usize = 100_000;
    let Some(mut program) = probed() else { return };
    let found = with_object(Mode::User, "loop.bpf.o", &["-a", "say=other_job"], &mut program, |program| {
        program.ask(&format!("other {CALLS}"))
    });
    let Some((report, _)) = found else { return };
    let printed = report.0.stdout.lines().filter(|line| line.starts_with("allowed(")).count();
    let total =
        report.0.stderr.lines().find_map(|line| line.split_once("Total lost event count: ")?.1.split(' ').next());
    let lost: usize = total.map_or(0, |total| total.parse().unwrap());
    assert_eq!(printed + lost, CALLS, "{printed} printed: {}", report.0.stderr);
}
