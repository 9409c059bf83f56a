//! `--info`: what it says of this machine and of a process agrees with what an attach does.

use std::process::Command;

use sidestep_tests::process::{LIMIT, Output, Program, run};
use sidestep_tests::tool::sidestep;
use sidestep_tests::{Snapshot, target};

fn info(pid: i32, flags: &[&str]) -> Output {
    let pid = pid.to_string();
    run(&mut sidestep(&[&["--info", "-p", &pid], flags].concat()), LIMIT)
}

/// The line about something.
#[track_caller]
fn line<'o>(output: &'o Output, name: &str) -> &'o str {
    let has = |line: &&str| line.get(9..).is_some_and(|rest| rest.starts_with(&format!("{name} ")));
    output.stdout.lines().find(has).unwrap_or_else(|| panic!("nothing about {name}: {output}"))
}

#[test]
fn this_machine_is_tried() {
    let output = run(&mut sidestep(&["--info"]), LIMIT).ok();
    assert!(line(&output, "trial").starts_with("ok "), "{output}");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc is there");
    assert!(line(&output, "system").contains(release.trim()), "{output}");
}

#[test]
fn a_process_is_left_as_it_was() {
    for name in ["counts", "counts-static"] {
        let Some(program) = target(name) else { return };
        let mut program = Program::start(&mut Command::new(program));
        let before = Snapshot::of(program.pid());
        let output = info(program.pid(), &[]).ok();
        assert!(line(&output, "process").starts_with("ok "), "{output}");
        assert_eq!(line(&output, "program").contains(" static"), name == "counts-static", "{output}");
        before.assert_same(&Snapshot::of(program.pid()));
        assert_eq!(program.ask("fib 10"), 55);
        program.finish().ok();
    }
}

/// What an attach to such a process says is what `--info` says.
#[test]
fn a_filter_that_kills_is_known_before() {
    let Some(path) = target("sandbox") else { return };
    for (how, verdict) in [("lock 0", "limited "), ("lock 1", "ok ")] {
        let mut program = Program::start(&mut Command::new(&path));
        assert_eq!(program.ask(how), 0, "the filter is installed");
        let before = Snapshot::of(program.pid());
        let output = info(program.pid(), &[]);
        let said = line(&output, "seccomp");
        // The first is about this shell.
        let of_process = output.stdout.lines().rev().find(|line| line.contains("  seccomp ")).unwrap_or(said);
        assert!(of_process.starts_with(verdict), "{output}");
        assert_eq!((output.code(), of_process.contains("funccount")), (0, how == "lock 0"), "{output}");
        before.assert_same(&Snapshot::of(program.pid()));
        assert_eq!(program.ask("work 100"), 100);
        program.finish().ok();
    }
}

#[test]
fn what_cannot_be_probed_is_said() {
    let mut gone = Command::new("true").spawn().expect("true");
    let pid = gone.id() as i32;
    gone.wait().expect("ends");
    let output = info(pid, &["-f", "json"]);
    assert_eq!(output.code(), 1, "{output}");
    let wanted = format!(
        r#"{{"type": "info", "data": {{"name": "process", "verdict": "no", "fact": "no process with pid {pid};"#
    );
    assert!(output.stdout.lines().any(|line| line.starts_with(&wanted)), "{output}");
}
