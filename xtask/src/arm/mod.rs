//! The scenario tests in the guests: `cargo xtask arm64`, `cargo xtask arm32`.

mod arm32;
mod arm64;
mod left_out;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sidestep_tests::build::{self, Cross};

use crate::guest::{self, Guest};
use crate::test::{cargo, checkout, release_binary};
pub use arm32::ARM32;
pub use arm64::ARM64;
use left_out::LeftOut;

/// What differs between the two.
pub struct Architecture {
    pub name: &'static str,
    guest: &'static guest::Architecture,
    /// MiB of the guest.
    memory: u32,
    /// What Rust code is compiled for.
    target: &'static str,
    /// How the programs of `tests/targets` are built.
    programs: &'static Cross,
    /// The program of qemu-user, which asks the tests for their names.
    emulator: &'static str,
    /// The variable that names a tool to test.
    tool: &'static str,
    /// Parts of the names of tests that `cargo xtask test` runs.
    tested: &'static [&'static str],
    /// Besides what is left out on both.
    left_out: LeftOut,
}

/// Tests at a time: two processors, and tests that wait.
const JOBS: u32 = 3;
/// Seconds for one test.
const LIMIT: u32 = 600;

/// What is asked for.
#[derive(Default)]
pub struct Wanted {
    /// Parts of names of tests; all tests if there are none.
    filters: Vec<String>,
    /// Also those that are left out.
    all: bool,
}

impl Wanted {
    /// What `cargo xtask test` asks for.
    pub fn tested(architecture: &Architecture) -> Wanted {
        Wanted { filters: architecture.tested.iter().map(|module| (*module).to_owned()).collect(), all: false }
    }

    /// Reads `--all` and the filters.
    pub fn parse(words: &[&str]) -> Option<Wanted> {
        let (flags, filters): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with('-'));
        let all = flags == ["--all"];
        (all || flags.is_empty()).then(|| Wanted { filters: filters.into_iter().map(str::to_owned).collect(), all })
    }

    fn has(&self, test: &str) -> bool {
        self.filters.is_empty()
            || self.filters.iter().any(|filter| match filter.ends_with("::") {
                true => test.starts_with(&**filter),
                false => test.contains(&**filter),
            })
    }
}

/// What became of the tests.
#[derive(Default)]
pub struct Results {
    pub passed: u64,
    /// The names of those that failed.
    pub failed: Vec<String>,
    /// Tests that found something missing.
    pub skipped: u64,
    /// Tests that are not for this architecture.
    pub left_out: u64,
}

/// Builds everything, boots the guest and runs the tests in it. True if nothing failed.
pub fn test(architecture: &Architecture, wanted: &Wanted) -> Result<bool> {
    let results = run(architecture, wanted)?;
    println!("{} passed, {} failed", results.passed, results.failed.len());
    Ok(results.failed.is_empty())
}

/// The same, for a sum.
pub fn run(architecture: &Architecture, wanted: &Wanted) -> Result<Results> {
    let folder = build::target_dir().join(architecture.name);
    let targets = folder.join("targets");
    std::fs::create_dir_all(&targets).with_context(|| folder.display().to_string())?;
    let tool = match std::env::var_os(architecture.tool) {
        Some(tool) => tool.into(),
        None => architecture.tool()?,
    };
    architecture.strip(&tool, &folder.join("sidestep"))?;
    let tests = folder.join("scenario");
    architecture.strip(&architecture.test_program()?, &tests)?;
    build::build_for(architecture.programs, &targets);

    let mut results = Results::default();
    let mut names = architecture.list(&tests)?;
    architecture.check_left_out(&names)?;
    names.retain(|name| wanted.has(name));
    let all = names.len();
    names.retain(|name| wanted.all || !architecture.leaves_out(name));
    results.left_out = (all - names.len()) as u64;
    let count = names.len();
    ensure!(count > 0, "no test for {} has such a name", architecture.name);
    std::fs::write(folder.join("names"), names.join("\n") + "\n")?;
    std::fs::write(folder.join("run.sh"), include_str!("run.sh"))?;

    let mut added = vec![(targets, PathBuf::from("/guest/targets")), (tests, "/guest/target/debug/scenario".into())];
    added.extend(["sidestep", "names", "run.sh"].map(|name| (folder.join(name), Path::new("/guest").join(name))));
    // The tests find them where they were compiled.
    let checkout = checkout().canonicalize()?;
    added.extend(["tests/specs", "tests/targets"].map(|name| (checkout.join(name), checkout.join(name))));
    let guest = Guest {
        architecture: architecture.guest,
        cpus: 2,
        memory: architecture.memory,
        timeout: Duration::from_secs(30 * 60),
        added,
        parts: vec!["programs", "tests"],
        command: format!(
            "export SIDESTEP_ALLOW_SKIP=1 SIDESTEP_BIN=/guest/sidestep {}=/guest/targets; mkdir -p /tmp/tests /guest/target/test-targets; \
             xargs -n 1 -P {JOBS} sh /guest/run.sh {LIMIT} < /guest/names",
            build::BUILT
        ),
    };
    let begin = Instant::now();
    let mut lines = Lines { results: &mut results, out: io::stdout(), rest: Vec::new() };
    let ended = guest.run(&mut lines)?;
    println!(
        "{}: {} passed, {} failed, {} skipped, {} left out, in {} s",
        architecture.name,
        results.passed,
        results.failed.len(),
        results.skipped,
        results.left_out,
        begin.elapsed().as_secs()
    );
    ensure!(
        ended.status == 0 && results.passed + results.skipped + results.failed.len() as u64 == count as u64,
        "not all of {count} tests have run: status {}",
        ended.status
    );
    Ok(results)
}

