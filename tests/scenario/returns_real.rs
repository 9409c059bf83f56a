//! Return probes on real programs: those that have died of replaced return addresses, and others
//! with many threads, exceptions, `longjmp` and collected heaps. Each is started with its probes,
//! executed by another program that has them, and attached late.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sidestep_tests::build::have;
use sidestep_tests::postgres::{NOBODY, client, database, is_up, programs, server};
use sidestep_tests::process::{LIMIT, Program, Running, eventually, run};
use sidestep_tests::tool::{Report, Tracing, with_command};
use sidestep_tests::{Snapshot, skip, target};

/// How a program comes to its probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The tool starts it.
    Started,
    /// The tool starts a shell, which executes it.
    Executed,
    /// The tool attaches to it when it waits for a command.
    Late,
}

const WAYS: [Way; 3] = [Way::Started, Way::Executed, Way::Late];

/// Runs one command of a program under a script, and compares the answer with that of a program
/// that nobody watches. `PROGRAM COMMAND N` does it and ends, `PROGRAM` alone says `ready`, reads
/// `COMMAND N` and answers.
#[track_caller]
fn watched(way: Way, script: &str, program: &[&str], command: &str) -> Report {
    if way == Way::Late {
        return watched_late(script, program, command);
    }
    let words: Vec<&str> = command.split(' ').collect();
    let once = [program, &words[..]].concat();
    let plain = run(Command::new(once[0]).args(&once[1..]), LIMIT).ok().stdout;
    let shell = [&["/bin/sh", "-c", "exec \"$0\" \"$@\""], &once[..]].concat();
    let once = if way == Way::Executed { &shell } else { &once };
    let (output, report) = with_command(&["-v", "--follow", "-e", script], once);
    assert_eq!((output.code(), &output.stdout), (0, &plain), "{way:?}: {}", report.0);
    report
}

/// The program does it twice with probes, and once without.
#[track_caller]
fn watched_late(script: &str, program: &[&str], command: &str) -> Report {
    let start = || Program::start(Command::new(program[0]).args(&program[1..]));
    let expected = start().ask(command);
    let mut program = start();
    let pid = program.pid();
    let report = watched_at(script, &mut program, pid, command, expected);
    program.finish().ok();
    report
}

/// The same of a process that the program talks to.
#[track_caller]
fn watched_at(script: &str, program: &mut Program, pid: i32, command: &str, expected: i64) -> Report {
    rest(pid);
    let before = Snapshot::of(pid);
    let script = format!("{script} interval:ms:50 {{ if (@said == 0) {{ printf(\"Tracing\\n\"); @said = 1; }} }}");
    let tracing = Tracing::start(&["-v", "--follow", "-p", &pid.to_string(), "-e", &script]);
    let answers = [program.ask(command), program.ask(command)];
    rest(pid);
    let report = tracing.stop();
    assert_eq!(answers, [expected; 2], "{}", report.0);
    let after = Snapshot::of(pid);
    for (place, bytes) in before.code().filter(|(place, _)| place.contains('/')) {
        let now = after.code().find(|(other, _)| *other == place);
        assert!(now.is_some_and(|(_, now)| now == bytes), "{place} is not as it was: {}", report.0);
    }
    assert_eq!(program.ask(command), expected, "after the detach");
    report
}

/// Waits until all threads of a process sleep: then the same calls have begun and not ended,
/// whenever this is so.
#[track_caller]
fn rest(pid: i32) {
    let sleeps = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
        tasks.into_iter().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S'))
        })
    };
    // One that is about to answer sleeps now and then, too.
    assert!(eventually(LIMIT, || (0..20).all(|_| {
        std::thread::sleep(Duration::from_millis(1));
        sleeps()
    })));
}

/// A script that counts entries and returns of all functions that the patterns mean, by function.
fn all(patterns: &[&str]) -> String {
    let points = |kind: &str| patterns.iter().map(|p| format!("{kind}:{p}")).collect::<Vec<_>>().join(", ");
    format!("{} {{ @e[probe] = count() }} {} {{ @r[probe] = count() }}", points("u"), points("ur"))
}

/// The functions that cannot be probed for one of both, which the tool says of each in processes
/// that it starts or attaches to.
fn refused(report: &Report) -> BTreeSet<String> {
    let refusal = |line: &str| Some(line.strip_prefix("sidestep: ")?.split_once(" cannot be probed: ")?.0.to_owned());
    report.0.stderr.lines().filter_map(refusal).collect()
}

