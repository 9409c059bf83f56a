//! After a detach everything is as before: under load, a hundred times, and when the controller is
//! killed.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use sidestep_tests::build::{installed, target_dir};
use sidestep_tests::process::{LIMIT, Output, Program, Running, eventually, run};
use sidestep_tests::tool::{Tracing, path, sidestep};
use sidestep_tests::{Snapshot, skip, target};

const FUNCTIONS: &str = "^(leaf|mix|tree|real|bytes)$";

fn program(build: &str) -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target(build)?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

/// The load running in five threads; two sleep, one reads from a pipe that stays empty.
fn load(build: &str) -> Option<(Program, String)> {
    let (mut program, pid) = program(build)?;
    assert_eq!(program.ask("start 0"), 0);
    Some((program, pid))
}

#[track_caller]
fn assert_goes_on(program: &mut Program) {
    let rounds = program.ask("rounds 0");
    assert!(eventually(LIMIT, || program.ask("rounds 0") > rounds), "the threads stand still");
}

#[test]
pub fn a_hundred_cycles_under_load() {
    let Some((mut program, pid)) = load("load") else {
        return;
    };
    let before = Snapshot::of(program.pid());
    let tools: [&[&str]; 4] =
        [&["funccount"], &["funclatency"], &["funccount", "--no-optimize"], &["funclatency", "--no-optimize"]];
    for (cycle, tool) in tools.iter().cycle().take(100).enumerate() {
        let report = Tracing::start(&[tool, &["-p", &pid, "-r", FUNCTIONS][..]].concat()).stop();
        if cycle % 10 == 0 {
            assert_goes_on(&mut program);
            before.assert_same(&Snapshot::of(program.pid()));
        }
        drop(report);
    }
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0, "wrong results, or interrupted sleeps and reads");
    program.finish().ok();
}

/// Each look found another thread in a handler that had interrupted the guard of a call: the memory
/// of the session stayed.
#[test]
pub fn there_was_always_a_handler_that_had_interrupted_a_guard() {
    let Some((mut program, pid)) = program("delivered") else { return };
    assert_eq!(program.ask("start 16"), 16);
    let before = Snapshot::of(program.pid());
    for tool in [&["funccount"][..], &["funccount", "--no-optimize"]] {
        let report = Tracing::start(&[tool, &["-p", &pid, "step"]].concat()).stop();
        assert!(report.count("step") > 0, "{}", report.0);
        assert_goes_on(&mut program);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    assert_eq!(program.ask("finish 0"), 0, "wrong masks or results");
    program.finish().ok();
}

#[test]
pub fn everything_is_counted_meanwhile() {
    let Some((mut program, pid)) = load("load-ibt") else {
        return;
    };
    let before = Snapshot::of(program.pid());
    let tracing = Tracing::start(&["funccount", "-p", &pid, "-r", FUNCTIONS]);
    let first = program.ask("rounds 0");
    // On 32-bit Arm the machine is emulated.
    let rounds = if cfg!(target_arch = "arm") { 10_000 } else { 100_000 };
    assert!(eventually(LIMIT, || program.ask("rounds 0") > first + rounds), "the threads stand still");
    let last = program.ask("rounds 0");
    let report = tracing.stop();
    // Between the two looks every round called `real` once; a round may be under way in each of
    // five threads.
    assert!(report.count("real") as i64 + 5 >= last - first, "{} rounds, {}", last - first, report.0);
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0);
    program.finish().ok();
}

