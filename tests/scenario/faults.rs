//! Programs with their own ideas about SIGSEGV, and probes that read strings which may not be
//! there.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use sidestep_tests::process::Program;
use sidestep_tests::tool::{Tracing, during};
use sidestep_tests::{Snapshot, target};

/// Everything that ends well: command, number, answer.
const COMMANDS: [(&str, i64); 13] = [
    ("good", 50),
    ("bad", 50),
    ("jump", 40),
    ("mend", 80),
    ("overflow", 3),
    ("stay", 20),
    ("unwind", 20),
    ("once", 5),
    ("masks", 20),
    ("suspend", 20),
    ("threads", 10),
    ("restart", 1),
    ("spawn", 4),
];

const KINDS: [&[&str]; 2] = [&[], &["--no-optimize"]];

fn program(name: &str) -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target(name)?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

/// A `push` or a `call` that finds no room, at an entry and behind it, and each instruction of the
/// same functions.
#[test]
pub fn a_push_at_the_end_of_a_stack_showed_an_address_in_the_detour() {
    for flags in KINDS {
        for pattern in
            ["edge:pushes", "edge:second", "edge:calls", "edge:calls_by_register", "edge:pushes+*", "edge:*s+*"]
        {
            let Some((mut program, pid)) = program("edge") else { return };
            let before = Snapshot::of(program.pid());
            assert_eq!(program.ask("fall 2"), 8);
            let (report, ()) = during(&[&["funccount"], flags, &["-p", &pid, pattern]].concat(), || {
                assert_eq!(program.ask("fall 5"), 20, "{flags:?} {pattern}");
                assert_eq!(program.ask("work 10"), 40, "{flags:?} {pattern}");
            });
            // A handler that finds no room for what it saves is left out. A push that stays in
            // front of the site, and faults, does not lead there.
            let hits = report.counts().values().sum::<u64>() + report.missed();
            let is_right = if pattern.contains('*') { hits > 15 } else { (10..=15).contains(&hits) };
            assert!(is_right, "{flags:?} {pattern}: {}", report.0);
            before.assert_same(&Snapshot::of(program.pid()));
            assert_eq!(program.ask("fall 2"), 8);
            program.finish().ok();
        }
    }
}

fn trace<'a>(flags: &[&'a str], pid: &'a str) -> Vec<&'a str> {
    [&["trace"], flags, &["-p", pid, "look \"=%s=\", arg0"]].concat()
}

fn every_answer_of(name: &str) {
    for flags in KINDS {
        let Some((mut program, pid)) = program(name) else { return };
        for (command, n) in COMMANDS {
            assert_eq!(program.ask(&format!("{command} {n}")), n, "{command} without probes");
        }
        let before = Snapshot::of(program.pid());
        let (report, ()) = during(&trace(flags, &pid), || {
            for (command, n) in COMMANDS {
                assert_eq!(program.ask(&format!("{command} {n}")), n, "{command} {flags:?}");
            }
        });
        assert!(report.0.stdout.contains("=good="), "{}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
        for (command, n) in COMMANDS {
            assert_eq!(program.ask(&format!("{command} {n}")), n, "{command} after the detach");
        }
        program.finish().ok();
    }
}

#[test]
pub fn every_answer_is_the_same_with_and_without_probes() {
    every_answer_of("faults");
}

#[test]
pub fn every_answer_of_a_static_program_is_the_same() {
    every_answer_of("faults-static");
}

#[test]
pub fn every_answer_of_a_program_with_musl_is_the_same() {
    every_answer_of("faults-musl");
}

/// What was left of a signal's frame was taken for a frame, and its mask was changed: a return
/// address by then, which led anywhere.
#[test]
pub fn a_return_address_was_taken_for_the_mask_of_a_signal_that_was_over() {
    for flags in KINDS {
        let Some((mut program, pid)) = program("faults") else { return };
        program.send("over 77");
        // It reads the next line, deep in the stack.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let (report, answer) = during(&trace(flags, &pid), || program.ask("77"));
        assert_eq!(answer, 77, "{}", report.0);
        program.finish().ok();
    }
}

/// Attached and detached at any moment of a handler, at every depth of the stack.
#[test]
pub fn faults_go_on_while_probes_come_and_go() {
    for flags in KINDS {
        let Some((mut program, pid)) = program("faults") else { return };
        for (command, n) in [("mend", 60_000), ("jump", 60_000), ("masks", 20_000)] {
            program.send(&format!("{command} {n}"));
            for _ in 0..6 {
                Tracing::start(&trace(flags, &pid)).stop();
            }
            assert_eq!(program.answer(), n, "{command} {flags:?}");
        }
        for (command, n) in COMMANDS {
            assert_eq!(program.ask(&format!("{command} {n}")), n, "{command} after {flags:?}");
        }
        program.finish().ok();
    }
}

#[test]
pub fn strings_are_what_can_be_read() {
    for flags in KINDS {
        let Some((mut program, pid)) = program("faults") else { return };
        let (report, _) = during(&trace(flags, &pid), || program.ask("bad 100"));
        let count = |text: &str| report.0.stdout.lines().filter(|line| line.ends_with(text)).count();
        // Also of the one that begins where it can be read, and has no end there: as the kernel has
        // it.
        assert_eq!(count("=(fault)="), 100, "{}", report.0);
        assert_eq!(report.records().len(), 100, "{}", report.0);
        program.finish().ok();
    }
}

/// The same signal, and a core file where there is one without probes.
#[test]
pub fn every_death_is_the_same() {
    let death = |kind: i32, flags: Option<&[&str]>| {
        let dir = std::env::temp_dir().join(format!("sidestep-faults-{}-{kind}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut program = Program::start(Command::new(target("faults")?).current_dir(&dir));
        let pid = program.pid().to_string();
        let tracing = flags.map(|flags| Tracing::start(&trace(flags, &pid)));
        program.send(&format!("die {kind}"));
        let status = program.finish().status;
        if let Some(tracing) = tracing {
            tracing.end();
        }
        std::fs::remove_dir_all(&dir).unwrap();
        Some((status.signal(), status.core_dumped()))
    };
    for kind in 0..6 {
        let Some(alone) = death(kind, None) else { return };
        assert_eq!(alone.0, Some(if kind == 3 { libc::SIGBUS } else { libc::SIGSEGV }), "kind {kind}");
        for flags in KINDS {
            assert_eq!(death(kind, Some(flags)), Some(alone), "kind {kind} {flags:?}");
        }
    }
}
