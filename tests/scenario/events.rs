//! Lines as the kernel's `uprobe_events` takes them: what is printed, filtered, refused.

use std::path::PathBuf;
use std::process::Command;

use sidestep_tests::kernel::file_offset;
use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Report, during, is_32_bit, sidestep};
use sidestep_tests::{Snapshot, target};

fn start() -> Option<(PathBuf, Program, String)> {
    let path = target("counts")?;
    let program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    Some((path, program, pid))
}

/// `KIND PATH:OFFSET` of a function.
fn place(kind: &str, path: &std::path::Path, function: &str) -> String {
    format!("{kind} {}:{:#x}", path.display(), file_offset(path, function))
}

/// The text with `%di` and `%si`, where functions find their first arguments; in 32-bit programs
/// they are on the stack.
fn arguments(text: &str) -> String {
    match is_32_bit() {
        false => registers(text),
        true => text.replace("%di", "+4(%sp)").replace("%si", "+8(%sp)"),
    }
}

/// The text with the names of those registers on this machine.
fn registers(text: &str) -> String {
    if cfg!(target_arch = "aarch64") { text.replace("%di", "%x0").replace("%si", "%x1") } else { text.to_owned() }
}

/// The lines of events, from the event's name on.
fn events(report: &Report) -> Vec<String> {
    let lines = report.0.stdout.lines().skip_while(|line| !line.contains("TASK-TID")).skip(1);
    lines.filter_map(|line| Some(line.split_once(": ")?.1.to_owned())).collect()
}

/// What stands behind `NAME: (…) `.
fn fields(event: &str) -> &str {
    event.split_once(") ").map_or("", |(_, fields)| fields)
}

#[test]
pub fn values_are_printed_as_in_the_trace_file() {
    let Some((path, mut program, pid)) = start() else { return };
    let line = place("p:calls/text", &path, "text")
        + &arguments(" s=+0(%di):string n=%si:s32 c=+5(%di):char b=%si:b4@0/32 $comm");
    let (report, answer) = during(&["trace", "-p", &pid, &line], || program.ask("text 3"));
    assert_eq!(answer, 15);
    let events = events(&report);
    let expected: Vec<String> = (0..3).map(|i| format!("s=\"line {i}\" n=-1 c='{i}' b=15 arg5=\"counts\"")).collect();
    assert_eq!(events.iter().map(|event| fields(event)).collect::<Vec<_>>(), expected, "{}", report.0);
    // The address of the instruction: the last three digits are those in the file.
    let at = format!("{:03x}) ", file_offset(&path, "text") & 0xfff);
    assert!(events.iter().all(|event| event.starts_with("text: (0x") && event.contains(&at)), "{events:?}");
}

#[test]
pub fn returns_name_both_ends() {
    let Some((path, mut program, pid)) = start() else { return };
    let line = place("r:calls/ret", &path, "leaf") + " value=$retval:s64";
    let (report, _) = during(&["trace", "-p", &pid, &line], || program.ask("work 4"));
    let events = events(&report);
    assert_eq!(
        events.iter().map(|event| fields(event)).collect::<Vec<_>>(),
        ["value=1", "value=4", "value=7", "value=10"]
    );
    let function = format!("{:03x}) ", file_offset(&path, "leaf") & 0xfff);
    assert!(
        events.iter().all(|e| e.starts_with("ret: (0x") && e.contains(" <- 0x") && e.contains(&function)),
        "{events:?}"
    );
}

#[test]
pub fn filters_choose() {
    let Some((path, mut program, pid)) = start() else { return };
    for (values, filter, command, expected) in [
        (" x=%di", "x >= 995", "work 1000", 5),
        (" x=%di:s32", "x == 3 || x == 5 && !(x & 4)", "work 1000", 1),
        (" x=%di", "0", "work 7", 7),
    ] {
        let line = place("p", &path, "leaf") + &arguments(values);
        let (report, _) = during(&["trace", "-p", &pid, &line, "--filter", filter], || program.ask(command));
        assert_eq!(events(&report).len(), expected, "{filter}: {}", report.0);
    }
    for (filter, expected) in [("s ~ \"line 1*\"", 11), ("s == \"line 7\"", 1), ("s != \"line 7\" && n < 0", 19)] {
        let line = place("p", &path, "text") + &arguments(" s=+0(%di):string n=%si:s32");
        let (report, _) = during(&["trace", "-p", &pid, &line, "--filter", filter], || program.ask("text 20"));
        assert_eq!(events(&report).len(), expected, "{filter}: {}", report.0);
    }
}