#[test]
pub fn controller_killed_at_any_moment() {
    let Some((mut program, pid)) = load("load") else {
        return;
    };
    let before = Snapshot::of(program.pid());
    let args = ["funclatency", "-p", &pid, "-r", FUNCTIONS];
    let begin = Instant::now();
    let tracing = Tracing::start(&args);
    let attach = begin.elapsed();
    tracing.stop();

    let seed = begin.elapsed().subsec_nanos();
    println!("seed {seed}, an attach takes {attach:?}");
    let mut random = u64::from(seed);
    for round in 0..20 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // From before the attach until well after it.
        let delay = attach.mul_f64((random >> 40) as f64 / (1 << 24) as f64 * 1.3);
        let kind: &[&str] = if round % 2 == 0 { &[] } else { &["--no-optimize"] };
        let tracing = Tracing::launch(&[&args[..], kind].concat());
        std::thread::sleep(delay);
        tracing.kill();
        assert!(program.is_running(), "killed by the death of its controller after {delay:?}");
        assert_goes_on(&mut program);
        if round % 4 == 3 {
            Tracing::start(&args).stop();
            before.assert_same(&Snapshot::of(program.pid()));
        }
    }
    assert_eq!(program.ask("finish 0"), 0, "wrong results, or interrupted sleeps and reads");
    program.finish().ok();
}

/// Killed while it detaches.
#[test]
pub fn controller_killed_while_it_detaches() {
    let Some((mut program, pid)) = load("load") else {
        return;
    };
    let before = Snapshot::of(program.pid());
    let args = ["funclatency", "-p", &pid, "-r", FUNCTIONS];
    for round in 0..20u64 {
        let tracing = Tracing::start(&args);
        tracing.signal(libc::SIGINT);
        std::thread::sleep(Duration::from_micros(round * 700));
        tracing.kill();
        assert!(program.is_running(), "killed by the death of its controller");
        assert_goes_on(&mut program);
    }
    Tracing::start(&args).stop();
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0);
    program.finish().ok();
}

/// The calls of `ptrace` that a command makes, as strace counts them.
pub struct Steps<'a> {
    args: &'a [&'a str],
    file: PathBuf,
}

impl<'a> Steps<'a> {
    /// `name`: one of its own for each target.
    pub fn of(name: &str, args: &'a [&'a str]) -> Steps<'a> {
        let dir = target_dir().join("test-targets");
        std::fs::create_dir_all(&dir).expect("target directory is writable");
        Steps { args, file: dir.join(format!("steps.{name}")) }
    }

    fn run(&self, inject: &[&str]) -> Output {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-e", "trace=ptrace", "-o"]).arg(&self.file).args(inject).arg(path());
        // Each of more than a thousand calls waits for strace, beside threads that compute.
        run(strace.args(self.args), 5 * LIMIT)
    }

    /// Runs it to its end.
    pub fn calls(&self) -> Vec<String> {
        self.run(&[]).ok();
        let trace = std::fs::read_to_string(&self.file).expect("strace writes");
        trace.lines().filter(|line| line.contains("ptrace(")).map(str::to_owned).collect()
    }

    /// Runs it until it makes this call, of which the first is 1.
    pub fn killed_at(&self, call: usize) {
        self.run(&["-e", &format!("inject=ptrace:signal=KILL:when={call}")]);
    }
}

/// So many of the calls from 1 on, as far from each other as they can be. Some are odd and some are
/// even: many calls come in pairs.
pub fn evenly(calls: usize, count: usize) -> impl Iterator<Item = usize> {
    let count = count.min(calls / 2);
    (0..count).map(move |n| n * calls / count + 1 + n % 2)
}

impl Drop for Steps<'_> {
    fn drop(&mut self) {
        std::fs::remove_file(&self.file).ok();
    }
}

