//! Frames that end in another way than by their return: exceptions, longjmp, signals, coroutines,
//! panics.

use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Report, Tracing, during, sidestep, with_command};
use sidestep_tests::{Snapshot, target};

/// Runs a command of a target under each kind of probe; the answer must be right, and afterwards
/// all as before.
fn under_all_probes(name: &str, functions: &str, command: &str, check: impl Fn(&str, i64, &Report)) {
    let Some(path) = target(name) else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    program.ask(command);
    let before = Snapshot::of(program.pid());
    for tool in ["funccount", "funclatency"] {
        for flags in [&[][..], &["--no-optimize"]] {
            let args = [&[tool], flags, &["-p", &pid, "-r", functions]].concat();
            let (report, answer) = during(&args, || program.ask(command));
            check(tool, answer, &report);
            before.assert_same(&Snapshot::of(program.pid()));
        }
    }
    program.ask(command);
    program.finish().ok();
}

#[test]
fn cpp_exceptions() {
    // With or without parameters in the name; but not their cold parts, whose names end in [clone
    // .cold].
    let functions = r"^app::(thrower|rethrower|catcher|quiet)(\([^\[]*)?$";
    under_all_probes("throw", functions, "run 1000", |tool, answer, report| {
        assert_eq!(answer, -500, "{tool}: {}", report.0);
        if tool == "funccount" {
            let counts = report.counts();
            let count = |name: &str| counts.iter().find(|(f, _)| f.starts_with(name)).map_or(0, |(_, n)| *n);
            let all = (count("app::thrower"), count("app::rethrower"), count("app::catcher"), count("app::quiet"));
            assert_eq!(all, (4000, 1000, 1000, 1000), "{}", report.0);
        }
    });
}

#[test]
fn cpp_runtime_itself() {
    let Some(path) = target("throw") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let (report, answer) = during(&["funccount", "-p", &pid, "libstdc++:__cxa_throw"], || program.ask("run 300"));
    assert_eq!(answer, -150, "{}", report.0);
    report.assert_count("__cxa_throw", 300);
    let refused = run(&mut sidestep(&["funclatency", "-p", &pid, "libstdc++:__cxa_throw"]), LIMIT);
    assert!(refused.code() == 1 && refused.stderr.contains("it never returns"), "{refused}");
    let (report, answer) =
        during(&["funclatency", "-p", &pid, "libstdc++:__cxa_begin_catch"], || program.ask("run 300"));
    assert_eq!(answer, -150, "{}", report.0);
    assert!(report.latencies() >= 300, "{}", report.0);
    program.finish().ok();
}

#[test]
fn rust_panics() {
    under_all_probes("panics", "panics::app::(panics|leaf)", "run 1000", |tool, answer, report| {
        assert_eq!(answer, 1000 * 999 / 2 + super::counts::work(1000), "{tool}: {}", report.0);
        if tool == "funccount" {
            let counts: Vec<u64> = report.counts().into_values().collect();
            // leaf once a round (its other call is never reached), panics four times.
            assert_eq!(counts.iter().sum::<u64>(), 5000, "{}", report.0);
        }
    });
}

#[test]
pub fn longjmp_over_probed_frames() {
    under_all_probes("unwind", "^(deep|jump|leaf)$", "jump 1000", |tool, answer, report| {
        assert_eq!(answer, (0..1000).map(|i| i + 1 + 3 * i + 1).sum::<i64>(), "{tool}: {}", report.0);
        if tool == "funccount" {
            report.assert_count("jump", 1000);
            // Depths 0 to 9, in turn: one frame more than the depth.
            report.assert_count("deep", 100 * 55);
            report.assert_count("leaf", 1000);
        } else {
            // jump and leaf return, deep never does.
            assert_eq!(report.latencies(), 2000, "{}", report.0);
        }
    });
}

#[test]
pub fn signals_at_a_kilohertz() {
    under_all_probes("unwind", "^leaf$", "signals 300", |tool, answer, report| {
        if tool == "funccount" {
            report.assert_count("leaf", answer as u64);
        } else {
            assert_eq!(report.latencies(), answer as u64, "{}", report.0);
        }
    });
}