impl Architecture {
    /// The release build of the tool.
    fn tool(&self) -> Result<PathBuf> {
        let mut command = cargo();
        command.args(["build", "--release", "--locked", "--package", "sidestep-cli", "--target", self.target]);
        ensure!(command.status()?.success(), "the tool does not build for {}", self.name);
        Ok(release_binary(Some(self.target)))
    }

    /// The program with the scenario tests. The tool does the work: the tests are compiled in half
    /// the time without optimization.
    fn test_program(&self) -> Result<PathBuf> {
        let mut command = cargo();
        for setting in ["opt-level=0", "debug=false", "package.iced-x86.opt-level=0"] {
            command.args(["--config", &format!("profile.dev.{setting}")]);
        }
        command.args(["test", "--no-run", "--locked", "--package", "sidestep-tests", "--test", "scenario"]);
        let output = command.args(["--target", self.target, "--message-format", "json-render-diagnostics"]);
        let output = output.stderr(std::process::Stdio::inherit()).output()?;
        ensure!(output.status.success(), "the tests do not build for {}", self.name);
        let text = String::from_utf8_lossy(&output.stdout);
        let path = text.rsplit_once("\"executable\":\"").and_then(|(_, rest)| rest.split_once('"'));
        Ok(path.context("cargo names no test program")?.0.into())
    }

    fn strip(&self, from: &Path, to: &Path) -> Result<()> {
        let strip = format!("{}-strip", self.programs.triplet);
        let status = Command::new(&strip).arg("-o").arg(to).arg(from).status();
        ensure!(status.context(strip)?.success(), "strip {}", from.display());
        Ok(())
    }

    /// The names of all tests.
    fn list(&self, tests: &Path) -> Result<Vec<String>> {
        let output = Command::new(self.emulator).arg(tests).args(["--list", "--format", "terse"]).output();
        let output = output.with_context(|| format!("{}: cargo xtask setup installs it", self.emulator))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let names: Vec<String> =
            text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
        ensure!(!names.is_empty(), "{} lists no tests: {}", tests.display(), String::from_utf8_lossy(&output.stderr));
        Ok(names)
    }
}

/// Passes on what the guest prints, and counts.
struct Lines<'a, W> {
    results: &'a mut Results,
    out: W,
    /// A line that is not complete.
    rest: Vec<u8>,
}

impl<W: Write> Write for Lines<'_, W> {
    fn write(&mut self, chunk: &[u8]) -> io::Result<usize> {
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if self.rest.ends_with(b"\n") {
                let line = String::from_utf8_lossy(&self.rest).into_owned();
                self.rest.clear();
                self.results.add(line.trim_end());
            }
        }
        self.out.write_all(chunk)?;
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Results {
    /// Takes a line of `run.sh`.
    fn add(&mut self, line: &str) {
        let Some((name, result)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) else { return };
        match result.split([' ', ':']).next() {
            Some("ok") => self.passed += 1,
            Some("FAILED") => self.failed.push(name.to_owned()),
            Some("skipped") => self.skipped += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{Lines, Results};

    #[test]
    fn results_are_counted() {
        let mut results = Results::default();
        let mut printed = Vec::new();
        let mut lines = Lines { results: &mut results, out: &mut printed, rest: Vec::new() };
        let text =
            "test a::b ... ok (1 s)\ntest a::c ... FAILED (2 s)\n    test x ... ok\ntest d ... skipped: no gdb (0 s)\n";
        for chunk in text.as_bytes().chunks(7) {
            lines.write_all(chunk).unwrap();
        }
        assert_eq!(printed, text.as_bytes());
        assert_eq!((results.passed, results.skipped), (1, 1));
        assert_eq!(results.failed, ["a::c"]);
    }
}
