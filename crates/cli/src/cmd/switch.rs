//! `sidestep disable`, `enable` and `optimize`: probes that a process carries, or only their jumps,
//! are switched off and on.

use std::process::ExitCode;

use sidestep_engine::{Options, Pattern, Switched, pattern};

use crate::flags::{Format, Switch};
use crate::out::number;
use crate::out::sink::{Sink, say};

/// To which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Enabled,
    Disabled,
    /// A jump instead of a trap, or the other way round.
    Optimized(bool),
}

/// Runs the command. It fails if a probe that is meant could not be switched; the others are.
pub fn run(flags: &Switch, to: To) -> anyhow::Result<ExitCode> {
    let usage = |message: String| super::usage(clap::error::ErrorKind::ValueValidation, &message);
    let parse = |text: &String| pattern::place(text, flags.regexp).unwrap_or_else(usage);
    let patterns: Vec<Pattern> = flags.patterns.iter().map(parse).collect();
    let options = Options { debug_dirs: flags.debuginfo.directories.clone(), ..Options::default() };
    let switched = match to {
        To::Enabled => sidestep_engine::enable(flags.pid, &patterns, &options)?,
        To::Disabled => sidestep_engine::disable(flags.pid, &patterns, &options)?,
        To::Optimized(on) => sidestep_engine::optimize(flags.pid, &patterns, &options, on)?,
    };
    if !flags.quiet {
        let mut sink = Sink::open(None, Format::Text, false)?;
        sink.line(&message(&switched, to))?;
        sink.flush()?;
    }
    if flags.verbose {
        say(&format!("sidestep: {}", manner(&switched)));
    }
    for (va, reason) in &switched.refused {
        say(&format!("sidestep: {va} stays as it was: {reason}"));
    }
    Ok(if switched.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn message(switched: &Switched, to: To) -> String {
    let done = match to {
        To::Enabled => "enabled",
        To::Disabled => "disabled",
        To::Optimized(true) => "optimized",
        To::Optimized(false) => "no longer optimized",
    };
    let probes = if switched.probes == 1 { "probe" } else { "probes" };
    let rest = match switched.unchanged {
        0 => String::new(),
        1 => "; 1 was already".to_owned(),
        n => format!("; {n} were already"),
    };
    let traps = match switched.traps {
        0 => String::new(),
        n => {
            let stay = if n == 1 { "stays a trap" } else { "stay traps" };
            format!("; {n} {stay}: no jump is possible there, or --no-optimize forbids one")
        }
    };
    format!("{} {probes} {done}{rest}{traps}", switched.probes)
}

/// How it was done.
fn manner(switched: &Switched) -> String {
    let live = switched.sites.saturating_sub(switched.stopped);
    let longest = switched.longest.as_secs_f64() * 1e3;
    let promoted = match switched.promoted {
        0 => String::new(),
        n => format!(", {n} that nobody blocks any more became jumps"),
    };
    format!(
        "{} switched while the threads ran, {} while they were stopped{promoted}; no thread stood still for more than \
         {longest:.2} ms",
        number::of(live, "site"),
        switched.stopped
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_said() {
        let switched = |probes, unchanged| Switched { probes, unchanged, ..Switched::default() };
        assert_eq!(message(&switched(1, 0), To::Disabled), "1 probe disabled");
        assert_eq!(message(&switched(3, 1), To::Enabled), "3 probes enabled; 1 was already");
        assert_eq!(message(&switched(0, 2), To::Enabled), "0 probes enabled; 2 were already");
        let forbidden = "no jump is possible there, or --no-optimize forbids one";
        let traps = Switched { traps: 1, ..switched(1, 1) };
        let text = format!("1 probe optimized; 1 was already; 1 stays a trap: {forbidden}");
        assert_eq!(message(&traps, To::Optimized(true)), text);
    }
}
