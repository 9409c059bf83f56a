//! `sidestep disable` and `enable`: while a probe is disabled nothing of it is in the program's
//! way, and nothing is counted; whoever switches, however many at once, and whoever dies in
//! between.

use std::io::Write;
use std::process::{Command, Stdio};

use sidestep_tests::process::{LIMIT, Output, Program, Running, eventually, run};
use sidestep_tests::tool::{Tracing, is_32_bit, sidestep};
use sidestep_tests::{Snapshot, target};

use super::carried::{refused, status};

pub const FUNCTIONS: &str = "^(leaf|mix|tree|real|bytes)$";

pub fn start(name: &str) -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target(name)?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

/// The load running in five threads; three wait in the kernel.
pub fn load() -> Option<(Program, String)> {
    let (mut program, pid) = start("load")?;
    assert_eq!(program.ask("start 0"), 0);
    Some((program, pid))
}

pub fn switch(command: &str, pid: &str, patterns: &[&str]) -> Output {
    run(&mut sidestep(&[&[command, "-p", pid], patterns].concat()), LIMIT)
}

/// What the command says.
#[track_caller]
pub fn says(command: &str, pid: &str, patterns: &[&str], text: &str) {
    let output = switch(command, pid, patterns).ok();
    assert_eq!((output.stdout.trim_end(), output.stderr.as_str()), (text, ""), "{output}");
}

/// Is the code at an address as it was?
fn is_original_at(before: &Snapshot, pid: i32, address: u64) -> bool {
    let start = |mapping: &str| u64::from_str_radix(mapping.split('-').next()?, 16).ok();
    let at = |(mapping, bytes): (&str, &[u8])| {
        let offset = address.checked_sub(start(mapping)?)? as usize;
        bytes.get(offset..offset + 16).map(<[u8]>::to_vec)
    };
    let now = Snapshot::of(pid);
    let was = before.code().find_map(at).expect("it is code");
    now.code().find_map(at) == Some(was)
}

#[track_caller]
pub fn assert_goes_on(program: &mut Program) {
    let rounds = program.ask("rounds 0");
    assert!(eventually(LIMIT, || program.ask("rounds 0") > rounds), "the threads stand still");
}

#[test]
pub fn disabled_probes_count_nothing_and_leave_no_byte() {
    for build in ["counts", "counts-ibt", "counts-O0", "counts-static", "counts-musl"] {
        for mode in [&["funccount"][..], &["funclatency", "--live"], &["funccount", "--no-optimize"]] {
            let Some((mut program, pid)) = start(build) else { return };
            // What the C library does for its first threads.
            program.ask("threads 1");
            let before = Snapshot::of(program.pid());
            let tracing = Tracing::start(&[mode, &["-p", &pid, "leaf"]].concat());
            program.ask("work 10");
            let site = status(&pid, &[]).0[0].address;
            assert!(!is_original_at(&before, program.pid(), site));
            says("disable", &pid, &["leaf"], "1 probe disabled");
            says("disable", &pid, &[], "0 probes disabled; 1 was already");
            assert!(is_original_at(&before, program.pid(), site), "{build} {mode:?}");
            program.ask("work 100");
            program.ask("threads 10");
            let (lines, _) = status(&pid, &[]);
            assert_eq!((lines.len(), &*lines[0].state, lines[0].hits), (1, "[DISABLED]", 10), "{lines:?}");
            says("enable", &pid, &[], "1 probe enabled");
            says("enable", &pid, &["leaf"], "0 probes enabled; 1 was already");
            program.ask("work 1000");
            program.ask("threads 100");
            let expected = 10 + 1000 + 64 * 100;
            assert_eq!(status(&pid, &[]).0[0].hits, expected);
            let report = tracing.stop();
            let counted = if mode[0] == "funclatency" { report.latencies() } else { report.count("leaf") };
            assert_eq!(counted, expected, "{build} {mode:?}: {}", report.0);
            // Stacks of threads come and go.
            before.assert_same_but_data(&Snapshot::of(program.pid()));
            program.finish().ok();
        }
    }
}

