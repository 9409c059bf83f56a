//! Everything that must hold before a change is good.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::arm::{self, Architecture, Wanted};
use crate::{dependencies, setup};

/// For 32-bit programs that load libraries, which a 64-bit system has where the cross compiler has
/// them.
const DYNAMIC_32: &str = "-C target-feature=-crt-static \
    -C link-arg=-Wl,--dynamic-linker=/usr/i686-linux-gnu/lib/ld-linux.so.2 \
    -C link-arg=-Wl,--disable-new-dtags,-rpath,/usr/i686-linux-gnu/lib";

/// What all steps and test runners said.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    broken: Vec<String>,
    /// Names of tests, with the seconds that they took.
    times: Vec<(f64, String)>,
}

/// How many of the slowest tests are named at the end.
const SLOWEST: usize = 10;

/// Runs all checks. True if nothing failed. The last line is `N passed, N failed`.
pub fn test(quick: bool) -> Result<bool> {
    let mut tally = Tally::default();
    if !quick {
        if let Err(error) = setup::setup() {
            // The tests that miss something will fail, and say what.
            eprintln!("SETUP FAILED: {error:#}");
        }
    }
    tally.step("format", cargo().args(["fmt", "--all", "--check"]));
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    tally.step("lints", cargo().args(clippy));
    tally.check("licences and versions of dependencies", dependencies::check);
    // The program would be written to the folder of the library, whose name it has.
    let doc = ["doc", "--workspace", "--exclude", "sidestep-cli", "--no-deps", "--locked"];
    tally.step("documentation", cargo().args(doc).env("RUSTDOCFLAGS", "-D warnings"));
    tally.check("the book", book);
    tally.release_builds();
    // With the instruction set of the tests (`plan/tests/toy.rs`).
    tally.tests(cargo().args([
        "test",
        "--workspace",
        "--features",
        "sidestep-plan/toy",
        "--locked",
        "--no-fail-fast",
    ]))?;
    // What depends on the width of words in the tool itself.
    let short = ["--release", "--locked", "--package", "sidestep-sys", "--target", setup::TARGET_32];
    tally.step("examples for 32-bit tests", cargo().args(["build", "--examples"]).args(short));
    tally.tests(cargo().args(["test", "--no-fail-fast", "--lib", "--test", "live"]).args(short))?;
    // Handlers in the target.
    let short = ["--release", "--locked", "--package", "sidestep", "--target", setup::TARGET_32];
    tally.tests(cargo().args(["test", "--no-fail-fast", "--test", "own"]).args(short))?;
    // The library with programs in C, which want a shared one: so all of it is dynamic here.
    let dynamic = |command: &str| {
        let mut cargo = cargo();
        cargo.arg(command).args(short).arg("--target-dir").arg(target_dir().join("dynamic-32"));
        cargo.env("RUSTFLAGS", DYNAMIC_32);
        cargo
    };
    tally.step("examples of the library for 32-bit programs", dynamic("build").arg("--examples"));
    let tests = ["--no-fail-fast", "--lib", "--test", "examples", "--test", "programs"];
    tally.tests(dynamic("test").args(tests))?;
    tally.guest(&arm::ARM64);
    tally.guest(&arm::ARM32);
    if !quick {
        tally.oldest_compiler();
    }
    Ok(tally.end())
}

/// Runs the tests of one crate, or the scenario tests whose names contain the topic.
pub fn only(topic: &str) -> Result<bool> {
    let mut tally = Tally::default();
    let mut tests = cargo();
    tests.args(["test", "--locked", "--no-fail-fast", "--package"]);
    if !topic.is_empty() && checkout().join("crates").join(topic).is_dir() {
        let package = if topic == "sidestep" { topic.to_owned() } else { format!("sidestep-{topic}") };
        tests.arg(package);
        if topic == "plan" {
            tests.args(["--features", "sidestep-plan/toy"]);
        }
    } else {
        tally.release_builds();
        tests.args(["sidestep-tests", "--test", "scenario", "--", topic]);
    }
    tally.tests(&mut tests)?;
    if tally.passed + tally.failed == 0 {
        tally.fail(format!("no crate has the name '{topic}', and no scenario test has it in its name"));
    }
    Ok(tally.end())
}

impl Tally {
    /// The tool that the scenario tests try, for 64-bit and for 32-bit programs.
    fn release_builds(&mut self) {
        let build = ["build", "--release", "--locked", "--package", "sidestep-cli"];
        self.step("release build", cargo().args(build));
        self.step("release build for 32-bit programs", cargo().args(build).args(["--target", setup::TARGET_32]));
    }

