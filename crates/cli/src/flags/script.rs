//! Flags of scripts.

use clap::Args;

use super::{EngineFlags, Output, TargetFlags};

/// A script of the bpftrace language.
#[derive(Args, Debug)]
pub struct Script {
    /// Run PROGRAM, a script of the bpftrace language.
    #[arg(short = 'e', value_name = "PROGRAM", allow_hyphen_values = true)]
    pub program: Option<String>,
    /// The file of the script (- is stdin), unless -e gives it, and its arguments: $1, $2 …
    #[arg(value_name = "FILE|ARG", allow_negative_numbers = true)]
    pub words: Vec<String>,
    /// List the attach points that a pattern matches: uprobe:OBJECT:GLOB.
    #[arg(short = 'l', value_name = "PATTERN", num_args = 0..=1, default_missing_value = "uprobe:*:*")]
    pub list: Option<String>,
    #[command(flatten)]
    pub target: TargetFlags,
    #[command(flatten)]
    pub output: Output,
    /// Print the syntax tree and do nothing else.
    #[arg(short = 'd', long = "debug")]
    pub debug: bool,
    /// Say what would be written where, and touch nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Say whether an attach (to PID, with -p) would fail or be slow on this machine, and what to do.
    #[arg(long, conflicts_with_all = ["program", "words", "list", "dry_run"])]
    pub info: bool,
    /// Allow functions that change what the process does.
    #[arg(long = "unsafe")]
    pub allow_unsafe: bool,
    #[command(flatten)]
    pub engine: EngineFlags,
}
