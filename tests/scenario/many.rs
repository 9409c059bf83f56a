//! More sites than are written in one short pause: they are, while the threads run.

use std::process::Command;
use std::time::Instant;

use sidestep_tests::process::{LIMIT, Program, Running, eventually, run};
use sidestep_tests::tool::{Report, Tracing, rows, sidestep};
use sidestep_tests::{Snapshot, target};

use super::switch::unguarded;

/// How many functions there are.
const MANY: usize = 1000;

/// On arm64 few instructions may change while threads run: those of these functions are none.
const ARE_LIVE: bool = cfg!(not(target_arch = "aarch64"));

fn start() -> Option<(Program, String)> {
    let program = Program::start(&mut Command::new(target("many")?));
    let pid = program.pid().to_string();
    Some((program, pid))
}

/// The threads of the target: each of them ends a round that began before.
const THREADS: i64 = 3;

/// At least one thread calls all functions: more rounds end than had begun before.
#[track_caller]
fn assert_goes_on(program: &mut Program) {
    let rounds = program.ask("rounds 0");
    assert_eq!(program.ask("signals 3"), 3);
    assert!(eventually(LIMIT, || program.ask("rounds 0") > rounds + THREADS), "the threads stand still");
}

#[test]
pub fn sites_are_written_while_the_threads_run() {
    let Some((mut program, pid)) = start() else { return };
    assert_eq!(program.ask("start 0"), 0);
    let before = Snapshot::of(program.pid());
    for flags in [&[][..], &["--no-optimize"]] {
        let args = [&["funccount", "-v"], flags, &["-p", &pid, "many1*"]].concat();
        let tracing = Tracing::start(&args);
        assert_goes_on(&mut program);
        let report = tracing.stop();
        assert_eq!(report.0.stderr.contains("1000 sites written while they ran"), ARE_LIVE, "{}", report.0);
        // What the longest pause was for, of the attach and of the detach.
        assert_eq!(report.0.stderr.matches(" ms (").count(), 2, "{}", report.0);
        assert_eq!(report.counts().len(), MANY, "{}", report.0);
        assert_goes_on(&mut program);
        before.assert_same(&Snapshot::of(program.pid()));
    }
    let report = Tracing::start(&["funccount", "-v", "-p", &pid, "many100*"]).stop();
    assert_eq!(report.0.stderr.contains("10 sites written while they ran"), ARE_LIVE, "{}", report.0);
    assert_eq!(program.ask("finish 0"), 0, "wrong results");
    program.finish().ok();
}

/// Entries were there before exits at the attach, and after them at the detach, or an entry right
/// before its exit: calls in between had no end. Now only calls that go on have none, one for each
/// thread.
#[test]
pub fn calls_in_the_middle_of_an_attach_had_no_end() {
    let Some((mut program, pid)) = start() else { return };
    assert_eq!(program.ask("start 0"), 0);
    for _ in 0..4 {
        let tracing = Tracing::start(&["funclatency", "-p", &pid, "many1*"]);
        assert_goes_on(&mut program);
        assert_all_end(&tracing.stop());
    }
    assert_eq!(program.ask("finish 0"), 0, "wrong results");
    program.finish().ok();
}

/// Calls that go on have no end: one for each thread.
#[track_caller]
fn assert_all_end(report: &Report) {
    let said = report.0.stderr.lines().find_map(|line| line.split_once(" not returned"));
    let number = said.and_then(|(number, _)| number.split(' ').next());
    let unfinished: i64 = number.map_or(0, |number| number.parse().expect("a number"));
    assert!(unfinished <= THREADS, "{}", report.0);
}

/// Sites of two sessions changed before all others: exits went before entries at a detach.
#[test]
pub fn calls_had_no_end_where_another_session_was_at_their_exits() {
    let Some((mut program, pid)) = start() else { return };
    assert_eq!(program.ask("start 0"), 0);
    let returns = ["-f", "json", "-p", &pid, "-e", "ur:many1* { @ = count() }"];
    for is_first in [true, false, true] {
        let other = is_first.then(|| Tracing::start(&returns));
        let tracing = Tracing::start(&["funclatency", "-p", &pid, "many1*"]);
        let other = other.unwrap_or_else(|| Tracing::start(&returns));
        assert_goes_on(&mut program);
        assert_all_end(&tracing.stop());
        other.stop();
    }
    assert_eq!(program.ask("finish 0"), 0, "wrong results");
    program.finish().ok();
}

