//! Flags of scripts.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use super::{EngineFlags, Output, TargetFlags, parse_seconds};
use crate::out::color::When;

/// A script of the bpftrace language.
#[derive(Args, Debug)]
pub struct Script {
    /// Run PROGRAM, a script of the bpftrace language.
    #[arg(short = 'e', value_name = "PROGRAM", allow_hyphen_values = true)]
    pub program: Option<String>,
    /// The file of the script (- is stdin), unless -e gives it, and its arguments: $1, $2 …
    #[arg(value_name = "FILE|ARG", allow_negative_numbers = true)]
    pub words: Vec<String>,
    /// List the attach points that a pattern matches (uprobe:OBJECT:GLOB,
    /// usdt:OBJECT:PROVIDER:NAME, a GLOB alone with -p PID), or those of a program or a script;
    /// with -v, also how many cannot be probed.
    #[arg(short = 'l', long)]
    pub list: bool,
    #[command(flatten)]
    pub target: TargetFlags,
    #[command(flatten)]
    pub output: Output,
    /// Print the syntax tree and the programs that become of it, and do nothing else.
    #[arg(short = 'd', long = "debug", action = ArgAction::Count)]
    pub debug: u8,
    /// Say what would be written where, and touch nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Allow functions that change what the process does.
    #[arg(long = "unsafe")]
    pub allow_unsafe: bool,
    #[command(flatten)]
    pub engine: EngineFlags,
    #[command(flatten)]
    pub more: More,
}

/// Flags that only scripts on the command line have.
#[derive(Args, Debug, Default)]
pub struct More {
    /// Say whether an attach (to PID, with -p) would fail or be slow on this machine, and what to
    /// do.
    #[arg(long, conflicts_with_all = ["program", "words", "list", "dry_run"])]
    pub info: bool,
    /// Stop after SEC seconds, as exit() in an interval does.
    #[arg(long, value_name = "SEC", value_parser = parse_seconds)]
    pub duration: Option<Duration>,
    /// When output is written: at the end, after each LINE (the default), or at once.
    #[arg(short = 'B', value_name = "MODE")]
    pub buffering: Option<Buffering>,
    /// Colours in what is said about the script: auto (on a terminal, the default; not with
    /// NO_COLOR), always or never.
    #[arg(long, value_name = "WHEN")]
    pub color: Option<When>,
    /// Do not print warnings about the script.
    #[arg(long)]
    pub no_warnings: bool,
    /// Count reads of numbers that fail, too; those of strings are counted in any case.
    #[arg(short = 'k', long = "warnings", action = ArgAction::Count)]
    pub faults: u8,
    /// Look for files of #include and import here, too.
    #[arg(short = 'I', value_name = "DIR")]
    pub include_dir: Vec<PathBuf>,
    /// Take in a file before the script, as #include does.
    #[arg(long = "include", value_name = "FILE")]
    pub include: Vec<String>,
    /// Run the script's test probes, and nothing else.
    #[arg(long, conflicts_with = "bench")]
    pub test: bool,
    /// Run the script's bench probes, and nothing else.
    #[arg(long)]
    pub bench: bool,
    /// Options of the script: `--name=value` behind `--`.
    #[arg(skip)]
    pub options: Vec<(String, Option<String>)>,
}

/// When output is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Buffering {
    /// At the end, or when there is much of it.
    Full,
    /// Line by line.
    Line,
    /// At once.
    None,
}

impl Script {
    /// Takes the options of the script from what is behind `--`. The rest is a command.
    pub fn take_options(&mut self) {
        let command = &mut self.target.command;
        let is_option = |word: &OsString| word.to_str().is_some_and(|word| word.len() > 2 && word.starts_with("--"));
        let count = command.iter().take_while(|word| is_option(word)).count();
        let option = |word: OsString| {
            let word = word.to_string_lossy();
            let word = word.trim_start_matches('-');
            let parts = word.split_once('=').map(|(name, value)| (name.to_owned(), Some(value.to_owned())));
            parts.unwrap_or_else(|| (word.to_owned(), None))
        };
        self.more.options = command.drain(..count).map(option).collect();
    }
}