/// Killed at a call of `ptrace`. The thread that unmapped for the controller came back through what
/// it had unmapped.
#[test]
pub fn controller_killed_between_its_steps() {
    if !installed("strace") {
        return skip("no strace");
    }
    let Some((mut program, pid)) = load("load") else {
        return;
    };
    let before = Snapshot::of(program.pid());
    // With traps there are probes of our own on the program's calls of `rt_sigreturn`.
    let args = ["funclatency", "--no-optimize", "-d", "0.05", "-p", &pid, "-r", FUNCTIONS];
    let steps = Steps::of(&pid, &args);
    let calls = steps.calls().len();
    // Unmapping is what it does last.
    let last = calls.saturating_sub(200);
    for call in evenly(last, 20).chain(evenly(calls - last, 25).map(|call| last + call)) {
        steps.killed_at(call);
        assert!(program.is_running(), "killed by the death of its controller at call {call} of {calls}");
        // So that the next one begins as the first did.
        Tracing::start(&["funccount", "-p", &pid, "leaf"]).stop();
        assert!(program.is_running(), "killed by who came after, at call {call} of {calls}");
    }
    assert_goes_on(&mut program);
    steps.calls();
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0, "wrong results, or interrupted sleeps and reads");
    program.finish().ok();
}

/// Killed while it maps the memory of two processes, of which the second has that of the first as
/// the second part of its own, and before it says so in the header.
#[test]
pub fn an_attach_to_two_processes_that_is_killed_leaves_nothing() {
    if !installed("strace") {
        return skip("no strace");
    }
    let Some(path) = target("counts") else { return };
    let mut programs = [(); 2].map(|()| Program::start(&mut Command::new(&path)));
    let before = [0, 1].map(|i: usize| Snapshot::of(programs[i].pid()));
    let pids = [0, 1].map(|i: usize| programs[i].pid().to_string());
    let both = pids.join(",");
    let args = ["funccount", "-d", "0.05", "-p", &both, "leaf"];
    let steps = Steps::of(&both, &args);
    let calls = steps.calls();
    let makes_file = format!("rax={:#x},", libc::SYS_memfd_create);
    let of_second = |call: &String| call.contains(&makes_file) && call.contains(&format!("SETREGS, {}", pids[1]));
    let first = calls.iter().position(of_second).expect("the second process makes a file");
    for call in first..first + 45 {
        steps.killed_at(call);
        for (pid, before) in pids.iter().zip(&before) {
            run(&mut sidestep(&["detach", "-p", pid]), LIMIT).ok();
            let pid = pid.parse().expect("a number");
            before.assert_same(&Snapshot::of(pid));
            let left = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
            assert!(!left.contains("sidestep"), "killed at call {call}: {left}");
        }
    }
    steps.calls();
    for program in &mut programs {
        assert_eq!(program.ask("work 10"), 145);
    }
    programs.into_iter().for_each(|program| drop(program.finish().ok()));
}

/// Killed when the program had its signals back. Who cleaned up after that blocked once more what
/// the program had blocked then.
#[test]
fn what_the_program_did_after_a_detach_that_was_killed_stays() {
    if !installed("strace") {
        return skip("no strace");
    }
    let Some(mut program) = target("trap").map(|path| Program::start(&mut Command::new(path))) else {
        return;
    };
    let before = Snapshot::of(program.pid());
    let pid = program.pid().to_string();
    let args = ["funccount", "--no-optimize", "-d", "0.05", "-p", &pid, "leaf"];
    let steps = Steps::of(&pid, &args);
    program.ask("block 0");
    let calls = steps.calls();
    program.ask("unblock 0");
    let sets = |call: &&String, set: &str| call.contains("SETSIGMASK") && call.contains(set);
    // Open, but for the stand-in of SIGTRAP on Arm.
    let open = if cfg!(any(target_arch = "aarch64", target_arch = "arm")) { " [RT_" } else { " []" };
    let opened = calls.iter().rposition(|call| sets(&call, open));
    let opened = opened.expect("its mask is opened");
    let closed = calls[opened..].iter().position(|call| sets(&call, " [TRAP]"));
    let closed = opened + 1 + closed.expect("its mask is put back");
    // Between that and the unmapping of what is known of its signals.
    for call in [closed + 1, closed + 3, closed + 8] {
        program.ask("block 0");
        steps.killed_at(call);
        program.ask("unblock 0");
        Tracing::start(&["funccount", "-p", &pid, "leaf"]).stop();
        before.assert_same(&Snapshot::of(program.pid()));
    }
    program.finish().ok();
}

