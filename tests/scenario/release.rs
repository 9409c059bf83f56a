//! Sessions that have taken SIGTRAP only to switch their sites while the threads run give it up
//! when another one cannot do without.

use std::process::Command;
use std::time::{Duration, Instant};

use sidestep_tests::build::installed;
use sidestep_tests::process::{LIMIT, Program, Running, eventually, run};
use sidestep_tests::tool::{Tracing, sidestep};
use sidestep_tests::{Snapshot, skip};

use super::carried::{refused, status};
use super::detach::{Steps, evenly};
use super::switch::{assert_goes_on, load, says, start};

/// What cannot do without SIGTRAP.
const NEEDS: [&[&str]; 2] = [&["--no-optimize"], &["--follow"]];

/// One that would do without it.
fn live(pid: &str, functions: &[&str]) -> Tracing {
    Tracing::start(&[&["funccount", "-p", pid], functions].concat())
}

fn needing(needs: &[&str], pid: &str, function: &str) -> Tracing {
    Tracing::start(&[&["funccount"], needs, &["-p", pid, function]].concat())
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
        for needs in NEEDS {
            for first_goes in [true, false] {
                let Some((mut program, pid)) = start(build) else { return };
                program.ask("threads 1");
                let before = Snapshot::of(program.pid());
                let first = live(&pid, &["even"]);
                call(&mut program);
                let second = needing(needs, &pid, "seven");
                call(&mut program);
                let (went, stays) = if first_goes { (first, second) } else { (second, first) };
                let went = went.stop();
                call(&mut program);
                let left = stays.stop();
                let (even, seven) = if first_goes { (went, left) } else { (left, went) };
                let counts = if first_goes { (2 * CALLS, 20) } else { (3 * CALLS, 10) };
                assert_eq!((even.count("even"), seven.count("seven")), counts, "{build} {needs:?} {first_goes}");
                before.assert_same_but_data(&Snapshot::of(program.pid()));
                program.finish().ok();
            }
        }
    }
}

#[test]
pub fn either_may_be_killed() {
    for needs in NEEDS {
        for first_dies in [true, false] {
            let Some((mut program, pid)) = start("counts") else { return };
            program.ask("threads 1");
            let before = Snapshot::of(program.pid());
            let first = live(&pid, &["even"]);
            let second = needing(needs, &pid, "seven");
            call(&mut program);
            let (dies, stays) = if first_dies { (first, second) } else { (second, first) };
            dies.kill();
            call(&mut program);
            // It removes what the dead one left.
            Tracing::start(&["funccount", "-p", &pid, "fib"]).stop();
            call(&mut program);
            let (name, count) = if first_dies { ("seven", 30) } else { ("even", 3 * CALLS) };
            stays.stop().assert_count(name, count);
            before.assert_same_but_data(&Snapshot::of(program.pid()));
            program.finish().ok();
        }
    }
}

/// The program's own handler, breakpoints, signals and masks, before, during and after.
#[test]
pub fn signals_of_the_program_stay_its_own() {
    for needs in NEEDS {
        for first_goes in [true, false] {
            let Some((mut program, pid)) = start("trap") else { return };
            program.ask("install 0");
            let before = Snapshot::of(program.pid());
            program.ask("block 0");
            let blocked = Snapshot::of(program.pid());
            program.ask("unblock 0");
            let first = live(&pid, &["leaf"]);
            // What it does while they are the first one's.
            program.ask("block 0");
            program.ask("install 0");
            let second = needing(needs, &pid, "libc:getppid");
            assert_eq!(program.ask("direct 20"), 20, "its mask is another one");
            program.ask("unblock 0");
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
            assert_eq!(counts, expected, "{needs:?} {first_goes}: {} {}", leaf.0, calls.0);
            assert_eq!(program.ask("mixed 50"), 100);
            before.assert_same_but_data(&Snapshot::of(program.pid()));
            program.finish().ok();
        }
    }
}

