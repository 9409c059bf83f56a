//! Without `--follow`, a child that still runs on its parent's memory (`vfork`, `posix_spawn`) is
//! not the probed process: it runs all probes, and none of its hits counts.

use std::process::Command;

use sidestep_tests::build::have;
use sidestep_tests::process::Program;
use sidestep_tests::tool::during;
use sidestep_tests::{Snapshot, target};

use super::counts::work;

/// Jumps, and traps.
const KINDS: [&str; 2] = ["-v", "--no-optimize"];
/// Hits of `leaf` around a child, in the parent alone.
const AROUND: i64 = 22;

/// The number that a script printed behind a name in its maps.
#[track_caller]
fn printed(text: &str, name: &str) -> i64 {
    let rest = text.split_once(&format!("\"{name}\": ")).map(|(_, rest)| rest);
    let number = rest.and_then(|rest| rest.split(['}', ',']).next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no {name}: {text}"))
}

/// Runs a script while a program does something that it has done once before, so that it leaves
/// nothing new behind.
fn traced(build: &str, script: &str, kind: &str, mut work: impl FnMut(&mut Program)) -> Option<String> {
    let mut program = Program::start(&mut Command::new(target(build)?));
    work(&mut program);
    let before = Snapshot::of(program.pid());
    let pid = program.pid().to_string();
    let (report, ()) = during(&[kind, "-f", "json", "-p", &pid, "-e", script], || work(&mut program));
    assert!(!report.0.stderr.contains("missed"), "{}", report.0);
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
    Some(report.0.stdout)
}

/// Counts in the detour, per thread, by a program that prints, and at returns.
fn counted(build: &str, kind: &str) {
    let script = "u:BUILD:leaf { @plain = count() } \
                  u:BUILD:leaf { @thread[tid] = count(); printf(\"hit %d %d\\n\", pid, tid) } \
                  ur:BUILD:leaf { @returned = count() }";
    let script = script.replace("BUILD", build);
    let mut expected = 0;
    let mut pid = 0;
    let text = traced(build, &script, kind, |program| {
        pid = program.pid();
        assert_eq!(program.ask("work 7"), work(7));
        assert_eq!(program.ask("vfork 20"), 20);
        assert_eq!(program.ask("exec 10"), 10);
        assert_eq!(program.ask("work 9"), work(9));
        expected = 7 + 20 * AROUND + 10 + 9;
    });
    let Some(text) = text else { return };
    assert_eq!(printed(&text, "@plain"), expected, "{build} {kind}: {text}");
    assert_eq!(printed(&text, "@returned"), expected, "{build} {kind}: {text}");
    assert_eq!(printed(&text, &pid.to_string()), expected, "{build} {kind}: {text}");
    let hits = text.matches("hit ").count();
    assert_eq!((hits as i64, text.matches(&format!("hit {pid} {pid}")).count()), (expected, hits), "{text}");
}

#[test]
pub fn children_of_vfork_counted_as_their_parents() {
    for kind in KINDS {
        counted("lent", kind);
    }
}

#[test]
pub fn children_of_static_programs_counted_as_their_parents() {
    for build in ["lent-static", "lent-musl"] {
        for kind in KINDS {
            counted(build, kind);
        }
    }
}

/// What `posix_spawn` does in the child goes through the C library's own functions.
#[test]
pub fn what_posix_spawn_does_in_the_child_counted_as_its_parents() {
    for kind in KINDS {
        let script = "u:libc:dup2 { @dup2 = count() } u:libc:execve { @execve = count() } \
                      u:libc:posix_spawn { @spawn = count() } u:libc:sigprocmask { @mask = count() } \
                      u:lent:leaf { @leaf = count() } BEGIN { @execve = count(); @mask = count() }";
        let text = traced("lent", script, kind, |program| assert_eq!(program.ask("spawn 30"), 30));
        let Some(text) = text else { return };
        assert_eq!((printed(&text, "@dup2"), printed(&text, "@leaf")), (30, 30), "{kind}: {text}");
        // But for what BEGIN has counted.
        assert_eq!((printed(&text, "@execve"), printed(&text, "@mask")), (1, 1), "{kind}: {text}");
    }
}

/// The number of musl's `clone` is in a part of its register.
#[test]
pub fn what_posix_spawn_of_musl_does_in_the_child_counted_as_its_parents() {
    for kind in KINDS {
        let script = "u:lent-musl:execve { @execve = count() } u:lent-musl:posix_spawn { @spawn = count() } \
                      u:lent-musl:leaf { @leaf = count() } BEGIN { @execve = count() }";
        let text = traced("lent-musl", script, kind, |program| assert_eq!(program.ask("spawn 30"), 30));
        let Some(text) = text else { return };
        assert_eq!((printed(&text, "@execve"), printed(&text, "@leaf")), (1, 30), "{kind}: {text}");
    }
}

/// Go makes children with `clone`, whose number it takes from the stack.
#[test]
fn what_go_does_in_the_child_counted_as_its_parents() {
    let Some(path) = target("grow") else { return };
    let mut program = Program::start(&mut Command::new(path));
    assert_eq!(program.ask("spawn 3"), 3);
    let pid = program.pid().to_string();
    let script = "u:grow:syscall.runtime_AfterForkInChild { @inside = count() } u:grow:syscall.forkExec { @calls = count() } \
                  u:grow:main.leaf { @leaf = count() } BEGIN { @inside = count() }";
    for kind in KINDS {
        let (report, answers) = during(&[kind, "-f", "json", "-p", &pid, "-e", script], || {
            (program.ask("spawn 20"), program.ask("work 10"))
        });
        assert_eq!(answers, (20, work(10)), "{}", report.0);
        let text = &report.0.stdout;
        let counts = (printed(text, "@inside"), printed(text, "@calls"), printed(text, "@leaf"));
        assert_eq!(counts, (1, 20, 10), "{kind}: {text}");
    }
    program.finish().ok();
}

/// A probe of the function whose first instructions are where a guard has to be.
#[test]
pub fn the_functions_that_make_children_are_probed_all_the_same() {
    for kind in KINDS {
        let script = "u:libc:vfork { @vfork = count() } u:libc:clone { @clone = count() } u:lent:leaf { @leaf = count() } \
                      u:libc:posix_spawn { @spawn = count() }";
        let text = traced("lent", script, kind, |program| {
            assert_eq!(program.ask("vfork 20"), 20);
            assert_eq!(program.ask("spawn 10"), 10);
        });
        let Some(text) = text else { return };
        assert_eq!((printed(&text, "@vfork"), printed(&text, "@leaf")), (20, 20 * AROUND + 10), "{kind}: {text}");
    }
}

/// Python's `subprocess` has a child of `vfork` that does much before it executes anything.
#[test]
fn children_of_python_counted_as_their_parents() {
    const CODE: &str = "import subprocess, sys\nprint('ready', flush=True)\nfor line in sys.stdin:\n n = int(line.split()[1])\n \
                        print(sum(subprocess.run(['/bin/true'], cwd='/').returncode == 0 for _ in range(n)), flush=True)";
    if !have(&["python3"]) {
        return;
    }
    for kind in KINDS {
        let mut program = Program::start(Command::new("python3").args(["-c", CODE]));
        let pid = program.pid().to_string();
        assert_eq!(program.ask("run 2"), 2);
        let script = "BEGIN { @inside = count() } u:libc:chdir,u:libc:execve,u:libc:setsid { @inside = count() } \
                      u:libc:vfork { @vfork = count() } u:libc:waitpid,u:libc:wait4 { @wait[pid] = count() }";
        let (report, answer) = during(&[kind, "-f", "json", "-p", &pid, "-e", script], || program.ask("run 10"));
        assert_eq!(answer, 10, "{}", report.0);
        let text = &report.0.stdout;
        assert_eq!((printed(text, "@inside"), printed(text, "@vfork")), (1, 10), "{kind}: {text}");
        assert!(printed(text, &pid) >= 10, "{kind}: {text}");
        program.finish().ok();
    }
}

#[test]
pub fn threads_that_make_children_at_once() {
    for kind in KINDS {
        let script = "u:lent:leaf { @plain = count(); @sum[tid] = sum(arg0) } ur:lent:leaf { @returned = count() }";
        let text = traced("lent", script, kind, |program| {
            assert_eq!(program.ask("threads 100"), 400);
            assert_eq!(program.ask("work 5"), work(5));
        });
        let Some(text) = text else { return };
        let expected = 400 * AROUND + 5;
        assert_eq!((printed(&text, "@plain"), printed(&text, "@returned")), (expected, expected), "{kind}: {text}");
    }
}

/// Between the guard and its call, too: the kernel makes the call anew when the handler has
/// returned.
#[test]
pub fn signal_handlers_that_hit_probes_before_the_child_is_made() {
    for kind in KINDS {
        let script =
            "u:lent:leaf { @plain = count() } u:lent:tick { @ticks = count() } ur:lent:tick { @ended = count() }";
        let mut ticks = 0;
        let text = traced("lent", script, kind, |program| ticks = program.ask("signals 1000"));
        let Some(text) = text else { return };
        let counted = (printed(&text, "@plain"), printed(&text, "@ticks"), printed(&text, "@ended"));
        assert_eq!(counted, (1000 * AROUND, ticks, ticks), "{kind}: {text}");
    }
}

#[test]
pub fn signal_handlers_that_make_children() {
    for kind in KINDS {
        let script = "u:lent:leaf { @plain = count(); @each[tid] = count() } ur:lent:leaf { @returned = count() }";
        let (mut pid, mut rounds) = (0, 0);
        let text = traced("lent", script, kind, |program| {
            (pid, rounds) = (program.pid(), program.ask("handlers 50"));
        });
        let Some(text) = text else { return };
        let counted = (printed(&text, "@plain"), printed(&text, "@returned"), printed(&text, &pid.to_string()));
        assert_eq!(counted, (20 * rounds, 20 * rounds, 20 * rounds), "{kind}: {text}");
    }
}

/// A trap killed a child that was made without signal handlers, as `posix_spawn` of glibc 2.38
/// does. Without them it is all the same.
#[test]
pub fn children_without_handlers_were_killed_by_traps() {
    for flags in [&["--live"][..], &["--no-optimize"], &["--no-optimize", "--follow"]] {
        let Some(path) = target("lent") else { return };
        let mut program = Program::start(&mut Command::new(path));
        let pid = program.pid().to_string();
        assert_eq!(program.ask("clear 2"), 2);
        let args = [flags, &["-f", "json", "-p", &pid, "-e", "u:lent:leaf { @plain = count() }"]].concat();
        let (report, answer) = during(&args, || program.ask("clear 20"));
        assert_eq!(answer, 20, "{flags:?}: {}", report.0);
        let children = if flags.contains(&"--follow") { 20 * 2 * 21 } else { 0 };
        assert_eq!(printed(&report.0.stdout, "@plain"), 20 + children, "{flags:?}: {}", report.0);
        assert_eq!(program.ask("clear 2"), 2);
        program.finish().ok();
    }
}
