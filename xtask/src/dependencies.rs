//! What is asked of dependencies: a licence that MIT and Apache-2.0 go with, and one version of
//! each.
//!
//! `cargo tree` knows both without a network. Security advisories are not looked at: their list
//! changes every day, so it has to be downloaded (`cargo deny check advisories` does).

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::test::cargo;

/// Licences that may be chosen; of an expression with `OR` one of them, with `AND` all.
const LICENCES: [&str; 8] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Crates that may be there in several versions, with the reason.
const SEVERAL: &[(&str, &str)] = &[];

/// Checks all crates that the workspace is built and tested with.
pub fn check() -> Result<()> {
    let mut tree: Command = cargo();
    tree.args(["tree", "--workspace", "--locked", "--edges", "normal,build,dev", "--prefix", "none"]);
    let output = tree.args(["--format", "{p}|{l}"]).output().context("cargo tree")?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let wrong = wrong(&String::from_utf8_lossy(&output.stdout));
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// What is wrong with the crates of a tree, a line each: `name v1.2.3 (…)|LICENCE`.
fn wrong(tree: &str) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut wrong = BTreeSet::new();
    for line in tree.lines() {
        let (package, licence) = line.split_once('|').unwrap_or((line, ""));
        let mut words = package.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
        versions.entry(name).or_default().insert(version);
        // A crate that was named before has a star behind it.
        let licence = licence.trim().trim_end_matches("(*)").trim();
        if !is_allowed(licence) {
            wrong.insert(format!("{name} {version}: the licence is {licence:?}"));
        }
    }
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        if !SEVERAL.iter().any(|(allowed, _)| allowed == name) {
            let versions: Vec<&str> = versions.iter().copied().collect();
            wrong.insert(format!("{name} is there in several versions: {}", versions.join(", ")));
        }
    }
    wrong.into_iter().collect()
}

/// Whether a licence expression of SPDX (or with slashes, as older crates have it) can be met.
fn is_allowed(expression: &str) -> bool {
    let one = |licence: &str| LICENCES.contains(&licence.trim().trim_matches(['(', ')']));
    let all = |part: &str| part.split(" AND ").all(one);
    match expression.split_once(") AND ") {
        Some((first, rest)) => is_allowed(first) && is_allowed(rest),
        None => expression.replace('/', " OR ").split(" OR ").any(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_chosen() {
        for allowed in
            ["MIT", "MIT OR Apache-2.0", "Unlicense/MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "GPL-2.0 OR MIT"]
        {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for other in ["", "GPL-3.0", "MIT AND GPL-2.0", "(MIT OR Apache-2.0) AND GPL-2.0"] {
            assert!(!is_allowed(other), "{other}");
        }
    }

    #[test]
    fn a_second_version_and_a_licence_are_found() {
        let tree = "a v1.0.0|MIT\nb v1.0.0 (proc-macro)|GPL-3.0\na v1.0.0|MIT (*)\na v2.0.0|MIT\n";
        assert_eq!(
            wrong(tree),
            ["a is there in several versions: v1.0.0, v2.0.0", "b v1.0.0: the licence is \"GPL-3.0\""]
        );
        assert!(wrong("a v1.0.0|MIT\nx v0.1.0 (/somewhere)|MIT OR Apache-2.0\n").is_empty());
    }
}