/// Entries and returns of each function, by `OBJECT:FUNC`.
fn counted(report: &Report) -> BTreeMap<String, (u64, u64)> {
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for line in report.0.stdout.lines() {
        let Some((key, number)) = line.rsplit_once("]: ") else { continue };
        let number: u64 = number.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(!key.ends_with('['), "a probe without a name: {line}");
        if let Some(function) = key.strip_prefix("@e[uprobe:") {
            counts.entry(function.to_owned()).or_default().0 += number;
        } else if let Some(function) = key.strip_prefix("@r[uretprobe:") {
            counts.entry(function.to_owned()).or_default().1 += number;
        }
    }
    counts
}

/// Asserts that all calls have returned, but for those of some functions, of which at most so many
/// have not. `waits`: the program waits in the same calls before and after. Those that had begun
/// before are not known where a return is one of the function only if its call was seen to begin;
/// else their returns count. Each stop of the attach ends such a call, and exits are written before
/// entries.
#[track_caller]
fn assert_accounted(
    report: &Report,
    refused: &BTreeSet<String>,
    waits: bool,
    least: u64,
    unfinished: &[&str],
    most: u64,
) {
    let mut counts = counted(report);
    counts.retain(|function, _| !refused.contains(function));
    let name = |function: &str| function.split_once(':').map_or(function, |(_, name)| name).to_owned();
    let is_left = |function: &str| unfinished.contains(&name(function).as_str());
    /// Stops between the first exit and the last entry, or more.
    const STOPS: u64 = 50;
    let began_before = |entered: u64, returned: u64| waits && (1..=STOPS).contains(&returned.saturating_sub(entered));
    let wrong: Vec<_> = counts
        .iter()
        .filter(|(_, (entered, returned))| !began_before(*entered, *returned))
        .filter(|(function, (entered, returned))| match is_left(function) {
            true => returned > entered || entered - returned > most,
            false => entered != returned && !(waits && *entered == returned + 1),
        })
        .collect();
    assert!(wrong.is_empty(), "entries and returns: {wrong:?}");
    let returns: u64 = counts.values().map(|(_, returned)| returned).sum();
    assert!(returns >= least, "{returns}: {}", report.0);
}

/// What the C library calls and never comes back from.
const ENDS: [&str; 9] = [
    "_Exit",
    "__libc_start_call_main",
    "__libc_start_main",
    "__run_exit_handlers",
    "_start",
    "execve",
    "exit",
    "main",
    "start_thread",
];

fn source(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets").join(name);
    path.to_str().expect("UTF-8").to_owned()
}

/// Greenlets move their stacks away and back, and come after the attach. Python died when a return
/// address was moved away with them.
#[test]
fn greenlets_in_threads_of_python() {
    if !Path::new("/usr/bin/python3").exists() {
        return skip("no /usr/bin/python3");
    }
    // The first function of a greenlet switches to another one at its end. Calls of the other
    // function are remembered by their places on the stack, since others share its code; greenlets
    // have the same places in turn.
    let greenlets = ["greenlet::UserGreenlet::inner_bootstrap", "greenlet::MainGreenlet::g_switch"];
    let unfinished = [&ENDS[..], &greenlets].concat();
    let script = all(&["libc:*", "libstdc++:*", "python3*:*", "*greenlet*:*"]);
    let mut no = BTreeSet::new();
    for way in WAYS {
        let report = watched(way, &script, &["/usr/bin/python3", &source("greens.py")], "threads 3");
        no.append(&mut refused(&report));
        assert_accounted(&report, &no, way == Way::Late, 10_000, &unfinished, 1000);
    }
}

/// Where threads of node wait that the process leaves behind, and what ends it.
const WAITS: [&str; 6] = [
    "__futex_abstimed_wait_common",
    "__new_sem_wait_slow64.constprop.0",
    "uv__threadpool_cleanup",
    "uv__work_done",
    "uv_run",
    "uv_sem_wait",
];

/// V8 walks stacks by return addresses, stops its threads by signals, and collects its heap.
#[test]
fn functions_of_node_and_its_libraries() {
    if !have(&["node"]) {
        return;
    }
    let unfinished = [&ENDS[..], &WAITS[..]].concat();
    let script = all(&["libc:*", "libstdc++:*", "node:uv_run", "node:uv__work*"]);
    let mut no = BTreeSet::new();
    for (way, command) in WAYS.iter().zip(["work 300", "workers 3", "work 300"]) {
        let report = watched(*way, &script, &["node", &source("jit.js")], command);
        no.append(&mut refused(&report));
        assert_accounted(&report, &no, *way == Way::Late, 10_000, &unfinished, 40);
    }
}