/// Before the first instruction behind a return, a handler leaves frames behind, which are cleared
/// away before it ends.
#[test]
pub fn signals_right_behind_returns() {
    under_all_probes("unwind", "^(returns|takes_argument|leave|deep)$", "interrupted 64", |tool, answer, report| {
        assert_eq!(answer, 64 * 63 + 64 * 3 + 64 * 2, "{tool}: {}", report.0);
        if tool == "funccount" {
            report.assert_count("takes_argument", 64);
            report.assert_count("leave", 128);
        }
    });
}

#[test]
pub fn siglongjmp_out_of_handlers() {
    under_all_probes("unwind", "^(leaf|until_signal)$", "sigjump 200", |tool, answer, report| {
        assert_eq!(answer, 200, "{tool}: {}", report.0);
        if tool == "funccount" {
            report.assert_count("until_signal", 200);
        }
    });
}

#[test]
pub fn coroutines_leave_in_the_middle() {
    under_all_probes("unwind", "^step$", "coroutines 1000", |tool, answer, report| {
        assert_eq!(answer, 8 * 1000 * 999 / 2 + 28 * 1000, "{tool}: {}", report.0);
        if tool == "funccount" {
            report.assert_count("step", 8000);
        } else {
            assert_eq!(report.latencies(), 8000, "{}", report.0);
        }
    });
}

/// Functions that look at their own return address, keep it, or return twice: a latency probe on
/// them is right or refused, never harmful.
#[test]
fn functions_that_know_their_return_address() {
    let cases = [
        ("unwind", "libc:_setjmp", "jump 500"),
        ("unwind", "libc:__sigsetjmp", "sigjump 20"),
        ("unwind", "libc:siglongjmp", "jump 500"),
        ("unwind", "libc:getcontext", "coroutines 100"),
        ("unwind", "libc:swapcontext", "coroutines 100"),
        ("throw", "libgcc_s:_Unwind_RaiseException", "run 200"),
        ("throw", "libgcc_s:_Unwind_Resume", "run 200"),
        ("throw", "libstdc++:__cxa_rethrow", "run 200"),
        ("throw", "libstdc++:__gxx_personality_v0", "run 200"),
    ];
    let mut harmed = Vec::new();
    for (name, function, command) in cases {
        let Some(path) = target(name) else { return };
        let mut program = Program::start(&mut Command::new(path));
        let pid = program.pid().to_string();
        let expected = program.ask(command);
        let mut tracing = Tracing::launch(&["funclatency", "-p", &pid, function]);
        tracing.wait_for_heading();
        program.send(command);
        if program.try_answer() != Some(expected) {
            harmed.push(function);
            continue;
        }
        tracing.signal(libc::SIGINT);
        let output = tracing.output();
        assert!(output.code() <= 1, "{function}: {output}");
        program.send(command);
        if program.try_answer() != Some(expected) {
            harmed.push(function);
        }
    }
    assert!(harmed.is_empty(), "a latency probe on these harms the program: {harmed:?}");
}

/// 32-bit ones take an argument off the stack when they return. It says itself how often each was
/// called.
#[test]
pub fn functions_that_return_structures() {
    let Some(path) = target("structures") else { return };
    let command = [path.to_str().expect("UTF-8"), "300"];
    for flags in [&[][..], &["--no-optimize"]] {
        for function in ["make", "make_wide", "forward", "leave"] {
            let (output, report) = with_command(&[&["funclatency"], flags, &[function]].concat(), &command);
            let line = output.stdout.lines().find_map(|line| line.strip_prefix(&format!("{function} ")));
            let calls: u64 = line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{output}"));
            // Each third call of `leave` ends by a longjmp.
            let returned = if function == "leave" { calls / 3 * 2 } else { calls };
            assert_eq!(report.latencies(), returned, "{function}: {}", report.0);
        }
        let all = [&["funclatency", "-F"], flags, &["-r", "^(make|make_wide|forward|leave)$"]].concat();
        let (_, report) = with_command(&all, &command);
        // `make` runs 5 + 5 + 2 times a round.
        let counts = report.0.stdout.lines().filter_map(|line| line.rsplit_once(", count: ")?.1.parse::<u64>().ok());
        assert_eq!(counts.sum::<u64>(), 300 * (12 + 1 + 1) + 200, "{}", report.0);
    }
}
