//! A short run of the rack, with the same rounds each time: `cargo xtask rack` goes on with others.

use std::collections::BTreeSet;
use std::sync::Mutex;

use sidestep_tests::rack::{Round, names, round};
use sidestep_tests::skip;

/// A round for each program: 9000 is a multiple of their number.
const FIRST: u64 = 9000;
/// What is done to each.
const OPERATIONS: u64 = 5;

#[test]
fn programs_compute_what_they_must_whatever_is_done_to_them() {
    let seeds: Mutex<Vec<u64>> = Mutex::new((0..names().len() as u64).map(|kind| FIRST + kind).collect());
    let rounds: Mutex<Vec<(u64, Round)>> = Mutex::default();
    let next = || seeds.lock().expect("nobody panics").pop();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(seed) = next() {
                    let done = round(seed, OPERATIONS);
                    rounds.lock().expect("nobody panics").push((seed, done));
                }
            });
        }
    });
    let rounds = rounds.into_inner().expect("nobody panics");
    let mut failures = String::new();
    for (seed, round) in &rounds {
        let again = format!("cargo xtask rack --seed {seed} --rounds 1 --operations {OPERATIONS}");
        for failure in &round.failures {
            failures += &format!("{}: {:?}: {}\n  again: {again}\n", round.target, failure.wrong, failure.what);
        }
        let done: u64 = round.operations.values().sum();
        assert!(!failures.is_empty() || round.missing.is_some() || done == OPERATIONS, "{again}: {round:?}");
    }
    assert!(failures.is_empty(), "{failures}");
    // What was compared.
    let (counts, sessions) = rounds.iter().fold((0, 0), |(counts, sessions), (_, round)| {
        (counts + round.counts, sessions + round.sessions.iter().sum::<u64>())
    });
    let operations: BTreeSet<&str> = rounds.iter().flat_map(|(_, round)| round.operations.keys().copied()).collect();
    println!("{counts} counts, {sessions} sessions, operations: {operations:?}");
    let missing: Vec<&str> =
        rounds.iter().filter(|(_, round)| round.missing.is_some()).map(|(_, round)| round.target).collect();
    if !missing.is_empty() {
        skip(&format!("{} of the {} programs of the rack: {}", missing.len(), rounds.len(), missing.join(", ")));
    }
}
