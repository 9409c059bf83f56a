//! What keeps a target from harm by its own probes (`docs/guide/limits.md`): the hottest are
//! disabled, hits, time and memory are limited, and who attaches is logged.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sidestep_tests::build::target_dir;
use sidestep_tests::process::{LIMIT, Program, eventually, run};
use sidestep_tests::tool::{Tracing, during, sidestep};
use sidestep_tests::{Snapshot, target};

use crate::carried::{refused, status};

/// A program that calls `hot` as often as it can, in so many threads, and `cold` now and then.
fn hot(threads: u32) -> Option<(Program, String)> {
    let mut program = Program::start(&mut Command::new(target("hot")?));
    let pid = program.pid().to_string();
    assert_eq!(program.ask(&format!("begin {threads}")), i64::from(threads));
    Some((program, pid))
}

/// Whether `status` says so of a function.
fn is_disabled(pid: &str, function: &str) -> bool {
    let (lines, _) = status(pid, &[]);
    let line = lines.iter().find(|line| line.symbol.starts_with(function));
    line.unwrap_or_else(|| panic!("no {function}")).state == "[DISABLED]"
}

/// What `status` says that a function has counted.
fn hits(pid: &str, function: &str) -> u64 {
    let (lines, _) = status(pid, &[]);
    lines.iter().find(|line| line.symbol.starts_with(function)).map_or(0, |line| line.hits)
}

fn wait_until_disabled(pid: &str, function: &str) {
    assert!(eventually(LIMIT, || is_disabled(pid, function)), "{function} stays");
}

/// A file of this test.
fn file(name: &str) -> PathBuf {
    let thread = std::thread::current().name().unwrap_or("main").replace(':', "-");
    let dir = target_dir().join("test-targets");
    fs::create_dir_all(&dir).expect("writable");
    let file = dir.join(format!("{name}.{}.{thread}", std::process::id()));
    let _ = fs::remove_file(&file);
    file
}

