//! User-level threads that a signal preempts. The frames of their signals lie on stacks that no
//! thread is on.

use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, during, sidestep};
use sidestep_tests::{Snapshot, target};

use super::switch::says;

fn start() -> Option<Program> {
    let mut program = Program::start(&mut Command::new(target("preempted")?));
    assert_eq!(program.ask("rounds 10"), 0);
    Some(program)
}

/// The bytes to which a frame led became the inside of a jump, and the detour to which a frame led
/// was unmapped: the program crashed.
#[test]
pub fn frames_on_stacks_that_no_thread_is_on_were_not_found() {
    let Some(mut program) = start() else { return };
    let pid = program.pid().to_string();
    let before = Snapshot::of(program.pid());
    for kind in [&["-v"][..], &["--no-optimize"]] {
        for probe in ["step", "turn", "step+0x3"] {
            for _ in 0..10 {
                let (report, wrong) =
                    during(&[&["funccount", "-p", &pid, probe], kind].concat(), || program.ask("rounds 20"));
                assert_eq!(wrong, 0, "{probe} {}", report.0);
            }
            before.assert_same(&Snapshot::of(program.pid()));
        }
    }
    assert_eq!(program.ask("rounds 10"), 0);
    program.finish().ok();
}

/// The same for probes that are switched off and on.
#[test]
pub fn frames_on_stacks_that_no_thread_is_on_were_not_found_by_switches() {
    let Some(mut program) = start() else { return };
    let pid = program.pid().to_string();
    let before = Snapshot::of(program.pid());
    let tracing = Tracing::start(&["funccount", "-v", "-p", &pid, "step"]);
    for _ in 0..20 {
        says("disable", &pid, &["step"], "1 probe disabled");
        assert_eq!(program.ask("rounds 5"), 0);
        says("enable", &pid, &["step"], "1 probe enabled");
        assert_eq!(program.ask("rounds 5"), 0);
    }
    tracing.stop();
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("rounds 10"), 0);
    program.finish().ok();
}

/// A script that takes long: a signal nearly always interrupts it.
const SLOW: &str = "u:parked:slow { $i = 0; while ($i < 900) { $i++ } @ = count() }";

fn parked() -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target("parked")?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

fn has_regions(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs").contains("sidestep")
}

/// The code stays for a thread that goes on some time, however its stack pointer is kept.
#[test]
pub fn code_stays_for_a_thread_that_was_preempted_in_it() {
    for way in 0..3 {
        let Some((mut program, pid)) = parked() else { return };
        let tracing = Tracing::start(&["-f", "json", "-p", &pid, "-e", SLOW]);
        assert_eq!(program.ask(&format!("park {way}")), 1);
        tracing.signal(libc::SIGINT);
        let output = tracing.output();
        assert_eq!(output.code(), 1, "{output}");
        assert!(output.stderr.contains("has a user-level thread that was preempted in a probe"), "{output}");
        let (report, sum) = during(&["funccount", "-p", &pid, "leaf"], || program.ask("work 10"));
        assert_eq!((report.count("leaf"), sum), (10, 145), "way {way}");
        assert_eq!(program.ask("resume 0"), 0, "way {way}");
        run(&mut sidestep(&["detach", "-p", &pid]), LIMIT).ok();
        assert!(!has_regions(&pid));
        assert_eq!(program.ask("work 10"), 145);
        program.finish().ok();
    }
}

/// What was left of such a frame kept a detach from its end, for as long as nobody overwrote it.
#[test]
pub fn a_frame_that_was_over_kept_the_code() {
    for way in 0..3 {
        let Some((mut program, pid)) = parked() else { return };
        let tracing = Tracing::start(&["-f", "json", "-p", &pid, "-e", SLOW]);
        assert_eq!(program.ask(&format!("park {way}")), 1);
        assert_eq!(program.ask("resume 0"), 0);
        tracing.signal(libc::SIGINT);
        tracing.output().ok();
        assert!(!has_regions(&pid), "way {way}");
        assert_eq!(program.ask("drop 0"), 0);
        program.finish().ok();
    }
}
