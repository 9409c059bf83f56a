//! A script of the bpftrace language: read, checked, run.

mod attach;
mod fmt;
mod list;
mod nowhere;
mod paths;
mod records;
mod run;
mod selftest;
mod source;
mod start;
mod types;
mod usdt;

use std::io::Write;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::error::ErrorKind;
use sidestep_engine::Target;
use sidestep_lang::script::ast::{Declared, Provider};
use sidestep_lang::script::check::check_with;
use sidestep_lang::script::checked::Config;
use sidestep_lang::script::config::NoSetting;
use sidestep_lang::script::lower::{Compiled, lower};
use sidestep_lang::script::near::near;
use sidestep_lang::script::parser::{Given, parse_given};
use sidestep_lang::script::tree;

use crate::flags::script::{Mode, Script};
use crate::out::script::Layout;
use crate::out::sink::say;
use crate::out::time;

pub use source::Source;

/// Runs the command. A script that is wrong ends with status 1.
pub fn run(flags: &Script) -> anyhow::Result<ExitCode> {
    if flags.list {
        return list::run(flags);
    }
    match Source::read(flags)? {
        Some(source) if flags.more.fmt => fmt::run(flags, &source),
        Some(source) => start(flags, source, None),
        None => Ok(ExitCode::FAILURE),
    }
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
    start(flags, Source::of(name, text), Some(tool))
}

fn start(flags: &Script, source: Source, tool: Option<Tool>) -> anyhow::Result<ExitCode> {
    let (params, options) = (source.params.clone(), flags.more.options.clone());
    let environment = environment(std::env::vars())?;
    let given = Given {
        params,
        options,
        environment,
        count_reads: flags.more.faults > 0,
        parts: source.parts(),
        included: source.included(),
        only_read: false,
    };
    let mut script = match parse_given(&source.text, &given) {
        Ok(script) => script,
        Err(error) => {
            source.say(&[error]);
            return Ok(ExitCode::FAILURE);
        }
    };
    only_wanted(&mut script, flags);
    if script.blocks.is_empty() {
        return Err(match (flags.more.test, flags.more.bench) {
            (true, _) => anyhow!("the script has no test probes: test:NAME {{ … }}"),
            (_, true) => anyhow!("the script has no bench probes: bench:NAME {{ … }}"),
            _ => anyhow!("no probes to attach; --test runs test probes, --bench benchmarks"),
        });
    }
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
    if flags.prints_tree() {
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
    let compiled = lower(&checked, time::clock_of_scripts(start))?;
    if flags.more.mode == Some(Mode::Codegen) && flags.debug.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if !flags.debug.is_empty() {
        if flags.prints_programs() {
            print_programs(&compiled)?;
        }
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

/// Leaves what the command line asks for: tests, benchmarks, or all else.
fn only_wanted(script: &mut sidestep_lang::script::ast::Script, flags: &Script) {
    let mode = match (flags.more.test, flags.more.bench) {
        (true, _) => Some(Provider::Test),
        (_, true) => Some(Provider::Bench),
        _ => None,
    };
    let is_wanted = |provider: Provider| match mode {
        Some(mode) => provider == mode,
        None => !matches!(provider, Provider::Test | Provider::Bench),
    };
    for block in &mut script.blocks {
        block.points.retain(|point| is_wanted(point.provider));
    }
    script.blocks.retain(|block| !block.points.is_empty());
}

/// What to say of a word that is neither a command nor a file.
fn no_command(word: &str) -> String {
    let names: Vec<String> = <crate::flags::Cli as clap::CommandFactory>::command()
        .get_subcommands()
        .map(|c| c.get_name().to_owned())
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let meant = near(word, &names).map_or(String::new(), |near| format!("; did you mean {near}?"));
    format!("\"{word}\" is neither a command nor the file of a script{meant}")
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
fn environment(variables: impl Iterator<Item = (String, String)>) -> anyhow::Result<Vec<(String, String)>> {
    let mut settings = Vec::new();
    for (name, value) in variables.filter(|(name, _)| name.starts_with("BPFTRACE_")) {
        match Config::default().set(&name, &value) {
            Err(NoSetting::Value(values)) => return Err(anyhow!("{name} is \"{value}\"; expected {values}")),
            Ok(()) => settings.push((name, value)),
            Err(NoSetting::Unknown) => {}
        }
    }
    Ok(settings)
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
        assert_eq!(read("BPFTRACE_MAX_STRLEN", "99").unwrap(), [("BPFTRACE_MAX_STRLEN".to_owned(), "99".to_owned())]);
        assert_eq!(read("BPFTRACE_KERNEL_SOURCE", "/usr/src").unwrap(), []);
        assert_eq!(read("MAX_STRLEN", "x").unwrap(), []);
        let error = read("BPFTRACE_MAX_STRLEN", "x").unwrap_err().to_string();
        assert!(error.starts_with("BPFTRACE_MAX_STRLEN is \"x\"; expected 1 to 16384"), "{error}");
    }
}
