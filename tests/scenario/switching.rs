//! Probes that are switched under load, by several at once, and by those who die in between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sidestep_tests::Snapshot;
use sidestep_tests::process::{LIMIT, Running, eventually, run};
use sidestep_tests::tool::{Tracing, Width, is_32_bit, sidestep};

use super::carried::status;
use super::switch::{FUNCTIONS, assert_goes_on, load, says, start, switch, unguarded};

/// All of [`FUNCTIONS`].
const SWITCHED: &[&str] = &["leaf", "mix", "tree", "real", "bytes"];
/// How long probes are switched while threads run through them.
const TIME: Duration = Duration::from_secs(6);

/// Threads stand everywhere in the sites and detours when they are switched.
#[test]
pub fn probes_are_switched_under_load() {
    for (mode, in_pauses) in [
        (&["funccount"][..], true),
        (&["funccount"], false),
        (&["funclatency", "-F"], false),
        (&["funccount", "--no-optimize"], false),
    ] {
        let Some((mut program, pid)) = (if in_pauses { unguarded("load") } else { start("load") }) else { return };
        assert_eq!(program.ask("start 0"), 0);
        let before = Snapshot::of(program.pid());
        let tracing = Tracing::start(&[mode, &["-p", &pid, "-r", FUNCTIONS]].concat());
        says("disable", &pid, SWITCHED, "5 probes disabled");
        let hits = || status(&pid, &[]).0.iter().find(|line| line.symbol == "real+0x0").map_or(0, |line| line.hits);
        let (start, mut cycles) = (Instant::now(), 0);
        while start.elapsed() < TIME / 2 || cycles < 4 {
            let (hits_before, widest) = (hits(), program.ask("rounds 0"));
            says("enable", &pid, SWITCHED, "5 probes enabled");
            let first = program.ask("rounds 0");
            assert_goes_on(&mut program);
            let last = program.ask("rounds 0");
            says("disable", &pid, SWITCHED, "5 probes disabled");
            let (counted, end) = (hits() - hits_before, program.ask("rounds 0"));
            // A round calls `real` once, and may be under way in each of five threads.
            assert!(counted as i64 + 5 >= last - first, "{counted} of {first} to {last}");
            assert!(counted as i64 <= end - widest + 5, "{counted} of {widest} to {end}");
            let now = hits();
            assert_goes_on(&mut program);
            // The call that each of the threads was in when the probes went may end now.
            assert!(hits() <= now + 5 && hits() - hits_before <= counted + 5, "counted while disabled");
            cycles += 1;
        }
        tracing.stop();
        before.assert_same(&Snapshot::of(program.pid()));
        assert_eq!(program.ask("finish 0"), 0, "wrong results, or interrupted sleeps and reads");
        program.finish().ok();
    }
}

/// Every call of 64 threads gives what it has to, and is counted once or not at all.
#[test]
pub fn results_are_right_while_probes_come_and_go() {
    for (mode, in_pauses, calls) in [
        (&["funccount"][..], true, 200_000i64),
        (&["funccount"], false, 20_000),
        (&["funclatency"], false, 50_000),
        (&["funccount", "--no-optimize"], false, 5_000),
    ] {
        let build = "counts-ibt";
        let Some((mut program, pid)) = (if in_pauses { unguarded(build) } else { start(build) }) else { return };
        let tracing = Tracing::start(&[mode, &["-p", &pid, "leaf"]].concat());
        let done = AtomicBool::new(false);
        let mut rounds = 0;
        let width = Width::of_test();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                width.set();
                while !done.load(Ordering::Relaxed) {
                    says("disable", &pid, &["leaf"], "1 probe disabled");
                    says("enable", &pid, &["leaf"], "1 probe enabled");
                }
            });
            let start = Instant::now();
            while start.elapsed() < TIME / 3 {
                let sum = 64 * (3 * calls * (calls - 1) / 2 + calls);
                let expected = if is_32_bit() { i64::from(sum as i32) } else { sum };
                assert_eq!(program.ask(&format!("threads {calls}")), expected);
                rounds += 1;
            }
            done.store(true, Ordering::Relaxed);
        });
        let probes = status(&pid, &[]).0;
        let before = probes.iter().find(|line| line.symbol.starts_with("leaf+")).map_or(0, |line| line.hits);
        assert!(before > 0 && before <= rounds * 64 * calls as u64, "{before} of {rounds} rounds");
        program.ask("threads 1000");
        let report = tracing.stop();
        // Calls whose exit was disabled at the moment have not returned, as far as that is seen.
        let unfinished = report.0.stderr.lines().find_map(|line| line.split_once(" call")?.0.parse::<u64>().ok());
        let counted = match mode[0] {
            "funclatency" => report.latencies() + unfinished.unwrap_or(0),
            _ => report.count("leaf"),
        };
        assert_eq!(counted, before + 64_000, "{}", report.0);
        program.finish().ok();
    }
}

