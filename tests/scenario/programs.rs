//! bash, python3, grep, node and Go: counts that the programs themselves or the kernel know;
//! nothing else changes.

use std::path::{Path, PathBuf};
use std::process::Command;

use sidestep_tests::build::{have, target_dir};
use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{during, with_command};
use sidestep_tests::{Snapshot, kernel, skip, target};

use super::counts::work;

/// A file of a dynamically linked program that `ldd` shows, or the program itself.
fn library(program: &str, name: &str) -> PathBuf {
    let output = run(Command::new("ldd").arg(program), LIMIT).ok().stdout;
    let line =
        output.lines().find(|l| l.trim_start().starts_with(name)).unwrap_or_else(|| panic!("no {name}: {output}"));
    let path = line.split("=> ").nth(1).and_then(|l| l.split_whitespace().next()).expect("NAME => PATH (ADDRESS)");
    std::fs::canonicalize(path).expect("ldd knows where it is")
}

/// Counts functions by the kernel's uprobes, then by sidestep; the command does the same each time.
fn same_as_the_kernel(object: &Path, pattern: &str, functions: &[&str], command: &[&str]) {
    let plain = run(Command::new(command[0]).args(&command[1..]), LIMIT);
    let Some((_, expected)) = kernel::count(object, functions, command) else {
        skip("the kernel gives no uprobe counters here");
        return;
    };
    let again = kernel::count(object, functions, command).map(|(_, counts)| counts);
    assert_eq!(again.as_ref(), Some(&expected), "{command:?} does not do the same each time");
    for (function, expected) in functions.iter().zip(expected) {
        assert_ne!(expected, 0, "{function} is not called");
        for flags in [&[][..], &["--no-optimize"]] {
            let pattern = format!("{pattern}{function}");
            let args = [&["funccount"], flags, &[pattern.as_str()]].concat();
            let (output, report) = with_command(&args, command);
            assert_eq!((output.code(), &output.stdout), (plain.code(), &plain.stdout), "{}", report.0);
            report.assert_count(function, expected);
        }
    }
}

/// Ten thousand lines in a file of its own.
fn lines_file() -> String {
    let dir = target_dir().join("test-targets");
    std::fs::create_dir_all(&dir).expect("target directory is writable");
    let path = dir.join("numbers.txt");
    let half = dir.join(format!("numbers.{:?}", std::thread::current().id()));
    let text: String = (0..10_000).map(|n| format!("{n}\n")).collect();
    std::fs::write(&half, text).and_then(|()| std::fs::rename(&half, &path)).expect("target directory is writable");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn grep_as_the_kernel_counts() {
    if !have(&["grep"]) {
        return;
    }
    let file = lines_file();
    let libc = library("/bin/grep", "libc.so.6");
    // With a back reference it compiles and runs a regular expression with many allocations.
    let functions = ["malloc", "free", "calloc", "realloc"];
    same_as_the_kernel(&libc, "libc:", &functions, &["/bin/grep", "-c", r"\(7\).*\1", &file]);
}

#[test]
fn grep_latencies_and_exit_status() {
    if !have(&["grep"]) {
        return;
    }
    let file = lines_file();
    for (pattern, code, stdout) in [("7", 0, "3439\n"), ("x", 1, "0\n"), ("[", 2, "")] {
        let (output, report) = with_command(&["funclatency", "libc:malloc"], &["/bin/grep", "-c", pattern, &file]);
        assert_eq!((output.code(), output.stdout.as_str()), (code, stdout), "{}", report.0);
        assert!(report.latencies() > 0, "{}", report.0);
    }
}

#[test]
fn bash_builtins() {
    if !have(&["bash"]) {
        return;
    }
    let script = "for ((i = 0; i < 3000; i++)); do echo $i; done; x=$(echo sub); exit 5";
    let command = ["bash", "-c", script];
    let plain = run(Command::new(command[0]).args(&command[1..]), LIMIT);
    for flags in [&[][..], &["--no-optimize"]] {
        let (output, report) = with_command(&[&["funccount"], flags, &["echo_builtin"]].concat(), &command);
        assert_eq!((output.code(), output.stdout), (5, plain.stdout.clone()), "{}", report.0);
        // The one in the subshell is its own.
        report.assert_count("echo_builtin", 3000);
        let (output, report) = with_command(&[&["funclatency"], flags, &["echo_builtin"]].concat(), &command);
        assert_eq!((output.code(), output.stdout), (5, plain.stdout.clone()), "{}", report.0);
        assert_eq!(report.latencies(), 3000, "{}", report.0);
    }
}

#[test]
fn bash_as_the_kernel_counts() {
    if !have(&["bash"]) {
        return;
    }
    let script = "f() { local a=$1; a=${a/1/2}; echo $((a + 1)); }; for i in {1..300}; do f $i; done";
    let functions = ["execute_command_internal", "find_variable", "evalexp"];
    let bash = std::fs::canonicalize("/bin/bash").expect("installed");
    same_as_the_kernel(&bash, "", &functions, &["/bin/bash", "--norc", "-c", script]);
}

const PYTHON: &str = "import os, re, json
for i in range(12345): os.getppid()
print(len(json.dumps([{str(i): i * 1.5} for i in range(2000)])), re.sub('[aeiou]', '', 'scenario'))";

#[test]
fn python_calls_the_c_library() {
    if !have(&["python3"]) {
        return;
    }
    // Not one from PATH: that may be a script that starts another.
    let command = ["/usr/bin/python3", "-S", "-E", "-c", PYTHON];
    let plain = run(Command::new(command[0]).args(&command[1..]), LIMIT).ok();
    let (output, report) = with_command(&["funccount", "libc:getppid"], &command);
    assert_eq!(output.ok().stdout, plain.stdout);
    report.assert_count("getppid", 12_345);
    let (output, report) = with_command(&["funclatency", "libc:getppid"], &command);
    assert_eq!(output.ok().stdout, plain.stdout);
    assert_eq!(report.latencies(), 12_345, "{}", report.0);
}

#[test]
fn python_as_the_kernel_counts() {
    if !have(&["python3"]) {
        return;
    }
    let python = std::fs::canonicalize("/usr/bin/python3").expect("installed");
    let path = python.to_str().expect("UTF-8");
    let functions = ["PyDict_SetItem", "PyObject_GetAttr", "PyUnicode_FromFormat", "PyObject_Repr"];
    same_as_the_kernel(&python, "", &functions, &[path, "-S", "-c", PYTHON]);
}

fn go() -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target("grow")?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

#[test]
fn go_functions() {
    let Some((mut program, pid)) = go() else {
        return;
    };
    assert_eq!(program.ask("many 10"), 100 * work(10));
    let before = Snapshot::of(program.pid());
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [&["funccount"], flags, &["-p", &pid, "main.*"]].concat();
        let (report, answers) = during(&args, || (program.ask("work 5000"), program.ask("many 100")));
        assert_eq!(answers, (work(5000), 100 * work(100)), "{}", report.0);
        report.assert_count("main.leaf", 5000 + 100 * 100);
        report.assert_count("main.work", 1 + 100);
        report.assert_count("main.run", 2);
        // The runtime starts threads when it likes to: only the code is to be as before.
        for ((line, was), (_, is)) in before.code().zip(Snapshot::of(program.pid()).code()) {
            assert!(was == is, "code differs after the detach: {line}");
        }
    }
    program.finish().ok();
}

