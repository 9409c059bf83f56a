//! USDT probes: arguments as libbpf's programs find them, and semaphores that are as they were before.

use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, sidestep, with_command};
use sidestep_tests::{Snapshot, target};

use super::bpf::{Mode, variable, with_object};

const TWICE: [&str; 2] = ["-a", "on_twice=usdt:usdt:demo:twice"];

fn usdt() -> Option<Program> {
    Some(Program::start(&mut Command::new(target("usdt")?)))
}

#[test]
pub fn arguments_are_where_the_notes_say() {
    for mode in [Mode::User, Mode::Trap, Mode::Kernel] {
        let Some(mut program) = usdt() else { return };
        let before = Snapshot::of(program.pid());
        let found = with_object(mode, "usdt.bpf.o", &TWICE, &mut program, |program| {
            (program.ask("fire 100"), program.ask("twice 10"))
        });
        let Some((report, answers)) = found else { continue };
        assert_eq!(answers, (5050 - 300, 55));
        for (name, expected) in [
            ("fires", 100),
            ("sum", 5050),
            ("negatives", -300),
            ("constants", -900),
            ("memory", 30_000),
            ("variables", 7_700),
            ("counts", 500),
            ("failures", 0),
            ("twices", 20),
            ("twice_sum", 55 + 55 + 10_000),
        ] {
            assert_eq!(variable(&report, name), expected, "{mode:?}: {name}");
        }
        // Data were written, and the stack.
        before.assert_same_but_data(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

#[test]
pub fn programs_know_that_somebody_listens() {
    for mode in [Mode::User, Mode::Kernel] {
        let Some(mut program) = usdt() else { return };
        assert_eq!(program.ask("listeners 0"), 0);
        let found = with_object(mode, "usdt.bpf.o", &TWICE, &mut program, |program| {
            // Somebody else begins to listen, and stays.
            [program.ask("listeners 0"), program.ask("listen 1"), program.ask("child 3")]
        });
        let Some((_, listeners)) = found else { continue };
        // A child keeps what its memory is a copy of; the kernel has its probe only in this process.
        assert_eq!(listeners, [1, 2, if mode == Mode::User { 2 } else { 1 }], "{mode:?}");
        assert_eq!(program.ask("listeners 0"), 1, "{mode:?}");
        program.finish().ok();
    }
}

#[test]
pub fn somebody_who_ceases_to_listen_is_no_matter() {
    let Some(mut program) = usdt() else { return };
    assert_eq!(program.ask("listen 1"), 1);
    let found = with_object(Mode::User, "usdt.bpf.o", &TWICE, &mut program, |program| {
        [program.ask("listeners 0"), program.ask("listen -1")]
    });
    let Some((_, listeners)) = found else { return };
    assert_eq!(listeners, [2, 1]);
    assert_eq!(program.ask("listeners 0"), 0);
}

#[test]
pub fn killed_controllers_listen_no_more_after_the_next() {
    let Some(mut program) = usdt() else { return };
    let Some(object) = target("usdt.bpf.o") else { return };
    let pid = program.pid().to_string();
    let args = [&["bpf", object.to_str().expect("UTF-8"), "-p", &pid][..], &TWICE].concat();
    for _ in 0..3 {
        Tracing::start(&args).kill();
        assert_eq!(program.ask("listeners 0"), 1);
        assert_eq!(program.ask("fire 10"), 25);
    }
    let tracing = Tracing::start(&args);
    assert_eq!(program.ask("listeners 0"), 1);
    assert_eq!(program.ask("fire 10"), 25);
    assert_eq!(variable(&tracing.stop(), "fires"), 10);
    assert_eq!(program.ask("listeners 0"), 0);
    program.finish().ok();
}

#[test]
pub fn children_are_cleaned_up_by_who_attaches_to_them() {
    let Some(mut program) = usdt() else { return };
    let Some(object) = target("usdt.bpf.o") else { return };
    let found = with_object(Mode::User, "usdt.bpf.o", &TWICE, &mut program, |program| {
        [program.ask("stay 0"), program.ask("stay 0")]
    });
    let Some((_, [one, other])) = found else { return };
    let child = one.to_string();
    let args = [&["bpf", object.to_str().expect("UTF-8"), "-p", &child][..], &TWICE].concat();
    drop(Tracing::start(&args).stop());
    assert_eq!(program.ask(&format!("reap {one}")), 0);
    assert_eq!(program.ask(&format!("reap {other}")), 1);
    assert_eq!(program.ask("listeners 0"), 0);
}

#[test]
pub fn commands_are_listened_to_from_their_start() {
    let (Some(object), Some(program)) = (target("usdt.bpf.o"), target("usdt")) else { return };
    let args = [&["bpf", object.to_str().expect("UTF-8")][..], &TWICE].concat();
    let program = program.to_str().expect("UTF-8");
    let (output, report) = with_command(&args, &[program, "fire", "10"]);
    assert_eq!((output.code(), output.stdout.as_str()), (0, "25\n"), "{output}");
    assert_eq!((variable(&report, "fires"), variable(&report, "sum")), (10, 55));
    assert_eq!(with_command(&args, &[program, "listeners", "0"]).0.stdout, "1\n");
}

#[test]
pub fn what_a_command_does_not_have_is_said() {
    let (Some(object), Some(program)) = (target("usdt.bpf.o"), target("usdt")) else { return };
    let (object, program) = (object.to_str().expect("UTF-8"), program.to_str().expect("UTF-8"));
    let args = ["bpf", "-v", object, "-a", "on_twice=usdt:usdt:demo:once", "--", program, "fire", "10"];
    let output = run(&mut sidestep(&args), LIMIT).ok();
    assert!(output.stderr.contains("usdt:usdt:demo:once cannot be probed: no USDT probe `demo:once`"), "{output}");
    assert!(output.stdout.contains("fires: 10\n"), "{output}");
}

#[test]
fn probes_of_a_library() {
    for mode in [Mode::User, Mode::Kernel] {
        let Some(path) = target("throw") else { return };
        let mut program = Program::start(&mut Command::new(path));
        let found = with_object(mode, "thrown.bpf.o", &[], &mut program, |program| program.ask("run 300"));
        let Some((report, answer)) = found else { continue };
        assert_eq!(answer, -150);
        // Odd values are thrown again, which is another probe.
        assert_eq!((variable(&report, "throws"), variable(&report, "objects")), (300, 300), "{mode:?}");
    }
}

#[test]
pub fn what_is_no_probe_is_said() {
    let (Some(object), Some(program)) = (target("usdt.bpf.o"), usdt()) else { return };
    let (object, pid) = (object.to_str().expect("UTF-8"), program.pid().to_string());
    let before = Snapshot::of(program.pid());
    for (place, code, message) in [
        ("usdt:usdt:demo:once", 1, "no USDT probe `demo:once`"),
        ("usdt:libc:demo:twice", 1, "no USDT probe `demo:twice`"),
        ("usdt:demo:twice", 2, "\"usdt:demo:twice\" is not usdt:OBJECT:PROVIDER:NAME"),
    ] {
        let attach = format!("on_twice={place}");
        let output = run(&mut sidestep(&["bpf", object, "-a", &attach, "-p", &pid]), LIMIT);
        assert_eq!(output.code(), code, "{output}");
        assert!(output.stderr.contains(message), "{output}");
        before.assert_same(&Snapshot::of(program.pid()));
    }
}
