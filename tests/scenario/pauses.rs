//! What a program sees of the pauses in which it is changed.

use std::process::Command;
use std::time::Duration;

use sidestep_tests::disassembly::offsets;
use sidestep_tests::process::{LIMIT, Program, Running, run};
use sidestep_tests::tool::{Tracing, sidestep};
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

/// The frame of a user-level thread that a timer's signal had preempted was not found: the thread
/// returned into the middle of a jump, or into a detour that was gone.
#[test]
pub fn user_level_threads_returned_to_code_that_had_changed() {
    const TIMES: usize = 2;
    let Some(path) = target("parked") else { return };
    let start = || Running::start(&mut Command::new(&path));
    let mut program = start();
    let places = offsets(&path, "turn");
    let (mut probed, mut stayed) = (0, 0);
    for offset in std::iter::repeat_n(&places, TIMES).flatten() {
        let (pid, place) = (program.pid().to_string(), format!("{}:turn+{offset:#x}", path.display()));
        let output = run(&mut sidestep(&["funccount", "-d", "0.1", "-p", &pid, &place]), LIMIT);
        assert!(program.is_running(), "{place}: the program has ended\n{output}");
        probed += usize::from(output.stdout.contains("turn"));
        // What is left of a frame may look like one through which a thread will return.
        if output.stderr.contains("a user-level thread is in a signal handler") {
            stayed += 1;
            std::thread::sleep(Duration::from_millis(50));
            assert!(program.is_running(), "{place}: the program has ended\n{output}");
            program = start();
        } else {
            assert_eq!(output.code(), 0, "{output}");
        }
    }
    let all = TIMES * places.len();
    assert!(probed >= all - all / 4 && stayed <= all / 2, "{probed} probed and {stayed} stayed of {all}");
    std::thread::sleep(Duration::from_millis(50));
    assert!(program.is_running());
}
