//! The rack: programs that check themselves, under load, and everything that Sidestep can do to
//! them, at random.
//!
//! A number makes a *round*: a program and operations on it, drawn from the number, the same at
//! every run. What a round has done is written to a file while it goes on, which stays if it fails.

mod check;
mod controller;
mod operations;
mod patience;
mod servers;
mod targets;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::build::target_dir;
use crate::process::{LIMIT, Running};
use crate::random::Rng;
use crate::tool::sidestep;
use operations::{OPERATIONS, Operation};
use targets::{KINDS, Target};

/// Why a round has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    /// The program ended, or does not answer.
    Crash,
    /// The program computed something else, or is not what it was.
    Result,
    /// Memory of a session stays behind its end.
    Left,
    /// A count is not what the program has done.
    Count,
    /// The tool panicked, was killed by a signal, or did not end.
    Tool,
    /// The program or its client could not be started.
    Start,
}

/// A failure, and what was seen.
#[derive(Debug)]
pub struct Failure {
    /// Its kind.
    pub wrong: Wrong,
    /// For people.
    pub what: String,
}

impl Failure {
    fn new(wrong: Wrong, what: impl Into<String>) -> Failure {
        Failure { wrong, what: what.into() }
    }
}

/// What a round has done.
#[derive(Debug, Default)]
pub struct Round {
    /// The name of the program.
    pub target: &'static str,
    /// Why the program is not here: the round did nothing.
    pub missing: Option<String>,
    /// Operations by name: how many were done.
    pub operations: BTreeMap<&'static str, u64>,
    /// Sessions of the tool: attached, refused in one line, killed.
    pub sessions: [u64; 3],
    /// Counts that were compared with what the program had done.
    pub counts: u64,
    /// What went wrong. The round ends there, unless it was memory that stays.
    pub failures: Vec<Failure>,
    /// Where everything is written, if it failed.
    pub evidence: PathBuf,
}

/// What operations work with.
struct Scene {
    target: Box<dyn Target>,
    rng: Rng,
    round: Round,
    log: File,
}

impl Scene {
    /// Writes a line into the file of the round.
    fn log(&mut self, text: &str) {
        // A full disk is not what is tested.
        let _ = writeln!(self.log, "{text}");
    }

    /// Lets the program work; gives the calls of the function whose calls are known.
    fn work(&mut self, amount: u64) -> Result<u64, Failure> {
        self.target.work(amount)
    }
}

/// Names of the programs, in the order of the seeds: the seed modulo their number says which.
pub fn names() -> Vec<&'static str> {
    KINDS.iter().map(|kind| kind.name).collect()
}

/// Does the round of a seed, of so many operations.
pub fn round(seed: u64, operations: u64) -> Round {
    let kind = &KINDS[(seed % KINDS.len() as u64) as usize];
    let dir = target_dir().join("rack").join(seed.to_string());
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the target directory is writable");
    let mut round = Round { target: kind.name, evidence: dir.clone(), ..Round::default() };
    if let Some(missing) = (kind.missing)() {
        round.missing = Some(missing);
        return round;
    }
    let log = File::create(dir.join("log")).expect("the target directory is writable");
    let target = match caught(|| (kind.start)(&dir)) {
        Ok(target) => target,
        Err(failure) => {
            round.failures.push(Failure::new(Wrong::Start, failure.what));
            return round;
        }
    };
    let mut scene = Scene { target, rng: Rng::new(seed), round, log };
    let done = caught(|| run(&mut scene, operations));
    let mut round = std::mem::take(&mut scene.round);
    round.failures.extend(done.err());
    match round.failures.last() {
        Some(failure) => keep_evidence(&mut scene, &dir, failure),
        None => drop(std::fs::remove_dir_all(&dir)),
    }
    round
}

/// What fails inside, by an error or by a panic of the harness.
fn caught<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Failure::new(Wrong::Crash, text.unwrap_or_else(|| "a panic without a text".to_owned())))
    })
}

fn run(scene: &mut Scene, operations: u64) -> Result<(), Failure> {
    scene.log(&format!("process {}", scene.target.pid()));
    scene.work(3)?;
    let code = check::Code::of(scene.target.pid());
    for number in 0..operations {
        let operation: &Operation = &OPERATIONS[scene.rng.below(OPERATIONS.len())];
        scene.log(&format!("--- {number}: {}", operation.name));
        (operation.run)(scene)?;
        scene.work(1)?;
        *scene.round.operations.entry(operation.name).or_default() += 1;
    }
    // One session takes away what controllers left that were killed.
    operations::count_alone(scene)?;
    check::left(scene.target.pid(), &code)?;
    scene.work(2)?;
    scene.target.finish()
}

/// What a person needs to know about a failure, beside what was logged.
fn keep_evidence(scene: &mut Scene, dir: &Path, failure: &Failure) {
    let mut text = format!("{:?}: {}\n", failure.wrong, failure.what);
    let pid = scene.target.pid();
    for file in ["status", "maps", "stat", "limits"] {
        let contents = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_else(|e| e.to_string());
        let _ = writeln!(text, "== {file}\n{contents}");
    }
    // What the tool says of what is there.
    for command in ["status", "detach"] {
        let said = Running::start(&mut sidestep(&[command, "-p", &pid.to_string()])).end(LIMIT);
        let _ = writeln!(text, "== sidestep {command}\n{}", said.unwrap_or_else(|unfinished| unfinished));
    }
    let _ = std::fs::write(dir.join("failure"), text);
    scene.log(&format!("FAILED: {:?}: {}", failure.wrong, failure.what));
}
