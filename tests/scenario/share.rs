//! Several sessions in one process, on the same functions: each has its own results, and any of
//! them may end first, also by SIGKILL.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use sidestep_tests::process::{LIMIT, Program, eventually, run};
use sidestep_tests::tool::{Report, Tracing, sidestep};
use sidestep_tests::{Snapshot, target};

use super::carried::{refused, status};
use super::stacks::stacks;

const BUILDS: [&str; 5] = ["counts", "counts-ibt", "counts-O0", "counts-static", "counts-musl"];
/// How long sessions come and go while threads run through their sites.
const TIME: Duration = Duration::from_secs(6);

fn start(name: &str) -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target(name)?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

fn counted(tool: &str, report: &Report) -> u64 {
    if tool == "funclatency" { report.latencies() } else { report.count("leaf") }
}

#[test]
pub fn either_may_end_first() {
    for build in BUILDS {
        for tools in [["funccount", "funccount"], ["funclatency", "funccount"], ["funclatency", "funclatency"]] {
            for first_goes in [true, false] {
                let Some((mut program, pid)) = start(build) else { return };
                program.ask("threads 1");
                let before = Snapshot::of(program.pid());
                let first = Tracing::start(&[tools[0], "-p", &pid, "leaf"]);
                program.ask("work 10");
                let second = Tracing::start(&[tools[1], "-p", &pid, "leaf"]);
                program.ask("work 100");
                program.ask("threads 10");
                let (went, (tool, stays)) =
                    if first_goes { (first.stop(), (tools[1], second)) } else { (second.stop(), (tools[0], first)) };
                program.ask("work 100000");
                let left = stays.stop();
                let (gone_tool, early) = if first_goes { (tools[0], [10, 0]) } else { (tools[1], [0, 10]) };
                let what = format!("{build} {tools:?} {first_goes}: {} {}", went.0, left.0);
                assert_eq!(counted(gone_tool, &went), early[0] + 100 + 640, "{what}");
                assert_eq!(counted(tool, &left), early[1] + 100 + 640 + 100_000, "{what}");
                before.assert_same_but_data(&Snapshot::of(program.pid()));
                program.finish().ok();
            }
        }
    }
}