/// The virtual machine unwinds stacks for exceptions, the collector and to throw compiled code
/// away. It aborted when it found the address of a trampoline there.
#[test]
fn a_java_virtual_machine_that_compiles_and_collects() {
    if !have(&["java", "javac"]) {
        return;
    }
    let classes = sidestep_tests::build::target_dir().join("test-targets/busy");
    let classes = classes.to_str().expect("UTF-8");
    run(Command::new("javac").args(["-d", classes, &source("Busy.java")]), LIMIT).ok();
    let java = ["java", "-Xmx64m", "-cp", classes, "Busy"];
    let script = all(&["libjvm:OptoRuntime::*", "libjvm:SharedRuntime::*", "libjvm:InterpreterRuntime::*"]);
    for way in WAYS {
        let report = watched(way, &script, &java, "run 2000");
        // Threads that wait there when the machine ends never return.
        let stopped = ["InterpreterRuntime::at_safepoint"];
        assert_accounted(&report, &refused(&report), false, 1000, &stopped, 8);
    }
}

/// To analyse that library takes seconds, and a thread that had loaded it waited for five at most.
/// The program had ended by then.
#[test]
fn a_large_library_that_comes_later_is_probed_before_it_runs() {
    if !have(&["java"]) {
        return;
    }
    let script = "ur:libjvm:JVM_*, ur:libjvm:JNI_* { @[func] = count() }";
    let (output, report) = with_command(&["--follow", "-e", script], &["java", "-version"]);
    assert_eq!((output.code(), output.stdout.as_str()), (0, ""), "{output}");
    assert!(report.0.stdout.contains("@[JNI_CreateJavaVM]: 1\n"), "{}", report.0);
    assert!(!output.stderr.contains("was not followed"), "{output}");
}

/// What an error in a query, which is thrown when the query is planned, leaves by `longjmp`.
const LEFT: [&str; 19] = [
    "GetCachedPlan",
    "PostgresMain",
    "PostgresSingleUserMain",
    "SPI_plan_get_cached_plan",
    "____longjmp_chk",
    "__execvpe_common",
    "__longjmp_chk",
    "errfinish",
    "eval_const_expressions",
    "evaluate_expr",
    "expression_tree_mutator",
    "int4div",
    "pg_plan_queries",
    "pg_plan_query",
    "pg_re_throw",
    "planner",
    "proc_exit",
    "standard_planner",
    "subquery_planner",
];

