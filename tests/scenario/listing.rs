//! Attach points: what `-l` lists can be pasted back, and lines of source files are where the
//! program says.

use std::collections::BTreeSet;
use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, during, sidestep};
use sidestep_tests::{skip, target};

use crate::errors::refused;

fn listed(args: &[&str]) -> Vec<String> {
    let output = run(&mut sidestep(args), LIMIT).ok();
    output.stdout.lines().map(str::to_owned).collect()
}

/// nm is the oracle.
#[test]
fn a_program_is_listed_whole() {
    let Some(path) = target("counts") else { return };
    let path = path.to_string_lossy();
    let nm = run(Command::new("nm").args(["--defined-only", &path]), LIMIT).ok();
    let named = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Functions of the program; compilers add more symbols that are no functions.
        (words[1] == "T" && !words[2].starts_with('_')).then(|| format!("uprobe:{path}:{}", words[2]))
    };
    let wanted: BTreeSet<String> = nm.stdout.lines().filter_map(named).collect();
    let found: BTreeSet<String> = listed(&["-l", &path]).into_iter().collect();
    assert!(wanted.len() > 5 && wanted.is_subset(&found), "{:?}", wanted.difference(&found));
    for line in &found {
        assert_eq!(listed(&["-l", line]), [line.as_str()]);
    }
}

#[test]
fn names_of_cxx_are_pasted_back() {
    let Some(path) = target("throw") else { return };
    let path = path.to_string_lossy();
    let lines = listed(&["-l", &format!("uprobe:{path}:*")]);
    let quoted: Vec<&String> = lines.iter().filter(|line| line.contains(":cpp:\"")).collect();
    assert!(!quoted.is_empty(), "{lines:?}");
    for line in quoted {
        assert!(listed(&["-l", line]).contains(line), "{line}");
    }
    let mut sorted = lines.clone();
    sorted.sort();
    assert_eq!(lines, sorted);
}

/// They were all listed by the same name.
#[test]
fn overloads_of_cxx_are_listed_with_their_parameters() {
    let Some(path) = target("overloads") else { return };
    let path = path.to_string_lossy();
    let named = |name: &str| format!("uprobe:{path}:cpp:\"{name}\"");
    let lines = listed(&["-l", &format!("uprobe:{path}:cpp:add*")]);
    assert_eq!(lines, ["add(int, int)", "add(long, double)", "add_one"].map(named));
    for line in &lines {
        assert_eq!(listed(&["-l", line]), [line.as_str()]);
    }
}

/// They were listed as names of C++.
#[test]
fn names_of_rust_are_listed_as_such() {
    let Some(path) = target("panics") else { return };
    let path = path.to_string_lossy();
    let lines = listed(&["-l", &format!("uprobe:{path}:rust:panics::*")]);
    assert!(!lines.is_empty());
    for line in &lines {
        assert!(line.starts_with(&format!("uprobe:{path}:rust:\"panics::")), "{line}");
        assert!(listed(&["-l", line]).contains(line), "{line}");
    }
}

/// Both were `add`: in the table by addresses that change from run to run, in maps as one.
#[test]
fn overloads_of_cxx_are_told_apart_in_results() {
    let Some(path) = target("overloads") else { return };
    let path = path.to_string_lossy();
    let output = run(&mut sidestep(&["funccount", &format!("{path}:add*"), "--", &path]), LIMIT).ok();
    for name in ["add(int, int)", "add(long, double)", "add_one"] {
        let row = |line: &&str| line.trim_start().starts_with(name) && line.trim_end().ends_with(" 1");
        assert_eq!(output.stdout.lines().filter(row).count(), 1, "{name}: {output}");
    }
    let script = format!("u:{path}:add* {{ @[func] = count(); @p[probe] = count(); @s[ustack(1)] = count() }}");
    let output = run(&mut sidestep(&["-q", "-e", &script, "-c", &path]), LIMIT).ok();
    for name in ["add(int, int)", "add(long, double)", "add_one"] {
        assert!(output.stdout.contains(&format!("@[{name}]: 1\n")), "{output}");
        assert!(output.stdout.contains(&format!("@p[uprobe:{path}:{name}]: 1\n")), "{output}");
        assert!(output.stdout.contains(&format!("    {name}+0")), "{output}");
    }
}

