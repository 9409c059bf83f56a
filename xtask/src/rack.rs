//! Programs that check themselves, under load, with everything that can be done to them at random.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use sidestep_tests::rack::{Round, Wrong, names, round};

/// What is asked for.
pub struct Wanted {
    seed: u64,
    limit: Duration,
    rounds: u64,
    operations: u64,
    jobs: usize,
}

impl Wanted {
    /// Reads `--minutes N`, `--seed S`, `--rounds R`, `--operations O` and `--jobs J`.
    pub fn parse(words: &[&str]) -> Option<Wanted> {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        let mut wanted = Wanted { seed: 1, limit: minutes(10), rounds: u64::MAX, operations: 12, jobs: 2 };
        for pair in words.chunks(2) {
            let number: u64 = pair.get(1)?.parse().ok()?;
            match pair[0] {
                "--minutes" => wanted.limit = minutes(number),
                "--seed" => wanted.seed = number,
                "--rounds" => wanted.rounds = number,
                "--operations" => wanted.operations = number,
                "--jobs" => wanted.jobs = usize::try_from(number).ok().filter(|jobs| *jobs > 0)?,
                _ => return None,
            }
        }
        Some(wanted)
    }
}

/// The sums of all rounds.
#[derive(Default)]
struct Total {
    rounds: BTreeMap<&'static str, u64>,
    skipped: BTreeMap<&'static str, u64>,
    operations: BTreeMap<&'static str, u64>,
    sessions: [u64; 3],
    counts: u64,
    failures: BTreeMap<Wrong, u64>,
}

impl Total {
    fn add(&mut self, seed: u64, operations: u64, round: &Round) {
        if let Some(missing) = &round.missing {
            if *self.skipped.entry(round.target).and_modify(|n| *n += 1).or_insert(1) == 1 {
                println!("SKIPPED, NOT TESTED: {}: no {missing}", round.target);
            }
            return;
        }
        *self.rounds.entry(round.target).or_default() += 1;
        for (name, count) in &round.operations {
            *self.operations.entry(name).or_default() += count;
        }
        self.sessions.iter_mut().zip(round.sessions).for_each(|(sum, n)| *sum += n);
        self.counts += round.counts;
        for failure in &round.failures {
            *self.failures.entry(failure.wrong).or_default() += 1;
            println!(
                "FAILED: {:?}: {}: {}\n  again: cargo xtask rack --seed {seed} --rounds 1 --operations {operations}\n  evidence: {}",
                failure.wrong,
                round.target,
                failure.what,
                round.evidence.display()
            );
        }
    }

    fn print(&self, begin: Instant) {
        let list = |all: &BTreeMap<&'static str, u64>| {
            all.iter().map(|(name, n)| format!("{n} {name}")).collect::<Vec<_>>().join(", ")
        };
        let failures = |wrong: Wrong| self.failures.get(&wrong).copied().unwrap_or(0);
        let [attached, refused, killed] = self.sessions;
        println!(
            "{} s: {} operations ({}); rounds: {}; {attached} sessions attached, {refused} refused, {killed} killed; {} counts compared",
            begin.elapsed().as_secs(),
            self.operations.values().sum::<u64>(),
            list(&self.operations),
            list(&self.rounds),
            self.counts,
        );
        println!(
            "{} crashes, {} wrong results, {} wrong counts, {} failures of the tool, {} times memory stayed, {} programs not \
             started; skipped rounds: {}",
            failures(Wrong::Crash),
            failures(Wrong::Result),
            failures(Wrong::Count),
            failures(Wrong::Tool),
            failures(Wrong::Left),
            failures(Wrong::Start),
            self.skipped.values().sum::<u64>(),
        );
    }
}

/// Goes on until the time is over. True if nothing has failed.
pub fn rack(wanted: &Wanted) -> Result<bool> {
    let begin = Instant::now();
    println!("seeds from {}; programs: {}", wanted.seed, names().join(", "));
    let next = AtomicU64::new(wanted.seed);
    let total = Mutex::new(Total::default());
    std::thread::scope(|scope| {
        for _ in 0..wanted.jobs {
            scope.spawn(|| {
                while begin.elapsed() < wanted.limit {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed.wrapping_sub(wanted.seed) >= wanted.rounds {
                        break;
                    }
                    let done = round(seed, wanted.operations);
                    let Ok(mut total) = total.lock() else { break };
                    total.add(seed, wanted.operations, &done);
                    if (seed - wanted.seed) % 10 == 9 {
                        total.print(begin);
                    }
                }
            });
        }
    });
    let total = total.into_inner().map_err(|_| anyhow::anyhow!("a thread has panicked"))?;
    total.print(begin);
    if total.rounds.is_empty() {
        bail!("nothing was tested");
    }
    Ok(total.failures.is_empty())
}
