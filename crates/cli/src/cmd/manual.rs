//! `sidestep man` and `sidestep completions`: what the table of flags says, for other readers.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, error::ErrorKind};
use clap_complete::Shell;
use sidestep_lang::script::near::near;

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
        let meant = flags.page.as_deref().and_then(|page| near(page, &names));
        let meant = meant.map_or(String::new(), |near| format!("; did you mean {near}?"));
        let message = format!("there is no manual page {name}{meant}\nthere are {}", names.join(", "));
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
    let script = String::from_utf8(script).context("completions")?;
    print(with_processes(shell, &script).as_bytes())
}

/// Completions in which the numbers of processes follow `-p`; `clap_complete` knows no such kind of
/// value.
fn with_processes(shell: Shell, script: &str) -> String {
    let mut out = String::new();
    let mut is_pid = false;
    for line in script.lines() {
        let line = match shell {
            Shell::Bash if is_pid => line.replace("compgen -f", "compgen -W \"$(cd /proc && echo [0-9]*)\" --"),
            Shell::Zsh => line.replace(":PID:_default", ":PID:_pids"),
            Shell::Fish if line.contains(" -l pid ") => format!("{line} -f -a '(__fish_complete_pids)'"),
            _ => line.to_owned(),
        };
        is_pid = ["--pid)", "-p)"].contains(&line.trim());
        out.push_str(&line);
        out.push('\n');
    }
    out
}

fn print(text: &[u8]) -> anyhow::Result<ExitCode> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text).and_then(|()| stdout.flush())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(shell: Shell) -> String {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "sidestep", &mut script);
        with_processes(shell, &String::from_utf8(script).unwrap())
    }

    #[test]
    fn files_were_offered_behind_the_option_for_processes() {
        let zsh = script(Shell::Zsh);
        assert!(zsh.contains("--pid=") && !zsh.lines().any(|l| l.contains("--pid=") && !l.contains(":_pids")), "{zsh}");
        let fish = script(Shell::Fish);
        let options: Vec<&str> = fish.lines().filter(|l| l.contains(" -l pid ")).collect();
        assert!(options.len() > 10 && options.iter().all(|l| l.ends_with("'(__fish_complete_pids)'")), "{options:?}");
    }

    /// Bash itself is asked.
    #[test]
    fn bash_completes_the_number_of_a_process() {
        let pid = std::process::id().to_string();
        for words in [&["sidestep", "-p", &pid][..], &["sidestep", "funccount", "--pid", &pid]] {
            let ask = format!(
                "{}\nCOMP_WORDS=({}); COMP_CWORD={}; _sidestep sidestep {pid} {}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
                script(Shell::Bash),
                words.join(" "),
                words.len() - 1,
                words[words.len() - 2],
            );
            let output = std::process::Command::new("bash").args(["-c", &ask]).output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(said.lines().any(|line| line == pid), "{words:?}: {said}");
        }
    }
}