#[test]
fn names_without_a_provider_are_looked_for_in_a_process() {
    let Some(path) = target("usdt") else { return };
    let program = Program::start(&mut Command::new(&path));
    let (pid, path) = (program.pid().to_string(), path.to_string_lossy());
    let lines = listed(&["-l", "-p", &pid, "fire*"]);
    assert!(lines.contains(&format!("usdt:{path}:demo:fired")), "{lines:?}");
    // All of the process: its own, and those of its libraries, if these have some.
    let (all, own) = (listed(&["-l", "-p", &pid, "usdt:*"]), listed(&["-l", &format!("usdt:{path}:*:*")]));
    assert!(own.len() >= 3 && own.iter().all(|line| all.contains(line)), "{all:?}, {own:?}");
    assert!(all.iter().all(|line| line.starts_with("usdt:/")), "{all:?}");
    // libc has it, and perhaps the loader.
    let lines = listed(&["-l", "-p", &pid, "uprobe:*:malloc"]);
    assert!(lines.iter().any(|line| line.contains("/libc.so") && line.ends_with(":malloc")), "{lines:?}");
    assert_eq!(listed(&["list", &format!("usdt:{path}:demo:fired")]), [format!("usdt:{path}:demo:fired")]);
    refused(&["-l", "-p", &pid, "no_such_*"], &["no_such_*"]);
    refused(&["-l", "-p", &pid, "BEGIN"], &["begin probes are not listed"]);
    let output = run(&mut sidestep(&["-l", "-p", &pid, "no_such.bt"]), LIMIT);
    assert!(output.stderr.starts_with("WARNING: It appears that 'no_such.bt' is a filename "), "{output}");
    program.finish().ok();
}

#[test]
fn a_script_that_is_not_there_is_no_pattern() {
    for (text, why) in [
        ("no_such.bt", "WARNING: It appears that 'no_such.bt' is a filename but the file does not exist. "),
        ("./no_such", "WARNING: It appears that './no_such' is a filename but "),
        ("no_such*", "error: `no_such*` does not say where to look: "),
    ] {
        let output = run(&mut sidestep(&["-l", text]), LIMIT);
        assert_eq!(output.code(), 2, "{output}");
        assert!(output.stderr.starts_with(why), "{output}");
    }
}

#[test]
fn points_of_a_script_are_listed() {
    let Some(path) = target("counts") else { return };
    let path = path.to_string_lossy();
    let script = std::env::temp_dir().join(format!("sidestep-list-{}.bt", std::process::id()));
    let text = format!("#!/usr/bin/env sidestep\nBEGIN {{ }} uprobe:{path}:$1, u:{path}:nothing {{ @ = count() }}\n");
    std::fs::write(&script, text).expect("/tmp is writable");
    let output = run(&mut sidestep(&["-l", script.to_str().expect("UTF-8"), "leaf"]), LIMIT).ok();
    std::fs::remove_file(script).expect("own file");
    assert_eq!(output.stdout, format!("uprobe:{path}:leaf\n"));
    assert!(output.stderr.starts_with(&format!("WARNING: No matches for uprobe {path}:nothing: ")), "{output}");
}

