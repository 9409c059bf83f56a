//! Alternate signal stacks: a handler of ours runs there only if no two threads have the same one.

use std::process::Command;

use sidestep_tests::process::Program;
use sidestep_tests::tool::{during, with_command};
use sidestep_tests::{Snapshot, target};

const KINDS: [&[&str]; 2] = [&["-v"], &["-v", "--no-optimize"]];
const THREADS: i64 = 4;

/// What `leaf` gives in `n` rounds of one thread.
fn sum(n: i64) -> i64 {
    (0..n).map(|i| i * 3 + 1).sum()
}

/// Two handlers of ours ran on one stack: the program died or computed otherwise.
#[test]
pub fn threads_that_share_a_stack_for_signals_overwrote_each_other() {
    let Some(path) = target("altstack") else { return };
    // They begin to share it while the program is probed.
    // The sum of all threads fits in the 32 bits of a `long`.
    const ROUNDS: i64 = 16_000;
    for kind in KINDS {
        for (command, n) in [("share", ROUNDS), ("own", ROUNDS)] {
            let args = [&["funccount"], kind, &["leaf"]].concat();
            let (output, report) = with_command(&args, &[path.to_str().expect("UTF-8"), command, &n.to_string()]);
            let expected = format!("{}\n", THREADS * sum(n));
            assert_eq!((output.code(), &output.stdout), (0, &expected), "{kind:?} {command}: {}", report.0);
            report.assert_count("leaf", (THREADS * n) as u64);
        }
    }
}

/// The same of threads that share the stack when somebody attaches, under switches.
#[test]
pub fn threads_that_shared_a_stack_for_signals_before_the_attach_overwrote_each_other() {
    let Some(path) = target("altstack") else { return };
    for kind in KINDS {
        let mut program = Program::start(&mut Command::new(&path));
        let pid = program.pid().to_string();
        // The C library keeps the stacks of threads that have ended.
        assert_eq!((program.ask("start 0"), program.ask("stop 0")), (0, 0));
        let before = Snapshot::of(program.pid());
        program.ask("start 0");
        for _ in 0..5 {
            let (report, ()) = during(&[&["funccount", "-p", &pid, "leaf"], kind].concat(), || ());
            assert!(!report.0.stderr.contains("exited"), "{}", report.0);
        }
        assert_eq!(program.ask("stop 0"), 0);
        before.assert_same(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}
