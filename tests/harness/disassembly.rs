//! Instructions as objdump has them.

use std::path::Path;
use std::process::Command;

use crate::process::{LIMIT, run};

/// Offsets of a function's instructions from its first one, ascending.
///
/// # Panics
/// objdump is missing, or there is no such function.
#[must_use]
pub fn offsets(file: &Path, function: &str) -> Vec<u64> {
    let mut objdump = Command::new("objdump");
    objdump.args(["-d", "--no-show-raw-insn"]).arg(format!("--disassemble={function}")).arg(file);
    let text = run(&mut objdump, LIMIT).ok().stdout;
    let address = |line: &str| u64::from_str_radix(line.trim().split_once(":\t")?.0, 16).ok();
    let all: Vec<u64> = text.lines().filter_map(address).collect();
    assert!(!all.is_empty(), "no {function} in {}", file.display());
    all.iter().map(|at| at - all[0]).collect()
}
