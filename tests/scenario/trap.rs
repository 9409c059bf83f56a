//! Programs with their own ideas about SIGTRAP.

use std::process::Command;

use sidestep_tests::process::Program;
use sidestep_tests::tool::{Tracing, during};
use sidestep_tests::{Snapshot, target};

use super::counts::work;

const KINDS: [&[&str]; 2] = [&[], &["--no-optimize"]];

fn program() -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target("trap")?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

#[test]
pub fn own_handler_sees_all_of_its_own() {
    let Some((mut program, pid)) = program() else {
        return;
    };
    program.ask("install 0");
    let before = Snapshot::of(program.pid());
    for flags in KINDS {
        let args = [&["funccount"], flags, &["-p", &pid, "leaf"]].concat();
        let (report, own) = during(&args, || program.ask("mixed 200"));
        assert_eq!(own, 400, "{flags:?}: {}", report.0);
        report.assert_count("leaf", 200);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    assert_eq!(program.ask("mixed 10"), 20);
    program.finish().ok();
}

/// A jump needs no signal, whatever the program does with SIGTRAP.
#[test]
pub fn handler_installed_while_probed() {
    let Some((mut program, pid)) = program() else {
        return;
    };
    let (report, own) = during(&["funccount", "-p", &pid, "leaf"], || {
        program.ask("install 0");
        program.ask("mixed 100")
    });
    assert_eq!(own, 200, "{}", report.0);
    report.assert_count("leaf", 100);
    assert_eq!(program.ask("mixed 10"), 20, "its handler is gone after the detach");
    program.finish().ok();
}

#[test]
pub fn a_handler_blocked_our_signal_by_the_mask_in_its_frame() {
    let Some((mut program, pid)) = program() else {
        return;
    };
    program.ask("frame 0");
    let before = Snapshot::of(program.pid());
    for flags in KINDS {
        let args = [&["funccount"], flags, &["-p", &pid, "leaf"]].concat();
        let (report, good) = during(&args, || program.ask("frame 100"));
        assert_eq!(good, 200, "{flags:?}: {}", report.0);
        report.assert_count("leaf", 100);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    assert_eq!(program.ask("frame 10"), 20);
    program.finish().ok();
}

#[test]
pub fn a_handler_in_a_handler_blocked_our_signal_for_ever() {
    let Some((mut program, pid)) = program() else {
        return;
    };
    program.ask("nested 1");
    let before = Snapshot::of(program.pid());
    for flags in KINDS {
        let args = [&["funccount"], flags, &["-p", &pid, "leaf"]].concat();
        let (report, good) = during(&args, || program.ask("nested 100"));
        assert_eq!(good, 200, "{flags:?}: {}", report.0);
        report.assert_count("leaf", 100);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
}

#[test]
pub fn a_child_of_vfork_made_its_parent_forget_what_is_blocked() {
    let Some((mut program, pid)) = program() else {
        return;
    };
    let before = Snapshot::of(program.pid());
    for flags in KINDS {
        let args = [&["funccount"], flags, &["-p", &pid, "leaf"]].concat();
        let (report, good) = during(&args, || program.ask("vforks 100"));
        assert_eq!(good, 100, "{flags:?}: {}", report.0);
        report.assert_count("leaf", 100);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
}

#[test]
pub fn blocked_before_the_attach() {
    let Some((mut program, pid)) = program() else {
        return;
    };
    program.ask("block 0");
    let before = Snapshot::of(program.pid());
    let (report, answer) = during(&["funccount", "-p", &pid, "leaf"], || program.ask("work 100"));
    assert_eq!(answer, work(100));
    report.assert_count("leaf", 100);
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// The kernel kills a thread that hits a breakpoint with SIGTRAP blocked: a trap probe must be
/// refused or made safe.
#[test]
pub fn blocked_and_no_jump_allowed() {
    let Some((mut program, pid)) = program() else {
        return;
    };
    program.ask("block 0");
    let mut tracing = Tracing::launch(&["funccount", "--no-optimize", "-p", &pid, "leaf"]);
    tracing.wait_for_heading();
    assert_eq!(program.ask("work 100"), work(100));
    tracing.signal(libc::SIGINT);
    tracing.output();
    assert_eq!(program.ask("work 100"), work(100));
    program.finish().ok();
}

#[test]
pub fn blocked_while_probed() {
    let Some((mut program, pid)) = program() else {
        return;
    };
    let (report, answers) = during(&["funccount", "-p", &pid, "leaf"], || {
        program.ask("block 0");
        let blocked = program.ask("work 100");
        program.ask("unblock 0");
        (blocked, program.ask("work 50"))
    });
    assert_eq!(answers, (work(100), work(50)));
    report.assert_count("leaf", 150);
    program.finish().ok();
}

/// A breakpoint of the program that nobody handles kills it, probed or not, by the same signal.
#[test]
pub fn unhandled_breakpoint_still_kills() {
    for flags in KINDS {
        let Some((mut program, pid)) = program() else {
            return;
        };
        let tracing = Tracing::start(&[&["funccount"], flags, &["-p", &pid, "leaf"]].concat());
        assert_eq!(program.ask("work 10"), work(10));
        program.send("die 0");
        let output = program.finish();
        assert_eq!(output.code(), 128 + libc::SIGTRAP, "{output}");
        tracing.end().assert_count("leaf", 10);
    }
}