#[test]
pub fn those_that_are_meant_are_switched_and_no_others() {
    let Some((mut program, pid)) = start("counts-ibt") else { return };
    let before = Snapshot::of(program.pid());
    let tracing = Tracing::start(&["funccount", "-p", &pid, "-r", "^(leaf|fib|odd|even|seven)$"]);
    let work = |program: &mut Program| {
        for command in ["work 10", "even 4", "seven 6"] {
            program.ask(command);
        }
    };
    let hits = |name: &str| {
        let (lines, _) = status(&pid, &[]);
        lines.iter().find(|line| line.symbol.split('+').next() == Some(name)).map(|line| line.hits)
    };
    let address = |name: &str| {
        let (lines, _) = status(&pid, &[]);
        lines.iter().find(|line| line.symbol.split('+').next() == Some(name)).map(|line| format!("{:#x}", line.address))
    };
    work(&mut program);
    // By name, by glob, by the address that is shown; one of them twice.
    let fib = address("fib").expect("it is probed");
    says("disable", &pid, &["leaf", "counts-ibt:s*n", &fib, "leaf"], "3 probes disabled");
    work(&mut program);
    for (name, expected) in [("leaf", 10), ("seven", 6), ("even", 6), ("odd", 4), ("fib", 2)] {
        assert_eq!(hits(name), Some(expected), "{name}");
    }
    let output = run(&mut sidestep(&["enable", "-v", "-r", "-p", &pid, "^(leaf|odd)$"]), LIMIT).ok();
    assert_eq!(output.stdout, "1 probe enabled; 1 was already\n", "{output}");
    assert!(output.stderr.contains("no thread stood still for more than "), "{output}");
    work(&mut program);
    let report = tracing.stop();
    for (name, expected) in [("leaf", 20), ("seven", 6), ("even", 9), ("odd", 6), ("fib", 2)] {
        report.assert_count(name, expected);
    }
    before.assert_same(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// `debug.kprobes-optimization` for user space: the same probes, the same counts, by traps.
#[test]
pub fn optimization_is_switched_off_and_on() {
    for build in ["counts", "counts-ibt", "counts-O0", "counts-static", "counts-musl"] {
        let Some((mut program, pid)) = start(build) else { return };
        program.ask("threads 1");
        let before = Snapshot::of(program.pid());
        let tracing = Tracing::start(&["funccount", "--live", "-p", &pid, "-r", "^(leaf|fib)$"]);
        let states = || status(&pid, &[]).0.into_iter().map(|line| line.state).collect::<Vec<_>>();
        let optimize = |to: &str, patterns: &[&str], text: &str| {
            let output = run(&mut sidestep(&[&["optimize", to, "-p", &pid], patterns].concat()), LIMIT).ok();
            assert_eq!((output.stdout.trim_end(), output.stderr.as_str()), (text, ""), "{build}: {output}");
        };
        assert_eq!(states(), ["[OPTIMIZED]"; 2], "{build}");
        program.ask("work 10");
        optimize("off", &[], "2 probes no longer optimized");
        optimize("off", &["leaf"], "0 probes no longer optimized; 1 was already");
        assert_eq!(states(), [""; 2], "{build}");
        program.ask("work 100");
        program.ask("threads 10");
        // What is disabled remembers it.
        says("disable", &pid, &[], "2 probes disabled");
        program.ask("work 5");
        says("enable", &pid, &[], "2 probes enabled");
        assert_eq!(states(), [""; 2], "{build}");
        program.ask("work 1000");
        says("disable", &pid, &["leaf"], "1 probe disabled");
        optimize("on", &["leaf"], "1 probe optimized");
        assert!(states().contains(&"[DISABLED]".to_owned()), "{build}");
        says("enable", &pid, &["leaf"], "1 probe enabled");
        optimize("on", &[], "1 probe optimized; 1 was already");
        assert_eq!(states(), ["[OPTIMIZED]"; 2], "{build}");
        program.ask("threads 100");
        let expected = 10 + 100 + 64 * 10 + 1000 + 64 * 100;
        tracing.stop().assert_count("leaf", expected);
        before.assert_same_but_data(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// `optimize on` said "1 was already" of a trap.
#[test]
pub fn a_probe_that_was_made_as_a_trap_stays_one() {
    let Some((mut program, pid)) = start("counts") else { return };
    let tracing = Tracing::start(&["funccount", "--no-optimize", "-p", &pid, "leaf"]);
    let why = "no jump is possible there, or --no-optimize forbids one";
    says("optimize", &pid, &["on"], &format!("0 probes optimized; 1 stays a trap: {why}"));
    says("optimize", &pid, &["off"], "0 probes no longer optimized; 1 was already");
    program.ask("work 10");
    tracing.stop().assert_count("leaf", 10);
    program.finish().ok();
}

/// A program that could block SIGTRAP behind the back of any guard: sessions take no traps, and
/// their sites are written in pauses.
pub fn unguarded(name: &str) -> Option<(Program, String)> {
    let program = Program::start(Command::new(target(name)?).env("LD_PRELOAD", target("libunguarded.so")?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

/// Where SIGTRAP may be blocked, a trap would kill the program.
#[test]
pub fn jumps_stay_where_traps_are_not_taken() {
    let Some((mut program, pid)) = unguarded("counts") else { return };
    // Where arguments are on the stack, the first instruction of `leaf` may fault.
    let (function, command, hits) = if is_32_bit() { ("even", "even 4", 3) } else { ("leaf", "work 10", 10) };
    let tracing = Tracing::start(&["funccount", "-p", &pid, function]);
    refused(&["optimize", "off", "-p", &pid, function], &["takes no traps"]);
    let output = run(&mut sidestep(&["disable", "-v", "-p", &pid, function]), LIMIT).ok();
    assert!(output.stderr.contains("0 sites switched while the threads ran, 1 while they were stopped"), "{output}");
    let output = run(&mut sidestep(&["optimize", "on", "-p", &pid, function]), LIMIT).ok();
    assert_eq!(output.stdout, "0 probes optimized; 1 was already\n", "{output}");
    says("enable", &pid, &[function], "1 probe enabled");
    program.ask(command);
    tracing.stop().assert_count(function, hits);
    program.finish().ok();
}

/// No thread waits for another.
#[test]
pub fn nothing_is_stopped_where_traps_are_taken() {
    let Some((mut program, pid)) = load() else { return };
    let before = Snapshot::of(program.pid());
    let tracing = Tracing::start(&["funccount", "-p", &pid, "-r", FUNCTIONS]);
    for args in [&["disable"][..], &["enable"], &["optimize", "off"], &["optimize", "on"]] {
        let output = run(&mut sidestep(&[args, &["-v", "-p", &pid]].concat()), LIMIT).ok();
        assert!(
            output.stderr.contains("5 sites switched while the threads ran, 0 while they were stopped"),
            "{output}"
        );
        assert_goes_on(&mut program);
    }
    tracing.stop();
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0, "wrong results, or interrupted sleeps and reads");
    program.finish().ok();
}

/// Nothing is changed unless every pattern means something.
#[test]
pub fn what_means_no_probe_is_said() {
    let Some((mut program, pid)) = start("counts") else { return };
    let tracing = Tracing::start(&["funccount", "--no-optimize", "-p", &pid, "leaf"]);
    refused(&["disable", "-p", &pid, "leaf", "leef"], &["leef", "leaf"]);
    refused(&["disable", "-p", &pid, "leaf", "fib"], &["no probe at `fib`", &format!("sidestep status -p {pid}")]);
    refused(&["disable", "-p", &pid, "leaf+0x1"], &["no probe at `leaf+0x1`"]);
    let (lines, _) = status(&pid, &["-v"]);
    let own = lines.iter().find(|line| line.kind == "-").expect("traps need some");
    refused(&["disable", "-p", &pid, &format!("{:#x}", own.address)], &[]);
    program.ask("work 10");
    tracing.stop().assert_count("leaf", 10);
    program.finish().ok();
}

/// An unwinder that a user probes, too, is where return addresses are put back.
#[test]
fn a_place_that_keeps_the_process_safe_stays() {
    let Some((mut program, pid)) = start("throw") else { return };
    let before = Snapshot::of(program.pid());
    // Its exits are not known, so its return address is replaced.
    let specs = ["r:entered \"%d\", retval", "libgcc_s:_Unwind_RaiseException"];
    let tracing = Tracing::start(&["trace", "-p", &pid, specs[0], specs[1]]);
    let output = switch("disable", &pid, &[]);
    assert_eq!(output.code(), 1, "{output}");
    assert!(output.stdout.starts_with("1 probe disabled"), "{output}");
    assert!(
        output.stderr.contains("stays as it was: a probe that keeps the process safe is at the same place"),
        "{output}"
    );
    assert_eq!(program.ask("run 300"), -150);
    let (lines, _) = status(&pid, &[]);
    let raised = lines.iter().find(|line| line.symbol.starts_with("_Unwind_RaiseException+"));
    assert!(raised.is_some_and(|line| line.hits > 0 && line.state != "[DISABLED]"), "{lines:?}");
    tracing.stop();
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

#[test]
pub fn programs_know_that_nobody_listens_meanwhile() {
    let (Some((mut program, pid)), Some(object)) = (start("usdt"), target("usdt.bpf.o")) else { return };
    let args = ["bpf", object.to_str().expect("UTF-8"), "-p", &pid, "-a", "on_twice=usdt:usdt:demo:twice"];
    let tracing = Tracing::start(&args);
    for _ in 0..3 {
        assert_eq!(program.ask("listeners 0"), 1);
        program.ask("fire 10");
        says("disable", &pid, &["usdt:usdt:demo:fired"], "1 probe disabled");
        assert_eq!((program.ask("listeners 0"), program.ask("child 5")), (0, 0));
        program.ask("fire 100");
        says("enable", &pid, &[], "1 probe enabled; 2 were already");
    }
    assert_eq!((program.ask("listeners 0"), program.ask("child 5")), (1, 1));
    says("disable", &pid, &[], "3 probes disabled");
    assert_eq!(super::bpf::variable(&tracing.stop(), "fires"), 30);
    assert_eq!(program.ask("listeners 0"), 0);
    // Whoever comes after one that was killed finds what was switched.
    Tracing::start(&args).kill();
    says("disable", &pid, &[], "3 probes disabled");
    assert_eq!(program.ask("listeners 0"), 0);
    Tracing::start(&args).stop();
    assert_eq!(program.ask("listeners 0"), 0);
    program.finish().ok();
}

/// A child has a copy of what there was when it was forked.
#[test]
pub fn children_keep_what_they_were_forked_with() {
    let Some((mut program, pid)) = start("usdt") else { return };
    let tracing = Tracing::start(&["funccount", "-p", &pid, "fired"]);
    let one = program.ask("stay 0");
    says("disable", &pid, &[], "1 probe disabled");
    let other = program.ask("stay 0");
    assert_eq!(program.ask("child 7"), 0);
    says("enable", &pid, &[], "1 probe enabled");
    program.ask("fire 10");
    tracing.stop().assert_count("fired", 10);
    for child in [one, other] {
        let child = child.to_string();
        Tracing::start(&["funccount", "-p", &child, "fired"]).stop();
        refused(&["status", "-p", &child], &["carries no probes"]);
        assert_eq!(program.ask(&format!("reap {child}")), 0);
    }
    program.finish().ok();
}

/// What is at the place of an unloaded library is not ours to change; the library itself, when it
/// is there again, is if that was wanted.
#[test]
pub fn unloaded_libraries_are_left_alone() {
    let Some((mut program, pid)) = start("reload") else { return };
    assert_eq!(program.ask("load 0"), 0);
    let place = program.ask("where 0");
    let state = || status(&pid, &[]).0[0].state.clone();
    let tracing = Tracing::start(&["funccount", "-p", &pid, "libz:adler32"]);
    assert_eq!(program.ask("sums 10"), 10);
    says("disable", &pid, &[], "1 probe disabled");
    assert_eq!(program.ask("unload 0"), 0);
    assert_eq!(state(), "[GONE]");
    let refuses = || {
        for command in ["enable", "disable"] {
            let output = switch(command, &pid, &[]);
            assert_eq!(output.code(), 1, "{output}");
            assert!(output.stderr.contains("stays as it was: its object was unloaded"), "{output}");
        }
    };
    refuses();
    assert_eq!(program.ask("load 0"), 0);
    assert_eq!(program.ask("where 0"), place, "nothing else has taken its place");
    assert_eq!((program.ask("sums 100"), state().as_str()), (100, "[DISABLED]"));
    says("enable", &pid, &[], "1 probe enabled");
    assert_eq!(program.ask("sums 1000"), 1000);
    // Loaded once more, it has no probe, and nobody has said that it is to have none.
    assert_eq!((program.ask("unload 0"), program.ask("load 0"), program.ask("where 0")), (0, 0, place));
    assert_eq!((program.ask("sums 100"), state().as_str()), (100, "[GONE]"));
    refuses();
    tracing.stop().assert_count("adler32", 1010);
    assert_eq!(program.ask("sums 10"), 10);
    program.finish().ok();
}

/// The probe of a tool is disabled; if it is not, the tool says what has happened.
#[track_caller]
fn is_disabled(tracing: Tracing, pid: &str) -> Tracing {
    let (shown, output) = status(pid, &[]);
    if shown[0].state != "[DISABLED]" {
        panic!("{output}\n{}", tracing.stop().0);
    }
    tracing
}

/// Where libraries that come later are probed, one that is loaded again is, too; but not by a probe
/// that somebody has disabled.
#[test]
pub fn libraries_that_are_loaded_again_stay_disabled() {
    let Some((mut program, pid)) = start("reload") else { return };
    assert_eq!(program.ask("load 0"), 0);
    let tracing = Tracing::start(&["funccount", "--follow", "-p", &pid, "libz:adler32"]);
    assert_eq!(program.ask("sums 10"), 10);
    says("disable", &pid, &[], "1 probe disabled");
    assert_eq!((program.ask("unload 0"), program.ask("load 0")), (0, 0));
    assert_eq!(program.ask("sums 100"), 100);
    let tracing = is_disabled(tracing, &pid);
    says("enable", &pid, &[], "1 probe enabled");
    assert_eq!(program.ask("sums 1000"), 1000);
    assert_eq!((program.ask("unload 0"), program.ask("load 0")), (0, 0));
    assert_eq!(program.ask("sums 10000"), 10000);
    // At another place, too, where it could not be enabled any more.
    says("disable", &pid, &[], "1 probe disabled");
    let place = program.ask("where 0");
    assert_eq!((program.ask("unload 0"), program.ask(&format!("occupy {place}")), program.ask("load 0")), (0, 0, 0));
    assert_ne!(program.ask("where 0"), place);
    assert_eq!(program.ask("sums 100"), 100);
    let tracing = is_disabled(tracing, &pid);
    says("enable", &pid, &[], "1 probe enabled");
    assert_eq!(program.ask("sums 100000"), 100_000);
    tracing.stop().assert_count("adler32", 111_010);
    program.finish().ok();
}

/// A command of one's own is a process like any other.
#[test]
pub fn probes_of_a_command_are_switched() {
    let Some(path) = target("load") else { return };
    let args = ["funccount", "-q", "leaf", "--", path.to_str().expect("UTF-8")];
    let mut running = Running::start(sidestep(&args).stdin(Stdio::piped()));
    let mut stdin = running.take_stdin().expect("a pipe");
    let children = format!("/proc/{0}/task/{0}/children", running.pid());
    let child = || std::fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
    // A session has no probes yet when it begins.
    let probed = || !child().is_empty() && !switch("status", &child(), &[]).stdout.is_empty();
    assert!(eventually(LIMIT, probed), "no command");
    let pid = child();
    let hits = || status(&pid, &[]).0[0].hits;
    writeln!(stdin, "start 0").expect("it reads");
    assert!(eventually(LIMIT, || hits() > 0), "nothing is counted");
    says("disable", &pid, &["leaf"], "1 probe disabled");
    let before = hits();
    says("enable", &pid, &["leaf"], "1 probe enabled");
    assert!(eventually(LIMIT, || hits() > before), "nothing is counted");
    writeln!(stdin, "finish 0").expect("it reads");
    drop(stdin);
    let output = running.finish(LIMIT).ok();
    assert!(output.stdout.contains("ready\n0\n0\n"), "{output}");
}
