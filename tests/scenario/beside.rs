//! Processes that execute in the memory of the probed one and are no threads of it.

use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, during, sidestep};
use sidestep_tests::{Snapshot, target};

use super::counts::work;
use super::switch::says;

/// It hit the probes with signal handlers of its own, and was in the code when that went away.
#[test]
pub fn a_process_on_the_same_memory_is_a_reason_to_refuse() {
    let Some(path) = target("beside") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    assert_eq!((program.ask("begin 7"), program.ask("goes 1000")), (7, 1000));
    let before = Snapshot::of(program.pid());
    let output = run(&mut sidestep(&["funccount", "-p", &pid, "leaf"]), LIMIT);
    assert!(output.code() == 1 && output.stderr.contains("executes in the memory of process"), "{output}");
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!((program.ask("goes 1000"), program.ask("end 0")), (1000, 0));
    // When it has ended, nothing is in the way.
    let (report, answer) = during(&["funccount", "-p", &pid, "leaf"], || program.ask("work 100"));
    assert_eq!(answer, work(100));
    report.assert_count("leaf", 100);
    program.finish().ok();
}

/// One that was made after the attach was killed by the detach, and by a switch.
#[test]
pub fn a_process_on_the_same_memory_outlives_switches_and_the_detach() {
    for kind in [&["-v"][..], &["--no-optimize"]] {
        let Some(path) = target("beside") else { return };
        let mut program = Program::start(&mut Command::new(path));
        let pid = program.pid().to_string();
        let before = Snapshot::of(program.pid());
        for _ in 0..5 {
            let tracing = Tracing::start(&[&["funccount", "-p", &pid, "leaf"], kind].concat());
            assert_eq!((program.ask("begin 7"), program.ask("goes 1000")), (7, 1000));
            for _ in 0..5 {
                says("disable", &pid, &["leaf"], "1 probe disabled");
                assert_eq!(program.ask("goes 1000"), 1000);
                says("enable", &pid, &["leaf"], "1 probe enabled");
                assert_eq!(program.ask("goes 1000"), 1000);
            }
            let report = tracing.stop();
            assert!(report.0.stderr.contains("share a thread pointer"), "{}", report.0);
            assert_eq!((program.ask("goes 1000"), program.ask("end 0")), (1000, 0));
            before.assert_same(&Snapshot::of(program.pid()));
        }
        assert_eq!(program.ask("work 100"), work(100));
        program.finish().ok();
    }
}

/// The detour took the thread pointer from where it points to, and nothing was there.
#[test]
pub fn a_thread_without_a_thread_pointer_crashed_in_the_detour() {
    for kind in [&["-v"][..], &["--no-optimize"]] {
        let Some(path) = target("based") else { return };
        let mut program = Program::start(&mut Command::new(path));
        let pid = program.pid().to_string();
        let before = Snapshot::of(program.pid());
        for tool in ["funccount", "funclatency"] {
            let ask = |program: &mut Program| {
                for way in ["none 50", "far 50", "other 50", "work 50"] {
                    assert_eq!(program.ask(way), work(50), "{way}");
                }
            };
            let (report, ()) = during(&[&[tool, "-p", &pid, "leaf"], kind].concat(), || ask(&mut program));
            if tool == "funccount" {
                report.assert_count("leaf", 200);
            }
        }
        before.assert_same(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}
