//! Probes that are so close to each other that only one can be a jump: while those inside its bytes
//! are disabled, it is one.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, sidestep};
use sidestep_tests::{Snapshot, target};

use super::carried::status;

/// How often neighbours are switched under load.
const CYCLES: usize = 100;

struct Probed {
    program: Program,
    pid: String,
    before: Snapshot,
}

fn start() -> Option<Probed> {
    let mut program = Program::start(&mut Command::new(target("promotion")?));
    // What the C library does for its first threads.
    assert_eq!((program.ask("start 1"), program.ask("finish 0")), (0, 0));
    let (pid, before) = (program.pid().to_string(), Snapshot::of(program.pid()));
    Some(Probed { program, pid, before })
}

impl Probed {
    fn trace(&self, flags: &[&str], place: &str) -> Tracing {
        Tracing::start(&[flags, &["-p", &self.pid, &format!("promotion:{place}")]].concat())
    }

    #[track_caller]
    fn switch(&self, command: &str, place: &str) {
        let output = run(&mut sidestep(&[command, "-p", &self.pid, &format!("promotion:{place}")]), LIMIT).ok();
        assert_eq!(output.stderr, "", "{output}");
    }

    /// Offsets of the sites that are jumps, and of those that are not disabled.
    fn sites(&self) -> (Vec<u64>, Vec<u64>) {
        let (lines, _) = status(&self.pid, &[]);
        let first = lines.iter().map(|line| line.address).min().unwrap_or(0);
        let those = |wanted: &dyn Fn(&str) -> bool| {
            let lines = lines.iter().filter(|line| wanted(&line.state));
            lines.map(|line| line.address - first).collect()
        };
        (those(&|state| state == "[OPTIMIZED]"), those(&|state| state != "[DISABLED]"))
    }

    #[track_caller]
    fn assert_jumps(&self, jumps: &[u64]) {
        assert_eq!(self.sites().0, jumps);
    }

    fn hits(&self) -> Vec<u64> {
        status(&self.pid, &[]).0.iter().map(|line| line.hits).collect()
    }
}

#[test]
pub fn a_site_is_a_jump_while_nothing_is_enabled_inside() {
    let Some(mut probed) = start() else { return };
    let tracing = probed.trace(&["funccount"], "two+*");
    let mut expected = [0; 4];
    for (command, jumps, counted) in [
        ("", &[8][..], [1, 1, 1, 1]),
        ("disable", &[0, 8], [1, 0, 1, 1]),
        ("enable", &[8], [1, 1, 1, 1]),
        ("disable", &[0, 8], [1, 0, 1, 1]),
        ("enable", &[8], [1, 1, 1, 1]),
    ] {
        if !command.is_empty() {
            probed.switch(command, "two+0x3");
        }
        probed.assert_jumps(jumps);
        assert_eq!(probed.program.ask("work 10"), 0);
        expected.iter_mut().zip(counted).for_each(|(sum, counted)| *sum += 10 * counted);
        assert_eq!(probed.hits(), expected, "{command}");
    }
    let report = tracing.stop();
    report.assert_count("two", 50);
    report.assert_count("two+0x3", 30);
    probed.before.assert_same_but_data(&Snapshot::of(probed.program.pid()));
    probed.program.finish().ok();
}

#[test]
pub fn all_that_are_inside_have_to_go() {
    let Some(mut probed) = start() else { return };
    let tracing = probed.trace(&["funccount"], "ones+*");
    let output = run(&mut sidestep(&["status", "-v", "-p", &probed.pid]), LIMIT).ok();
    let why = "blocked by ones+0x1, ones+0x2, ones+0x3, ones+0x4: a jump once they are disabled";
    assert!(output.stdout.lines().any(|line| line.contains(" ones+0x0 ") && line.ends_with(why)), "{output}");
    for (gone, jump) in [("0x3", false), ("0x1", false), ("0x4", false), ("0x2", true)] {
        probed.switch("disable", &format!("ones+{gone}"));
        assert_eq!(probed.sites().0.contains(&0), jump, "{gone}");
        assert_eq!(probed.program.ask("work 10"), 0);
    }
    let output = run(&mut sidestep(&["enable", "-v", "-p", &probed.pid, "ones+0x2"]), LIMIT).ok();
    assert!(output.stderr.contains("1 site switched while the threads ran, 0 while they were stopped"), "{output}");
    assert_eq!((probed.program.ask("work 10"), probed.sites().0.contains(&0)), (0, false));
    let report = tracing.stop();
    for (function, count) in [("ones", 50), ("ones+0x1", 10), ("ones+0x2", 40), ("ones+0x3", 0), ("ones+0x4", 20)] {
        report.assert_count(function, count);
    }
    probed.before.assert_same_but_data(&Snapshot::of(probed.program.pid()));
    probed.program.finish().ok();
}

