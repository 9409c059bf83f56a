//! User-level threads that a signal preempts. The frames of their signals lie on stacks that no
//! thread is on.

use std::process::Command;

use sidestep_tests::process::Program;
use sidestep_tests::tool::{Tracing, during};
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
