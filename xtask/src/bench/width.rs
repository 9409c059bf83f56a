//! The same measurement for 64-bit and for 32-bit programs.

use anyhow::{Context, Result};
use sidestep_tests::tool::use_32_bit;

/// Runs `part` for programs of both widths, and puts a heading before each.
pub fn both_widths(part: impl Fn() -> Result<String> + Sync) -> Result<String> {
    let mut text = String::from("### 64-bit program\n\n");
    text += &part()?;
    text += "\n### 32-bit program\n\n";
    // The width is that of a thread.
    let narrow = || {
        use_32_bit();
        part()
    };
    text += &std::thread::scope(|scope| scope.spawn(narrow).join().ok()).context("panicked")??;
    Ok(text)
}
