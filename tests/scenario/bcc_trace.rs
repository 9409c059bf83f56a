//! `trace` with the flags, conditions and signatures that bcc's users know.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::target;
use sidestep_tests::tool::{Report, sidestep, with_command};

/// Runs `trace` on a target with a command of its own.
#[track_caller]
fn traced(name: &str, work: &[&str], args: &[&str]) -> Option<Report> {
    let path = target(name)?;
    let program = path.to_str().expect("UTF-8");
    let (output, report) = with_command(&[&["trace"], args].concat(), &[&[program], work].concat());
    output.ok();
    Some(report)
}

/// What is printed behind the function's name.
fn messages(report: &Report) -> Vec<String> {
    report.records().iter().map(|words| words[4..].join(" ")).collect()
}

#[test]
fn conditions_and_signatures() {
    let specs = ["named(const char *name, long n) (n > 1 && STRCMP(\"beta\", name)) \"%s %d\", name, n"];
    let Some(report) = traced("script", &["names", "20"], &specs) else { return };
    assert_eq!(messages(&report), ["beta 6", "beta 11", "beta 16"], "{}", report.0);
    let specs =
        ["add (arg0 == 2) \"%d %x\", arg1, (u16)arg1", "r:add (retval == -3) \"= %d in %d\", retval, $tgid - $pid"];
    let Some(report) = traced("script", &["adds", "5"], &specs) else { return };
    assert_eq!(messages(&report), ["-4 fffc", "= -3 in 0"], "{}", report.0);
    let specs = ["visit(struct node *node) (node->next != 0) \"%s then %s\", node->name, node->next->name"];
    let Some(report) = traced("tools", &["visits", "2"], &specs) else { return };
    assert_eq!(messages(&report), ["first then second"; 2], "{}", report.0);
    // The function at an address, which is a register's value here.
    let Some(report) = traced("tools", &["calls", "1"], &["inner (arg0 == 4) \"%U\", %ip"]) else { return };
    assert!(messages(&report).iter().all(|message| message.starts_with("inner")), "{}", report.0);
    assert_eq!(report.records().len(), 1, "{}", report.0);
}

#[test]
fn static_probes() {
    let Some(path) = target("usdt") else { return };
    let spec = format!("u:{}:demo:fired (arg1 != 1) \"%ld %d\", arg1, arg2", path.display());
    let Some(report) = traced("usdt", &["fire", "3"], &[&spec]) else { return };
    assert_eq!(messages(&report), ["2 -3", "3 -3"], "{}", report.0);
    assert!(report.records().iter().all(|words| words[3] == "fired"), "{}", report.0);
}

#[test]
fn columns_are_those_of_bcc() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    for (flags, heading) in [
        (&[][..], "PID     TID     COMM            FUNC             -"),
        (&["-T"], "TIME     PID     TID     COMM            FUNC             -"),
        (&["-C", "-t"], "TIME     CPU PID     TID     COMM            FUNC             -"),
        (&["-tu"], "TIME              PID     TID     COMM            FUNC             -"),
        (&["-T", "--print_cpu"], "TIME     CPU PID     TID     COMM            FUNC             -"),
    ] {
        let (spec, before) = ("add (arg0 == 1) \"%d\", arg1", now());
        let Some(report) = traced("script", &["adds", "3"], &[flags, &[spec]].concat()) else { return };
        let stderr = report.0.stderr.lines().chain(report.0.stdout.lines());
        assert_eq!(stderr.filter(|line| *line == heading).count(), 1, "{flags:?}: {}", report.0);
        let line = report.0.stdout.lines().last().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let columns = heading.split_whitespace().position(|word| word == "PID").expect("a column");
        assert_eq!((words[columns + 3], words[columns + 4]), ("add", "-2"), "{line}");
        // The columns begin where the heading's do.
        assert!(line[heading.find("FUNC").expect("a column")..].starts_with("add "), "{line}");
        match flags {
            ["-tu"] => {
                let at: f64 = words[0].parse().expect("seconds");
                assert!((before - 0.1..=now() + 0.1).contains(&at), "{line}");
            }
            ["-C", "-t"] => assert!(words[0].parse::<f64>().is_ok_and(|at| at < now() - before + 0.1), "{line}"),
            _ => {}
        }
    }
}

#[test]
fn stacks_follow_their_line() {
    let Some(report) = traced("tools", &["calls", "1"], &["-U", "inner \"%s\", arg1"]) else { return };
    let calls: Vec<&str> = report.0.stdout.split("\n\n").filter(|call| call.contains(" inner ")).collect();
    assert_eq!(calls.len(), 8, "{}", report.0);
    for call in calls {
        let lines: Vec<&str> = call.lines().skip_while(|line| !line.contains(" inner ")).collect();
        let by = lines[0].split_whitespace().last().expect("the message");
        assert_eq!(lines[1], "        inner+0 [tools]", "{}", report.0);
        assert!(lines[2].starts_with(&format!("        {by}+")) && lines[2].ends_with(" [tools]"), "{}", report.0);
    }
    let Some(report) = traced("tools", &["calls", "1"], &["-Ua", "inner (arg0 == 4)"]) else { return };
    let frame = report.0.stdout.lines().find(|line| line.ends_with(" inner+0 [tools]")).expect("a frame");
    let address = frame.trim().split(' ').next().expect("an address");
    assert!(
        u64::from_str_radix(address, 16).is_ok() && frame.starts_with(&format!("        {address:>16} ")),
        "{frame}"
    );
}