#[test]
pub fn filters_choose_calls_of_functions_too() {
    let Some((_, mut program, pid)) = start() else { return };
    let args = ["trace", "-p", &pid, "leaf \"%ld\", arg0", "--filter", "arg0 > 97"];
    let (report, _) = during(&args, || program.ask("work 100"));
    let records = report.records();
    assert_eq!(records.iter().map(|words| *words.last().unwrap()).collect::<Vec<_>>(), ["98", "99"], "{}", report.0);
}

#[test]
pub fn what_cannot_be_read_is_a_fault() {
    let Some((path, mut program, pid)) = start() else { return };
    let before = Snapshot::of(program.pid());
    let line = place("p", &path, "leaf") + &arguments(" word=+8(%di) text=+0(%di):string deep=+0(+0(%di)):u8");
    let (report, answer) = during(&["trace", "-p", &pid, &line], || program.ask("work 5"));
    assert_eq!(answer, super::counts::work(5));
    let events = events(&report);
    let fault = "word=(fault) text=(fault) deep=(fault)";
    assert_eq!(events.iter().map(|event| fields(event)).collect::<Vec<_>>(), [fault; 5], "{}", report.0);
    before.assert_same(&Snapshot::of(program.pid()));
}

#[test]
pub fn json_has_the_fields() {
    let Some((path, mut program, pid)) = start() else { return };
    let line = place("p:calls/text", &path, "text") + &arguments(" s=+0(%di):string n=%si:s32");
    let (report, _) = during(&["trace", "-f", "json", "-p", &pid, &line], || program.ask("text 2"));
    let events: Vec<&str> = report.0.stdout.lines().filter(|line| line.contains("\"type\": \"event\"")).collect();
    assert_eq!(events.len(), 2, "{}", report.0);
    assert!(events[1].contains("\"fields\": {\"s\": \"line 1\", \"n\": -1}"), "{}", events[1]);
}

/// One message with the caret where the kernel's `error_log` has it, and nothing else happens.
#[test]
pub fn errors_point_at_the_place() {
    let Some((path, program, pid)) = start() else { return };
    let before = Snapshot::of(program.pid());
    let good = place("p:a/b", &path, "leaf");
    for (line, filter, message, at) in [
        (format!("{good} x=%dii"), None, "Invalid register name", "%dii"),
        (format!("{good} x=%di:u65"), None, "Unknown type is specified", "u65"),
        (format!("{good} x=%di x=%si"), None, "This argument name is already used", "x=%si"),
        ("p:a/b /bin/sh:10a".to_owned(), None, "Invalid uprobe offset", "10a"),
    ] {
        let (line, at) = (registers(&line), registers(at));
        let args = ["trace", "-p", &pid, &line];
        let args = [&args[..], filter.unwrap_or(&[])].concat();
        let output = run(&mut sidestep(&args), LIMIT);
        assert_eq!(output.code(), 2, "{output}");
        let mut lines = output.stderr.lines();
        assert!(lines.next().is_some_and(|first| first.contains(message)), "{output}");
        let (command, caret) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let column = command.rfind(&at).unwrap_or_else(|| panic!("{output}"));
        assert_eq!(caret.find('^'), Some(column), "{output}");
    }
    let output =
        run(&mut sidestep(&["trace", "-p", &pid, &registers(&format!("{good} x=%di")), "--filter", "y > 3"]), LIMIT);
    assert_eq!(output.code(), 2, "{output}");
    assert!(output.stderr.contains("Field not found"), "{output}");
    before.assert_same(&Snapshot::of(program.pid()));
}
