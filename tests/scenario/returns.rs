//! Returns at the exits of functions: the stack stays as the program made it, so whoever looks at
//! it sees nothing.

use std::process::Command;

use sidestep_tests::build::have;
use sidestep_tests::process::{LIMIT, Output, Program, eventually, run};
use sidestep_tests::tool::{Report, Tracing, sidestep, with_command};
use sidestep_tests::{Snapshot, target};

/// The value of a map without keys, in the tool's output.
fn value(report: &Report, map: &str) -> u64 {
    let line = report.0.stdout.lines().find_map(|line| line.strip_prefix(&format!("{map}: ")));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {map} in {}", report.0))
}

/// What a command prints without probes, and with a script.
fn both(command: &[&str], script: &str) -> (Output, Report) {
    let plain = run(Command::new(command[0]).args(&command[1..]), LIMIT).ok();
    let (output, report) = with_command(&["-v", "-e", script], command);
    assert_eq!(output.stdout, plain.stdout, "{}", report.0);
    (plain, report)
}

#[test]
fn backtrace_found_the_trampoline_of_a_watched_call() {
    let Some(path) = target("walks") else { return };
    let path = path.to_str().expect("UTF-8");
    let script = format!(
        "u:{path}:outer, u:{path}:middle, u:{path}:inner {{ @e = count() }}
         ur:{path}:outer, ur:{path}:middle, ur:{path}:inner {{ @r = count() }}"
    );
    let (_, report) = both(&[path], &script);
    assert_eq!((value(&report, "@e"), value(&report, "@r")), (300, 300), "{}", report.0);
}

