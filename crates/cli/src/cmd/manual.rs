//! `sidestep man` and `sidestep completions`: what the table of flags says, for other readers.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::flags::Cli;
use crate::out::man;

/// The manual page.
pub fn page() -> anyhow::Result<ExitCode> {
    print(man::page(Cli::command()).as_bytes())
}

/// The completions of a shell.
pub fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sidestep", &mut script);
    print(&script)
}

fn print(text: &[u8]) -> anyhow::Result<ExitCode> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text).and_then(|()| stdout.flush())?;
    Ok(ExitCode::SUCCESS)
}
