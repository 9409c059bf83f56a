//! Several sessions that need the signals of one process: traps, `--follow`, reads of memory that
//! may not be there. The first owns the signals, the others share them, and any may end first.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sidestep_tests::build::installed;
use sidestep_tests::process::{LIMIT, Program, Running, eventually, kill, run};
use sidestep_tests::tool::{Report, Tracing, Width, sidestep};
use sidestep_tests::{Snapshot, skip};

use super::carried::status;
use super::counts::work;
use super::detach::{Steps, evenly};
use super::switch::{assert_goes_on, load, start};

/// The first of two sessions, and the second.
const KINDS: [[&[&str]; 2]; 4] =
    [[TRAPS, TRAPS], [&[], TRAPS], [TRAPS, &["--follow"]], [&["--live", "--follow"], &["--follow"]]];
const TRAPS: &[&str] = &["--no-optimize"];

fn session(flags: &[&str], pid: &str, functions: &[&str]) -> Tracing {
    Tracing::start(&[&["funccount"], flags, &["-p", pid], functions].concat())
}

/// Calls of `even`, whose first instruction cannot fault.
const CALLS: u64 = 101;

fn call(program: &mut Program) {
    assert_eq!(program.ask("even 200"), 1);
    program.ask("seven 10");
    program.ask("threads 10");
}

#[test]
pub fn both_count_and_either_may_end_first() {
    for build in ["counts", "counts-ibt", "counts-static"] {
        for [one, two] in KINDS {
            for first_goes in [true, false] {
                let Some((mut program, pid)) = start(build) else { return };
                program.ask("threads 1");
                let before = Snapshot::of(program.pid());
                let first = session(one, &pid, &["even"]);
                call(&mut program);
                let second = session(two, &pid, &["seven"]);
                call(&mut program);
                let (went, stays) = if first_goes { (first, second) } else { (second, first) };
                let went = went.stop();
                call(&mut program);
                assert_eq!(status(&pid, &[]).0.len(), 1);
                let left = stays.stop();
                let (even, seven) = if first_goes { (went, left) } else { (left, went) };
                let counts = if first_goes { (2 * CALLS, 20) } else { (3 * CALLS, 10) };
                assert_eq!((even.count("even"), seven.count("seven")), counts, "{build} {one:?} {two:?} {first_goes}");
                before.assert_same_but_data(&Snapshot::of(program.pid()));
                program.finish().ok();
            }
        }
    }
}

