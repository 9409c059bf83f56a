//! Wrong input: one clear line on stderr, exit code 1, nothing touched.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use sidestep_tests::build::{installed, target_dir};
use sidestep_tests::process::{LIMIT, Output, Program, Running, eventually, run};
use sidestep_tests::tool::{path, sidestep};
use sidestep_tests::{Snapshot, skip, target};

/// One line on stderr that contains all of `words`, nothing on stdout, exit code 1.
#[track_caller]
pub fn assert_refused(output: &Output, words: &[&str]) {
    assert_eq!(output.code(), 1, "{output}");
    assert_eq!(output.stdout, "", "{output}");
    assert_eq!(output.stderr.trim_end().lines().count(), 1, "not one line: {output}");
    assert!(output.stderr.starts_with("sidestep: "), "{output}");
    for word in words {
        assert!(output.stderr.contains(word), "no {word:?}: {output}");
    }
}

/// [`assert_refused`] of a run of the tool.
#[track_caller]
pub fn refused(args: &[&str], words: &[&str]) {
    assert_refused(&run(&mut sidestep(args), LIMIT), words);
}

fn scratch(name: &str) -> PathBuf {
    let dir = target_dir().join("test-targets");
    std::fs::create_dir_all(&dir).expect("target directory is writable");
    dir.join(format!("{name}.{}", std::process::id()))
}

#[test]
fn a_block_that_is_too_long_was_called_a_bug_of_sidestep() {
    let block = "{ unroll(75) { unroll(75) { @x[pid] = count() } } }";
    refused(&["-e", &format!("BEGIN {block}")], &["the block of begin is too long"]);
    let args = ["-e", &format!("u:libc:malloc {block}"), "-c", "/bin/true"];
    refused(&args, &["the block of uprobe:libc:malloc is too long"]);
}

#[test]
fn no_such_process() {
    let mut gone = Command::new("true").spawn().expect("true");
    let pid = gone.id().to_string();
    gone.wait().expect("ends");
    for tool in ["funccount", "funclatency", "trace"] {
        refused(&[tool, "-p", &pid, "main"], &[&pid]);
    }
    refused(&["list", "-p", &pid, "*"], &[&pid]);
}

#[test]
fn not_a_pid() {
    for pid in ["a1111", "-5", "0", "99999999999"] {
        let output = run(&mut sidestep(&["funccount", &format!("-p{pid}"), "main"]), LIMIT);
        assert!([1, 2].contains(&output.code()) && !output.stderr.is_empty(), "{output}");
        assert_eq!(output.stdout, "", "{output}");
    }
}

#[test]
fn zombie() {
    let mut zombie = Command::new("true").spawn().expect("true");
    let pid = zombie.id().to_string();
    let stat = format!("/proc/{pid}/stat");
    assert!(eventually(LIMIT, || std::fs::read_to_string(&stat).is_ok_and(|s| s.contains(") Z "))));
    refused(&["funccount", "-p", &pid, "main"], &[&pid]);
    zombie.wait().expect("ends");
}

#[test]
fn kernel_thread() {
    if !std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        skip("no kernel threads to be seen here");
        return;
    }
    refused(&["funccount", "-p", "2", "main"], &["2"]);
}

/// As `nobody`, on a process of root (as another user, on pid 1).
#[test]
fn process_of_another_user() {
    let Some(program) = target("counts") else {
        return;
    };
    let mut program = Program::start(&mut Command::new(program));
    let before = Snapshot::of(program.pid());
    let owned_by_root = std::fs::read_to_string("/proc/self/status").is_ok_and(|s| s.contains("\nUid:\t0\t0"));
    let output = if owned_by_root {
        if !installed("setpriv") {
            return skip("no setpriv");
        }
        // The checkout may lie where nobody cannot go.
        let copy = std::env::temp_dir().join(format!("sidestep-{}", std::process::id()));
        std::fs::copy(path(), &copy).expect("/tmp is writable");
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).expect("own file");
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).current_dir("/");
        let output = run(command.args(["funccount", "-p", &program.pid().to_string(), "leaf"]), LIMIT);
        std::fs::remove_file(copy).expect("own file");
        output
    } else {
        run(&mut sidestep(&["funccount", "-p", "1", "main"]), LIMIT)
    };
    assert_refused(&output, &["root"]);
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("fib 10"), 55);
    program.finish().ok();
}

