//! Several processes in one session: given by their ids, forked, executed. What was counted in all
//! of them together is what the programs themselves did.

use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, during, is_32_bit, sidestep, with_command};
use sidestep_tests::{Snapshot, target};

use super::counts::work;

/// What a script left in the map `@`, by key: from its JSON.
fn entries(stdout: &str, map: &str) -> Vec<(String, u64)> {
    let start = format!(r#"{{"type": "map", "data": {{"{map}": {{"#);
    let line = stdout.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default();
    let pair = |pair: &str| {
        let (key, value) = pair.split_once(": ")?;
        Some((key.trim_matches('"').to_owned(), value.trim_end_matches('}').parse().ok()?))
    };
    line.split(", ").filter_map(pair).collect()
}

fn total(entries: &[(String, u64)]) -> u64 {
    entries.iter().map(|(_, count)| count).sum()
}

#[test]
pub fn two_processes_add_up() {
    let Some(path) = target("spawn") else { return };
    let mut programs = [Program::start(&mut Command::new(&path)), Program::start(&mut Command::new(&path))];
    let before: Vec<Snapshot> = programs.iter().map(|program| Snapshot::of(program.pid())).collect();
    let [a, b] = [programs[0].pid(), programs[1].pid()];
    let both = format!("{a},{b}");
    let mut work_in_both = || {
        assert_eq!(programs[0].ask("work 1000"), work(1000));
        assert_eq!(programs[1].ask("work 234"), work(234));
    };
    let (report, ()) = during(&["funccount", "-p", &both, "leaf"], &mut work_in_both);
    report.assert_count("leaf", 1234);
    let (report, ()) = during(&["funclatency", "-p", &a.to_string(), "-p", &b.to_string(), "leaf"], &mut work_in_both);
    assert_eq!(report.latencies(), 1234, "{}", report.0);
    let script = "u:spawn:leaf { @[pid, comm] = count(); @sum = sum(arg0); @last[tid] = arg0 }";
    let (report, ()) = during(&["-f", "json", "-p", &both, "-e", script], &mut work_in_both);
    let mut found = entries(&report.0.stdout, "@");
    found.sort();
    let mut expected = vec![(format!("{a},spawn"), 1000), (format!("{b},spawn"), 234)];
    expected.sort();
    assert_eq!(found, expected, "{}", report.0);
    let sum = 999 * 1000 / 2 + 233 * 234 / 2;
    assert!(report.0.stdout.contains(&format!(r#"{{"@sum": {sum}}}"#)), "{}", report.0);
    assert_eq!(total(&entries(&report.0.stdout, "@last")), 999 + 233, "{}", report.0);
    for (program, before) in programs.into_iter().zip(before) {
        before.assert_same(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// The session goes on with those that are left, and ends with the last.
#[test]
pub fn each_process_ends_alone() {
    let Some(path) = target("spawn") else { return };
    let mut programs = [Program::start(&mut Command::new(&path)), Program::start(&mut Command::new(&path))];
    let both = format!("{},{}", programs[0].pid(), programs[1].pid());
    let tracing = Tracing::start(&["funccount", "-p", &both, "leaf"]);
    programs.iter_mut().for_each(|program| assert_eq!(program.ask("work 10"), work(10)));
    let [first, mut second] = programs;
    first.finish().ok();
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(second.ask("work 5"), work(5));
    second.finish().ok();
    tracing.end().assert_count("leaf", 25);
}

#[test]
pub fn one_that_cannot_be_probed_leaves_the_others_alone() {
    let Some(path) = target("spawn") else { return };
    let program = Program::start(&mut Command::new(&path));
    let before = Snapshot::of(program.pid());
    let mut other = Command::new("sleep").arg("60").spawn().expect("sleep starts");
    let (pid, sleep) = (program.pid(), other.id());
    for (pids, message) in [
        (format!("{pid},{sleep}"), format!("process {sleep}{}", if is_32_bit() { " (sleep)" } else { ": " })),
        (format!("{pid},4194300"), "4194300".into()),
    ] {
        let output = run(&mut sidestep(&["funccount", "-p", &pids, "leaf"]), LIMIT);
        assert_eq!(output.code(), 1, "{output}");
        assert!(output.stderr.contains(&message) && output.stderr.lines().count() == 1, "{output}");
        before.assert_same(&Snapshot::of(pid));
    }
    other.kill().expect("it runs");
    other.wait().expect("it ends");
    program.finish().ok();
}

/// Each of the children calls `leaf` as often as there are children, and their parent once for
/// each.
#[test]
pub fn forked_children_are_counted() {
    let Some(path) = target("spawn") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let before = Snapshot::of(program.pid());
    let pid = program.pid().to_string();
    for flags in [&[][..], &["--no-optimize"]] {
        let (report, answer) =
            during(&[&["funccount", "--follow"], flags, &["-p", &pid, "leaf"]].concat(), || program.ask("fork 25"));
        assert_eq!(answer, 25);
        report.assert_count("leaf", 25 * 25 + 25);
        let (report, answer) =
            during(&[&["funclatency", "--follow"], flags, &["-p", &pid, "leaf"]].concat(), || program.ask("fork 25"));
        assert_eq!((answer, report.latencies()), (25, 25 * 25 + 25), "{}", report.0);
    }
    let script = "u:spawn:leaf { @[pid] = count() }";
    let (report, answer) = during(&["-f", "json", "--follow", "-p", &pid, "-e", script], || program.ask("fork 25"));
    assert_eq!(answer, 25);
    let found = entries(&report.0.stdout, "@");
    assert!(found.len() == 26 && found.iter().all(|(_, count)| *count == 25), "{}", report.0);
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// Slots of children that have ended go to those that come: there are more children than slots.
/// Children that took slots which were free again were not noticed, so the slots ran out.
#[test]
pub fn thousands_of_children() {
    let Some(path) = target("spawn") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let (report, answer) = during(&["funccount", "--follow", "-p", &pid, "forking"], || program.ask("fork 1000"));
    assert_eq!(answer, 1000);
    report.assert_count("forking", 1000);
    let (report, answer) = during(&["funccount", "--follow", "-p", &pid, "leaf"], || {
        (0..50).map(|_| program.ask("fork 100")).sum::<i64>()
    });
    assert_eq!(answer, 5000);
    // A quarter as many slots in 32-bit sessions: on a busy machine, children may come faster than
    // those that ended are noticed.
    assert!(is_32_bit() || report.missed() == 0, "{}", report.0);
    assert_eq!(report.count("leaf") + report.missed(), 50 * (100 * 100 + 100), "{}", report.0);
    program.finish().ok();
}

#[test]
pub fn what_children_execute_is_probed() {
    let Some(path) = target("spawn") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let before = Snapshot::of(program.pid());
    let pid = program.pid().to_string();
    for command in ["spawn 5", "vfork 5"] {
        // The shell ends by `_exit`; its parent does not.
        let (report, answer) = during(&["funccount", "--follow", "-p", &pid, "libc:_exit"], || program.ask(command));
        assert_eq!(answer, 5, "{command}: {}", report.0);
        if is_32_bit() {
            // The shell is for the other build: it runs, and that is said.
            let (said, all) = (report.0.stderr.matches("is a 64-bit x86 program").count(), "5 processes (");
            assert_eq!((said, report.count("_exit")), (1, 0), "{command}: {}", report.0);
            assert!(report.0.stderr.contains(all), "{command}: {}", report.0);
            continue;
        }
        report.assert_count("_exit", 5);
    }
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// Until it executes something, a child of `vfork` runs on its parent's memory: its hits had its
/// parent's pid.
#[test]
pub fn children_of_vfork_had_their_parents_pid() {
    let Some(path) = target("spawn") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let blocks = r#"@[pid == $1 ? "parent" : "child"] = count(); @pids[pid] = count()"#;
    let script = format!("u:{}:leaf {{ {blocks} }}", path.display());
    let args = ["--follow", "-f", "json", "-p", &pid, "-e", &script, &pid];
    let (report, answer) = during(&args, || (program.ask("vfork 5"), program.ask("work 3")));
    assert_eq!(answer, (5, work(3)));
    let has = |part: &str| report.0.stdout.contains(part);
    assert!(has(r#""child": 5"#) && has(r#""parent": 3"#) && has(&format!(r#""{pid}": 3"#)), "{}", report.0);
    // Of its own each.
    let pids = report.0.stdout.lines().find(|line| line.contains("@pids")).unwrap_or_default();
    assert_eq!(pids.matches(r#"": 1,"#).count(), 5, "{}", report.0);
    program.finish().ok();
}

#[test]
pub fn what_the_target_executes_is_probed() {
    let Some(path) = target("spawn") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["funccount", "--follow", "-p", &pid, "leaf"]);
    assert_eq!(program.ask("exec 50"), work(50));
    let output = program.finish();
    assert_eq!(output.code(), 3, "{output}");
    tracing.end().assert_count("leaf", 10 + 50);
}

#[test]
pub fn commands_that_execute_the_program() {
    let Some(path) = target("spawn") else { return };
    let path = path.to_str().expect("UTF-8");
    let (output, report) = with_command(&["funccount", "--follow", "leaf"], &[path, "exec", "50"]);
    assert_eq!((output.code(), output.stdout), (3, format!("{}\n", work(50))), "{}", report.0);
    report.assert_count("leaf", 60);
    if is_32_bit() {
        return; // the others are not
    }
    let pattern = format!("{path}:leaf");
    let (output, report) = with_command(&["funccount", "--follow", &pattern], &["env", path, "work", "20"]);
    assert_eq!((output.code(), output.stdout), (0, format!("{}\n", work(20))), "{}", report.0);
    report.assert_count("leaf", 20);
    let pipeline = format!("{path} work 20 | cat; {path} work 30 >&2; exit 4");
    let (output, report) = with_command(&["funccount", "--follow", &pattern], &["sh", "-c", &pipeline]);
    assert_eq!((output.code(), output.stdout), (4, format!("{}\n", work(20))), "{}", output.stderr);
    report.assert_count("leaf", 50);
}

/// The module that imports the library is imported itself when the program runs.
#[test]
fn a_library_that_comes_later() {
    let program = "import ctypes
z = ctypes.CDLL('libz.so.1')
for i in range(321): z.crc32(0, b'abc', 3)";
    let (output, report) = with_command(&["funccount", "--follow", "libz:crc32"], &["python3", "-c", program]);
    assert_eq!(output.code(), 0, "{}", output.stderr);
    report.assert_count("crc32", 321);
}

/// The shell has no such function; what it executes has.
#[test]
fn a_pattern_that_nothing_matches_at_the_start() {
    let Some(path) = target("spawn") else { return };
    let path = path.to_str().expect("UTF-8");
    let pipeline = format!("{path} work 20 >&2; {path} work 30 >&2; exit 4");
    let script = "u:*:leaf { @ = count() }";
    let (output, report) = with_command(&["--follow", "-e", script], &["sh", "-c", &pipeline]);
    assert_eq!(output.code(), 4, "{}", output.stderr);
    assert!(report.0.stdout.ends_with("@: 50\n"), "{}", report.0);
    assert!(report.0.stderr.contains("WARNING: No matches for *:leaf yet: no function `leaf` in "), "{}", report.0);
    let (output, report) = with_command(&["funccount", "--follow", "leaf"], &["sh", "-c", &pipeline]);
    assert_eq!(output.code(), 4, "{}", output.stderr);
    report.assert_count("leaf", 50);
    let (_, report) = with_command(&["--follow", "-e", "usdt:*:nobody:* { @ = count() }"], &["sh", "-c", &pipeline]);
    assert!(report.0.stderr.contains("\nWARNING: nothing of what was asked for was there"), "{}", report.0);
}

/// A file that is there and has nothing like that will have no more when somebody executes it.
#[test]
fn a_file_that_lacks_the_function_is_not_waited_for() {
    let Some(path) = target("spawn") else { return };
    let path = path.to_str().expect("UTF-8");
    let script = format!("u:{path}:leaves {{ @ = count() }}");
    let (output, _) = with_command(&["--follow", "-e", &script], &["sh", "-c", &format!("{path} work 20")]);
    assert_eq!((output.code(), output.stdout.as_str()), (1, ""), "{}", output.stderr);
    assert!(output.stderr.contains("no function `leaves` in "), "{}", output.stderr);
}

/// A program that is written again is another one, though path and inode stay.
#[test]
fn a_program_that_is_compiled_anew() {
    let (Some(first), Some(second)) = (target("spawn"), target("symbols")) else { return };
    let file = first.with_file_name(format!("anew.{}", std::process::id()));
    let (one, two, path) = (first.display(), second.display(), file.display());
    let pipeline =
        format!("cat {one} > {path}; chmod +x {path}; {path} work 20; cat {two} > {path}; {path} < /dev/null");
    let script = format!("u:{path}:leaf {{ @leaf = count() }} u:{path}:main {{ @main = count() }}");
    let (output, report) = with_command(&["--follow", "-e", &script], &["sh", "-c", &pipeline]);
    let _ = std::fs::remove_file(&file);
    assert!(report.0.stdout.contains("@leaf: 20\n@main: 2\n"), "{} {}", report.0, output.stderr);
}

/// A server with workers: what they do is known by what they were told.
#[test]
fn a_server_with_workers() {
    let program = "import os, sys
print('ready', flush=True)
sys.stdin.readline()
workers = []
for n in range(1, 9):
    pid = os.fork()
    if pid == 0:
        for i in range(n * 100): os.getppid()
        os._exit(0)
    workers.append(pid)
print(sum(os.waitpid(pid, 0)[1] for pid in workers), flush=True)
sys.stdin.readline()";
    let mut server = Program::start(Command::new("python3").args(["-c", program]));
    let before = Snapshot::of(server.pid());
    let pid = server.pid().to_string();
    let script = "u:libc:getppid { @[pid] = count() }";
    let (report, answer) = during(&["-f", "json", "--follow", "-p", &pid, "-e", script], || server.ask("go"));
    assert_eq!(answer, 0);
    let mut counts: Vec<u64> = entries(&report.0.stdout, "@").into_iter().map(|(_, count)| count).collect();
    counts.sort_unstable();
    assert_eq!(counts, [100, 200, 300, 400, 500, 600, 700, 800], "{}", report.0);
    before.assert_same(&Snapshot::of(server.pid()));
    server.finish().ok();
}

/// The probes go out of children, too.
#[test]
fn children_that_outlive_the_session_are_clean() {
    let program = "import os, sys, signal
print('ready', flush=True)
sys.stdin.readline()
pid = os.fork()
if pid == 0:
    os.getppid()
    signal.pause()
print(pid, flush=True)
sys.stdin.readline()
os.kill(pid, 9)";
    let mut server = Program::start(Command::new("python3").args(["-c", program]));
    let before = Snapshot::of(server.pid());
    let pid = server.pid().to_string();
    let (_, child) = during(&["funccount", "--follow", "-p", &pid, "libc:getppid"], || server.ask("go"));
    let maps = std::fs::read_to_string(format!("/proc/{child}/maps")).expect("the child is there");
    assert!(!maps.contains("sidestep"), "{maps}");
    before.assert_same_code(&Snapshot::of(child as i32));
    before.assert_same(&Snapshot::of(server.pid()));
    server.finish().ok();
}

/// The process that the session began with has ended by then.
#[test]
fn a_daemon_that_loads_a_library_later() {
    let program = "import os, sys, time, ctypes
parent = os.getpid()
if os.fork(): os._exit(0)
while os.getppid() == parent: time.sleep(0.001)
z = ctypes.CDLL('libz.so.1')
for i in range(123): z.crc32(0, b'abc', 3)
print(z.crc32(0, b'abc', 3), flush=True)";
    let (output, report) = with_command(&["funccount", "--follow", "libz:crc32"], &["python3", "-c", program]);
    assert_eq!((output.code(), output.stdout.trim()), (0, "891568578"), "{}", output.stderr);
    report.assert_count("crc32", 124);
}

/// What is unloaded and loaded again, mostly at the same place, is probed like one that was never
/// there: only the first time was counted.
#[test]
pub fn a_library_that_was_loaded_again_had_no_probes() {
    let Some(path) = target("reload") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let forms: [&[&str]; 3] = [
        &["funccount", "--follow", "-p", &pid, "libz:adler32"],
        &["funccount", "--follow", "--no-optimize", "-p", &pid, "libz:adler32"],
        &[
            "-f",
            "json",
            "--follow",
            "-p",
            &pid,
            "-e",
            "u:libz:adler32 { @ = count() } ur:libz:adler32 { @r = count() }",
        ],
    ];
    for (n, form) in forms.into_iter().enumerate() {
        // It may be there when the session begins, or not.
        if n > 0 {
            assert_eq!(program.ask("load 0"), 0);
        }
        let (report, ()) = during(form, || {
            for sums in [10, 100, 1000] {
                if n == 0 || sums > 10 {
                    assert_eq!(program.ask("load 0"), 0);
                }
                assert_eq!(program.ask(&format!("sums {sums}")), sums);
                assert_eq!(program.ask("unload 0"), 0);
            }
        });
        match n {
            2 => ["@", "@r"].iter().for_each(|map| {
                assert!(report.0.stdout.contains(&format!(r#"{{"{map}": 1110}}"#)), "{}", report.0);
            }),
            _ => report.assert_count("adler32", 1110),
        }
        assert_eq!((program.ask("load 0"), program.ask("sums 10"), program.ask("unload 0")), (0, 10, 0));
    }
    program.finish().ok();
}