/// A function that is called all the time took as much of the target as its probe wanted.
#[test]
pub fn the_hottest_probe_was_kept_whatever_it_cost() {
    for technique in [&[][..], &["--no-optimize"]] {
        let Some((mut program, pid)) = hot(2) else { return };
        let before = Snapshot::of(program.pid());
        let args = [&["funccount", "--max-overhead", "1%"], technique, &["-p", &pid, "-r", "^(hot|cold)$"]].concat();
        let tracing = Tracing::start(&args);
        wait_until_disabled(&pid, "hot");
        assert!(eventually(LIMIT, || hits(&pid, "cold") > 0) && !is_disabled(&pid, "cold"));
        let report = tracing.stop();
        let counts = report.counts();
        assert!(counts["hot"] > 0 && counts["cold"] > 0, "{}", report.0);
        let line = report.0.stderr.lines().find(|line| line.contains("disabled u:")).unwrap_or_default();
        let said = line.starts_with("sidestep: disabled u:hot:hot: ")
            && line.contains(" % of the target's CPU time at ")
            && line.ends_with(" (limit 1 %, --max-overhead)");
        assert!(said, "{}", report.0);
        let total = "1 probe was disabled before the end, and saw nothing from then on: u:hot:hot";
        assert!(report.0.stderr.lines().any(|line| line == total), "{}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
        assert_eq!(program.ask("end"), 0);
        program.finish().ok();
    }
}

/// What counts at the entry and the return of a function ends together: entries are returns, and
/// those that had not returned.
#[test]
pub fn an_entry_was_disabled_without_its_return() {
    let Some((mut program, pid)) = hot(2) else { return };
    let script = "u:hot:hot { @in = count() } ur:hot:hot { @out = count() } u:hot:cold { @cold = count() } \
                  END { printf(\"END ran\\n\") }";
    let tracing = Tracing::start(&["-f", "json", "--max-overhead", "1%", "-p", &pid, "-e", script]);
    wait_until_disabled(&pid, "hot");
    let (lines, _) = status(&pid, &[]);
    for line in lines.iter().filter(|line| line.symbol.starts_with("hot")) {
        assert_eq!(line.state, "[DISABLED]", "{}", line.kind);
    }
    assert!(eventually(LIMIT, || hits(&pid, "cold") > 0));
    let report = tracing.stop();
    let text = &report.0.stdout;
    let disabled = text.lines().find(|line| line.contains("disabled_probes")).unwrap_or_default();
    for word in ["\"u:hot:hot\"", "\"ur:hot:hot\"", "\"cause\": \"overhead\"", "\"share\": ", "\"limit\": 0.0100"] {
        assert!(disabled.contains(word), "no {word}: {}", report.0);
    }
    assert!(text.contains("END ran"), "{}", report.0);
    let count = |map: &str| -> u64 {
        let rest = text.split_once(&format!("\"{map}\": ")).unwrap_or_else(|| panic!("no {map}: {}", report.0)).1;
        rest.split('}').next().and_then(|number| number.trim().parse().ok()).expect("a number")
    };
    // Both threads may be in the function when the probes come, and when they go.
    assert!(count("@in").abs_diff(count("@out")) <= 4, "{}", report.0);
    assert!(count("@cold") > 0);
    assert_eq!(program.ask("end"), 0);
    program.finish().ok();
}

/// Without a limit one line says what the probes cost, and nothing is disabled.
#[test]
pub fn costly_probes_are_warned_of_once() {
    let Some((mut program, pid)) = hot(1) else { return };
    // Traps: they cost much on any machine.
    let tracing = Tracing::start(&["funccount", "--no-optimize", "-p", &pid, "-r", "^(hot|cold)$"]);
    let share = |function: &str| {
        let output = run(&mut sidestep(&["status", "-f", "json", "-p", &pid]), LIMIT).ok().stdout;
        let line = output.lines().find(|line| line.contains(&format!("\"symbol\": \"{function}\""))).map(str::to_owned);
        let line = line.unwrap_or_else(|| panic!("no {function}: {output}"));
        let share = line.split_once("\"share\": ")?.1;
        share.split(['}', ',']).next()?.parse::<f64>().ok()
    };
    assert!(eventually(LIMIT, || share("hot").is_some()), "no share");
    let (of_hot, of_cold) = (share("hot").expect("it stays"), share("cold").expect("that, too"));
    assert!(of_hot > of_cold && of_hot > 0.1, "{of_hot} {of_cold}");
    // More windows, which have nothing to say.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(!is_disabled(&pid, "hot"));
    let report = tracing.stop();
    let said: Vec<&str> = report.0.stderr.lines().filter(|line| line.contains("WARNING: the probes take ")).collect();
    assert!(said.len() == 1 && said[0].contains("(u:hot:hot ") && said[0].ends_with("--max-overhead limits that"));
    // Or nothing.
    let tracing =
        Tracing::start(&["funccount", "--max-overhead", "off", "-d", "3", "-p", &pid, "--no-optimize", "hot"]);
    let report = tracing.end();
    assert!(!report.0.stderr.contains("WARNING"), "{}", report.0);
    assert_eq!(program.ask("end"), 0);
    program.finish().ok();
}

/// Children that are followed are protected as their parent is.
#[test]
pub fn children_kept_a_probe_that_was_disabled() {
    let Some(path) = target("hot") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["funccount", "--follow", "--max-overhead", "1%", "-p", &pid, "-r", "^(hot|cold)$"]);
    assert_eq!(program.ask("child 1500"), 0);
    wait_until_disabled(&pid, "hot");
    // One that is forked afterwards does not have it, either.
    let before = hits(&pid, "hot");
    assert_eq!((program.ask("child 300"), hits(&pid, "hot")), (0, before));
    let report = tracing.stop();
    assert!(report.0.stderr.contains("disabled u:hot:hot"), "{}", report.0);
    program.finish().ok();
}

/// Whoever enables a probe again has it measured again.
#[test]
pub fn a_probe_that_is_enabled_again_is_looked_at_again() {
    let Some((mut program, pid)) = hot(1) else { return };
    let tracing = Tracing::start(&["funccount", "--max-overhead", "1%", "-p", &pid, "-r", "^(hot|cold)$"]);
    for _ in 0..2 {
        wait_until_disabled(&pid, "hot");
        // Some windows have to pass in which nothing is hit.
        std::thread::sleep(Duration::from_millis(500));
        run(&mut sidestep(&["enable", "-p", &pid, "hot"]), LIMIT).ok();
    }
    wait_until_disabled(&pid, "hot");
    let report = tracing.stop();
    assert_eq!(report.0.stderr.matches("sidestep: disabled u:hot:hot").count(), 3, "{}", report.0);
    assert_eq!(program.ask("end"), 0);
    program.finish().ok();
}