#[test]
pub fn three_end_in_any_order() {
    const FUNCTIONS: [&str; 3] = ["even", "seven", "leaf"];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let Some((mut program, pid)) = start("counts") else { return };
        program.ask("threads 1");
        let before = Snapshot::of(program.pid());
        let mut sessions = FUNCTIONS.map(|function| Some(session(TRAPS, &pid, &[function])));
        for (rounds, i) in (1..).zip(order) {
            call(&mut program);
            let report = sessions[i].take().expect("it is there").stop();
            let each = [CALLS, 10, 640][i];
            assert_eq!(report.count(FUNCTIONS[i]), rounds * each, "{order:?} {i}: {}", report.0);
        }
        before.assert_same_but_data(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// Also while the other one has ended already, whose guards it needs.
#[test]
pub fn either_may_be_killed() {
    for [one, two] in KINDS {
        for first_dies in [true, false] {
            let Some((mut program, pid)) = start("counts") else { return };
            program.ask("threads 1");
            let before = Snapshot::of(program.pid());
            let first = session(one, &pid, &["even"]);
            let second = session(two, &pid, &["seven"]);
            call(&mut program);
            let (dies, stays) = if first_dies { (first, second) } else { (second, first) };
            dies.kill();
            call(&mut program);
            // It removes what the dead one left, but for what the other one needs.
            session(TRAPS, &pid, &["fib"]).stop();
            call(&mut program);
            let (name, count) = if first_dies { ("seven", 30) } else { ("even", 3 * CALLS) };
            let third = session(TRAPS, &pid, &[if first_dies { "even" } else { "seven" }]);
            stays.stop().assert_count(name, count);
            call(&mut program);
            third.kill();
            call(&mut program);
            let output = run(&mut sidestep(&["detach", "-p", &pid]), LIMIT);
            assert_eq!(output.code(), 0, "{output}");
            before.assert_same_but_data(&Snapshot::of(program.pid()));
            program.finish().ok();
        }
    }
}

/// A bad pointer is read by a load whose fault the other one's handler is told of.
#[test]
pub fn strings_are_read_by_both() {
    let Some((mut program, pid)) = start("counts") else { return };
    program.ask("threads 1");
    let before = Snapshot::of(program.pid());
    let reading =
        || Tracing::start(&["-f", "json", "-p", &pid, "-e", "u:counts:seven { @[str(arg1 + 70000)] = count() }"]);
    let first = session(TRAPS, &pid, &["even"]);
    let second = reading();
    call(&mut program);
    first.stop().assert_count("even", CALLS);
    call(&mut program);
    let report = second.stop().0.stdout;
    assert!(report.contains(": 20"), "{report}");
    let first = reading();
    let second = Tracing::start(&["-f", "json", "-p", &pid, "-e", "u:counts:even { @[str(arg0 + 70000)] = count() }"]);
    call(&mut program);
    let report = first.stop().0.stdout;
    assert!(report.contains(": 10"), "{report}");
    call(&mut program);
    let report = second.stop().0.stdout;
    assert!(report.contains(&format!(": {}", 2 * CALLS)), "{report}");
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

#[test]
pub fn children_are_followed_by_both() {
    for first_goes in [true, false] {
        let Some((mut program, pid)) = start("spawn") else { return };
        let follow = |name: &str| {
            let script = format!("u:spawn:leaf {{ @{name} = count() }}");
            Tracing::start(&["-f", "json", "--follow", "-p", &pid, "-e", &script])
        };
        let (first, second) = (follow("first"), follow("second"));
        assert_eq!(program.ask("fork 25"), 25);
        let (went, stays) = if first_goes { (first, second) } else { (second, first) };
        let (gone, left) = if first_goes { ("first", "second") } else { ("second", "first") };
        let report = went.stop().0.stdout;
        assert!(report.contains(&format!("{{\"@{gone}\": 650}}")), "{report}");
        assert_eq!(program.ask("fork 25"), 25);
        let report = stays.stop().0.stdout;
        assert!(report.contains(&format!("{{\"@{left}\": 1300}}")), "{report}");
        program.finish().ok();
    }
}

/// The program's own handler, breakpoints, signals and masks, before, during and after.
#[test]
pub fn signals_of_the_program_stay_its_own() {
    for [one, two] in KINDS {
        for first_goes in [true, false] {
            let Some((mut program, pid)) = start("trap") else { return };
            program.ask("install 0");
            let before = Snapshot::of(program.pid());
            program.ask("block 0");
            let blocked = Snapshot::of(program.pid());
            program.ask("unblock 0");
            let first = session(one, &pid, &["leaf"]);
            // What it does while they are the first one's.
            program.ask("block 0");
            program.ask("install 0");
            let second = session(two, &pid, &["libc:getppid"]);
            assert_eq!(program.ask("direct 20"), 20, "its mask is another one");
            program.ask("unblock 0");
            program.ask("install 0");
            assert_eq!(program.ask("mixed 50"), 100);
            program.ask("block 0");
            let (went, stays) = if first_goes { (first, second) } else { (second, first) };
            let went = went.stop();
            assert_eq!(program.ask("direct 20"), 20);
            program.ask("unblock 0");
            assert_eq!(program.ask("mixed 50"), 100);
            program.ask("block 0");
            let left = stays.stop();
            blocked.assert_same_but_data(&Snapshot::of(program.pid()));
            program.ask("unblock 0");
            let (leaf, calls) = if first_goes { (went, left) } else { (left, went) };
            let expected = if first_goes { (50, 40) } else { (100, 20) };
            let counts = (leaf.count("leaf"), calls.count("getppid"));
            assert_eq!(counts, expected, "{one:?} {two:?} {first_goes}: {} {}", leaf.0, calls.0);
            assert_eq!(program.ask("mixed 50"), 100);
            before.assert_same_but_data(&Snapshot::of(program.pid()));
            program.finish().ok();
        }
    }
}

/// The second is killed at calls of `ptrace`; what it leaves runs, and the next one removes it.
#[test]
pub fn killed_while_it_shares_them() {
    if !installed("strace") {
        return skip("no strace");
    }
    let Some((mut program, pid)) = load() else { return };
    let before = Snapshot::of(program.pid());
    let args = ["funccount", "--no-optimize", "-d", "0.05", "-p", &pid, "mix"];
    let steps = Steps::of(&format!("signals.{pid}"), &args);
    let first = session(TRAPS, &pid, &["leaf"]);
    let calls = steps.calls().len();
    first.stop();
    for (round, call) in evenly(calls, 20).enumerate() {
        let first = session(TRAPS, &pid, &["leaf"]);
        steps.killed_at(call);
        assert!(program.is_running(), "killed by the death of its controller at call {call} of {calls}");
        assert_goes_on(&mut program);
        for command in ["disable", "enable"] {
            run(&mut sidestep(&[command, "-p", &pid]), LIMIT).ok();
        }
        if round % 2 == 0 {
            session(TRAPS, &pid, &["mix"]).stop();
        }
        assert_goes_on(&mut program);
        first.stop();
        assert!(program.is_running(), "killed by the first one, at call {call} of {calls}");
    }
    session(&[], &pid, &["leaf"]).stop();
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0, "wrong results, or interrupted sleeps and reads");
    program.finish().ok();
}

/// Threads run through the first one's sites and guards, and handlers come a thousand times a
/// second.
#[test]
pub fn others_come_and_go_under_load() {
    let Some((mut program, pid)) = start("torture") else { return };
    assert_eq!(program.ask("start 0"), 0);
    let before = Snapshot::of(program.pid());
    let begin = Instant::now();
    let (mut round, mut calls) = (0, 0);
    while begin.elapsed() < Duration::from_secs(6) || round < 4 {
        let [one, two] = KINDS[round % KINDS.len()];
        let (first, second) = (session(one, &pid, &["mine"]), session(two, &pid, &["park"]));
        assert_eq!(program.ask("alone 1000"), 0);
        calls += 1000;
        if round % 4 < 2 {
            first.stop().assert_count("mine", 1000);
            second.stop();
        } else {
            second.stop();
            first.stop().assert_count("mine", 1000);
        }
        round += 1;
    }
    assert!(calls > 0 && eventually(LIMIT, || program.is_running()));
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0);
    program.finish().ok();
}

/// The second one's traps are hit all the time by 64 threads, while the owner of the signals ends,
/// further sessions come and go, and one of them is killed.
#[test]
pub fn no_hit_is_lost_when_the_owner_ends() {
    const CALLS: u64 = 500;
    let width = Width::of_test();
    for build in ["counts", "counts-ibt"] {
        let Some((mut program, pid)) = start(build) else { return };
        program.ask("threads 1");
        let before = Snapshot::of(program.pid());
        let owner = session(TRAPS, &pid, &["even"]);
        let counting = session(TRAPS, &pid, &["leaf"]);
        let done = AtomicBool::new(false);
        let mut rounds = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                width.set();
                owner.stop();
                session(TRAPS, &pid, &["seven"]).stop();
                session(TRAPS, &pid, &["fib"]).kill();
                session(&["--live"], &pid, &["fib"]).stop();
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                program.ask(&format!("threads {CALLS}"));
                rounds += 1;
            }
        });
        counting.stop().assert_count("leaf", rounds * 64 * CALLS);
        before.assert_same_but_data(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// Threads are in guards all the time, which do not change hands when the owner ends.
#[test]
pub fn owners_end_while_threads_are_in_guards() {
    let Some((mut program, pid)) = start("trap") else { return };
    program.ask("storm 0");
    program.ask("lull 0");
    let before = Snapshot::of(program.pid());
    program.ask("storm 0");
    let begin = Instant::now();
    let mut round = 0;
    while begin.elapsed() < Duration::from_secs(6) || round < 8 {
        let [one, two] = KINDS[round % KINDS.len()];
        let (first, second) = (session(one, &pid, &["leaf"]), session(two, &pid, &["libc:getppid"]));
        assert!(program.is_running(), "killed by a trap");
        let (went, stays) = if round % 4 < 2 { (first, second) } else { (second, first) };
        went.stop();
        stays.stop();
        round += 1;
    }
    assert_eq!(program.ask("lull 0"), 0, "its masks are others");
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// What a child has of guards and signals goes when somebody attaches to it, and works until then.
#[test]
pub fn children_keep_what_they_were_forked_with() {
    let program = "import os, signal, sys
hits = 0
def on_trap(*_):
    global hits
    hits += 1
signal.signal(signal.SIGTRAP, on_trap)
go, gone = os.pipe()
print('ready', flush=True)
sys.stdin.readline()
pid = os.fork()
if pid == 0:
    os.read(go, 1)
    for i in range(100):
        os.kill(os.getpid(), signal.SIGTRAP)
        os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])
    os.getppid()
    blocked = signal.SIGTRAP in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    os._exit(0 if hits == 100 and blocked else 1)
print(pid, flush=True)
sys.stdin.readline()
os.write(gone, b'1')
print(os.waitpid(pid, 0)[1], flush=True)
sys.stdin.readline()";
    for cleaned in [true, false] {
        let mut parent = Program::start(Command::new("/usr/bin/python3").args(["-c", program]));
        let pid = parent.pid().to_string();
        let before = Snapshot::of(parent.pid());
        let first = session(TRAPS, &pid, &["libc:getppid"]);
        let second = session(TRAPS, &pid, &["libc:getuid"]);
        let child = parent.ask("fork");
        first.stop();
        if cleaned {
            Tracing::start(&["funccount", "-p", &child.to_string(), "libc:getgid"]).stop();
            before.assert_same_code(&Snapshot::of(child as i32));
        }
        assert_eq!(parent.ask("go"), 0, "the child has died, or got other signals");
        second.stop();
        before.assert_same_but_data(&Snapshot::of(parent.pid()));
        parent.finish().ok();
    }
}