/// Errors leave the functions of a server by `longjmp`.
#[test]
fn functions_of_postgres_and_its_errors() {
    let Some(bin) = postgres() else { return };
    let tool = |name: &str| bin.join(name).to_str().expect("UTF-8").to_owned();
    let data = database(&bin, "single");
    let queries = "
        drop table if exists t; create table t(a int, b text);
        insert into t select i, md5(i::text) from generate_series(1, 2000) i; create index on t(a);
        select count(*), sum(length(b)) from t where a % 7 = 3;
        do $$ begin begin perform 1 / 0; exception when division_by_zero then raise notice 'caught'; end; end $$;
        select 1 / 0;
        select sum(a) from t;
        ";
    let queries: String = queries.lines().map(|line| format!("{line}\n")).collect();
    let file = format!("{data}/queries");
    std::fs::write(&file, queries).expect("writable");
    let postgres = [&NOBODY.join(" "), &tool("postgres"), "--single -D", &data, "postgres <", &file].join(" ");
    let command = ["/bin/sh", "-c", &format!("exec {postgres}")];
    let plain = run(Command::new(command[0]).args(&command[1..]), LIMIT).ok();
    let (output, report) = with_command(&["-v", "--follow", "-e", &all(&["libc:*", "postgres:*"])], &command);
    let _ = std::fs::remove_dir_all(&data);
    let said = |text: &str| text.lines().filter(|line| line.contains("= \"")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!((said(&plain.stdout).len(), said(&output.stdout)), (3, said(&plain.stdout)), "{plain}{output}");
    // What dlsym does not find is an error of the loader, which leaves by longjmp, too.
    let loader = ["__longjmp", "do_dlsym"];
    assert_accounted(&report, &refused(&report), false, 10_000, &[&ENDS[..], &LEFT, &loader].concat(), 100);
    let counts = counted(&report);
    let left = |name: &str| {
        let find = |(function, _): &(&String, &(u64, u64))| function.rsplit(':').next() == Some(name);
        counts.iter().find(find).map_or(0, |(_, (entered, returned))| entered - returned)
    };
    assert_eq!((left("errfinish"), left("standard_planner"), left("int4div")), (2, 2, 2), "{}", report.0);
}

/// A process of a database server that has a client already.
#[test]
fn functions_of_postgres_when_it_is_attached_late() {
    let Some(bin) = postgres() else { return };
    let data = database(&bin, "late");
    let server = Running::start(&mut server(&bin, &data));
    assert!(is_up(&data), "no server");
    let mut client = Program::start(&mut client(&data));
    let pid = client.ask("select pg_backend_pid();") as i32;
    let query = "with t as (select i, md5(i::text) m from generate_series(1, 3000) i) \
                 select sum(length(m) * (i % 7)) from t where m like '%a%';";
    let expected = client.ask(query);
    let report = watched_at(&all(&["libc:*", "postgres:*"]), &mut client, pid, query, expected);
    assert_accounted(&report, &refused(&report), true, 10_000, &ENDS, 1);
    client.finish().ok();
    server.signal(libc::SIGINT);
    server.finish(LIMIT).ok();
    let _ = std::fs::remove_dir_all(&data);
}

/// Where the programs of postgres are.
fn postgres() -> Option<PathBuf> {
    let bin = programs();
    if bin.is_none() {
        skip("no postgres in /usr/lib/postgresql");
    }
    bin
}

/// A version control system with processes of its own.
#[test]
fn functions_of_git_return_but_those_that_end_it() {
    if !have(&["git"]) {
        return;
    }
    let script = all(&["libc:*", "libz:*", "git:*"]);
    let git = ["git", "--no-pager", "-C", env!("CARGO_MANIFEST_DIR"), "log", "--oneline", "--stat", "-2"];
    let plain = run(Command::new(git[0]).args(&git[1..]), LIMIT).ok().stdout;
    let shell = [&["/bin/sh", "-c", "exec \"$0\" \"$@\""], &git[..]].concat();
    let mut no = BTreeSet::new();
    for (command, most) in [(&git[..], 1), (&shell[..], 2)] {
        let (output, report) = with_command(&["-v", "--follow", "-e", &script], command);
        assert_eq!(output.stdout, plain, "{}", report.0);
        no.append(&mut refused(&report));
        assert_accounted(&report, &no, false, 1000, &ENDS, most);
    }
    let server = format!("echo ready; exec git -C {} cat-file --batch-check='%(objectsize)'", git[3]);
    let report = watched_late(&script, &["/bin/sh", "-c", &server], "HEAD~1^{tree}");
    no.append(&mut refused(&report));
    assert_accounted(&report, &no, true, 300, &ENDS, 1);
}

/// `backtrace()` loads libgcc_s at the first call, after the attach, and finds the frames that are
/// there without probes.
#[test]
fn backtraces_are_the_same_with_probes_at_all_frames() {
    let Some(path) = target("frames") else { return };
    let path = path.to_str().expect("UTF-8");
    let script = all(&[&format!("{path}:*"), "libc:*", "libgcc_s:*"]);
    let mut no = BTreeSet::new();
    for way in WAYS {
        let report = watched(way, &script, &[path], "walks 30");
        no.append(&mut refused(&report));
        assert_accounted(&report, &no, way == Way::Late, 300, &ENDS, 2);
        let runs = if way == Way::Late { 2 } else { 1 };
        let frames = counted(&report)[&format!("{path}:middle")];
        assert_eq!(frames, (runs * 129, runs * 129), "{way:?}: {}", report.0);
    }
}

/// Two indirect functions of one pattern that have one implementation. The calls of both were
/// remembered, but the exits of both asked for those of the first, and had no name.
#[test]
fn two_names_of_one_implementation_lost_their_returns() {
    let Some(path) = target("frames") else { return };
    let path = path.to_str().expect("UTF-8");
    let report = watched(Way::Late, &all(&["libc:mem*"]), &[path], "walks 30");
    assert!(!report.0.stdout.contains("[]"), "{}", report.0);
    let counts = counted(&report);
    for name in ["memcpy", "memmove"] {
        let count = counts.iter().find(|(function, _)| function.ends_with(&format!(":{name}"))).map(|(_, n)| *n);
        assert!(count.is_some_and(|(entered, returned)| entered > 0 && entered == returned), "{name}: {}", report.0);
    }
}

#[test]
fn exceptions_in_coroutines_are_the_same_in_each_way() {
    let Some(path) = target("switched") else { return };
    let path = path.to_str().expect("UTF-8");
    let script = all(&[&format!("{path}:*"), "libstdc++:__cxa_*", "libgcc_s:*"]);
    for way in WAYS {
        let report = watched(way, &script, &[path], "rounds 10");
        let runs = if way == Way::Late { 2 } else { 1 };
        assert_eq!(counted(&report)[&format!("{path}:produce")], (runs * 20, runs * 20), "{way:?}: {}", report.0);
    }
}

#[test]
fn results_of_go_are_the_same_in_each_way() {
    if !have(&["go"]) {
        return;
    }
    let Some(path) = target("returns-go") else { return };
    let path = path.to_str().expect("UTF-8");
    // Without keys: there is no room for a map's update on the stack of each goroutine.
    let script = format!("u:{path}:main.deep {{ @e = count() }} ur:{path}:main.deep {{ @r = count() }}");
    for way in WAYS {
        let report = watched(way, &script, &[path], "run 1");
        let calls = if way == Way::Late { 2 * 100_500 } else { 100_500 };
        for map in ["@e", "@r"] {
            let line = format!("{map}: {calls}\n");
            assert!(report.0.stdout.contains(&line), "no {line} {way:?}: {}", report.0);
        }
    }
}

/// gdb's `bt` while calls of probed functions have begun.
#[test]
fn gdb_sees_the_same_frames_with_and_without_probes() {
    if !have(&["gdb"]) {
        return;
    }
    let Some(path) = target("frames") else { return };
    let path = path.to_str().expect("UTF-8");
    let script = all(&[&format!("{path}:*"), "libc:*"]);
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let frames = |program: &mut Program| {
        program.send("stops 6");
        rest(program.pid());
        let mut gdb = Command::new("gdb");
        gdb.args([
            "-q",
            "-batch",
            "-nx",
            "-iex",
            "set debuginfod enabled off",
            "-p",
            &pid,
            "-ex",
            "bt",
            "-ex",
            "detach",
        ]);
        let output = Running::start(gdb.stdin(Stdio::null())).finish(LIMIT).ok();
        program.send("go");
        assert_eq!(program.answer(), 0);
        output.stdout.lines().filter(|line| line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    let plain = frames(&mut program);
    assert!(plain.len() >= 11 && plain.iter().filter(|frame| frame.contains(" middle (")).count() == 7, "{plain:?}");
    let tracing = Tracing::start(&["funclatency", "-p", &pid, "-r", "^(outer|middle|inner|stops|serve_one|main)$"]);
    assert_eq!(frames(&mut program), plain);
    tracing.stop();
    let script = format!("{script} interval:ms:20 {{ printf(\"Tracing\\n\") }}");
    let tracing = Tracing::start(&["-p", &pid, "-e", &script]);
    assert_eq!(frames(&mut program), plain);
    tracing.stop();
    assert_eq!(frames(&mut program), plain);
    program.finish().ok();
}

/// Returns of a function that ends by a jump through a pointer: their addresses are replaced.
fn through(program: &str) -> String {
    format!("ur:{program}:through {{ @ = sum(retval) }}")
}

/// The program came before its libraries: its own returns were replaced when no unwinder was there.
#[test]
fn exceptions_of_a_program_that_is_probed_before_its_libraries_are_there() {
    let Some(path) = target("thrower") else { return };
    let path = path.to_str().expect("UTF-8");
    for way in WAYS {
        let report = watched(way, &through(path), &[path], "thrown 101");
        let returned = (0..101).step_by(2).sum::<u64>() * if way == Way::Late { 2 } else { 1 };
        assert!(report.0.stdout.contains(&format!("@: {returned}\n")), "{way:?}: {}", report.0);
    }
}

#[test]
fn unwinders_that_come_later_find_real_return_addresses() {
    let Some(path) = target("plugged") else { return };
    if target("libthrower.so").is_none() || target("libthrower-hidden.so").is_none() {
        return;
    }
    let path = path.to_str().expect("UTF-8");
    for way in WAYS {
        for command in ["thrown 101", "hidden 101", "traced 50"] {
            let report = watched(way, &through(path), &[path], command);
            let told = "was given real return addresses back";
            assert_eq!(report.0.stderr.contains(told), command.starts_with("hidden"), "{way:?}: {}", report.0);
        }
    }
}

/// The process that the session began with has ended by then, and its child loads the unwinder.
#[test]
fn unwinders_that_come_to_a_child_whose_parent_has_ended() {
    let Some(path) = target("plugged") else { return };
    if target("libthrower.so").is_none() || target("libthrower-hidden.so").is_none() {
        return;
    }
    let path = path.to_str().expect("UTF-8");
    for way in [Way::Started, Way::Executed] {
        for command in ["thrown_orphaned 101", "hidden_orphaned 101", "traced_orphaned 50"] {
            watched(way, &through(path), &[path], command);
        }
    }
}
