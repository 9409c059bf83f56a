//! One file per command; [`watch`] is the life of a probing command, from the attach to the exit
//! status.

mod audit;
mod bpf;
mod costs;
mod coverage;
mod detach;
mod explain;
mod funccount;
mod funclatency;
mod info;
mod list;
mod losses;
mod manual;
mod paths;
mod progress;
mod script;
mod status;
mod switch;
mod tools;
mod trace;
mod watch;

use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, error::ErrorKind};
use sidestep_engine::{FuncPattern, Pattern, pattern};

use crate::flags::{Cli, Command, OnOff};
use crate::out::outlet;

/// Runs a command line. A reader that closes its end of our stdout is no error.
pub fn run(mut cli: Cli) -> anyhow::Result<ExitCode> {
    cli.script.take_options();
    if let Some(Command::Deadlock(flags)) = &mut cli.command {
        flags.run.target.pid.extend(flags.process.take());
    }
    let Some(command) = &cli.command else {
        let flags = &cli.script;
        return piped(if flags.more.info { info::run(flags) } else { script::run(flags) });
    };
    piped(match command {
        Command::Funccount(flags) => funccount::run(flags),
        Command::Funclatency(flags) => funclatency::run(flags),
        Command::Trace(flags) => trace::run(flags),
        Command::Bpf(flags) => bpf::run(flags),
        Command::Tools(flags) => tools::list(flags),
        Command::Stackcount(flags) => tools::run(flags),
        Command::Argdist(flags) => tools::run(flags),
        Command::Funcslower(flags) => tools::run(flags),
        Command::Bashreadline(flags) => tools::run(flags),
        Command::Gethostlatency(flags) => tools::run(flags),
        Command::Sslsniff(flags) => tools::run(flags),
        Command::Memleak(flags) => tools::run(flags),
        Command::Deadlock(flags) => tools::run(flags),
        Command::Tplist(flags) => tools::tplist::run(flags),
        Command::Explain(flags) => explain::run(flags),
        Command::List(flags) => list::run(flags),
        Command::Coverage(flags) => coverage::run(flags),
        Command::Status(flags) => status::run(flags),
        Command::Disable(flags) => switch::run(flags, switch::To::Disabled),
        Command::Enable(flags) => switch::run(flags, switch::To::Enabled),
        Command::Detach(flags) => detach::run(flags),
        Command::Man(flags) => manual::man(flags),
        Command::Completions(flags) => manual::completions(flags.shell),
        Command::Optimize(flags) => switch::run(&flags.switch, switch::To::Optimized(flags.to == OnOff::On)),
    })
}

fn piped(result: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    match result {
        Err(error) if error.downcast_ref().is_some_and(is_unwanted) => Ok(ExitCode::SUCCESS),
        result => result,
    }
}

/// Does nobody want the output any more? That is no mistake.
fn is_unwanted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe || outlet::is_given_up(error)
}

/// A pattern that was typed, or a usage error (exit status 2).
fn parse_pattern(text: &str, regexp: bool) -> Pattern {
    pattern::parse(text, regexp).unwrap_or_else(|message| usage(ErrorKind::ValueValidation, &message))
}

/// The same of what can be counted: a USDT probe, too, as bcc writes it,
/// `u:OBJECT:[PROVIDER:]NAME`.
fn parse_counted(text: &str, regexp: bool) -> Pattern {
    let parts: Vec<&str> = text.split(':').collect();
    match *parts {
        ["u" | "usdt", object, name] if ![object, name].contains(&"") => pattern::usdt(object, "*", name),
        ["u" | "usdt", object, provider, name] if ![object, provider, name].contains(&"") => {
            pattern::usdt(object, provider, name)
        }
        ["t", _, _] => usage(ErrorKind::ValueValidation, "tracepoints need the kernel: not available in this tool"),
        _ => parse_pattern(text, regexp),
    }
}

/// A pattern for `explain` and `list`: without a process, only an object says where to look.
fn parse_place(text: &str, regexp: bool, pid: Option<i32>) -> Pattern {
    let text = without_provider(text);
    let parsed = pattern::place(text, regexp);
    let pattern = parsed.unwrap_or_else(|message| usage(ErrorKind::ValueValidation, &message));
    if pattern.object.is_none() && pid.is_none() {
        let name = match &pattern.func {
            FuncPattern::Name(_) | FuncPattern::Regex(_) => text,
            _ => "FUNC",
        };
        usage(
            ErrorKind::MissingRequiredArgument,
            &format!(
                "\"{text}\" does not say where to look; write OBJECT:{name}, for example libc:{name}, or add -p PID"
            ),
        );
    }
    pattern
}

/// A place as scripts and `trace` write it, without the word in front that says when.
fn without_provider(text: &str) -> &str {
    const WORDS: [&str; 6] = ["uprobe:", "uretprobe:", "u:", "ur:", "p:", "r:"];
    // An object may have such a name.
    let place = WORDS.iter().find_map(|word| text.strip_prefix(word)).filter(|place| place.contains(':'));
    place.unwrap_or(text)
}

fn usage(kind: ErrorKind, message: &str) -> ! {
    Cli::command().error(kind, message).exit()
}
