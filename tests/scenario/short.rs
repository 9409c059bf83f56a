//! Functions whose first bytes are hard to replace: right results, exact counts, never a crash.

use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, during, sidestep};
use sidestep_tests::{Snapshot, target};

/// Functions of `short_asm.S` that `check` calls once a round.
pub const ONCE: &[&str] = &[
    "loop_at_2",
    "loop_at_4",
    "three_bytes",
    "behind_three",
    "only_ret",
    "behind_ret",
    "ret_padded",
    "call_inside",
    "call_first",
    "jumps_away",
    "jumped_to",
    "branch_first",
    "counts_down",
    "reads_rip",
    "red_zone",
];

fn program() -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target("short")?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

#[test]
pub fn one_at_a_time() {
    let Some((mut program, pid)) = program() else {
        return;
    };
    let before = Snapshot::of(program.pid());
    for function in ONCE {
        let (report, wrong) = during(&["funccount", "-p", &pid, function], || program.ask("check 300"));
        assert_eq!(wrong, 0, "{function}: {}", report.0);
        report.assert_count(function, 300);
        let (report, wrong) = during(&["funclatency", "-p", &pid, function], || program.ask("check 300"));
        assert_eq!(wrong, 0, "{function}: {}", report.0);
        assert_eq!(report.latencies(), 300, "{function}: {}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
}

#[test]
pub fn all_at_once() {
    let Some((mut program, pid)) = program() else {
        return;
    };
    let all = format!("^({})$", ONCE.join("|"));
    let before = Snapshot::of(program.pid());
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [&["funccount"], flags, &["-p", &pid, "-r", &all]].concat();
        let (report, wrong) = during(&args, || program.ask("check 1000"));
        assert_eq!(wrong, 0, "{}", report.0);
        for function in ONCE {
            report.assert_count(function, 1000);
        }
        let args = [&["funclatency"], flags, &["-p", &pid, "-r", &all]].concat();
        let (report, wrong) = during(&args, || program.ask("check 1000"));
        assert_eq!(wrong, 0, "{}", report.0);
        assert_eq!(report.latencies(), 1000 * ONCE.len() as u64, "{}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
}

/// The threads come back from a callee into a function that was changed meanwhile, and the other
/// way round.
#[test]
pub fn a_thread_is_in_the_callee() {
    let Some((mut program, pid)) = program() else {
        return;
    };
    let all = "^(call_near|call_inside|call_first)$";
    for tool in ["funccount", "funclatency"] {
        for flags in [&[][..], &["--no-optimize"]] {
            let args = [&[tool], flags, &["-p", &pid, "-r", all]].concat();

            // In the callee while the probes come.
            assert_eq!(program.ask("enter 3"), 3);
            let (report, (wrong, near)) = during(&args, || (program.ask("leave 0"), program.ask("near 10")));
            assert_eq!((wrong, near), (0, 0), "{}", report.0);
            if tool == "funccount" {
                report.assert_count("call_near", 10);
            }

            // In the callee while they go.
            let (report, _) = during(&args, || program.ask("enter 3"));
            assert_eq!(program.ask("leave 0"), 0, "{}", report.0);
            assert_eq!(program.ask("near 10"), 0);

            // In the callee all the time.
            assert_eq!(program.ask("enter 3"), 3);
            Tracing::start(&args).stop();
            assert_eq!(program.ask("leave 0"), 0);
        }
    }
    assert_eq!(program.ask("check 100"), 0);
    program.finish().ok();
}

/// The tool says what it would do, and why not more: a trap where a jump would break the loop.
#[test]
pub fn explain_gives_the_reason() {
    let Some(path) = target("short") else { return };
    let explain = |function: &str| {
        let text = run(&mut sidestep(&["explain", &format!("{}:{function}", path.display())]), LIMIT).ok().stdout;
        text.to_lowercase()
    };
    for (function, reason) in [
        ("loop_at_2", "jumps back to"),
        ("loop_at_4", "jumps back to"),
        ("three_bytes", "something else starts at"),
        ("only_ret", "something else starts at"),
        ("call_inside", "comes back to"),
    ] {
        let text = explain(function);
        assert!(text.contains("jump over several: ") && text.contains(reason), "{function}: {text}");
    }
    let text = explain("reads_rip");
    assert!(text.contains("jump") && text.contains("rip"), "{text}");
}