#[test]
pub fn three_end_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let Some((mut program, pid)) = start("counts") else { return };
        program.ask("threads 1");
        let before = Snapshot::of(program.pid());
        let tools = ["funclatency", "funccount", "funclatency"];
        let mut sessions: Vec<Option<Tracing>> = Vec::new();
        let (mut expected, mut calls) = ([0; 3], 1);
        let mut work = |sessions: &[Option<Tracing>], expected: &mut [u64; 3]| {
            program.ask(&format!("work {calls}"));
            for (count, _) in expected.iter_mut().zip(sessions).filter(|(_, session)| session.is_some()) {
                *count += calls;
            }
            calls *= 10;
        };
        for tool in tools {
            sessions.push(Some(Tracing::start(&[tool, "-p", &pid, "leaf"])));
            work(&sessions, &mut expected);
        }
        for i in order {
            let report = sessions[i].take().expect("it is there").stop();
            assert_eq!(counted(tools[i], &report), expected[i], "{order:?} {i}: {}", report.0);
            work(&sessions, &mut expected);
        }
        before.assert_same_but_data(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// Who comes next takes out what a controller left that was killed, and the others count on.
#[test]
pub fn either_may_be_killed() {
    for first_dies in [true, false] {
        let Some((mut program, pid)) = start("counts") else { return };
        program.ask("threads 1");
        let before = Snapshot::of(program.pid());
        let first = Tracing::start(&["funclatency", "-p", &pid, "leaf"]);
        let second = Tracing::start(&["funclatency", "-p", &pid, "leaf"]);
        program.ask("work 10");
        let stays = if first_dies {
            first.kill();
            second
        } else {
            second.kill();
            first
        };
        program.ask("work 100");
        let third = Tracing::start(&["funclatency", "-p", &pid, "leaf"]);
        let gone = status(&pid, &[]).1;
        assert!(!gone.contains("is gone"), "{gone}");
        program.ask("work 1000");
        let report = stays.stop();
        assert_eq!(report.latencies(), 1110, "{}", report.0);
        program.ask("work 10000");
        let report = third.stop();
        assert_eq!(report.latencies(), 11_000, "{}", report.0);
        before.assert_same_but_data(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// Frames that several sessions watch, one inside the other, while sessions go: their trampolines
/// are in each other's memory.
#[test]
pub fn calls_under_way_return_through_all_that_are_left() {
    for build in ["counts", "counts-O0"] {
        let Some((mut program, pid)) = start(build) else { return };
        let before = Snapshot::of(program.pid());
        let mut sessions: Vec<Tracing> =
            ["fib", "odd", "fib"].iter().map(|name| Tracing::start(&["funclatency", "-p", &pid, name])).collect();
        // Deep enough for the shadow stacks to grow, and both sessions are in each frame.
        assert_eq!(program.ask("even 100000"), 1);
        assert_eq!(program.ask("fib 20"), 6765);
        program.send("fib 32");
        let last = sessions.pop().expect("three");
        for session in sessions {
            session.stop();
        }
        last.stop();
        assert_eq!(program.answer(), 2_178_309);
        assert!(eventually(LIMIT, || program.is_running()));
        before.assert_same_but_data(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// `longjmp`, handlers and coroutines, with the same frames watched by two.
#[test]
pub fn frames_that_do_not_return_are_left_by_both() {
    const COMMANDS: [(&str, i64); 2] = [("jump 100", 20_000), ("sigjump 50", 50)];
    let Some((mut program, pid)) = start("unwind") else { return };
    let mut ask =
        || COMMANDS.iter().for_each(|(command, answer)| assert_eq!(program.ask(command), *answer, "{command}"));
    ask();
    let before = Snapshot::of(pid.parse().expect("a process id"));
    let args = ["funclatency", "-p", &pid, "-r", "^(deep|jump|leaf|step|until_signal)$"];
    let first = Tracing::start(&args);
    let second = Tracing::start(&args);
    ask();
    first.stop();
    ask();
    second.stop();
    ask();
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// Exceptions that went through frames of two sessions killed the program.
#[test]
fn returns_of_programs_with_exceptions_are_watched_by_one() {
    const FUNCTIONS: &str = r"^app::(thrower|rethrower|catcher|quiet)(\([^\[]*)?$";
    let Some((mut program, pid)) = start("throw") else { return };
    assert_eq!(program.ask("run 1000"), -500);
    let before = Snapshot::of(program.pid());
    let args = ["funclatency", "-p", &pid, "-r", FUNCTIONS];
    let first = Tracing::start(&args);
    refused(&args, &["exceptions", &format!("process {}", first.pid()), "end that first"]);
    let second = Tracing::start(&["funccount", "-p", &pid, "-r", FUNCTIONS]);
    assert_eq!(program.ask("run 1000"), -500);
    first.stop();
    assert_eq!(program.ask("run 1000"), -500);
    second.stop();
    assert_eq!(program.ask("run 1000"), -500);
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

#[test]
pub fn stacks_go_through_frames_of_another_session() {
    let Some((mut program, pid)) = start("stacks") else { return };
    let leaf = format!("u:{}:leaf", target("stacks").expect("it was started").display());
    for command in ["deep 30", "sorted 1"] {
        let alone = stacks(&mut program, &leaf, command);
        assert!(alone.iter().any(|stack| stack.len() > 3), "{alone:x?}");
        let first = Tracing::start(&["funclatency", "-p", &pid, "-r", "^(deep|leaf|sorted|compare)$"]);
        assert_eq!(stacks(&mut program, &leaf, command), alone);
        first.stop();
    }
    program.finish().ok();
}

#[test]
pub fn sessions_come_and_go_under_running_threads() {
    let Some((mut program, pid)) = start("load") else { return };
    assert_eq!(program.ask("start 0"), 0);
    let before = Snapshot::of(program.pid());
    let tools = ["funccount", "funclatency"];
    let functions = "^(leaf|mix|tree|real|bytes)$";
    let begin = Instant::now();
    let mut sessions: Vec<Tracing> = Vec::new();
    let mut round = 0;
    while begin.elapsed() < TIME || round < 8 {
        let tool = [tools[round % 2], "-p", &pid, "-r", functions];
        sessions.push(Tracing::start(&tool));
        if sessions.len() == 3 {
            let gone = sessions.remove(round * 7 % 3);
            if round % 4 == 3 { gone.kill() } else { _ = gone.stop() }
        }
        round += 1;
    }
    for session in sessions {
        session.stop();
    }
    // A killed one is removed by the next.
    Tracing::start(&["funccount", "-p", &pid, "leaf"]).stop();
    let rounds = program.ask("rounds 0");
    assert!(eventually(LIMIT, || program.ask("rounds 0") > rounds), "the threads stand still");
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0);
    program.finish().ok();
}

/// While one controller had the threads stopped, the attach of another failed: "is traced already".
#[test]
fn several_attach_at_the_same_time() {
    let Some((mut program, pid)) = start("many") else { return };
    assert_eq!(program.ask("start 0"), 0);
    let before = Snapshot::of(program.pid());
    for _ in 0..5 {
        let patterns = ["many10*", "many11*", "many12*", "many13*"];
        let sessions: Vec<Tracing> = std::thread::scope(|scope| {
            let attach = |pattern: &'static str| {
                let pid = &pid;
                scope.spawn(move || Tracing::start(&["funccount", "-p", pid, pattern]))
            };
            let attaching = patterns.map(attach);
            attaching.map(|thread| thread.join().expect("it attaches")).into()
        });
        sessions.into_iter().for_each(|session| _ = session.stop());
    }
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0, "wrong results");
    program.finish().ok();
}

/// Both need the signals. Each makes its plans while the other may take them.
#[test]
fn an_attach_gave_up_for_signals_that_were_taken_meanwhile() {
    let Some((mut program, pid)) = start("many") else { return };
    assert_eq!(program.ask("start 0"), 0);
    let before = Snapshot::of(program.pid());
    for _ in 0..8 {
        let outputs = std::thread::scope(|scope| {
            let attach = |pattern: &'static str| {
                let args = ["funccount", "--no-optimize", "-d", "1", "-p", &pid, pattern];
                let mut command = sidestep(&args);
                scope.spawn(move || run(&mut command, LIMIT))
            };
            ["many10*", "many11*"].map(attach).map(|thread| thread.join().expect("it ends"))
        });
        assert!(outputs.iter().all(|output| output.code() == 0), "{} {}", outputs[0], outputs[1]);
    }
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0, "wrong results");
    program.finish().ok();
}

#[test]
pub fn switches_and_lists_show_both() {
    let Some((mut program, pid)) = start("counts") else { return };
    program.ask("threads 1");
    let before = Snapshot::of(program.pid());
    let first = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
    let second = Tracing::start(&["funccount", "-p", &pid, "-r", "^(leaf|seven)$"]);
    program.ask("work 10");
    let (lines, text) = status(&pid, &[]);
    let states: Vec<(&str, u64)> = lines.iter().map(|line| (line.state.as_str(), line.hits)).collect();
    assert_eq!(states, [("[OPTIMIZED]", 10), ("[OPTIMIZED]", 10), ("[OPTIMIZED]", 0)]);
    for controller in [first.pid(), second.pid()] {
        assert!(text.contains(&format!("controlled by process {controller}")), "{text}");
    }
    let switch = |command: &str, says: &str| {
        let output = run(&mut sidestep(&[command, "-p", &pid, "leaf"]), LIMIT).ok();
        assert_eq!((output.stdout.trim_end(), output.stderr.as_str()), (says, ""));
    };
    switch("disable", "2 probes disabled");
    switch("disable", "0 probes disabled; 2 were already");
    let (lines, _) = status(&pid, &[]);
    let disabled = lines.iter().filter(|line| line.state == "[DISABLED]").count();
    assert_eq!(disabled, 2, "{lines:?}");
    program.ask("work 100");
    // One that comes now, and goes, is alone at the site.
    let third = Tracing::start(&["funclatency", "-p", &pid, "leaf"]);
    program.ask("work 1000");
    switch("enable", "2 probes enabled; 1 was already");
    program.ask("work 10000");
    assert_eq!(third.stop().latencies(), 11_000);
    program.ask("work 100000");
    program.ask("seven 5");
    first.stop().assert_count("leaf", 110_010);
    let report = second.stop();
    report.assert_count("leaf", 110_010);
    report.assert_count("seven", 5);
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// What two sessions cannot share is refused with the name of the other one, and stays as it was.
#[test]
pub fn what_cannot_be_shared_is_refused() {
    let Some((mut program, pid)) = start("counts") else { return };
    let before = Snapshot::of(program.pid());
    let first = Tracing::start(&["funccount", "--no-optimize", "-p", &pid, "leaf"]);
    let whose = format!("process {}", first.pid());
    refused(&["funccount", "-p", &pid, "leaf"], &[&whose, "end that first"]);
    refused(&["funccount", "--no-optimize", "-p", &pid, "leaf"], &[&whose, "end that first"]);
    let second = Tracing::start(&["funccount", "-p", &pid, "seven"]);
    program.ask("work 10");
    program.ask("seven 20");
    first.stop().assert_count("leaf", 10);
    program.ask("seven 20");
    second.stop().assert_count("seven", 40);
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// Eight threads, a handler a thousand times a second, children that are forked and must compute
/// the same: sessions come and go.
#[test]
pub fn children_and_signal_handlers_are_not_disturbed() {
    let Some((mut program, pid)) = start("torture") else { return };
    assert_eq!(program.ask("start 0"), 0);
    let before = Snapshot::of(program.pid());
    let all =
        Tracing::start(&["funccount", "-p", &pid, "-r", "^(mine|check|answer|park|jumps_away|reads_rip|red_zone)$"]);
    let begin = Instant::now();
    let mut calls = 0;
    while begin.elapsed() < TIME || calls == 0 {
        let second = Tracing::start(&["funclatency", "-p", &pid, "-r", "^(mine|check)$"]);
        let third = Tracing::start(&["funclatency", "-p", &pid, "mine"]);
        assert_eq!(program.ask("alone 1000"), 0);
        calls += 1000;
        second.stop();
        assert_eq!(third.stop().latencies(), 1000);
    }
    let report = all.stop();
    report.assert_count("mine", calls);
    assert!(report.count("check") > 0, "{}", report.0);
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0);
    program.finish().ok();
}

/// Another version of the tool has other layouts: nothing of its session is read or changed.
#[test]
fn a_session_of_another_version_is_left_alone() {
    /// Offset in the header.
    const VERSION: u64 = 8;
    let Some((mut program, pid)) = start("counts") else { return };
    let before = Snapshot::of(program.pid());
    let first = Tracing::start(&["funccount", "--no-optimize", "-p", &pid, "leaf"]);
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let header = maps.lines().find(|line| line.contains("/memfd:sidestep")).expect("it is mapped");
    let header = header.split('-').next().and_then(|start| u64::from_str_radix(start, 16).ok()).expect("an address");
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).expect("its memory");
    let mut version = [0; 4];
    memory.read_exact_at(&mut version, header + VERSION).expect("it is mapped");
    let older = u32::from_ne_bytes(version) - 1;
    memory.write_all_at(&older.to_ne_bytes(), header + VERSION).expect("it is writable");
    for args in [
        &["funccount", "-p", &pid, "seven"][..],
        &["funccount", "--no-optimize", "-p", &pid, "leaf"],
        &["status", "-p", &pid],
        &["disable", "-p", &pid, "leaf"],
        &["detach", "-p", &pid],
    ] {
        refused(args, &[&format!("process {pid} carries probes of another version of sidestep")]);
    }
    program.ask("work 10");
    memory.write_all_at(&version, header + VERSION).expect("it is writable");
    first.stop().assert_count("leaf", 10);
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}