/// Two sessions at one function: each looks at its own probes.
#[test]
pub fn the_other_session_keeps_its_probe() {
    let Some((mut program, pid)) = hot(1) else { return };
    let other = Tracing::start(&["funccount", "-p", &pid, "hot"]);
    let tracing = Tracing::start(&["funccount", "--max-overhead", "1%", "-p", &pid, "-r", "^(hot|cold)$"]);
    let states = || -> Vec<bool> {
        let lines = status(&pid, &[]).0;
        lines.iter().filter(|line| line.symbol.starts_with("hot")).map(|line| line.state == "[DISABLED]").collect()
    };
    assert!(eventually(LIMIT, || states() == [false, true]), "{:?}", states());
    let limited = tracing.stop();
    let report = other.stop();
    assert!(report.count("hot") > limited.count("hot"), "{}", report.0);
    assert_eq!(program.ask("end"), 0);
    program.finish().ok();
}

/// After so many hits a probe is disabled, and the session ends when all are.
#[test]
pub fn hits_are_limited() {
    let Some(path) = target("hot") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    // Stacks of threads stay mapped.
    assert_eq!(program.ask("together 10"), 280);
    let before = Snapshot::of(program.pid());
    // Fewer are all there.
    let (report, sum) = during(&["funccount", "--max-hits", "1000", "-p", &pid, "asked"], || program.ask("ask 999"));
    assert_eq!(sum, 7 * 999);
    report.assert_count("asked", 999);
    assert!(!report.0.stderr.contains("disabled"), "{}", report.0);
    // As many end it, in several threads, too.
    for (command, calls) in [("ask 1000", 1000), ("together 250", 1000), ("together 100000", 400_000)] {
        let tracing = Tracing::start(&["funccount", "--max-hits", "1000", "-p", &pid, "asked"]);
        assert_eq!(program.ask(command), 7 * calls);
        let report = tracing.end();
        let count = report.count("asked");
        assert!((1000..=calls as u64).contains(&count), "{count}: {}", report.0);
        let said = report.0.stderr.lines().find(|line| line.starts_with("sidestep: disabled u:hot:asked: "));
        assert!(said.is_some_and(|line| line.ends_with(" (limit 1000, --max-hits)")), "{}", report.0);
    }
    // Others go on, and END runs.
    let script = "u:hot:asked { @a = count() } u:hot:hot { @h = count() } END { printf(\"END ran\\n\") }";
    let tracing = Tracing::start(&["-f", "json", "--max-hits", "10", "-p", &pid, "-e", script]);
    assert_eq!(program.ask("ask 10"), 70);
    wait_until_disabled(&pid, "asked");
    assert!(!is_disabled(&pid, "hot"));
    assert_eq!(program.ask("ask 10"), 70);
    assert_eq!(program.ask("begin 1"), 1);
    let report = tracing.end();
    assert_eq!(program.ask("end"), 0);
    for word in ["\"@a\": 10}", "END ran", "\"cause\": \"hits\"", "\"hits\": 10, \"limit\": 10"] {
        assert!(report.0.stdout.contains(word), "no {word}: {}", report.0);
    }
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// Latencies end with their functions: what has begun has returned, or is said not to have.
#[test]
pub fn calls_that_are_timed_end_together() {
    let Some(path) = target("hot") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["funclatency", "--max-hits", "100", "-p", &pid, "asked"]);
    assert_eq!(program.ask("together 100000"), 7 * 400_000);
    let report = tracing.end();
    assert!(report.latencies() >= 100 && report.histogram_sum() == report.latencies(), "{}", report.0);
    assert!(report.0.stderr.contains("sidestep: disabled ur:hot:asked: "), "{}", report.0);
    program.finish().ok();
}