/// Several at once, and somebody who looks.
#[test]
pub fn many_switch_at_the_same_time() {
    let Some((mut program, pid)) = load() else { return };
    let before = Snapshot::of(program.pid());
    let tracing = Tracing::start(&["funclatency", "-p", &pid, "-r", FUNCTIONS]);
    let done = AtomicBool::new(false);
    let width = Width::of_test();
    let again = |args: &[&str]| {
        width.set();
        while !done.load(Ordering::Relaxed) {
            run(&mut sidestep(&[&[args[0], "-p", &pid], &args[1..]].concat()), LIMIT).ok();
        }
    };
    std::thread::scope(|scope| {
        for args in [&["disable"][..], &["enable"], &["disable", "leaf", "tree"], &["status"]] {
            scope.spawn(move || again(args));
        }
        let start = Instant::now();
        while start.elapsed() < TIME {
            assert_goes_on(&mut program);
        }
        done.store(true, Ordering::Relaxed);
    });
    says("enable", &pid, &[], &switch_all(&pid));
    let first = program.ask("rounds 0");
    let hits = || status(&pid, &[]).0.iter().find(|line| line.symbol == "real+0x0").map_or(0, |line| line.hits);
    let before_it = hits();
    assert!(eventually(LIMIT, || program.ask("rounds 0") > first + 10_000), "the threads stand still");
    assert!(hits() > before_it, "nothing is counted");
    tracing.stop();
    before.assert_same(&Snapshot::of(program.pid()));
    assert_eq!(program.ask("finish 0"), 0, "wrong results, or interrupted sleeps and reads");
    program.finish().ok();
}

/// What `enable` will say.
fn switch_all(pid: &str) -> String {
    let (lines, _) = status(pid, &[]);
    let off = lines.iter().filter(|line| line.state == "[DISABLED]").count();
    let rest = match lines.len() - off {
        0 => String::new(),
        1 => "; 1 was already".to_owned(),
        n => format!("; {n} were already"),
    };
    format!("{off} {} enabled{rest}", if off == 1 { "probe" } else { "probes" })
}

/// The controller detaches while others switch: they find the probes, or none.
#[test]
pub fn a_detach_at_the_same_time() {
    let Some((mut program, pid)) = load() else { return };
    let before = Snapshot::of(program.pid());
    for round in 0..12u64 {
        let mode: &[&str] = if round % 3 == 2 { &["funccount", "--no-optimize"] } else { &["funclatency"] };
        let tracing = Tracing::start(&[mode, &["-p", &pid, "-r", FUNCTIONS]].concat());
        let commands = ["disable", "enable", "disable", "status"];
        let running = commands.map(|command| Running::start(&mut sidestep(&[command, "-p", &pid])));
        std::thread::sleep(Duration::from_millis(round));
        tracing.stop();
        for (command, running) in commands.into_iter().zip(running) {
            let output = running.finish(LIMIT);
            let words = ["carries no probes", "are being removed"];
            let gone = output.code() == 1 && words.iter().any(|words| output.stderr.contains(words));
            assert!(gone || output.code() == 0, "{command}: {output}");
        }
        assert!(program.is_running(), "killed");
        assert_goes_on(&mut program);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    assert_eq!(program.ask("finish 0"), 0, "wrong results, or interrupted sleeps and reads");
    program.finish().ok();
}

/// First the controller dies, then those who switch, at any moment.
#[test]
pub fn killed_at_any_moment() {
    let Some((mut program, pid)) = load() else { return };
    let before = Snapshot::of(program.pid());
    let args = ["funclatency", "--live", "-p", &pid, "-r", FUNCTIONS];
    let begin = Instant::now();
    for round in 0..4u64 {
        let mode: &[&str] = if round % 2 == 0 { &[] } else { &["--no-optimize"] };
        Tracing::start(&[&args[..], mode].concat()).kill();
        says("disable", &pid, &[], "5 probes disabled");
        says("enable", &pid, &[], "5 probes enabled");
        let mut random = u64::from(begin.elapsed().subsec_nanos());
        for i in 0..15 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let commands = [&["disable"][..], &["enable"], &["optimize", "off"], &["enable"], &["optimize", "on"]];
            let running = Running::start(&mut sidestep(&[commands[i % 5], &["-p", &pid]].concat()));
            std::thread::sleep(Duration::from_micros((random >> 40) % 12_000));
            drop(running);
            assert!(program.is_running(), "killed by the death of who switched its probes");
            assert_goes_on(&mut program);
        }
        // Half of the rounds end with probes disabled.
        if round < 2 {
            switch("disable", &pid, &[]).ok();
            assert_eq!(status(&pid, &[]).0.iter().filter(|line| line.state == "[DISABLED]").count(), 5);
        }
        Tracing::start(&args).stop();
        before.assert_same(&Snapshot::of(program.pid()));
    }
    assert_eq!(program.ask("finish 0"), 0, "wrong results, or interrupted sleeps and reads");
    program.finish().ok();
}