#[test]
fn hits_are_chosen() {
    let count = |args: &[&str]| traced("tools", &["calls", "2"], args).map(|report| report.records().len());
    for (args, expected) in [
        (&["inner \"by %s\", arg1"][..], 16),
        (&["--msg-filter", "by left", "inner \"by %s\", arg1"], 6),
        (&["--msg-filter", "by left", "-M", "4", "inner (arg0 < 9) \"by %s\", arg1"], 4),
        (&["-n", "ool", "inner"], 16),
        (&["-n", "fool", "inner"], 0),
        (&["-n", "fool", "inner (arg0 < 9)"], 0),
        (&["--uid", "4000000", "inner"], 0),
        (&["-M", "3", "inner (arg0 < 9)"], 3),
        (&["-M", "3", "inner", "left"], 3),
        (&["-L", "1", "inner"], 0),
    ] {
        let Some(found) = count(args) else { return };
        assert_eq!(found, expected, "{args:?}");
    }
    // The program has one thread, whose number is that of the process.
    let Some(path) = target("script") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    for spec in ["add", "add (1)"] {
        let args = ["trace", "-p", &pid, "-L", &pid, spec];
        let (report, _) = sidestep_tests::tool::during(&args, || program.ask("adds 7"));
        assert_eq!(report.records().len(), 7, "{}", report.0);
    }
    program.finish().ok();
}

#[test]
fn equal_lines_are_printed_once() {
    for spec in ["inner \"by %s\", arg1", "inner (arg0 < 9) \"by %s\", arg1"] {
        let Some(report) = traced("tools", &["calls", "2"], &["-A", spec]) else { return };
        let counts: Vec<&str> = report.0.stdout.lines().filter(|line| line.starts_with("-->COUNT ")).collect();
        assert_eq!(counts, ["-->COUNT 10", "-->COUNT 6"], "{}", report.0);
        let lines: Vec<&str> = report.0.stdout.lines().filter(|line| line.contains(" inner ")).collect();
        assert!(lines[0].ends_with("by right") && lines[1].ends_with("by left"), "{}", report.0);
        let Some(report) = traced("tools", &["calls", "2"], &["-A", "-f", "json", spec]) else { return };
        assert!(report.0.stdout.contains("{\"type\": \"aggregate\", \"data\": {\"count\": 10, "), "{}", report.0);
    }
}

#[test]
fn strings_have_a_limit_and_json_has_all() {
    let args = ["-Z", "4", "-f", "json", "named (arg1 == 4) \"<%s>\", arg0"];
    let Some(report) = traced("script", &["names", "5"], &args) else { return };
    let line = report.0.stdout.lines().find(|line| line.contains("\"trace\"")).unwrap_or_default();
    for part in ["\"func\": \"named\"", "\"nsecs\": ", "\"tid\": ", "\"args\": [\"a na\"]", "\"message\": \"<a na>\""] {
        assert!(line.contains(part), "no {part}: {}", report.0);
    }
}

#[test]
fn what_cannot_be_is_one_line() {
    for (args, said) in [
        (&["-K", "c:open"][..], "-K: stacks of the kernel need the kernel"),
        (&["--cgroup-path", "/x", "c:open"], "cgroups need the kernel"),
        (&["-S", "c:open"], "-S: sidestep probes the processes that are named"),
        (&["-a", "c:open"], "add -U"),
        (&["-u", "c:open"], "--timestamp"),
        (&["t:sched:sched_switch"], "tracepoints need the kernel"),
        (&["-U", "post:read+0x3 \"%x\", %ax"], "is recorded as the kernel does it, without -U"),
        (&["--filter", "arg0 > 1", "c:open (arg0 > 1)"], "write the condition behind the function"),
        (&["c:open (fd > 1)"], "\"fd\" is no value"),
    ] {
        let output = run(&mut sidestep(&[&["trace", "-p", "1"], args].concat()), LIMIT);
        assert_eq!((output.code(), &*output.stdout), (2, ""), "{args:?}: {output}");
        assert!(output.stderr.contains(said), "{args:?}: {output}");
    }
    let printed = run(&mut sidestep(&["trace", "--print", "c:open \"%s\", arg0"]), LIMIT).ok().stdout;
    assert!(printed.contains("uprobe:c:open { printf("), "{printed}");
}