/// The jump at the entry of such a function needs the bytes of its exit. Where return addresses
/// stay as they are, which the name of the program says, the returns were refused.
#[test]
fn returns_of_the_shortest_functions_were_refused() {
    let Some(path) = target("crowded") else { return };
    let folder = std::env::temp_dir().join(format!("sidestep-crowded-{}", std::process::id()));
    let copy = folder.join("beam.smp");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::copy(path, &copy).expect("/tmp is writable");
    let mut program = Program::start(&mut Command::new(&copy));
    let before = Snapshot::of(program.pid());
    let pid = program.pid().to_string();
    let scripts =
        ["u:crowded { @e = count() } ur:crowded { @r = count() }", "ur:crowded { @r = count(); @t = max(latency()) }"];
    for script in scripts {
        let tracing = Tracing::start(&["-f", "json", "-p", &pid, "-e", script]);
        assert_eq!(program.ask("crowd 1000"), 1_499_500);
        let report = tracing.stop();
        for map in ["@e", "@r"].into_iter().filter(|map| script.contains(map)) {
            assert!(report.0.stdout.contains(&format!("{{\"{map}\": 1000}}")), "{}", report.0);
        }
        before.assert_same_code(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
    let _ = std::fs::remove_dir_all(&folder);
}

/// Such a return was a trap. The jump to it displaces that of the loop, of which only the way out
/// is a return.
#[test]
fn a_return_behind_the_jump_of_a_loop_was_a_trap() {
    let Some(path) = target("crowded") else { return };
    let path = path.to_str().expect("UTF-8");
    let explained = run(&mut sidestep(&["explain", &format!("ur:{path}:loops")]), LIMIT).ok();
    assert!(!explained.stdout.contains("ret: trap"), "{explained}");
    let script = format!(
        "ur:{path}:loops {{ @r = count(); @sum = sum(retval); @time = max(latency()) }} u:{path}:loops {{ @e = count() }}"
    );
    let (output, report) = both(&[path, "rounds", "200"], &script);
    let sum = (1..=200).map(|i| 3 * i).sum::<u64>();
    assert_eq!(output.stdout, format!("{sum}\n"));
    assert_eq!((value(&report, "@e"), value(&report, "@r"), value(&report, "@sum")), (200, 200, sum), "{}", report.0);
    assert!(value(&report, "@time") > 0, "{}", report.0);
}

/// The time ended at the jump, unless the script read the result.
#[test]
fn latencies_were_without_the_function_of_a_tail_call() {
    let Some(path) = target("crowded") else { return };
    let path = path.to_str().expect("UTF-8");
    let (output, report) = both(&[path, "wait", "4"], &format!("ur:{path}:leads {{ @least = min(latency()) }}"));
    assert_eq!(output.stdout, "8\n");
    // The function that the jump leads to sleeps for two milliseconds.
    assert!(value(&report, "@least") >= 2_000_000, "{}", report.0);
}

#[test]
fn results_of_tail_calls_are_those_of_the_last_function() {
    let Some(path) = target("walks") else { return };
    let path = path.to_str().expect("UTF-8");
    let script = format!("ur:{path}:jumps {{ @r = count(); @sum = sum(retval) }} u:{path}:jumps {{ @e = count() }}");
    let (_, report) = both(&[path], &script);
    let sum = (0..50).map(|i| 2 * (i + 1)).sum::<u64>();
    assert_eq!((value(&report, "@e"), value(&report, "@r"), value(&report, "@sum")), (50, 50, sum), "{}", report.0);
}

/// Of functions that end by a jump to the next one, some calls are left by `longjmp`. Their stack
/// slots are those of later calls of the next function itself, which were taken for their ends.
#[test]
pub fn calls_that_never_returned_ended_where_they_would_have_jumped_to() {
    let Some(path) = target("tails") else { return };
    let path = path.to_str().expect("UTF-8");
    for way in ["apart", "same", "threads"] {
        let script = format!(
            "ur:{path}:first {{ @f = count(); @max = max(latency()); @sum = sum(retval) }}
             ur:{path}:second {{ @s = count(); @max = max(latency()) }}"
        );
        let (output, report) = with_command(&["-v", "-e", &script], &[path, way, "1000"]);
        let numbers: Vec<u64> = output.stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [first, second, unfinished] = numbers[..] else { panic!("{output}") };
        assert_eq!((value(&report, "@f"), value(&report, "@s")), (first, second), "{way}: {}", report.0);
        assert!(report.0.stderr.contains(&format!("{unfinished} calls had not returned")), "{way}: {}", report.0);
        let latencies = with_command(&["funclatency", &format!("{path}:first")], &[path, way, "1000"]).1;
        assert_eq!(latencies.latencies(), first, "{way}: {}", latencies.0);
    }
}

/// Each call of a function that others may jump to looked at all calls that had been left.
#[test]
pub fn calls_that_were_left_slowed_down_those_of_another_function() {
    let Some(path) = target("tails") else { return };
    let path = path.to_str().expect("UTF-8");
    let script = format!("ur:{path}:first, ur:{path}:deep {{ @ = max(latency()) }}");
    let (output, report) = with_command(&["-v", "-e", &script], &[path, "deep", "20000"]);
    let numbers: Vec<u64> = output.stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [before, after] = numbers[..] else { panic!("{output}") };
    assert!(after < 10 * before + 100, "{before} {after} {}", report.0);
}

#[test]
fn calls_that_never_return_are_said_to_be_unfinished() {
    let Some(path) = target("walks") else { return };
    let path = path.to_str().expect("UTF-8");
    let (output, report) = with_command(&["funclatency", &format!("{path}:leaves")], &[path]);
    assert!(output.stdout.trim().parse::<u64>().is_ok(), "{output}");
    assert!(report.0.stderr.contains("220 calls had not returned"), "{}", report.0);
}

#[test]
fn an_exception_in_one_coroutine_dropped_the_returns_of_another() {
    let Some(path) = target("switched") else { return };
    let path = path.to_str().expect("UTF-8");
    let script =
        format!("u:{path}:produce {{ @e = count() }} ur:{path}:produce {{ @r = count(); @x[retval] = count() }}");
    let command = [path, "rounds", "10"];
    let (_, report) = both(&command, &script);
    assert_eq!((value(&report, "@e"), value(&report, "@r")), (20, 20), "{}", report.0);
    let (_, report) = with_command(&["funclatency", &format!("{path}:produce")], &command);
    assert_eq!(report.latencies(), 20, "{}", report.0);
}

#[test]
fn goroutines_return_on_stacks_that_move() {
    if !have(&["go"]) {
        return;
    }
    let Some(path) = target("returns-go") else { return };
    let path = path.to_str().expect("UTF-8");
    let script =
        format!("u:{path}:main.deep {{ @e = count() }} ur:{path}:main.deep {{ @r = count(); @sum = sum(retval) }}");
    let (_, report) = both(&[path, "run", "1"], &script);
    // 1000 goroutines, five of each depth from 0 to 199.
    let calls: u64 = 5 * (0..200).map(|n| n + 1).sum::<u64>();
    let sum: u64 = 5 * (0..200u64).flat_map(|n| (0..=n).map(|at| at + 1)).sum::<u64>();
    assert_eq!(
        (value(&report, "@e"), value(&report, "@r"), value(&report, "@sum")),
        (calls, calls, sum),
        "{}",
        report.0
    );
}

/// Calls are known by their goroutines, which change threads, and whose stacks move.
#[test]
fn goroutines_pair_entries_and_returns() {
    if !have(&["go"]) {
        return;
    }
    let Some(path) = target("pairs-go") else { return };
    let path = path.to_str().expect("UTF-8");
    let script = format!(
        "u:{path}:main.nested, u:{path}:main.leaf {{ self.n = reg(\"ax\"); @e[func] = count() }}
         ur:{path}:main.nested {{ @nested[retval - self.n] = count(); @times[latency() > 0] = count() }}
         ur:{path}:main.leaf {{ @leaf[retval - 4 * self.n] = count() }}"
    );
    let (_, report) = both(&[path], &script);
    // 1000 goroutines, 50 of each depth from 0 to 19.
    let calls: u64 = 50 * (0..20).map(|n| n + 1).sum::<u64>();
    for (row, count) in [
        ("@e[main.nested]", calls),
        ("@nested[1]", calls),
        ("@times[true]", calls),
        ("@e[main.leaf]", 1000),
        ("@leaf[0]", 1000),
    ] {
        assert_eq!(value(&report, row), count, "{row}: {}", report.0);
    }
    // All calls of `throws` are left by a panic.
    let (_, report) = with_command(&["funclatency", "-r", &format!("{path}:main.(throws|catches|nested)$")], &[path]);
    let thrown: u64 = (0..1000).map(|i| i % 20 % 7 + 1).sum();
    assert!(report.0.stderr.contains(&format!("{thrown} calls had not returned")), "{}", report.0);
    assert_eq!(report.latencies(), calls + 1000, "{}", report.0);
}

/// A signal comes before any instruction of a call, those of its probes, too. Its handler uses up
/// the memory for the calls that are remembered, so that it is replaced in the middle.
#[test]
pub fn calls_are_remembered_whenever_a_signal_comes() {
    let Some(path) = target("stepped") else { return };
    let path = path.to_str().expect("UTF-8");
    let (output, report) = with_command(&["funclatency", &format!("{path}:outer")], &[path, "stay"]);
    let [signals, calls, left, _] = numbers(&output);
    assert!(signals > 60 && left == 0, "it stepped through no probe: {output}");
    assert_eq!((calls, report.latencies()), (4 * signals, calls), "{}", report.0);
    let script = format!(
        "ur:{path}:outer {{ @outer = count(); @a = sum(latency()) }} ur:{path}:deep {{ @deep = count(); @b = sum(latency()) }}"
    );
    let (output, report) = with_command(&["-v", "-e", &script], &[path, "leave"]);
    let [_, calls, left, deep] = numbers(&output);
    assert_eq!(value(&report, "@deep"), deep, "{}", report.0);
    // It is not known whether a call that was left had just returned.
    let returns = value(&report, "@outer");
    assert!(left > 60 && (calls..=calls + left).contains(&returns), "{output} {}", report.0);
}

/// The program waits in `read` with the same stack slot each time. While the probe was off, one
/// call ended and the next one began.
#[test]
pub fn a_call_that_began_unseen_had_the_time_of_an_earlier_one() {
    let Some(path) = target("counts") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["funclatency", "-p", &pid, "libc:read"]);
    let mut read = || {
        program.ask("work 1");
        // The next call has begun.
        eventually(LIMIT, || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
        });
    };
    // The first call began before the attach.
    (0..3).for_each(|_| read());
    run(&mut sidestep(&["disable", "-p", &pid, "libc:read"]), LIMIT).ok();
    read();
    run(&mut sidestep(&["enable", "-p", &pid, "libc:read"]), LIMIT).ok();
    (0..4).for_each(|_| read());
    let report = tracing.stop();
    assert_eq!(report.latencies(), 2 + 3, "{}", report.0);
}

