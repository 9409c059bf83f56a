//! Random programs with probes, compared with what they compute without.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sidestep_tests::random::{Checked, check};

/// What is asked for.
pub struct Wanted {
    programs: u64,
    seed: u64,
    limit: Option<Duration>,
    jobs: usize,
}

impl Wanted {
    /// Reads `--programs N`, `--seed S`, `--minutes M` and `--jobs J`.
    pub fn parse(words: &[&str]) -> Option<Wanted> {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let mut wanted = Wanted { programs: 100, seed: 1, limit: None, jobs };
        for pair in words.chunks(2) {
            let number: u64 = pair.get(1)?.parse().ok()?;
            match pair[0] {
                "--programs" => wanted.programs = number,
                "--seed" => wanted.seed = number,
                "--minutes" => wanted.limit = Some(Duration::from_secs(number * 60)),
                "--jobs" => wanted.jobs = usize::try_from(number).ok().filter(|jobs| *jobs > 0)?,
                _ => return None,
            }
        }
        Some(wanted)
    }
}

/// The sums of all programs.
#[derive(Default)]
struct Total {
    programs: u64,
    unbuilt: u64,
    different: u64,
    sites: usize,
    executed: usize,
    refused: usize,
    runs: usize,
    hits: u64,
    techniques: BTreeMap<String, u64>,
    alone: usize,
    trapped: usize,
    reasons: BTreeMap<String, u64>,
}

impl Total {
    fn add(&mut self, checked: &Checked) {
        self.programs += 1;
        self.different += u64::from(!checked.differences.is_empty());
        self.sites += checked.sites;
        self.executed += checked.executed;
        self.refused += checked.refused;
        self.runs += checked.runs;
        self.hits += checked.hits + checked.alone.hits;
        self.alone += checked.alone.alone;
        self.trapped += checked.alone.trapped;
        for (name, count) in checked.techniques.iter().chain(&checked.alone.techniques) {
            *self.techniques.entry(name.clone()).or_default() += count;
        }
        for (reason, count) in &checked.alone.refused {
            *self.reasons.entry(reason.clone()).or_default() += count;
        }
    }

    fn print(&self, begin: Instant) {
        let techniques: Vec<String> = self.techniques.iter().map(|(name, count)| format!("{count} {name}")).collect();
        println!(
            "{} programs, {} sites ({} executed), all at once ({} refused, {} runs) and one at a time ({}, of which {} \
             as traps, too), {} hits in {} s; {} programs differ, {} were not built\n{}",
            self.programs,
            self.sites,
            self.executed,
            self.refused,
            self.runs,
            self.alone,
            self.trapped,
            self.hits,
            begin.elapsed().as_secs(),
            self.different,
            self.unbuilt,
            techniques.join(", ")
        );
        for (reason, count) in &self.reasons {
            println!("{count} refused: {reason}");
        }
    }
}

/// Compares programs until there are enough or the time is over. True if none differs.
pub fn random(wanted: &Wanted) -> Result<bool> {
    let begin = Instant::now();
    let next = AtomicU64::new(wanted.seed);
    let total = Mutex::new(Total::default());
    std::thread::scope(|scope| {
        for _ in 0..wanted.jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_over = wanted.limit.is_some_and(|limit| begin.elapsed() > limit);
                    if seed >= wanted.seed.saturating_add(wanted.programs) || is_over {
                        break;
                    }
                    one(seed, &total, begin);
                }
            });
        }
    });
    let total = total.into_inner().map_err(|_| anyhow::anyhow!("a thread has panicked"))?;
    total.print(begin);
    if total.programs == 0 {
        bail!("nothing was compared");
    }
    Ok(total.different == 0 && total.unbuilt == 0)
}

/// Builds and compares one program. What differs stays in its folder.
fn one(seed: u64, total: &Mutex<Total>, begin: Instant) {
    let folder = folder(seed);
    let _ = std::fs::remove_dir_all(&folder);
    let checked = std::fs::create_dir_all(&folder)
        .context("target directory")
        .map_err(|e| e.to_string())
        .and_then(|()| check(&folder, seed));
    let Ok(mut total) = total.lock() else { return };
    match checked {
        Ok(checked) => {
            total.add(&checked);
            for difference in &checked.differences {
                println!("DIFFERENCE: seed {seed}, {}: {difference}", folder.display());
            }
            if checked.differences.is_empty() {
                let _ = std::fs::remove_dir_all(&folder);
            }
        }
        Err(error) => {
            total.unbuilt += 1;
            println!("NOT COMPARED: seed {seed}, {}: {error}", folder.display());
        }
    }
    if total.programs % 10 == 0 {
        total.print(begin);
    }
}

fn folder(seed: u64) -> PathBuf {
    sidestep_tests::build::target_dir().join("random").join(seed.to_string())
}