/// A thread of a suspended process stood in the owner's handler for good, so the other session
/// waited for it in vain.
#[test]
pub fn either_ends_while_the_process_is_stopped() {
    let Some((mut program, pid)) = load() else { return };
    let before = Snapshot::of(program.pid());
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    for round in 0..10 {
        let (first, second) = (session(TRAPS, &pid, &["leaf"]), session(TRAPS, &pid, &["mix"]));
        assert_goes_on(&mut program);
        kill(program.pid(), libc::SIGSTOP);
        assert!(eventually(LIMIT, is_stopped));
        let (went, stays) = if round % 2 == 0 { (second, first) } else { (first, second) };
        went.stop();
        assert!(eventually(LIMIT, is_stopped), "it was let go");
        if round % 4 < 2 {
            stays.stop();
            kill(program.pid(), libc::SIGCONT);
        } else {
            kill(program.pid(), libc::SIGCONT);
            assert_goes_on(&mut program);
            stays.stop();
        }
        assert_goes_on(&mut program);
        before.assert_same_but_data(&Snapshot::of(program.pid()));
    }
    assert_eq!(program.ask("finish 0"), 0, "wrong results, or interrupted sleeps and reads");
    program.finish().ok();
}

/// The owner is killed while it leaves its guards and its handler to the other session, which ends
/// or is killed then.
#[test]
pub fn owner_killed_while_it_detaches() {
    let Some((mut program, pid)) = load() else { return };
    let before = Snapshot::of(program.pid());
    for round in 0..20 {
        let (first, second) = (session(TRAPS, &pid, &["leaf"]), session(TRAPS, &pid, &["mix"]));
        first.signal(libc::SIGINT);
        std::thread::sleep(Duration::from_millis(3 * round));
        first.kill();
        assert!(program.is_running(), "killed by the death of its controller");
        assert_goes_on(&mut program);
        if round % 3 == 2 {
            second.kill();
        } else {
            assert!(second.stop().count("mix") > 0);
        }
        assert!(program.is_running(), "killed by the end of the other session");
        assert_goes_on(&mut program);
    }
    session(TRAPS, &pid, &["tree"]).stop();
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0, "wrong results, or interrupted sleeps and reads");
    program.finish().ok();
}