    /// Says what was slow and what failed. The last line is `N passed, N failed`. True if nothing
    /// failed.
    fn end(mut self) -> bool {
        self.times.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (seconds, name) in self.times.iter().take(SLOWEST) {
            println!("slow: {seconds:.0} s {name}");
        }
        for broken in &self.broken {
            println!("FAILED: {broken}");
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        self.failed == 0
    }

    /// A step that is not a set of tests: counts as one failure if it fails, and not otherwise.
    fn step(&mut self, name: &str, command: &mut Command) {
        let begun = begin(name);
        if !command.status().is_ok_and(|status| status.success()) {
            self.fail(name.to_owned());
        }
        end(begun);
    }

    /// The same, of something that is no command.
    fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        let begun = begin(name);
        if let Err(error) = check() {
            self.fail(format!("{name}: {error:#}"));
        }
        end(begun);
    }

    fn fail(&mut self, what: String) {
        self.failed += 1;
        self.broken.push(what);
    }

    /// Runs test runners and adds up their `test result:` lines.
    fn tests(&mut self, command: &mut Command) -> Result<()> {
        let begun = begin("tests");
        let mut child = command
            .envs(timer())
            .env("SIDESTEP_BIN", release_binary(None))
            .env("SIDESTEP_BIN_32", release_binary(Some(setup::TARGET_32)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cargo")?;
        let before = self.failed;
        let stderr = child.stderr.take().context("no pipe")?;
        let died = std::thread::spawn(move || {
            let lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines.inspect(|line| eprintln!("{line}")).filter_map(|line| dead(&line)).collect::<Vec<String>>()
        });
        let stdout = child.stdout.take().context("no pipe")?;
        for line in BufReader::new(stdout).lines() {
            let line = line.context("output of cargo test")?;
            println!("{line}");
            if let Some((passed, failed)) = result(&line) {
                self.passed += passed;
                self.failed += failed;
            } else if let Some((name, outcome)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... ")) {
                if outcome.starts_with("FAILED") {
                    self.broken.push(format!("test {name}"));
                }
                self.times.extend(seconds(outcome).map(|seconds| (seconds, name.to_owned())));
            }
        }
        let status = child.wait().context("cargo test")?;
        died.join().unwrap_or_default().into_iter().for_each(|runner| self.fail(runner));
        if !status.success() && self.failed == before {
            // It did not compile.
            self.fail("cargo test".to_owned());
        }
        end(begun);
        Ok(())
    }

    /// The scenario tests in a guest.
    fn guest(&mut self, architecture: &Architecture) {
        let name = architecture.name;
        let begun = begin(&format!("tests in the {name} guest"));
        match arm::run(architecture, &Wanted::tested(architecture)) {
            Ok(results) => {
                self.passed += results.passed;
                for test in results.failed {
                    self.fail(format!("test {test} on {name}"));
                }
            }
            Err(error) => self.fail(format!("tests in the {name} guest: {error:#}")),
        }
        end(begun);
    }

    /// The workspace builds with the oldest compiler that Cargo.toml promises.
    fn oldest_compiler(&mut self) {
        match setup::oldest_rust() {
            Ok(bin) => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                let path = std::env::join_paths([bin.clone()].into_iter().chain(std::env::split_paths(&path)));
                let mut command = Command::new(bin.join("cargo"));
                command.args(["check", "--workspace", "--all-targets", "--locked"]).arg("--target-dir");
                command.arg(target_dir().join("rust-1.85")).current_dir(checkout());
                // What rustup and cargo set for their own children points to the other compiler.
                for name in ["RUSTC", "RUSTDOC", "CARGO", "RUSTUP_TOOLCHAIN", "RUSTC_WRAPPER"] {
                    command.env_remove(name);
                }
                self.step("check with Rust 1.85", command.env("PATH", path.unwrap_or_default()));
            }
            Err(error) => eprintln!("SKIPPED, NOT CHECKED: Rust 1.85: {error:#}"),
        }
    }
}

/// The guide as a book, in `target/book`. Its links are checked by `tests/documents`.
fn book() -> Result<()> {
    let mut command = Command::new(setup::mdbook()?);
    let status = command.args(["build", "docs/guide", "--dest-dir"]).arg(target_dir().join("book"));
    let output = status.current_dir(checkout()).output().context("mdbook")?;
    let said = String::from_utf8_lossy(&output.stderr);
    // A warning is a mistake in the book.
    let is_clean = output.status.success() && !said.contains("[WARN]") && !said.contains("[ERROR]");
    anyhow::ensure!(is_clean, "{said}");
    Ok(())
}

/// Says which step begins.
fn begin(step: &str) -> Instant {
    println!("=== {step}");
    Instant::now()
}

/// Says how long a step took.
fn end(begun: Instant) {
    println!("(took {} s)", begun.elapsed().as_secs());
}

/// What has cargo start test runners by [`timed`].
fn timer() -> Vec<(&'static str, String)> {
    let own = std::env::current_exe().ok().and_then(|path| path.into_os_string().into_string().ok());
    let Some(own) = own else { return Vec::new() };
    // What the kernel says of a program that was built again meanwhile.
    let own = own.strip_suffix(" (deleted)").unwrap_or(&own);
    // Cargo splits it at blanks.
    if own.contains(char::is_whitespace) {
        return Vec::new();
    }
    let variables = ["CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "CARGO_TARGET_I686_UNKNOWN_LINUX_GNU_RUNNER"];
    variables.map(|variable| (variable, format!("{own} timed"))).into()
}

/// Becomes a test runner that says how long each test takes. That of a stable compiler does so only
/// if it is told that it is none.
pub fn timed(command: &[&str]) -> Result<bool> {
    let (program, args) = command.split_first().context("no test runner")?;
    let mut runner = Command::new(program);
    runner.args(args);
    // Examples in documents are other programs.
    if Path::new(program).parent().is_some_and(|folder| folder.ends_with("deps")) {
        runner.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
    }
    Err(runner.exec()).with_context(|| (*program).to_owned())
}

/// The seconds behind the outcome of a test: `ok <1.234s>`.
fn seconds(outcome: &str) -> Option<f64> {
    outcome.split_once('<')?.1.strip_suffix("s>")?.parse().ok()
}

/// Passed and failed of a line `test result: ok. 3 passed; 0 failed; …`.
fn result(line: &str) -> Option<(u64, u64)> {
    let rest = line.trim_start().strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |what: &str| rest.split("; ").find_map(|part| part.strip_suffix(what)?.trim().parse().ok());
    Some((number(" passed")?, number(" failed")?))
}

/// What cargo says of a test runner that a signal ended, so that it has no result.
fn dead(line: &str) -> Option<String> {
    let (program, signal) = line.split_once("process didn't exit successfully: `")?.1.split_once("` (signal: ")?;
    // Also of `xtask timed PROGRAM`.
    let program = program.split(' ').find(|word| word.contains("/deps/")).unwrap_or(program);
    Some(format!("the test runner {program} died: signal {}", signal.trim_end_matches(')')))
}

/// Cargo in the checkout.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(checkout());
    command
}

/// The checkout.
pub fn checkout() -> &'static Path {
    sidestep_tests::build::checkout()
}

