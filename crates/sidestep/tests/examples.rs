//! The examples do what they say, those in C with the header and the shared library.

mod c;

use std::path::Path;
use std::process::Command;

use sidestep_tests::process::run;

use c::{LIMIT, libraries};

#[track_caller]
fn stdout(command: &mut Command) -> String {
    run(command.env("GREETING", "hello").env("FAREWELL", "goodbye"), LIMIT).ok().stdout
}

/// An example in Rust, which cargo has built, unless only this test was asked for.
#[track_caller]
fn rust(name: &str) -> String {
    let program = libraries().parent().unwrap().join("examples").join(name);
    assert!(program.exists(), "{} is not there: run all tests of the package", program.display());
    stdout(&mut Command::new(program))
}

/// An example in C.
#[track_caller]
fn c(name: &str) -> String {
    stdout(&mut c::program(&format!("examples/c/{name}.c"), &["-D_POSIX_C_SOURCE=200809L"]))
}

#[test]
fn allocations_are_counted() {
    let printed = rust("count_malloc");
    let count = printed.strip_prefix("1000 strings in a map: ").and_then(|rest| rest.split(' ').next());
    // A string each, nodes of up to 11 entries, and what the library itself needs to ask.
    assert!((1091..1400).contains(&count.unwrap().parse().unwrap()), "{printed}");
    assert_eq!(c("count_malloc"), "at least 100: yes\n");
}

#[test]
fn functions_are_timed() {
    let printed = rust("time_function");
    let milliseconds = printed.strip_prefix("3 calls, ").and_then(|rest| rest.strip_suffix(" milliseconds\n"));
    assert!(milliseconds.unwrap().parse::<u64>().unwrap() >= 6, "{printed}");
    assert_eq!(c("time_function"), "3 calls, 6 milliseconds or more: yes, sum 9\n");
}

#[test]
fn arguments_are_changed() {
    assert_eq!(rust("change_argument"), "before: hello\nprobed: goodbye\nafter: hello\n");
    assert_eq!(
        c("change_argument"),
        "probed: 10 20\ndisabled: 10 100\nenabled: 10 20\nunregistered: 10 100\nthe session has no registration 0\n"
    );
}

#[test]
fn handlers_of_a_place_are_switched() {
    assert_eq!(rust("several"), "both: 32\nthe second: 18\nnone: 6\nthe first: 8\nnone: 6\n");
    assert_eq!(c("several"), "both: 22\nthe second: 20\ntrap: 20\njump: 20\nthe first: 2\n");
}

#[test]
fn functions_are_replaced() {
    assert_eq!(rust("replace"), "before: 15 105\nreplaced: 15 94\nafter: 15 105\n");
    assert_eq!(c("replace"), "largest: 12345678\nblock: yes\n");
}

// The other process is bash, which has 64 bits; `programs` has one of each width.
#[cfg(target_arch = "x86_64")]
#[test]
fn other_processes_are_probed() {
    let printed = rust("other_process");
    assert_eq!(printed, ". Exited(0)\necho_builtin 3 Gone\nprintf_builtin 1 Gone\n");
    assert_eq!(c("other_process"), ". status 5\n0 bash echo_builtin 3 2\n1 bash printf_builtin 1 2\n");
}

#[test]
fn the_header_is_one_of_cpp_too() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/sidestep.h");
    let check = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"];
    run(Command::new("g++").args(check).arg(header), LIMIT).ok();
}
