//! A script of the bpftrace language: read, checked, run.

mod attach;
mod list;
mod nowhere;
mod records;
mod run;
mod start;
mod types;
mod usdt;

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::error::ErrorKind;
use sidestep_engine::Target;
use sidestep_lang::script::ast::Declared;
use sidestep_lang::script::check::check_with;
use sidestep_lang::script::checked::Config;
use sidestep_lang::script::config::NoSetting;
use sidestep_lang::script::diagnostic::Diagnostic;
use sidestep_lang::script::lower::{Clock, Compiled, lower};
use sidestep_lang::script::parser::{Given, parse_given};
use sidestep_lang::script::tree;

use crate::flags::script::Script;
use crate::input;
use crate::out::color::{self, When};
use crate::out::script::Layout;
use crate::out::sink::{say, say_lines};
use crate::out::{escape, time};

/// The text of a script, and what it is called in messages.
#[derive(Clone)]
pub struct Source {
    name: String,
    text: String,
    /// The arguments of its command line.
    params: Vec<String>,
    /// Are there colours in what is said about it?
    color: bool,
}

impl Source {
    fn read(flags: &Script) -> anyhow::Result<Source> {
        let mut words = flags.words.iter().cloned();
        let (name, text) = match &flags.program {
            Some(program) => ("stdin".to_owned(), program.clone()),
            None => match words.next() {
                None => super::usage(ErrorKind::MissingRequiredArgument, "give a script: -e PROGRAM, or a FILE"),
                Some(file) if file == "-" => {
                    let mut text = String::new();
                    let read = std::io::stdin().take(input::SCRIPT + 1).read_to_string(&mut text);
                    if read.context("cannot read stdin")? as u64 > input::SCRIPT {
                        return Err(anyhow!("stdin is longer than {} MiB: that is no script", input::SCRIPT >> 20));
                    }
                    ("stdin".to_owned(), text)
                }
                Some(file) => {
                    let bytes = match input::read(Path::new(&file), input::SCRIPT) {
                        Err(error) if is_missing(&error) => super::usage(
                            ErrorKind::InvalidSubcommand,
                            &format!("\"{file}\" is neither a command nor the file of a script"),
                        ),
                        read => read?,
                    };
                    let name = Path::new(&file).file_name().unwrap_or_default().to_string_lossy().into_owned();
                    (name, String::from_utf8(bytes).with_context(|| format!("{file} is no text"))?)
                }
            },
        };
        Ok(Source { name, text, params: words.collect(), color: When::now(flags.more.color) })
    }