/// All exits were enabled before the first entry, and disabled after the last: what returned in
/// between was counted without its entry, up to a sixth of all in a short session. The sites of a
/// function change in one pause now, and calls that go on at its beginning or end are one for each
/// thread. A session that takes no signals does not write its sites while the threads run.
#[test]
pub fn more_calls_returned_than_there_were() {
    let Some((mut program, pid)) = unguarded("many") else { return };
    assert_eq!(program.ask("start 0"), 0);
    // The first interval begins when the probes are there.
    let said = "interval:ms:100 { printf(\"Tracing\\n\") }";
    let script = format!("u:many1* {{ @e[func] = count() }} ur:many1* {{ @r[func] = count() }} {said}");
    for _ in 0..4 {
        let tracing = Tracing::start(&["-v", "-p", &pid, "-e", &script]);
        assert_goes_on(&mut program);
        let report = tracing.stop();
        assert!(!report.0.stderr.contains("sites written while they ran"), "{}", report.0);
        let (entered, returned) = (rows(&report.0.stdout, "@e"), rows(&report.0.stdout, "@r"));
        assert_eq!((entered.len(), returned.len()), (MANY, MANY), "{}", report.0);
        for (name, returns) in &returned {
            // A call of each thread, and one of its signal handler.
            let more = *returns as i64 - entered[name] as i64;
            assert!(more.abs() <= 2 * THREADS, "{name}: {more} more returns than entries");
        }
    }
    assert_eq!(program.ask("finish 0"), 0, "wrong results");
    program.finish().ok();
}

#[test]
pub fn counts_are_exact() {
    let Some((mut program, pid)) = start() else { return };
    for flags in [&[][..], &["--no-optimize"]] {
        let tracing = Tracing::start(&[&["funccount"], flags, &["-p", &pid, "many1*"]].concat());
        assert_eq!(program.ask("calls 7"), 7);
        let output = run(&mut sidestep(&["disable", "-p", &pid]), LIMIT).ok();
        assert_eq!(output.stdout, "1000 probes disabled\n", "{output}");
        assert_eq!(program.ask("calls 5"), 5);
        let output = run(&mut sidestep(&["enable", "-p", &pid]), LIMIT).ok();
        assert_eq!(output.stdout, "1000 probes enabled\n", "{output}");
        assert_eq!(program.ask("calls 3"), 3);
        let report = tracing.stop();
        let counts = report.counts();
        assert!(counts.len() == MANY && counts.values().all(|count| *count == 10), "{flags:?}: {}", report.0);
    }
    program.finish().ok();
}

/// The controller dies at any moment of an attach. The program goes on, and the next one finds
/// everything.
#[test]
pub fn killed_in_the_middle_of_an_attach() {
    let Some((mut program, pid)) = start() else { return };
    assert_eq!(program.ask("start 0"), 0);
    let before = Snapshot::of(program.pid());
    for mode in [&["funccount"][..], &["funccount", "--no-optimize"], &["funclatency"]] {
        let args = [mode, &["-p", &pid, "many1*"]].concat();
        let begin = Instant::now();
        let tracing = Tracing::start(&args);
        let whole = begin.elapsed();
        tracing.stop();
        let mut random = u64::from(begin.elapsed().subsec_nanos());
        for round in 0..12 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Most of the changes are in the second half.
            let moment = whole.mul_f64(0.3 + 0.8 * (random >> 40) as f64 / (1 << 24) as f64);
            let running = Running::start(&mut sidestep(&args));
            std::thread::sleep(moment);
            drop(running);
            assert!(program.is_running(), "{mode:?}: killed by the death of a controller");
            assert_goes_on(&mut program);
            if round % 4 == 3 {
                Tracing::start(&args).stop();
                before.assert_same(&Snapshot::of(program.pid()));
            }
        }
    }
    assert_eq!(program.ask("finish 0"), 0, "wrong results");
    program.finish().ok();
}

/// A histogram for each of so many functions and for each thread is more than there is room for.
/// The threads share them.
#[test]
pub fn histograms_of_many_functions_needed_too_much_memory() {
    let Some(path) = target("many-10000") else { return };
    let mut program = Program::start(&mut Command::new(path));
    let pid = program.pid().to_string();
    let tracing = Tracing::start(&["funclatency", "-F", "-p", &pid, "many1*"]);
    assert_eq!(program.ask("start 0"), 0);
    assert!(eventually(LIMIT, || program.ask("rounds 0") > THREADS), "the threads stand still");
    assert_eq!(program.ask("finish 0"), 0, "wrong results");
    let rounds = program.ask("rounds 0");
    let report = tracing.stop();
    let counts: Vec<&str> =
        report.0.stdout.lines().filter_map(|line| line.split_once(", count: ")).map(|l| l.1).collect();
    assert_eq!(counts.len(), 10 * MANY, "{}", report.0.stderr);
    assert!(counts.iter().all(|count| *count == rounds.to_string()), "{rounds}: {counts:?}");
    program.finish().ok();
}

/// How many functions a pattern means was not known before the command ran, and there was room for
/// 512.
#[test]
pub fn histograms_of_the_functions_of_a_command_had_no_room() {
    let Some(path) = target("many-10000") else { return };
    let command = path.to_str().expect("UTF-8");
    let output = run(&mut sidestep(&["funclatency", "-F", "many1*", "--", command, "calls", "2"]), LIMIT).ok();
    let ends: Vec<&str> = output.stdout.lines().filter(|line| line.starts_with("avg = ")).collect();
    assert_eq!(ends.len(), 10 * MANY, "{}", output.stderr);
    assert!(ends.iter().all(|line| line.ends_with(", count: 2")), "{ends:?}");
}