/// A jump over sites of which one could be a jump, too.
#[test]
pub fn one_of_two_jumps_that_overlap_is_there() {
    let Some(mut probed) = start() else { return };
    let tracing = probed.trace(&["funccount"], "nested+*");
    for (command, place, jumps, enabled) in [
        ("disable", "0x5", &[2, 11][..], &[0, 2, 8, 11][..]),
        // It was a jump, which does not come back where another one is.
        ("disable", "0x2", &[0, 11], &[0, 8, 11]),
        ("enable", "0x2", &[2, 11], &[0, 2, 8, 11]),
        ("disable", "0x0", &[2, 11], &[2, 8, 11]),
        ("disable", "0x2", &[11], &[8, 11]),
        ("enable", "0x0", &[0, 11], &[0, 8, 11]),
        ("disable", "0x0", &[11], &[8, 11]),
        // The jump that is not there now is not to come back, either.
        ("enable", "0x5", &[11], &[5, 8, 11]),
        ("enable", "0x0", &[0, 11], &[0, 5, 8, 11]),
        ("enable", "0x2", &[11], &[0, 2, 5, 8, 11]),
    ] {
        let before = probed.hits();
        probed.switch(command, &format!("nested+{place}"));
        assert_eq!(probed.sites(), (jumps.to_vec(), enabled.to_vec()), "{command} {place}");
        assert_eq!(probed.program.ask("work 10"), 0);
        let counted = before.iter().zip(probed.hits()).map(|(before, now)| now - before).collect::<Vec<_>>();
        let wanted = [0, 2, 5, 8, 11].map(|site| if enabled.contains(&site) { 10 } else { 0 });
        assert_eq!(counted, wanted, "{command} {place}");
    }
    tracing.stop();
    probed.before.assert_same_but_data(&Snapshot::of(probed.program.pid()));
    probed.program.finish().ok();
}

/// `optimize off` is not undone by what neighbours do.
#[test]
pub fn a_site_that_is_to_be_a_trap_stays_one() {
    let Some(mut probed) = start() else { return };
    let tracing = probed.trace(&["funccount"], "calls_last+*");
    let optimize = |to: &str| {
        run(&mut sidestep(&["optimize", to, "-p", &probed.pid, "calls_last"]), LIMIT).ok();
    };
    optimize("off");
    probed.switch("disable", "calls_last+0x1");
    probed.switch("disable", "calls_last+0x4");
    assert!(!probed.sites().0.contains(&0));
    optimize("on");
    assert!(probed.sites().0.contains(&0));
    optimize("off");
    assert_eq!((probed.program.ask("work 10"), probed.sites().0.contains(&0)), (0, false));
    optimize("on");
    assert!(probed.sites().0.contains(&0));
    optimize("off");
    probed.switch("enable", "calls_last+0x1");
    optimize("on");
    assert!(!probed.sites().0.contains(&0));
    assert_eq!(probed.program.ask("work 10"), 0);
    probed.switch("disable", "calls_last+0x1");
    assert_eq!((probed.program.ask("work 10"), probed.sites().0.contains(&0)), (0, true));
    let report = tracing.stop();
    report.assert_count("calls_last", 30);
    report.assert_count("calls_last+0x1", 10);
    probed.before.assert_same_but_data(&Snapshot::of(probed.program.pid()));
    probed.program.finish().ok();
}

