//! Which scenario tests do not run on an architecture.

use anyhow::{Result, ensure};

use super::Architecture;

/// Reasons, with modules (`name::`) and single tests.
pub type LeftOut = &'static [(&'static str, &'static [&'static str])];

impl Architecture {
    /// Does a test not run?
    pub fn leaves_out(&self, test: &str) -> bool {
        let is = |name: &&str| test == *name || (name.ends_with("::") && test.starts_with(*name));
        self.left_out.iter().any(|(_, names)| names.iter().any(is))
    }

    /// All that is left out is there.
    pub fn check_left_out(&self, tests: &[String]) -> Result<()> {
        for name in self.left_out.iter().flat_map(|(_, names)| *names) {
            let is_there = tests.iter().any(|test| test == name || (name.ends_with("::") && test.starts_with(name)));
            ensure!(is_there, "there is no test {name}, which is left out on {}", self.name);
        }
        Ok(())
    }
}
