//! A program that registers and unregisters all the time does not grow: detours, numbers, entries and tables are taken back.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sidestep_tests::process::run;

const LIMIT: Duration = Duration::from_secs(300);

/// Two batches of what is taken back at once, and more.
const ROUNDS: usize = 800;

/// Where cargo puts what it builds for this test: the shared library is there.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The two numbers behind a label.
#[track_caller]
fn pair(printed: &str, label: &str) -> [u64; 2] {
    let line = printed.lines().find_map(|line| line.strip_prefix(label));
    let mut numbers = line.unwrap_or_else(|| panic!("{printed}")).split(' ').map(|number| number.parse().unwrap());
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

#[test]
fn memory_stays_the_same() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = libraries().join("rounds-c");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"]);
    compile.arg(here.join("include")).arg(here.join("tests/c/rounds.c"));
    compile.arg("-L").arg(libraries()).arg("-lsidestep").arg(format!("-Wl,-rpath,{}", libraries().display()));
    run(compile.arg("-o").arg(&program), LIMIT).ok();
    // The library is the one that was built for this test, not an older one beside it.
    let printed = run(Command::new(program).arg(ROUNDS.to_string()).env_remove("LD_LIBRARY_PATH"), LIMIT).ok().stdout;
    let (counted, calls) = printed.split_once(" calls").unwrap().0.split_once(" of ").unwrap();
    assert_eq!(counted, calls);
    // A registration that is kept takes two pages, in two mappings.
    let [[mappings, more], [kib, more_kib]] = [pair(&printed, "mappings: "), pair(&printed, "KiB: ")];
    assert!(more < mappings + 100 && more_kib < kib + 500, "{printed}");
}
