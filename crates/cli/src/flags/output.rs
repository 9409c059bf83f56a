//! When, where and how results are printed.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// When to print.
#[derive(Args, Clone, Debug)]
pub struct Timing {
    /// Print every SEC seconds.
    #[arg(short = 'i', long, value_name = "SEC", value_parser = parse_seconds)]
    pub interval: Option<Duration>,
    /// Stop after SEC seconds.
    #[arg(short = 'd', long, value_name = "SEC", value_parser = parse_seconds)]
    pub duration: Option<Duration>,
    /// Print the time of day above each output.
    #[arg(short = 'T', long)]
    pub timestamp: bool,
}

/// Where and how to print.
#[derive(Args, Clone, Debug)]
pub struct Output {
    /// Write the results to FILE; stdout is left to the command.
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Output format; json is one object per line.
    #[arg(short = 'f', long, default_value = "text")]
    pub format: Format,
    #[command(flatten)]
    pub detail: Detail,
}

/// How much to print beside the results.
#[derive(Args, Clone, Copy, Debug)]
pub struct Detail {
    /// Print results only: no heading, no notes.
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// List refused functions and what attaching took.
    #[arg(short = 'v', long)]
    pub verbose: bool,
}

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The format of commands that probe nothing.
#[derive(Args, Clone, Copy, Debug)]
pub struct Formatted {
    /// Output format; json is one object per line.
    #[arg(short = 'f', long, value_name = "FORMAT", default_value = "text")]
    format: Format,
}

impl Formatted {
    /// The one that was asked for.
    pub fn format(&self) -> Format {
        self.format
    }

    /// JSON is wanted.
    pub fn is_json(&self) -> bool {
        self.format == Format::Json
    }
}

/// An argument in seconds.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    // A year is more than anybody waits, and keeps every deadline representable.
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=31_536_000.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds, for example 1 or 0.5".to_owned()),
    }
}
