//! `cargo xtask fuzz`: damaged inputs for everything that reads what others have written.
//!
//! The work is done by processes with limits on memory, which are watched: an input that makes one
//! end, or not go on, is found by the number that the process has written before it.
#![forbid(unsafe_code)]

mod mutate;
mod parts;
mod samples;
mod words;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use sidestep_sys::cpu_time;
use sidestep_tests::build::target_dir;
use sidestep_tests::random::Rng;

use mutate::mutate;
use parts::{PARTS, Part};

/// Address space of a process in bytes.
const MEMORY: u64 = 4 << 30;
/// CPU time that one input may take.
const CPU_TIME: Duration = Duration::from_secs(20);
/// How long one input may take by the clock: a machine with other work is slow, and a process that
/// waits for something uses no CPU time.
const PATIENCE: Duration = Duration::from_secs(600);
/// Inputs of one process.
const CHUNK: u64 = 50_000;
/// Failures of a part after which it ends.
const MOST: u64 = 20;

/// What is asked for.
struct Wanted {
    parts: Vec<&'static Part>,
    inputs: u64,
    seed: u64,
    /// The number of the first input of each part.
    from: u64,
}

impl Wanted {
    fn parse(words: &[String]) -> Option<Wanted> {
        let mut wanted = Wanted { parts: Vec::new(), inputs: 1_000_000, seed: 1, from: 0 };
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "--inputs" => wanted.inputs = words.next()?.parse().ok()?,
                "--seed" => wanted.seed = words.next()?.parse().ok()?,
                "--from" => wanted.from = words.next()?.parse().ok()?,
                name => wanted.parts.push(PARTS.iter().find(|part| part.name == name)?),
            }
        }
        if wanted.parts.is_empty() {
            wanted.parts = PARTS.iter().collect();
        }
        Some(wanted)
    }
}

/// The input of a number.
fn input(part: &Part, samples: &[mutate::Sample], seed: u64, number: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed.rotate_left(32) ^ number);
    mutate(&mut rng, samples, part.words)
}

/// Where a part leaves what it has found.
fn folder(part: &Part) -> PathBuf {
    target_dir().join("fuzz").join(part.name)
}

fn save(part: &Part, samples: &[mutate::Sample], seed: u64, number: u64, why: &str) {
    let file = folder(part).join(format!("{seed}-{number}"));
    let _ = std::fs::write(&file, input(part, samples, seed, number));
    println!(
        "FAILED: {}: {why}\n  again: cargo xtask fuzz {} --seed {seed} --from {number} --inputs 1\n  input: {}",
        part.name,
        part.name,
        file.display()
    );
}

/// Reads inputs; in a process of its own. Prints how many were good, and how many failed.
fn work(part: &Part, seed: u64, from: u64, count: u64, progress: &Path) -> std::io::Result<()> {
    let samples = (part.samples)();
    assert!(!samples.is_empty(), "{}: no samples", part.name);
    let progress = File::create(progress)?;
    let (mut good, mut failed) = (0, 0);
    // Messages of panics are in what is said of each.
    std::panic::set_hook(Box::new(|_| ()));
    for number in from..from + count {
        progress.write_all_at(&number.to_le_bytes(), 0)?;
        let bytes = input(part, &samples, seed, number);
        match catch_unwind(AssertUnwindSafe(|| (part.read)(&bytes))) {
            Ok(taken) => good += u64::from(taken),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                save(part, &samples, seed, number, &format!("panic: {}", text.unwrap_or_default()));
                failed += 1;
            }
        }
    }
    println!("DONE {good} {failed}");
    Ok(())
}

/// How a part went.
#[derive(Default)]
struct Sum {
    inputs: u64,
    good: u64,
    failed: u64,
}

