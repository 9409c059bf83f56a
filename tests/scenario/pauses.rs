//! What a program sees of the pauses in which it is changed.

use std::process::Command;

use sidestep_tests::process::Program;
use sidestep_tests::tool::Tracing;
use sidestep_tests::{Snapshot, target};

/// Each pause of an attach and a detach ended calls of varnish with EINTR, without any signal: the
/// program ended.
#[test]
pub fn calls_that_wait_were_ended_by_a_pause() {
    let Some(path) = target("interrupted") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    assert_eq!(program.ask("start 0"), 0);
    let before = Snapshot::of(program.pid());
    let kinds: [&[&str]; 4] = [
        &["funccount", "step"],
        &["funccount", "--no-optimize", "step"],
        &["funclatency", "step"],
        &["funccount", "libc:*"],
    ];
    for kind in kinds {
        let tracing = Tracing::start(&[&kind[..1], &["-p", &pid], &kind[1..]].concat());
        program.ask("work 1000");
        let report = tracing.stop();
        assert_eq!(program.ask("eintr 0"), 0, "{kind:?}: {}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.ask("stop 0");
}