/// A function that finds its stack too small is started again by the runtime, on a stack at another
/// address.
#[test]
fn go_functions_that_move_their_stack() {
    let Some((mut program, pid)) = go() else {
        return;
    };
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [&["funccount"], flags, &["-p", &pid, "main.grow"]].concat();
        let (report, answer) = during(&args, || program.ask("deep 2000"));
        assert_eq!(answer, 10, "{}", report.0);
        report.assert_count("main.grow", 10 * 2001);
    }
    program.finish().ok();
}

#[test]
fn go_command() {
    let Some(path) = target("grow") else { return };
    let path = path.to_str().expect("UTF-8");
    let (output, report) = with_command(&["funccount", "main.leaf"], &[path, "many", "50"]);
    assert_eq!(output.ok().stdout, format!("{}\n", 100 * work(50)));
    report.assert_count("main.leaf", 5000);
}

/// A function without a stack check may be called at the very end of a goroutine's stack. What a
/// handler saved there overwrote the stack of another goroutine.
#[test]
fn handlers_in_go_functions_without_a_stack_check_overwrote_other_goroutines() {
    let Some(path) = target("nosplit") else { return };
    let path = path.to_str().expect("UTF-8");
    let plain = run(Command::new(path).arg("100"), LIMIT).ok().stdout;
    for tool in ["funclatency", "stackcount", "funccount"] {
        for flags in [&[][..], &["--no-optimize"]] {
            let args = [&[tool], flags, &["main.last"]].concat();
            let (output, report) = with_command(&args, &[path, "100"]);
            assert_eq!(output.ok().stdout, plain, "{args:?}: {}", report.0);
            if tool == "funccount" {
                report.assert_count("main.last", 464_000);
            }
        }
    }
}

/// `main.visit` is so short that it checks no stack and has no frame: its caller was left out.
#[test]
fn callers_of_short_go_functions() {
    let Some(path) = target("goroutines") else { return };
    let path = path.to_str().expect("UTF-8");
    let (output, report) = with_command(&["stackcount", "-f", "main.visit"], &[path, "4"]);
    output.ok();
    let ends: Vec<_> = report.0.stdout.lines().filter(|line| line.contains("main.visit")).collect();
    assert!(ends.iter().any(|line| line.ends_with("main.main.func1;main.visit 200")), "{}", report.0);
    assert!(ends.iter().any(|line| line.ends_with(";main.main;main.visit 1")), "{}", report.0);
}

/// V8 makes exceptions of faults, maps a part of the program a second time, and has threads that it
/// stops by signals.
#[test]
fn node_answers_the_same() {
    const COMMANDS: [&str; 5] = ["work 500", "workers 3", "faults 100", "signals 20", "children 3"];
    if !have(&["node"]) {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/jit.js");
    let mut program = Program::start(Command::new("node").arg(script));
    let pid = program.pid().to_string();
    let alone = COMMANDS.map(|command| program.ask(command));
    for (flags, pattern) in
        [(&[][..], "libc:mem*"), (&["--no-optimize"], "libc:mem*"), (&[], "uv_*"), (&["--no-optimize"], "uv_*")]
    {
        let args = [&["funccount"], flags, &["-p", &pid, pattern]].concat();
        let (report, answers) = during(&args, || COMMANDS.map(|command| program.ask(command)));
        assert_eq!(answers, alone, "{args:?}");
        assert!(report.counts().values().sum::<u64>() > 1000, "{}", report.0);
        assert_eq!(COMMANDS.map(|command| program.ask(command)), alone, "after the detach");
    }
    program.finish().ok();
}
