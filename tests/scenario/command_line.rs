//! What a new user types, and what is said to whom.

use std::process::Command;

use sidestep_tests::build::checkout;
use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::target;
use sidestep_tests::tool::sidestep;

/// The program whose functions are called, by its path.
fn program() -> Option<String> {
    Some(target("tools")?.to_str().expect("UTF-8").to_owned())
}

#[test]
fn a_command_needs_no_dashes() {
    let Some(program) = program() else { return };
    let output = run(&mut sidestep(&["funccount", "-q", "inner", &program, "calls", "7"]), LIMIT).ok();
    let expected = format!("28\n{:<36} {:>8}\n{:<36} {:>8}\n", "FUNC", "COUNT", "inner", 56);
    assert_eq!(output.stdout, expected, "{output}");
    // Its words are its own, and a format is not one of them.
    let args = ["stackcount", "-q", "-f", "text", "-d", "9", "inner", &program, "calls", "1"];
    let output = run(&mut sidestep(&args), LIMIT).ok();
    assert!(output.stdout.starts_with("4\n  inner\n"), "{output}");
    let output = run(&mut sidestep(&["funccount", "-p", "1", "inner", &program]), LIMIT);
    assert!(output.code() == 2 && output.stderr.contains("unexpected argument"), "{output}");
}

/// Globs of paths meant something in scripts alone.
#[test]
fn globs_of_paths_meant_nothing_in_tools() {
    let Some(program) = target("tools") else { return };
    let (folder, path) = (program.parent().expect("a folder"), program.to_str().expect("UTF-8"));
    let here = |args: &[&str]| run(sidestep(args).current_dir(folder), LIMIT).ok();
    let counted = here(&["funccount", "-q", "./to?ls:inner", "--", "./tools", "calls", "7"]);
    assert!(counted.stdout.ends_with(&format!("{:<36} {:>8}\n", "inner", 56)), "{counted}");
    let stacks = here(&["stackcount", "-q", "./to?ls:inner", "--", "./tools", "calls", "1"]);
    assert!(stacks.stdout.contains("\n  inner\n"), "{stacks}");
    assert_eq!(here(&["list", "./to?ls:inner"]).stdout, format!("{path}:inner\n"));
    assert!(here(&["explain", "./to?ls:inner"]).stdout.starts_with(&format!("inner in {path}\n")));
}

/// A pipe gets results alone.
#[test]
fn what_the_tool_does_was_said_among_the_results() {
    let Some(program) = program() else { return };
    let output = run(&mut sidestep(&["funccount", "inner", "--", &program, "calls", "7"]), LIMIT).ok();
    let expected = format!("28\n{:<36} {:>8}\n{:<36} {:>8}\n", "FUNC", "COUNT", "inner", 56);
    assert_eq!(output.stdout, expected, "{output}");
    assert_eq!(output.stderr, "Tracing 1 function for \"inner\"... Hit Ctrl-C to end.\nDetaching...\n");
    let output = run(&mut sidestep(&["-e", "begin { print(1) }"]), LIMIT).ok();
    assert_eq!((&*output.stdout, &*output.stderr), ("1\n\n\n", "Attached 1 probe\n"), "{output}");
}

#[test]
fn stacks_are_lists_in_json() {
    let Some(program) = program() else { return };
    let json = |args: &[&str]| run(&mut sidestep(&[args, &["--", &program, "calls", "2"]].concat()), LIMIT).ok().stdout;
    let plain = json(&["stackcount", "-q", "-f", "json", "inner"]);
    let rows: Vec<&str> = plain.lines().skip(1).collect();
    assert_eq!(rows.len(), 2, "{plain}");
    for (row, by, count) in [(rows[0], "left", 6), (rows[1], "right", 10)] {
        assert!(row.starts_with("{\"type\": \"stack\", \"data\": {\"stack\": [\"inner+0\", "), "{plain}");
        assert!(
            row.contains(&format!(", \"{by}+")) && row.ends_with(&format!("\"], \"count\": {count}}}}}")),
            "{plain}"
        );
    }
    let threads = json(&["stackcount", "-q", "-Pf", "json", "inner"]);
    assert!(threads.lines().skip(1).all(|row| row.contains("\"comm\": \"tools\", \"stack\": [\"inner+")), "{threads}");
    let slow = json(&["funcslower", "-q", "-u", "0", "-U", "-f", "json", "left"]);
    assert_eq!(slow.matches("\"func\": \"left\", \"stack\": [\"calls+").count(), 6, "{slow}");
}