/// Of a latency, an entry and an exit are some dozen instructions each. The agent takes several
/// times as many.
#[test]
fn the_end_of_each_call_went_through_the_agent() {
    let Some(path) = target("stepped") else { return };
    let path = path.to_str().expect("UTF-8");
    let script = format!("ur:{path}:outer {{ @ = hist(latency()) }}");
    for args in [&["funclatency", &format!("{path}:outer")][..], &["-v", "-e", &script]] {
        let (output, report) = with_command(args, &[path, "stay"]);
        let [instructions, ..] = numbers(&output);
        assert!((60..200).contains(&instructions), "{output} {}", report.0);
    }
}

/// The four numbers that `stepped` prints.
fn numbers(output: &Output) -> [u64; 4] {
    let words = output.stdout.split_whitespace();
    let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{output}"))
}

/// What is on top of the stack at their entries is no return address.
#[test]
fn functions_that_no_call_leads_to_are_refused() {
    // Signal handlers of arm64 return to the vDSO, and its library does not name the other one.
    let places: &[&str] =
        if cfg!(target_arch = "aarch64") { &[] } else { &["libc:__restore_rt", "libc:__start_context"] };
    for place in places {
        let script = format!("ur:{place} {{ @ = count() }}");
        let output = run(&mut sidestep(&["-e", &script, "-c", "/bin/sh -c :"]), LIMIT);
        assert_ne!(output.code(), 0, "{place}: {output}");
        assert!(
            output.stderr.contains("cannot be") || output.stderr.contains("nothing can be probed"),
            "{place}: {output}"
        );
    }
    // With the others of its library they are left out, and the program runs: one of the loader's,
    // `_dl_runtime_resolve_xsavec`, has its odd frame where the assembler shares it with nobody.
    let scripts = ["{ @r = count() }", "{ @r = count(); @zero[retval == 0] = count(); @[func] = sum(retval) }"];
    let loader = if cfg!(target_arch = "aarch64") { "ld-linux-aarch64:*" } else { "ld-linux-x86-64:*" };
    let scripts = scripts.map(|actions| format!("ur:{loader} {actions}"));
    let all = scripts.iter().map(|script| ["-v", "-e", script]);
    for args in all.chain([["funclatency", "-v", loader]]) {
        let (output, report) = with_command(&args, &["/bin/sh", "-c", "echo there"]);
        assert_eq!((output.code(), output.stdout.lines().next()), (0, Some("there")), "{args:?}: {}", report.0);
    }
}

