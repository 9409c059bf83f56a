//! What a program blocks of signals of ours, as it sees it itself, and as others do that come after
//! it.

use std::process::Command;

use sidestep_tests::process::Program;
use sidestep_tests::tool::{Tracing, during};
use sidestep_tests::{Snapshot, target};

/// Sessions in which SIGTRAP is ours, the last one also in which SIGSEGV is.
const SCRIPT: &str = "u:masks:leaf { @text[str(arg0)] = count() }";
const KINDS: [&[&str]; 2] = [&["funccount", "leaf", "--no-optimize"], &["--no-optimize", "-f", "json", "-e", SCRIPT]];

/// Only where the kernel's masks say what the program blocks, so that nothing is missing. Elsewhere
/// the state of a thread says it, which knows nothing of handlers' actions and other programs.
const SAYS_ALL: bool = cfg!(any(target_arch = "aarch64", target_arch = "arm"));

fn program() -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target("masks")?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

/// Before, in and after each kind of session.
fn is_right(command: &str, n: i64, answer: i64) {
    let Some((mut program, pid)) = program() else { return };
    let ask = format!("{command} {n}");
    assert_eq!(program.ask(&ask), answer, "{command} without a session");
    let before = Snapshot::of(program.pid());
    for kind in KINDS {
        let (report, right) = during(&[kind, &["-p", &pid]].concat(), || program.ask(&ask));
        assert_eq!(right, answer, "{command} {kind:?}: {}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
        assert_eq!(program.ask(&ask), answer, "{command} after {kind:?}");
    }
    program.finish().ok();
}

#[test]
fn sets_are_what_the_program_has_made_them() {
    is_right("sets", 98, 98);
}

#[test]
fn what_a_handlers_action_blocks_is_told_in_the_handler() {
    if SAYS_ALL {
        is_right("handlers", 10, 10);
    }
}

/// The mask of a call that waits was taken for the end of a handler.
#[test]
fn a_mask_that_a_handler_changed_in_a_call_that_waits_was_forgotten() {
    if SAYS_ALL {
        is_right("waits", 5, 20);
    }
}

#[test]
fn what_a_call_that_waits_blocks_is_told_in_handlers() {
    if SAYS_ALL {
        is_right("closes", 10, 10);
    }
}

/// What was believed at the end of the handler was never over.
#[test]
fn a_handler_blocked_all_but_our_signal_by_the_mask_in_its_frame() {
    is_right("frames", 10, 10);
}

/// The inner handler's end was taken for that of the outer one.
#[test]
fn a_handler_in_a_handler_opened_the_signal_of_the_outer_one() {
    if SAYS_ALL {
        is_right("nested", 10, 10);
    }
}

#[test]
fn a_new_thread_has_the_mask_of_its_maker() {
    if SAYS_ALL {
        is_right("inherits", 10, 10);
    }
}

/// Of a signal that was blocked for us, and of those that were open for us.
#[test]
fn another_program_began_with_a_mask_that_its_maker_did_not_have() {
    if SAYS_ALL {
        is_right("executes", 8, 8);
    }
}

/// A real-time signal that stands for one of ours, if it is no program's own.
#[test]
fn a_signal_that_a_program_keeps_for_itself_is_left_to_it() {
    for kind in KINDS {
        let Some((mut program, pid)) = program() else { return };
        let args = [kind, &["-p", &pid]].concat();
        let (report, right) = during(&args, || {
            program.ask("reserves 0");
            program.ask("takes 5")
        });
        assert_eq!(right, 5, "{kind:?} from a session on: {}", report.0);
        let before = Snapshot::of(program.pid());
        let (report, right) = during(&args, || program.ask("takes 5"));
        assert_eq!(right, 5, "{kind:?} before a session: {}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
        assert_eq!(program.ask("takes 3"), 3);
        program.finish().ok();
    }
}

/// Attached and detached while a handler runs, and not.
#[test]
fn handlers_that_outlive_sessions_give_back_the_mask_from_before() {
    for kind in KINDS {
        let Some((mut program, pid)) = program().filter(|_| SAYS_ALL) else { return };
        let args = [kind, &["-p", &pid]].concat();
        program.ask("enter 1");
        let before = Snapshot::of(program.pid());
        Tracing::start(&args).stop();
        before.assert_same(&Snapshot::of(program.pid()));
        assert_eq!(program.ask("leave 1"), 1, "{kind:?} a session in a handler");
        program.ask("enter 1");
        let tracing = Tracing::start(&args);
        assert_eq!(program.ask("leave 1"), 1, "{kind:?} a handler that ends in a session");
        program.ask("enter 1");
        tracing.stop();
        assert_eq!(program.ask("leave 1"), 1, "{kind:?} a handler that begins in a session");
        let tracing = Tracing::start(&args);
        program.ask("enter 1");
        assert_eq!(program.ask("leave 1"), 1, "{kind:?} a handler within a session");
        tracing.stop();
        program.finish().ok();
    }
}