#[test]
fn plans_and_functions_are_objects_in_json() {
    let Some(program) = program() else { return };
    let line = |command: &str| {
        let place = format!("{program}:nap");
        run(&mut sidestep(&[command, "-f", "json", &place]), LIMIT).ok().stdout
    };
    let function = format!(
        "{{\"type\": \"function\", \"data\": {{\"object\": \"{program}\", \"name\": \"nap\", \"address\": \"0x"
    );
    assert!(line("list").starts_with(&function), "{}", line("list"));
    let site =
        format!("{{\"type\": \"site\", \"data\": {{\"name\": \"nap\", \"object\": \"{program}\", \"address\": \"0x");
    assert!(line("explain").starts_with(&site) && line("explain").contains("\"technique\": \""), "{}", line("explain"));
}

/// The function goes on being called until the detach.
#[test]
fn hits_after_the_end_were_lost_events() {
    let Some(program) = target("script") else { return };
    let program = program.to_str().expect("UTF-8");
    let script = |what: &str| format!("u:{program}:add {{ printf(\"%d\\n\", arg0){what} }}");
    let end = script("; if (arg0 == 2) { exit() }");
    let output = run(&mut sidestep(&["-q", "-e", &end, "--", program, "adds", "3000000"]), LIMIT);
    // What the program prints may come first.
    assert!(output.stdout.contains("0\n1\n2\n\n\n"), "{output}");
    assert_eq!(output.stderr, "");
    let output = run(&mut sidestep(&["trace", "-M", "3", "add", "--", program, "adds", "3000000"]), LIMIT);
    assert!(output.stdout.matches(" add").count() == 3 && !output.stderr.contains("ost "), "{output}");
    // Before the end, they are, also if the end comes from elsewhere.
    let on_time = script("") + " interval:ms:30 { exit() }";
    let at_last = script("; if (arg0 == 29999999) { exit() }");
    for script in [on_time, at_last] {
        let command = ["--", program, "adds", "30000000"];
        let args = [&["-q", "-e", &script, "-o", "/dev/null"], &command[..]].concat();
        let output = run(&mut sidestep(&args), LIMIT);
        assert!(output.stderr.contains("Total lost event count: "), "{output}");
    }
}

#[test]
fn nothing_is_attached_so_far() {
    let Some(program) = program() else { return };
    let script = format!("u:{program}:inn* {{ @ = count() }}");
    let args = ["--follow", "-e", &script, "--", "sh", "-c", "\"$0\" calls 1; exit 0", &program];
    let output = run(&mut sidestep(&args), LIMIT).ok();
    assert_eq!(output.stdout, "4\n\n\n@: 8\n", "{output}");
    assert!(output.stderr.ends_with("\nAttached 0 probes so far\n"), "{output}");
}

#[test]
fn paths_with_globs_stay_as_they_are_written() {
    let Some(program) = program() else { return };
    let (folder, name) = program.rsplit_once('/').expect("a path");
    let here = |args: &[&str]| run(sidestep(args).current_dir(folder), LIMIT).ok().stdout;
    assert_eq!(here(&["-l", "u:./too*[s]:nap"]), format!("uprobe:./{name}:nap\n"));
    assert_eq!(here(&["-l", &format!("u:{folder}/tool?:nap")]), format!("uprobe:{program}:nap\n"));
    let script = "u:./tool*:nap, u:./tools:\"visit\"+0 { @[probe, func] = count() }";
    let command = ["--", &*program, "naps", "3"];
    assert_eq!(here(&[&["-q", "-e", script], &command[..]].concat()), "3\n\n\n@[uprobe:./tools:nap, nap]: 3\n");
    let script = "u:./tool*:\"visit\"+0 { @[probe, func] = count() }";
    let command = ["--", &*program, "visits", "3"];
    assert!(here(&[&["-q", "-e", script], &command[..]].concat()).ends_with("@[uprobe:./tools:visit, visit]: 4\n"));
    assert_eq!(here(&["-l", "interval:*"]), "interval:hz:\ninterval:ms:\ninterval:s:\ninterval:us:\n");
    assert_eq!(here(&["-l", "self:*"]), "self:signal:SIGUSR1\n");
    assert_eq!(here(&["-l", "inter*:*"]), "interval:hz:\ninterval:ms:\ninterval:s:\ninterval:us:\n");
    assert_eq!(here(&["-l", "interval"]), "interval:hz:\ninterval:ms:\ninterval:s:\ninterval:us:\n");
}

