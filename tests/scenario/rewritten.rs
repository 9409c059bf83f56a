//! Programs that change their own code. Where they do so, probes leave it alone.

use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{during, sidestep};
use sidestep_tests::{Snapshot, target};

/// What `work N` of both programs answers: `by` is added in each round.
fn work(n: i64, by: i64) -> i64 {
    (0..n).map(|i| i * 3 + 1 + by).sum()
}

/// XRay wrote a call into the middle of our jump.
#[test]
pub fn instrumentation_that_comes_and_goes_destroyed_the_jump() {
    let Some(path) = target("xray") else { return };
    for kind in [&["-v"][..], &["--no-optimize"]] {
        let mut program = Program::start(&mut Command::new(&path));
        let pid = program.pid().to_string();
        // The first change splits the mapping.
        assert_eq!((program.ask("patch 1"), program.ask("patch 0")), (1, 1));
        let before = Snapshot::of(program.pid());
        let (report, ()) = during(&[&["funccount", "-p", &pid, "leaf"], kind].concat(), || {
            for _ in 0..3 {
                assert_eq!(program.ask("work 100"), work(100, 1));
                assert_eq!(program.ask("patch 1"), 1);
                assert_eq!(program.ask("work 100"), work(100, 1));
                assert_eq!(program.ask("patch 0"), 1);
            }
        });
        report.assert_count("leaf", 600);
        // What XRay says of both functions.
        assert_eq!((program.ask("entries 0"), program.ask("exits 0")), (600, 600));
        before.assert_same(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// The exits of such a function are changed, too.
#[test]
pub fn returns_of_instrumented_functions_are_refused() {
    let Some(path) = target("xray") else { return };
    let program = Program::start(&mut Command::new(&path));
    let before = Snapshot::of(program.pid());
    let output = run(&mut sidestep(&["funclatency", "-p", &program.pid().to_string(), "leaf"]), LIMIT);
    assert!(output.code() == 1 && output.stderr.contains("(XRay)"), "{output}");
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// The same where it is there at the attach, and at the detach.
#[test]
pub fn instrumentation_that_was_there_before() {
    let Some(path) = target("xray") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    assert_eq!(program.ask("patch 1"), 1);
    let before = Snapshot::of(program.pid());
    let (report, answer) = during(&["funccount", "-p", &pid, "leaf"], || program.ask("work 100"));
    assert_eq!(answer, work(100, 1));
    report.assert_count("leaf", 100);
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!((program.ask("patch 0"), program.ask("work 100")), (1, work(100, 1)));
    assert_eq!((program.ask("entries 0"), program.ask("exits 0")), (200, 200));
    program.finish().ok();
}

/// The program's short jump over the nops became part of ours.
#[test]
pub fn a_live_patch_destroyed_the_jump() {
    for name in ["livepatch", "livepatch-ibt"] {
        let Some(path) = target(name) else { return };
        let mut program = Program::start(&mut Command::new(&path));
        let pid = program.pid().to_string();
        let (report, ()) = during(&["funccount", "-p", &pid, "leaf"], || {
            for _ in 0..3 {
                assert_eq!(program.ask("work 100"), work(100, 0));
                assert_eq!(program.ask("replace 1"), 0);
                assert_eq!(program.ask("work 100"), work(100, 1));
                assert_eq!(program.ask("replace 0"), 0);
            }
        });
        // A function that is replaced is not entered.
        report.assert_count("leaf", 300);
        assert_eq!(program.ask("work 100"), work(100, 0));
        program.finish().ok();
    }
}

/// A probe inside such a place is refused with what changes it.
#[test]
pub fn such_places_are_named() {
    let Some(path) = target("xray") else { return };
    let output = run(&mut sidestep(&["explain", &format!("{}:leaf+2", path.display())]), LIMIT);
    assert!(format!("{output}").contains("(XRay)"), "{output}");
}