/// A thread has one tracer: one of the sessions goes along, and the other one says so.
#[test]
pub fn one_follows_to_the_program_that_is_executed() {
    for first_goes in [None, Some(true), Some(false)] {
        let Some((mut program, pid)) = start("spawn") else { return };
        let follow = || Some(session(&["--follow"], &pid, &["leaf"]));
        let mut sessions = [follow(), follow()];
        if let Some(first_goes) = first_goes {
            let gone = sessions[usize::from(!first_goes)].take().expect("it is there").stop();
            assert_eq!(gone.count("leaf"), 0, "{}", gone.0);
        }
        assert_eq!(program.ask("exec 50"), work(50));
        let output = program.finish();
        assert_eq!(output.code(), 3, "{output}");
        let reports: Vec<Report> = sessions.into_iter().flatten().map(Tracing::end).collect();
        let mut counts: Vec<u64> = reports.iter().map(|report| report.count("leaf")).collect();
        counts.sort_unstable();
        let said = reports
            .iter()
            .filter(|report| report.0.stderr.contains("another session follows it to the program"))
            .count();
        match first_goes {
            None => assert_eq!((counts, said), (vec![10, 60], 1), "{} {}", reports[0].0, reports[1].0),
            Some(_) => assert_eq!((counts, said), (vec![60], 0), "{}", reports[0].0),
        }
    }
}