fn target_dir() -> PathBuf {
    sidestep_tests::build::target_dir()
}

/// The `sidestep` of the release build, for the machine itself or for another target.
pub fn release_binary(target: Option<&str>) -> PathBuf {
    target_dir().join(target.unwrap_or_default()).join("release/sidestep")
}

#[cfg(test)]
mod tests {
    use super::{dead, result, seconds};

    #[test]
    fn reads_result_lines() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(result(line), Some((12, 3)));
        assert_eq!(result("test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"), Some((0, 0)));
        assert_eq!(result("test scenario::x ... ok"), None);
    }

    #[test]
    fn times_stand_behind_outcomes() {
        assert_eq!(seconds("ok <1.25s>"), Some(1.25));
        assert_eq!(seconds("FAILED <61.000s>"), Some(61.0));
        assert_eq!(seconds("ok"), None);
    }

    #[test]
    fn a_test_runner_that_died_is_named() {
        let line =
            "  process didn't exit successfully: `/x/deps/own-42 a` (signal: 11, SIGSEGV: invalid memory reference)";
        let said = "the test runner /x/deps/own-42 died: signal 11, SIGSEGV: invalid memory reference";
        assert_eq!(dead(line).as_deref(), Some(said));
        let timed = line.replace("`/x", "`/x/xtask timed /x");
        assert_eq!(dead(&timed).as_deref(), Some(said));
        assert_eq!(dead("  process didn't exit successfully: `/x/deps/own-42` (exit status: 101)"), None);
    }
}
