//! Threads that wait in system calls for ever, in the copies of the calls behind our guards: a
//! detach leaves each of them waiting in the original call.

use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, eventually};
use sidestep_tests::tool::{Tracing, is_32_bit, use_32_bit};
use sidestep_tests::{Snapshot, target};

/// `restart_syscall`: what the kernel has made of a call that it continues after an interruption
/// (arch/x86/entry/syscalls).
fn continued() -> i64 {
    if is_32_bit() { 0 } else { 219 }
}

/// A thread and its call.
struct Waiting {
    tid: i64,
    number: i64,
    /// The file descriptors, addresses and numbers that it has passed, as the kernel says them.
    arguments: Vec<String>,
    /// Stack pointer and instruction pointer.
    place: [String; 2],
}

/// What `/proc/PID/task/TID/syscall` says of a thread that waits: the number, six arguments, sp and
/// pc.
fn call_of(pid: i32, tid: i64) -> Option<(i64, Vec<String>, [String; 2])> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let mut words = text.split_whitespace().map(str::to_owned);
    let number = words.next()?.parse().ok()?;
    let arguments: Vec<String> = words.by_ref().take(6).collect();
    Some((number, arguments, [words.next()?, words.next()?]))
}

impl Waiting {
    /// Does it wait in the same call, with the same arguments?
    fn waits(&self, pid: i32) -> Option<[String; 2]> {
        let (number, arguments, place) = call_of(pid, self.tid)?;
        (arguments == self.arguments && (number == self.number || number == continued())).then_some(place)
    }
}

/// Lets the program make every call that may wait for ever, and waits until each waits.
fn start(program: &mut Program) -> Vec<Waiting> {
    let (pid, count) = (program.pid(), program.ask("start 0"));
    let mut waiting = Vec::new();
    for n in 0..count {
        let (tid, number) = (program.ask(&format!("tid {n}")), program.ask(&format!("number {n}")));
        let mut ended = 1;
        let waits = || call_of(pid, tid).filter(|(now, ..)| *now == number);
        assert!(
            eventually(LIMIT, || {
                ended = program.ask(&format!("result {n}"));
                ended != 1 || waits().is_some()
            }),
            "call {number} neither waits nor ends"
        );
        match waits() {
            Some((_, arguments, place)) => waiting.push(Waiting { tid, number, arguments, place }),
            // ENOSYS, EPERM: this kernel has no such call, or a sandbox forbids it.
            None => assert!([-38, -1].contains(&ended), "call {number} ends with {ended}"),
        }
    }
    println!("{} of {count} calls wait", waiting.len());
    assert!(waiting.len() > 40, "{}", waiting.len());
    waiting
}

/// Asserts that no call has ended; the kernel may have had none.
#[track_caller]
fn assert_none_ended(program: &mut Program) {
    let mut n = 0;
    while let number @ 0.. = program.ask(&format!("number {n}")) {
        let ended = program.ask(&format!("result {n}"));
        assert!([1, -38, -1].contains(&ended), "call {number} ended with {ended}");
        n += 1;
    }
}

/// Threads that wait before the attach, in sessions that need guards (`how`).
fn leaves_all_calls(how: &[&str]) {
    let Some(path) = target("blocked") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let (pid, waiting) = (program.pid(), start(&mut program));
    let before = Snapshot::of(pid);
    for round in 0..2 {
        let tracing = Tracing::start(&[&["funccount", "-p", &pid.to_string()], how, &["leaf"]].concat());
        for call in &waiting {
            let inside = || call_of(pid, call.tid).is_some_and(|(.., place)| place[1] != call.place[1]);
            assert!(eventually(LIMIT, inside), "round {round}: call {} was not displaced", call.number);
        }
        assert_eq!(program.ask("work 10"), 145);
        tracing.stop().assert_count("leaf", 10);
        for call in &waiting {
            let is_back = eventually(LIMIT, || call.waits(pid).as_ref() == Some(&call.place));
            let now = call_of(pid, call.tid);
            assert!(is_back, "round {round}: call {} at {:?} is now {now:?}", call.number, call.place);
        }
        before.assert_same(&Snapshot::of(pid));
    }
    assert_none_ended(&mut program);
    program.ask("finish 0");
    // The other threads wait for ever.
}

#[test]
fn a_detach_never_ended_while_a_thread_waited_in_io_uring_enter() {
    leaves_all_calls(&["--no-optimize"]);
}

#[test]
fn a_detach_leaves_calls_that_were_guarded_to_write_sites_live() {
    leaves_all_calls(&["--live"]);
}

/// Those that were made by way of the guards.
fn leaves_calls_that_came_later() {
    let Some(path) = target("blocked") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid();
    for how in ["--no-optimize", "--live"] {
        let tracing = Tracing::start(&["funccount", how, "-p", &pid.to_string(), "leaf"]);
        let waiting = if how == "--live" { Vec::new() } else { start(&mut program) };
        tracing.stop();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
        let code = maps.lines().find(|line| line.contains("r-xp") && line.contains("blocked")).expect("its code");
        let (start, end) = code.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        let number = |hex: &str| u64::from_str_radix(hex.trim_start_matches("0x"), 16).expect("hexadecimal");
        let code = number(start)..number(end);
        for call in &waiting {
            let is_back = || call_of(pid, call.tid).is_some_and(|(.., place)| code.contains(&number(&place[1])));
            let ended = || call_of(pid, call.tid).is_none();
            assert!(eventually(LIMIT, || is_back() || ended()), "call {} stays in our code", call.number);
        }
        assert_none_ended(&mut program);
    }
    program.ask("finish 0");
}

/// A signal set that a guard had put in the place of the program's was gone when the kernel
/// restarted the call.
#[test]
fn calls_with_a_signal_set_failed_with_efault_after_a_detach() {
    leaves_calls_that_came_later();
}

#[test]
fn calls_of_32_bit_code_with_a_signal_set_failed_with_efault_after_a_detach() {
    use_32_bit();
    leaves_calls_that_came_later();
}

#[test]
fn a_detach_leaves_calls_of_32_bit_code() {
    use_32_bit();
    leaves_all_calls(&["--no-optimize"]);
}

/// A worker of the kernel has the thread pointer of the thread that it works for: such programs
/// were refused. It must not be interrupted either, since what it does would fail.
#[test]
fn workers_of_io_uring_were_taken_for_threads() {
    let Some(path) = target("ring") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    if program.ask("submit 0") < 0 {
        eprintln!("skipped: no io_uring here");
        return;
    }
    let before = Snapshot::of(program.pid());
    for args in [&["funccount"][..], &["funccount", "--no-optimize"], &["funclatency"]] {
        let tracing = Tracing::start(&[args, &["-p", &pid, "leaf"]].concat());
        assert_eq!(program.ask("work 10"), 145);
        let report = tracing.stop();
        let count = if args[0] == "funclatency" { report.latencies() } else { report.count("leaf") };
        assert_eq!(count, 10, "{}", report.0);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    assert_eq!(program.ask("feed 5"), 5, "the read was interrupted");
    program.finish().ok();
}
