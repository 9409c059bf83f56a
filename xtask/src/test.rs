//! Everything that must hold before a change is good.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{arm64, dependencies, setup};

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
}

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
    tally.step("release build", cargo().args(["build", "--release", "--locked", "--package", "sidestep-cli"]));
    let short = ["build", "--release", "--locked", "--package", "sidestep-cli", "--target", setup::TARGET_32];
    tally.step("release build for 32-bit programs", cargo().args(short));
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
    tally.arm64();
    if !quick {
        tally.oldest_compiler();
    }
    for broken in &tally.broken {
        println!("FAILED: {broken}");
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(tally.failed == 0)
}

impl Tally {
    /// A step that is not a set of tests: counts as one failure if it fails, and not otherwise.
    fn step(&mut self, name: &str, command: &mut Command) {
        println!("=== {name}");
        if !command.status().is_ok_and(|status| status.success()) {
            self.fail(name.to_owned());
        }
    }

    /// The same, of something that is no command.
    fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        println!("=== {name}");
        if let Err(error) = check() {
            self.fail(format!("{name}: {error:#}"));
        }
    }

    fn fail(&mut self, what: String) {
        self.failed += 1;
        self.broken.push(what);
    }

    /// Runs test runners and adds up their `test result:` lines.
    fn tests(&mut self, command: &mut Command) -> Result<()> {
        println!("=== tests");
        let mut child = command
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
            } else if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
                self.broken.push(format!("test {name}"));
            }
        }
        let status = child.wait().context("cargo test")?;
        died.join().unwrap_or_default().into_iter().for_each(|runner| self.fail(runner));
        if !status.success() && self.failed == before {
            // It did not compile.
            self.fail("cargo test".to_owned());
        }
        Ok(())
    }

    /// The scenario tests in the arm64 guest.
    fn arm64(&mut self) {
        println!("=== tests in the arm64 guest");
        match arm64::run(&arm64::Wanted::tested()) {
            Ok(results) => {
                self.passed += results.passed;
                for name in results.failed {
                    self.fail(format!("test {name} on arm64"));
                }
            }
            Err(error) => self.fail(format!("tests in the arm64 guest: {error:#}")),
        }
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

/// Passed and failed of a line `test result: ok. 3 passed; 0 failed; …`.
fn result(line: &str) -> Option<(u64, u64)> {
    let rest = line.trim_start().strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |what: &str| rest.split("; ").find_map(|part| part.strip_suffix(what)?.trim().parse().ok());
    Some((number(" passed")?, number(" failed")?))
}

/// What cargo says of a test runner that a signal ended, so that it has no result.
fn dead(line: &str) -> Option<String> {
    let (program, signal) = line.split_once("process didn't exit successfully: `")?.1.split_once("` (signal: ")?;
    let program = program.split(' ').next().unwrap_or_default();
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
    use super::{dead, result};

    #[test]
    fn reads_result_lines() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(result(line), Some((12, 3)));
        assert_eq!(result("test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"), Some((0, 0)));
        assert_eq!(result("test scenario::x ... ok"), None);
    }

    #[test]
    fn a_test_runner_that_died_is_named() {
        let line =
            "  process didn't exit successfully: `/x/deps/own-42 a` (signal: 11, SIGSEGV: invalid memory reference)";
        let said = "the test runner /x/deps/own-42 died: signal 11, SIGSEGV: invalid memory reference";
        assert_eq!(dead(line).as_deref(), Some(said));
        assert_eq!(dead("  process didn't exit successfully: `/x/deps/own-42` (exit status: 101)"), None);
    }
}
