//! Damaged inputs for all that reads what others have written: the program is `fuzz/`.

use std::process::Command;

use anyhow::{Context, Result};

use crate::test::checkout;

/// Builds and runs it, with checks of arithmetic. True if no input fails.
pub fn fuzz(words: &[&str]) -> Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--locked", "--package", "sidestep-fuzz", "--"]).args(words);
    let status = command.current_dir(checkout()).status().context("cargo")?;
    Ok(status.success())
}
