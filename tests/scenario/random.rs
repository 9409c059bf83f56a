//! Random programs compute the same with probes as without, and hits are as many as executions.
//! `cargo xtask random` compares others.

use sidestep_tests::build::{have, target_dir};
use sidestep_tests::random::check;

/// C and C++, GCC and clang, several levels.
const SEEDS: [u64; 4] = [1, 2, 3, 4];

#[test]
pub fn random_programs_compute_the_same_with_probes() {
    if !have(&["gcc", "g++", "clang", "clang++", "objdump", "valgrind"]) {
        return;
    }
    let (first, second) = SEEDS.split_at(SEEDS.len() / 2);
    std::thread::scope(|scope| {
        let threads = [first, second].map(|seeds| scope.spawn(move || seeds.iter().for_each(|seed| same(*seed))));
        for thread in threads {
            thread.join().expect("a difference, above");
        }
    });
}

fn same(seed: u64) {
    let folder = target_dir().join("random").join(format!("test-{seed}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the target directory is writable");
    let checked = check(&folder, seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let all: Vec<String> = checked.differences.iter().map(ToString::to_string).collect();
    assert!(all.is_empty(), "seed {seed}, {}:\n{}", folder.display(), all.join("\n"));
    assert!(checked.sites > 200 && checked.executed > 100 && checked.hits > 1000, "seed {seed}: {checked:?}");
    let alone = &checked.alone;
    assert!(alone.alone > 200 && alone.hits > 1000 && alone.techniques.len() > 3, "seed {seed}: {alone:?}");
    let refused: u64 = alone.refused.values().sum();
    assert_eq!(alone.alone + refused as usize, checked.sites, "seed {seed}: each site is probed or refused");
    let _ = std::fs::remove_dir_all(&folder);
}