/// Nobody runs into a trap that nobody answers for.
#[test]
pub fn the_first_is_switched_in_pauses_from_then_on() {
    let Some((mut program, pid)) = start("trap") else { return };
    let before = Snapshot::of(program.pid());
    let first = live(&pid, &["leaf"]);
    let switch = |command: &str, how: &str| {
        let output = run(&mut sidestep(&[command, "-v", "-p", &pid, "trap:leaf"]), LIMIT).ok();
        assert!(output.stderr.contains(how), "{command}: {output}");
    };
    let (running, stopped) = ("1 site switched while the threads ran, 0", "0 sites switched while the threads ran, 1");
    // On arm64 few instructions may change while threads run.
    let live = if cfg!(target_arch = "aarch64") { stopped } else { running };
    switch("disable", live);
    switch("enable", live);
    let second = needing(&["--no-optimize"], &pid, "libc:getppid");
    program.ask("work 10");
    program.ask("block 0");
    switch("disable", stopped);
    program.ask("work 10");
    switch("enable", stopped);
    program.ask("work 10");
    refused(&["optimize", "off", "-p", &pid, "trap:leaf"], &["takes no traps"]);
    program.ask("direct 10");
    second.stop().assert_count("getppid", 10);
    program.ask("unblock 0");
    first.stop().assert_count("leaf", 20);
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// A trap, or what may become one.
/// Memory that may not be there is read by plain loads while SIGSEGV is ours.
#[test]
pub fn who_reads_memory_takes_them() {
    let Some((mut program, pid)) = start("counts") else { return };
    let first = live(&pid, &["even"]);
    let second = Tracing::start(&["-f", "json", "-p", &pid, "-e", "u:counts:seven { @[str(arg1)] = count() }"]);
    let (_, summaries) = status(&pid, &[]);
    let own: Vec<bool> = summaries.lines().map(|line| !line.contains("; 0 of sidestep's own;")).collect();
    assert_eq!(own, [false, true], "{summaries}");
    call(&mut program);
    assert!(second.stop().0.stdout.contains(": 10"), "not counted");
    first.stop().assert_count("even", CALLS);
    program.finish().ok();
}

#[test]
pub fn who_needs_them_keeps_them() {
    let Some((mut program, pid)) = start("counts") else { return };
    program.ask("threads 1");
    let before = Snapshot::of(program.pid());
    let keeps = |first: &Tracing| {
        let whose = format!("process {}", first.pid());
        let needs = |flag: &'static str| ["funccount", flag, "-p", &pid, "seven"];
        refused(&needs("--no-optimize"), &[&whose, "it needs a trap", "end that first"]);
        refused(&needs("--follow"), &[&whose, "--follow", "end that first"]);
    };
    let trap = Tracing::start(&["funccount", "--no-optimize", "-p", &pid, "even"]);
    keeps(&trap);
    call(&mut program);
    trap.stop().assert_count("even", CALLS);
    let follows = Tracing::start(&["funccount", "--live", "--follow", "-p", &pid, "even"]);
    keeps(&follows);
    follows.stop();
    // One that was a trap for a while is a jump again.
    let switched = live(&pid, &["even"]);
    says("optimize", &pid, &["off"], "1 probe no longer optimized");
    keeps(&switched);
    call(&mut program);
    says("optimize", &pid, &["on"], "1 probe optimized");
    let second = needing(&["--no-optimize"], &pid, "seven");
    call(&mut program);
    switched.stop().assert_count("even", 2 * CALLS);
    second.stop().assert_count("seven", 10);
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// The second is killed at calls of `ptrace`; what it leaves runs, and the next one goes on from
/// there.
#[test]
pub fn killed_while_it_takes_them() {
    if !installed("strace") {
        return skip("no strace");
    }
    let Some((mut program, pid)) = load() else { return };
    let before = Snapshot::of(program.pid());
    let args = ["funccount", "--no-optimize", "-d", "0.05", "-p", &pid, "mix"];
    let steps = Steps::of(&format!("release.{pid}"), &args);
    let first = live(&pid, &["leaf"]);
    let calls = steps.calls().len();
    first.stop();
    for (round, call) in evenly(calls, 28).enumerate() {
        let first = live(&pid, &["leaf"]);
        steps.killed_at(call);
        assert!(program.is_running(), "killed by the death of its controller at call {call} of {calls}");
        assert_goes_on(&mut program);
        for command in ["disable", "enable"] {
            run(&mut sidestep(&[command, "-p", &pid]), LIMIT).ok();
        }
        if round % 2 == 0 {
            needing(&["--no-optimize"], &pid, "mix").stop();
        }
        assert_goes_on(&mut program);
        first.stop();
        assert!(program.is_running(), "killed by the first one, at call {call} of {calls}");
    }
    Tracing::start(&["funccount", "-p", &pid, "leaf"]).stop();
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
        let first = live(&pid, &["mine"]);
        let second = needing(NEEDS[round % 2], &pid, "park");
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

/// Threads are in guards all the time. One that had found the signal to be the first one's, and
/// goes on when it is the second one's, would block it for the second one's traps.
#[test]
pub fn threads_in_guards_are_waited_for() {
    let Some((mut program, pid)) = start("trap") else { return };
    program.ask("storm 0");
    program.ask("lull 0");
    let before = Snapshot::of(program.pid());
    program.ask("storm 0");
    let begin = Instant::now();
    let mut round = 0;
    while begin.elapsed() < Duration::from_secs(6) || round < 8 {
        let first = live(&pid, &["leaf"]);
        let second = needing(NEEDS[round % 2], &pid, "libc:getppid");
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

/// What a child has of guards and signals that were given up later goes when somebody attaches to
/// it, and works until then.
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
        let first = live(&pid, &["libc:getppid"]);
        let child = parent.ask("fork");
        let second = needing(&["--no-optimize"], &pid, "libc:getuid");
        if cleaned {
            Tracing::start(&["funccount", "-p", &child.to_string(), "libc:getgid"]).stop();
            before.assert_same_code(&Snapshot::of(child as i32));
        }
        assert_eq!(parent.ask("go"), 0, "the child has died, or got other signals");
        first.stop();
        second.stop();
        before.assert_same_but_data(&Snapshot::of(parent.pid()));
        parent.finish().ok();
    }
}

/// They come back to the first one with the next library, and need guards everywhere then: a thread
/// blocks the signal meanwhile, and runs through a site that is switched.
#[test]
pub fn the_first_may_take_them_again() {
    let program = "import ctypes, os, signal, sys, threading, time
print('ready', flush=True)
sys.stdin.readline()
ctypes.CDLL('libbz2.so.1.0').BZ2_bzlibVersion()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])
end = False
def run():
    while not end: os.getppid()
thread = threading.Thread(target=run)
thread.start()
print(1, flush=True)
sys.stdin.readline()
end = True
thread.join()
print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), flush=True)
sys.stdin.readline()";
    let mut server = Program::start(Command::new("/usr/bin/python3").args(["-c", program]));
    let pid = server.pid().to_string();
    let script = "config = { missing_probes = \"warn\" } u:libc:getppid { @parents = count() } u:libbz2:BZ2_bzlibVersion { @late = count() }";
    let first = Tracing::start(&["-f", "json", "--live", "-p", &pid, "-e", script]);
    let own = || status(&pid, &["-v"]).0.iter().filter(|line| line.kind == "-").count();
    let with_guards = own();
    needing(&["--no-optimize"], &pid, "libc:getuid").stop();
    assert!(own() < with_guards, "{} of {with_guards}", own());
    let switch = |command: &str| run(&mut sidestep(&[command, "-v", "-p", &pid, "libc:getppid"]), LIMIT).ok().stderr;
    assert!(switch("disable").contains(" 0 sites switched while the threads ran, 1"));
    assert!(switch("enable").contains(" 0 sites switched while the threads ran, 1"));
    assert_eq!(server.ask("go"), 1);
    assert!(own() >= with_guards, "{} of {with_guards}", own());
    for _ in 0..20 {
        for command in ["disable", "enable"] {
            let said = switch(command);
            assert!(said.contains(" 1 site switched while the threads ran, 0"), "{said}");
        }
    }
    assert_eq!(server.ask("end"), 1, "its mask is another one");
    let report = first.stop().0.stdout;
    assert!(report.contains("{\"@late\": 1}"), "{report}");
    server.finish().ok();
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