/// A session that was planned while another one had the signals has no guards. If the other one had
/// ended meanwhile, it took the signals all the same: threads believed for ever that SIGSEGV was
/// blocked, and their next fault killed the program.
#[test]
fn signals_were_taken_without_guards_when_their_owner_had_just_ended() {
    for planning in [100, 300, 600, 900, 1200, 1500] {
        let Some((mut program, pid)) = start("recovers") else { return };
        let owner = Tracing::start(&["funccount", "--no-optimize", "-p", &pid, "leaf"]);
        let second = Running::start(&mut sidestep(&["funccount", "-d", "1", "-p", &pid, "libc:*"]));
        std::thread::sleep(Duration::from_millis(planning));
        owner.stop();
        let output = second.finish(LIMIT);
        assert_eq!(output.code(), 0, "{output}");
        let faults = program.ask("faults");
        assert!(eventually(LIMIT, || program.ask("faults") > faults + 1000), "the threads do not go on");
        program.finish().ok();
    }
}

/// The later one's probe at the call that ends signal handlers was put behind the handlers of the
/// earlier one, but in front of its guard, which comes behind an instruction: the guard ran no
/// more.
#[test]
pub fn two_sessions_that_planned_at_the_same_time_left_no_guard() {
    for _ in 0..3 {
        let Some((mut program, pid)) = start("recovers") else { return };
        let sessions = [(); 2].map(|()| Running::start(&mut sidestep(&["funccount", "-d", "1", "-p", &pid, "libc:*"])));
        for session in sessions {
            let output = session.finish(LIMIT);
            assert_eq!(output.code(), 0, "{output}");
        }
        let faults = program.ask("faults");
        assert!(eventually(LIMIT, || program.ask("faults") > faults + 1000), "the threads do not go on");
        program.finish().ok();
    }
}