/// The program says how often it has run the line.
#[test]
fn a_line_of_a_source_file() {
    let dir = sidestep_tests::build::target_dir().join("test-targets");
    std::fs::create_dir_all(&dir).expect("target directory is writable");
    let source = dir.join("lines.c");
    let text = "#include <stdio.h>\nint main(void)\n{\n    volatile int sum = 0, odd = 0;\n    for (int i = 0; i < 50; i++) {\n        \
                if (i % 3 == 1)\n            odd++;\n        sum += i;\n    }\n    printf(\"%d\\n\", odd);\n    return 0;\n}\n";
    std::fs::write(&source, text).expect("target directory is writable");
    let program = dir.join("lines");
    let built = Command::new("cc").args(["-g", "-O1", "-o"]).arg(&program).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        return skip("no cc");
    }
    let program = program.to_str().expect("UTF-8");
    let script = format!("u:{program}@lines.c:7 {{ @ = count() }}");
    let output = run(&mut sidestep(&["-q", "-e", &script, "--", program]), LIMIT).ok();
    assert_eq!(output.stdout, "17\n\n\n@: 17\n");
    // What it is called, and what is listed, is an attach point of the same place.
    let script = format!("u:{program}@lines.c:7 {{ @[probe] = count() }}");
    let output = run(&mut sidestep(&["-q", "-e", &script, "--", program]), LIMIT).ok();
    let list = run(&mut sidestep(&["-l", &format!("u:{program}@lines.c:7")]), LIMIT).ok();
    let point = list.stdout.trim_end();
    assert!(point.starts_with(&format!("uprobe:{program}:main+")), "{list}");
    assert_eq!(output.stdout, format!("17\n\n\n@[{point}]: 17\n"));
    let output = run(&mut sidestep(&["-q", "-e", &format!("{point} {{ @ = count() }}"), "--", program]), LIMIT).ok();
    assert_eq!(output.stdout, "17\n\n\n@: 17\n");
    let output = run(&mut sidestep(&["-e", &format!("u:{program}@lines.c:99 {{ }}"), "--", program]), LIMIT);
    assert_eq!((output.code(), &*output.stdout), (1, ""), "{output}");
    for part in ["stdin:1:1-", "ERROR: No matches for uprobe", "no code at lines.c:99", "\n~~~~"] {
        assert!(output.stderr.contains(part), "no {part:?}: {output}");
    }
    refused(&["explain", &format!("{program}@line.c:7")], &["no source file `line.c`", "did you mean `lines.c`?"]);
}

/// Two objects that have a function of one name: the program's own and that of libc.
#[test]
fn every_object_is_meant_by_a_star() {
    let Some(path) = target("counts") else { return };
    let program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let lines = listed(&["-l", "-p", &pid, "uprobe:*:_init"]);
    let objects: BTreeSet<&str> = lines.iter().filter_map(|line| line.split(':').nth(1)).collect();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let with_init = |object: &&str| {
        let nm = run(Command::new("readelf").args(["-sW", object]), LIMIT);
        nm.stdout.lines().any(|line| line.contains(" FUNC ") && line.ends_with(" _init"))
    };
    let mapped: BTreeSet<&str> =
        maps.lines().filter(|line| line.contains(" r-xp ")).filter_map(|line| line.split_whitespace().nth(5)).collect();
    let wanted: BTreeSet<&str> = mapped.into_iter().filter(|path| path.starts_with('/')).filter(with_init).collect();
    assert!(!wanted.is_empty() && wanted.is_subset(&objects), "{wanted:?} {objects:?}");
    program.finish().ok();
}

/// Words of 64 bits were read where the program has stored its choice, and on arm32 the choice had
/// bit 0: the code was never found.
#[test]
pub fn an_indirect_function_of_a_32_bit_program_was_not_found() {
    let Some(path) = target("typed") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let (report, wrong) = during(&["funccount", "-p", &pid, "typed:chosen"], || program.ask("run 3"));
    assert_eq!(wrong, 0, "wrong results");
    report.assert_count("chosen", 3);
    program.finish().ok();
}

/// The symbol of an indirect function is that of the code which chooses it, and so is what
/// describes it.
#[test]
fn an_indirect_function_does_not_have_the_types_of_its_resolver() {
    let Some(path) = target("typed") else { return };
    let point = format!("uretprobe:{}:chosen", path.display());
    let output = run(&mut sidestep(&["-lv", &point]), LIMIT).ok();
    assert_eq!(output.stdout, format!("{point}\n"), "{output}");
    // In a process the code is known that was chosen.
    let mut program = Program::start(&mut Command::new(&path));
    let script =
        format!("uprobe:{}:chosen {{ @ = sum(args.x) }} {point} {{ @results[retval] = count() }}", path.display());
    let tracing = Tracing::start(&["-f", "json", "-p", &program.pid().to_string(), "-e", &script]);
    assert_eq!(program.ask("run 3"), 0, "wrong results");
    let report = tracing.stop();
    assert!(report.0.stdout.contains(r#"{"type": "map", "data": {"@": 3}}"#), "{}", report.0);
    assert!(report.0.stdout.contains(r#""@results": {"0": 1, "2": 1, "4": 1}"#), "{}", report.0);
    program.finish().ok();
}