#[test]
pub fn a_stopped_process_stays_stopped() {
    let Some((mut program, pid)) = load("load") else {
        return;
    };
    let before = Snapshot::of(program.pid());
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().unwrap_or_default().chars().next()
    };
    sidestep_tests::process::kill(program.pid(), libc::SIGSTOP);
    assert!(eventually(LIMIT, || state() == Some('T')));
    let report = Tracing::start(&["funccount", "-p", &pid, "leaf"]).stop();
    // It wakes up for a moment to stop again, which takes a while where others run.
    assert!(eventually(LIMIT, || state() == Some('T')), "{:?} {}", state(), report.0);
    sidestep_tests::process::kill(program.pid(), libc::SIGCONT);
    assert_goes_on(&mut program);
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0);
    program.finish().ok();
}

/// The thread that the script has stopped stands in our code, and leaves it only if it is let.
#[test]
fn a_process_that_its_script_has_stopped() {
    let Some(path) = target("spawn") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let before = Snapshot::of(program.pid());
    let pid = program.pid();
    let args = ["--unsafe", "-f", "json", "-p", &pid.to_string()];
    let script = "u:spawn:leaf { @ = count(); signal(\"STOP\") }";
    let tracing = Tracing::start(&[&args[..], &["-e", script]].concat());
    let stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    program.send("work 3");
    assert!(eventually(LIMIT, stopped), "it does not stop");
    let report = tracing.stop();
    assert!(report.0.stdout.contains(r#"{"@": 1}"#), "{}", report.0);
    assert!(eventually(LIMIT, stopped), "it was let go");
    sidestep_tests::process::kill(pid, libc::SIGCONT);
    assert_eq!(program.answer(), super::counts::work(3));
    before.assert_same(&Snapshot::of(pid));
    program.finish().ok();
}

/// The memory of a process that is killed goes before the process counts as dead. strace makes the
/// detach slow, so that it is killed at many places of it.
#[test]
fn a_target_that_died_during_a_detach_was_an_error() {
    if !installed("strace") {
        return skip("no strace");
    }
    for delay in (0..400).step_by(25) {
        let Some(path) = target("load") else { return };
        let mut program = Program::start(&mut Command::new(path));
        let pid = program.pid().to_string();
        assert_eq!(program.ask("fill 512"), 512);
        let tracing = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
        let tool = tracing.pid().to_string();
        let mut strace = Command::new("strace");
        strace.args(["-qq", "-f", "-e", "trace=pread64,process_vm_readv,openat", "-o", "/dev/null", "-p", &tool]);
        strace.args(["-e", "inject=pread64,process_vm_readv,openat:delay_enter=3000"]);
        let slow = Running::start(&mut strace);
        let status = || std::fs::read_to_string(format!("/proc/{tool}/status")).unwrap_or_default();
        assert!(eventually(LIMIT, || !status().contains("TracerPid:\t0\n")), "strace does not attach");
        tracing.signal(libc::SIGINT);
        std::thread::sleep(Duration::from_millis(delay));
        sidestep_tests::process::kill(program.pid(), libc::SIGKILL);
        let _ = tracing.end();
        slow.finish(LIMIT).ok();
    }
}

/// Two controllers: the second works beside the first or is refused, and neither harms the target.
#[test]
pub fn two_at_the_same_time() {
    let Some((mut program, pid)) = load("load") else {
        return;
    };
    let before = Snapshot::of(program.pid());
    let first = Tracing::start(&["funccount", "-p", &pid, "leaf"]);
    let second = Tracing::launch(&["funccount", "-d", "1", "-p", &pid, "mix"]).output();
    assert!(second.code() <= 1, "{second}");
    assert_goes_on(&mut program);
    assert!(first.stop().count("leaf") > 0);
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0);
    program.finish().ok();
}
