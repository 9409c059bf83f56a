//! Programs that confine themselves with seccomp filters: the agent's own system calls must not be
//! what kills them.

use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, during, sidestep};
use sidestep_tests::{Snapshot, skip, target};

use crate::errors::refused;

fn locked(how: &str) -> Option<(Program, String)> {
    let mut program = Program::start(&mut Command::new(target("sandbox")?));
    assert_eq!(program.ask(how), 0, "the filter is installed");
    let pid = program.pid().to_string();
    Some((program, pid))
}

#[test]
pub fn a_filter_that_kills_is_respected() {
    let Some((mut program, pid)) = locked("lock 0") else { return };
    let before = Snapshot::of(program.pid());
    let output = run(&mut sidestep(&["funclatency", "-p", &pid, "leaf"]), LIMIT);
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stderr.contains("would kill it for gettid"), "{output}");
    let output = run(&mut sidestep(&["funccount", "--no-optimize", "-p", &pid, "leaf"]), LIMIT);
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stderr.contains("it needs a trap, and the seccomp filter"), "{output}");
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("work 100"), 100);
    program.finish().ok();
}

/// Counts need no system call at a hit.
#[test]
pub fn hits_were_not_counted_where_a_filter_kills() {
    let Some((mut program, pid)) = locked("lock 0") else { return };
    let before = Snapshot::of(program.pid());
    for work in [1000, 10] {
        let (report, sum) = during(&["funccount", "-p", &pid, "leaf"], || program.ask(&format!("work {work}")));
        assert_eq!(sum, work, "{}", report.0);
        report.assert_count("leaf", work as u64);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    let tracing = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
    assert_eq!(program.ask("work 10"), 10);
    tracing.kill();
    assert_eq!(program.ask("work 10"), 10);
    run(&mut sidestep(&["detach", "-p", &pid]), LIMIT).ok();
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("work 10"), 10);
    program.finish().ok();
}

/// The return from our signal handler, and each call that the controller has a thread make, came
/// back as a SIGSYS.
#[test]
pub fn system_calls_that_the_kernel_gives_back_killed_the_program() {
    let Some(path) = target("sandbox") else { return };
    let mut program = Program::start(&mut Command::new(path));
    if program.ask("dispatch 1") != 0 {
        return skip("Syscall User Dispatch");
    }
    let pid = program.pid().to_string();
    let before = Snapshot::of(program.pid());
    refused(&["funccount", "-p", &pid, "leaf"], &["PR_SET_SYSCALL_USER_DISPATCH", "cannot be probed"]);
    refused(&["-p", &pid, "-e", "u:leaf { printf(\"%d\", pid) }"], &["PR_SET_SYSCALL_USER_DISPATCH"]);
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("work 100"), 100);
    program.finish().ok();
}

#[test]
pub fn a_filter_that_refuses_does_no_harm() {
    let Some((mut program, pid)) = locked("lock 1") else { return };
    let before = Snapshot::of(program.pid());
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [&["funccount"], flags, &["-p", &pid, "leaf"]].concat();
        let (report, sum) = during(&args, || program.ask("work 1000"));
        assert_eq!(sum, 1000, "{}", report.0);
        report.assert_count("leaf", 1000);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    let (report, sum) = during(&["funclatency", "-p", &pid, "leaf"], || program.ask("work 1000"));
    assert_eq!(sum, 1000, "{}", report.0);
    program.finish().ok();
}

#[test]
fn a_filter_that_kills_who_writes_to_memory_is_found_before() {
    let Some((mut program, pid)) = locked("lock 2") else { return };
    let before = Snapshot::of(program.pid());
    let script = "u:*:leaf { write_user(arg0, 1, 1) }";
    let output = run(&mut sidestep(&["-p", &pid, "--unsafe", "-e", script]), LIMIT);
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stderr.contains("would kill it for process_vm_writev"), "{output}");
    before.assert_same(&Snapshot::of(program.pid()));
    // Who writes nothing is not refused.
    let (report, sum) = during(&["funccount", "-p", &pid, "leaf"], || program.ask("work 1000"));
    assert_eq!(sum, 1000, "{}", report.0);
    program.finish().ok();
}
