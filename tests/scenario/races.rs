//! Maps and rings under threads that write as fast as they can: the reader sees whole values, and
//! nothing gets lost unsaid.

use std::collections::{HashMap, HashSet};
use std::process::Command;
use std::time::{Duration, Instant};

use sidestep_tests::process::Program;
use sidestep_tests::target;
use sidestep_tests::tool::Tracing;

/// How long the writers write.
const TIME: Duration = Duration::from_secs(60);
/// Calls of each of the four threads of one round.
const CALLS: u64 = 200_000;
const THREADS: u64 = 4;

/// All numbers in a text.
fn numbers(text: &str) -> Vec<u64> {
    let digits = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    digits.map(|digits| digits.parse().expect("64 bits")).collect()
}

/// The entries in the line of a map.
fn entries<'a>(line: &'a str, map: &str) -> Option<&'a str> {
    line.strip_prefix("{\"type\": \"map\", \"data\": {\"")?.strip_prefix(map)?.strip_prefix("\":")
}

/// Looks at the entries of a map: key, whose the value is, six words, and what they are together.
#[track_caller]
fn assert_whole(line: &str) -> usize {
    let entries: Vec<&str> = line.split("{\"key\":").skip(1).collect();
    for entry in &entries {
        let [key, of, words @ .., sum] = &numbers(entry)[..] else { panic!("{entry}") };
        assert_eq!((key, words.len()), (of, 6), "a value of another entry: {entry}");
        assert_eq!(words.iter().fold(*key, |sum, word| sum ^ word), *sum, "a torn value: {entry}");
        let step = words[1].wrapping_sub(words[0]);
        assert!(words.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) == step), "a torn value: {entry}");
    }
    entries.len()
}

/// The last value of a counter in JSON.
#[track_caller]
fn counter(lines: &[&str], name: &str) -> u64 {
    let heading = format!("\"{name}\":");
    let text = lines.iter().rev().find_map(|line| Some(line.split_once(&heading)?.1));
    numbers(text.unwrap_or_else(|| panic!("no {name}")))[0]
}

/// Thread and number of a record.
#[track_caller]
fn record(line: &str) -> Option<(u64, u64)> {
    let (_, text) = line.strip_prefix("{\"type\": \"record\"")?.split_once("\"tid\": ")?;
    let [said, tid, n] = numbers(text)[..] else { panic!("{line}") };
    assert_eq!(said, tid, "whose it is: {line}");
    Some((tid, n))
}

/// A thread that got the stack, and so the slot, of one that has ended wrote under that one's name.
#[test]
fn records_name_the_thread_that_wrote_them() {
    let (Some(object), Some(probed)) = (target("races.bpf.o"), target("probed")) else { return };
    let mut program = Program::start(&mut Command::new(probed));
    let (object, pid) = (object.to_str().expect("UTF-8"), program.pid().to_string());
    let tracing = Tracing::start(&["bpf", object, "-p", &pid, "-f", "json", "-t", "ring=event"]);
    (0..10).for_each(|_| _ = program.ask("threads 256"));
    let report = tracing.stop();
    let threads: HashSet<u64> = report.0.stdout.lines().filter_map(|line| Some(record(line)?.0)).collect();
    assert_eq!(threads.len(), 40, "{}", report.0);
    program.finish().ok();
}

