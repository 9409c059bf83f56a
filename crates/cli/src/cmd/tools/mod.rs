//! The tools of bcc: each is a script, made from its flags, and a way to show what that has found.

mod argdist;
mod bashreadline;
mod call;
mod ctype;
mod deadlock;
mod funcslower;
mod gethostlatency;
mod memleak;
mod spec;
mod sslsniff;
mod stackcount;
pub mod tplist;
mod trace;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::script;
use crate::flags::tools::{Run, Tools};
use crate::flags::{self, Cli, Output, TargetFlags};
use crate::out::script::Layout;

/// Why `-K` is no flag here.
pub const KERNEL_STACKS: &str = "-K: stacks of the kernel need the kernel: not available in this tool";

/// A tool with its flags.
pub trait Tool {
    /// As it is called.
    const NAME: &'static str;

    /// What all of them have.
    fn flags(&self) -> &Run;

    /// Where and how it prints.
    fn output(&self) -> Output;

    /// The script that it is, but for its end after a time.
    ///
    /// # Errors
    /// A clause for the user.
    fn script(&self) -> Result<String, String>;

    /// How it shows what it has found.
    fn layout(&self) -> Box<dyn Layout>;

    /// What is done before anything is probed.
    ///
    /// # Errors
    /// What keeps the tool from doing its work.
    fn prepare(&self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Whether functions are regular expressions.
    fn regexp(&self) -> bool {
        false
    }
}

/// Runs a tool, or prints its script.
pub fn run<T: Tool>(tool: &T) -> anyhow::Result<ExitCode> {
    let text = tool.script().unwrap_or_else(|error| usage(T::NAME, ErrorKind::ValueValidation, &error));
    // The end comes first: what is due at the same moment is printed once, by END.
    let (before, intervals) = text.split_at(text.find("\ninterval:").map_or(text.len(), |at| at + 1));
    let text = format!("{before}{}{intervals}", after(tool.flags().duration));
    if tool.flags().print {
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    need_target(T::NAME, &tool.flags().target);
    if !tool.flags().dry_run {
        tool.prepare()?;
    }
    let flags = tool.flags().script(text, tool.output());
    script::run_tool(&flags, script::Tool { name: T::NAME, layout: tool.layout(), regexp: tool.regexp() })
}

/// There is something to probe, or else a mistake on the command line.
pub fn need_target(name: &str, target: &TargetFlags) {
    if !target.is_given() {
        let message = format!("{name} probes a process: add -p PID, -c CMD or -- CMD");
        usage(name, ErrorKind::MissingRequiredArgument, &message);
    }
}

/// `sidestep tools`
pub fn list(flags: &Tools) -> anyhow::Result<ExitCode> {
    let Some((name, rest)) = flags.print.split_first() else {
        for command in Cli::command().get_subcommands() {
            if command.get_arguments().any(|arg| arg.get_id() == "print") && command.get_name() != "tools" {
                let about = command.get_about().map(ToString::to_string).unwrap_or_default();
                println!("{:<16} {about}", command.get_name());
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    let is_tool = |command: &clap::Command| {
        command.get_name() == name && command.get_arguments().any(|arg| arg.get_id() == "print")
    };
    if name == "tools" || !Cli::command().get_subcommands().any(is_tool) {
        usage("tools", ErrorKind::InvalidValue, &format!("there is no tool \"{name}\"; `sidestep tools` lists them"));
    }
    let words = ["sidestep", name, "--print"].into_iter().chain(rest.iter().map(String::as_str));
    super::run(flags::parse(words.map(OsString::from).collect()))
}

/// A mistake on the command line of a tool.
pub fn usage(name: &str, kind: ErrorKind, message: &str) -> ! {
    let mut cli = Cli::command();
    cli.build();
    match cli.find_subcommand_mut(name) {
        Some(command) => command.error(kind, message).exit(),
        None => super::usage(kind, message),
    }
}

/// A block that runs again and again.
fn every(period: Duration, body: &str) -> String {
    format!("interval:{} {{ {body} }}\n", duration(period))
}

/// The script ends after this time.
fn after(period: Option<Duration>) -> String {
    period.map(|period| every(period, "exit()")).unwrap_or_default()
}

/// In the largest unit that is exact enough.
fn duration(period: Duration) -> String {
    match period.as_millis() {
        ms if ms % 1000 == 0 => format!("s:{}", ms / 1000),
        ms => format!("ms:{}", ms.max(1)),
    }
}

/// A text in quotes.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_attach_points() {
        assert_eq!(every(Duration::from_secs(2), "exit()"), "interval:s:2 { exit() }\n");
        assert_eq!(after(Some(Duration::from_millis(1500))), "interval:ms:1500 { exit() }\n");
        assert_eq!(after(None), "");
    }
}