    /// Says what is wrong, on stderr.
    fn say(&self, found: &[Diagnostic]) {
        let row = |text: &str| escape::row(text).into_owned();
        for diagnostic in found {
            // A message may name what is in the target; its end of a line would be the script's.
            let (message, hint) = (row(&diagnostic.message), diagnostic.hint.as_deref().map(row));
            let text = Diagnostic { message, hint, ..diagnostic.clone() }.render(&row(&self.name), &self.text);
            let text = escape::block(text.trim_end().as_bytes());
            say_lines(&if self.color { color::diagnostic(&text) } else { text });
        }
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>().or_else(|| error.root_cause().downcast_ref());
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Runs the command. A script that is wrong ends with status 1.
pub fn run(flags: &Script) -> anyhow::Result<ExitCode> {
    if flags.list {
        return list::run(flags);
    }
    start(flags, Source::read(flags)?, None)
}

/// A tool that is a script.
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// How it shows what it has found.
    pub layout: Box<dyn Layout>,
    /// Functions in its attach points are regular expressions.
    pub regexp: bool,
}

/// Runs the script of a tool.
pub fn run_tool(flags: &Script, tool: Tool) -> anyhow::Result<ExitCode> {
    let (name, text) = (tool.name.to_owned(), flags.program.clone().unwrap_or_default());
    start(flags, Source { name, text, params: Vec::new(), color: false }, Some(tool))
}

fn start(flags: &Script, source: Source, tool: Option<Tool>) -> anyhow::Result<ExitCode> {
    let (params, options) = (source.params.clone(), flags.more.options.clone());
    let script = match parse_given(&source.text, &Given { params, options, config: environment(std::env::vars())? }) {
        Ok(script) => script,
        Err(error) => {
            source.say(&[error]);
            return Ok(ExitCode::FAILURE);
        }
    };
    if flags.more.options.iter().any(|(name, _)| name == "help") && !script.options.iter().any(|o| o.name == "help") {
        print!("{}", options_help(&source.name, &script.options));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some((name, _)) = flags.more.options.iter().find(|(name, _)| !script.options.iter().any(|o| o.name == *name))
    {
        let known: Vec<_> = script.options.iter().map(|option| format!("--{}", option.name)).collect();
        let known = if known.is_empty() { "it has none".to_owned() } else { format!("there are {}", known.join(", ")) };
        super::usage(ErrorKind::UnknownArgument, &format!("the script has no option --{name}; {known}"));
    }
    if flags.debug > 0 {
        tree::lines(&script).iter().try_for_each(|line| writeln!(std::io::stdout(), "{line}"))?;
    }
    let points = script.blocks.iter().flat_map(|block| block.points.clone()).collect();
    let mut programs = types::Programs::new(points, &flags.target.pid, &flags.engine.options());
    if let Target::Command(words) = flags.target.target() {
        programs.command = words.first().map(|word| word.to_string_lossy().into_owned());
    }
    let is_command = programs.command.is_some();
    let mut checked = match check_with(&script, &source.params, &mut programs) {
        Ok((checked, warnings)) => {
            if !flags.more.no_warnings {
                source.say(&warnings);
                if !is_command && !checked.asks_for_cpid {
                    source.say(&checked.cpid);
                }
            }
            checked
        }
        Err(errors) => {
            source.say(&errors);
            return Ok(ExitCode::FAILURE);
        }
    };
    if !flags.allow_unsafe && !checked.unsafe_calls.is_empty() {
        source.say(&checked.unsafe_calls);
        return Ok(ExitCode::FAILURE);
    }
    checked.several = flags.target.are_several();
    checked.processors = processors();
    let start = time::monotonic();
    let compiled = lower(&checked, Clock { start, since_1970: time::realtime().wrapping_sub(start) })?;
    if flags.debug > 0 {
        print_programs(&compiled)?;
        if flags.target.is_given() && source.params.first().is_some_and(|word| word.parse::<f64>().is_ok()) {
            // What the tools' -d is.
            say(
                "sidestep: -d prints the script, and nothing was probed; interval:s:5 { exit() } ends one after 5 seconds",
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    start::run(flags, source, checked, compiled, tool)
}

/// Processors that the machine may have, also those that are off now: what bpftrace's `ncpus` and
/// the kernel's tables count.
fn processors() -> u64 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    // `0-3`, or `0,2-3` where some numbers are not used.
    let last = text.trim().rsplit([',', '-']).next().and_then(|number| number.parse::<u64>().ok());
    last.map_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u64), |last| last + 1)
}

/// Settings of bpftrace's environment variables. Those that mean nothing here are left alone.
fn environment(variables: impl Iterator<Item = (String, String)>) -> anyhow::Result<Config> {
    let mut config = Config::default();
    for (name, value) in variables.filter(|(name, _)| name.starts_with("BPFTRACE_")) {
        match config.set(&name, &value) {
            Err(NoSetting::Value(values)) => return Err(anyhow!("{name} is \"{value}\"; expected {values}")),
            Ok(()) | Err(NoSetting::Unknown) => {}
        }
    }
    Ok(config)
}

/// What `-- --help` prints.
fn options_help(script: &str, options: &[Declared]) -> String {
    let line = |option: &Declared| {
        let name = format!("--{}={}", option.name, option.default);
        format!("  {name:<24} {}", option.description).trim_end().to_owned() + "\n"
    };
    match options.is_empty() {
        true => format!("{script} has no options.\n"),
        false => format!("Options of {script}, and their defaults:\n{}", options.iter().map(line).collect::<String>()),
    }
}

/// The maps and programs of a script as text.
fn print_programs(compiled: &Compiled) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for (number, map) in compiled.maps.iter().enumerate() {
        let (kind, name, keys, values) = (map.kind, &map.name, map.key_size, map.value_size);
        writeln!(out, "\nmap {number}: {name}, {kind}, {keys} bytes → {values} bytes, {} entries", map.max_entries)?;
    }
    for probe in &compiled.probes {
        let entry = probe.entry.map(|entry| (entry, " (at the entry of the call)"));
        for (program, what) in entry.into_iter().chain([(probe.program, "")]) {
            writeln!(out, "\n{}{what}: program {program}", probe.point.text())?;
            for (slot, insn) in compiled.programs[program].iter().flatten() {
                writeln!(out, "{slot:5}: {insn}")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_environment() {
        let read = |name: &str, value: &str| environment([(name.to_owned(), value.to_owned())].into_iter());
        assert_eq!(read("BPFTRACE_MAX_STRLEN", "99").unwrap().max_strlen, 99);
        assert_eq!(read("BPFTRACE_KERNEL_SOURCE", "/usr/src").unwrap(), Config::default());
        assert_eq!(read("MAX_STRLEN", "x").unwrap(), Config::default());
        let error = read("BPFTRACE_MAX_STRLEN", "x").unwrap_err().to_string();
        assert!(error.starts_with("BPFTRACE_MAX_STRLEN is \"x\"; expected 1 to 16384"), "{error}");
    }
}
