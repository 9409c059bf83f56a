//! A short run of the rack: `cargo xtask rack` goes on for as long as it is told.

use sidestep_tests::rack::{names, round};
use sidestep_tests::skip;

/// How much is done to each program.
const OPERATIONS: u64 = 2;

#[test]
fn everything_at_random_harms_no_program() {
    let (mut counts, mut attached) = (0, 0);
    // One round of each program.
    for seed in 0..names().len() as u64 {
        let done = round(seed, OPERATIONS);
        if let Some(missing) = done.missing {
            skip(&format!("no {missing}, for {}", done.target));
            continue;
        }
        let (name, at) = (done.target, done.evidence.display());
        assert!(done.failures.is_empty(), "seed {seed}, {name}, see {at}: {:?}", done.failures);
        assert_eq!(done.operations.values().sum::<u64>(), OPERATIONS, "{name}");
        counts += done.counts;
        attached += done.sessions[0];
    }
    assert!(counts >= 5 && attached >= 9, "{counts} counts, {attached} sessions");
}