/// Lets processes read so many inputs of a part.
fn run(part: &Part, wanted: &Wanted, inputs: u64) -> std::io::Result<Sum> {
    std::fs::create_dir_all(folder(part))?;
    let progress = folder(part).join("progress");
    let (mut sum, mut from, end) = (Sum::default(), wanted.from, wanted.from + inputs);
    while from < end && sum.failed < MOST {
        let count = CHUNK.min(end - from);
        let _ = std::fs::remove_file(&progress);
        let mut command = Command::new("prlimit");
        command.arg(format!("--as={MEMORY}")).arg(std::env::current_exe()?).arg("work").arg(part.name);
        command.args([wanted.seed, from, count].map(|number| number.to_string())).arg(&progress);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut pipe = child.stdout.take();
        let output = std::thread::spawn(move || {
            let mut text = String::new();
            pipe.as_mut().map(|pipe| pipe.read_to_string(&mut text));
            text
        });
        let at = || {
            let mut word = [0; 8];
            File::open(&progress).ok()?.read_exact_at(&mut word, 0).ok()?;
            Some(u64::from_le_bytes(word))
        };
        let (mut last, mut since) = (at(), (Instant::now(), Duration::ZERO));
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            // Before the first input samples are compiled, which has limits of its own.
            let (now, used) = (at(), cpu_time(child.id() as i32).unwrap_or_default());
            if now != last || now.is_none() {
                (last, since) = (now, (Instant::now(), used));
            } else if used.saturating_sub(since.1) > CPU_TIME || since.0.elapsed() > PATIENCE {
                child.kill()?;
                child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let text = output.join().unwrap_or_default();
        print!("{}", text.split("DONE").next().unwrap_or_default());
        std::io::stdout().flush()?;
        let done = text.lines().find_map(|line| line.strip_prefix("DONE ")?.split_once(' '));
        match done.and_then(|(good, failed)| Some((good.parse::<u64>().ok()?, failed.parse::<u64>().ok()?))) {
            Some((good, failed)) => {
                (sum.good, sum.failed, sum.inputs) = (sum.good + good, sum.failed + failed, sum.inputs + count);
                from += count;
            }
            None => {
                let Some(number) = at() else {
                    return Err(std::io::Error::other(format!(
                        "{}: the process ended before its first input",
                        part.name
                    )));
                };
                let why = status.map_or_else(
                    || format!("no end after {CPU_TIME:?} of CPU time or {PATIENCE:?}"),
                    |status| status.to_string(),
                );
                save(part, &(part.samples)(), wanted.seed, number, &why);
                (sum.failed, sum.inputs) = (sum.failed + 1, sum.inputs + number + 1 - from);
                from = number + 1;
            }
        }
    }
    Ok(sum)
}

/// Reads the inputs of all parts that are wanted. True if none fails.
fn fuzz(wanted: &Wanted) -> std::io::Result<bool> {
    let (begin, shares) = (Instant::now(), wanted.parts.iter().map(|part| part.share).sum::<u64>());
    let mut total = Sum::default();
    for part in &wanted.parts {
        let start = Instant::now();
        let sum = run(part, wanted, (wanted.inputs * part.share / shares).max(1))?;
        println!(
            "{:8} {:9} inputs, {:9} taken for good, {} failed, {} s",
            part.name,
            sum.inputs,
            sum.good,
            sum.failed,
            start.elapsed().as_secs()
        );
        total.inputs += sum.inputs;
        total.failed += sum.failed;
    }
    println!("{} inputs, {} failed, {} s, seed {}", total.inputs, total.failed, begin.elapsed().as_secs(), wanted.seed);
    Ok(total.failed == 0)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [work_word, name, seed, from, count, progress] = &words[..] {
        if work_word == "work" {
            let part = PARTS.iter().find(|part| part.name == name);
            let number = |text: &String| text.parse::<u64>().ok();
            let (Some(part), Some(seed), Some(from), Some(count)) = (part, number(seed), number(from), number(count))
            else {
                return ExitCode::from(2);
            };
            return if work(part, seed, from, count, Path::new(progress)).is_ok() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
        }
    }
    let Some(wanted) = Wanted::parse(&words) else {
        let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        eprintln!(
            "usage: cargo xtask fuzz [PART]... [--inputs N] [--seed S] [--from NUMBER]\nparts: {}",
            names.join(" ")
        );
        return ExitCode::from(2);
    };
    match fuzz(&wanted) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many inputs of the fast parts, and a hundredth of the slow ones.
    const INPUTS: u64 = 20_000;

    #[test]
    fn damaged_inputs_are_refused_or_read() {
        for part in PARTS {
            let samples = (part.samples)();
            let inputs = if part.share < 4 { INPUTS / 100 } else { INPUTS };
            let (mut good, mut bad) = (0, 0);
            for number in 0..inputs {
                let bytes = input(part, &samples, 7, number);
                if (part.read)(&bytes) { good += 1 } else { bad += 1 }
            }
            // Both happen, or nothing was tried.
            assert!(good > 0 && bad > 0, "{}: {good} of {inputs} are good", part.name);
        }
    }
}