/// A session that would map more than it may is refused, and nothing changes.
#[test]
pub fn memory_is_limited() {
    let Some(path) = target("hot") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    // Stacks of threads stay mapped.
    assert_eq!(program.ask("together 10"), 280);
    let before = Snapshot::of(program.pid());
    let mapped = || -> u64 {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        let len =
            |line: &str| line.split(' ').next().and_then(|range| range.split_once('-')).map(|(a, b)| hex(b) - hex(a));
        maps.lines().filter_map(len).sum()
    };
    let without = mapped();
    for tool in [&["funccount"][..], &["funclatency"], &["trace"]] {
        let tool = [tool, &["-p", &pid, "asked", "--max-memory"]].concat();
        refused(&[&tool[..], &["1M"]].concat(), &["the probes need ", " and --max-memory allows 1.0 MiB"]);
        before.assert_same(&Snapshot::of(program.pid()));
        // The line says what would do.
        let error = run(&mut sidestep(&[&tool[..], &["1M"]].concat()), LIMIT).stderr;
        let needed = error.split_once("need ").and_then(|(_, rest)| rest.split_once(" MiB")).map(|(number, _)| number);
        let needed = needed.and_then(|number| number.parse::<f64>().ok()).unwrap_or_else(|| panic!("{error}"));
        let limit = (needed.ceil() as u64 + 1) << 20;
        let tracing = Tracing::start(&[&tool[..], &[&limit.to_string()]].concat());
        assert!(mapped() - without <= limit, "{tool:?}: {} of {limit}", mapped() - without);
        assert_eq!(program.ask("together 10"), 280);
        tracing.stop();
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
    // A command does not begin.
    let command = path.to_str().expect("UTF-8");
    refused(&["funccount", "--max-memory", "1M", "asked", "--", command, "ask", "5"], &["--max-memory allows"]);
    let output =
        run(&mut sidestep(&["funccount", "--max-memory", "64M", "asked", "--", command, "ask", "5"]), LIMIT).ok();
    let row = output.stdout.lines().find(|line| line.starts_with("asked ")).unwrap_or_default();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["asked", "5"], "{output}");
}

/// A script ends after a time, and its END runs.
#[test]
pub fn time_is_limited() {
    let Some(path) = target("hot") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let script = "u:hot:asked { @ = count() } END { printf(\"END ran\\n\") }";
    let tracing = Tracing::start(&["-f", "json", "--duration", "1", "-p", &pid, "-e", script]);
    assert_eq!(program.ask("ask 3"), 21);
    let report = tracing.end();
    assert!(report.0.stdout.contains("\"@\": 3}") && report.0.stdout.contains("END ran"), "{}", report.0);
    program.finish().ok();
    let output = run(&mut sidestep(&["--duration", "0.1", "-e", "END { printf(\"END ran\\n\") }"]), LIMIT).ok();
    assert!(output.stdout.contains("END ran"), "{output}");
}

/// Mistakes are one line, and nothing happens.
#[test]
pub fn bad_limits_are_said() {
    for (flag, value, said) in [
        ("--max-overhead", "2", "expected a percentage from 0.01% to 100%, for example 2%, or off"),
        ("--max-overhead", "0%", "expected a percentage"),
        ("--max-hits", "0", "0 is not in 1.."),
        ("--max-hits", "many", "invalid digit found in string"),
        ("--max-memory", "1T", "expected a size in bytes, for example 64M or 1G"),
    ] {
        for tool in [&["funccount", "f"][..], &["trace", "f"], &["stackcount", "f"], &["-e", "u:f { }"]] {
            let output = run(&mut sidestep(&[tool, &[flag, value, "-p", "1"]].concat()), LIMIT);
            assert!(output.code() == 2 && output.stderr.contains(said), "{flag} {value}: {output}");
        }
    }
    let kernel = ["bpf", "--kernel", "none.bpf.o", "-p", "1", "--max-hits", "5"];
    let output = run(&mut sidestep(&kernel), LIMIT);
    assert!(output.code() == 2 && output.stderr.contains("--max-hits: the kernel's probes"), "{output}");
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).expect("it was written").lines().map(str::to_owned).collect()
}