#[test]
fn all_functions_of_libraries_return_as_often_as_they_are_entered() {
    let git = ["git", "--no-pager", "log", "--oneline", "-3"];
    if !have(&["git"]) {
        return;
    }
    for command in [&["/bin/ls", "-l", "/usr"][..], &git] {
        let plain = run(Command::new(command[0]).args(&command[1..]), LIMIT).ok();
        let script = "u:libc:* { @e = count() } ur:libc:* { @r = count(); @zero[retval == 0] = count() }";
        let (output, report) = with_command(&["-v", "-e", script], command);
        assert_eq!(output.stdout, plain.stdout, "{}", report.0);
        let (entered, returned) = (value(&report, "@e"), value(&report, "@r"));
        // `exit` and what it calls last do not return; what began before the probes were there
        // does.
        assert!(
            entered > 100 && returned <= entered + 20 && entered <= returned + 40,
            "{entered} {returned}: {}",
            report.0
        );
    }
}

/// A library that moves stacks was loaded after the attach. From then on return addresses stay as
/// they are, also in the frames that are there.
#[test]
pub fn a_library_that_moves_stacks_came_after_the_attach() {
    let (Some(path), Some(_)) = (target("walked"), target("greenlet.so")) else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["trace", "-p", &pid, "r:odd \"%d\", retval"]);
    assert_eq!(program.ask("walk 10"), 10, "no return address is replaced: nothing is tested");
    assert_eq!(program.ask("come 5"), 0);
    assert_eq!(program.ask("walk 10"), 0);
    let report = tracing.stop();
    let returns = report.0.stdout.lines().filter(|line| line.contains(" odd ")).count();
    assert_eq!(returns, 10, "{}", report.0);
    assert!(report.0.stderr.contains("back (greenlet.so moves stacks)"), "{}", report.0);
    assert!(report.0.stderr.contains("14 calls had not returned"), "{}", report.0);
    program.finish().ok();
}

/// Only a return address is replaced: there is a call in front of it.
#[test]
pub fn what_is_not_behind_a_call_was_replaced() {
    let Some(path) = target("walked") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["trace", "-p", &pid, "r:odd \"%d\", retval"]);
    assert_eq!(program.ask("walk 10"), 10, "no return address is replaced: nothing is tested");
    assert_eq!(program.ask("jump 5"), 0);
    let report = tracing.stop();
    let returns = report.0.stdout.lines().filter(|line| line.contains(" odd ")).count();
    assert_eq!(returns, 10, "{}", report.0);
    assert!(report.0.stderr.contains("5 calls had not returned"), "{}", report.0);
    program.finish().ok();
}

