//! Types of C: where members lie, by the compiler's own answer.

use std::fs;
use std::process::Command;

use sidestep_tests::build::checkout;
use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::target;
use sidestep_tests::tool::{is_32_bit, sidestep};

/// What `records layouts` prints, and a script that prints the same.
fn layouts(program: &str) -> (String, String) {
    let output = run(Command::new(program).args(["layouts", "1"]), LIMIT);
    let lines: Vec<&str> = output.stdout.lines().filter(|line| *line != "1").collect();
    assert!(lines.len() > 30, "{output}");
    let print = |line: &&str| {
        let (what, _) = line.rsplit_once(' ').expect("a type or member, and a number");
        let measure = match what.split_once('.') {
            Some((ty, member)) => format!("offsetof({ty}, {member})"),
            None => format!("sizeof({what})"),
        };
        format!("printf(\"{what} %d\\n\", {measure}); ")
    };
    (lines.join("\n"), lines.iter().map(print).collect())
}

#[test]
pub fn declared_members_are_where_the_compiler_has_them() {
    let Some(program) = target("records") else { return };
    let (expected, prints) = layouts(&program.to_string_lossy());
    let text = fs::read_to_string(checkout().join("tests/targets/records.h")).expect("the declarations");
    let output = run(&mut sidestep(&["-q", "-e", &format!("{text} BEGIN {{ {prints} exit() }}")]), LIMIT);
    assert_eq!(output.stdout.trim_end(), expected, "{output}");
}

#[test]
pub fn described_members_are_where_the_compiler_has_them() {
    let Some(program) = target("records") else { return };
    let path = program.to_string_lossy();
    let (expected, prints) = layouts(&path);
    let script = format!("u:{path}:visit {{ {prints} }}");
    let results = std::env::temp_dir().join(format!("sidestep-records-{}-{}", std::process::id(), is_32_bit()));
    let out = results.to_string_lossy();
    let output = run(&mut sidestep(&["-q", "-e", &script, "-o", &out, "--", &path, "visits", "1"]), LIMIT);
    let found = fs::read_to_string(&results).unwrap_or_default();
    let _ = fs::remove_file(&results);
    assert_eq!(found.trim_end(), expected, "{output}");
}

#[test]
fn arguments_are_listed() {
    let Some(program) = target("records") else { return };
    let path = program.to_string_lossy();
    let list =
        |pattern: &str| run(&mut sidestep(&["-v", "-l", &format!("{pattern}:{path}:{}", "visit")]), LIMIT).stdout;
    assert_eq!(list("uprobe"), format!("uprobe:{path}:visit\n    const struct node* node\n    unsigned char depth\n"));
    assert_eq!(list("uretprobe"), format!("uretprobe:{path}:visit\n    long int retval\n"));
}

#[test]
fn a_program_without_debug_information_says_so() {
    let Some(program) = target("records-stripped") else { return };
    let path = program.to_string_lossy();
    let entry = run(Command::new("readelf").args(["-h", &path]), LIMIT).stdout;
    let entry = entry.lines().find_map(|line| line.trim().strip_prefix("Entry point address:")).expect("an entry");
    let script = format!("u:{path}:{} {{ print(args.node) }}", entry.trim());
    let output = run(&mut sidestep(&["-e", &script, "--", &path, "visits", "1"]), LIMIT);
    assert_eq!(output.code(), 1, "{output}");
    let expected = format!("no debug information of {path} (looked in {path}");
    assert!(output.stderr.contains(&expected) && output.stderr.contains("compile it with -g"), "{output}");
    assert!(output.stderr.contains("~~~~~~~~~"), "{output}");
}