/// A line for each attach and detach, behind those that are there.
#[test]
pub fn who_attaches_is_logged() {
    let Some(path) = target("hot") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let log = file("audit");
    let name = log.to_str().expect("UTF-8");
    let report = |args: &[&str], program: &mut Program| {
        let (report, sum) = during(&[&["funccount", "--audit", name], args].concat(), || program.ask("ask 5"));
        assert_eq!(sum, 35);
        report
    };
    report(&["-p", &pid, "asked"], &mut program);
    report(&["-p", &pid, "-r", "^(asked|hot)$"], &mut program);
    assert_eq!(fs::metadata(&log).expect("it was written").permissions().mode() & 0o777, 0o600);
    let all = lines(&log);
    assert_eq!(all.len(), 4, "{all:?}");
    let exe = path.to_str().expect("UTF-8");
    for (line, event) in all.iter().zip(["attach", "detach", "attach", "detach"]) {
        let head = format!("{{\"event\": \"{event}\", \"time\": \"20");
        assert!(line.starts_with(&head) && line.ends_with('}'), "{line}");
        let uid = run(Command::new("id").arg("-u"), LIMIT).ok().stdout;
        let user = run(Command::new("id").arg("-un"), LIMIT).ok().stdout;
        for member in [
            format!("\"uid\": {}, \"user\": \"{}\"", uid.trim(), user.trim()),
            format!("\"pid\": {pid}, "),
            format!("\"exe\": \"{exe}\""),
            "\"command\": \"".to_owned(),
            "\"started\": \"20".to_owned(),
        ] {
            assert!(line.contains(&member), "no {member}: {line}");
        }
    }
    assert!(all[0].contains("\"probes\": 1, \"names\": [\"u:hot:asked\"]"), "{}", all[0]);
    assert!(all[2].contains("\"probes\": 2, "), "{}", all[2]);
    assert!(all[1].contains("\"seconds\": ") && all[1].contains("\"why\": \"signal 2\""), "{}", all[1]);
    // The process ends; a command; one that cannot be attached to.
    let tracing = Tracing::start(&["funccount", "--audit", name, "-p", &pid, "asked"]);
    program.finish().ok();
    tracing.end();
    assert!(lines(&log)[5].contains("\"why\": \"the process ended\""), "{:?}", lines(&log));
    run(&mut sidestep(&["funccount", "--audit", name, "asked", "--", exe, "ask", "5"]), LIMIT).ok();
    assert_eq!(lines(&log).len(), 8);
    run(&mut sidestep(&["funccount", "--audit", name, "none", "--", exe, "ask", "5"]), LIMIT);
    assert_eq!(lines(&log).len(), 8);
    fs::remove_file(log).expect("own file");
}

/// What cannot be logged is not attached to.
#[test]
pub fn a_log_that_cannot_be_written_is_said() {
    let Some(path) = target("hot") else { return };
    let program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let before = Snapshot::of(program.pid());
    let attach = |log: &str| ["funccount", "-p", &pid, "asked", "--audit", log].map(str::to_owned);
    let all = |args: &[String], words: &[&str]| refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), words);
    all(&attach("/nowhere/log"), &["--audit: cannot write /nowhere/log: No such file"]);
    all(&attach("/dev/null"), &["--audit: cannot write /dev/null: it is no regular file"]);
    all(&attach("/dev"), &["--audit: cannot write /dev: Is a directory"]);
    let pipe = file("pipe");
    run(Command::new("mkfifo").arg(&pipe), LIMIT).ok();
    all(&attach(pipe.to_str().expect("UTF-8")), &["--audit: cannot write "]);
    fs::remove_file(pipe).expect("own file");
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// The system's log, where this machine has none, and one of our own in its place. One test, so
/// that nobody else looks at it meanwhile.
#[test]
fn the_systems_log_gets_the_same() {
    let syslog = Path::new("/dev/log");
    if syslog.exists() {
        eprintln!("skipped: {} belongs to somebody", syslog.display());
        return;
    }
    let Some(path) = target("hot") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let args = ["funccount", "--audit", "syslog", "-p", &pid, "asked"];
    refused(&args, &["--audit syslog: cannot send to /dev/log: No such file"]);
    let Ok(socket) = UnixDatagram::bind(syslog) else { return };
    socket.set_read_timeout(Some(LIMIT)).expect("a time");
    let (_, sum) = during(&args, || program.ask("ask 5"));
    fs::remove_file(syslog).expect("own socket");
    assert_eq!(sum, 35);
    for event in ["attach", "detach"] {
        let mut bytes = [0; 4096];
        let len = socket.recv(&mut bytes).expect("a message");
        let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
        assert!(text.starts_with("<86>") && text.contains(" sidestep["), "{text}");
        assert!(text.contains(&format!("]: {{\"event\": \"{event}\", ")) && text.ends_with('}'), "{text}");
    }
    program.finish().ok();
}
