//! Code that a program makes at run time has the names that the program writes into
//! `/tmp/perf-PID.map`.

use std::os::unix::fs::{chown, symlink};
use std::path::PathBuf;
use std::process::Command;

use sidestep_tests::process::{LIMIT, Output, Program, run};
use sidestep_tests::target;
use sidestep_tests::tool::{Tracing, sidestep};

/// The file of a process, which nobody else removes.
struct Map(PathBuf);

impl Map {
    fn of(pid: &str) -> Map {
        Map(format!("/tmp/perf-{pid}.map").into())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn start() -> Option<(Program, String, Map)> {
    let program = Program::start(&mut Command::new(target("generated")?));
    let pid = program.pid().to_string();
    let map = Map::of(&pid);
    Some((program, pid, map))
}

fn script() -> String {
    let path = target("generated").map_or_else(String::new, |path| path.display().to_string());
    format!(
        "u:{path}:leaf {{ @[ustack(3)] = count() }} u:{path}:enter {{ printf(\"%s\\n\", usym(arg0)) }} \
         interval:ms:50 {{ printf(\"Tracing on\\n\") }}"
    )
}

/// What is printed of what the program does.
fn traced(program: &mut Program, commands: &[&str]) -> Output {
    let tracing = Tracing::start(&["-p", &program.pid().to_string(), "-e", &script()]);
    for command in commands {
        program.ask(command);
    }
    tracing.stop().0
}

/// Bytes up to the one behind the call, at most.
const BEHIND: u64 = 16;

/// Whether a frame behind `leaf` is of this function.
fn has_frame(output: &Output, name: &str) -> bool {
    let lines: Vec<&str> = output.stdout.lines().map(str::trim).collect();
    lines.windows(3).any(|frames| {
        let offset = frames[1].strip_prefix(name).and_then(|rest| rest.strip_prefix('+')?.parse::<u64>().ok());
        frames[0].starts_with("leaf+0")
            && offset.is_some_and(|at| at <= BEHIND && at > 0)
            && frames[2].starts_with("enter+")
    })
}

#[test]
pub fn frames_have_the_names_that_the_program_wrote() {
    let Some((mut program, _, _map)) = start() else { return };
    let output = traced(&mut program, &["first 3", "second 2"]);
    // What acts on a terminal is shown, not done.
    assert!(has_frame(&output, "first with a blank\\x1b[31m"), "{output}");
    // That line came while the probes were there.
    assert!(has_frame(&output, "second"), "{output}");
    for (name, count) in [("first with a blank\\x1b[31m", 3), ("second", 2)] {
        assert_eq!(output.stdout.lines().filter(|line| *line == name).count(), count, "{output}");
    }
    // New code in the place of the first.
    let output = traced(&mut program, &["third 1"]);
    assert!(has_frame(&output, "third") && !output.stdout.contains("first with"), "{output}");
    program.finish().ok();
}

#[test]
pub fn the_file_is_read_when_the_program_has_ended() {
    let Some(path) = target("generated") else { return };
    let command = format!("{} first 4", path.display());
    let output = run(
        &mut sidestep(&[
            "-q",
            "-e",
            &script().replace("enter {", "enter { printf(\"pid %d\\n\", pid);"),
            "-c",
            &command,
        ]),
        LIMIT,
    )
    .ok();
    let pid = output.stdout.lines().find_map(|line| line.strip_prefix("pid "));
    let _map = Map::of(pid.expect("a hit"));
    assert!(has_frame(&output, "first with a blank\\x1b[31m"), "{output}");
}

/// A name comes from a file of the program's user or of root, which is nothing but a file.
#[test]
pub fn what_somebody_else_may_have_put_there_is_not_read() {
    let Some((mut program, _, map)) = start() else { return };
    let named = |program: &mut Program| {
        let output = traced(program, &["first 1"]);
        assert!(output.stdout.contains("leaf+0"), "{output}");
        has_frame(&output, "first with a blank\\x1b[31m")
    };
    assert!(named(&mut program));
    // Of another user: only root can give files away.
    if chown(&map.0, Some(65534), None).is_ok() {
        assert!(!named(&mut program));
        chown(&map.0, Some(0), None).expect("given away before");
        assert!(named(&mut program));
    }
    let moved = Map(map.0.with_extension("moved"));
    std::fs::rename(&map.0, &moved.0).expect("the file is there");
    assert!(!named(&mut program));
    symlink(&moved.0, &map.0).expect("/tmp is writable");
    assert!(!named(&mut program));
    std::fs::remove_file(&map.0).expect("made above");
    // Whoever opens it to read waits for a writer.
    run(Command::new("mkfifo").arg(&map.0), LIMIT).ok();
    assert!(!named(&mut program));
    program.finish().ok();
}
