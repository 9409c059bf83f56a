//! Commands of one's own: exit status, input and output pass through; and what `list` shows.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use sidestep_tests::build::target_dir;
use sidestep_tests::process::{LIMIT, Running, run};
use sidestep_tests::target;
use sidestep_tests::tool::{Tracing, sidestep, with_command};

#[test]
fn exit_codes_pass() {
    for code in [0, 1, 3, 42, 255] {
        let (output, report) = with_command(&["funccount", "libc:malloc"], &["bash", "-c", &format!("exit {code}")]);
        assert_eq!(output.code(), code, "{output}");
        assert!(report.count("malloc") > 0, "{}", report.0);
    }
}

#[test]
fn death_by_signal_passes() {
    let signals = [(libc::SIGTERM, "TERM"), (libc::SIGKILL, "KILL"), (libc::SIGSEGV, "SEGV"), (libc::SIGTRAP, "TRAP")];
    for (signal, name) in signals {
        let script = format!("ulimit -c 0; kill -{signal} $$; sleep 30");
        for tool in ["funccount", "funclatency"] {
            let (output, _) = with_command(&[tool, "libc:malloc"], &["bash", "-c", &script]);
            assert_eq!(output.code(), 128 + signal, "{output}");
            assert!(output.stderr.contains(&format!("the command was killed by SIG{name}\n")), "{output}");
        }
    }
}

#[test]
fn command_in_one_word() {
    let output = run(&mut sidestep(&["funccount", "-c", "bash -c 'echo \"a  b\"; exit 9'", "libc:malloc"]), LIMIT);
    assert_eq!(output.code(), 9, "{output}");
    assert!(output.stdout.contains("a  b\n"), "{output}");
}

#[test]
fn input_and_output_pass() {
    let data: String = (0..200_000).map(|n| format!("{n:x}\n")).collect();
    let report = target_dir().join("cat-report");
    let mut command = sidestep(&["funclatency", "-o"]);
    command.arg(&report).args(["libc:read", "--", "grep", "^"]).stdin(Stdio::piped());
    let mut running = Running::start(&mut command);
    let mut stdin = running.take_stdin().expect("a pipe");
    let input = data.clone();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = running.finish(LIMIT).ok();
    writer.join().expect("no panic").expect("all was read");
    assert!(output.stdout == data, "grep's output differs: {} bytes of {}", output.stdout.len(), data.len());
    std::fs::remove_file(report).expect("a report was written");
}

#[test]
fn script_with_interpreter() {
    let script = target_dir().join("test-targets/interpreted");
    std::fs::create_dir_all(script.parent().expect("in a directory")).expect("writable");
    let half = script.with_extension("new");
    std::fs::write(&half, "#!/bin/bash\nfor i in 1 2 3 4 5; do echo $i; done\nexit 4\n").expect("writable");
    std::fs::set_permissions(&half, std::fs::Permissions::from_mode(0o755)).expect("own file");
    std::fs::rename(&half, &script).expect("same directory");
    let (output, report) = with_command(&["funccount", "bash:echo_builtin"], &[script.to_str().expect("UTF-8")]);
    assert_eq!((output.code(), output.stdout.as_str()), (4, "1\n2\n3\n4\n5\n"), "{output}");
    report.assert_count("echo_builtin", 5);
}

/// `-d` and SIGTERM end a session like Ctrl-C does, and the target goes on.
#[test]
pub fn ways_to_end() {
    let Some(path) = target("counts") else { return };
    let mut program = sidestep_tests::Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["funccount", "-d", "1", "-p", &pid, "leaf"]);
    program.ask("work 10");
    tracing.end().assert_count("leaf", 10);
    let tracing = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
    program.ask("work 11");
    tracing.signal(libc::SIGTERM);
    tracing.end().assert_count("leaf", 11);
    let tracing = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
    program.ask("work 12");
    program.finish().ok();
    tracing.end().assert_count("leaf", 12);
}

/// The names of `nm`, which is not ours.
#[test]
pub fn list_shows_what_nm_shows() {
    let Some(path) = target("counts") else { return };
    let nm = run(Command::new("nm").arg("--defined-only").arg(&path), LIMIT).ok().stdout;
    let expected: BTreeSet<String> = nm
        .lines()
        .filter_map(|l| l.split_once(" T ").or_else(|| l.split_once(" t "))?.1.split('@').next().map(str::to_owned))
        .filter(|name| name.starts_with('t') || name.starts_with('s') || name.starts_with('w'))
        .collect();
    assert!(expected.len() >= 5, "{nm}");
    let output = run(&mut sidestep(&["list", &format!("{}:[tsw]*", path.display())]), LIMIT).ok();
    let shown = output.stdout.lines().filter_map(|l| l.rsplit_once(':')?.1.split_whitespace().next());
    assert_eq!(shown.map(str::to_owned).collect::<BTreeSet<_>>(), expected, "{output}");
}

/// Each line of `list` can be given back.
#[test]
fn list_finds_libraries_by_short_name() {
    let output = run(&mut sidestep(&["list", "libc:*alloc*"]), LIMIT).ok();
    let names: BTreeSet<&str> = output.stdout.lines().filter_map(|l| Some(l.rsplit_once(':')?.1)).collect();
    for name in ["malloc", "calloc", "realloc", "reallocarray"] {
        assert!(names.contains(name), "no {name}: {output}");
    }
    let line = output.stdout.lines().find(|l| l.ends_with(":malloc")).expect("just seen");
    assert!(run(&mut sidestep(&["explain", line]), LIMIT).ok().stdout.contains("malloc"));
}