/// Faults inside show where the instruction is, and a handler that returns there gets to the copy.
#[test]
pub fn faults_are_seen_where_they_are() {
    let Some(mut probed) = start() else { return };
    let tracing = probed.trace(&["funccount"], "loads+*");
    for command in ["", "disable", "enable", "disable"] {
        if !command.is_empty() {
            probed.switch(command, "loads+0x3");
        }
        assert_eq!(probed.sites().0.contains(&0), command == "disable");
        for value in 0..5 {
            assert_eq!(
                (probed.program.ask("faults 0"), probed.program.ask(&format!("repair {value}"))),
                (3, value + 2)
            );
        }
    }
    let report = tracing.stop();
    report.assert_count("loads", 40);
    // A repaired instruction is hit twice.
    report.assert_count("loads+0x3", 2 * (5 + 10));
    probed.before.assert_same_but_data(&Snapshot::of(probed.program.pid()));
    probed.program.finish().ok();
}

/// Threads and signal handlers are everywhere in sites and detours.
#[test]
pub fn counts_are_exact_while_neighbours_come_and_go() {
    for (cycles, function, inside) in [
        (CYCLES, "two", &["0x3"][..]),
        (CYCLES / 10, "ones", &["0x1", "0x2", "0x3", "0x4"]),
        (CYCLES / 10, "nested", &["0x2", "0x5"]),
        (CYCLES / 10, "calls_last", &["0x1", "0x4"]),
    ] {
        let Some(mut probed) = start() else { return };
        let tracing = probed.trace(&["funccount"], &format!("{function}+*"));
        let first = probed.program.ask("calls 0");
        assert_eq!(probed.program.ask("start 4"), 0);
        let mut jumps = 0;
        for cycle in 0..cycles {
            for command in ["disable", "enable"] {
                for place in inside {
                    probed.switch(command, &format!("{function}+{place}"));
                }
                // A look takes longer than a switch.
                let look = command == "disable" && cycle % 10 == 0;
                jumps += usize::from(look && probed.sites().0.contains(&0));
            }
        }
        assert_eq!(probed.program.ask("finish 0"), 0, "{function}: wrong results");
        let calls = (probed.program.ask("calls 0") - first) as u64;
        let hits = probed.hits();
        assert_eq!(hits[0], calls, "{function} {hits:?}");
        assert_eq!((jumps, hits.last()), (cycles / 10, hits.first()), "{function} {hits:?}");
        tracing.stop();
        probed.before.assert_same_but_data(&Snapshot::of(probed.program.pid()));
        assert_eq!(probed.program.ask("work 10"), 0);
        probed.program.finish().ok();
    }
}

/// Who switches is killed anywhere in between, and so is the controller at last.
#[test]
pub fn those_who_switch_may_die() {
    let Some(mut probed) = start() else { return };
    let tracing = probed.trace(&["funccount"], "nested+*");
    let first = probed.program.ask("calls 0");
    assert_eq!(probed.program.ask("start 4"), 0);
    let killed = AtomicBool::new(false);
    for cycle in 0..CYCLES as u64 {
        let command = if cycle % 2 == 0 { "disable" } else { "enable" };
        let place = if cycle % 4 < 2 { "promotion:nested+0x2" } else { "promotion:nested+0x5" };
        let mut child = sidestep(&[command, "-q", "-p", &probed.pid, place]).spawn().expect("it starts");
        // It takes some milliseconds.
        std::thread::sleep(Duration::from_micros(cycle * 211 % 23_000));
        killed.fetch_or(child.kill().is_ok(), Ordering::Relaxed);
        child.wait().expect("it ends");
    }
    assert!(killed.into_inner());
    assert_eq!(probed.program.ask("finish 0"), 0, "wrong results");
    let calls = (probed.program.ask("calls 0") - first) as u64;
    let hits = probed.hits();
    assert_eq!((hits[0], hits.last()), (calls, Some(&calls)), "{hits:?}");
    probed.switch("disable", "nested+0x2");
    probed.assert_jumps(&[0, 11]);
    tracing.kill();
    probed.switch("enable", "nested+0x2");
    probed.switch("disable", "nested+0x2");
    // The next one cleans up.
    probed.trace(&["funccount"], "nested").stop();
    probed.before.assert_same_but_data(&Snapshot::of(probed.program.pid()));
    assert_eq!(probed.program.ask("work 10"), 0);
    probed.program.finish().ok();
}