/// A process that strace watches has its one tracer.
#[test]
fn process_under_a_debugger() {
    let Some(program) = target("counts") else {
        return;
    };
    if !installed("strace") {
        return skip("no strace");
    }
    let mut program = Program::start(&mut Command::new(program));
    let pid = program.pid().to_string();
    let strace = Running::start(Command::new("strace").args(["-o", "/dev/null", "-p", &pid]));
    let status = format!("/proc/{pid}/status");
    let traced = || std::fs::read_to_string(&status).is_ok_and(|s| !s.contains("TracerPid:\t0\n"));
    assert!(eventually(LIMIT, traced), "strace does not attach");
    refused(&["funccount", "-p", &pid, "leaf"], &["strace"]);
    drop(strace);
    assert_eq!(program.ask("fib 10"), 55);
    program.finish().ok();
}

#[test]
fn unknown_symbol_names_the_nearest() {
    let Some(path) = target("counts") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let before = Snapshot::of(program.pid());
    refused(&["funccount", "-p", &pid, "leef"], &["leef", "leaf"]);
    refused(&["funccount", "-p", &pid, "libc:mallocc"], &["mallocc", "malloc"]);
    refused(&["funclatency", "-p", &pid, "no_such_*"], &["no_such_*"]);
    refused(&["trace", "-p", &pid, "leef \"%d\", arg0"], &["leef", "leaf"]);
    refused(&["funccount", "-p", &pid, "libnosuch:malloc"], &["libnosuch"]);
    refused(&["explain", &format!("{}:leef", path.display())], &["leef", "leaf"]);
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("fib 10"), 55);
    program.finish().ok();
}

#[test]
fn no_elf_file() {
    let text = scratch("text");
    std::fs::write(&text, "this is a text\n".repeat(100)).expect("writable");
    let empty = scratch("empty");
    std::fs::write(&empty, "").expect("writable");
    for file in [&text, &empty, &PathBuf::from("/nonexistent/file"), &PathBuf::from("/tmp")] {
        let file = file.to_str().expect("UTF-8");
        refused(&["explain", &format!("{file}:main")], &[file]);
        refused(&["list", &format!("{file}:*")], &[file]);
        refused(&["coverage", file], &[file]);
    }
    std::fs::remove_file(text).expect("own file");
    std::fs::remove_file(empty).expect("own file");
}

/// Headers that point nowhere, and a file that ends too early: an error or an answer, but never a
/// crash or much memory.
#[test]
fn corrupt_elf_file() {
    let Some(path) = target("counts") else { return };
    let good = std::fs::read(path).expect("just built");
    let file = scratch("corrupt");
    let name = file.to_str().expect("UTF-8").to_owned();
    let check = |what: &str, bytes: &[u8], must_fail: bool| {
        std::fs::write(&file, bytes).expect("writable");
        let (function, functions) = (format!("{name}:leaf"), format!("{name}:l*"));
        for args in [&["explain", &function][..], &["list", &functions], &["coverage", "-a", &name]] {
            let output = run(&mut sidestep(args), LIMIT);
            if must_fail || output.code() != 0 {
                assert!(output.stderr.contains(&name), "{what}: {output}");
                assert_refused(&output, &[]);
            }
        }
    };
    check("truncated in the header", &good[..40], true);
    check("truncated behind the header", &good[..64], true);
    check("truncated in the middle", &good[..good.len() / 2], false);
    // Offsets of ELF header fields: e_phoff, e_shoff, e_phentsize, e_phnum, e_shentsize, e_shnum,
    // e_shstrndx, e_machine.
    for (at, len) in [(0x20, 8), (0x28, 8), (0x36, 2), (0x38, 2), (0x3a, 2), (0x3c, 2), (0x3e, 2), (0x12, 2)] {
        for value in [0xff, 0x7f, 0x01] {
            let mut bad = good.clone();
            bad[at..at + len].fill(value);
            check(&format!("{len} bytes at {at:#x} = {value:#x}"), &bad, false);
        }
    }
    std::fs::remove_file(file).expect("own file");
}

#[test]
fn command_that_cannot_run() {
    refused(&["funccount", "main", "--", "/nonexistent/program"], &["/nonexistent/program"]);
    refused(&["funccount", "main", "--", "no-such-program-anywhere"], &["no-such-program-anywhere"]);
    refused(&["funccount", "main", "--", "/tmp"], &["/tmp"]);
    refused(&["funccount", "no_such_function", "--", "/bin/true"], &["no_such_function"]);
}
