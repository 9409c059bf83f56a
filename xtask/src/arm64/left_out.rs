//! Which scenario tests do not run on arm64, and why.

use anyhow::{Result, ensure};

/// Reasons, with modules (`name::`) and single tests.
const LEFT_OUT: &[(&str, &[&str])] = &[
    ("of 32-bit programs", &["x86_32::"]),
    (
        "x86 code, and what becomes of it",
        &["displaced::", "emulated::", "labels::", "ladder::", "promotion::", "registers::", "short::", "torture::"],
    ),
    ("long, and made for machines that are not emulated", &["rack::", "random::", "realworld::", "redis::"]),
    ("of objects, where nothing runs: the host does the same", &["coverage::", "rules::"]),
    ("the kernel's uprobes as the oracle", &["kernel_cases::", "kernel_suites::", "kernel_uprobes::"]),
    ("programs that the guest does not have", &["bpftrace::", "debugger::", "provider::"]),
];

/// Why a test does not run on arm64.
pub fn why(test: &str) -> Option<&'static str> {
    let is = |name: &&str| test == *name || (name.ends_with("::") && test.starts_with(*name));
    LEFT_OUT.iter().find(|(_, names)| names.iter().any(is)).map(|(why, _)| *why)
}

/// All that is left out is there.
pub fn check(tests: &[String]) -> Result<()> {
    for name in LEFT_OUT.iter().flat_map(|(_, names)| *names) {
        let is_there = tests.iter().any(|test| test == name || (name.ends_with("::") && test.starts_with(name)));
        ensure!(is_there, "there is no test {name}, which is left out on arm64");
    }
    Ok(())
}