#[test]
fn a_process_that_does_not_exist_is_an_error_for_each_script() {
    let mut gone = Command::new("true").spawn().expect("true is there");
    let pid = gone.id().to_string();
    gone.wait().expect("own child");
    for script in ["begin { print(1) }", "interval:ms:1 { exit() }", "u:libc:malloc { print(1) }"] {
        let output = run(&mut sidestep(&["-p", &pid, "-e", script]), LIMIT);
        assert_eq!((output.code(), &*output.stdout), (1, ""), "{output}");
        assert!(output.stderr.contains(&pid) && output.stderr.lines().count() == 1, "{output}");
    }
}

/// A command was started only if the script probed something.
#[test]
fn a_command_that_nothing_probes_runs_with_the_intervals() {
    let run = |script: &str, command: &[&str]| run(&mut sidestep(&[&["-q", "-e", script], command].concat()), LIMIT);
    let script = "begin { printf(\"begin\\n\") } interval:ms:20 { @[cpid > 1] = count() }";
    let output = run(script, &["-c", "sh -c 'echo out; sleep 0.3; exit 7'"]);
    assert_eq!(output.code(), 7, "{output}");
    assert!(output.stdout.starts_with("begin\nout\n\n\n@[true]: "), "{output}");

    let output = run("interval:ms:20 { exit() }", &["-c", "sleep 1000"]);
    assert_eq!(output.code(), 0, "{output}");
    let output = run("begin { exit(3) }", &["-c", "echo out"]);
    assert_eq!((output.code(), &*output.stdout), (3, "\n\n"));
    let output = run("interval:s:1 { }", &["-c", "/never/heard/of"]);
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stderr.contains("cannot run /never/heard/of: No such file"), "{output}");
    // Those are the script's.
    let output = run("begin { print($1) }", &["--", "42"]).ok();
    assert_eq!(output.stdout, "42\n\n\n");
}

#[test]
fn a_decimal_address_was_taken_for_the_name_of_a_function() {
    let Some(program) = program() else { return };
    let output = run(&mut sidestep(&["-e", &format!("u:{program}:10 {{ }}"), "--", &program, "calls", "7"]), LIMIT);
    assert_eq!(output.code(), 1, "{output}");
    let message = format!("ERROR: Could not resolve address: {program}:0xa: 0xa is not in an executable section of ");
    assert!(output.stderr.contains(&message), "{output}");
}

#[test]
fn a_column_of_a_line_was_taken_for_a_language() {
    let Some(program) = target("script") else { return };
    let program = program.to_str().expect("UTF-8");
    let text = std::fs::read_to_string(checkout().join("tests/targets/script.c")).expect("tests/targets/script.c");
    let line = text.lines().position(|row| row.contains(" size(")).expect("a function of this name") + 1;
    let at = |column: &str| {
        let script = format!("u:{program}@script.c:{line}:{column} {{ @ = count() }}");
        run(&mut sidestep(&["-e", &script, "--", program, "sizes", "4"]), LIMIT)
    };
    let output = at("999");
    assert_eq!(output.code(), 1, "{output}");
    // The error names the columns that the compiler knows.
    let (_, columns) = output.stderr.split_once("; columns with code are ").unwrap_or_else(|| panic!("{output}"));
    let output = at(columns.split([',', '\n']).next().unwrap_or_default()).ok();
    assert!(output.stdout.ends_with("@: 4\n"), "{output}");
}