#[test]
fn a_reader_against_writers_for_a_minute() {
    let (Some(object), Some(probed)) = (target("races.bpf.o"), target("probed")) else { return };
    let mut program = Program::start(&mut Command::new(probed));
    let (object, pid) = (object.to_str().expect("UTF-8"), program.pid().to_string());
    let tracing = Tracing::start(&["bpf", object, "-p", &pid, "-i", "0.05", "-f", "json", "-t", "ring=event"]);
    let (start, mut rounds) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        program.ask(&format!("threads {CALLS}"));
        rounds += 1;
    }
    let report = tracing.stop();
    program.finish().ok();

    let lines: Vec<&str> = report.0.stdout.lines().collect();
    let (mut values, mut records, mut gaps) = (0, 0, 0);
    let mut next: HashMap<u64, u64> = HashMap::new();
    for line in &lines {
        for map in ["table", "recent"] {
            if let Some(text) = entries(line, map) {
                values += assert_whole(text);
            }
        }
        if let Some((tid, n)) = record(line) {
            let expected = next.entry(tid).or_default();
            // The number of a thread that has ended may be given to another.
            if n == 0 {
                *expected = 0;
            }
            assert!(n >= *expected, "{line}: expected {expected}");
            gaps += n - *expected;
            *expected = n + 1;
            records += 1;
        }
    }
    let calls = rounds * THREADS * CALLS;
    let tried = rounds * THREADS * CALLS.div_ceil(256);
    let lost = counter(&lines, "lost");
    let said = report.0.stderr.lines().find_map(|line| line.strip_prefix("Total lost event count: "));
    assert_eq!(said.map_or(0, |text| numbers(text)[0]), lost, "{}", report.0.stderr);
    assert_eq!(records + lost, tried, "records");
    assert!(gaps <= lost, "{gaps} records are missing, {lost} were counted");
    assert_eq!(counter(&lines, "calls"), calls);
    assert_eq!((counter(&lines, "failed"), counter(&lines, "failed_recent")), (0, 0));
    assert!(!report.0.stderr.contains("issed"), "{}", report.0.stderr);
    let by_thread = lines.iter().rev().find_map(|line| entries(line, "by_thread"));
    let by_thread = by_thread.expect("the last state").split("\"value\":").skip(1);
    let counts: u64 = by_thread.filter_map(|text| numbers(text).first().copied()).sum();
    assert_eq!(counts, calls, "counts of all threads");
    assert!(values > 1000 && records > 1000, "{values} values, {records} records");
    println!("{rounds} rounds, {calls} calls, {values} values, {records} records, {lost} lost");
}

/// Bytes of a process in memory.
fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("the kernel says so");
    numbers(line)[0] * 1024
}

#[test]
fn a_million_keys_for_a_small_map() {
    const KEYS: u64 = 1_000_000;
    let (Some(object), Some(probed)) = (target("races.bpf.o"), target("probed")) else { return };
    for command in [format!("work {KEYS}"), format!("threads {}", KEYS / THREADS)] {
        let mut program = Program::start(&mut Command::new(&probed));
        let (object, pid) = (object.to_str().expect("UTF-8"), program.pid().to_string());
        let before = resident(program.pid());
        let keys = format!("keys={KEYS}");
        // Deletes would make room again.
        let tracing = Tracing::start(&["bpf", object, "-p", &pid, "-f", "json", "-s", &keys, "-s", "deletes=0"]);
        program.ask(&command);
        let grown = resident(program.pid()).saturating_sub(before);
        let report = tracing.stop();
        program.finish().ok();
        let lines: Vec<&str> = report.0.stdout.lines().collect();
        let failed = counter(&lines, "failed");
        let dropped = report.0.stderr.lines().find_map(|line| line.strip_prefix("Total dropped entry count: "));
        assert_eq!(dropped.map(|text| numbers(text)[0]), Some(failed), "{}", report.0.stderr);
        let last = |map| lines.iter().rev().find_map(|line| entries(line, map));
        assert_eq!(assert_whole(last("table").expect("the table")), 64);
        assert_eq!(assert_whole(last("recent").expect("the newest")), 64);
        assert_eq!(counter(&lines, "calls"), KEYS);
        // The threads come with the same keys.
        let kept = counter(&lines, "updated");
        assert_eq!(failed + kept, KEYS, "{command}");
        assert!(if command.starts_with("work") { kept == 64 } else { kept >= 64 }, "{command}: {kept}");
        assert!(grown < 16 << 20, "{command}: {grown} bytes more");
    }
}
