//! `sidestep man` and `sidestep completions`: what the table of flags says, for other readers.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, error::ErrorKind};
use clap_complete::Shell;

use crate::flags::{Cli, Man};
use crate::out::man;

/// Prints a manual page, or writes all of them.
pub fn man(flags: &Man) -> anyhow::Result<ExitCode> {
    let pages = man::pages();
    if let Some(dir) = &flags.dir {
        for page in pages {
            write(dir, &page)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let name = flags.page.as_ref().map_or_else(|| "sidestep".to_owned(), |page| format!("sidestep-{page}"));
    let Some(page) = pages.iter().find(|page| page.name == name) else {
        let names: Vec<&str> = pages.iter().filter_map(|page| page.name.strip_prefix("sidestep-")).collect();
        let message = format!("there is no manual page {name}; there are {}", names.join(", "));
        super::usage(ErrorKind::InvalidValue, &message)
    };
    print(page.text.as_bytes())
}

fn write(dir: &Path, page: &man::Page) -> anyhow::Result<()> {
    let folder = dir.join(format!("man{}", page.section));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let file = folder.join(format!("{}.{}", page.name, page.section));
    fs::write(&file, &page.text).with_context(|| format!("cannot write {}", file.display()))
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