/// Which function had not returned was said only of functions whose exits are probed.
#[test]
pub fn calls_whose_return_address_was_replaced_had_no_name() {
    let Some(path) = target("walked") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["-f", "json", "-p", &pid, "-e", "ur:walked:odd { @ = count() }"]);
    assert_eq!(program.ask("walk 10"), 10, "no return address is replaced: nothing is tested");
    assert_eq!(program.ask("jump 5"), 0);
    let report = tracing.stop();
    assert!(report.0.stderr.contains("5 calls had not returned (5 of odd)"), "{}", report.0);
    let said = report.0.stdout.lines().find(|line| line.contains("unfinished_calls")).unwrap_or_default();
    assert!(said.contains("\"count\": 5, \"data\": {\"probe\": \"odd\"}"), "{}", report.0);
    program.finish().ok();
}

/// Neither unwind information nor a call said that there is a return address, and what looked like
/// one on top of the stack was replaced: data of the program.
#[test]
pub fn data_that_looked_like_a_return_address_was_replaced() {
    let Some(path) = target("walked") else { return };
    let mut program = Program::start(&mut Command::new(&path));
    let pid = program.pid().to_string();
    let script = "u:walked:continues { @e = count() } ur:walked:continues { @r = count() }";
    let tracing = Tracing::start(&["-f", "json", "-p", &pid, "-e", script]);
    assert_eq!(program.ask("go_on 10"), 0, "a word of the stack was changed");
    let report = tracing.stop();
    assert!(report.0.stdout.contains("{\"@e\": 10}"), "{}", report.0);
    let says = "neither unwind information nor a call to it says that a return address is on top of the stack";
    assert!(report.0.stderr.contains(says), "{}", report.0);
    program.finish().ok();
}

/// Functions that share an exit have a number each there. In the next program they had each
/// other's, and calls of the one were said not to have returned.
#[test]
fn exits_that_functions_share_had_other_numbers_in_the_next_program() {
    let script = "u:libc:* { @e = count() } ur:libc:* { @r = count() }";
    let command = ["/bin/sh", "-c", "/bin/ls /; /bin/ls /"];
    let plain = run(Command::new(command[0]).args(&command[1..]), LIMIT).ok();
    let (output, report) = with_command(&["--follow", "-e", script], &command);
    assert_eq!(output.stdout, plain.stdout, "{}", report.0);
    assert!(value(&report, "@r") > 100 && !report.0.stderr.contains("had not returned"), "{}", report.0);
}

/// What is said of calls that had not returned, while one thread makes them all the time.
fn unfinished_under_load(script: &str) -> Option<(u64, Report)> {
    let (path, library) = (target("entered")?, target("libdistant.so")?);
    let mut program = Program::start(Command::new(path).env("LIBRARY", library));
    assert_eq!(program.ask("start 1"), 1);
    let pid = program.pid().to_string();
    let report = Report(run(&mut sidestep(&["-p", &pid, "--duration", "0.5", "-e", script]), LIMIT).ok());
    assert_eq!(program.ask("end 1"), 1);
    let said = report.0.stderr.lines().find_map(|line| line.split_once(" had not returned")?.0.split(' ').next());
    Some((said.map_or(0, |count| count.parse().expect("a number")), report))
}

/// `syscall` has a probe of our own at its entry. It was written with the user's handler in it,
/// long before the exits, and restored long after them.
#[test]
fn calls_through_a_site_of_our_own_were_seen_before_their_returns_could_be() {
    let script =
        "ur:libc:* { @[func] = stats(latency()) } u:libc:syscall { @e = count() } ur:libc:syscall { @r = count() }";
    let Some((unfinished, report)) = unfinished_under_load(script) else { return };
    let (entries, returns) = (value(&report, "@e"), value(&report, "@r"));
    assert!(entries > 100 && unfinished <= 2 && entries.abs_diff(returns) <= 2, "{}", report.0);
}

/// Sites of libraries that may be unloaded are written in several pauses: by address, so that the
/// entry of `first` came before its exit.
#[test]
fn entries_were_written_before_exits_on_later_pages() {
    let script = "ur:libdistant.so:* { @[func, ustack(2)] = count() }";
    let Some((unfinished, report)) = unfinished_under_load(script) else { return };
    assert!(unfinished <= 2 && report.0.stdout.contains("@[first, "), "{}", report.0);
}
